"""Report the tests that failed in a run of `scripts/run_tests`, and those of them that passed in the second run.

python scripts/second_run.py CACHE before          note the failed tests; exit code 1 if there is no second run
python scripts/second_run.py CACHE after           print the unreliable tests, and write CACHE.json with them; exit code
                                                   1 if a test has failed and not passed since, whether run or not
python scripts/second_run.py CACHE failed          the names of the failed tests, one in a line
python scripts/second_run.py CACHE history FILE    append CACHE.json to FILE, a line for each run, with date and commit;
                                                   print the tests that were unreliable more than once lately
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

FAILURES_MAX: Final = 20
"""More failures than this indicate a fault of the product, not of an unreliable test."""

RUNS: Final = 10
"""The number of runs in which a test that is unreliable twice must be fixed or removed."""

PASSED: Final = "passed on the second run"
"""The result of a test that passed when it was run again."""


def record_failures(report: Path, failed: list[str]) -> int:
    """Record the failed tests. Return exit code 1 if there are none, or too many for a second run."""
    report.write_text(json.dumps({"failed": failed}, indent=1))
    if not 0 < len(failed) <= FAILURES_MAX:
        print(f"\n{len(failed)} failures: there is no second run unless 1 to {FAILURES_MAX} tests fail")
        return 1
    print(f"\n{len(failed)} failures are run a second time, alone, one after another\n", flush=True)
    return 0


def report_second_run(report: Path, failed: list[str]) -> int:
    """Print and record the tests that passed in the second run. Return exit code 1 if others have failed."""
    first = json.loads(report.read_text())["failed"]
    passed = [name for name in first if name not in failed]
    report.write_text(json.dumps({"failed": failed, PASSED: passed}, indent=1))
    print("\npassed on the second run (these tests are not reliable: find the cause of the failures above):")
    for name in passed or ["none"]:
        print(f"  {name}")
    return 1 if failed else 0


def append_to_history(report: Path, history: Path) -> int:
    """Append the report to the history, and print the tests that were unreliable more than once in the last runs."""
    found = json.loads(report.read_text()) if report.exists() else {}
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    line = {
        "date": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", "commit": commit, "run": report.stem,
        "failed": found.get("failed", []), PASSED: found.get(PASSED, []),
    }  # fmt: skip
    history.parent.mkdir(parents=True, exist_ok=True)
    with history.open("a") as file:
        file.write(f"{json.dumps(line)}\n")
    runs = [one for text in history.read_text().splitlines() if (one := json.loads(text))["run"] == report.stem]
    counts = Counter(name for one in runs[-RUNS:] for name in one[PASSED])
    repeated = sorted(name for name, count in counts.items() if count > 1)
    if repeated:
        print(f"\nnot reliable more than once in the last {RUNS} runs (fix or remove each of these):")
    for name in repeated:
        print(f"  {counts[name]} times  {name}")
    return 0


def main(cache: Path, when: str, *files: str) -> int:
    """Run one subcommand and return the exit code."""
    report = cache.with_suffix(".json")
    if when == "history":
        return append_to_history(report, Path(*files))
    last_failed = cache / "v" / "cache" / "lastfailed"
    failed = sorted(json.loads(last_failed.read_text())) if last_failed.exists() else []
    if when == "failed":
        print("\n".join(failed))
        return 0
    return record_failures(report, failed) if when == "before" else report_second_run(report, failed)


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), *sys.argv[2:]))
