"""The plan of a run: all combinations in random order, again and again, all drawn from the run's seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Final

import msgspec
from damage.harms import Harm
from damage.kinds import IN_GROUPS, OF_MASTERS, POOLED, Kind
from damage.shard import Setup


class Stop(StrEnum):
    """How the last run of the store ended, or ends."""

    CLEAN = "clean"
    UNCLEAN = "unclean"


class When(StrEnum):
    """Whether a broker runs on the files while they are damaged."""

    RUNNING = "running"
    STOPPED = "stopped"


class Cell(msgspec.Struct, frozen=True):
    """One combination of the damage matrix."""

    kind: Kind
    harm: Harm
    stop: Stop
    when: When
    setup: Setup

    @property
    def name(self) -> str:
        return f"{self.kind}/{self.harm}/{self.stop}/{self.when}/{self.setup}"


class Trial(msgspec.Struct, frozen=True):
    """One combination with all random choices made."""

    number: int
    seed: int
    cell: Cell
    is_pooled: bool
    member: int
    """The member that is damaged; 1 is the master."""
    is_failover: bool
    """Whether another member becomes master before the damaged one returns; ignored with `When.RUNNING`."""

    @property
    def dice(self) -> random.Random:
        """Return a new random generator, each time with the same seed of the trial."""
        return random.Random(f"{self.seed}/{self.number}/trial")


ABORT_HARMS: Final = {
    (Kind.ABORT, Stop.CLEAN): (Harm.ROLLED_BACK,),
    (Kind.ABORT, Stop.UNCLEAN): (Harm.MISSING,),
}
"""What can be done to the abort marker of a stopped store: it is empty, and exists after an unclean stop only."""
NEVER: Final = frozenset({Kind.FAILURE})
"""Kinds that no stop or kill leaves behind: `flush-failed` exists only after a disk failure."""


def is_possible(cell: Cell) -> bool:
    """Return whether a store of that kind has such a file at that moment, and it can be damaged so."""
    if cell.kind in NEVER:
        return False
    if cell.kind in IN_GROUPS and cell.setup is Setup.ALONE:
        return False
    if cell.kind is Kind.ABORT:
        if cell.when is When.RUNNING:
            return cell.harm is Harm.MISSING
        return cell.harm in ABORT_HARMS[cell.kind, cell.stop]
    if cell.kind in (Kind.LOCK, Kind.BUFFER_LOCK):
        return cell.harm in (Harm.MISSING, Harm.EMPTIED, Harm.TRUNCATED, Harm.FLIPPED)
    return True


def cells() -> list[Cell]:
    """Return all possible combinations of the damage matrix."""
    return [
        cell
        for kind in Kind
        for harm in Harm
        for stop in Stop
        for when in When
        for setup in Setup
        if is_possible(cell := Cell(kind, harm, stop, when, setup))
    ]


def plan(seed: int, count: int, only: Sequence[str] = ()) -> list[Trial]:
    """Return ``count`` trials: all combinations in random order, repeated. ``only`` filters by parts of cell names."""
    chosen = [cell for cell in cells() if is_wanted(cell, only)]
    return [trial_of(seed, number, cell) for number, cell in enumerate(_repeated(seed, chosen, count))]


def is_wanted(cell: Cell, only: Sequence[str]) -> bool:
    """Return whether a filter matches: its words, joined by ``/``, must all be parts of the cell's name."""
    return not only or any(all(word in cell.name.split("/") for word in one.split("/")) for one in only)


def _repeated(seed: int, chosen: Sequence[Cell], count: int) -> Iterator[Cell]:
    dice, done = random.Random(f"{seed}/order"), 0
    while chosen and done < count:
        pass_ = list(chosen)
        dice.shuffle(pass_)
        for cell in pass_[: count - done]:
            done += 1
            yield cell


def trial_of(seed: int, number: int, cell: Cell) -> Trial:
    """Return the trial with this number, independent of the rest of the plan, so that it can be repeated alone."""
    dice = random.Random(f"{seed}/{number}/{cell.name}")
    is_grouped = cell.setup is not Setup.ALONE
    is_pooled = cell.kind in POOLED or dice.random() < 0.4
    is_master = not is_grouped or cell.kind in OF_MASTERS or dice.random() < 0.6
    return Trial(
        number, seed, cell, is_pooled, 1 if is_master else 2,
        is_grouped and dice.random() < 0.4,
    )  # fmt: skip
