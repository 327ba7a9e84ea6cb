"""Who gives the orders: begins a group, and moves the master's role as a person, a supervisor or an operator would.

    promises of the next epoch from S - k + 1 electable slaves -> elect -> promote one -> the others follow it

It knows nothing but what members tell it, decides with the same function as everybody, and writes down each reign
before it orders it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final, final

from gantry_histories.events import Journal, Reign
from replication.group import POLL_S, Group, Member, reachable

from gantry_spec.election import Candidate, elect
from gantry_status.orders import AskPromise, Follow, HaRole, HaStatus, OrderError, Promised, Promote

PATIENCE_S: Final = 40.0


class NoPromotion(Exception):
    """Nobody may be promoted now. Says why."""


@final
class Supervisor:
    """Owned by one loop."""

    def __init__(self, group: Group, journal: Journal, *, acks_needed: int = 1) -> None:
        self.master: Member = group[1]
        self.epoch = 0
        self._group: Final = group
        self._journal: Final = journal
        self.acks_needed: Final = acks_needed
        self._electable: list[int] = []

    def __repr__(self) -> str:
        return f"<Supervisor master={self.master.number} epoch={self.epoch}>"

    async def begin(self) -> None:
        """The first member is the master of an empty group."""
        await self._enthrone(self.master, _next_epoch(self.epoch, await reachable(self._group.members)))
        await self.gather(self._group.others(self.master))

    async def gather(self, members: Sequence[Member]) -> None:
        """They follow the master. One that cannot be told is left alone, until it is gathered again."""
        for member in members:
            if member.is_up and member is not self.master:
                try:
                    await member.orders.call(Follow(epoch=self.epoch, master=self.master.ha_address))
                except OrderError as error:
                    print(f"member {member.number} is not told to follow: {error}")

    async def fail_over(self) -> Member:
        """Somebody else is the master. Raises ``NoPromotion``."""
        return await self.promote_among(self._group.others(self.master))

    async def promote_among(self, members: Sequence[Member]) -> Member:
        """One of these is the master; of the others those that can be told follow it. Raises ``NoPromotion``."""
        statuses = await reachable(members)
        epoch = _next_epoch(self.epoch, statuses)
        promises = [promise for member, _ in statuses if (promise := await self._promise(member, epoch)) is not None]
        candidates = [
            Candidate(str(promise.broker_id), promise.last_epoch, promise.end, promise.epoch) for promise in promises
        ]
        result = elect([str(number) for number in self._electable], self.acks_needed, epoch, candidates)
        if result.winner is None:
            raise NoPromotion(result.reason)
        if not self.acks_needed:
            # The old master may acknowledge until the first grant of an electable slave has run out.
            await asyncio.sleep(min(promise.granted_ms for promise in promises) / 1000)
        winner = self._group[int(result.winner.identity)]
        await self._enthrone(winner, epoch)
        await self.gather(self._group.others(winner))
        return winner

    async def _promise(self, member: Member, epoch: int) -> Promised | None:
        try:
            return await member.orders.call(AskPromise(epoch=epoch, to="supervisor"))
        except OrderError as error:
            print(f"member {member.number} does not promise {epoch}: {error}")
            return None

    async def _enthrone(self, member: Member, epoch: int) -> None:
        electable = [other.number for other in self._group.others(member)]
        self._journal.add(Reign(epoch=epoch, broker=member.address, at=time.monotonic_ns()))
        await member.orders.call(Promote(epoch=epoch, electable=electable))
        self.master, self.epoch, self._electable = member, epoch, electable

    async def wait_for(self, member: Member, role: HaRole) -> HaStatus:
        """Until it has this role."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    status = await member.status()
                except OrderError:
                    status = None
                if status is not None and status.role is role:
                    return status
                await asyncio.sleep(POLL_S)

    async def wait_whole(self) -> None:
        """Until every member that runs follows the master, and has what it has."""
        followers = {member.number for member in self._group.others(self.master) if member.is_up}
        async with asyncio.timeout(PATIENCE_S):
            while True:
                status = await self.wait_for(self.master, HaRole.MASTER)
                near = {slave.broker_id for slave in status.slaves if slave.received >= status.wrote}
                if followers <= near and status.confirmed >= status.wrote:
                    return
                await asyncio.sleep(POLL_S)


def _next_epoch(known: int, statuses: Sequence[tuple[Member, HaStatus]]) -> int:
    """Greater than every one that anybody has recorded."""
    return 1 + max([known, *(max(one.epoch, one.promised_epoch, one.last_epoch) for _, one in statuses)])
