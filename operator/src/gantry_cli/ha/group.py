"""The members of a group without an operator: observed over their control sockets, and combined into one shard.

Conditions that would make a vote invalid are refused before any order is sent: two members with one number, two sockets
of one broker, members of two groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, final, overload

from gantry_cli.local.state import now_ms
from gantry_spec import observed
from gantry_spec.decide import Decision, decide
from gantry_spec.ledger import Ledger
from gantry_spec.manifest import Spec
from gantry_spec.manifest.parts import Failover
from gantry_spec.manifest.quantities import Duration
from gantry_spec.observed import ObservedGroup, ObservedLease, ObservedShard, PromotionRequest, Report
from gantry_status.broker_state import document_of, view_of
from gantry_status.order_client import Check, OrderClient
from gantry_status.orders import (
    UNKNOWN,
    AnyOrder,
    HaStatus,
    OrderError,
    Promised,
    PromiseRequest,
    StatusOrder,
    StatusRequest,
)

OBSERVE_TIMEOUT_S: Final = 5.0
"""How long an observation waits for the status of a member."""

SHARD: Final = 0
"""The number of the only shard of such a group."""

SPEC: Final = Spec(failover=Failover(after=Duration(10_000)))
"""The spec for decisions about a group without a manifest; ``request_of`` has its members. A report is fresh for
``failover.after``: longer than OBSERVE_TIMEOUT_S, for which an observation may wait for one member."""


class CannotPromote(Exception):
    """A promotion failed: it is not possible, or the requested member did not become the master.

    Has the reason and the remedy. After a failed election the old master may have its role again, in a newer epoch.
    """

    def __init__(self, reason: str, remedy: str, *, is_unreachable: bool = False) -> None:
        super().__init__(f"{reason} -- {remedy}")
        self.is_unreachable = is_unreachable
        self.reason = reason
        self.remedy = remedy


class Caller(Protocol):
    """Sends orders to one broker: an ``OrderClient``, a ``MemberSocket``, or a broker of a test."""

    @property
    def path(self) -> str: ...

    @overload
    async def call(self, order: PromiseRequest, *, timeout_s: float | None = None) -> Promised: ...

    @overload
    async def call(self, order: StatusOrder, *, timeout_s: float | None = None) -> HaStatus: ...


class MemberClient(Caller, Protocol):
    """Sends orders to one member of a group."""

    async def call_checked(self, order: AnyOrder, check: Check | None) -> HaStatus | Promised:
        """Send an order to a process whose status ``check`` accepts."""
        ...


@final
class MemberSocket:
    """Sends orders over a control socket. A checked order uses one connection, so one process, for check and order."""

    def __init__(self, path: str) -> None:
        self.path: Final = path
        self._client: Final = OrderClient(path)

    @overload
    async def call(self, order: PromiseRequest, *, timeout_s: float | None = None) -> Promised: ...

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
    """One broker, or a socket at which no broker answers."""

    path: str
    """The path of the member's control socket."""

    status: HaStatus | None
    """The broker's status; null if it does not answer."""

    failure: str = ""
    """Why there is no status; empty if there is one."""

    @property
    def number(self) -> int:
        """The member's own number; -1 if it does not answer."""
        return UNKNOWN if self.status is None or self.status.broker_id is None else self.status.broker_id

    @property
    def name(self) -> str:
        """The member's name, or its socket's path if it does not answer."""
        if self.status is None:
            return self.path
        return f"{self.status.broker_name or 'broker'}/{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MembersDocument:
    """`gantry ha status`: the members of a group."""

    members: list[Member]


def members_document(members: list[Member]) -> dict[str, object]:
    """Return the document of ``MembersDocument``, with -1 for values that the brokers do not know."""
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
    """The status of all members, requested not before ``asked_ms`` and answered not after ``answered_ms``."""

    members: Sequence[Member] = ()
    asked_ms: int = 0
    answered_ms: int = 0

    @property
    def group_name(self) -> str:
        """The broker name of the members that answer."""
        return next((one.status.broker_name for one in self.members if one.status is not None), "") or "broker"

    def member(self, number: int) -> Member | None:
        """Return the member with this number, if it answers."""
        return next((one for one in self.members if one.number == number), None)

    def name(self, number: int) -> str:
        """Return the name of a member, also of one that does not answer."""
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
    """Request the status of all members in parallel."""

    async def one(client: Caller) -> Member:
        try:
            return Member(client.path, await client.call(StatusRequest(), timeout_s=OBSERVE_TIMEOUT_S))
        except OrderError as error:
            return Member(client.path, None, str(error))

    asked_ms = now_ms()
    members = await asyncio.gather(*map(one, clients))
    return Observation(members, asked_ms, now_ms())


def check_members(members: Sequence[Member]) -> None:
    """Raise ``CannotPromote`` unless a member answers, and all that answer are different members of one group."""
    reached = [(one, one.status) for one in members if one.status is not None]
    if not reached:
        why = "; ".join(one.failure for one in members)
        remedy = "start one, or name its controlSocketPath with --socket"
        raise CannotPromote(f"no broker answers: {why}", remedy, is_unreachable=True)
    groups = {(status.cluster, status.broker_name) for _, status in reached}
    if len(groups) > 1:
        names = " and ".join(sorted(f"{cluster}/{name}" for cluster, name in groups))
        raise CannotPromote(f"the sockets belong to different groups: {names}", "name the sockets of one group")
    stores: dict[str, Member] = {}
    numbers: dict[int, Member] = {}
    for one, status in reached:
        for twin, what in ((stores.get(status.identity), "store"), (numbers.get(one.number), "number")):
            if twin is not None:
                remedy = "name each socket once" if what == "store" else "give each its own brokerId"
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
    """Return the requested promotion, with all known members.

    These are the members that answer, those that they have recorded, and those that the arguments name.

    The request accepts any loss: where acks count, a quorum ensures that there is none, and elsewhere it is reported.
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
    """Return the group as the value that a decision takes. A member that does not answer has no report."""
    reached = {one.number: one.status for one in observation.members if one.status is not None}

    def member(number: int) -> observed.Member:
        status = reached.get(number)
        if status is None:
            return observed.Member(number=number)
        report = view_of(status, Report, asked_ms=observation.asked_ms, answered_ms=observation.answered_ms)
        return observed.Member(number=number, acks_needed=status.acks_needed or 0, report=report)

    return ObservedShard(number=SHARD, lease=lease, members=tuple(map(member, request.members)), request=request)


def decide_next_actions(
    observation: Observation, lease: ObservedLease, request: PromotionRequest, ledgers: Mapping[int, Ledger]
) -> Decision:
    """Decide the next actions. A group without an operator has no Lease object, so no lease has to expire first."""
    group = ObservedGroup(shards=(shard_of(observation, lease, request),), lease_duration_ms=0)
    return decide(SPEC, group, now_ms(), ledgers)
