"""The store's facade: open, append, read, look up, close.

One directory, laid out as RocketMQ lays it out: ``commitlog/``, ``consumequeue/<topic>/<queue>/``, ``index/``,
``checkpoint``, ``abort``, ``lock``. The parts are in files of their own; this one joins them and keeps the order in
which they are opened, recovered and closed.

Everything here runs in the event loop's thread and returns without waiting for the disk, ``open`` and ``close``
excepted. The flush thread ``gantry-flush`` moves ``flushed``; the helper ``gantry-allocate`` makes files ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, final

from gantry_broker.errors import LogReadOnly, StoreLocked
from gantry_broker.ports.clock import Clock
from gantry_broker.ports.disk import Disk, DiskLock
from gantry_broker.store.append import append_batch, append_contiguous
from gantry_broker.store.commit_log import CommitLog
from gantry_broker.store.consume_queue import ConsumeQueue
from gantry_broker.store.dispatcher import AppendedListener, Dispatcher
from gantry_broker.store.draft import Draft
from gantry_broker.store.queue_table import QueueTable
from gantry_broker.store.reader import Accept, ReadResult, read_messages
from gantry_broker.store.settings import StoreSettings
from gantry_wire.message import check_record, decode_record


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
        self.root: Final = root
        self.settings: Final = settings
        self.on_appended: Final[list[AppendedListener]] = []
        self._disk: Final = disk
        self._clock: Final = clock
        self._store_host: Final = store_host
        self._on_fatal: Final = on_fatal
        self._log = CommitLog(disk, f"{root}/commitlog", settings, clock)
        self._queues = QueueTable(disk, f"{root}/consumequeue", settings)
        self._dispatcher = Dispatcher(self.on_appended)
        self._lock: DiskLock | None = None

    def open(self, progress: Callable[[int, int], None] | None = None) -> None:
        disk = self._disk
        disk.make_directory(f"{self.root}/commitlog")
        try:
            self._lock = disk.lock(f"{self.root}/lock")
        except BlockingIOError as exc:
            raise StoreLocked(f"another process has {self.root} open") from exc
        log = self._log
        log.load()
        if disk.exists(f"{self.root}/consumequeue"):
            disk.remove_tree(f"{self.root}/consumequeue")
        position = log.min_physical
        while (file := log.files.at(position)) is not None:
            check = check_record(file.view, position - file.base_offset, physical_offset=position)
            if check.size == 0:
                break
            if check.is_good:
                m = decode_record(file.view, position - file.base_offset)
                log.last_timestamp_ms = m.store_timestamp_ms
                if not m.sys_flag & 4:
                    from gantry_wire.hashing import tags_code

                    queue = self.queue(m.topic, m.queue_id)
                    queue.put(m.queue_offset, position, m.size, tags_code(m.properties.get("TAGS")))
            position += check.size
        log.start_at(position)
        log.flushed = 0

    def close(self) -> None:
        self._log.is_read_only = True
        self._log.sync()
        self._queues.close()
        self._log.close()
        if self._lock is not None:
            self._lock.release()

    # -- queues --------------------------------------------------------------------------------------------------------

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, made if it does not exist. Raises ``ValueError`` for a name that cannot be a topic's."""
        return self._queues.get_or_create(topic, queue_id)

    def find_queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, if it exists."""
        return self._queues.get(topic, queue_id)

    # -- appending -----------------------------------------------------------------------------------------------------

    def append(self, drafts: Sequence[Draft]) -> tuple[list[int], list[int]]:
        """Append a batch: (physical offsets, queue offsets). All or nothing.

        Raises ``StoreFull``, ``LogReadOnly`` or ``MessageTooLarge``.
        """
        return append_batch(self._log, self._dispatcher, self._store_host, drafts, self._now_ms())

    def append_contiguous(self, drafts: Sequence[Draft]) -> tuple[list[int], list[int]]:
        """As ``append``, with all records in one file."""
        return append_contiguous(self._log, self._dispatcher, self._store_host, drafts, self._now_ms())

    def _now_ms(self) -> int:
        """The wall clock, but never before the last record's time."""
        return max(self._clock.wall_ms(), self._log.last_timestamp_ms)

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


__all__ = ["LogReadOnly", "MessageStore"]
