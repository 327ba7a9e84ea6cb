"""Executing what was decided about a local group: over control sockets, in Lease files, and on child processes.

How an action is executed is ``gantry_spec.executor``'s; its two ports of one machine are here. An order that is refused
or lost is no failure: it is put down, and the next round observes what has come of it. The orders of one decision go
out side by side, after the Lease; nothing else is decided about that shard until all are answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol, final

from gantry_cli.errors import CliError
from gantry_cli.local.lease import LeaseFile
from gantry_cli.local.member import LocalMember
from gantry_cli.local.state import StandingOrders, now_ms
from gantry_cli.local.topics import Emptying
from gantry_spec import actions as act
from gantry_spec.decide.decision import line_of
from gantry_spec.executor import ActionExecutor, Expected, in_order, promotion_check
from gantry_spec.gate import may
from gantry_spec.ledger import ledger_of
from gantry_spec.manifest import Spec
from gantry_spec.observed import ObservedShard, Role
from gantry_status.order_client import OrderClient
from gantry_status.orders import AnyOrder, AskStatus, HaStatus, OrderError, OrderRefused

ORDER_TIMEOUT_S: Final = 10.0


class LocalGroup(Protocol):
    """The group that is acted on: what its supervisor gives to whoever executes."""

    @property
    def spec(self) -> Spec: ...

    def lease(self, shard: int) -> LeaseFile: ...

    def member(self, shard: int, number: int) -> LocalMember | None: ...

    def shard_now(self, shard: int) -> ObservedShard: ...

    def start(self, shard: int, number: int) -> None: ...

    async def remove(self, member: LocalMember) -> None: ...

    @property
    def standing_orders(self) -> StandingOrders: ...

    @property
    def emptying(self) -> Emptying: ...


@final
class LocalActions:
    """The actions of one supervisor, and both ports that they are executed through."""

    def __init__(self, group: LocalGroup, tell: Callable[[str], None]) -> None:
        self._group: Final = group
        self._tell: Final = tell
        self._executor: Final = ActionExecutor(self, self, name="the group's supervisor")

    async def execute(self, actions: Sequence[act.Action]) -> None:
        """All of one shard's. Never raises for what a broker answers."""
        first, others = in_order(actions)
        for action in first:
            await self._one(action)
        await asyncio.gather(*(self._one(action) for action in self._masters_first(others)))

    def _masters_first(self, actions: Sequence[act.Action]) -> list[act.Action]:
        """A shard that goes loses its master first, which needs its slaves to hand over what may have come."""
        goes = [one for one in actions if isinstance(one, act.Remove) and one.holds_nothing]
        masters = [one for one in goes if self._is_master(one)]
        return [one for one in actions if one not in goes or one in masters or not masters]

    def _is_master(self, action: act.MemberAction) -> bool:
        member = self._running(action.shard, action.member)
        return member is not None and member.report is not None and member.report.role is Role.MASTER

    async def _one(self, action: act.Action) -> None:
        refusal = ""
        try:
            ledger = ledger_of(self._group.spec, self._group.shard_now(action.shard), now_ms())
            verdict = may(action, ledger, self._group.spec)
            if not verdict.is_allowed:
                raise OrderRefused(verdict.because)
            await self._executor.execute(action)
        except (OrderError, OSError, CliError) as error:
            refusal = str(error)
        self._tell(line_of(action) + (f" -- not done: {refusal}" if refusal else ""))

    # -- brokers -------------------------------------------------------------------------------------------------------

    async def status(self, shard: int, member: int) -> HaStatus | None:
        """What a broker reports now; None if it does not run."""
        running = self._running(shard, member)
        if running is None:
            return None
        async with OrderClient(running.control, answer_timeout_s=ORDER_TIMEOUT_S) as client:
            return await client.call(AskStatus())

    async def give(self, shard: int, member: int, order: AnyOrder, expected: Expected | None) -> None:
        """Have the process obey that was observed, and no later one."""
        running = self._running(shard, member)
        if running is None:
            raise OrderRefused("it does not run")
        boot_id, check = running.broker.boot_id, promotion_check(order, expected)
        async with OrderClient(
            running.control, answer_timeout_s=ORDER_TIMEOUT_S, is_one_connection=check is not None
        ) as client:
            if running.broker.boot_id != boot_id:
                raise OrderRefused("another process of it runs by now")
            await client.call_checked(order, check)

    def _running(self, shard: int, number: int) -> LocalMember | None:
        member = self._group.member(shard, number)
        return member if member is not None and member.broker.is_running else None

    # -- the rest ------------------------------------------------------------------------------------------------------

    async def replace_lease(self, action: act.LeaseAction) -> None:
        """Waits for the disk in a thread."""
        if not await asyncio.to_thread(self._group.lease(action.shard).write, action.expected, action.record):
            raise OrderRefused("the Lease is another one by now")

    async def clear_request(self, action: act.ClearRequest) -> None:
        await asyncio.to_thread(self._group.standing_orders.clear, action.request)

    async def change_process(self, action: act.ProcessAction | act.Sleep) -> None:
        assert isinstance(action, act.ProcessAction), "local groups do not hibernate"
        member = self._group.member(action.shard, action.member)
        match action:
            case act.Start():
                self._group.start(action.shard, action.member)
            case _ if member is None:
                return
            case act.Restart(boot_id=boot_id):
                if member.broker.boot_id == boot_id:
                    await member.broker.restart()
            case act.Remove(boot_id=boot_id):
                if member.broker.boot_id == boot_id:
                    await self._group.remove(member)
            case act.ReplaceDisk(disk_id=disk_id):
                if member.is_disk_lost and member.record.identity == disk_id:
                    await member.replace_disk()

    def empty_end(self, shard: int) -> int | None:
        return self._group.emptying.end(shard)

    def closed(self, shard: int) -> None:
        self._group.emptying.close(shard)
