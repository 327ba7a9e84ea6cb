"""Publishes the state of the broker on its status page, ten times a second.

    event loop: snapshot with its time  -->  one slot, the newest wins  -->  gantry-status thread: pwrite

Guarantee: **the age of the page is that of the event loop.** The loop takes the snapshot and its time, and the thread
only writes them, so the page ages while the loop is blocked, even if the thread works.

The page is created once this process has locked the store's directory, so that a second broker on the same store, which
does not start, leaves the page of the first one alone.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Final, final

import gantry_speedups
from gantry_broker.ha.acknowledgement import AckSet
from gantry_broker.server.admin.retention import Retention
from gantry_broker.server.admin.scrubber import Scrubber
from gantry_broker.server.admin.status_thread import LastError, OpenPage, PageThread
from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.roles.roles import Roles
from gantry_broker.store.loss import missing_bytes
from gantry_broker.store.message_store import MessageStore
from gantry_status import (
    PUBLISH_INTERVAL_MS,
    HotPath,
    LogRange,
    Medium,
    PageWriter,
    Phase,
    Role,
    SlaveStatus,
    Status,
    new_origin,
    now,
)
from gantry_status.orders import HaRole
from gantry_wire.version import VERSION

FINISH_TIMEOUT_S: Final = 1.0
"""How long a stop waits until the final status is written."""

_ROLES: Final = {
    HaRole.UNASSIGNED: Role.UNASSIGNED,
    HaRole.COMPARING: Role.UNASSIGNED,
    HaRole.MASTER: Role.MASTER,
    HaRole.SLAVE: Role.SLAVE,
}
"""The role on the status page. It has none for a broker that compares its log."""


def with_server_facts(
    status: Status,
    core: BrokerCore,
    roles: Roles,
    retention: Retention,
    scrubber: Scrubber,
    *,
    connections: int,
    held_sends: int,
    certificate_ends_at: float | None,
) -> Status:
    """Return the status with the values of the server. ``certificate_ends_at`` is in seconds since 1970."""
    store, disk = core.store, retention.status
    integrity = scrubber.add_progress(store.guard.damage.integrity)
    return replace(
        status,
        role=_ROLES[roles.role],
        slaves=_slaves(roles.replication.acks),
        disk_total_bytes=disk.total or None,
        disk_used_bytes=disk.used if disk.total else None,
        is_refusing_sends=status.is_refusing_sends
        or not store.is_writable
        or disk.is_refusing
        or core.gate.is_refusing_sends,
        connections=connections,
        queues=len(store.queues),
        held_sends=held_sends,
        refused_requests=tuple(core.stats.refusals.counts.values()),
        certificate_ends_wall_ms=None if certificate_ends_at is None else int(certificate_ends_at * 1000),
        queues_rebuilding=store.repair.queues.queues_waiting or None,
        queue_units_rebuilt=store.repair.queues.units_rebuilt or None,
        index_rebuilds=store.repair.index_rebuilds or None,
        **integrity._asdict(),
    )


def _slaves(acks: AckSet) -> tuple[SlaveStatus, ...]:
    boot_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    now_s = asyncio.get_running_loop().time()
    return tuple(
        SlaveStatus(
            slave_id=slave.broker_id,
            received=None if slave.received < 0 else slave.received,
            flushed=None if slave.flushed < 0 else slave.flushed,
            last_seen_boottime_ns=boot_ns - int((now_s - slave.acked_at) * 1e9),
        )
        for slave in acks
    )


@final
class StatusPublisher:
    """Takes snapshots of the broker's state for the page. Owned by the event loop.

    The thread that recovers the store calls ``create_page`` and ``report_recovery``.
    """

    def __init__(self, path: str, broker_name: str, *, open_page: OpenPage | None = PageWriter) -> None:
        """With ``open_page`` None the status is not published."""
        self.phase = Phase.STARTING
        self._store: MessageStore | None = None
        self._confirmed: Callable[[], int] | None = None
        self._add_server: Callable[[Status], Status] | None = None
        self._last_error: Final = LastError()
        self._recovery: tuple[int, int] | None = None
        self._min_physical: int | None = None
        self._task: asyncio.Task[None] | None = None
        hot_path = HotPath.COMPILED if gantry_speedups.is_compiled else HotPath.PYTHON
        origin = new_origin(broker_name, VERSION, hot_path=hot_path, hot_path_reason=gantry_speedups.reason)
        self._thread = None if open_page is None else PageThread(path, origin, open_page)

    def __repr__(self) -> str:
        return f"<StatusPublisher {self.phase.name}>"

    def start(self, on_end: Callable[[asyncio.Task[None]], None]) -> None:
        """Start publishing, as soon as the page exists.

        ``on_end`` is called when publishing ends, which happens without a stop only after an unexpected error.
        """
        if self._thread is not None:
            logging.getLogger().addHandler(self._last_error)
            self._task = asyncio.ensure_future(self._run())
            self._task.add_done_callback(on_end)

    def create_page(self) -> None:
        """Create the page, after the store's directory is locked. Raises ``PageUnusable``."""
        if self._thread is not None:
            self._thread.open(self.snapshot())

    def publish_store(self, store: MessageStore, confirmed: Callable[[], int]) -> None:
        """Publish the positions of ``store``, which is open; before that they are not valid.

        ``confirmed`` returns the position up to which consumers may read.
        """
        self._store, self._confirmed = store, confirmed

    def publish_server(self, add_facts: Callable[[Status], Status]) -> None:
        """Publish the values that ``add_facts`` adds; it is called in the event loop ten times a second."""
        self._add_server = add_facts

    def report_recovery(self, done: int, total: int) -> None:
        """Record how many bytes of the log the recovery has read."""
        self.phase = Phase.RECOVERING
        self._recovery = (done, total)

    def enter(self, phase: Phase) -> None:
        """Change the phase, and publish it at once."""
        self.phase = phase
        self._put()

    async def finish(self, phase: Phase, error: str = "") -> None:
        """Publish the final phase, and stop publishing. Further calls do nothing."""
        if self._thread is None or self.phase.is_final:
            return
        if error:
            self._last_error.note(error)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self.enter(phase)
        await asyncio.to_thread(self._thread.end, FINISH_TIMEOUT_S)
        logging.getLogger().removeHandler(self._last_error)

    async def _run(self) -> None:
        while True:
            self._put()
            await asyncio.sleep(PUBLISH_INTERVAL_MS / 1000)

    def _put(self) -> None:
        if self._thread is not None:
            self._thread.put(self.snapshot())

    def snapshot(self) -> Status:
        """Return the present state of the broker."""
        moment = now()
        done, total = self._recovery or (None, None)
        status = Status(
            published_boottime_ns=moment.boottime_ns,
            published_wall_ms=moment.wall_ms,
            phase=self.phase,
            role=Role.UNASSIGNED,
            is_refusing_sends=self.phase is not Phase.SERVING,
            recovery_done_bytes=done,
            recovery_total_bytes=total,
            connections=0,
            queues=0,
            held_sends=0,
            last_error=self._last_error.text,
            last_error_wall_ms=self._last_error.wall_ms,
        )
        if self._store is not None:
            status = self._with_store(status, self._store)
        return status if self._add_server is None else self._add_server(status)

    def _with_store(self, status: Status, store: MessageStore) -> Status:
        if self.phase is Phase.SERVING:
            self._min_physical = store.log.min_physical  # a closing store has no files any more
        pool, identity = store.pools.status, store.identity
        return replace(
            status,
            wrote=store.log.wrote,
            committed=store.log.committed,
            flushed=store.log.flushed,
            confirmed=None if self._confirmed is None else self._confirmed(),
            min_physical=self._min_physical,
            epoch=identity.epoch,
            generation=identity.generation,
            store_uuid=uuid.UUID(identity.uuid),
            pool_medium=Medium.__members__.get(pool.medium.upper(), Medium.UNKNOWN),
            pool_buffers_total=pool.total,
            pool_buffers_free=pool.free,
            is_crash_safe=pool.is_crash_safe,
            log_missing_bytes=missing_bytes(store.losses.record.missing) or None,
            log_missing_ranges=tuple(LogRange(one.start, one.end) for one in store.losses.record.missing),
            log_accepted_loss_bytes=sum(one.end - one.start for one in store.losses.record.accepted) or None,
        )
