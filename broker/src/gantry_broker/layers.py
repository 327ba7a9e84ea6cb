"""The layers of a broker, each built by one function from those below it: store, core, replication, server.

An object gets its collaborators in its constructor. What belongs to a higher layer does not exist yet when a lower one
is built: it is reached through the ``Host``, which has all layers before anything runs.
"""

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from gantry_access import Guard, OwnAccount
from gantry_broker.control.server import ControlServer
from gantry_broker.ha.data_completeness import DataCompleteness
from gantry_broker.ha.role_files import PromiseFile, RoleFile
from gantry_broker.listeners import BrokerListeners
from gantry_broker.ports import Clock, Disk
from gantry_broker.registration import OutsideAddresses, Registration
from gantry_broker.server.admin import topic_handlers
from gantry_broker.server.admin.account_handlers import AccountHandlers
from gantry_broker.server.admin.broker_handlers import BrokerHandlers
from gantry_broker.server.admin.periodic_tasks import PeriodicTasks
from gantry_broker.server.admin.retention import Retention
from gantry_broker.server.admin.scrubber import Scrubber
from gantry_broker.server.admin.unsupported import unsupported_table
from gantry_broker.server.core.access import broker_guard, may_be_shown, own_account
from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.clients import ClientRegistry
from gantry_broker.server.core.gate import Gate
from gantry_broker.server.core.groups import GroupTable
from gantry_broker.server.core.handlers import HandlerTable, handlers_in, handlers_of, join_tables
from gantry_broker.server.core.live_settings import FILE as LIVE_FILE
from gantry_broker.server.core.live_settings import LiveSettings, SettingsFile
from gantry_broker.server.core.offsets import ConsumerOffsets
from gantry_broker.server.core.persist import Persistence
from gantry_broker.server.core.queue_locks import QueueLocks
from gantry_broker.server.core.send_routes import SendRoutes
from gantry_broker.server.core.statistics import Statistics
from gantry_broker.server.core.stats import BrokerStats
from gantry_broker.server.core.tls import BrokerTls
from gantry_broker.server.core.topics import TopicTable, published_topics
from gantry_broker.server.delay.service import DelayService
from gantry_broker.server.groups import group_handlers, members, offset_handlers
from gantry_broker.server.groups.members import ConsumerCalls
from gantry_broker.server.groups.resets import ResetHandlers
from gantry_broker.server.pull import queries
from gantry_broker.server.pull.handlers import PullHandlers
from gantry_broker.server.pull.visibility import Visibility
from gantry_broker.server.roles.handlers import ReplicationHandlers, broker_suggester
from gantry_broker.server.roles.replication import Replication
from gantry_broker.server.roles.role_orders import RoleOrders
from gantry_broker.server.roles.roles import Host as RolesHost
from gantry_broker.server.roles.roles import Roles
from gantry_broker.server.roles.stored_tables import StoredTables
from gantry_broker.server.roles.table_sync import TableSync
from gantry_broker.server.send import send_back
from gantry_broker.server.send.ack_gate import AckGate
from gantry_broker.server.send.flow_control import FlowControl
from gantry_broker.server.send.handlers import SendHandlers
from gantry_broker.server.send.reply import ReplyHandlers
from gantry_broker.server.send.send_path import SendPath
from gantry_broker.server.send.signed_sends import SignedSends
from gantry_broker.server.transactions.handlers import TransactionHandlers
from gantry_broker.server.transactions.service import Transactions
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.config_file import ConfigFile
from gantry_broker.store.consume_queue import ConsumeQueue
from gantry_broker.store.existing import settings_of_store
from gantry_broker.store.message_store import MessageStore
from gantry_status.orders import HaRole
from gantry_wire.limits import WireLimits
from gantry_wire.message import encode_host


class Host(RolesHost, Protocol):
    """The broker: where the layers report events, and where they find the layers above them."""

    replication: Replication
    roles: Roles
    visibility: Visibility
    registered_as: int | None

    def store_failed(self, error: Exception) -> None:
        """The store cannot go on. May be called from its threads."""

    def is_commit_awaited(self) -> bool:
        """Whether consumers, or a master, wait for what is committed."""

    def appended(self, queues: Iterable[ConsumeQueue]) -> None:
        """Queues have become longer for consumers."""

    def damage_resolved(self) -> None:
        """A damaged range was healed, or its waiting time is over."""

    def settings_changed(self, settings: BrokerSettings) -> None:
        """Settings were changed at run time."""

    def topic_changed(self, topic: str) -> None:
        """A topic was made, changed or deleted."""

    def group_changed(self, group: str) -> None:
        """A group was made, changed or deleted."""

    def may_notify(self, group: str) -> bool:
        """Whether members of a group are notified of changes."""

    def mark_ordered(self, topics: Collection[str]) -> None:
        """A name server knows these topics as ordered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLayer:
    """The store, what its settings come from, and who may use it."""

    live: LiveSettings
    settings_file: SettingsFile
    store: MessageStore
    store_host: bytes
    guard: Guard | None
    account: OwnAccount | None
    tls: BrokerTls


def build_store(
    host: Host, settings: BrokerSettings, *, disk: Disk, clock: Clock, insisted: Collection[str]
) -> StoreLayer:
    """The settings that hold now, and a store that is not open yet."""
    store_settings = settings_of_store(settings.store_path, settings.store, settings.given, disk)
    file = ConfigFile(disk, settings.store_path, LIVE_FILE)
    live = LiveSettings(replace(settings, store=store_settings), file, clock.wall_ms, insisted=insisted)
    settings_file = SettingsFile(settings.live_settings_path, live)
    live.load()
    settings_file.load()
    settings = live.now
    live.subscribe(host.settings_changed)
    store_host = encode_host(settings.master_ip or settings.broker_ip, settings.listen_port)
    store = MessageStore(
        settings.store_path, settings.store, disk=disk, clock=clock, store_host=store_host,
        on_fatal=host.store_failed, on_progress=lambda: host.visibility.progressed(),
        is_awaited=host.is_commit_awaited, memory_scope=settings.memory_scope,
    )  # fmt: skip
    store.on_appended.append(host.appended)
    store.guard.damage.on_resolved.append(host.damage_resolved)
    guard = broker_guard(settings.access, store, clock)
    return StoreLayer(
        live=live, settings_file=settings_file, store=store, store_host=store_host, guard=guard,
        account=own_account(settings.access), tls=BrokerTls(settings),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreLayer:
    """What all request handlers share, and the services that work by themselves."""

    core: BrokerCore
    delay: DelayService
    transactions: Transactions
    flow: FlowControl
    retention: Retention
    scrubber: Scrubber
    table_sync: TableSync


def build_core(
    host: Host, stored: StoreLayer, *, disk: Disk, clock: Clock, loop: asyncio.AbstractEventLoop
) -> CoreLayer:
    """Tables and services on the store."""
    settings, store, guard = stored.live.now, stored.store, stored.guard
    topics = TopicTable(clock, host.topic_changed, auto_create=settings.auto_create_topics)
    core = BrokerCore(
        live=stored.live,
        clock=clock,
        disk=disk,
        store=store,
        store_host=stored.store_host,
        topics=topics,
        groups=GroupTable(clock, host.group_changed, auto_create=settings.auto_create_groups),
        offsets=ConsumerOffsets(clock),
        clients=ClientRegistry(clock, may_notify=host.may_notify),
        locks=QueueLocks(clock),
        routes=SendRoutes(
            store, store_host=stored.store_host, cluster=settings.cluster_name, region=settings.region, clock=clock
        ),
        stats=BrokerStats(),
        statistics=Statistics(clock, settings.cluster_name, lambda: store.queues.tallies, topics.is_system),
        persistence=Persistence(lambda name: table_sync.changed(name)),
        gate=Gate(),
        published=lambda: host.registration.published(),
        is_slave=lambda: host.roles.role is HaRole.SLAVE,
        is_sure_master=lambda: host.replication.master.is_sure,
    )
    delay = DelayService(core)
    table_sync = TableSync(core, delay, lambda: host.replication.master.tables_changed())
    flow = FlowControl(loop, wait_ms_max=settings.wait_in_send_queue_ms, append_ms_max=settings.page_cache_busy_ms)
    retention = Retention(core, delay, flow)
    return CoreLayer(
        core=core,
        delay=delay,
        transactions=Transactions(core) if guard is None else Transactions(core, may_be_shown(guard)),
        flow=flow,
        retention=retention,
        scrubber=Scrubber(core, disk, retention.paused(), bytes_per_second=settings.store.scrub_bytes_per_second),
        table_sync=table_sync,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationLayer:
    """Replication and roles, and what waits for slaves."""

    replication: Replication
    path: SendPath
    tables: StoredTables
    roles: Roles
    orders: RoleOrders
    control: ControlServer


def build_replication(
    host: Host, stored: StoreLayer, shared: CoreLayer, *, disk: Disk, loop: asyncio.AbstractEventLoop
) -> ReplicationLayer:
    """Replication and roles of the store."""
    settings, store, core = stored.live.now, stored.store, shared.core
    promises = PromiseFile(disk, settings.store_path)
    replication = Replication(
        settings, store, shared.table_sync, promises, standstill=host.standstill,
        advanced=lambda: host.visibility.release_answers(), meanwhile=lambda: host.visibility.appended(),
        clock_ms=core.clock.boot_ms, account=stored.account, certificates=stored.tls.replication,
        quiet=shared.retention.paused,
    )  # fmt: skip
    path = build_send_path(stored, shared, replication, loop)
    tables = StoredTables(core, shared.delay)
    roles = Roles(
        settings, store, replication, core.gate, host,
        path=path, tables=tables, promises=promises, records=RoleFile(disk, settings.store_path),
        completeness=DataCompleteness(
            disk, settings.store_path, core.clock.boot_id(), scope=settings.memory_scope,
            broker=f"{settings.cluster_name}/{settings.broker_name}",
        ),
    )  # fmt: skip
    orders = RoleOrders(roles)
    return ReplicationLayer(
        replication=replication,
        path=path,
        tables=tables,
        roles=roles,
        orders=orders,
        control=ControlServer(settings.control_path, orders),
    )


def build_send_path(
    stored: StoreLayer, shared: CoreLayer, replication: Replication, loop: asyncio.AbstractEventLoop
) -> SendPath:
    """The way of sends into the store, with the gate that holds their answers."""
    settings, store, guard, core = stored.live.now, stored.store, stored.guard, shared.core
    ack_gate = AckGate(
        store, replication.policy, core.stats, loop,
        flush_timeout_ms=settings.sync_flush_timeout_ms if settings.store.flush.is_sync else None,
        slave_timeout_ms=settings.ha.slave_timeout_ms, sends_max=settings.send_queue_capacity,
    )  # fmt: skip
    return SendPath(
        store, core.routes, shared.flow, core.stats, limits=WireLimits(frame_bytes_max=settings.frame_bytes_max),
        body_bytes_max=settings.message_bytes_max, loop=loop, gate=core.gate, ack_gate=ack_gate,
        signed_sends=None if guard is None else lambda path: SignedSends(guard, path, core.routes).take,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLayer:
    """What answers requests, and what keeps name servers informed of this broker."""

    sends: SendHandlers
    pulls: PullHandlers
    visibility: Visibility
    listeners: BrokerListeners
    handlers: HandlerTable
    registration: Registration
    outside: OutsideAddresses
    periodic_tasks: PeriodicTasks


def build_server(
    host: Host, stored: StoreLayer, shared: CoreLayer, followed: ReplicationLayer, *, loop: asyncio.AbstractEventLoop
) -> ServerLayer:
    """Sends, pulls and registration."""
    settings, store, tls = stored.live.now, stored.store, stored.tls
    core, replication, roles, path = shared.core, followed.replication, followed.roles, followed.path
    sends = SendHandlers(core, path)
    pulls = PullHandlers(core, loop, suggest_broker=broker_suggester(stored.live, store, replication, roles))
    visibility = Visibility(loop, store, path.ack_gate, pulls.hold, replication.moved)
    listeners = BrokerListeners(core, path, sends, pulls.hold, visibility, tls=tls, guard=stored.guard)
    registration = Registration(
        None, list(settings.name_servers),
        lambda: published_topics(core.topics.document(), roles.epoch, is_withdrawn=roles.is_withdrawn),
        period_ms=settings.register_period_ms, on_master=roles.master_found, on_ordered=host.mark_ordered,
        account=stored.account, tls=tls.towards_name_servers,
    )  # fmt: skip
    return ServerLayer(
        sends=sends,
        pulls=pulls,
        visibility=visibility,
        listeners=listeners,
        handlers=collect_handlers(stored, shared, followed, sends, pulls, listeners),
        registration=registration,
        outside=OutsideAddresses(settings.outside_path, lambda: host.register(host.registered_as)),
        periodic_tasks=PeriodicTasks(core),
    )


def collect_handlers(
    stored: StoreLayer,
    shared: CoreLayer,
    followed: ReplicationLayer,
    sends: SendHandlers,
    pulls: PullHandlers,
    listeners: BrokerListeners,
) -> HandlerTable:
    """The handlers of all requests but sends. Raises ValueError for a request with two."""
    core, ack_gate, tls = shared.core, followed.path.ack_gate, stored.tls
    calls = ConsumerCalls(core)
    modules = (group_handlers, offset_handlers, queries, topic_handlers)
    objects = (
        pulls, shared.retention,
        ResetHandlers(core, calls, pulls.hold.mark),
        TransactionHandlers(core, ack_gate, shared.transactions),
        ReplyHandlers(core, sends, ack_gate),
        BrokerHandlers(
            core, shared.delay, pulls.hold, listeners.count_connections, ports=listeners.opened,
            certificate_ends_at=lambda: tls.expires_at,
        ),
        ReplicationHandlers(core, followed.roles, followed.replication),
        AccountHandlers(stored.guard),
    )  # fmt: skip
    return join_tables(
        unsupported_table(core.stats.refusals),
        handlers_in(members, calls),
        handlers_in(send_back, sends),
        *(handlers_in(module, core) for module in modules),
        *(handlers_of(one) for one in objects),
    )
