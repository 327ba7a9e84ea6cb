"""The sender of orders: starts a group, and moves the master's role as a person, a supervisor or an operator would.

    promises of the next epoch from S - k + 1 electable slaves -> elect -> promote one -> the others follow it
    (S: electable slaves of the last term, k: acks that it needed; where it needed none, one promise is enough)

It uses only what members report, decides with the same function as all others, and records each term before it orders
it. In an asynchronous group, where no ack is needed, a master acknowledges by a Lease or by grants. With a Lease the
supervisor renews it, and lets it expire before a promotion. Without one, only reachable slaves are electable, since all
electable ones must grant, until the same master gets a new epoch with all of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, final

from gantry_histories.events import Journal
from gantry_histories.events import Term as HistoryTerm
from replication.group import POLL_S, Group, Member, reachable

from gantry_spec.ballot import Ballot, count_ballots
from gantry_spec.lease import LeaseRecord, Term, Voter
from gantry_status.orders import Follow, HaRole, HaStatus, Lease, OrderError, Promised, PromiseRequest, Promote

PATIENCE_S: Final = 180.0
"""How long to wait for anything that must occur, such as a promotion or a slave that catches up."""

LEASE_MS: Final = 1_500
"""The duration of a Lease; a master may acknowledge until it has expired."""


class NoPromotion(Exception):
    """No member may be promoted now. The text has the reason."""


@final
class Supervisor:
    """Orders the roles of one group. Owned by one loop."""

    def __init__(self, group: Group, journal: Journal, *, acks_needed: int = 1, keeps_lease: bool = False) -> None:
        """Take the first member as the master. ``keeps_lease`` is for an asynchronous group with a Lease."""
        self.master: Member = group[1]
        """The member that was promoted last, whether or not it runs."""

        self.epoch = 0
        """The epoch of the last promotion; 0 before the first."""

        self.acks_needed = acks_needed
        """The number of slaves whose acks a master needs to acknowledge; 0 in an asynchronous group."""

        self._group: Final = group
        self._journal: Final = journal
        self._keeps_lease: Final = keeps_lease
        self._electable: list[int] = []
        """The numbers of the members that may be elected after this term."""

        self._leased_until_ms = 0
        """The end of the last renewed Lease, on the boot clock."""

        self._is_deposing = False
        """Whether a promotion waits for the Lease to expire, which is not renewed meanwhile."""

        self._lease_renewal: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Supervisor:
        if self._keeps_lease:
            self._lease_renewal = asyncio.ensure_future(self._renew_lease())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lease_renewal is not None:
            self._lease_renewal.cancel()
            await asyncio.wait([self._lease_renewal])

    def __repr__(self) -> str:
        return f"<Supervisor master={self.master.number} epoch={self.epoch}>"

    async def promote_first(self) -> None:
        """Make the first member the master of an empty group, and have the others follow it."""
        await self._promote_member(self.master, _next_epoch(self.epoch, await self._wait_for_statuses()))
        await self.order_to_follow(self._group.others(self.master))

    async def _wait_for_statuses(self) -> list[tuple[Member, HaStatus]]:
        """Return the statuses of all members, as soon as each of them answers."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found = await reachable(self._group.members)
                if len(found) == len(self._group.members):
                    return found
                await asyncio.sleep(POLL_S)

    async def order_to_follow(self, members: Sequence[Member]) -> None:
        """Order these members to follow the master; one that is unreachable gets no order."""
        for member in members:
            if member.is_up and member is not self.master:
                try:
                    await member.orders.call(Follow(epoch=self.epoch, master=self.master.ha_address))
                except OrderError as error:
                    print(f"member {member.number} cannot be ordered to follow: {error}")

    def may_acknowledge(self, followers: Sequence[Member]) -> bool:
        """Return whether the master can answer 0 while only these members follow."""
        if self.acks_needed:
            return len(followers) >= self.acks_needed
        return self._keeps_lease or {member.number for member in followers} >= set(self._electable)

    async def promote_among(self, members: Sequence[Member], *, orders_others: bool = True) -> Member:
        """Elect and promote one of these members, in the next epoch. Raises ``NoPromotion``.

        Then all other reachable members are ordered to follow it, except with ``orders_others=False``.
        """
        statuses = await reachable(members)
        epoch = _next_epoch(self.epoch, statuses)
        promises = [promise for member, _ in statuses if (promise := await self._promise(member, epoch)) is not None]
        result = count_ballots(
            self._record(promises), [_ballot(one) for one in promises if one.broker_id in self._electable]
        )
        if result.winner is None:
            raise NoPromotion(result.reason)
        if not self.acks_needed:
            await self._wait_for_expiry(min(promise.granted_ms for promise in promises))
        winner = self._group[result.winner.number]
        await self._promote_member(winner, epoch)
        if orders_others:
            await self.order_to_follow(self._group.others(winner))
        return winner

    def _record(self, promises: Sequence[Promised]) -> LeaseRecord:
        """Return the record of the last term, and the stores that have a vote after it."""
        stores = {promise.broker_id: promise.identity for promise in promises}
        electable = tuple(Voter(number, stores.get(number, "")) for number in self._electable)
        term = Term(
            epoch=self.epoch,
            master=self.master.number,
            identity="",
            electable=electable,
            acks_needed=self.acks_needed,
        )
        return LeaseRecord(epoch=self.epoch, terms=(term,))

    async def promote_most_complete(self) -> Member:
        """Promote the member with the most complete log, when all members run again, and have the others follow it."""
        statuses = await self._wait_for_statuses()
        epoch = _next_epoch(self.epoch, statuses)
        promises = [promise for member, _ in statuses if (promise := await self._promise(member, epoch)) is not None]
        assert len(promises) == len(self._group.members), "a member has not promised"
        furthest = max(promises, key=lambda one: (one.last_epoch, one.end, one.broker_id == self.master.number))
        winner = self._group[furthest.broker_id]
        await self._promote_member(winner, epoch)
        await self.order_to_follow(self._group.others(winner))
        return winner

    async def make_all_electable(self) -> None:
        """Promote the same master again, in a new epoch in which all running slaves are electable.

        It does nothing if all slaves are electable already, or if acks are needed.
        """
        others = self._group.others(self.master)
        if self.acks_needed or set(self._electable) >= {member.number for member in others}:
            return
        await self._promote_member(self.master, _next_epoch(self.epoch, await reachable(self._group.members)))
        await self.order_to_follow(others)

    async def _wait_for_expiry(self, granted_ms: int) -> None:
        """Wait until the first grant of an electable slave and the Lease of the old master have expired."""
        self._is_deposing = True
        rest_ms = max(granted_ms, self._leased_until_ms - _boottime_ms())
        await asyncio.sleep(max(0, rest_ms) / 1000)

    async def _renew_lease(self) -> None:
        while True:
            await asyncio.sleep(LEASE_MS / 5_000)
            if self.master.is_up and not self._is_deposing:
                now_ms = _boottime_ms()
                self._leased_until_ms = now_ms + LEASE_MS
                with suppress(OrderError):
                    await self.master.orders.call(Lease(renewed_ms=now_ms, duration_ms=LEASE_MS), timeout_s=1)

    async def _promise(self, member: Member, epoch: int) -> Promised | None:
        try:
            return await member.orders.call(PromiseRequest(epoch=epoch, to="supervisor"))
        except OrderError as error:
            print(f"member {member.number} does not promise {epoch}: {error}")
            return None

    async def _promote_member(self, member: Member, epoch: int) -> None:
        others = self._group.others(member)
        electable = [other.number for other in others if self.acks_needed or self._keeps_lease or other.is_up]
        self._journal.add(HistoryTerm(epoch=epoch, broker=member.address, at=time.monotonic_ns()))
        await member.orders.call(Promote(epoch=epoch, electable=electable))
        self.master, self.epoch, self._electable, self._is_deposing = member, epoch, electable, False

    async def wait_for(self, member: Member, role: HaRole) -> HaStatus:
        """Wait until the member has this role."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    status = await member.status()
                except OrderError:
                    status = None
                if status is not None and status.role is role:
                    return status
                await asyncio.sleep(POLL_S)

    async def wait_until_caught_up(self, patience_s: float = PATIENCE_S) -> None:
        """Wait until every running member follows the master, and has its whole log."""
        followers = {member.number for member in self._group.others(self.master) if member.is_up}
        async with asyncio.timeout(patience_s):
            while True:
                status = await self.wait_for(self.master, HaRole.MASTER)
                wrote = status.wrote or 0
                near = {slave.number for slave in status.slaves if (slave.received or 0) >= wrote}
                if followers <= near and (status.confirmed or 0) >= wrote:
                    return
                await asyncio.sleep(POLL_S)


def _ballot(promise: Promised) -> Ballot:
    """Return the vote of a member that has promised. Its store, which has acknowledged, counts as complete."""
    return Ballot(
        number=promise.broker_id,
        identity=promise.identity,
        epoch=promise.last_epoch,
        last_epoch=promise.last_epoch,
        end=promise.end,
        is_complete=True,
        grant_expires_ms=0,
    )


def _boottime_ms() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def _next_epoch(known: int, statuses: Sequence[tuple[Member, HaStatus]]) -> int:
    """Return an epoch greater than every recorded one."""
    return 1 + max([known, *(max(one.epoch, one.promised_epoch, one.last_epoch) for _, one in statuses)])
