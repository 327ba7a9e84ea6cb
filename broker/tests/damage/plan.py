"""The plan of a damage run: all combinations of its dimensions in random order, repeatedly, as the seed decides."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Final

import msgspec
from damage.damage_kinds import DamageKind
from damage.file_kinds import ACCOUNT_KINDS, BUFFER_KINDS, IN_GROUPS_ONLY, ON_MASTER_ONLY, FileKind
from damage.shard import Setup


class Stop(StrEnum):
    """How the last run of the store ended, or ends."""

    CLEAN = "clean"
    UNCLEAN = "unclean"


class BrokerState(StrEnum):
    """Whether a broker runs on the files while they are damaged."""

    RUNNING = "running"
    STOPPED = "stopped"


class TemplateKind(msgspec.Struct, frozen=True, order=True):
    """The kind of store with which a trial begins."""

    setup: Setup
    has_write_buffers: bool
    """Whether the brokers have write buffers in files."""
    has_users: bool = False
    """Whether the brokers store users and policies, so that each request needs an account."""

    def folder_name(self, *, is_foreign: bool = False) -> str:
        """Return the name of the folder of the template, or of the one of another store."""
        marks = ("-buffered" * self.has_write_buffers, "-users" * self.has_users, "-foreign" * is_foreign)
        return self.setup.split()[0] + "".join(marks)


class Combination(msgspec.Struct, frozen=True):
    """One combination of a trial's dimensions: what is damaged, in which way, when, and in which setup."""

    file_kind: FileKind
    damage: DamageKind
    stop: Stop
    broker: BrokerState
    """Whether the broker runs while the file is damaged."""
    setup: Setup

    @property
    def name(self) -> str:
        return f"{self.file_kind}/{self.damage}/{self.stop}/{self.broker}/{self.setup}"


class Trial(msgspec.Struct, frozen=True):
    """One combination with all random choices made."""

    number: int
    """Its number in the plan, which is also a part of its seed."""
    seed: int
    """The seed of the run."""
    combination: Combination
    has_write_buffers: bool
    """Whether the brokers have write buffers in files."""
    member: int
    """The member that is damaged; 1 is the master."""
    is_failover: bool
    """Whether another member becomes master before the damaged one returns; ignored with `BrokerState.RUNNING`."""

    @property
    def template(self) -> TemplateKind:
        """The kind of store with which it begins. Only trials of the file of users have users."""
        kind = self.combination.file_kind
        return TemplateKind(self.combination.setup, self.has_write_buffers, kind in ACCOUNT_KINDS)

    def make_rng(self) -> random.Random:
        """Return a new random generator, each time with the same seed of the trial."""
        return random.Random(f"{self.seed}/{self.number}/trial")


ABORT_MARKER_DAMAGES: Final = {
    (FileKind.ABORT, Stop.CLEAN): (DamageKind.ROLLED_BACK,),
    (FileKind.ABORT, Stop.UNCLEAN): (DamageKind.MISSING,),
}
"""What can be done to the abort marker of a stopped store: it is empty, and exists after an unclean stop only."""
NEVER_LEFT_BEHIND: Final = frozenset({FileKind.FLUSH_FAILED})
"""Kinds that no stop or kill of a trial's broker leaves behind: `flush-failed` exists only after a disk failure."""


def is_possible(combination: Combination) -> bool:
    """Return whether a store of that kind has such a file at that moment, and it can be damaged so."""
    if combination.file_kind in NEVER_LEFT_BEHIND:
        return False
    if combination.file_kind in IN_GROUPS_ONLY and combination.setup is Setup.ALONE:
        return False
    if combination.file_kind is FileKind.ABORT:
        if combination.broker is BrokerState.RUNNING:
            return combination.damage is DamageKind.MISSING
        return combination.damage in ABORT_MARKER_DAMAGES[combination.file_kind, combination.stop]
    if combination.file_kind in (FileKind.LOCK, FileKind.BUFFER_LOCK):
        return combination.damage in (DamageKind.MISSING, DamageKind.EMPTIED, DamageKind.TRUNCATED, DamageKind.FLIPPED)
    return True


def combinations() -> list[Combination]:
    """Return all possible combinations of the damage matrix."""
    return [
        combination
        for kind in FileKind
        for damage in DamageKind
        for stop in Stop
        for broker in BrokerState
        for setup in Setup
        if is_possible(combination := Combination(kind, damage, stop, broker, setup))
    ]


def plan(seed: int, count: int, only: Sequence[str] = ()) -> list[Trial]:
    """Return ``count`` trials: all combinations in random order, repeated. ``only`` filters by parts of names."""
    chosen = [combination for combination in combinations() if is_wanted(combination, only)]
    return [trial_of(seed, number, combination) for number, combination in enumerate(_repeated(seed, chosen, count))]


def is_wanted(combination: Combination, only: Sequence[str]) -> bool:
    """Return whether a filter matches: its words, joined by ``/``, must all be parts of the combination's name."""
    return not only or any(all(word in combination.name.split("/") for word in one.split("/")) for one in only)


def _repeated(seed: int, chosen: Sequence[Combination], count: int) -> Iterator[Combination]:
    rng, done = random.Random(f"{seed}/order"), 0
    while chosen and done < count:
        shuffled = list(chosen)
        rng.shuffle(shuffled)
        for combination in shuffled[: count - done]:
            done += 1
            yield combination


def trial_of(seed: int, number: int, combination: Combination) -> Trial:
    """Return the trial with this number, independent of the rest of the plan, so that it can be repeated alone."""
    rng = random.Random(f"{seed}/{number}/{combination.name}")
    is_grouped = combination.setup is not Setup.ALONE
    has_write_buffers = combination.file_kind in BUFFER_KINDS or rng.random() < 0.4
    if combination.file_kind in ACCOUNT_KINDS:  # The file does not depend on them, and each template takes seconds.
        has_write_buffers = False
    is_master = not is_grouped or combination.file_kind in ON_MASTER_ONLY or rng.random() < 0.6
    return Trial(
        number, seed, combination, has_write_buffers, 1 if is_master else 2,
        is_grouped and rng.random() < 0.4,
    )  # fmt: skip
