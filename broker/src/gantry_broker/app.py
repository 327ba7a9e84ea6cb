"""One broker: its parts built, started and stopped in the right order.

    store open -> tables loaded -> services -> ports -> name servers          and the same backwards

Nothing is listened on before recovery is over, and no name server hears of us before the ports answer. A failed flush
ends the process with a non-zero code: what was acknowledged before it stands, nothing is acknowledged after it. A stop
has a bound, of which half belongs to the network: whoever hangs there must not cost the disk its time.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Final, final

from gantry_access import Guard
from gantry_broker.control.server import ControlServer
from gantry_broker.errors import StoreFailed
from gantry_broker.layers import build_core, build_replication, build_server, build_store
from gantry_broker.ports import Clock, Disk
from gantry_broker.registry.outside import OutsideAddresses
from gantry_broker.registry.registration import BrokerIdentity, Registration
from gantry_broker.server.admin import topic_handlers
from gantry_broker.server.admin.account_handlers import AccountHandlers
from gantry_broker.server.admin.broker_handlers import BrokerHandlers
from gantry_broker.server.admin.periodic_tasks import PeriodicTasks
from gantry_broker.server.admin.retention import Retention
from gantry_broker.server.admin.scrubber import Scrubber
from gantry_broker.server.admin.status import ServerFacts, StatusPublisher
from gantry_broker.server.admin.status_thread import OpenPage
from gantry_broker.server.admin.unsupported import unsupported_table
from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.handlers import HandlerTable, handlers_in, handlers_of, join_tables
from gantry_broker.server.core.live_settings import SettingsFile
from gantry_broker.server.core.stopping import StopTimeout, finish_within
from gantry_broker.server.core.tls import BrokerTls
from gantry_broker.server.delay.service import DelayService
from gantry_broker.server.groups import client_handlers, group_handlers, members, offset_handlers
from gantry_broker.server.groups.members import ConsumerCalls
from gantry_broker.server.groups.resets import ResetHandlers
from gantry_broker.server.pull import queries
from gantry_broker.server.pull.handlers import PullHandlers
from gantry_broker.server.pull.visibility import Visibility
from gantry_broker.server.roles.handlers import ReplicationHandlers
from gantry_broker.server.roles.replication import Replication
from gantry_broker.server.roles.role_orders import RoleOrders
from gantry_broker.server.roles.roles import Roles
from gantry_broker.server.roles.stored_tables import StoredTables
from gantry_broker.server.send import send_back
from gantry_broker.server.send.ack_gate import AckGate
from gantry_broker.server.send.flow_control import FlowControl
from gantry_broker.server.send.handlers import SendHandlers
from gantry_broker.server.send.reply import ReplyHandlers
from gantry_broker.server.send.send_path import SendPath
from gantry_broker.server.service import FAST_PORT_REFUSES, BrokerService
from gantry_broker.server.transactions.handlers import TransactionHandlers
from gantry_broker.server.transactions.service import Transactions
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.consume_queue import ConsumeQueue
from gantry_broker.store.message_store import MessageStore
from gantry_broker.store.opening import AbortMarker
from gantry_remoting import Connection, Listener
from gantry_remoting.deferred_answers import DeferredAnswers
from gantry_status import Phase, Role, SlaveStatus
from gantry_status.orders import HaRole
from gantry_wire.limits import WireLimits

log = logging.getLogger(__name__)

SLAVES_MAX: Final = 16
"""Of a status page."""

_ROLES: Final = {
    HaRole.UNASSIGNED: Role.UNASSIGNED,
    HaRole.COMPARING: Role.UNASSIGNED,
    HaRole.MASTER: Role.MASTER,
    HaRole.SLAVE: Role.SLAVE,
}
LAST_ACKS_S: Final = 3.0
"""How long a stop waits for slaves."""


@final
class Broker:
    """A broker in this process. Everything but the store's helper threads belongs to the event loop.

    The objects of its layers are there from the moment when ``start`` has built them.
    """

    settings_file: SettingsFile
    store: MessageStore
    guard: Guard | None
    core: BrokerCore
    delay: DelayService
    transactions: Transactions
    flow: FlowControl
    retention: Retention
    scrubber: Scrubber
    replication: Replication
    roles: Roles
    control: ControlServer
    orders: RoleOrders
    ack_gate: AckGate
    path: SendPath
    sends: SendHandlers
    pulls: PullHandlers
    visibility: Visibility
    registration: Registration
    outside: OutsideAddresses
    tables: StoredTables
    periodic_tasks: PeriodicTasks

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        disk: Disk,
        clock: Clock,
        open_page: OpenPage | None = None,
        takes_orders: bool = False,
        insisted: Collection[str] = (),
    ) -> None:
        """Without ``open_page`` there is no status page, without ``takes_orders`` no control socket.

        ``insisted`` are settings that what was changed at run time, before this start, does not change.
        """
        self.settings = settings
        self._insisted: Final = insisted
        self._takes_orders = takes_orders
        self._disk = disk
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._failed: asyncio.Future[None] = self._loop.create_future()
        self._tasks: list[asyncio.Task[None]] = []
        self._listeners: list[Listener] = []
        self._services: list[BrokerService] = []
        self.registered_as: int | None = None
        self._is_open = False
        self._progress: Callable[[int, int], None] = lambda done, total: None
        self.status = StatusPublisher(settings.status_page, settings.broker_name, open_page=open_page)
        self.tls = BrokerTls(settings)

    def __repr__(self) -> str:
        return f"<Broker {self.settings.broker_name} {self.settings.address} {'open' if self._is_open else 'closed'}>"

    # ------- life

    async def start(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Recover, listen, register. Raises what the store raises, and OSError for a port that is taken.

        ``progress`` is called by the thread that recovers; what it raises ends the start.
        """
        self._progress = progress or self._progress
        self.status.start(self._task_ended)
        try:
            self._build()
            await self.tls.start()
            await self._open_store()
        except BaseException as error:
            await self.tls.close()
            await self.status.finish(Phase.FAILED, f"cannot start: {error}")
            raise
        self.pulls.hold.start()
        self._tasks = [
            asyncio.ensure_future(self.delay.run()),
            asyncio.ensure_future(self.transactions.run()),
            asyncio.ensure_future(self.retention.run()),
            *(asyncio.ensure_future(one) for one in self.periodic_tasks.runs()),
            *([asyncio.ensure_future(self.scrubber.run())] if self.scrubber.is_on else []),
            *([] if self.guard is None else [asyncio.ensure_future(self.guard.file.watch())]),
        ]
        for task in self._tasks:
            task.add_done_callback(self._task_ended)
        self._is_open = True
        self.status.enter(Phase.SERVING)
        try:
            await self.replication.start()
            await self.outside.start()
            self.settings_file.start()
            await self.roles.begin(self._report)
            self.registration.start()
            if self._takes_orders:
                await self.control.start()
        except BaseException as error:
            await self.status.finish(Phase.FAILED, f"cannot start: {error}")
            await self.close()
            raise

    async def _open_store(self) -> None:
        """Recover, load the tables, listen. After an error nothing is open."""
        is_hidden = self.settings.ha.is_waited_for
        report = self._report = await asyncio.to_thread(
            self.store.open, self._recovering, on_locked=self._locked, is_tail_hidden=is_hidden
        )
        log.info(
            "the store is open",
            extra={
                "is_clean": report.is_clean,
                "read_from": report.start,
                "end": report.end,
                "records": report.records,
                "cut_bytes": report.cut_bytes,
            },
        )
        await asyncio.to_thread(self.roles.completeness.started, report, self.store.pools.status)
        self.status.publish_store(self.store, lambda: self.replication.confirmed)
        self.visibility.resume()
        self.core.gate.close("this broker starts")
        try:
            self.tables.load(is_clean=report.is_clean and report.end > 0)
            if not report.is_clean:
                self.core.locks.forget_holders()
            self.core.stats.start_at(self.store.log.wrote)
            await self.retention.start()
            await self._listen()
        except BaseException:
            for listener in self._listeners:
                await listener.close()
            await self.core.persistence.finish()  # and no more: a table that could not be read must stay as it is
            await asyncio.to_thread(self.store.close)
            raise
        self.status.publish_server(self._server_facts)

    def _locked(self) -> None:
        """The store's directory is ours. Called by the thread that recovers."""
        self.status.opened()
        self.roles.load()

    def _recovering(self, done: int, total: int) -> None:
        """Called by the thread that recovers."""
        self.status.recovering(done, total)
        self._progress(done, total)

    async def failed(self) -> None:
        """Wait until the broker cannot go on; raises why."""
        await asyncio.shield(self._failed)

    async def give_up(self, error: BaseException) -> None:
        """The store has failed: say so, where somebody looks, and touch nothing more."""
        await self.status.finish(Phase.FAILED, str(error))

    async def close(self) -> bool:
        """Stop: out of the routes first, then the ports, then the disk. Whether the store is left clean.

        Raises ``StopTimeout`` when `shutdownTimeout` is over first. Then the store stays as after a crash.
        """
        if not self._is_open:
            return True
        self._is_open = False
        self.status.enter(Phase.DRAINING)
        timeout_s = self.settings.shutdown_timeout_ms / 1000
        end = self._loop.time() + timeout_s
        leaving = asyncio.ensure_future(self._leave())
        # Never cancelled: a table that is being written must not be written by a second thread.
        await asyncio.wait([leaving], timeout=timeout_s / 2)
        if leaving.done():
            leaving.result()
        else:
            log.warning("stopping: somebody does not let go, and is left behind", extra={"waited_s": timeout_s / 2})
        try:
            await self._answer(end)
            self.flow.stop()
            self.core.stats.refusals.close()
            self.visibility.suspend()
            self.ack_gate.stop()
            self.store.on_appended.clear()  # nobody is there to be told; closing the store shows what was held back
            await self._save(end)
        except BaseException as error:
            await self.status.finish(Phase.FAILED, f"cannot stop cleanly: {error}")
            raise
        is_clean = not await asyncio.to_thread(AbortMarker(self._disk, self.settings.store_path).is_present)
        await self.status.finish(*(Phase.STOPPED,) if is_clean else (Phase.FAILED, "the store was not left clean"))
        return is_clean

    async def _leave(self) -> None:
        """Out of the routes, and let requests under way come to their end."""
        await self.tls.close()
        await self.control.close()
        await self.roles.close()
        await self.outside.close()
        await self.settings_file.close()
        await self.registration.close()
        self.pulls.hold.stop()
        for service in self._services:
            await service.drain()
        await self.replication.slave.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        await self.retention.close()

    async def _answer(self, end: float) -> None:
        """Everything to the disk until loop time ``end``, answers to whoever waits for that, and the ports closed."""
        with suppress(StoreFailed):
            # Before the tables are written: none may say that a message was delivered which is not on the disk.
            await finish_within(self.store.flush, self.store.log, end - self._loop.time())
        self.visibility.advance()
        await self._wait_for_slaves(end)
        await self.replication.close()
        for listener in self._listeners:
            await listener.close()

    async def _wait_for_slaves(self, end: float) -> None:
        """Let slaves have what was taken, so that they, and the next start, are sure of it. Never for ever."""
        until = min(end, self._loop.time() + LAST_ACKS_S)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                while self.replication.master.is_leading and not self.replication.master.are_slaves_level:
                    await self.replication.master.moves()
        self.visibility.advance()

    async def _save(self, end: float) -> None:
        """Tables and log to the disk until loop time ``end``, side by side."""
        tables = asyncio.ensure_future(self.core.persistence.close())
        await finish_within(self.store.close, self.store.log, end - self._loop.time())
        await asyncio.wait([tables], timeout=max(0.0, end - self._loop.time()))
        if not tables.done():
            raise StopTimeout("the log is on the disk, but the tables could not be written in time")
        tables.result()

    def _server_facts(self) -> ServerFacts:
        disk = self.retention.status
        return ServerFacts(
            connections=self._connections(),
            queues=len(self.store.queues),
            parked_sends=self.ack_gate.count,
            refused_requests=tuple(self.core.stats.refusals.counts.values()),
            disk_total_bytes=disk.total or None,
            disk_used_bytes=disk.used if disk.total else None,
            role=_ROLES[self.roles.role],
            slaves=self._slave_facts(),
            certificate_ends_at=self.tls.expires_at,
            queues_rebuilding=self.store.repair.queues.queues_waiting,
            queue_units_rebuilt=self.store.repair.queues.units_rebuilt,
            index_rebuilds=self.store.repair.index_rebuilds,
            integrity=self.scrubber.add_to(self.store.guard.damage.integrity),
            is_refusing_sends=not self.store.is_writable or disk.is_refusing or self.core.gate.is_refusing_sends,
        )

    def _slave_facts(self) -> tuple[SlaveStatus, ...]:
        boot_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        now = self._loop.time()
        return tuple(
            SlaveStatus(
                slave_id=slave.broker_id,
                received=max(slave.received, 0),
                flushed=max(slave.flushed, 0),
                last_seen_boottime_ns=boot_ns - int((now - slave.acked_at) * 1e9),
            )
            for slave in list(self.replication.acks)[:SLAVES_MAX]
        )

    @property
    def port(self) -> int:
        return self._listeners[0].port

    # ------- building

    def _build(self) -> None:
        """Build the layers, from the store upwards. Nothing runs yet."""
        stored = build_store(self, self.settings, disk=self._disk, clock=self._clock, insisted=self._insisted)
        self.settings, self.settings_file = stored.live.now, stored.settings_file
        self.store, self.guard = stored.store, stored.guard
        shared = build_core(self, stored, disk=self._disk, clock=self._clock, loop=self._loop)
        self.core, self.delay, self.transactions = shared.core, shared.delay, shared.transactions
        self.flow, self.retention, self.scrubber = shared.flow, shared.retention, shared.scrubber
        followed = build_replication(self, stored, shared, disk=self._disk)
        self.replication, self.roles, self.control = followed.replication, followed.roles, followed.control
        self.orders = followed.orders
        served = build_server(self, stored, shared, followed, loop=self._loop)
        self.ack_gate, self.path, self.sends, self.pulls = served.ack_gate, served.path, served.sends, served.pulls
        self.visibility, self.registration, self.outside = served.visibility, served.registration, served.outside
        self.tables, self.periodic_tasks = served.tables, served.periodic_tasks

    @property
    def codes(self) -> frozenset[int]:
        """Of requests that are answered with something else than 3; none before the ports are open."""
        return frozenset[int]().union(*(service.codes for service in self._services))

    def _handlers(self) -> HandlerTable:
        core = self.core
        calls = ConsumerCalls(core)
        modules = (client_handlers, group_handlers, offset_handlers, queries, topic_handlers)
        objects = (
            self.pulls, self.retention,
            ResetHandlers(core, calls, self.pulls.hold.mark),
            TransactionHandlers(core, self.ack_gate, self.transactions),
            ReplyHandlers(core, self.sends, self.ack_gate),
            BrokerHandlers(
                core, self.delay, self.pulls.hold, self._connections, ports=self._listeners,
                certificate_ends_at=lambda: self.tls.expires_at,
            ),
            ReplicationHandlers(core, self.roles, self.replication),
            AccountHandlers(self.guard),
        )  # fmt: skip
        return join_tables(
            unsupported_table(core.stats.refusals),
            handlers_in(members, calls),
            handlers_in(send_back, self.sends),
            *(handlers_in(module, core) for module in modules),
            *(handlers_of(one) for one in objects),
        )

    async def _listen(self) -> None:
        settings = self.settings
        table = self._handlers()
        ports = [(settings.listen_port, frozenset[int]())]
        if settings.fast_listen_port is not None:
            ports.append((settings.fast_listen_port, frozenset(int(code) for code in FAST_PORT_REFUSES)))
        for port, refuses in ports:
            port_settings = settings.listener(port)
            service = BrokerService(
                self.path,
                self.sends,
                table,
                WireLimits(frame_bytes_max=settings.frame_bytes_max),
                self.core.gate,
                self.core.stats.refusals,
                refuses=refuses,
                disconnected=self._disconnected,
                settle=self.visibility.show,
                guard=self.guard,
                answers=DeferredAnswers(port_settings),
            )
            listener = Listener(service, port_settings, certificates=self.tls.clients)
            await listener.start()
            self._services.append(service)
            self._listeners.append(listener)

    def _connections(self) -> int:
        return sum(len(listener.connections) for listener in self._listeners)

    # ------- events

    def settings_changed(self, settings: BrokerSettings) -> None:
        """Who copied what it needs when it was built gets it again; everybody else asks ``core.settings``."""
        self.settings = settings
        self.core.groups.allow_auto_create(settings.auto_create_groups)
        self.core.offsets.keep_resets(settings.is_reset_kept)
        if settings.auto_create_topics != self.core.topics.is_auto_creating:
            self.core.topics.allow_auto_create(settings.auto_create_topics, settings.default_topic_queues)
        self.flow.limit(wait_ms_max=settings.wait_in_send_queue_ms, append_ms_max=settings.page_cache_busy_ms)
        self.ack_gate.limit(sends_max=settings.send_queue_capacity)
        self.path.limit(body_bytes_max=settings.message_bytes_max)
        for listener in self._listeners:
            listener.first_frame_bytes_max = settings.first_frame_bytes_max
        self.pulls.hold.limit(
            held_max=settings.held_pulls_max, held_per_connection_max=settings.held_pulls_per_connection_max
        )

    def topic_changed(self, topic: str) -> None:
        self.core.routes.forget(topic)
        self.core.persistence.mark("topics", now=True)
        self.registration.changed()

    def mark_ordered(self, topics: Collection[str]) -> None:
        """What a name server has in its table of order topics is ordered here, too, as in RocketMQ."""
        if self.core.gate.sends is None:
            self.core.topics.mark_ordered(topics)

    def may_notify(self, group: str) -> bool:
        """Whether members of a group are told of changes: `notifyConsumerIdsChangedEnable` of the group."""
        config = self.core.groups.all.get(group)
        return config is None or config.notify_consumer_ids_changed_enable

    def group_changed(self, group: str) -> None:
        if group and group not in self.core.groups.all:
            self.core.statistics.forget_group(group)
        self.core.persistence.mark("subscriptionGroup", now=True)

    def appended(self, queues: Iterable[ConsumeQueue]) -> None:
        self.pulls.hold.mark((queue.topic, queue.queue_id) for queue in queues)

    def _disconnected(self, connection: Connection) -> None:
        self.pulls.hold.forget(connection)
        self.core.clients.disconnected(connection)

    def is_commit_awaited(self) -> bool:
        """Whether consumers wait for what is committed; or a master does.

        A slave's master waits for every ack, and a slave with an anonymous buffer acknowledges what is committed.
        """
        return self.pulls.hold.count > 0 or self.roles.role is HaRole.SLAVE

    def store_failed(self, error: Exception) -> None:
        """The store cannot go on. May be called from its threads."""
        self._loop.call_soon_threadsafe(self._fail, error)

    def _fail(self, error: BaseException) -> None:
        if not self._failed.done():
            self._failed.set_exception(error)
            self._failed.exception()  # somebody may be waiting in `failed`; if nobody is, it was logged where it began

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            log.critical("a background task failed", exc_info=task.exception())
            self._fail(task.exception() or RuntimeError("a background task ended"))

    # ------- changing roles

    def append_pass(self) -> None:
        self.path.flush()

    def forget_waiting(self) -> None:
        self.ack_gate.stop()

    def close_clients(self, reason: str) -> None:
        for listener in self._listeners:
            for connection in tuple(listener.connections):
                connection.close(reason)

    def routes_changed(self) -> None:
        self.registration.changed()

    def register(self, broker_id: int | None) -> None:
        self.registered_as = broker_id
        if broker_id is None:
            self.registration.become(None)
            return
        settings = self.settings
        self.registration.become(
            BrokerIdentity(
                settings.cluster_name,
                settings.broker_name,
                settings.address if broker_id else settings.master_address,
                settings.ha_address,
                broker_id,
                self.outside.of(broker_id),
            )
        )

    def clamp_offsets(self) -> None:
        self.tables.begin_epoch()

    def damage_resolved(self) -> None:
        """Resume waiting pulls and slaves: a damaged range was healed, or its waiting time is over."""
        self.pulls.hold.wake_all()
        self.replication.master.server.appended()

    async def standstill(self, change: Callable[[], None]) -> None:
        """Run ``change`` in a thread while nobody uses the store: clients are sent away, and nothing is answered."""
        gate, reason = self.core.gate, "its log is being changed"
        self.path.flush()
        try:
            with gate.closed(reason):
                self.close_clients(reason)
                async with self.retention.paused():
                    with gate.store_lent(), self.visibility.suspended():
                        await _in_thread(change)
        finally:
            self.core.routes.forget_all()
        self.visibility.advance()


async def _in_thread(change: Callable[[], None]) -> None:
    """Run ``change`` in a thread, to its end even if this is cancelled: a thread cannot be stopped."""
    changing = asyncio.ensure_future(asyncio.to_thread(change))
    try:
        await asyncio.shield(changing)
    except asyncio.CancelledError:
        await asyncio.wait([changing])
        raise
