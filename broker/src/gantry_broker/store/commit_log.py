"""The commit log: all messages of all topics, in the order of arrival, in consecutive files.

    [min_physical ...... flushed ...... committed ...... wrote ...... end of the last file)
                                             `- only in write buffers -'

A record is never split: when one does not fit with 8 bytes to spare, a blank record closes the file and the next file
takes it. The next file is created ahead of time, when the current one is half full (``next_file``).

Without a pool bytes are written to the page cache at once, and written bytes are committed. With a pool they are
written to the buffer that the file has borrowed; ``commit`` copies them into the file, in the background, and a file
that is full and committed returns its buffer. ``sync`` covers what is committed.

The log has no knowledge of queues, keys or visibility. The modules for those read ``wrote`` and request bytes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, final

from gantry_broker.errors import LogReadOnly, PoolExhausted, StoreFull, is_disk_full
from gantry_broker.ports.clock import Clock
from gantry_broker.ports.disk import Disk, write_fully
from gantry_broker.store import crash_points
from gantry_broker.store.file_queue import FileQueue
from gantry_broker.store.fillers import LogFillers
from gantry_broker.store.mapped_file import Extent, MappedFile
from gantry_broker.store.next_file import NextFileAllocator
from gantry_broker.store.settings import StoreSettings
from gantry_broker.store.write_buffer import WriteBuffer
from gantry_broker.store.write_pool import WritePool
from gantry_wire.message import BLANK_MAGIC, BLANK_RECORD

log = logging.getLogger(__name__)

NEWEST_BYTES_MAX: Final = 1 << 20
"""Limit of the bytes of the newest append that are kept in memory."""

COMMIT_CHUNK_BYTES: Final = 1 << 20
"""How many bytes one ``pwrite`` of a commit copies from a write buffer into the file."""

Span = tuple[MappedFile, int, bytes]
"""Bytes for one log file: the file, the position, the bytes."""


def blank_record(remaining: int) -> bytes:
    """Return the blank record that closes a file with ``remaining`` bytes left."""
    return BLANK_RECORD.pack(remaining, BLANK_MAGIC)


@final
class CommitLog:
    """The commit log of one store.

    Owned by the loop's thread, with these exceptions: with a pool ``committed`` is written by the thread that holds the
    commit lock, ``flushed`` and ``sync_count`` by the one that holds the sync lock, and ``is_read_only`` by any thread.
    The thread ``gantry-allocate`` only creates files, and passes them on through a future.
    """

    def __init__(self, disk: Disk, directory: str, settings: StoreSettings, clock: Clock) -> None:
        self.files = FileQueue(disk, directory, settings.mapped_file_size_commit_log)
        self.fillers: Final = LogFillers(self.files)
        """Filler files that replace lost files of the log."""
        self.blanks: dict[int, int] = {}
        """Base offsets of files that end in a large blank record, which was copied in parts: where it begins."""
        self.file_size: Final = settings.mapped_file_size_commit_log
        self._newest: tuple[int, bytes] = (0, b"")
        self.wrote = 0
        """End of the bytes that are in a write buffer or in the page cache."""
        self.committed = 0
        """End of what is in the page cache of the files. Equal to ``wrote`` where there is no buffer."""
        self.flushed = 0
        """End of the bytes for which ``fdatasync`` has returned."""
        self.sync_count = 0
        """Number of fsync calls since the start. Group commit keeps it far below the number of messages."""
        self.last_timestamp_ms = 0
        """The newest store time in the log. Later messages get no earlier one."""
        self.is_read_only = False
        """Whether nothing is appended any more: after a failed write or flush, or when the store closes."""
        self.file: MappedFile | None = None
        """The file to append to; None while the log changes, or after ``start_at`` has failed: see ``reopen``."""
        self.base_offset = 0
        """Where ``file`` begins, kept here because every append needs it."""
        self.position = 0
        """The position in ``file`` at which the next append writes."""
        self.pool: WritePool | None = None
        """The pool of write buffers; None if appends go to the page cache."""
        self._on_exhausted: Callable[[], None] = lambda: None
        self._on_returned: Callable[[WriteBuffer], None] = lambda buffer: None
        self._on_wrote: Callable[[int], None] = lambda end: None
        self._on_flushed: Callable[[int], None] = lambda end: None
        self._on_file_begun: Callable[[int, bytes], None] = lambda base_offset, data: None
        self.require_own_file: Callable[[int], None] = lambda offset: None
        """Called before bytes at an offset are trusted. Raises ``StoreFailed`` if the file belongs to another store."""

        self.preallocate_at = self.file_size // 2
        """The position in ``file`` from which on the next file is created ahead of time."""
        self.next: Final = NextFileAllocator(self.files, settings, clock)
        self._next_buffer: WriteBuffer | None = None
        self._commit_lock: Final = threading.Lock()
        self._sync_lock: Final = threading.Lock()

    def __repr__(self) -> str:
        return f"<CommitLog min={self.min_physical} wrote={self.wrote} flushed={self.flushed} {self.files!r}>"

    def use_write_pool(
        self, pool: WritePool, *, on_exhausted: Callable[[], None], on_returned: Callable[[WriteBuffer], None]
    ) -> None:
        """Append through write buffers of ``pool`` from now on.

        ``on_exhausted`` is called when a buffer is needed and none is free, so that buffered bytes are committed at
        once. ``on_returned`` is called with each buffer that its file no longer needs.
        """
        self.pool, self._on_exhausted, self._on_returned = pool, on_exhausted, on_returned

    def set_progress_callbacks(
        self,
        *,
        on_wrote: Callable[[int], None] = lambda end: None,
        on_flushed: Callable[[int], None] = lambda end: None,
    ) -> None:
        """Set callbacks that record the end of the log for the next start.

        Each is called with the new ``wrote`` or ``flushed``, in the thread that has moved it.
        """
        self._on_wrote, self._on_flushed = on_wrote, on_flushed

    def set_file_callbacks(
        self, *, on_file_begun: Callable[[int, bytes], None], require_own_file: Callable[[int], None]
    ) -> None:
        """Set the callbacks about files.

        ``on_file_begun`` is called with a file's base offset and the first records written to it; for the other see the
        attribute ``require_own_file``.
        """
        self._on_file_begun, self.require_own_file = on_file_begun, require_own_file

    @property
    def min_physical(self) -> int:
        """The first offset that has not been deleted."""
        return self.files.base_offset

    def load(self) -> None:
        """Open the existing files and allocate blocks for every byte of them but of fillers, if the disk has room.

        The file that is appended to gets its blocks in ``start_at``; the others can be read without. A missing file
        between two others is replaced by a filler.
        """
        self.files.load(setting="mappedFileSizeCommitLog", is_derived=False, fill=self.fillers.create)
        self.fillers.find()
        for file in self.files.files:
            if file.base_offset not in self.fillers:
                with suppress(StoreFull):
                    file.reserve(self.file_size)

    def set_end(self, end: int) -> None:
        """Set the end of the log to ``end``, which is durable, after a truncation or a recovery."""
        self.wrote = self.committed = self.flushed = end
        self.blanks = {base: start for base, start in self.blanks.items() if start < end}

    def start_at(self, offset: int) -> None:
        """Start to append at ``offset``, before which everything is durable. Creates the file if it does not exist.

        Raises ``StoreFull``.
        """
        self.wrote = self.committed = self.flushed = offset
        file = self.open_file(offset - offset % self.file_size)
        file.reserve(self.file_size)
        if self.pool is not None and file.buffer is None:
            self._attach(file, offset)
        self.switch_to(file, offset - file.base_offset)

    def reopen(self) -> MappedFile:
        """Return the file to append to, after ``start_at`` has found no space for it. Raises ``StoreFull``."""
        base = self.wrote - self.wrote % self.file_size
        if self.files.at(base) is None:
            self.files.adopt(self.next.take(base), is_durable=True)
        self.start_at(self.wrote)
        assert self.file is not None, "appending has started"
        return self.file

    def open_file(self, base_offset: int) -> MappedFile:
        """Return the file that begins at ``base_offset``; create it if it does not exist. Raises ``StoreFull``."""
        file = self.files.at(base_offset)
        if file is None:
            file = self.next.create(base_offset)
            self.files.adopt(file, is_durable=True)
        return file

    def _refusal_after(self, error: OSError) -> StoreFull | LogReadOnly:
        """Return the exception for a failed write. Any error but a full disk makes the log read-only."""
        if is_disk_full(error):
            return StoreFull(f"no space on the disk: {error}")
        self.is_read_only = True
        log.critical("failed to write the commit log; it is read-only now", extra={"reason": str(error)})
        return LogReadOnly(f"the log cannot be written: {error}")

    def switch_to(self, file: MappedFile, position: int) -> None:
        """Make ``file`` the current file, to which the next append writes."""
        self.file = file
        self.base_offset = file.base_offset
        self.position = position
        self.preallocate_at = self.file_size // 2
        if position >= self.preallocate_at:
            self.preallocate()

    # -- the next file -------------------------------------------------------------------------------------------------

    def preallocate(self) -> None:
        """Have the file after the current one created by ``gantry-allocate``.

        Never raises: if the creation fails, the roll to that file raises the error.
        """
        self.preallocate_at = self.file_size + 1
        base = self.base_offset + self.file_size
        if not self.is_next_file_wanted or not self.next.request(base):
            return
        if self.pool is not None and self._next_buffer is None:
            self._next_buffer = self.pool.borrow(base, base)

    @property
    def is_next_file_wanted(self) -> bool:
        """Whether the current file is half full, and the next one neither exists nor is being created."""
        if self.position < self.file_size // 2 or self.files.at(self.base_offset + self.file_size) is not None:
            return False
        return self.next.is_wanted

    def file_after(self, base_offset: int) -> MappedFile:
        """Return the file after the one that begins at ``base_offset``, with its buffer; create it if missing.

        Raises ``StoreFull`` or ``PoolExhausted``.
        """
        base = base_offset + self.file_size
        file = self.files.at(base)
        if file is None:
            file = self.next.take(base)
            self.files.adopt(file, is_durable=True)
        if self.pool is not None and file.buffer is None:
            self._attach(file, base)
        return file

    def _attach(self, file: MappedFile, start: int) -> None:
        assert self.pool is not None, "without a pool there is nothing to attach"
        buffer, self._next_buffer = self._next_buffer, None
        if buffer is None:
            buffer = self.pool.borrow(file.base_offset, start)
        if buffer is None:
            self.return_buffers()
            self._on_exhausted()
            raise PoolExhausted("every write buffer is full of bytes that are not committed yet")
        file.attach(buffer)

    # -- reading -------------------------------------------------------------------------------------------------------

    def at(self, offset: int) -> Extent | None:
        """Return the extent that holds ``offset`` now, or None. Do not keep it: its buffer may be reused."""
        file = self.files.at(offset)
        return None if file is None else file.extent(offset)

    def slice(self, offset: int, size: int) -> memoryview | None:
        """Return ``size`` bytes at ``offset`` without a copy; None unless all are written and in one extent."""
        if size < 0 or offset + size > self.wrote:
            return None
        extent = self.at(offset)
        if extent is None or offset + size > extent.end_offset:
            return None
        position = offset - extent.base_offset
        return extent.view[position : position + size]

    def view(self, offset: int) -> memoryview:
        """Return the log from ``offset`` on, as far as it lies in one piece of memory; empty where there is none.

        Do not keep it: the next ``return_buffers`` may release the memory for another use.
        """
        extent = self.at(offset)
        if extent is None or not self.min_physical <= offset < self.wrote:
            return memoryview(b"")
        end = min(extent.end_offset, self.wrote)
        return extent.view[offset - extent.base_offset : end - extent.base_offset]

    def newest(self, offset: int) -> bytes:
        """Return the bytes from ``offset`` to the log's end if the last append wrote them at once; empty otherwise.

        Slaves and queues need these bytes right after the append: this avoids reading them through the page cache.
        """
        start, data = self._newest
        return data if start == offset and start + len(data) == self.wrote else b""

    # -- durability ----------------------------------------------------------------------------------------------------

    def write_all(self, spans: Sequence[Span]) -> None:
        """Write bytes to files or their buffers, all or nothing. Raises ``StoreFull`` or ``LogReadOnly``.

        The bytes of a failed write are zeroed: otherwise old records could follow shorter new ones later, and look
        valid.
        """
        for number, (file, position, data) in enumerate(spans):
            if number:
                crash_points.hit(crash_points.MID_ROLL)
            buffer = file.buffer
            if buffer is not None:
                buffer.view[position : position + len(data)] = data
                continue
            try:
                written = file.file.pwrite(data, position)
                if written < len(data):
                    write_fully(file.file, memoryview(data)[written:], position + written)
            except OSError as exc:
                self._zero_spans(spans[: number + 1])
                raise self._refusal_after(exc) from exc
        for file, position, data in spans:
            if not position:
                self._on_file_begun(file.base_offset, data)
        self._newest = (file.base_offset + position, data) if len(data) <= NEWEST_BYTES_MAX else (0, b"")

    def _zero_spans(self, spans: Sequence[Span]) -> None:
        try:
            for file, position, data in spans:
                file.file.zero(position, position + len(data))
        except OSError:
            self.is_read_only = True

    def advance(self, file: MappedFile, position: int, timestamp_ms: int) -> None:
        """Move the end of the log to ``position`` of ``file``. The newest message was stored at ``timestamp_ms``."""
        if file is not self.file:
            self.switch_to(file, position)
        self.position = position
        self.last_timestamp_ms = timestamp_ms
        self.wrote = wrote = file.base_offset + position
        if self.pool is None:
            self.committed = wrote
        self._on_wrote(wrote)
        if position > self.preallocate_at:
            self.preallocate()

    def note_store_time(self, timestamp_ms: int) -> None:
        """Record the store time of a message that was found in the log: later messages get no earlier time."""
        self.last_timestamp_ms = max(self.last_timestamp_ms, timestamp_ms)

    def refuse_writes(self) -> None:
        """Make the log read-only for the rest of this process. Any thread may call it."""
        self.is_read_only = True

    def commit(self) -> int:
        """Copy uncommitted bytes from buffers into the files and return the committed end.

        Any thread may call it. An ``OSError`` is final.
        """
        if self.pool is None:
            return self.committed
        with self._commit_lock:
            end = self.wrote
            for file in self.files.files if end > self.committed else ():
                if file.end_offset > self.committed and file.base_offset < end:
                    self._commit_file(file, self.committed, min(end, file.end_offset))
            return self.committed

    def _commit_file(self, file: MappedFile, start: int, end: int) -> None:
        buffer = file.buffer
        assert buffer is not None and buffer.start <= start, (file, start)
        for offset in range(start, end, COMMIT_CHUNK_BYTES):
            position = offset - file.base_offset
            with buffer.view[position : position + min(COMMIT_CHUNK_BYTES, end - offset)] as chunk:
                write_fully(file.file, chunk, position)
            crash_points.hit(crash_points.MID_COMMIT)
        self.committed = end
        buffer.note_committed(end)

    @property
    def has_returnable_buffer(self) -> bool:
        """Whether a file that is full and committed still has a buffer. Any thread may read it."""
        return any(file.buffer is not None and file.end_offset <= self.committed for file in self.files.files)

    def return_buffers(self) -> None:
        """Return the buffers of files that are full and committed. Call it only while no slice of them is in use."""
        for file in self.files.files:
            if file.buffer is not None and file.end_offset <= self.committed and file is not self.file:
                self._on_returned(file.detach())

    def return_all_buffers(self) -> None:
        """Return all buffers. Everything must be committed, and nothing is written before the next ``start_at``."""
        assert self.committed == self.wrote, self
        self.file = None
        for file in self.files.files:
            if file.buffer is not None:
                self._on_returned(file.detach())
        if self._next_buffer is not None:
            self._on_returned(self._next_buffer)
            self._next_buffer = None

    def truncate(self, end: int) -> None:
        """Zero the file after ``end`` and unlink all later files, durably. An ``OSError`` is final.

        No byte may be in a buffer.
        """
        file = self.files.at(end)
        if file is not None:
            file.file.zero(end - file.base_offset, file.size)
            crash_points.hit(crash_points.MID_TRUNCATION)
            file.file.sync()
        self.files.remove_from(end + 1 if file is not None else end)
        self.files.sync_directory()
        # A power loss may have removed the name of an empty file after the end. That is not a lost file.
        self.fillers.forget_from(end)

    def sync(self) -> int:
        """Fsync everything committed so far and return the flushed end. Any thread; an ``OSError`` is final."""
        with self._sync_lock:
            end = self.committed
            flushed = self.flushed
            if end > flushed:
                for file in self.files.files:
                    if file.end_offset > flushed and file.base_offset < end:
                        file.file.sync()
                        self.sync_count += 1
                crash_points.hit(crash_points.AFTER_SYNC)
                self.flushed = end
                self._on_flushed(end)
            return end

    def close(self) -> None:
        """Close the next-file helper and all files of the log."""
        self.next.close()
        self.files.close()
