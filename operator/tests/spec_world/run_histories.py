"""Many random histories of model worlds: `python operator/tests/spec_world/run_histories.py --count 5000`.

A failure prints the seed and the command that repeats it. The test suite runs a few of the same.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from spec_world.history import RECOVERY_ROUNDS_MAX, History
from spec_world.invariant_checker import InvariantViolation
from spec_world.shapes import Shape

from gantry_spec.manifest.parts import FailoverMode

SHAPES = (
    Shape(slaves=1, acks_needed=1),
    Shape(slaves=2, acks_needed=1),
    Shape(slaves=2, acks_needed=2),
    Shape(slaves=3, acks_needed=2),
    Shape(slaves=3, acks_needed=1),
    Shape(slaves=1, acks_needed=0, loss_bytes_max=100 << 20),
    Shape(slaves=2, acks_needed=0, loss_bytes_max=1_000 << 20),
    Shape(slaves=2, acks_needed=1, mode=FailoverMode.MANUAL),
)
"""The kinds of groups: a seed has that of its remainder."""


class Tally:
    """Counts of events over all histories."""

    def __init__(self) -> None:
        self.promotions = 0
        self.acknowledged = 0
        self.manual_interventions = 0
        self.roles_regained = 0
        """How often a restarted broker regained its role."""

        self.rejoined = 0
        self.losses: list[tuple[int, int]] = []
        """The lost and the announced bytes of each lossy promotion."""


def run(seed: int, steps: int, tally: Tally | None = None) -> History:
    """Run one history, and rounds without faults until it is healthy. Raises ``InvariantViolation``."""
    history = History(SHAPES[seed % len(SHAPES)], seed)
    history.run(steps)
    history.end_faults()
    if history.run_until_healthy() >= RECOVERY_ROUNDS_MAX:
        reasons = [line for decider in history.world.deciders for line in decider.decision.explanation]
        raise InvariantViolation(f"all faults have ended, but the shard has not recovered: {reasons}")
    if tally is not None:
        checker = history.world.checker
        tally.promotions += len(checker.masters)
        tally.acknowledged += len(checker.acknowledged)
        tally.manual_interventions += history.manual_interventions
        tally.roles_regained += history.world.sidecars.roles_regained
        tally.rejoined += history.world.sidecars.rejoined
        tally.losses += checker.losses
    return history


def main() -> int:
    """Run the histories of the command line, and return 1 if one violates an invariant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=1_000, help="how many histories")
    parser.add_argument("--steps", type=int, default=500, help="how many events each has")
    arguments = parser.parse_args()
    began, tally, failures = time.monotonic(), Tally(), 0
    for seed in range(arguments.first, arguments.first + arguments.count):
        try:
            run(seed, arguments.steps, tally)
        except InvariantViolation as error:
            failures += 1
            sys.stdout.write(f"seed {seed}: {error}\n")
            sys.stdout.write(f"  again: python {__file__} --first {seed} --count 1 --steps {arguments.steps}\n")
    lost = sum(lost for lost, _ in tally.losses)
    seconds = time.monotonic() - began
    sys.stdout.write(
        f"{arguments.count} histories, {tally.promotions} epochs, {tally.acknowledged} records acknowledged and kept,"
        f" {len(tally.losses)} announced losses of {lost} bytes, {tally.manual_interventions} manual interventions,"
        f" {tally.roles_regained} roles regained, {tally.rejoined} slaves rejoined,"
        f" {failures} wrong, {seconds:.0f} s\n"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
