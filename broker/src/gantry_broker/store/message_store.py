"""The store's facade: open, append, read, look up, close.

One directory, laid out as RocketMQ lays it out, and small files of ours:

    commitlog/  consumequeue/<topic>/<queue>/  index/  checkpoint  abort  lock  recovery-point.json  store.json

The parts are in files of their own; this one joins them. ``open`` and ``close`` wait for the disk; nothing else does,
so everything else may run in the event loop's thread, and must. Threads move the positions meanwhile, and say so
through ``on_progress``; whoever gave it calls ``advance`` in the loop's thread, which acts on it. ``opening`` is how it
starts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, final

from gantry_broker.errors import FlushFailed, StoreLocked, StoreUnusable
from gantry_broker.ports.buffers import BufferVolume
from gantry_broker.ports.clock import Clock
from gantry_broker.ports.disk import Disk, DiskLock
from gantry_broker.ports.real_buffers import open_volume as open_real_volume
from gantry_broker.store.abort_marker import AbortMarker
from gantry_broker.store.append import append_batch, append_contiguous
from gantry_broker.store.checkpoint import Checkpoint
from gantry_broker.store.commit_log import CommitLog
from gantry_broker.store.committer import Committer
from gantry_broker.store.confirm import Positions, confirmed_offset, promised_offset
from gantry_broker.store.consume_queue import ConsumeQueue
from gantry_broker.store.dispatcher import AppendedListener, Dispatcher
from gantry_broker.store.draft import Draft
from gantry_broker.store.failure import FailureRecord, StoreFailure
from gantry_broker.store.file_queue import make_durable_directory
from gantry_broker.store.flusher import Flusher
from gantry_broker.store.identity import IdentityFile, StoreIdentity, new_identity
from gantry_broker.store.key_index import KeyIndex
from gantry_broker.store.opening import OpenPools, seals_of, write_or_keep, written_by_others_from
from gantry_broker.store.point_writer import PointWriter
from gantry_broker.store.queue_table import QueueTable
from gantry_broker.store.reader import Accept, ReadResult, ReadStatus, read_messages
from gantry_broker.store.record_taker import Progress
from gantry_broker.store.recover import FoundStore, Recovery, RecoveryReport
from gantry_broker.store.recovery_point import RecoveryPointFile
from gantry_broker.store.removal import HeadRemoval
from gantry_broker.store.settings import PAGE_BYTES, StoreSettings
from gantry_broker.store.time_search import earliest_time, offset_by_time, store_time
from gantry_broker.store.write_pool import PoolStatus
from gantry_wire.message import check_record

log = logging.getLogger(__name__)


@final
class MessageStore:
    """A store directory in use by this process. All methods belong to the loop's thread."""

    def __init__(
        self,
        root: str,
        settings: StoreSettings,
        *,
        disk: Disk,
        clock: Clock,
        store_host: bytes,
        on_fatal: Callable[[Exception], None],
        on_progress: Callable[[], None] = lambda: None,
        open_volume: Callable[[str], BufferVolume] = open_real_volume,
    ) -> None:
        """``on_fatal`` is called once, when a write or a sync has failed, ``on_progress`` when ``advance`` has work.

        Both come from helper threads.
        """
        self.root: Final = root
        self.settings: Final = settings
        self.on_appended: Final[list[AppendedListener]] = []
        """Called once per batch with the queues that have become longer for consumers."""
        self.is_awaited: Callable[[], bool] = lambda: False
        """Whether somebody waits for messages that are not shown before they are committed."""
        self.identity: StoreIdentity = new_identity(0)
        self._disk: Final = disk
        self._clock: Final = clock
        self._store_host: Final = store_host
        self._on_progress: Final = on_progress
        self._log: Final = CommitLog(disk, f"{root}/commitlog", settings, clock)
        self._queues: Final = QueueTable(disk, f"{root}/consumequeue", settings)
        self._index: Final = KeyIndex(disk, f"{root}/index", settings, clock) if settings.is_index_enabled else None
        self._dispatcher: Final = Dispatcher(self.on_appended)
        self._abort: Final = AbortMarker(disk, root)
        self._checkpoint: Final = Checkpoint(disk, root)
        self._point_file: Final = RecoveryPointFile(disk, root)
        self._identity_file: Final = IdentityFile(disk, root)
        self._failure_record: Final = FailureRecord(disk, root)
        self._failure: Final = StoreFailure(self._log, self._failure_record, on_fatal)
        self._flusher: Final = Flusher(settings.flush, clock, self._log, self._failure, on_progress)
        self._points: Final = PointWriter(
            settings.flush, clock, self._log, self._dispatcher, self._queues, self._index, self._checkpoint,
            self._point_file, self._flusher, self._failure,
        )  # fmt: skip
        self._pools: Final = OpenPools(settings.pool, open_volume, file_size=settings.mapped_file_size_commit_log)
        self._committer: Committer | None = None
        self._commit_wake_bytes: Final = max(settings.pool.commit_pages_min, 1) * PAGE_BYTES
        self._is_flush_woken: Final = settings.flush.is_sync or not settings.flush.is_timed
        self.removal: Final = HeadRemoval(
            self._log, self._dispatcher, self._queues, self._index, self._points.request_point, self._failure.report
        )
        """How the oldest files are deleted, for whoever decides it."""
        self._lock: DiskLock | None = None
        self._is_open = False

    def __repr__(self) -> str:
        return f"<MessageStore {self.root} open={self._is_open} {self._log!r}>"

    # -- life ----------------------------------------------------------------------------------------------------------

    def open(
        self,
        progress: Progress | None = None,
        *,
        is_flushing: bool = True,
        on_locked: Callable[[], None] = lambda: None,
    ) -> RecoveryReport:
        """Lock, recover, and be ready. Waits for the disk; ``progress(done, total)`` is told of bytes read.

        ``on_locked`` is called as soon as the directory is ours, before anything in it is read.

        Raises ``StoreLocked``, ``StoreMismatch``, ``StoreFull``, ``ConfigCorrupt`` or ``StoreUnusable``. Without
        ``is_flushing`` no threads run, for tests and tools that call ``commit_step`` and ``flush_step`` themselves.
        """
        disk, root = self._disk, self.root
        make_durable_directory(disk, f"{root}/commitlog")
        try:
            self._lock = disk.lock(f"{root}/lock")
        except BlockingIOError as exc:
            raise StoreLocked(f"another process uses the store in {root}") from exc
        try:
            on_locked()
            report = self._recover(progress)
        except OSError as exc:
            self._release()
            raise StoreUnusable(f"the store in {root} could not be opened: {exc}") from exc
        except BaseException:
            self._release()
            raise
        self._is_open = True
        if is_flushing:
            self._flusher.start()
            self._points.start()
            if self._committer is not None:
                self._committer.start()
        return report

    def _recover(self, progress: Progress | None) -> RecoveryReport:
        is_clean = not self._abort.is_present()
        checkpoint = self._checkpoint.read()
        identity = self._identity_file.read()
        self._log.load()
        point = self._point_file.read()
        others_from = written_by_others_from(checkpoint, point, self._log.min_physical)
        self._pools.open(identity)
        self._abort.create()
        found = FoundStore(
            root=self.root,
            point=point,
            is_clean=is_clean,
            sealed_flushed=checkpoint.flushed,
            failed_flushed=self._failure_record.read(),
            buffers=self._pools.found(),
            expected=self._pools.expected(identity, is_clean=is_clean),
            seals=seals_of(identity, others_from),
        )
        recovery = Recovery(self._disk, self.settings, self._log, self._queues, self._index)
        report = self._run(recovery, found, progress)
        self._begin(identity or new_identity(report.end), report, others_from)
        self._dispatcher.index = self._index
        self._dispatcher.dispatched = report.end
        self._dispatcher.tail = (report.end, recovery.tail, self._log.last_timestamp_ms)
        if self.settings.flush.is_sync or not self._pools.status.is_crash_safe:
            self._dispatcher.hold()
        self._points.deleted = dict(point.deleted) if point is not None else {}
        self._points.finish()
        if self._failure.error is not None:
            raise StoreUnusable("the recovered store could not be flushed") from self._failure.error
        self._failure_record.remove()
        return report

    def _run(self, recovery: Recovery, found: FoundStore, progress: Progress | None) -> RecoveryReport:
        """Recover. A sync that fails now is a failed flush: the next start must rewrite what it was to bring there."""
        try:
            return recovery.run(found, progress)
        except OSError:
            with suppress(OSError):
                self._failure_record.write(recovery.durable_mark)
            raise

    def _begin(self, identity: StoreIdentity, report: RecoveryReport, others_from: int | None) -> None:
        """The next generation: buffers void and ready first, then the identity that new ones are stamped with."""
        started = self._pools.moved(identity.started(report.end, written_by_others_from=others_from))
        self.identity = write_or_keep(self._identity_file, identity, started)
        self._pools.prepare(self.identity)
        pool = self._pools.pool
        if pool is not None:
            self._committer = Committer(
                self.settings.pool, self._clock, self._log, pool, self._failure, self._on_progress
            )  # fmt: skip
            self._log.pool = pool
            self._log.pool_drained = self._committer.want
            self._log.returned = self._committer.take
        self._log.start_at(report.end)

    def close(self) -> None:
        """Stop cleanly: no more appends, commit and flush everything, remove the abort marker, let go of all files.

        If a flush fails or has failed, the marker stays, and the next start recovers.
        """
        if not self._is_open:
            return
        self._is_open = False
        self._log.is_read_only = True
        if self._committer is not None:
            self._committer.stop()
        self._flusher.stop()
        self._points.stop()
        with suppress(FlushFailed):
            self._flusher.flush()
            self.advance()
        if self._points.finish() and self._dispatcher.held_count == 0:
            self._return_all()
            try:
                self._abort.remove()
            except OSError as exc:
                # Everything is on the disk already: at worst the next start reads more than it has to.
                log.warning("the mark of an unclean stop could not be removed", extra={"reason": str(exc)})
        self._release()

    def _return_all(self) -> None:
        """Everything is in the files: no buffer holds anything any more."""
        self._log.file = None
        self._log.return_all()
        if self._committer is not None:
            self._committer.give_back()

    def _release(self) -> None:
        self.removal.close()
        self._checkpoint.close()
        self._queues.close()
        if self._index is not None:
            self._index.close()
        self._log.close()
        self._pools.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def advance(self) -> bool:
        """Act on what the threads have done: buffers go back, consumers see what is confirmed now.

        False when there was no room to show all of it: call again, later.
        """
        self._log.return_buffers()
        return not self._dispatcher.is_held or self._dispatcher.release(self.confirmed)

    # -- positions -----------------------------------------------------------------------------------------------------

    @property
    def min_physical(self) -> int:
        """The first byte of the log that is still there."""
        return self._log.min_physical

    @property
    def wrote(self) -> int:
        return self._log.wrote

    @property
    def committed(self) -> int:
        return self._log.committed

    @property
    def flushed(self) -> int:
        return self._log.flushed

    @property
    def promised(self) -> int:
        """Records that end at or before it may be acknowledged."""
        return promised_offset(self._positions, is_sync_flush=self.settings.flush.is_sync)

    @property
    def confirmed(self) -> int:
        """How far consumers may see."""
        return confirmed_offset(
            self._positions,
            is_sync_flush=self.settings.flush.is_sync,
            is_crash_safe=self._pools.status.is_crash_safe,
        )

    @property
    def _positions(self) -> Positions:
        return Positions(self._log.wrote, self._log.committed, self._log.flushed)

    @property
    def pool_status(self) -> PoolStatus:
        """The write buffers in one look."""
        return self._pools.status

    @property
    def sync_count(self) -> int:
        """How many times a file of the log was synced since the start."""
        return self._log.sync_count

    @property
    def dispatched(self) -> int:
        return self._dispatcher.dispatched

    @property
    def last_timestamp_ms(self) -> int:
        """The store time of the newest message."""
        return self._log.last_timestamp_ms

    @property
    def is_next_file_wanted(self) -> bool:
        """Whether the log's current file is half full and the next one could not be made."""
        return self._log.is_next_file_wanted

    def make_next_file(self) -> None:
        """Have the log's next file made in the background, since there is room again."""
        self._log.preallocate()

    @property
    def is_writable(self) -> bool:
        return self._is_open and not self._log.is_read_only

    # -- queues --------------------------------------------------------------------------------------------------------

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, made if it does not exist. Raises ``ValueError`` for a name that cannot be a topic's."""
        return self._queues.get_or_create(topic, queue_id)

    def find_queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, if it exists."""
        return self._queues.get(topic, queue_id)

    @property
    def queue_count(self) -> int:
        return len(self._queues)

    def topics(self) -> dict[str, list[int]]:
        """Topics that have queues, with the queue ids in order."""
        return self._queues.topics()

    def delete_topic(self, topic: str) -> bool:
        """Drop all queues of a topic; its messages stay in the log until they expire. False if it has none."""
        queues = {queue for queue in self._queues if queue.topic == topic}
        if not self._queues.delete_topic(topic):
            return False
        self._dispatcher.forget(queues)
        self._points.deleted = {**self._points.deleted, topic: self._log.wrote}
        self._points.request_point()
        return True

    # -- appending -----------------------------------------------------------------------------------------------------

    def append(self, drafts: Sequence[Draft]) -> tuple[list[int], list[int]]:
        """Append a batch: (physical offsets, queue offsets). All or nothing.

        Raises ``StoreFull``, ``PoolExhausted``, ``LogReadOnly`` or ``MessageTooLarge``.
        """
        commit_log = self._log
        now_ms = max(self._clock.wall_ms(), commit_log.last_timestamp_ms)
        placed = append_batch(commit_log, self._dispatcher, self._store_host, drafts, now_ms)
        self._wake_threads()
        return placed

    def append_contiguous(self, drafts: Sequence[Draft]) -> tuple[list[int], list[int]]:
        """As ``append``, with all records in one file."""
        commit_log = self._log
        now_ms = max(self._clock.wall_ms(), commit_log.last_timestamp_ms)
        placed = append_contiguous(commit_log, self._dispatcher, self._store_host, drafts, now_ms)
        self._wake_threads()
        return placed

    def _wake_threads(self) -> None:
        """Let the threads begin that somebody waits for, or that have enough to do."""
        commit_log = self._log
        if self._committer is not None:
            if commit_log.wrote - commit_log.committed >= self._commit_wake_bytes:
                self._committer.wake()
            elif self._dispatcher.is_held and self.is_awaited():
                self._committer.want()
        if self._is_flush_woken and commit_log.wrote - commit_log.flushed >= self._flusher.wake_bytes:
            self._flusher.wake()

    def flush(self) -> int:
        """Wait until everything written is on the disk; up to where. Raises ``FlushFailed``. Not for the loop."""
        return self._flusher.flush()

    def commit_step(self) -> None:
        """One round of the commit thread, for whoever opened without threads."""
        if self._committer is not None:
            self._committer.step()
        self.advance()

    def flush_step(self) -> None:
        """One round of the flush thread and of the one that writes recovery points."""
        self._flusher.step()
        self._points.step()
        self.advance()

    # -- dispatch ------------------------------------------------------------------------------------------------------

    def hold_dispatch(self) -> None:
        """From now on messages are stored, but shown to consumers only by ``release_dispatch``."""
        self._dispatcher.hold()

    def release_dispatch(self, confirmed: int) -> None:
        """Show every message that ends at or before the physical offset ``confirmed``."""
        self._dispatcher.release(confirmed)

    def stop_holding_dispatch(self) -> None:
        """Show everything, and show what comes at once."""
        self._dispatcher.release(self._log.wrote, keep_holding=False)

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(
        self, topic: str, queue_id: int, offset: int, *, count_max: int, bytes_max: int, accept: Accept = None
    ) -> ReadResult:
        """Messages of a queue from ``offset`` on; see ``reader``. Raises ``StoreCorrupt`` when the queue is wrong."""
        queue, is_ours = self._queues.get(topic, queue_id), self.identity.is_ours
        return read_messages(
            self._log, queue, offset, count_max=count_max, bytes_max=bytes_max, accept=accept, is_ours=is_ours
        )

    def message_at(self, physical_offset: int) -> bytes | None:
        """The whole record at ``physical_offset``, checked, or None."""
        extent = self._log.at(physical_offset)
        if extent is None or not self._log.min_physical <= physical_offset < self._log.wrote:
            return None
        position, is_sealed = physical_offset - extent.base_offset, self.identity.is_ours(physical_offset)
        check = check_record(extent.view, position, physical_offset=physical_offset, is_sealed=is_sealed)
        return bytes(extent.view[position : position + check.size]) if check.is_good else None

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, upper: bool = False) -> int:
        """A queue offset by store time; see ``time_search``. 0 for a queue that does not exist."""
        queue = self._queues.get(topic, queue_id)
        return 0 if queue is None else offset_by_time(self._log, queue, timestamp_ms, is_upper=upper)

    def earliest_time(self, topic: str, queue_id: int) -> int:
        """The store time of a queue's first message, or -1."""
        queue = self._queues.get(topic, queue_id)
        return -1 if queue is None else earliest_time(self._log, queue)

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """The store time of one message, or -1."""
        queue = self._queues.get(topic, queue_id)
        return -1 if queue is None else store_time(self._log, queue, offset)

    def query_keys(
        self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int
    ) -> tuple[list[bytes], int, int]:
        """Records that may carry ``key`` (equal hashes come along), and how far the index has come: time, offset."""
        if self._index is None:
            return [], 0, 0
        matches = self._index.find(topic, key, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms)
        records = [record for offset in matches.physical_offsets if (record := self.message_at(offset)) is not None]
        return records, matches.last_timestamp_ms, matches.last_physical


__all__ = ["Draft", "MessageStore", "ReadResult", "ReadStatus", "RecoveryReport"]
