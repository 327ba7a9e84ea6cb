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
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple, final

from gantry_broker.server.admin.status_thread import LastError, OpenPage, PageThread
from gantry_broker.store.damage import Integrity
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
from gantry_wire.version import VERSION

FINISH_TIMEOUT_S: Final = 1.0


class ServerFacts(NamedTuple):
    """What the page says about the server."""

    connections: int = 0
    queues: int = 0
    parked_sends: int = 0
    refused_requests: tuple[int, ...] = ()
    disk_total_bytes: int | None = None
    disk_used_bytes: int | None = None
    is_refusing_sends: bool = False
    role: Role = Role.UNASSIGNED
    slaves: tuple[SlaveStatus, ...] = ()
    certificate_ends_at: float | None = None
    """In seconds since 1970; the first one to end."""
    queues_rebuilding: int = 0
    queue_units_rebuilt: int = 0
    index_rebuilds: int = 0
    integrity: Integrity | None = None
    """What is known of damage to the log."""


@final
class StatusPublisher:
    """The loop's half. The thread that recovers calls ``opened`` and ``recovering``, the event loop everything else."""

    def __init__(self, path: str, broker_name: str, *, open_page: OpenPage | None = PageWriter) -> None:
        """Without ``open_page`` nothing is published."""
        self.phase = Phase.STARTING
        self._store: MessageStore | None = None
        self._confirmed: Callable[[], int] | None = None
        self._server: Callable[[], ServerFacts] = ServerFacts
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

    def publish_server(self, collect: Callable[[], ServerFacts]) -> None:
        """Publish from now on what ``collect`` returns; it is called in the event loop ten times a second."""
        self._server = collect

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
        moment, server, store = now(), self._server(), self._store
        done, total = self._recovery or (None, None)
        ends_at = server.certificate_ends_at
        common = Status(
            published_boottime_ns=moment.boottime_ns,
            published_wall_ms=moment.wall_ms,
            phase=self.phase,
            role=server.role,
            slaves=server.slaves,
            disk_total_bytes=server.disk_total_bytes,
            disk_used_bytes=server.disk_used_bytes,
            is_refusing_sends=server.is_refusing_sends or self.phase is not Phase.SERVING,
            recovery_done_bytes=done,
            recovery_total_bytes=total,
            connections=server.connections,
            queues=server.queues,
            parked_sends=server.parked_sends,
            refused_requests=server.refused_requests,
            last_error=self._last_error.text,
            last_error_wall_ms=self._last_error.wall_ms,
            certificate_ends_wall_ms=None if ends_at is None else int(ends_at * 1000),
            queues_rebuilding=server.queues_rebuilding or None,
            queue_units_rebuilt=server.queue_units_rebuilt or None,
            index_rebuilds=server.index_rebuilds or None,
        )
        if server.integrity is not None:
            common = replace(common, **server.integrity._asdict())
        return common if store is None else self._with_store(common, store)

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
