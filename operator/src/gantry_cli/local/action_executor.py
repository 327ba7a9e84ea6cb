"""Executes the actions decided for a local group: over control sockets, in Lease files, and on child processes.

``gantry_spec.executor`` defines how an action is executed; this module implements its two ports for one machine. An
order that is refused or lost is not a failure: it is recorded as an event, and the next round observes the result. The
orders of one decision are sent in parallel, after the Lease is written. Until all are answered, the supervisor starts
no other action for members of that shard that answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol, final

from gantry_cli.errors import CliError
from gantry_cli.local.lease import LeaseFile
from gantry_cli.local.member import LocalMember
from gantry_cli.local.state import GroupAnnotations, now_ms
from gantry_cli.local.topics import ShardDecommissioner
from gantry_spec import actions as act
from gantry_spec.decide.decision import line_of
from gantry_spec.executor import ActionExecutor, Expected, promotion_check, split_lease_actions
from gantry_spec.gate import check_action
from gantry_spec.ledger import ledger_of
from gantry_spec.manifest import Spec
from gantry_spec.observed import ObservedShard, Role
from gantry_status.order_client import OrderClient
from gantry_status.orders import AnyOrder, HaStatus, OrderError, OrderRefused, StatusRequest

ORDER_TIMEOUT_S: Final = 10.0


class LocalGroup(Protocol):
    """The part of a supervisor that executing an action needs."""

    @property
    def spec(self) -> Spec: ...

    def lease(self, shard: int) -> LeaseFile: ...

    def member(self, shard: int, number: int) -> LocalMember | None: ...

    def shard_now(self, shard: int) -> ObservedShard: ...

    def start(self, shard: int, number: int) -> None: ...

    async def remove(self, member: LocalMember) -> None: ...

    @property
    def group_annotations(self) -> GroupAnnotations: ...

    @property
    def decommissioner(self) -> ShardDecommissioner: ...


@final
class LocalActionExecutor:
    """Executes the actions of one supervisor, and implements both ports of its ``ActionExecutor``."""

    def __init__(self, group: LocalGroup, report_event: Callable[[str], None]) -> None:
        self._group: Final = group
        self._report_event: Final = report_event
        self._executor: Final = ActionExecutor(self, self, name="the group's supervisor")

    async def execute(self, actions: Sequence[act.Action]) -> None:
        """Execute all actions of one shard. A broker's refusal is recorded as an event and never raised."""
        first, others = split_lease_actions(actions)
        for action in first:
            await self._execute_one(action)
        await asyncio.gather(*(self._execute_one(action) for action in self._masters_first(others)))

    def _masters_first(self, actions: Sequence[act.Action]) -> list[act.Action]:
        """Return the actions without the removal of slaves while a shard's master is still to be removed.

        A shard that is removed loses its master first: the master needs its slaves to drain late messages.
        """
        retiring = [one for one in actions if isinstance(one, act.Remove) and one.is_empty]
        masters = [one for one in retiring if self._is_master(one)]
        return [one for one in actions if one not in retiring or one in masters or not masters]

    def _is_master(self, action: act.MemberAction) -> bool:
        member = self._running(action.shard, action.member)
        return member is not None and member.report is not None and member.report.role is Role.MASTER

    async def _execute_one(self, action: act.Action) -> None:
        refusal = ""
        try:
            ledger = ledger_of(self._group.spec, self._group.shard_now(action.shard), now_ms())
            verdict = check_action(action, ledger, self._group.spec)
            if not verdict.is_allowed:
                raise OrderRefused(verdict.reason)
            await self._executor.execute(action)
        except (OrderError, OSError, CliError) as error:
            refusal = str(error)
        self._report_event(line_of(action) + (f": failed: {refusal}" if refusal else ""))

    # -- brokers -------------------------------------------------------------------------------------------------------

    async def status(self, shard: int, member: int) -> HaStatus | None:
        """Return the current status of a broker, or None if it does not run."""
        running = self._running(shard, member)
        if running is None:
            return None
        async with OrderClient(running.control, answer_timeout_s=ORDER_TIMEOUT_S) as client:
            return await client.call(StatusRequest())

    async def send_order(self, shard: int, member: int, order: AnyOrder, expected: Expected | None) -> None:
        """Send an order to the process that runs now; a promotion only if that process passes ``promotion_check``.

        It may be a later process than the observed one. The epoch of the order and the process's own role decide then.
        """
        running = self._running(shard, member)
        if running is None:
            raise OrderRefused("the broker does not run")
        check = promotion_check(order, expected)
        async with OrderClient(
            running.control, answer_timeout_s=ORDER_TIMEOUT_S, is_one_connection=check is not None
        ) as client:
            await client.call_checked(order, check)

    def _running(self, shard: int, number: int) -> LocalMember | None:
        member = self._group.member(shard, number)
        return member if member is not None and member.broker.is_running else None

    # -- Lease, annotations, processes ---------------------------------------------------------------------------------

    async def replace_lease(self, action: act.LeaseAction) -> None:
        """Write the Lease file, in a thread since it waits for the disk."""
        if not await asyncio.to_thread(self._group.lease(action.shard).write, action.expected, action.record):
            raise OrderRefused("the Lease was changed meanwhile")

    async def clear_request(self, action: act.ClearRequest) -> None:
        await asyncio.to_thread(self._group.group_annotations.clear, action.request)

    async def change_process(self, action: act.ProcessAction | act.Hibernate) -> None:
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

    def empty_log_end(self, shard: int) -> int | None:
        return self._group.decommissioner.empty_log_end(shard)

    def note_shard_closed(self, shard: int) -> None:
        self._group.decommissioner.mark_closed(shard)
