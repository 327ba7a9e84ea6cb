"""A group of brokers as its members describe it, and what follows for a move of the master role: pure.

    M  the members that may be the master, by their own numbers
    S  of these, the slaves of the present epoch            = M without its master
    k  acks of S that code 0 needs

S and k are what the members have recorded with their epoch, and a person may name M instead. Whatever would make a vote
worth nothing is refused here before anybody is asked for anything: two that claim one number, two sockets of one
broker, members of two groups. Where they disagree on S or k, that is taken which asks for more promises.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, final

from gantry_spec.election import promises_needed
from gantry_status.orders import UNKNOWN, HaRole, HaStatus

EPOCH_STRIDE: Final = 1_000


class CannotMove(Exception):
    """The role stays where it is. Says why, and what to do."""

    def __init__(self, reason: str, remedy: str, *, is_nobody_there: bool = False) -> None:
        super().__init__(f"{reason} -- {remedy}")
        self.is_nobody_there = is_nobody_there
        self.reason = reason
        self.remedy = remedy


@final
@dataclass(frozen=True, slots=True)
class Member:
    """One broker, or a socket at which none answers."""

    path: str
    status: HaStatus | None
    failure: str = ""
    """Why there is no status."""

    @property
    def number(self) -> int:
        return UNKNOWN if self.status is None or self.status.broker_id is None else self.status.broker_id

    @property
    def name(self) -> str:
        """For people."""
        if self.status is None:
            return self.path
        return f"{self.status.broker_name or 'broker'}/{self.number}"


@final
@dataclass(frozen=True, slots=True)
class Reached:
    """A member that answers."""

    path: str
    status: HaStatus

    @property
    def number(self) -> int:
        return Member(self.path, self.status).number

    @property
    def name(self) -> str:
        return Member(self.path, self.status).name

    @property
    def place(self) -> tuple[int, int]:
        """How far its log is."""
        return self.status.place


@final
@dataclass(frozen=True, slots=True)
class Group:
    """What is known of a group at one moment."""

    reached: tuple[Reached, ...]
    silent: tuple[Member, ...]
    epoch: int
    """The newest in which anybody has a role."""
    electable: frozenset[int]
    """S."""
    members: frozenset[int]
    """M, as far as it is known."""
    acks_needed: int
    """k."""
    master: Reached | None
    """Of that epoch, if it answers and still is."""
    left_out: frozenset[int] = frozenset()
    """Of M, who may not be promoted in the next epoch."""
    is_unasked: bool = False
    """Whether its master acknowledges without asking anybody: no promise ends that."""

    def next_epoch(self, winner: int, above: int = 0) -> int:
        """Greater than ``above`` and everything that anybody has recorded, and of ``winner`` alone.

        Its last digits are the winner's number. So two promotions that know nothing of each other, at one moment or
        with different members, never begin the same epoch with two masters.
        """
        known = max(above, *(number for one in self.reached for number in one.status.epochs))
        return (known // EPOCH_STRIDE + 1) * EPOCH_STRIDE + winner % EPOCH_STRIDE

    @property
    def needed(self) -> int:
        """From how many of S a promise is needed."""
        return max(1, promises_needed(len(self.electable), self.acks_needed))

    @property
    def voters(self) -> list[Reached]:
        """Who of S can be asked."""
        return [one for one in self.reached if one.number in self.electable]

    @property
    def place(self) -> tuple[int, int]:
        """Of whoever is furthest."""
        return max(one.place for one in self.reached)

    def electable_after(self, winner: int) -> list[int]:
        """S of the next epoch."""
        return sorted(self.members - self.left_out - {winner})

    def find(self, number: int) -> Reached:
        """The member with this number. Raises ``CannotMove``."""
        for one in self.reached:
            if one.number == number:
                return one
        here = ", ".join(str(one.number) for one in self.reached)
        raise CannotMove(f"no member with number {number} answers", f"these do: {here}")


def group_of(
    members: Sequence[Member],
    named: Collection[int] = (),
    old_master: int | None = None,
    *,
    is_forced: bool = False,
) -> Group:
    """Put together what they say. ``named`` is M, and ``old_master`` who it was, if a person says so.

    Raises ``CannotMove``; not for want of anybody electable if a promotion is going to be forced.
    """
    reached = tuple(Reached(one.path, one.status) for one in members if one.status is not None)
    silent = tuple(one for one in members if one.status is None)
    if not reached:
        why = "; ".join(one.failure for one in silent)
        remedy = "start one, or name its controlSocketPath with --socket"
        raise CannotMove(f"no broker answers: {why}", remedy, is_nobody_there=True)
    _refuse_mixture(reached)
    epoch = max(one.status.epoch for one in reached)
    newest = [one for one in reached if one.status.epoch == epoch]
    master = next((one for one in newest if one.status.role is HaRole.MASTER), None)
    said = newest if master is None else [master]
    leaders = {one.status.master_id for one in said if one.status.master_id is not None}
    if master is not None:
        leaders = {master.number}
    elif not leaders and old_master is not None:
        leaders = {old_master}
    recorded = frozenset(number for one in said for number in one.status.electable)
    electable = recorded - leaders or frozenset(named) - leaders
    if not electable and not is_forced:
        remedy = "name all slaves that there are, and the master: --electable NUMBER for each"
        raise CannotMove("nobody has recorded who may be promoted", remedy)
    # More slaves than there are, or fewer acks than are needed, ask for more promises, never for fewer.
    acks_needed = min((one.status.acks_needed for one in said if one.status.acks_needed), default=0)
    everybody = frozenset(named) or electable | leaders
    # Without acks a master waits for the grants of all of S, so a dead master would stop its successor. It can be left
    # out, as no slave can: nobody is able to elect it by what is recorded now.
    is_asynchronous = acks_needed == 0
    silent_leaders = frozenset(leaders) - {one.number for one in reached}
    left_out = silent_leaders if is_asynchronous and not named else frozenset()
    is_unasked = is_asynchronous and bool(leaders) and not recorded - leaders
    return Group(reached, silent, epoch, electable, everybody, acks_needed, master, left_out, is_unasked)


def _refuse_mixture(reached: Sequence[Reached]) -> None:
    """Raise unless these are different members of one group."""
    groups = {(one.status.cluster, one.status.broker_name) for one in reached}
    if len(groups) > 1:
        names = " and ".join(sorted(f"{cluster}/{name}" for cluster, name in groups))
        raise CannotMove(f"these are members of different groups: {names}", "name the sockets of one group")
    seen: dict[str, Reached] = {}
    numbers: dict[int, Reached] = {}
    for one in reached:
        for twin, what in ((seen.get(one.status.identity), "store"), (numbers.get(one.number), "number")):
            if twin is not None:
                remedy = "name each once" if what == "store" else "give each its own brokerId"
                raise CannotMove(f"{twin.path} and {one.path} are brokers with the same {what}", remedy)
        seen[one.status.identity] = numbers[one.number] = one
