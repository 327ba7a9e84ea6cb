"""The thread that records how far everything is on the disk, so that a start need not read the whole log.

    log flushed -> queues and index synced -> recovery point
    log flushed -> checkpoint, with the store times up to which log, queues and index are durable
    log flushed -> `log-heads.json`, with checksums of the first records of log files (`file_heads`)

Syncing thousands of queue files takes long, so it has its own thread: requests that wait for ``flushed`` never wait for
it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, final

from gantry_broker.errors import StoreFailed, is_out_of_descriptors
from gantry_broker.ports.clock import Clock
from gantry_broker.store import crash_points
from gantry_broker.store.checkpoint import Checkpoint, CheckpointContent
from gantry_broker.store.commit_log import CommitLog
from gantry_broker.store.dispatcher import Dispatcher
from gantry_broker.store.failure import StoreFailure
from gantry_broker.store.file_heads import HeadKeeper
from gantry_broker.store.flusher import Flusher
from gantry_broker.store.identity import StoreIdentity
from gantry_broker.store.key_index import KeyIndex
from gantry_broker.store.queue_table import QueueTable
from gantry_broker.store.recovery_point import RecoveryPoint, RecoveryPointFile
from gantry_broker.store.sealed_file import OptionalFile
from gantry_broker.store.settings import FlushSettings
from gantry_broker.store.worker import Worker

log = logging.getLogger(__name__)

SYNC_THREADS: Final = 8
"""How many threads sync queues while nothing else uses the store: a disk completes many flushes in the time of one.

While the store is in use, only ``gantry-point`` does: more threads would compete with the loop for the interpreter.
"""


@final
class RecoveryPointWriter:
    """Writes recovery points, checkpoints and heads of log files in the thread ``gantry-point``.

    While it runs, the thread owns the recovery point file, and the times at which it and the checkpoint were last
    written; the checkpoint has a lock. ``finish`` and ``remove_point`` are for the thread that has stopped it. Any
    thread may call ``request_point``; ``start`` and ``stop`` are those of ``Worker``.
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
        flusher: Flusher,
        failure: StoreFailure,
        heads: HeadKeeper,
        identity: Callable[[], StoreIdentity],
    ) -> None:
        self._settings: Final = settings
        self._clock: Final = clock
        self._log: Final = commit_log
        self._dispatcher: Final = dispatcher
        self._queues: Final = queues
        self._index: Final = index
        self._checkpoint: Final = checkpoint
        self._point_file: Final = point_file
        self._flusher: Final = flusher
        self._failure: Final = failure
        self._heads: Final = heads
        self._identity: Final = identity
        self._worker: Final = Worker("gantry-point", settings.checkpoint_interval_ms, self.step)
        self._is_point_requested = False
        self._optional_point: Final = OptionalFile("recovery-point.json")
        self._optional_checkpoint: Final = OptionalFile("checkpoint")
        self._point_at_ms = self._checkpoint_at_ms = clock.monotonic_ms()
        self._point: RecoveryPoint | None = None
        self._index_timestamp_ms = 0
        self.start: Final = self._worker.start
        self.stop: Final = self._worker.stop
        self.wake: Final = self._worker.wake

    def request_point(self) -> None:
        """Wake the thread to write a recovery point soon."""
        self._is_point_requested = True
        self._worker.wake()

    def step(self) -> bool:
        """Run one round: write what is due. Return False after a failure."""
        if self._failure.error is not None:
            return False
        now_ms = self._clock.monotonic_ms()
        is_requested, self._is_point_requested = self._is_point_requested, False
        is_point_due = now_ms - self._point_at_ms >= self._settings.recovery_point_interval_ms
        try:
            if is_point_due or is_requested:
                self._point_at_ms = now_ms
                self._write_point()
            if is_requested or now_ms - self._checkpoint_at_ms >= self._settings.checkpoint_interval_ms:
                self._checkpoint_at_ms = now_ms
                self._write_checkpoint()
            self._heads.write(self._identity(), self._log.flushed)
        except StoreFailed:
            return False
        except OSError as exc:
            return self._continue_after(exc)
        return True

    def _continue_after(self, error: OSError) -> bool:
        """Return whether the thread may continue after ``error``; any error but a lack of descriptors ends the store.

        Without a free descriptor nothing was attempted, so nothing has failed.
        """
        if not is_out_of_descriptors(error):
            self._failure.report("writing the recovery point or the checkpoint", error)
            return False
        log.warning("no free file descriptor; recovery point postponed", extra={"reason": str(error)})
        return True

    def finish(self) -> bool:
        """Flush and sync everything, and write point and checkpoint, while the threads do not run.

        Called at a clean stop, at the end of a recovery and at a change of the log. Return False after a failure, and
        if the disk had no room for the point.
        """
        if self._failure.error is not None:
            return False
        try:
            self._flusher.flush()
            self._heads.write(self._identity(), self._log.flushed)
            self._write_point(sync_threads=SYNC_THREADS)
            self._write_checkpoint()
        except StoreFailed:
            return False
        except OSError as exc:
            self._failure.report("writing the recovery point or the checkpoint", exc)
            return False
        return not self._optional_point.is_refused

    def remove_point(self) -> None:
        """Delete the recovery point, so that the next start reads the whole log."""
        self._point = None
        self._point_file.remove()

    # -- the steps -----------------------------------------------------------------------------------------------------

    def _write_point(self, *, sync_threads: int = 1) -> None:
        # The order of these reads makes the point consistent while the loop continues to append. The ends of the queues
        # are read before the dispatched end, so they are never beyond it. The index's header is read after the
        # dispatched end, so the index is never behind it. The beginning of the log is read before the beginnings of the
        # queues, because retention moves the queues first.
        is_held, min_physical = self._dispatcher.is_held, self._log.min_physical
        starts: dict[str, dict[str, int]] = {}
        for queue in self._queues:
            if queue.min_offset:
                starts.setdefault(queue.topic, {})[str(queue.queue_id)] = queue.min_offset
        ends = [(queue, queue.readable_end) for queue in self._queues if queue.readable_end]
        through, last_record, timestamp_ms = self._dispatcher.last_dispatched
        if is_held or self._dispatcher.is_held:
            # Parts of a batch may be visible, while the dispatched end is still the end of the batch before. Holding
            # may begin or end between these reads.
            ends = [(queue, queue.end_before(through)) for queue, _ in ends]
        # The flags are read after ``end_before``, which may find a shortened file. Repaired queues are synced below.
        damaged = [(queue.topic, queue.queue_id) for queue in self._queues if queue.is_corrupt]
        queues: dict[str, dict[str, int]] = {}
        for queue, end in ends:
            queues.setdefault(queue.topic, {})[str(queue.queue_id)] = end
        index_point = self._index.point() if self._index is not None else None
        index_files = self._index.ends() if self._index is not None else []
        is_indexed = self._index is not None and not self._index.is_behind
        deleted = {topic: end for topic, end in self._queues.deleted.items() if end > self._log.min_physical}
        self._flusher.flush()
        self._queues.sync(threads=sync_threads)
        if self._index is not None:
            self._index.sync()
        crash_points.hit(crash_points.MID_POINT)
        point = RecoveryPoint(
            through=through, tail=last_record, timestamp_ms=timestamp_ms, queues=queues, is_indexed=is_indexed,
            index=index_point, index_files=index_files, min_physical=min_physical, starts=starts,
            deleted=deleted, damaged=damaged,
            log_file_bytes=self._log.file_size, queue_file_bytes=self._queues.file_size,
            store=self._identity().uuid,
        )  # fmt: skip
        if point != self._point and self._replace_point(point):
            self._point = point
            if index_point is not None:
                self._index_timestamp_ms = index_point.header.end_timestamp_ms

    def _replace_point(self, point: RecoveryPoint) -> bool:
        """Write the point. Return False if the disk is full: the previous one stays valid, and a recovery reads more.

        Everything that the point describes is durable by now, so a full disk is no failed flush.
        """
        return self._optional_point.write(lambda: self._point_file.write(point))

    def _write_checkpoint(self) -> None:
        timestamp_ms = self._flusher.flushed_timestamp_ms
        flushed = self._log.flushed
        content = CheckpointContent(
            log_timestamp_ms=timestamp_ms,
            queues_timestamp_ms=self._point.timestamp_ms if self._point is not None else 0,
            index_timestamp_ms=self._index_timestamp_ms,
            confirmed=flushed,
            flushed=flushed,
            begin=self._log.min_physical,
        )
        self._optional_checkpoint.write(lambda: self._checkpoint.write(content))
