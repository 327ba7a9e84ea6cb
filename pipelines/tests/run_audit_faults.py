"""Inject faults into stores that a real master and a real slave have written, and audit them: `make audit-faults`.

Each fault is injected alone, by a seed, on the master, on the slave, or on both; the audit must report every damaged
record and unit, on that copy, and nothing else. Before and after, the clean pair must have no findings.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

HERE: Final = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "operator" / "tests")]

from spark_kit.broker_pair import copy_store, directories, write_pair  # noqa: E402
from spark_kit.store_faults import EITHER_COPY, FAULTS, ON_BOTH, Log, audit_errors, inject  # noqa: E402

from gantry_pipelines.audit.model import Finding, FindingKind  # noqa: E402
from gantry_pipelines.audit.running import audit  # noqa: E402
from gantry_pipelines.audit.settings import AuditSettings  # noqa: E402

CHUNK_BYTES: Final = 192 << 10
"""Not a divisor of a file's size, so that chunks begin in the middle of records and cross the ends of files."""


class Plan(NamedTuple):
    """One fault: its name, the copies that get it, and its seed."""

    name: str
    copies: tuple[int, ...]
    seed: int


def plans(count: int, seed: int) -> Iterator[Plan]:
    """Yield every kind of fault in turn, on the master, on the slave, and on both if that is a different case."""
    rng = random.Random(seed)
    kinds: list[tuple[str, tuple[int, ...]]] = [(name, copies) for copies in ((1,), (0,)) for name in FAULTS]
    kinds += [(name, (0, 1)) for name in ON_BOTH]
    for number in range(count):
        name, copies = kinds[number % len(kinds)]
        yield Plan(name, copies, rng.randrange(1 << 32))


def run_audit(stores: tuple[Path, Path]) -> list[Finding]:
    """Audit both stores, and return the findings."""
    return audit(AuditSettings(directories(*stores), chunk_bytes=CHUNK_BYTES)).findings


def run_plan(plan: Plan, clean: tuple[Path, Path], folder: Path) -> tuple[str, list[str]]:
    """Inject a fault and audit; return a description of the fault, and the errors of the audit."""
    log = Log.of(clean[0])
    stores = [copy_store(store, folder / f"copy-{number}") if number in plan.copies else store
              for number, store in enumerate(clean)]  # fmt: skip
    text = inject(plan.name, log, [stores[number] for number in plan.copies], plan.seed)
    findings = run_audit((stores[0], stores[1]))
    if plan.name == EITHER_COPY:
        findings = [
            replace(one, replica=plan.copies[0]) if one.kind is FindingKind.DIFFERS else one for one in findings
        ]
    # Both copies have the same log, and each its own units.
    wrong = [
        one for number in plan.copies
        for one in audit_errors(
            [each for each in findings if each.replica == number or each.replica not in plan.copies],
            log, clean[number], {number: stores[number]},
        )
    ]  # fmt: skip
    return text, list(dict.fromkeys(wrong))


def main() -> int:
    """Inject all faults; return 0 if all of them were found, and nothing else."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=100, help="number of faults (default 100)")
    parser.add_argument("--seed", type=int, default=8, help="seed of messages, positions and copies (default 8)")
    parser.add_argument("--messages", type=int, default=6_000, help="number of messages in the stores (default 6000)")
    parser.add_argument("--verbose", action="store_true", help="print a line for each fault")
    arguments = parser.parse_args()
    began, counts, bad = time.monotonic(), Counter[str](), 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        clean = write_pair(folder / "pair", seed=arguments.seed, count=arguments.messages)
        invented = run_audit(clean)
        for plan in plans(arguments.faults, arguments.seed):
            text, wrong = run_plan(plan, clean, folder)
            counts[plan.name] += not wrong
            bad += bool(wrong)
            if wrong or arguments.verbose:
                copies = " and ".join(("master", "slave")[number] for number in plan.copies)
                print(f"{'WRONG' if wrong else 'found'} {plan.name} on {copies} (seed {plan.seed}): {text}")
            for line in wrong[:10]:
                print(f"      {line}")
        invented += run_audit(clean)
    for one in invented[:10]:
        print(f"INVENTED on the clean pair: {one}")
    for kind, count in sorted(counts.items()):
        print(f"  {kind:<16} {count}")
    right = arguments.faults - bad
    print(f"{right} of {arguments.faults} injected faults found, {len(invented)} findings on the clean pair, "
          f"{time.monotonic() - began:.0f} s")  # fmt: skip
    return 1 if bad or invented else 0


if __name__ == "__main__":
    sys.exit(main())
