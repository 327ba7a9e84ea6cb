"""The flush thread: from the page cache to the disk, behind everybody's back.

    wrote -> fdatasync -> flushed -> queues and index -> recovery point -> checkpoint

``due`` is the whole policy, a pure function: flush when enough pages are dirty, or when it has been too long. Nothing
here is waited for by a request; whoever must wait for ``flushed`` watches it move.

One failure is the end. After a failed sync the kernel may call pages clean that are on no disk, so the log turns
read-only, ``flushed`` never moves again, and ``on_fatal`` is told, once, from this thread.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable
from typing import Final, NamedTuple, final

from gantry_broker.errors import FlushFailed
from gantry_broker.ports.clock import Clock
from gantry_broker.store.checkpoint import Checkpoint, CheckpointFacts
from gantry_broker.store.commit_log import CommitLog
from gantry_broker.store.dispatcher import Dispatcher
from gantry_broker.store.key_index import KeyIndex
from gantry_broker.store.queue_table import QueueTable
from gantry_broker.store.recovery_point import RecoveryPoint, RecoveryPointFile
from gantry_broker.store.settings import FlushSettings

log = logging.getLogger(__name__)

PAGE_BYTES: Final = 4096


class Due(NamedTuple):
    """What is to be done now."""

    flush: bool
    point: bool
    checkpoint: bool


def due(settings: FlushSettings, dirty_bytes: int, flush_age_ms: int, point_age_ms: int, checkpoint_age_ms: int) -> Due:
    """The policy. Ages are times since each was last done."""
    is_enough = dirty_bytes >= settings.flush_pages_min * PAGE_BYTES
    flush = dirty_bytes > 0 and (is_enough or flush_age_ms >= settings.flush_thorough_interval_ms)
    return Due(
        flush,
        point_age_ms >= settings.recovery_point_interval_ms,
        checkpoint_age_ms >= settings.checkpoint_interval_ms,
    )


@final
class Flusher:
    """``gantry-flush``.

    The thread owns the ages, the checkpoint and the recovery point file; ``flushed`` of the log is its to move. The
    loop's thread calls ``start``, ``request_point`` and ``stop``; ``step`` is the body of one round, public for tests
    that want no thread at all.
    """

    def __init__(
        self,
        settings: FlushSettings,
        clock: Clock,
        commit_log: CommitLog,
        dispatcher: Dispatcher,
        queues: QueueTable,
        index: KeyIndex | None,
        checkpoint: Checkpoint,
        point_file: RecoveryPointFile,
        on_fatal: Callable[[Exception], None],
    ) -> None:
        self.deleted: dict[str, int] = {}
        self.failure: FlushFailed | None = None
        self._settings: Final = settings
        self._clock: Final = clock
        self._log: Final = commit_log
        self._dispatcher: Final = dispatcher
        self._queues: Final = queues
        self._index: Final = index
        self._checkpoint: Final = checkpoint
        self._point_file: Final = point_file
        self._on_fatal: Final = on_fatal
        self._thread: threading.Thread | None = None
        self._wake: Final = threading.Event()
        self._is_stopping = False
        self._is_point_requested = False
        self._is_point_refused = False
        now_ms = clock.monotonic_ms()
        self._flushed_at_ms = self._point_at_ms = self._checkpoint_at_ms = now_ms
        self._point: RecoveryPoint | None = None
        self._index_timestamp_ms = 0
        self._flushed_timestamp_ms = 0

    def start(self) -> None:
        """Let the thread run."""
        self._thread = threading.Thread(target=self._run, name="gantry-flush", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it. What is not flushed stays so: ``finish`` flushes."""
        self._is_stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def request_point(self) -> None:
        """Write a recovery point soon."""
        self._is_point_requested = True
        self._wake.set()

    def _run(self) -> None:
        while not self._is_stopping and self.failure is None:
            self._wake.wait(self._settings.flush_interval_ms / 1000)
            self._wake.clear()
            self.step()

    def step(self) -> None:
        """One round: whatever is due."""
        now_ms = self._clock.monotonic_ms()
        todo = due(
            self._settings,
            self._log.wrote - self._log.flushed,
            now_ms - self._flushed_at_ms,
            now_ms - self._point_at_ms,
            now_ms - self._checkpoint_at_ms,
        )
        is_point_requested, self._is_point_requested = self._is_point_requested, False
        try:
            if todo.point or is_point_requested:
                self._point_at_ms = self._flushed_at_ms = now_ms
                self._write_point()
            elif todo.flush:
                self._flushed_at_ms = now_ms
                self._flush_log()
            if todo.checkpoint or is_point_requested:
                self._checkpoint_at_ms = now_ms
                self._write_checkpoint()
        except OSError as exc:
            self._fail(exc)

    def finish(self) -> bool:
        """Flush everything there is, for a clean stop, after the thread has ended. False if the stop is not clean."""
        if self.failure is not None:
            return False
        try:
            self._write_point()
            self._write_checkpoint()
        except OSError as exc:
            self._fail(exc)
            return False
        return not self._is_point_refused

    def flush(self) -> int:
        """Flush the log now, in the caller's thread, and say up to where. Raises ``FlushFailed``, for good."""
        if self.failure is not None:
            raise self.failure
        try:
            return self._flush_log()
        except OSError as exc:
            self._fail(exc)
            raise FlushFailed("the commit log could not be flushed") from exc

    # -- the steps -----------------------------------------------------------------------------------------------------

    def _flush_log(self) -> int:
        timestamp_ms = self._log.last_timestamp_ms
        end = self._log.sync()
        self._flushed_timestamp_ms = timestamp_ms
        return end

    def _write_point(self) -> None:
        # The order of these reads is what makes the point true while the loop goes on appending. Queue ends are read
        # before the tail, so they are never beyond it; the index's header after it, so it never lags behind it.
        ends = [(queue, queue.readable_end) for queue in self._queues if queue.readable_end]
        damaged = [(queue.topic, queue.queue_id) for queue in self._queues if queue.is_corrupt]
        through, tail, timestamp_ms = self._dispatcher.tail
        if self._dispatcher.is_held:
            # Then parts of a batch may be shown, and the tail is at the end of the batch before.
            ends = [(queue, queue.end_before(through)) for queue, _ in ends]
        queues: dict[str, dict[str, int]] = {}
        for queue, end in ends:
            queues.setdefault(queue.topic, {})[str(queue.queue_id)] = end
        index_point = self._index.point() if self._index is not None else None
        is_indexed = self._index is not None and not self._index.is_behind
        deleted = {topic: end for topic, end in self.deleted.items() if end > self._log.min_physical}
        self._flush_log()
        self._queues.sync()
        if self._index is not None:
            self._index.sync()
        point = RecoveryPoint(
            through=through, tail=tail, timestamp_ms=timestamp_ms, queues=queues, is_indexed=is_indexed,
            index=index_point, deleted=deleted, damaged=damaged,
        )  # fmt: skip
        if point != self._point and self._replace_point(point):
            self._point = point
            if index_point is not None:
                self._index_timestamp_ms = index_point.header.end_timestamp_ms

    def _replace_point(self, point: RecoveryPoint) -> bool:
        """Write the point. False when the disk is full: the one before stays true, and a recovery reads more.

        Everything that the point describes is durable by now, so a full disk is no failed flush.
        """
        try:
            self._point_file.write(point)
        except OSError as exc:
            if exc.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            if not self._is_point_refused:
                log.warning("the disk is too full for a recovery point", extra={"reason": str(exc)})
            self._is_point_refused = True
            return False
        self._is_point_refused = False
        return True

    def _write_checkpoint(self) -> None:
        flushed = self._log.flushed
        self._checkpoint.write(
            CheckpointFacts(
                log_timestamp_ms=self._flushed_timestamp_ms,
                queues_timestamp_ms=self._point.timestamp_ms if self._point is not None else 0,
                index_timestamp_ms=self._index_timestamp_ms,
                confirmed=flushed,
                flushed=flushed,
            )
        )

    def _fail(self, exc: OSError) -> None:
        failure = FlushFailed(f"a flush failed: {exc}")
        failure.__cause__ = exc
        self.failure = failure
        self._log.is_read_only = True
        log.critical("a flush failed, the log is read-only now", extra={"reason": str(exc)})
        self._on_fatal(failure)
