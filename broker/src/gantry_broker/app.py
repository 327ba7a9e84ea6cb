"""One broker: builds, starts and stops its parts in the right order.

    store open -> tables loaded -> ports -> services -> name servers          and the reverse to stop

No port is open before recovery is complete, and no name server knows the broker before its ports answer. A failed flush
ends the process with a non-zero code: messages that were acknowledged before it are kept, and nothing is acknowledged
after it. A stop has a timeout, of which the network gets half at most: a peer that hangs must not use up the time that
the disk needs.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Final, final

from gantry_access import AccountFile
from gantry_broker.errors import StoreFailed
from gantry_broker.layers import Host, build_core, build_replication, build_server, build_store
from gantry_broker.ports import Clock, Disk
from gantry_broker.registration import BrokerIdentity
from gantry_broker.server.admin.status import StatusPublisher, with_server_facts
from gantry_broker.server.admin.status_thread import OpenPage
from gantry_broker.server.core.persist import run_in_thread
from gantry_broker.server.core.stopping import StopTimeout, finish_within
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.consume_queue import ConsumeQueue
from gantry_broker.store.opening import AbortMarker
from gantry_broker.store.recovery_report import RecoveryReport
from gantry_status import Phase, Status
from gantry_status.orders import HaRole

log = logging.getLogger(__name__)

LAST_ACKS_TIMEOUT_S: Final = 3.0
"""How long a stop waits at most until slaves have acknowledged the whole log; less with a short `shutdownTimeout`."""


@final
class Broker(Host):
    """A broker in this process. Everything except the store's helper threads belongs to the event loop."""

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        disk: Disk,
        clock: Clock,
        open_page: OpenPage | None = None,
        has_control_socket: bool = False,
        command_line_keys: Collection[str] = (),
    ) -> None:
        """Build the layers, from the store upwards; nothing runs yet. Raises ``BrokerError`` for unusable files.

        Without ``open_page`` there is no status page. ``command_line_keys`` are settings that win over changes that
        were made at run time before this start.
        """
        self._has_control_socket: Final = has_control_socket
        self._disk: Final = disk
        self._loop: Final = asyncio.get_running_loop()
        self._failed: asyncio.Future[None] = self._loop.create_future()
        self._tasks: list[asyncio.Task[None]] = []
        self.registered_id: int | None = None
        self._is_open = False
        self._progress: Callable[[int, int], None] = lambda done, total: None
        self.status = StatusPublisher(settings.status_page, settings.broker_name, open_page=open_page)
        store_layer = build_store(self, settings, disk=disk, clock=clock, command_line_keys=command_line_keys)
        self.settings, self.settings_file = store_layer.live.current, store_layer.settings_file
        self.store, self.guard, self.tls = store_layer.store, store_layer.guard, store_layer.tls
        self._accounts: Final = store_layer.accounts
        core_layer = build_core(self, store_layer, disk=disk, clock=clock, loop=self._loop)
        self.core, self.delay, self.timers = core_layer.core, core_layer.delay, core_layer.timers
        self.transactions, self.archive = core_layer.transactions, core_layer.archive
        self.flow, self.retention, self.scrubber = core_layer.flow, core_layer.retention, core_layer.scrubber
        replication_layer = build_replication(self, store_layer, core_layer, disk=disk, loop=self._loop)
        self.replication, self.send_path, self.tables = (
            replication_layer.replication,
            replication_layer.send_path,
            replication_layer.tables,
        )
        self.roles, self.orders, self.control = (
            replication_layer.roles,
            replication_layer.orders,
            replication_layer.control,
        )
        server_layer = build_server(self, store_layer, core_layer, replication_layer, loop=self._loop)
        self.sends, self.pulls, self.visibility = server_layer.sends, server_layer.pulls, server_layer.visibility
        self.pops = server_layer.pops
        self.listeners, self.handlers, self.registration = (
            server_layer.listeners,
            server_layer.handlers,
            server_layer.registration,
        )
        self.external_addresses, self.periodic_tasks = server_layer.external_addresses, server_layer.periodic_tasks

    def __repr__(self) -> str:
        return f"<Broker {self.settings.broker_name} {self.settings.address} {'open' if self._is_open else 'closed'}>"

    # ------- start and stop

    async def start(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Recover, listen, register. Raises the store's errors, and OSError for a port that is taken.

        ``progress`` is called by the recovering thread; an exception from it ends the start.
        """
        self._progress = progress or self._progress
        self.status.start(self._on_task_ended)
        try:
            await self.tls.start()
            report = await self._open_store()
        except BaseException as error:
            await self.tls.close()
            await self.status.finish(Phase.FAILED, f"cannot start: {error}")
            raise
        self.pulls.hold.start()
        self._tasks = [
            asyncio.ensure_future(self.delay.run()),
            asyncio.ensure_future(self.timers.run()),
            asyncio.ensure_future(self.timers.run_files()),
            asyncio.ensure_future(self.transactions.run()),
            asyncio.ensure_future(self.pops.run()),
            asyncio.ensure_future(self.retention.run()),
            *(asyncio.ensure_future(one) for one in self.periodic_tasks.coroutines()),
            *([asyncio.ensure_future(self.scrubber.run())] if self.scrubber.is_enabled else []),
            *([asyncio.ensure_future(self.archive.run())] if self.archive is not None else []),
            *([asyncio.ensure_future(self._accounts.watch())] if isinstance(self._accounts, AccountFile) else []),
        ]
        for task in self._tasks:
            task.add_done_callback(self._on_task_ended)
        self._is_open = True
        self.status.enter(Phase.SERVING)
        try:
            await self.replication.start()
            await self.external_addresses.start()
            self.settings_file.start()
            await self.roles.take_configured_role(report)
            self.registration.start()
            if self._has_control_socket:
                await self.control.start()
        except BaseException as error:
            await self.status.finish(Phase.FAILED, f"cannot start: {error}")
            await self.close()
            raise

    async def _open_store(self) -> RecoveryReport:
        """Recover, load the tables, listen. After an error nothing is open."""
        report = await asyncio.to_thread(
            self.store.open,
            self._report_recovery,
            on_locked=self._on_store_locked,
            is_unconfirmed_hidden=self.settings.ha.is_unconfirmed_hidden,
        )
        log.info(
            "store opened",
            extra={
                "is_clean": report.is_clean,
                "read_from": report.start,
                "end": report.end,
                "records": report.records,
                "cut_bytes": report.cut_bytes,
            },
        )
        await asyncio.to_thread(self.roles.completeness.record_start, report, self.store.pools.status)
        self.status.publish_store(self.store, lambda: self.replication.confirmed)
        self.visibility.resume()
        self.core.gate.refuse_all("this broker is starting")
        try:
            self.tables.load(is_clean=report.is_clean and report.end > 0)
            if not report.is_clean:
                self.core.locks.forget_holders()
            self.core.stats.start_at(self.store.log.wrote)
            await self.retention.start()
            await self.timers.start()
            await self.listeners.open(self.handlers)
        except BaseException:
            await self.listeners.close()
            # After this no table is written: one that could not be read must not be overwritten.
            await self.core.persistence.wait_for_writes()
            await asyncio.to_thread(self.store.close)
            raise
        self.status.publish_server(self._with_server_facts)
        return report

    def _on_store_locked(self) -> None:
        """Create the status page and read the roles, once the store's lock is held. Called by the recovering thread."""
        self.status.create_page()
        self.roles.load()

    def _report_recovery(self, done: int, total: int) -> None:
        """Report the progress of recovery. Called by the recovering thread."""
        self.status.report_recovery(done, total)
        self._progress(done, total)

    async def wait_until_failed(self) -> None:
        """Wait until the broker has failed, and raise the reason."""
        await asyncio.shield(self._failed)

    async def publish_failure(self, error: BaseException) -> None:
        """Publish that the broker has failed. The store is not used any more."""
        await self.status.finish(Phase.FAILED, str(error))

    async def close(self) -> bool:
        """Leave the routes, close the ports, then the store. Return whether the store is left clean.

        Raises ``StopTimeout`` when `shutdownTimeout` is exceeded. Then the store is in the same state as after a crash.
        """
        if not self._is_open:
            return True
        self._is_open = False
        self.status.enter(Phase.STOPPING)
        timeout_s = self.settings.shutdown_timeout_ms / 1000
        deadline = self._loop.time() + timeout_s
        leaving = asyncio.ensure_future(self._stop_serving())
        # The task is never cancelled: a second thread must not write a table that is being written.
        await asyncio.wait([leaving], timeout=timeout_s / 2)
        if leaving.done():
            leaving.result()
        else:
            log.warning("requests did not end in time; the stop continues", extra={"waited_s": timeout_s / 2})
        try:
            await self._flush_and_answer(deadline)
            self.flow.stop()
            self.core.stats.refusals.close()
            self.visibility.suspend()
            self.send_path.ack_gate.stop()
            self.store.on_appended.clear()  # No client is connected, so closing the store has no pulls to wake.
            await self._save_tables_and_close_log(deadline)
        except BaseException as error:
            await self.status.finish(Phase.FAILED, f"cannot stop cleanly: {error}")
            raise
        is_clean = not await asyncio.to_thread(AbortMarker(self._disk, self.settings.store_path).is_present)
        await self.status.finish(*(Phase.STOPPED,) if is_clean else (Phase.FAILED, "the store was not left clean"))
        return is_clean

    async def _stop_serving(self) -> None:
        """Leave the routes, and wait for requests in progress."""
        await self.tls.close()
        await self.control.close()
        await self.roles.close()
        await self.external_addresses.close()
        await self.settings_file.close()
        await self.registration.close()
        self.pulls.hold.stop()
        await self.listeners.drain()
        await self.replication.slave.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        await self.timers.close()
        await self.retention.time.close()

    async def _flush_and_answer(self, deadline: float) -> None:
        """Flush until loop time ``deadline``, send the answers that wait for that, and close the ports."""
        with suppress(StoreFailed):
            # Flush before the tables are written: they must not record a delivery that is not on the disk.
            await finish_within(self.store.flush, self.store.log, deadline - self._loop.time())
        self.visibility.advance()
        await self._wait_for_slaves(deadline)
        self.pops.journal.settle()  # so that RocketMQ finds the offsets of pops if it opens the store
        await self.replication.close()
        await self.listeners.close()

    async def _wait_for_slaves(self, deadline: float) -> None:
        """Wait, for a limited time, until slaves have the whole log, so that it is confirmed at the next start."""
        half = deadline - self.settings.shutdown_timeout_ms / 2000
        until = min(half, self._loop.time() + LAST_ACKS_TIMEOUT_S)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                while self.replication.master.is_leading and not self.replication.master.have_slaves_caught_up:
                    await self.replication.master.wait_for_progress()
        self.visibility.advance()

    async def _save_tables_and_close_log(self, deadline: float) -> None:
        """Write the tables, and in parallel close the store, until loop time ``deadline``."""
        tables = asyncio.ensure_future(self.core.persistence.close())
        await finish_within(self.store.close, self.store.log, deadline - self._loop.time())
        await asyncio.wait([tables], timeout=max(0.0, deadline - self._loop.time()))
        if not tables.done():
            raise StopTimeout("the log was flushed, but writing the tables timed out")
        tables.result()

    def _with_server_facts(self, status: Status) -> Status:
        return with_server_facts(
            status, self.core, self.roles, self.retention, self.scrubber,
            connections=self.listeners.count_connections(), held_sends=self.send_path.ack_gate.count,
            certificate_ends_at=self.tls.expires_at,
        )  # fmt: skip

    @property
    def port(self) -> int:
        return self.listeners.opened[0].port

    # ------- events

    def on_settings_changed(self, settings: BrokerSettings) -> None:
        """Pass the settings to the parts that keep a copy; all others read ``core.settings``."""
        self.settings = settings
        self.core.groups.set_auto_create(settings.auto_create_groups)
        self.core.offsets.resets.set_enabled(settings.is_reset_kept)
        if settings.auto_create_topics != self.core.topics.is_auto_creating:
            self.core.topics.set_auto_create(settings.auto_create_topics, settings.default_topic_queues)
        self.flow.set_limits(wait_ms_max=settings.wait_in_send_queue_ms, append_ms_max=settings.page_cache_busy_ms)
        self.send_path.ack_gate.set_limits(sends_max=settings.send_queue_capacity)
        self.send_path.set_limits(body_bytes_max=settings.message_bytes_max)
        self.listeners.set_limits(first_frame_bytes_max=settings.first_frame_bytes_max)
        self.pulls.hold.set_limits(
            held_max=settings.held_pulls_max, held_per_connection_max=settings.held_pulls_per_connection_max
        )

    def on_topic_changed(self, topic: str) -> None:
        self.core.send_routes.forget(topic)
        self.core.persistence.mark("topics", now=True)
        self.registration.schedule_update()

    def mark_ordered(self, topics: Collection[str]) -> None:
        """Mark topics as ordered that a name server has in its table of order topics, as RocketMQ does."""
        if self.core.gate.write_refusal is None:
            self.core.topics.mark_ordered(topics)

    def may_notify(self, group: str) -> bool:
        """Return whether consumers of a group are notified of changes: its `notifyConsumerIdsChangedEnable`."""
        config = self.core.groups.all.get(group)
        return config is None or config.notify_consumer_ids_changed_enable

    def on_group_changed(self, group: str) -> None:
        if group and group not in self.core.groups.all:
            self.core.topic_statistics.forget_group(group)
        self.core.persistence.mark("subscriptionGroup", now=True)

    def on_appended(self, queues: Iterable[ConsumeQueue]) -> None:
        self.pulls.hold.mark_queues((queue.topic, queue.queue_id) for queue in queues)

    def is_commit_awaited(self) -> bool:
        """Return whether consumers, or a master, wait for the commit of the log.

        A slave's master may wait for every ack, and a slave with an anonymous buffer acknowledges only committed bytes.
        """
        return self.pulls.hold.count > 0 or self.roles.role is HaRole.SLAVE

    def on_store_failed(self, error: Exception) -> None:
        """End the broker, because the store has failed permanently. May be called from the store's threads."""
        self._loop.call_soon_threadsafe(self._fail, error)

    def _fail(self, error: BaseException) -> None:
        if not self._failed.done():
            self._failed.set_exception(error)
            # asyncio reports an exception that is never retrieved; this one was logged where it occurred.
            self._failed.exception()

    def _on_task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            log.critical("background task failed; stopping the broker", exc_info=task.exception())
            self._fail(task.exception() or RuntimeError("a background task ended"))

    # ------- changing roles

    def close_clients(self, reason: str) -> None:
        self.listeners.close_connections(reason)

    def register(self, broker_id: int | None) -> None:
        self.registered_id = broker_id
        if broker_id is None:
            self.registration.set_identity(None)
            return
        settings = self.settings
        self.registration.set_identity(
            BrokerIdentity(
                settings.cluster_name,
                settings.broker_name,
                settings.address if broker_id else settings.master_address,
                settings.ha_address,
                broker_id,
                self.external_addresses.find(broker_id),
                is_provisional=self.roles.is_hidden,
            )
        )

    def on_damage_resolved(self) -> None:
        """Resume waiting pulls and slaves after a damaged range was repaired or has timed out."""
        self.pulls.hold.wake_all()
        self.replication.master.server.feed_streams()

    def _on_log_changed(self, end: int) -> None:
        """Forget cached positions, because the log ends at ``end`` now and continues with other records."""
        self.core.send_routes.forget_all()
        self.core.stats.start_at(end)
        self.delay.on_log_changed(end)
        self.timers.on_log_changed(end)
        self.transactions.on_log_changed(end)
        self.pops.on_log_changed(end)
        self.scrubber.on_log_changed(end)
        self.retention.time.on_log_changed(end)

    async def run_exclusively(self, change: Callable[[], None]) -> None:
        """Run ``change`` in a thread while nothing else uses the store.

        Clients are disconnected and requests refused meanwhile.
        """
        gate, reason = self.core.gate, "the log of this broker is being changed"
        self.send_path.flush()
        try:
            with gate.refusing_all(reason):
                self.listeners.close_connections(reason)
                async with self.retention.deletion_lock():
                    with gate.lend_store(), self.visibility.suspended():
                        await run_in_thread(change)
        finally:
            self._on_log_changed(self.store.log.wrote)
        self.visibility.advance()
