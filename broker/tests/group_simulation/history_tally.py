"""The counts of many histories: which faults and combinations occurred, what was acknowledged, what failed.

A tally is a JSON file, so that parts of a run on several machines can be merged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from group_simulation.mixed_faults import REQUIRED, Fault, Guarantee

if TYPE_CHECKING:
    from group_simulation.group_history import HistoryResult

HISTORIES_DEMANDED: Final = 100
"""In a run with fewer histories, not every fault and combination has to occur."""
ALL_REQUIRED: Final = "all six"
"""The name of the combination of all required faults."""


class Failure(msgspec.Struct, frozen=True):
    """A history that was not good."""

    seed: int
    problem: str
    findings: list[str]


class Tally(msgspec.Struct, kw_only=True):
    """The counts of some histories of a run."""

    seed: int
    """The first seed of the whole run."""
    histories: int
    """The number of histories of the whole run, in all parts."""
    parts: list[str] = []
    """The parts that are counted here, as ``K/N``."""
    done: int = 0
    faults: dict[str, int] = {}
    """How often each fault occurred."""
    with_fault: dict[str, int] = {}
    """In how many histories each fault occurred."""
    with_both: dict[str, int] = {}
    """In how many histories two required faults occurred, and in how many all of them."""
    guarantees: dict[str, int] = {}
    """The number of histories by what they guarantee."""
    answers: dict[str, int] = {}
    """The number of sends by their outcome."""
    verdicts: dict[str, int] = {}
    """The number of histories by Porcupine's verdict."""
    promotions: int = 0
    virtual_s: float = 0.0
    seconds: float = 0.0
    """The processor time of all workers, without Porcupine's."""
    failures: list[Failure] = []

    def count(self, result: HistoryResult) -> None:
        """Add the counts of one history."""
        self.done += 1
        occurred = {kind for kind, count in result.occurred.items() if count}
        _add(self.faults, result.occurred)
        _add(self.with_fault, Counter(occurred))
        _add(self.with_both, Counter(_combinations(occurred)))
        _add(self.guarantees, Counter([result.plan.guarantee]))
        _add(self.answers, result.answers)
        second = None if result.judgement is None else result.judgement.second
        _add(self.verdicts, Counter([str(second.verdict) if second else "not run"]))
        self.promotions += result.promotions
        self.virtual_s += result.virtual_s
        self.seconds += result.seconds
        if not result.is_good:
            self.failures.append(Failure(result.plan.seed, result.problem, [str(one) for one in result.findings]))

    def merge(self, other: Tally) -> None:
        """Add another part of the same run. Raises ValueError for one of another run, or one that is counted."""
        if (other.seed, other.histories) != (self.seed, self.histories):
            raise ValueError(f"a part of the run of {other.histories} histories from seed {other.seed} on")
        if set(other.parts) & set(self.parts):
            raise ValueError(f"part {', '.join(other.parts)} is counted already")
        self.parts += other.parts
        for name in ("faults", "with_fault", "with_both", "guarantees", "answers", "verdicts"):
            _add(getattr(self, name), getattr(other, name))
        self.done += other.done
        self.promotions += other.promotions
        self.virtual_s += other.virtual_s
        self.seconds += other.seconds
        self.failures += other.failures

    def missing(self) -> list[str]:
        """Return what had to occur, and did not."""
        pairs = [f"{one} and {other}" for one, other in combinations(REQUIRED, 2)]
        return [
            *(kind for kind in Fault if not self.with_fault.get(kind)),
            *(name for name in [*pairs, ALL_REQUIRED] if not self.with_both.get(name)),
            *(f"a history that is {kind}" for kind in Guarantee if not self.guarantees.get(kind)),
            *([] if self.promotions else ["a promotion"]),
        ]

    def lines(self) -> Iterator[str]:
        """Yield the lines of a summary."""
        yield f"  {'fault':<26}{'times':>9}{'histories':>11}"
        for kind in Fault:
            yield f"  {kind:<26}{self.faults.get(kind, 0):>9,}{self.with_fault.get(kind, 0):>11,}"
        yield f"  {'combination':<46}{'histories':>11}"
        for one, other in combinations(REQUIRED, 2):
            name = f"{one} and {other}"
            yield f"  {name:<46}{self.with_both.get(name, 0):>11,}"
        yield f"  {ALL_REQUIRED:<46}{self.with_both.get(ALL_REQUIRED, 0):>11,}"
        for title, counts in (("guarantees", self.guarantees), ("sends", self.answers), ("Porcupine", self.verdicts)):
            yield f"  {title}: " + ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()))
        yield (
            f"{self.done:,} of {self.histories:,} histories from seed {self.seed} on: "
            f"{self.done - len(self.failures):,} good, {len(self.failures):,} not; {self.promotions:,} promotions, "
            f"{self.virtual_s / 3600:.1f} h of virtual time in {self.seconds:,.0f} s of processor time"
        )


def _combinations(occurred: set[Fault]) -> Iterator[str]:
    required = [kind for kind in REQUIRED if kind in occurred]
    for one, other in combinations(required, 2):
        yield f"{one} and {other}"
    if len(required) == len(REQUIRED):
        yield ALL_REQUIRED


def _add(counts: dict[str, int], more: dict[str, int] | Counter[Fault] | Counter[str] | Counter[Guarantee]) -> None:
    for name, count in more.items():
        counts[str(name)] = counts.get(str(name), 0) + count


def write_tally(path: Path, tally: Tally) -> None:
    """Write a tally to a file."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(tally)) + b"\n")


def read_tallies(paths: Iterable[Path]) -> Tally:
    """Return the merged tallies of some files. Raises ValueError if they are not parts of one run."""
    merged: Tally | None = None
    for path in paths:
        try:
            one = msgspec.json.decode(path.read_bytes(), type=Tally)
            if merged is None:
                merged = one
            else:
                merged.merge(one)
        except (msgspec.DecodeError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from error
    assert merged is not None, "there is at least one file"
    return merged
