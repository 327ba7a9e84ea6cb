"""What `scripts/run_tests` prints after a second run: which tests failed at first, and what became of them.

python scripts/second_run.py CACHE before      note the failed tests; exit code 1 if there is no second run
python scripts/second_run.py CACHE after       the table, and CACHE.json with the unreliable tests; exit code 1 if a
                                               test has failed and not passed since, whether it was run or not
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

FAILURES_MAX: Final = 20
"""More at once is a broken product, and not a test that is not reliable."""


def main(cache: Path, when: str) -> int:
    """The exit code."""
    report = cache.with_suffix(".json")
    last_failed = cache / "v" / "cache" / "lastfailed"
    failed = sorted(json.loads(last_failed.read_text())) if last_failed.exists() else []
    if when == "before":
        report.write_text(json.dumps({"failed": failed}, indent=1))
        if not 0 < len(failed) <= FAILURES_MAX:
            print(f"\n{len(failed)} failures: there is no second run for more than {FAILURES_MAX}")
            return 1
        print(f"\n{len(failed)} failures are run a second time, alone, one after another\n", flush=True)
        return 0
    first = json.loads(report.read_text())["failed"]
    passed = [name for name in first if name not in failed]
    report.write_text(json.dumps({"failed": failed, "passed on the second run": passed}, indent=1))
    print("\npassed on the second run (each of these is not reliable: find out why, see above):")
    for name in passed or ["none"]:
        print(f"  {name}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), sys.argv[2]))
