"""Doing what was decided: orders to brokers, the Lease, processes. Each as ``gantry_spec.actions`` says.

An order that is refused or lost is no failure here: it is put down, and the next look shows what has come of it. Those
of one decision go out side by side, after the Lease; nothing else is decided about that shard until all are answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, final

from gantry_cli.errors import CliError
from gantry_cli.local.emptying import Emptying
from gantry_cli.local.lease_file import LeaseFile
from gantry_cli.local.member import LocalMember
from gantry_spec import actions as act
from gantry_spec.decide.decision import line_of
from gantry_spec.gate import may
from gantry_spec.ledger import Ledger, ledger_of
from gantry_spec.manifest import Spec
from gantry_spec.observed import ObservedShard, Role
from gantry_status.order_client import OrderClient
from gantry_status.orders import (
    AskPromise,
    AskStatus,
    Drain,
    Fence,
    Follow,
    HaStatus,
    OrderError,
    OrderRefused,
    Promised,
    Promote,
)

ORDER_TIMEOUT_S: Final = 10.0
DRAIN_TIMEOUT_MS: Final = 10_000


class Body(Protocol):
    """The group that is acted on: what hands need of their supervisor."""

    @property
    def spec(self) -> Spec: ...

    def now_ms(self) -> int: ...

    def lease(self, shard: int) -> LeaseFile: ...

    def member(self, shard: int, number: int) -> LocalMember | None: ...

    def shard_now(self, shard: int) -> ObservedShard: ...

    def start(self, shard: int, number: int) -> None: ...

    async def remove(self, member: LocalMember) -> None: ...

    def clear_wish(self, wish: str) -> None: ...

    def holds_nothing(self, shard: int) -> bool: ...

    @property
    def emptying(self) -> Emptying: ...


@final
class Hands:
    """Of one supervisor."""

    def __init__(self, body: Body, tell: Callable[[str], None]) -> None:
        self._body: Final = body
        self._tell: Final = tell

    async def do(self, actions: Sequence[act.Action]) -> None:
        """All of one shard's. Never raises for what a broker says."""
        for action in actions:
            if isinstance(action, act.LeaseAction):
                self._told(action, await asyncio.to_thread(self._write, action))
        others = [action for action in actions if not isinstance(action, act.LeaseAction)]
        await asyncio.gather(*(self._one(action) for action in self._masters_first(others)))

    def _masters_first(self, actions: Sequence[act.Action]) -> list[act.Action]:
        """A shard that goes loses its master first, which needs its slaves to hand over what may have come."""
        goes = [one for one in actions if isinstance(one, act.Remove) and one.holds_nothing]
        masters = [one for one in goes if self._is_master(one)]
        return [one for one in actions if one not in goes or one in masters or not masters]

    def _is_master(self, action: act.MemberAction) -> bool:
        member = self._body.member(action.shard, action.member)
        report = None if member is None or not member.broker.is_running else member.report
        return report is not None and report.role is Role.MASTER

    def _write(self, action: act.LeaseAction) -> str:
        """Why the Lease is not replaced; empty if it is. Waits for the disk."""
        try:
            is_written = self._body.lease(action.shard).write(action.expected, action.record)
        except OSError as error:
            return str(error)
        return "" if is_written else "the Lease is another one by now"

    async def _one(self, action: act.Action) -> None:
        refusal = ""
        try:
            verdict = may(action, self._ledger(action), self._body.spec)
            if not verdict.is_allowed:
                raise OrderRefused(verdict.because)
            await self._doing(action)
        except (OrderError, OSError, CliError) as error:
            refusal = str(error)
        self._told(action, refusal)

    def _doing(self, action: act.Action) -> Awaitable[None]:
        match action:
            case act.ClearWish(wish=wish):
                return asyncio.to_thread(self._body.clear_wish, wish)
            case act.Start(shard=shard, member=number):
                return _at_once(lambda: self._body.start(shard, number))
            case act.Restart() | act.Remove() | act.ReplaceDisk():
                return self._process(action)
            case act.MemberAction():
                return self._order(action)
            case _:
                raise AssertionError(f"nobody knows how to do {action}")

    def _ledger(self, action: act.Action) -> Ledger:
        return ledger_of(self._body.spec, self._body.shard_now(action.shard), self._body.now_ms())

    def _told(self, action: act.Action, refusal: str) -> None:
        self._tell(line_of(action) + (f" -- not done: {refusal}" if refusal else ""))

    # -- processes -----------------------------------------------------------------------------------------------------

    async def _process(self, action: act.Restart | act.Remove | act.ReplaceDisk) -> None:
        member = self._body.member(action.shard, action.member)
        if member is None:
            return
        match action:
            case act.Restart(boot_id=boot_id):
                if member.broker.boot_id == boot_id:
                    await member.broker.restart()
            case act.Remove(boot_id=boot_id, holds_nothing=holds_nothing):
                if member.broker.boot_id == boot_id:
                    if holds_nothing and self._is_master(action):
                        await self._close(action.shard, member)
                    await self._body.remove(member)
            case act.ReplaceDisk(disk_id=disk_id):
                if member.is_disk_lost and member.record.identity == disk_id:
                    await member.broker.stop()
                    member.record.identity, member.report = "", None
                    member.broker.start()

    async def _close(self, shard: int, member: LocalMember) -> None:
        """Take no more sends on a shard that goes. Raises ``OrderRefused`` when one came since it was found empty."""
        async with OrderClient(member.control, answer_timeout_s=ORDER_TIMEOUT_S, is_one_connection=True) as client:
            status = await client.call(Drain(timeout_ms=DRAIN_TIMEOUT_MS))
            await member.look()
            if not member.is_answering:
                raise OrderRefused("it does not say whether a message has come since nothing was found on it")
            if not self._body.holds_nothing(shard):
                await client.call(Promote(epoch=status.epoch, electable=list(status.electable)))
                raise OrderRefused("a message has come since nothing was found on it")
        self._body.emptying.close(shard)

    # -- orders --------------------------------------------------------------------------------------------------------

    async def _order(self, action: act.MemberAction) -> None:
        member = self._body.member(action.shard, action.member)
        if member is None or not member.broker.is_running:
            raise OrderRefused("it does not run")
        boot_id = member.broker.boot_id
        is_promotion = isinstance(action, act.Promote)
        path = member.control
        async with OrderClient(path, answer_timeout_s=ORDER_TIMEOUT_S, is_one_connection=is_promotion) as client:
            if member.broker.boot_id != boot_id:
                raise OrderRefused("another process of it runs by now")
            await _give(client, action)


async def _give(client: OrderClient, action: act.MemberAction) -> HaStatus | Promised:
    match action:
        case act.Promise(epoch=epoch):
            return await client.call(AskPromise(epoch=epoch, to="the group's supervisor"))
        case act.Promote(epoch=epoch, electable=electable):
            check_promotion(action, await client.call(AskStatus()))
            return await client.call(Promote(epoch=epoch, electable=list(electable)))
        case act.Resume(epoch=epoch, electable=electable):
            return await client.call(Promote(epoch=epoch, electable=list(electable)))
        case act.Follow(epoch=epoch, master=master):
            return await client.call(Follow(epoch=epoch, master=master))
        case act.Fence(epoch=epoch):
            return await client.call(Fence(epoch=epoch))
        case act.Drain(timeout_ms=timeout_ms):
            return await client.call(Drain(timeout_ms=timeout_ms))
        case act.Withdraw(timeout_ms=timeout_ms, goes_on=goes_on):
            return await client.call(Drain(timeout_ms=timeout_ms, withdraw=True, goes_on=goes_on))
        case _:
            raise AssertionError(f"no order: {action}")


def check_promotion(action: act.Promote, status: HaStatus) -> None:
    """Raise ``OrderRefused`` unless it still is what was named. A promotion that was done already is none any more."""
    if status.epoch == action.epoch:
        return
    if action.continues and (status.role, status.epoch) != ("MASTER", action.continues):
        raise OrderRefused(f"it was to go on as the master of epoch {action.continues}, and is {status.role}")
    if (status.last_epoch, status.wrote) < (action.last_epoch, action.end):
        was, now = (action.last_epoch, action.end), (status.last_epoch, status.wrote)
        raise OrderRefused(f"its log ended at {was[1]} of epoch {was[0]}, and ends at {now[1]} of epoch {now[0]} now")


async def _at_once(what: Callable[[], None]) -> None:
    what()
