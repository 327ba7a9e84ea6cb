"""Deletion of the oldest files of the log, and of the queue and index files that belong to them, as retention planned.

    helper thread   describe   the age of the oldest files
    loop            (the plan)
    helper thread   measure    the new start of every queue; ends of queues without a flushed message are made durable
    loop            retire     min_offset of the queues and min_physical move; the files leave their lists
    helper thread   unlink     log files, then queue files, each name durably, then index files; oldest first

The order is essential. Reads run in the loop's thread, so each sees all of a removal or nothing: a read at a deleted
offset is answered with the first offset that exists. Log files are unlinked first: what a crash leaves undone after
that is derived, and the next start trims queues to the beginning of the log. Before the first file is unlinked, the
checkpoint durably records the new beginning of the log, so that a deletion is not taken for a loss (on a disk that is
too full for that, after the first deletions). Each unlink of a log or queue file is durable before the next one, so
that a power loss leaves no gap. A file that cannot be unlinked stays first in line. Before all of this a queue that has
no flushed message left is made durable: after a power loss only its files hold its next offset.

Open files: a log file is closed by the thread that unlinks it, because no thread touches a file that ends at or before
``flushed``. Files of queues and index may be being synced, so the thread that syncs them, ``gantry-point``
(``point_writer``), closes them. A mapping lives as long as its last reader.

The age of a closed log file is the store time of the newest message in it:

    | record | record | ...... | newest record | blank record |          found from the end, backward

Store times never fall along the log, so the last record of a file is its newest. A file does not record where its last
record begins. It is searched from the end, by its magic and its own offset, and accepted only if it is whole and the
blank record that closes the file follows it. If that finds nothing (damage, or a record larger than any allowed), the
first message of the next file is used, which is newer: a file may be kept too long then, never too short. RocketMQ uses
the file's modification time instead, which copying a store changes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, final

from gantry_broker.errors import is_out_of_descriptors
from gantry_broker.store import crash_points
from gantry_broker.store.commit_log import CommitLog
from gantry_broker.store.consume_queue import ConsumeQueue
from gantry_broker.store.dispatcher import Dispatcher
from gantry_broker.store.file_queue import FileQueue
from gantry_broker.store.index_file import IndexFile
from gantry_broker.store.key_index import KeyIndex
from gantry_broker.store.mapped_file import MappedFile
from gantry_broker.store.queue_search import QueueSearch
from gantry_broker.store.queue_table import QueueTable
from gantry_broker.store.recovery import record_starts_backward
from gantry_broker.store.retention import FILES_PER_ROUND_MAX, LogFileFacts
from gantry_wire.message import (
    INT,
    LONG,
    MAGIC_POSITION,
    MESSAGE_MAGICS,
    PHYSICAL_OFFSET_POSITION,
    RECORD_BYTES_MIN,
    RecordFault,
    check_record,
    record_store_timestamp,
)

Trims = Mapping[ConsumeQueue, int]
"""The new first offset of each queue that is trimmed."""


@final
class OldestFilesRemoval:
    """Deletes the oldest files of one store, one round at a time. Each method documents which thread may call it."""

    def __init__(
        self,
        commit_log: CommitLog,
        dispatcher: Dispatcher,
        queues: QueueTable,
        index: KeyIndex | None,
        on_retired: Callable[[], None],
        on_failed: Callable[[str, OSError], object],
        raise_begin: Callable[[int], bool] = lambda begin: True,
    ) -> None:
        """Create the remover.

        ``raise_begin`` durably records the new beginning of the log before a file is unlinked: otherwise the deletion
        would be taken for a loss. ``on_retired`` is called when files wait for ``gantry-point`` to close them,
        ``on_failed`` after a failed sync.
        """
        self.on_begin_moved: Final[list[Callable[[int], None]]] = []
        """Callbacks that take the new beginning of the log."""

        self._log: Final = commit_log
        self._dispatcher: Final = dispatcher
        self._queues: Final = queues
        self._search: Final = QueueSearch(commit_log, queues)
        self._index: Final = index
        self._on_retired: Final = on_retired
        self._on_failed: Final = on_failed
        self._raise_begin: Final = raise_begin
        self._error: OSError | None = None
        self._newest_ms: dict[int, int] = {}
        self._skipped_queues: list[ConsumeQueue] = []
        """Queues that were corrupt when the last deletion measured them."""

        self._log_files: Final[deque[MappedFile]] = deque()
        self._queue_files: Final[deque[tuple[FileQueue, MappedFile]]] = deque()
        self._index_files: Final[deque[IndexFile]] = deque()

    def __repr__(self) -> str:
        return f"<OldestFilesRemoval {self._log!r} waiting={self.waiting_count}>"

    @property
    def waiting_count(self) -> int:
        """The number of retired files that are not unlinked yet, and of rebuilt queues that are still to be trimmed."""
        rebuilt = sum(not queue.is_corrupt for queue in self._skipped_queues)
        return len(self._log_files) + len(self._queue_files) + len(self._index_files) + rebuilt

    def _keep_from(self) -> int:
        """Return the offset before which files may be deleted. Its three limits only grow: any thread may call it."""
        commit_log = self._log
        return min(commit_log.base_offset, commit_log.flushed, self._dispatcher.dispatched)

    def describe_oldest_files(self) -> tuple[LogFileFacts, ...]:
        """Describe the oldest files, as many as a round may delete.

        Called in a helper thread: it reads the disk for files whose age it does not know.
        """
        commit_log, keep_from = self._log, self._keep_from()
        files = commit_log.files.files
        known = self._newest_ms
        self._newest_ms = {}
        facts = []
        for number, file in enumerate(files[:FILES_PER_ROUND_MAX]):
            is_removable = file.end_offset <= keep_from and file.buffer is None
            newest_ms = commit_log.last_timestamp_ms
            if is_removable:
                found = known.get(file.base_offset)
                newest_ms = newest_store_time(files, number, log_newest_ms=newest_ms) if found is None else found
                self._newest_ms[file.base_offset] = newest_ms
            facts.append(LogFileFacts(file.base_offset, file.end_offset, newest_ms, is_removable))
        return tuple(facts)

    def measure(self, offset: int) -> Trims:
        """Return the new first offsets of the queues for a log that begins at ``offset``.

        Called in a helper thread: it reads the disk, and syncs. Queues without a flushed message are durable when this
        returns. After a failed sync it is not tried again. A queue that is being rebuilt is skipped, since its start is
        found by its units; it is trimmed in a later round.
        """
        if self._error is not None:
            raise self._error
        self._skipped_queues = []
        trims: dict[ConsumeQueue, int] = {}
        for queue in self._queues:
            try:
                min_offset = self._search.min_offset_at(queue, offset)
                is_end_durable = self._has_flushed_message(queue, min_offset)
            except OSError:
                if self._queues.get(queue.topic, queue.queue_id) is queue:
                    raise
                continue  # The topic was deleted meanwhile, and ``gantry-point`` has closed its files.
            if queue.is_corrupt:
                self._skipped_queues.append(queue)
            elif min_offset > queue.min_offset:
                trims[queue] = min_offset
                if not is_end_durable:
                    self._sync_end(queue)
        return trims

    def _has_flushed_message(self, queue: ConsumeQueue, offset: int) -> bool:
        """Return whether the message of the queue offset ``offset`` is in the log after a power loss.

        A start then finds the end of the queue at it or after it. Later messages are flushed later.
        """
        unit = queue.unit(offset)
        return unit is not None and unit[0] + unit[1] <= self._log.flushed

    def _sync_end(self, queue: ConsumeQueue) -> None:
        try:
            self._queues.sync_end(queue)
        except OSError as exc:
            if not is_out_of_descriptors(exc):
                self._error = exc
                self._on_failed("sync of a consume queue", exc)
            raise

    def retire(self, offset: int, trims: Trims) -> int:
        """Let the log begin at ``offset``, the end of a file. Return how many more log files ``unlink`` must delete.

        Called in the loop's thread.
        """
        commit_log = self._log
        assert offset <= max(self._keep_from(), commit_log.min_physical), (offset, self)
        for queue, min_offset in trims.items():
            self._queue_files.extend((queue.files, file) for file in self._queues.trim(queue, min_offset))
        if self._index is not None:
            self._index_files.extend(self._index.retire_before(offset))
        files = commit_log.files.retire_before(offset)
        assert all(file.buffer is None for file in files), files
        self._log_files.extend(files)
        if files:
            for listener in self.on_begin_moved:
                listener(offset)
        return len(files)

    def unlink(self) -> None:
        """Unlink all retired files. Called in a helper thread; after an ``OSError`` call it again."""
        if self._log_files:
            begin = self._log_files[-1].end_offset
            is_recorded = self._record_begin(begin)
            crash_points.hit(crash_points.BEFORE_UNLINK)
            while self._log_files:
                file = self._log_files[0]
                self._log.files.unlink(file)
                self._log_files.popleft().close()
                is_recorded = is_recorded or self._record_begin(begin)
                crash_points.hit(crash_points.MID_UNLINK)
        has_files_to_close = bool(self._queue_files or self._index_files)
        while self._queue_files:
            files, file = self._queue_files[0]
            files.unlink(file)
            self._queue_files.popleft()
        while self._index_files:
            assert self._index is not None, "without an index it has no files"
            self._index.unlink(self._index_files[0])
            self._index_files.popleft()
        if has_files_to_close:
            self._on_retired()

    def _record_begin(self, begin: int) -> bool:
        try:
            return self._raise_begin(begin)
        except OSError as exc:
            if not is_out_of_descriptors(exc):
                self._on_failed("recording the beginning of the log in the checkpoint", exc)
            raise

    def close(self) -> None:
        """Close the log files that are still open. No other method may be called afterwards."""
        while self._log_files:
            self._log_files.popleft().close()


SEARCH_BYTES: Final = (64 << 10, 1 << 20, 17 << 20)
"""How far from the end is searched, in this order: for a usual record, a large one, the largest that fits a frame."""


def newest_store_time(files: Sequence[MappedFile], index: int, *, log_newest_ms: int) -> int:
    """Return the store time of the newest message in ``files[index]``, or of a newer one. Reads the disk."""
    found = _last_store_time(files[index])
    for file in files[index + 1 :]:
        if found is not None:
            return found
        found = _first_store_time(file)
    return found if found is not None else log_newest_ms


def _last_store_time(file: MappedFile) -> int | None:
    for length in SEARCH_BYTES:
        start = max(file.size - length, 0)
        data = file.file.pread(file.size - start, start)
        for begin in record_starts_backward(data):
            if _is_last(data, begin, file.base_offset + start + begin):
                return record_store_timestamp(data, begin)
        if start == 0:
            break
    return None


def _is_last(data: bytes, begin: int, physical_offset: int) -> bool:
    """Return whether a whole record begins at ``begin`` and the blank end of the file follows it."""
    check = check_record(data, begin, physical_offset=physical_offset)
    if not check.is_good:
        return False
    blank = check_record(data, begin + check.size)
    return blank.fault is RecordFault.BLANK and begin + check.size + blank.size == len(data)


def _first_store_time(file: MappedFile) -> int | None:
    head = file.file.pread(RECORD_BYTES_MIN, 0)
    if len(head) < RECORD_BYTES_MIN:  # another process has shortened the file
        return None
    if INT.unpack_from(head, MAGIC_POSITION)[0] not in MESSAGE_MAGICS:
        return None
    if LONG.unpack_from(head, PHYSICAL_OFFSET_POSITION)[0] != file.base_offset:
        return None
    return record_store_timestamp(head)
