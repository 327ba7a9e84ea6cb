"""The supervisor of a local group: rounds of observe, decide and execute, about once a second and after each event.

    observe    processes, control sockets, Lease files, annotations
    decide     ``gantry_spec.decide``, as in a cluster
    execute    ``LocalActionExecutor``: orders, Lease files, processes; one decision per shard at a time

It keeps no state that a later supervisor could not recover: the Leases, the last reports of masters, and the members
are in STATE. Decisions use the machine's boot-time clock, as brokers do; only events have times of the wall clock.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, final

from gantry_cli.local.action_executor import LocalActionExecutor
from gantry_cli.local.group_status import Event
from gantry_cli.local.lease import LastReportCache, LeaseFile, renew
from gantry_cli.local.member import LocalMember, MemberSettings
from gantry_cli.local.records import GroupRecord, MemberRecord
from gantry_cli.local.state import GroupAnnotations, GroupState, now_ms
from gantry_cli.local.topics import ShardDecommissioner
from gantry_cli.processes import ServerProcess
from gantry_client.topic_reconciler import MasterTerm
from gantry_remoting.addresses import join_address
from gantry_spec import actions as act
from gantry_spec.decide import Decision, decide
from gantry_spec.ledger import Ledger
from gantry_spec.manifest import Spec
from gantry_spec.manifest.annotations import GroupRequests
from gantry_spec.manifest.parts import Retain
from gantry_spec.observed import ObservedGroup, ObservedShard, PromotionRequest, Role

OBSERVE_INTERVAL_S: Final = 1.0
"""The interval between two rounds without an event, in seconds."""
BUSY_INTERVAL_S: Final = 0.1
"""The interval after an action has started, and while a broker starts."""
LEASE_DURATION_MS: Final = 6_000
"""The duration of the Leases of local groups."""
EVENTS_MAX: Final = 200
"""How many of the latest events are kept."""
REPEATED_EVENT_MS: Final = 5_000
SINGLE_BROKER_PROMOTION: Final = PromotionRequest(id="single", loss_accepted=None)
"""The order of `gantry up --single`: its broker becomes the master with its own store, since no other member exists."""
ANSWERING_MEMBERS: Final = 0
"""Represents all members of a shard that answer, instead of the number of one member."""


class AnsweringMaster(NamedTuple):
    """The master of a shard, by its report of the last round."""

    term: MasterTerm
    wrote: int
    """The end of its log."""


@final
class Supervisor:
    """Supervises all members of a local group. Owned by one event loop."""

    def __init__(
        self, state: GroupState, record: GroupRecord, settings: MemberSettings, report_event: Callable[[str], None], *,
        has_sidecars: bool, is_single: bool, make_record: Callable[[int, int], MemberRecord],
        on_observed: Callable[[], None],
    ) -> None:  # fmt: skip
        """``make_record`` plans a member that a changed manifest adds; ``on_observed`` is called after each round."""
        self.state: Final = state
        self.record: Final = record
        self.settings = settings
        self.members: Final[dict[tuple[int, int], LocalMember]] = {}
        self.observed = ObservedGroup()
        self.decision = Decision()
        self.rounds = 0
        self.events: Final[deque[Event]] = deque(maxlen=EVENTS_MAX)
        self._has_sidecars: Final = has_sidecars
        self._is_single: Final = is_single
        self._make_record, self._on_observed = make_record, on_observed
        self._report: Final = report_event
        self._last_reports: Final = LastReportCache(state)
        self.group_annotations: Final = GroupAnnotations(state, self.report_event)
        name_servers = ";".join(record.addresses)
        self.decommissioner: Final = ShardDecommissioner(record.name, name_servers, settings.access, self.report_event)
        self._leases: Final[dict[int, LeaseFile]] = {}
        self._wake: Final = asyncio.Event()
        self._running_actions: Final[dict[tuple[int, int], asyncio.Task[None]]] = {}
        self._group: asyncio.TaskGroup | None = None
        self._actions: Final = LocalActionExecutor(self, self.report_event)
        self._ledgers: Mapping[int, Ledger] = {}

    def __repr__(self) -> str:
        return f"<Supervisor {self.record.name} rounds={self.rounds} members={len(self.members)}>"

    # -- for the action executor ---------------------------------------------------------------------------------------

    @property
    def spec(self) -> Spec:
        return self.settings.spec

    def lease(self, shard: int) -> LeaseFile:
        """Return the Lease file of a shard, which is read at its first use. Raises CliError when it is damaged."""
        if shard not in self._leases:
            self._leases[shard] = LeaseFile(self.state.lease(shard), now_ms)
        return self._leases[shard]

    def member(self, shard: int, number: int) -> LocalMember | None:
        return self.members.get((shard, number))

    def start(self, shard: int, number: int) -> None:
        """Start a member's processes unless its disk is lost, and create the member if it does not exist."""
        assert self._group is not None, "run comes first"
        member = self.member(shard, number)
        if member is None:
            record = self.record.member(shard, number)
            if record is None:
                record = self._make_record(shard, number)
                self.record.members.append(record)
            member = LocalMember(
                record, self.state, lambda: self.settings, now_ms, self.report_event, self.wake,
                has_sidecar=self._has_sidecars,
            )  # fmt: skip
            self.members[shard, number] = member
            for child in member.children:
                self.run_child(child)
        if not member.is_disk_lost:
            for child in member.children:
                child.start()

    def run_child(self, child: ServerProcess) -> None:
        """Run a child process in a task of this supervisor."""
        assert self._group is not None, "run comes first"
        self._group.create_task(child.run(), name=f"run {child.name}")

    async def remove(self, member: LocalMember) -> None:
        """Stop a member and remove it from the group. Its store is deleted only if ``spec.storage.retain`` is Never."""
        await asyncio.gather(*(child.stop() for child in member.children))
        await member.close()
        self.members.pop((member.record.shard, member.record.number), None)
        self.record.members.remove(member.record)
        member.free_buffers()
        await asyncio.to_thread(shutil.rmtree, self.state.sidecar(member.record.name), ignore_errors=True)
        if self.spec.storage.retain is Retain.NEVER:
            await asyncio.to_thread(shutil.rmtree, member.record.store, ignore_errors=True)
            shard = member.record.shard
            if not any(one.shard == shard for one in self.record.members):
                self._leases.pop(shard, None)
                self.state.lease(shard).unlink(missing_ok=True)

    def report_event(self, text: str) -> None:
        """Record and report an event. The same text is not repeated within ``REPEATED_EVENT_MS``."""
        now = time.time_ns() // 1_000_000
        if any(one.text == text and now - one.at_ms < REPEATED_EVENT_MS for one in self.events):
            return
        self.events.append(Event(now, text))
        self._report(text)

    def replace_settings(self, settings: MemberSettings) -> None:
        """Use new settings from now on: for the next start of each member, and for all decisions."""
        self.settings = settings

    def wake(self) -> None:
        """Start the next round without waiting for the interval."""
        self._wake.set()

    # -- the loop ------------------------------------------------------------------------------------------------------

    async def run(self, name_servers: list[ServerProcess]) -> None:
        """Supervise the group until cancelled. Raises CliError for a damaged file of its state."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            for child in name_servers:
                self.run_child(child)
                child.start()
            for record in list(self.record.members):
                self.start(record.shard, record.number)
            group.create_task(self._observe_forever(), name="observe and decide")

    async def _observe_forever(self) -> None:
        while True:
            self._wake.clear()
            is_busy = await self._reconcile_once() or any(member.is_starting for member in self.members.values())
            with suppress(TimeoutError):
                async with asyncio.timeout(BUSY_INTERVAL_S if is_busy else OBSERVE_INTERVAL_S):
                    await self._wake.wait()
            await asyncio.sleep(BUSY_INTERVAL_S)

    async def _reconcile_once(self) -> bool:
        """Run one round: observe, decide, start actions. Return whether actions were started."""
        await asyncio.gather(*(member.observe() for member in self.members.values()))
        self._last_reports.update(self.members.values())
        self.observed = self._observe_group()
        moment_ms = now_ms()
        self.decision = decide(self.spec, self.observed, moment_ms, self._ledgers)
        self._ledgers = {ledger.shard: ledger for ledger in self.decision.ledgers}
        is_busy = self._start_actions()
        await renew([(one.number, self.lease(one.number)) for one in self.observed.shards], self.member)
        for member in self.members.values():
            if member.is_sidecar_outdated and member.sidecar is not None:
                assert self._group is not None, "run comes first"
                self._group.create_task(member.sidecar.restart(), name=f"restart {member.sidecar.name}")
        self.rounds += 1
        self._on_observed()
        return is_busy

    def _start_actions(self) -> bool:
        """Start the decided actions. Return whether one was started that concerns members that answer.

        While actions for members that answer are running, no other such action of their shard is started. An order to a
        member that does not answer runs by itself: no other action waits for it, and that member gets no second order.
        """
        is_busy = False
        for shard in {action.shard for action in self.decision.actions}:
            new_actions = [one for one in self.decision.actions if one.shard == shard and self._is_new(one)]
            reachable = [one for one in new_actions if self._is_reachable(one)]
            if reachable and (shard, ANSWERING_MEMBERS) not in self._running_actions:
                is_busy = True
                self._start_task((shard, ANSWERING_MEMBERS), reachable)
            for one in new_actions:
                if isinstance(one, act.MemberAction) and not self._is_reachable(one):
                    self._start_task((shard, one.member), [one])
        return is_busy

    def _start_task(self, key: tuple[int, int], actions: Sequence[act.Action]) -> None:
        assert self._group is not None, "run comes first"
        task = self._group.create_task(self._actions.execute(actions), name=f"act on {key}")
        self._running_actions[key] = task
        task.add_done_callback(partial(self._action_finished, key))

    def _is_new(self, action: act.Action) -> bool:
        """Return whether an action must be started: not a wait, an automatic restart, or a member's second order."""
        if isinstance(action, act.Wait):
            return False
        if isinstance(action, act.MemberAction) and (action.shard, action.member) in self._running_actions:
            return False
        return not (isinstance(action, act.Start) and self.member(action.shard, action.member) is not None)

    def _is_reachable(self, action: act.Action) -> bool:
        """Return whether the member of an order answered in the last round. Other actions need no answer."""
        if not isinstance(action, act.OrderAction):
            return True
        member = self.member(action.shard, action.member)
        return member is not None and member.is_answering

    def _action_finished(self, key: tuple[int, int], _: asyncio.Task[None]) -> None:
        self._running_actions.pop(key, None)
        self.wake()

    # -- observing -----------------------------------------------------------------------------------------------------

    def shard_now(self, shard: int, requested: GroupRequests | None = None) -> ObservedShard:
        """Return a shard as it was observed last, with the present annotations."""
        asked_ms = now_ms()
        requested = self.group_annotations.read() if requested is None else requested
        is_idle = all(one.report is None or one.report.role is not Role.MASTER for one in self.members.values())
        single_promotion = SINGLE_BROKER_PROMOTION if self._is_single and is_idle else None
        return ObservedShard(
            number=shard,
            lease=self.lease(shard).observed,
            members=tuple(self.members[key].to_observed(asked_ms) for key in sorted(self.members) if key[0] == shard),
            last_report=self._last_reports.get(shard),
            request=single_promotion or requested.request(shard),
            restore="" if single_promotion is None else single_promotion.id,
            is_fenced=shard in requested.fenced_shards,
            is_empty=self.is_shard_empty(shard) if shard >= self.spec.shards else None,
            replace_disks=tuple(number for one, number in requested.lost_disks if one == shard),
        )

    def masters(self) -> dict[int, AnsweringMaster]:
        """Return the masters that answer, by shard. Of two that claim a shard it is the one of the newer term."""
        found: dict[int, AnsweringMaster] = {}
        for (shard, _), member in sorted(self.members.items()):
            report = member.report
            if member.is_answering and report is not None and report.role is Role.MASTER and report.wrote is not None:
                address = join_address(self.record.host, member.record.port)
                master = AnsweringMaster(MasterTerm(address, report.identity, report.epoch), report.wrote)
                if shard not in found or found[shard].term.epoch < report.epoch:
                    found[shard] = master
        return found

    def is_shard_empty(self, shard: int) -> bool:
        """Return whether a surplus shard was found empty, and has taken no message since."""
        master = self.masters().get(shard)
        return self.decommissioner.is_empty(shard, None if master is None else master.wrote)

    def _observe_group(self) -> ObservedGroup:
        requested = self.group_annotations.read()
        numbers = sorted({*range(self.spec.shards), *(shard for shard, _ in self.members)})
        return ObservedGroup(
            shards=tuple(self.shard_now(number, requested) for number in numbers),
            template=self.settings.template,
            is_paused=requested.is_paused,
            lease_duration_ms=LEASE_DURATION_MS,
        )

    # -- stopping ------------------------------------------------------------------------------------------------------

    async def stop(self) -> list[str]:
        """Stop sidecars, masters, then slaves, which so get the last messages. Return the names of killed processes."""
        masters: list[ServerProcess] = []
        others: list[ServerProcess] = []
        sidecars: list[ServerProcess] = []
        for member in self.members.values():
            is_master = member.report is not None and member.report.role is Role.MASTER
            (masters if is_master else others).append(member.broker)
            sidecars += [] if member.sidecar is None else [member.sidecar]
        killed = []
        for children in (sidecars, masters, others):
            results = await asyncio.gather(*(child.stop() for child in children))
            killed += [child.name for child, is_graceful in zip(children, results, strict=True) if not is_graceful]
        for member in self.members.values():
            await member.close()
            member.free_buffers()
        return killed
