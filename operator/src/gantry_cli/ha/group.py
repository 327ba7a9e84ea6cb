"""The members of a group that a person runs by hand: asked over their control sockets, and put together as one shard.

Whatever would make a vote worth nothing is refused here before any member is ordered anything: two that claim one
number, two sockets of one broker, members of two groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, final, overload

from gantry_cli.local.state import now_ms
from gantry_spec import observed as seen
from gantry_spec.decide import Decision, decide
from gantry_spec.ledger import Ledger
from gantry_spec.manifest import Spec
from gantry_spec.manifest.parts import Failover
from gantry_spec.manifest.quantities import Duration
from gantry_spec.observed import Observed, ObservedLease, ObservedShard, PromotionRequest, Report
from gantry_status.broker_state import document_of, view_of
from gantry_status.order_client import Check, OrderClient
from gantry_status.orders import (
    UNKNOWN,
    AnyOrder,
    AskPromise,
    AskStatus,
    HaStatus,
    OrderError,
    Promised,
    StatusOrder,
)

OBSERVE_TIMEOUT_S: Final = 5.0
SHARD: Final = 0
"""The number of the one shard that a group by hand has."""

SPEC: Final = Spec(failover=Failover(after=Duration(10_000)))
"""No spec describes such a group, and its members are in the request. What was observed counts for longer than one
member may keep the others waiting."""


class CannotPromote(Exception):
    """The role stays where it is. Says why, and what to do."""

    def __init__(self, reason: str, remedy: str, *, is_nobody_there: bool = False) -> None:
        super().__init__(f"{reason} -- {remedy}")
        self.is_nobody_there = is_nobody_there
        self.reason = reason
        self.remedy = remedy


class Caller(Protocol):
    """The way to one broker: an ``OrderClient``, or a test's own broker."""

    @property
    def path(self) -> str: ...

    @overload
    async def call(self, order: AskPromise, *, timeout_s: float | None = None) -> Promised: ...

    @overload
    async def call(self, order: StatusOrder, *, timeout_s: float | None = None) -> HaStatus: ...


class MemberClient(Caller, Protocol):
    """The way to one member of a group."""

    async def call_checked(self, order: AnyOrder, check: Check | None) -> HaStatus | Promised:
        """Have it done by a process whose status ``check`` accepts."""
        ...


@final
class MemberSocket:
    """The way to one member over its control socket. A checked order has a connection, and so a process, of its own."""

    def __init__(self, path: str) -> None:
        self.path: Final = path
        self._client: Final = OrderClient(path)

    @overload
    async def call(self, order: AskPromise, *, timeout_s: float | None = None) -> Promised: ...

    @overload
    async def call(self, order: StatusOrder, *, timeout_s: float | None = None) -> HaStatus: ...

    async def call(self, order: AnyOrder, *, timeout_s: float | None = None) -> HaStatus | Promised:
        return await self._client.call(order, timeout_s=timeout_s)

    async def call_checked(self, order: AnyOrder, check: Check | None) -> HaStatus | Promised:
        if check is None:
            return await self._client.call(order)
        async with OrderClient(self.path, is_one_connection=True) as client:
            return await client.call_checked(order, check)

    async def __aenter__(self) -> MemberSocket:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()


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


@dataclass(frozen=True, slots=True, kw_only=True)
class MembersDocument:
    """`gantry ha status`: a group."""

    members: list[Member]


def members_document(members: list[Member]) -> dict[str, object]:
    """The same, with -1 for what the brokers do not know."""
    return {
        "members": [
            {
                "path": one.path,
                "status": None if one.status is None else document_of(one.status),
                "failure": one.failure,
            }
            for one in members
        ]
    }


@final
@dataclass(frozen=True, slots=True)
class Observation:
    """All members at one moment: asked at its beginning at the earliest, answered at its end at the latest."""

    members: Sequence[Member] = ()
    asked_ms: int = 0
    answered_ms: int = 0

    @property
    def group_name(self) -> str:
        return next((one.status.broker_name for one in self.members if one.status is not None), "") or "broker"

    def member(self, number: int) -> Member | None:
        """Return the member with this number, if it answers."""
        return next((one for one in self.members if one.number == number), None)

    def name(self, number: int) -> str:
        """Return what a member is called, also one that does not answer."""
        member = self.member(number)
        return f"member {number}" if member is None else member.name

    def follows(self, master: int) -> bool:
        """Return whether every member that answers follows this master, which answers, too."""
        reached = {one.number: one.status for one in self.members if one.status is not None}
        leader = reached.pop(master, None)
        if leader is None:
            return False
        return all((one.epoch, one.master) == (leader.epoch, leader.ha_address) for one in reached.values())


async def observe(clients: Sequence[Caller]) -> Observation:
    """Ask all members for their status, side by side."""

    async def one(client: Caller) -> Member:
        try:
            return Member(client.path, await client.call(AskStatus(), timeout_s=OBSERVE_TIMEOUT_S))
        except OrderError as error:
            return Member(client.path, None, str(error))

    asked_ms = now_ms()
    members = await asyncio.gather(*map(one, clients))
    return Observation(members, asked_ms, now_ms())


def check_members(members: Sequence[Member]) -> None:
    """Raise ``CannotPromote`` unless somebody answers, and all who do are different members of one group."""
    reached = [(one, one.status) for one in members if one.status is not None]
    if not reached:
        why = "; ".join(one.failure for one in members)
        remedy = "start one, or name its controlSocketPath with --socket"
        raise CannotPromote(f"no broker answers: {why}", remedy, is_nobody_there=True)
    groups = {(status.cluster, status.broker_name) for _, status in reached}
    if len(groups) > 1:
        names = " and ".join(sorted(f"{cluster}/{name}" for cluster, name in groups))
        raise CannotPromote(f"these are members of different groups: {names}", "name the sockets of one group")
    stores: dict[str, Member] = {}
    numbers: dict[int, Member] = {}
    for one, status in reached:
        for twin, what in ((stores.get(status.identity), "store"), (numbers.get(one.number), "number")):
            if twin is not None:
                remedy = "name each once" if what == "store" else "give each its own brokerId"
                raise CannotPromote(f"{twin.path} and {one.path} are brokers with the same {what}", remedy)
        stores[status.identity] = numbers[one.number] = one


def request_of(
    members: Sequence[Member],
    *,
    to: int | None = None,
    electable: frozenset[int] = frozenset(),
    old_master: int | None = None,
    drain_timeout_ms: int = 10_000,
) -> PromotionRequest:
    """What a person orders, with all members that are known: those that answer, and those that they have recorded.

    Any number of bytes may be lost: where acks count, a quorum makes sure that none are, and elsewhere the loss is
    reported.
    """
    known = {*electable, *(one.number for one in members)}
    states = [one.status for one in members if one.status is not None]
    masters = [to, old_master, *(state.master_id for state in states)]
    known |= {number for number in masters if number is not None}
    known |= {number for state in states for number in state.electable}
    return PromotionRequest(
        id="gantry ha promote",
        to=to,
        loss_accepted=None,
        members=tuple(sorted(known - {UNKNOWN})),
        electable=tuple(sorted(electable)),
        old_master=old_master,
        drain_timeout_ms=drain_timeout_ms,
    )


def shard_of(observation: Observation, lease: ObservedLease, request: PromotionRequest) -> ObservedShard:
    """The group as a decision takes it. A member that does not answer has no report."""
    reached = {one.number: one.status for one in observation.members if one.status is not None}

    def member(number: int) -> seen.Member:
        status = reached.get(number)
        if status is None:
            return seen.Member(number=number)
        report = view_of(status, Report, asked_ms=observation.asked_ms, answered_ms=observation.answered_ms)
        return seen.Member(number=number, acks_needed=status.acks_needed or 0, report=report)

    return ObservedShard(number=SHARD, lease=lease, members=tuple(map(member, request.members)), request=request)


def decide_by_hand(
    observation: Observation, lease: ObservedLease, request: PromotionRequest, ledgers: Mapping[int, Ledger]
) -> Decision:
    """What to do now. No Lease is kept anywhere, so none has to run out."""
    group = Observed(shards=(shard_of(observation, lease, request),), lease_duration_ms=0)
    return decide(SPEC, group, now_ms(), ledgers)
