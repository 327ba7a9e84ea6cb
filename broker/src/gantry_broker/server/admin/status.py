"""Publishes the state of the broker on its status page, ten times a second.

    event loop: look, stamp  -->  one slot, the newest wins  -->  gantry-status: pwrite

The rule it guards: **the page's age is the event loop's.** The loop looks and stamps, and the thread only writes, so a
loop that stands still lets the page grow old however well the thread does.

The page is made when the store's directory is ours and not before, so that a second broker on the same store, which
will be refused, does not touch the page of the first.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Final, final

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

_ROLES: Final = {
    HaRole.UNASSIGNED: Role.UNASSIGNED,
    HaRole.COMPARING: Role.UNASSIGNED,
    HaRole.MASTER: Role.MASTER,
    HaRole.SLAVE: Role.SLAVE,
}


def with_server_facts(
    status: Status,
    core: BrokerCore,
    roles: Roles,
    retention: Retention,
    scrubber: Scrubber,
    *,
    connections: int,
    parked_sends: int,
    certificate_ends_at: float | None,
) -> Status:
    """The status with what the page has of the server. ``certificate_ends_at`` is in seconds since 1970."""
    store, disk = core.store, retention.status
    integrity = scrubber.add_to(store.guard.damage.integrity)
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
        parked_sends=parked_sends,
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
            received=max(slave.received, 0),
            flushed=max(slave.flushed, 0),
            last_seen_boottime_ns=boot_ns - int((now_s - slave.acked_at) * 1e9),
        )
        for slave in acks
    )


@final
class StatusPublisher:
    """The loop's half. The thread that recovers calls ``opened`` and ``recovering``, the event loop everything else."""

    def __init__(self, path: str, broker_name: str, *, open_page: OpenPage | None = PageWriter) -> None:
        """Without ``open_page`` nothing is published."""
        self.phase = Phase.STARTING
        self._store: MessageStore | None = None
        self._confirmed: Callable[[], int] | None = None
        self._add_server: Callable[[Status], Status] | None = None
        self._last_error: Final = LastError()
        self._recovery: tuple[int, int] | None = None
        self._min_physical: int | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread = None if open_page is None else PageThread(path, new_origin(broker_name, VERSION), open_page)

    def __repr__(self) -> str:
        return f"<StatusPublisher {self.phase.name}>"

    def start(self, ended: Callable[[asyncio.Task[None]], None]) -> None:
        """Begin to publish, as soon as there is a page.

        ``ended`` is told when the publishing ends, which it does by itself only for a bug.
        """
        if self._thread is not None:
            logging.getLogger().addHandler(self._last_error)
            self._task = asyncio.ensure_future(self._run())
            self._task.add_done_callback(ended)

    def opened(self) -> None:
        """The store's directory is ours, and so is the page. Raises ``PageUnusable``."""
        if self._thread is not None:
            self._thread.open(self.snapshot())

    def publish_store(self, store: MessageStore, confirmed: Callable[[], int]) -> None:
        """Publish the positions of ``store`` from now on: it is open, and before that they are not true.

        ``confirmed`` gives how far consumers may read.
        """
        self._store, self._confirmed = store, confirmed

    def publish_server(self, add_facts: Callable[[Status], Status]) -> None:
        """Publish from now on what ``add_facts`` adds; it is called in the event loop ten times a second."""
        self._add_server = add_facts

    def recovering(self, done: int, total: int) -> None:
        """So many bytes of the log are read."""
        self.phase = Phase.RECOVERING
        self._recovery = (done, total)

    def enter(self, phase: Phase) -> None:
        """Publish a change at once."""
        self.phase = phase
        self._put()

    async def finish(self, phase: Phase, error: str = "") -> None:
        """The last word. Said once."""
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
        """The state at this moment."""
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
            parked_sends=0,
            last_error=self._last_error.text,
            last_error_wall_ms=self._last_error.wall_ms,
        )
        if self._store is not None:
            status = self._with_store(status, self._store)
        return status if self._add_server is None else self._add_server(status)

    def _with_store(self, status: Status, store: MessageStore) -> Status:
        if self.phase is Phase.SERVING:
            self._min_physical = store.log.min_physical  # a store that closes has no files any more
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
