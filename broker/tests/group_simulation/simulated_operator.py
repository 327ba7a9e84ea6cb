"""The operator of a simulated group: observes, decides with ``gantry_spec.decide``, and executes, as in a cluster.

    observe    an order ``status`` to every member, over the network
    decide     ``gantry_spec.decide`` and the gate
    execute    ``gantry_spec.executor``: the Lease, by compare-and-swap in memory; orders, over the network

It records every term before it orders the promotion, for the judges. It is restarted at random, and has then forgotten
everything but the Lease; the last reports of masters are in annotations of the Lease in a cluster, and stay, too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, final

import msgspec
from gantry_histories.events import Journal
from gantry_histories.events import Term as HistoryTerm
from group_simulation.simulated_machine import Machine
from group_simulation.simulated_network import SimulatedNetwork
from group_simulation.simulated_world import SimulatedProcess

from gantry_broker.control.orders import execute_order
from gantry_spec import actions as act
from gantry_spec.decide import decide
from gantry_spec.executor import ActionExecutor, Expected, promotion_check, split_lease_actions
from gantry_spec.gate import check_action
from gantry_spec.lease import LeaseRecord
from gantry_spec.ledger import Ledger, ledger_of
from gantry_spec.manifest.group import Spec
from gantry_spec.observed import (
    Disk,
    LastReport,
    Member,
    ObservedGroup,
    ObservedLease,
    ObservedShard,
    Process,
    PromotionRequest,
    Report,
    Role,
    last_report_after,
)
from gantry_status.broker_state import view_of
from gantry_status.orders import (
    AnyAnswer,
    AnyOrder,
    BrokerUnreachable,
    Failed,
    HaStatus,
    Lease,
    OrderError,
    OrderFailed,
    OrderRefused,
    OrderUnanswered,
    Promote,
    Refused,
    StatusRequest,
)

HOST: Final = "10.0.0.200"
INTERVAL_S: Final = 0.25
"""The time between two rounds."""
STATUS_TIMEOUT_S: Final = 0.5
ORDER_TIMEOUT_S: Final = 5.0
LEASE_MS: Final = 3_000
TEMPLATE: Final = "the only one"


@final
class LeaseStore:
    """The Lease of the shard and its annotations, as the API server keeps them."""

    def __init__(self) -> None:
        self.record: LeaseRecord | None = None
        self.last_report: LastReport | None = None
        self.request: PromotionRequest | None = None
        """The promotion that a person requests; an annotation of the `BrokerGroup` in a cluster."""

    def replace(self, expected: str | None, record: LeaseRecord) -> bool:
        """Replace the record if it has the expected version."""
        version = None if self.record is None else self.record.version
        if version != expected:
            return False
        self.record = msgspec.structs.replace(record, version=str(int(version or "0") + 1))
        return True


@final
class SimulatedOperator:
    """One process of the operator. Owned by its loop."""

    def __init__(
        self, process: SimulatedProcess, network: SimulatedNetwork, machines: Sequence[Machine], spec: Spec,
        lease: LeaseStore, journal: Journal,
    ) -> None:  # fmt: skip
        self.process: Final = process
        self.rounds = 0
        self.notes: Final[list[str]] = []
        """What it has done, with times."""
        self.decision_text = ""
        self._network: Final = network
        self._machines: Final = {machine.number: machine for machine in machines}
        self._spec: Final = spec
        self._lease: Final = lease
        self._journal: Final = journal
        self._seen: tuple[LeaseRecord | None, int] = None, -1
        self._reports: Final[dict[int, Report]] = {}
        self._is_answering: Final[dict[int, bool]] = {}
        self._observed_boots: Final[dict[int, tuple[str, int]]] = {}
        self._running: Final[dict[int, asyncio.Task[None]]] = {}
        self._executor: Final = ActionExecutor(self, self, name="the operator")
        self._ledgers: dict[int, Ledger] = {}

    def __repr__(self) -> str:
        return f"<SimulatedOperator rounds={self.rounds}>"

    def _now_ms(self) -> int:
        return self.process.clock.boot_ms()

    async def run(self) -> None:
        """Run rounds until the process ends."""
        while True:
            await asyncio.gather(*(self._observe(machine) for machine in self._machines.values()))
            self._decide()
            await self._renew()
            self.rounds += 1
            await asyncio.sleep(INTERVAL_S)

    # -- observing -----------------------------------------------------------------------------------------------------

    async def _observe(self, machine: Machine) -> None:
        asked_ms, boot_id = self._now_ms(), machine.boot_id
        self._is_answering[machine.number] = False
        try:
            status = await self._call(machine, StatusRequest(), STATUS_TIMEOUT_S)
        except OrderError:
            return
        if machine.boot_id != boot_id:
            return
        assert isinstance(status, HaStatus)
        report = view_of(status, Report, asked_ms=asked_ms, answered_ms=self._now_ms(), boot_id=boot_id)
        self._reports[machine.number], self._is_answering[machine.number] = report, True
        self._lease.last_report = last_report_after(self._lease.last_report, report)

    def _member(self, machine: Machine) -> Member:
        """Return a member as a cluster shows it: a machine without power or network is in an unknown state."""
        number, now_ms = machine.number, self._now_ms()
        report = self._reports.get(number)
        is_visible = machine.has_power and not self._network.link(HOST, machine.host).is_cut
        known_boot, known_ms = self._observed_boots.get(number, ("", now_ms))
        if not is_visible:
            process, boot_id = Process.UNKNOWN, known_boot
        else:
            process = Process.RUNNING if machine.is_up else Process.STOPPED
            boot_id = machine.boot_id
            if boot_id != known_boot:
                known_ms = now_ms
                self._observed_boots[number] = boot_id, known_ms
        return Member(
            number=number, process=process, process_asked_ms=now_ms,
            stopped_by_ms=known_ms if process is Process.STOPPED else None,
            boot_id=boot_id, started_by_ms=known_ms if process is Process.RUNNING else None,
            disk_id=report.identity if report is not None else "", template=TEMPLATE,
            acks_needed=self._spec.replication.acks_needed, disk=Disk.PRESENT, report=report,
        )  # fmt: skip

    def _shard(self) -> ObservedShard:
        record, seen_ms = self._seen
        if seen_ms < 0 or record != self._lease.record:
            self._seen = record, seen_ms = self._lease.record, self._now_ms()
        return ObservedShard(
            number=0, lease=ObservedLease(record=record, seen_ms=seen_ms),
            members=tuple(self._member(machine) for machine in self._machines.values()),
            last_report=self._lease.last_report, request=self._lease.request,
        )  # fmt: skip

    # -- deciding ------------------------------------------------------------------------------------------------------

    def _decide(self) -> None:
        observed = ObservedGroup(shards=(self._shard(),), template=TEMPLATE, lease_duration_ms=LEASE_MS)
        decision = decide(self._spec, observed, self._now_ms(), self._ledgers)
        self._ledgers = {ledger.shard: ledger for ledger in decision.ledgers}
        self.decision_text = "; ".join(f"{type(one).__name__}: {one.why}" for one in decision.actions)
        actions = [one for one in decision.actions if not isinstance(one, act.Wait | act.Refuse)]
        answering = [one for one in actions if self._is_reachable(one)]
        if answering and 0 not in self._running:
            self._start(0, answering)
        for one in actions:
            if isinstance(one, act.MemberAction) and one not in answering and one.member not in self._running:
                self._start(one.member, [one])

    def _is_reachable(self, action: act.Action) -> bool:
        return not isinstance(action, act.OrderAction) or self._is_answering.get(action.member, False)

    def _start(self, key: int, actions: Sequence[act.Action]) -> None:
        task = self._running[key] = asyncio.ensure_future(self._execute(actions))
        task.add_done_callback(lambda _: self._running.pop(key, None))

    # -- executing -----------------------------------------------------------------------------------------------------

    async def _execute(self, actions: Sequence[act.Action]) -> None:
        first, others = split_lease_actions(actions)
        for action in first:
            await self._execute_one(action)
        await asyncio.gather(*(self._execute_one(action) for action in others))

    async def _execute_one(self, action: act.Action) -> None:
        outcome = "done"
        try:
            verdict = check_action(action, ledger_of(self._spec, self._shard(), self._now_ms()), self._spec)
            if not verdict.is_allowed:
                raise OrderRefused(verdict.reason)
            await self._executor.execute(action)
        except OrderError as error:
            outcome = f"{type(error).__name__}: {error}"
        member = f" {action.member}" if isinstance(action, act.MemberAction) else ""
        self._note(f"{type(action).__name__}{member}: {action.why}: {outcome}")

    def _note(self, text: str) -> None:
        self.notes.append(f"{self.process.world.now:.3f} {text}")

    async def status(self, shard: int, member: int) -> HaStatus | None:
        answer = await self._call(self._machines[member], StatusRequest(), ORDER_TIMEOUT_S)
        assert isinstance(answer, HaStatus)
        return answer

    async def send_order(self, shard: int, member: int, order: AnyOrder, expected: Expected | None) -> None:
        machine, check = self._machines[member], promotion_check(order, expected)
        boot_id = machine.boot_id
        if check is not None:
            status = await self._call(machine, StatusRequest(), ORDER_TIMEOUT_S)
            assert isinstance(status, HaStatus)
            check(status)
        if isinstance(order, Promote):
            self._journal.add(HistoryTerm(epoch=order.epoch, broker=machine.address, at=time.monotonic_ns()))
        await self._call(machine, order, ORDER_TIMEOUT_S, boot_id=boot_id)

    async def replace_lease(self, action: act.LeaseAction) -> None:
        await asyncio.sleep(0.002)  # the API server
        if not self._lease.replace(action.expected, action.record):
            raise OrderRefused("the Lease was changed meanwhile")

    async def change_process(self, action: act.ProcessAction | act.Hibernate) -> None:
        if not isinstance(action, act.Start):  # the machines start their brokers by themselves
            raise OrderRefused(f"{type(action).__name__} is no part of a history")

    async def clear_request(self, action: act.ClearRequest) -> None:
        if self._lease.request is not None and self._lease.request.id == action.request:
            self._lease.request = None

    def empty_log_end(self, shard: int) -> int | None:
        return None

    def note_shard_closed(self, shard: int) -> None:
        raise AssertionError("no shard is removed")

    async def _renew(self) -> None:
        """Renew the Lease of a master that waits for no acks."""
        record = self._lease.record
        if record is None or record.newest is None or not record.is_settled or record.newest.acks_needed:
            return
        report = self._reports.get(record.newest.master)
        if report is None or (report.role, report.epoch) != (Role.MASTER, record.epoch):
            return
        machine = self._machines[record.newest.master]
        # Renewals count from now, on the boot clock of the broker's machine, as its sidecar reads it.
        order = Lease(renewed_ms=machine.clock.boot_ms(), duration_ms=record.duration_ms)
        with suppress(OrderError):
            await self._call(machine, order, STATUS_TIMEOUT_S)

    # -- orders over the network ---------------------------------------------------------------------------------------

    async def _call(self, machine: Machine, order: AnyOrder, timeout_s: float, *, boot_id: str = "") -> AnyAnswer:
        """Send an order and return its answer. Raises a subclass of ``OrderError``."""
        answer: asyncio.Future[AnyAnswer | None] = self.process.loop.create_future()

        def reply(value: AnyAnswer | None) -> None:
            def settle() -> None:
                if not answer.done():
                    answer.set_result(value)

            self._network.post(machine.host, HOST, lambda: self.process.call_soon(settle))

        def receive() -> None:
            broker, process = machine.broker, machine.process
            is_same = not boot_id or machine.boot_id == boot_id
            if process is None or broker is None or not machine.is_serving or not is_same:
                reply(None)
                return
            orders = broker.orders

            async def execute() -> None:
                reply(await execute_order(orders, order))

            process.call_soon(lambda: process.loop.create_task(execute()))

        self._network.post(HOST, machine.host, receive)
        try:
            async with asyncio.timeout(timeout_s):
                value = await answer
        except TimeoutError:
            raise OrderUnanswered(f"member {machine.number}: no answer within {timeout_s:g} s") from None
        match value:
            case None:
                raise BrokerUnreachable(f"member {machine.number} does not serve orders")
            case Refused():
                raise OrderRefused(value.reason)
            case Failed():
                raise OrderFailed(value.reason)
            case _:
                return value
