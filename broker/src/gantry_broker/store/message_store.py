"""The store's facade: open, append, read, look up, close.

One directory, laid out as RocketMQ lays it out, and one small file of ours:

    commitlog/  consumequeue/<topic>/<queue>/  index/  checkpoint  abort  lock  recovery-point.json

The parts are in files of their own; this one joins them and keeps the order in which they are opened and closed.
``open`` and ``close`` wait for the disk; nothing else does, so everything else may run in the event loop's thread,
and must. The flush thread ``gantry-flush`` moves ``flushed``; the helper ``gantry-allocate`` makes files ahead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, final

from gantry_broker.errors import StoreLocked, StoreUnusable
from gantry_broker.ports.clock import Clock
from gantry_broker.ports.disk import Disk, DiskLock
from gantry_broker.store.abort_marker import AbortMarker
from gantry_broker.store.append import append_batch, append_contiguous
from gantry_broker.store.checkpoint import Checkpoint
from gantry_broker.store.commit_log import CommitLog
from gantry_broker.store.consume_queue import ConsumeQueue
from gantry_broker.store.dispatcher import AppendedListener, Dispatcher
from gantry_broker.store.draft import Draft
from gantry_broker.store.file_queue import make_durable_directory
from gantry_broker.store.flusher import Flusher
from gantry_broker.store.key_index import KeyIndex
from gantry_broker.store.queue_table import QueueTable
from gantry_broker.store.reader import Accept, ReadResult, ReadStatus, read_messages
from gantry_broker.store.recover import Progress, Recovery, RecoveryReport
from gantry_broker.store.recovery_point import RecoveryPointFile
from gantry_broker.store.settings import StoreSettings
from gantry_broker.store.time_search import earliest_time, offset_by_time, store_time
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
    ) -> None:
        """``on_fatal`` is called from the flush thread, once, when a flush has failed."""
        self.root: Final = root
        self.settings: Final = settings
        self.on_appended: Final[list[AppendedListener]] = []
        """Called once per batch with the queues that have become longer for consumers."""
        self._disk: Final = disk
        self._clock: Final = clock
        self._store_host: Final = store_host
        self._log: Final = CommitLog(disk, f"{root}/commitlog", settings, clock)
        self._queues: Final = QueueTable(disk, f"{root}/consumequeue", settings)
        self._index: Final = KeyIndex(disk, f"{root}/index", settings, clock) if settings.is_index_enabled else None
        self._dispatcher: Final = Dispatcher(self.on_appended)
        self._abort: Final = AbortMarker(disk, root)
        self._checkpoint: Final = Checkpoint(disk, root)
        self._point_file: Final = RecoveryPointFile(disk, root)
        self._flusher: Final = Flusher(
            settings.flush, clock, self._log, self._dispatcher, self._queues, self._index, self._checkpoint,
            self._point_file, on_fatal,
        )  # fmt: skip
        self._lock: DiskLock | None = None
        self._is_open = False

    def __repr__(self) -> str:
        return f"<MessageStore {self.root} open={self._is_open} {self._log!r}>"

    # -- life ----------------------------------------------------------------------------------------------------------

    def open(self, progress: Progress | None = None, *, is_flushing: bool = True) -> RecoveryReport:
        """Lock, recover, and be ready. Waits for the disk; ``progress(done, total)`` is told of bytes read.

        Raises ``StoreLocked``, ``StoreMismatch``, ``StoreFull`` or ``StoreUnusable``. Without ``is_flushing`` no flush
        thread runs, for tests and tools that call ``flush`` themselves.
        """
        disk, root = self._disk, self.root
        make_durable_directory(disk, f"{root}/commitlog")
        try:
            self._lock = disk.lock(f"{root}/lock")
        except BlockingIOError as exc:
            raise StoreLocked(f"another process uses the store in {root}") from exc
        try:
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
        return report

    def _recover(self, progress: Progress | None) -> RecoveryReport:
        disk = self._disk
        is_clean = not self._abort.is_present()
        sealed = self._checkpoint.read().flushed
        self._log.load()
        point = self._point_file.read()
        self._abort.create()
        recovery = Recovery(disk, self.settings, self._log, self._queues, self._index)
        report = recovery.run(point, is_clean=is_clean, sealed_flushed=sealed, progress=progress)
        self._dispatcher.index = self._index
        self._dispatcher.dispatched = report.end
        self._dispatcher.tail = (report.end, recovery.tail, self._log.last_timestamp_ms)
        self._flusher.deleted = dict(point.deleted) if point is not None else {}
        self._flusher.finish()
        if self._flusher.failure is not None:
            raise StoreUnusable("the recovered store could not be flushed") from self._flusher.failure
        return report

    def close(self) -> None:
        """Stop cleanly: no more appends, flush everything, remove the abort marker, let go of all files.

        If a flush fails or has failed, the marker stays, and the next start recovers.
        """
        if not self._is_open:
            return
        self._is_open = False
        self._log.is_read_only = True
        self._flusher.stop()
        if self._flusher.finish() and self._dispatcher.held_count == 0:
            self._abort.remove()
        self._release()

    def _release(self) -> None:
        self._checkpoint.close()
        self._queues.close()
        if self._index is not None:
            self._index.close()
        self._log.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

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
    def confirmed(self) -> int:
        """How far consumers may see. Everything written, in the modes there are so far."""
        return self._log.wrote

    @property
    def dispatched(self) -> int:
        return self._dispatcher.dispatched

    @property
    def last_timestamp_ms(self) -> int:
        """The store time of the newest message."""
        return self._log.last_timestamp_ms

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

    def topics(self) -> dict[str, list[int]]:
        """Topics that have queues, with the queue ids in order."""
        return self._queues.topics()

    def delete_topic(self, topic: str) -> bool:
        """Drop all queues of a topic; its messages stay in the log until they expire. False if it has none."""
        if not self._queues.delete_topic(topic):
            return False
        self._flusher.deleted = {**self._flusher.deleted, topic: self._log.wrote}
        self._flusher.request_point()
        return True

    # -- appending -----------------------------------------------------------------------------------------------------

    def append(self, drafts: Sequence[Draft]) -> tuple[list[int], list[int]]:
        """Append a batch: (physical offsets, queue offsets). All or nothing.

        Raises ``StoreFull``, ``LogReadOnly`` or ``MessageTooLarge``.
        """
        commit_log = self._log
        now_ms = max(self._clock.wall_ms(), commit_log.last_timestamp_ms)
        return append_batch(commit_log, self._dispatcher, self._store_host, drafts, now_ms)

    def append_contiguous(self, drafts: Sequence[Draft]) -> tuple[list[int], list[int]]:
        """As ``append``, with all records in one file."""
        commit_log = self._log
        now_ms = max(self._clock.wall_ms(), commit_log.last_timestamp_ms)
        return append_contiguous(commit_log, self._dispatcher, self._store_host, drafts, now_ms)

    def flush(self) -> int:
        """Wait until everything written is on the disk; up to where. Raises ``FlushFailed``. Not for the loop."""
        return self._flusher.flush()

    def flush_step(self) -> None:
        """One round of the flush thread, for whoever opened without one."""
        self._flusher.step()

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
        queue = self._queues.get(topic, queue_id)
        return read_messages(self._log, queue, offset, count_max=count_max, bytes_max=bytes_max, accept=accept)

    def message_at(self, physical_offset: int) -> bytes | None:
        """The whole record at ``physical_offset``, checked, or None."""
        file = self._log.files.at(physical_offset)
        if file is None or not self._log.min_physical <= physical_offset < self._log.wrote:
            return None
        position = physical_offset - file.base_offset
        check = check_record(file.view, position, physical_offset=physical_offset)
        return bytes(file.view[position : position + check.size]) if check.is_good else None

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
