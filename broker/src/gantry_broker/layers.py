"""The layers of a broker, each built by one function from the layers below it: store, core, replication, server.

An object gets its collaborators in its constructor. Objects of a higher layer do not exist yet when a lower one is
built: they are reached through the ``Host``, which has all layers before anything runs.
"""

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from gantry_access import AccountFile, AccountStore, Guard, OwnAccount
from gantry_broker.control.server import ControlServer
from gantry_broker.external_addresses import ExternalAddresses
from gantry_broker.ha.role_files import PromiseFile, RoleFile
from gantry_broker.listeners import BrokerListeners
from gantry_broker.ports import Clock, Disk
from gantry_broker.registration import Registration
from gantry_broker.server.admin import topic_handlers
from gantry_broker.server.admin.account_changes import AccountChangeHandlers
from gantry_broker.server.admin.account_handlers import AccountHandlers
from gantry_broker.server.admin.broker_handlers import BrokerHandlers
from gantry_broker.server.admin.periodic_tasks import PeriodicTasks
from gantry_broker.server.admin.retention import Retention
from gantry_broker.server.admin.scrubber import Scrubber
from gantry_broker.server.admin.unsupported import unsupported_table
from gantry_broker.server.archive.link import ArchiveLink
from gantry_broker.server.archive.reads import ArchiveReads
from gantry_broker.server.core.access import (
    load_accounts,
    load_own_account,
    make_guard,
    make_half_message_check,
)
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
from gantry_broker.server.core.request_modes import RequestModes
from gantry_broker.server.core.send_routes import SendRoutes
from gantry_broker.server.core.stats import BrokerStats
from gantry_broker.server.core.tls import BrokerTls
from gantry_broker.server.core.topic_statistics import TopicStatistics
from gantry_broker.server.core.topics import TopicTable, published_topics
from gantry_broker.server.delay.service import DelayService
from gantry_broker.server.groups import group_handlers, members, offset_handlers
from gantry_broker.server.groups.members import ConsumerCalls
from gantry_broker.server.groups.resets import ResetHandlers
from gantry_broker.server.pop.acks import PopAcks
from gantry_broker.server.pop.handlers import PopHandlers
from gantry_broker.server.pop.modes import ModeHandlers
from gantry_broker.server.pop.order import OrderedQueues
from gantry_broker.server.pop.service import Pops
from gantry_broker.server.pull import queries
from gantry_broker.server.pull.handlers import PullHandlers
from gantry_broker.server.pull.visibility import Visibility
from gantry_broker.server.roles.backup_point import BackupPointFile
from gantry_broker.server.roles.handlers import ReplicationHandlers, broker_suggester, slave_finder
from gantry_broker.server.roles.replication import Replication
from gantry_broker.server.roles.role_host import Host as RolesHost
from gantry_broker.server.roles.role_orders import RoleOrders
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
from gantry_broker.server.timers.recalls import RecallHandlers
from gantry_broker.server.timers.service import TimerService
from gantry_broker.server.timers.state_handlers import TimerStateHandlers
from gantry_broker.server.transactions.handlers import TransactionHandlers
from gantry_broker.server.transactions.service import Transactions
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.config_file import ConfigFile
from gantry_broker.store.consume_queue import ConsumeQueue
from gantry_broker.store.data_completeness import DataCompleteness
from gantry_broker.store.existing_sizes import with_existing_file_sizes
from gantry_broker.store.message_store import MessageStore
from gantry_status.orders import HaRole
from gantry_wire.limits import WireLimits
from gantry_wire.message import encode_host


class Host(RolesHost, Protocol):
    """The broker: receives the layers' events, and gives them access to the layers above."""

    replication: Replication
    roles: Roles
    visibility: Visibility
    pops: Pops
    registered_id: int | None
    """The broker id under which it is registered; None if it is not."""

    def on_store_failed(self, error: Exception) -> None:
        """End the process, because the store has failed permanently. May be called from the store's threads."""

    def is_commit_awaited(self) -> bool:
        """Return whether consumers, or a master, wait for the commit of the log."""

    def on_appended(self, queues: Iterable[ConsumeQueue]) -> None:
        """Wake pulls of queues that have new messages for consumers."""

    def on_damage_resolved(self) -> None:
        """Resume requests that waited for a damaged range, which was repaired or has timed out."""

    def on_settings_changed(self, settings: BrokerSettings) -> None:
        """Apply settings that were changed at run time."""

    def on_topic_changed(self, topic: str) -> None:
        """Save and publish topics after one was created, changed or deleted."""

    def on_group_changed(self, group: str) -> None:
        """Save groups after one was created, changed or deleted."""

    def may_notify(self, group: str) -> bool:
        """Return whether consumers of a group are notified of changes."""

    def mark_ordered(self, topics: Collection[str]) -> None:
        """Mark the topics as ordered that a name server lists as order topics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLayer:
    """The store, the origin of its settings, and its access control."""

    live: LiveSettings
    """The settings, and the changes to them while the broker runs."""

    settings_file: SettingsFile
    """The file of ``liveSettingsPath``, which changes settings."""

    store: MessageStore
    store_host: bytes
    """This broker's address as records hold it."""

    accounts: AccountFile | AccountStore | None
    """The accounts of clients; None without access control."""

    guard: Guard | None
    """Checks requests against the accounts; None without access control."""

    account: OwnAccount | None
    """Signs this broker's own requests; None without credentials."""

    tls: BrokerTls


def build_store(
    host: Host, settings: BrokerSettings, *, disk: Disk, clock: Clock, command_line_keys: Collection[str]
) -> StoreLayer:
    """Build the current settings, and a store that is not open yet."""
    store_settings = with_existing_file_sizes(settings.store_path, settings.store, settings.given, disk)
    file = ConfigFile(disk, settings.store_path, LIVE_FILE)
    live = LiveSettings(
        replace(settings, store=store_settings), file, clock.wall_ms, command_line_keys=command_line_keys
    )
    settings_file = SettingsFile(settings.live_settings_path, live)
    live.load()
    settings_file.load()
    settings = live.current
    live.subscribe(host.on_settings_changed)
    store_host = encode_host(settings.master_ip or settings.broker_ip, settings.listen_port)
    store = MessageStore(
        settings.store_path, settings.store, disk=disk, clock=clock, store_host=store_host,
        on_fatal=host.on_store_failed, on_progress=lambda: host.visibility.schedule_advance(),
        is_awaited=host.is_commit_awaited, memory_scope=settings.memory_scope,
    )  # fmt: skip
    store.on_appended.append(host.on_appended)
    store.guard.damage.on_resolved.append(host.on_damage_resolved)
    accounts = load_accounts(settings.access)
    guard = make_guard(settings.access, accounts, store, clock, cluster=settings.cluster_name)
    return StoreLayer(
        live=live, settings_file=settings_file, store=store, store_host=store_host, accounts=accounts, guard=guard,
        account=load_own_account(settings.access), tls=BrokerTls(settings),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreLayer:
    """The objects that all request handlers share, and the background services."""

    core: BrokerCore
    archive: ArchiveLink | None
    """The link to the archive server; None without an archive."""

    delay: DelayService
    timers: TimerService
    transactions: Transactions
    ordered: OrderedQueues
    """The queues that groups consume in order by pop."""

    flow: FlowControl
    """Refuses sends as busy, also while the disk is full."""

    retention: Retention
    scrubber: Scrubber
    table_sync: TableSync


def build_core(
    host: Host, store_layer: StoreLayer, *, disk: Disk, clock: Clock, loop: asyncio.AbstractEventLoop
) -> CoreLayer:
    """Build tables and services on the store."""
    settings, store, guard = store_layer.live.current, store_layer.store, store_layer.guard
    topics = TopicTable(clock, host.on_topic_changed, auto_create=settings.auto_create_topics)
    archive = None
    if settings.archive.place:
        archive = ArchiveLink(
            settings.archive, store, settings.broker_name, topics.is_read_by_archive, lambda: core.gate.is_store_lent
        )
    core = BrokerCore(
        live=store_layer.live,
        clock=clock,
        disk=disk,
        store=store,
        store_host=store_layer.store_host,
        topics=topics,
        groups=GroupTable(clock, host.on_group_changed, auto_create=settings.auto_create_groups),
        accounts=store_layer.accounts if isinstance(store_layer.accounts, AccountStore) else None,
        offsets=ConsumerOffsets(clock),
        clients=ClientRegistry(clock, may_notify=host.may_notify),
        locks=QueueLocks(clock),
        request_modes=RequestModes(),
        send_routes=SendRoutes(
            store, store_host=store_layer.store_host, cluster=settings.cluster_name, region=settings.region, clock=clock
        ),
        stats=BrokerStats(),
        topic_statistics=TopicStatistics(clock, settings.cluster_name, lambda: store.queues.tallies, topics.is_system),
        persistence=Persistence(lambda name: table_sync.mark_changed(name), lambda name: note_written(name)),
        gate=Gate(),
        wait_until_published=lambda: host.registration.wait_until_published(),
        is_slave=lambda: host.roles.role is HaRole.SLAVE,
        is_sure_master=lambda: host.replication.master.can_acknowledge,
        oldest_unacked=lambda: host.pops.oldest_unacked(),
        archive=archive,
    )

    def note_written(name: str) -> None:
        table_sync.note_written(name)
        host.replication.slave.report_store_progress()  # an ack may have waited for the file

    delay = DelayService(core)
    timers = TimerService(core)
    table_sync = TableSync(core, delay, timers, lambda: host.replication.master.schedule_urgent_tables())
    flow = FlowControl(loop, wait_ms_max=settings.wait_in_send_queue_ms, append_ms_max=settings.page_cache_busy_ms)
    retention = Retention(core, delay, timers.roller, flow, archive)
    return CoreLayer(
        core=core,
        archive=archive,
        delay=delay,
        timers=timers,
        transactions=Transactions(core) if guard is None else Transactions(core, make_half_message_check(guard)),
        ordered=OrderedQueues(core.offsets.freed),
        flow=flow,
        retention=retention,
        scrubber=Scrubber(
            core, disk, retention.deletion_lock(), bytes_per_second=settings.store.scrub_bytes_per_second
        ),
        table_sync=table_sync,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationLayer:
    """Replication, roles and orders, and the path of sends, which wait for slaves."""

    replication: Replication
    send_path: SendPath
    tables: StoredTables
    """The tables in their files."""

    roles: Roles
    orders: RoleOrders
    control: ControlServer
    """The server of the control socket, over which orders arrive."""


def build_replication(
    host: Host, store_layer: StoreLayer, core_layer: CoreLayer, *, disk: Disk, loop: asyncio.AbstractEventLoop
) -> ReplicationLayer:
    """Build replication and roles on the store."""
    settings, store, core = store_layer.live.current, store_layer.store, core_layer.core
    promises = PromiseFile(disk, settings.store_path)
    replication = Replication(
        settings, store, core_layer.table_sync, promises, run_exclusively=host.run_exclusively,
        on_advanced=lambda: host.visibility.release_answers(), on_acks_fall=lambda: host.visibility.make_visible(),
        on_log_appended=lambda: host.visibility.make_visible_soon(), clock_ms=core.clock.boot_ms,
        account=store_layer.account, certificates=store_layer.tls.replication,
        pause_retention=core_layer.retention.deletion_lock,
    )  # fmt: skip
    send_path = build_send_path(store_layer, core_layer, replication, loop)
    tables = StoredTables(core, core_layer.delay, core_layer.timers, core_layer.ordered)
    roles = Roles(
        settings, store, replication, core.gate, host,
        send_path=send_path, tables=tables, promises=promises, role_file=RoleFile(disk, settings.store_path),
        completeness=DataCompleteness(
            disk, settings.store_path, core.clock.boot_id(), scope=settings.memory_scope,
            broker=f"{settings.cluster_name}/{settings.broker_name}",
        ),
    )  # fmt: skip
    backup_point = BackupPointFile(
        disk, settings.store_path, write_tables=core.persistence.write_all, wall_ms=core.clock.wall_ms
    )
    orders = RoleOrders(roles, backup_point)
    return ReplicationLayer(
        replication=replication,
        send_path=send_path,
        tables=tables,
        roles=roles,
        orders=orders,
        control=ControlServer(settings.control_path, orders),
    )


def build_send_path(
    store_layer: StoreLayer, core_layer: CoreLayer, replication: Replication, loop: asyncio.AbstractEventLoop
) -> SendPath:
    """Build the path of sends into the store, with the gate that holds their answers."""
    settings, store, guard, core = store_layer.live.current, store_layer.store, store_layer.guard, core_layer.core
    ack_gate = AckGate(
        store, replication.policy, core.stats, loop,
        flush_timeout_ms=settings.sync_flush_timeout_ms if settings.store.flush.is_sync else None,
        slave_timeout_ms=settings.ha.slave_timeout_ms, sends_max=settings.send_queue_capacity,
    )  # fmt: skip
    return SendPath(
        store, core.send_routes, core_layer.flow, core.stats,
        limits=WireLimits(frame_bytes_max=settings.frame_bytes_max), body_bytes_max=settings.message_bytes_max,
        loop=loop, gate=core.gate, ack_gate=ack_gate,
        signed_sends=None if guard is None else lambda send_path: SignedSends(guard, send_path, core.send_routes),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLayer:
    """The request handlers and ports, and the registration at name servers."""

    sends: SendHandlers
    pulls: PullHandlers
    pops: Pops
    visibility: Visibility
    listeners: BrokerListeners
    handlers: HandlerTable
    """The handlers of all requests except sends, by code."""

    registration: Registration
    external_addresses: ExternalAddresses
    periodic_tasks: PeriodicTasks


def build_server(
    host: Host,
    store_layer: StoreLayer,
    core_layer: CoreLayer,
    replication_layer: ReplicationLayer,
    *,
    loop: asyncio.AbstractEventLoop,
) -> ServerLayer:
    """Build sends, pulls, ports and registration."""
    settings, store, tls = store_layer.live.current, store_layer.store, store_layer.tls
    core, replication, roles, send_path = (
        core_layer.core,
        replication_layer.replication,
        replication_layer.roles,
        replication_layer.send_path,
    )
    sends = SendHandlers(core, send_path)
    archive = None
    if core_layer.archive is not None:
        archive = ArchiveReads(core_layer.archive, settings.archive, settings.broker_name, loop)
    pulls = PullHandlers(
        core, loop, archive,
        suggest_broker=broker_suggester(store_layer.live, store, replication, roles),
        find_slave=slave_finder(replication),
    )  # fmt: skip
    pops = Pops(core, core_layer.ordered, send_path.ack_gate, pulls.hold, loop)
    visibility = Visibility(loop, store, send_path.ack_gate, pulls.hold, replication.report_store_progress)
    listeners = BrokerListeners(core, send_path, sends, pulls, visibility, tls=tls, guard=store_layer.guard)
    registration = Registration(
        None, list(settings.name_servers),
        lambda: published_topics(
            core.topics.document(), roles.epoch, is_withdrawn=roles.is_withdrawn, is_hidden=roles.is_hidden
        ),
        period_ms=settings.register_period_ms, on_master=roles.follow_found_master, on_order_topics=host.mark_ordered,
        account=store_layer.account, tls=tls.name_server_context,
    )  # fmt: skip
    return ServerLayer(
        sends=sends,
        pulls=pulls,
        pops=pops,
        visibility=visibility,
        listeners=listeners,
        handlers=join_tables(
            collect_handlers(store_layer, core_layer, replication_layer, sends, pulls, pops, listeners),
            handlers_of(PopHandlers(core, pops, pulls.hold, loop)),
            handlers_of(PopAcks(core, pops)),
            handlers_of(ModeHandlers(core, registration.query_route, loop)),
        ),
        registration=registration,
        external_addresses=ExternalAddresses(settings.external_address_path, lambda: host.register(host.registered_id)),
        periodic_tasks=PeriodicTasks(core),
    )


def collect_handlers(
    store_layer: StoreLayer,
    core_layer: CoreLayer,
    replication_layer: ReplicationLayer,
    sends: SendHandlers,
    pulls: PullHandlers,
    pops: Pops,
    listeners: BrokerListeners,
) -> HandlerTable:
    """Return the handlers of all requests except sends. Raises ValueError for a request with two handlers."""
    core, ack_gate, tls = core_layer.core, replication_layer.send_path.ack_gate, store_layer.tls
    calls = ConsumerCalls(core)
    modules = (group_handlers, offset_handlers, queries, topic_handlers)
    objects = (
        pulls, core_layer.retention,
        ResetHandlers(core, calls, pulls.hold.mark_queues),
        TransactionHandlers(core, ack_gate, core_layer.transactions),
        RecallHandlers(core, core_layer.timers, ack_gate),
        TimerStateHandlers(core, core_layer.timers),
        ReplyHandlers(core, sends, ack_gate),
        BrokerHandlers(
            core, core_layer.delay, core_layer.timers, pops, pulls.hold, listeners.count_connections,
            ports=listeners.opened, certificate_ends_at=lambda: tls.expires_at,
        ),
        ReplicationHandlers(core, replication_layer.roles, replication_layer.replication),
        pulls.cold,
        AccountHandlers(store_layer.accounts, store_layer.guard),
        AccountChangeHandlers(core, store_layer.accounts, store_layer.guard, ack_gate),
    )  # fmt: skip
    return join_tables(
        unsupported_table(core.stats.refusals),
        handlers_in(members, calls),
        handlers_in(send_back, sends),
        *(handlers_in(module, core) for module in modules),
        *(handlers_of(one) for one in objects),
    )
