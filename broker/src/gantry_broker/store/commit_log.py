"""The commit log: every message of every topic, in the order of arrival, in consecutive files.

    [min_physical ...... flushed ...... committed ...... wrote ...... end of the last file)
                                             `- only in write buffers -'

A record is never split: when one does not fit with 8 bytes to spare, a blank record closes the file and the next file
takes it. The next file is made ahead when the current one is half full (``next_file``).

Without a pool bytes go into the page cache at once, and what is written is committed. With one they go into the
buffer that the file has borrowed; ``commit`` writes them into the file, behind everybody's back, and a file that is
full and committed gives its buffer back. ``sync`` covers what is committed.

What it refuses to know: queues, keys, who may see what. Those read ``wrote`` and ask for bytes.
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
from gantry_broker.store.next_file import NextFile
from gantry_broker.store.settings import StoreSettings
from gantry_broker.store.write_buffer import WriteBuffer
from gantry_broker.store.write_pool import WritePool
from gantry_wire.message import BLANK_MAGIC, BLANK_RECORD

log = logging.getLogger(__name__)

NEWEST_BYTES_MAX: Final = 1 << 20
"""Of what was appended last and is kept at hand."""

COMMIT_CHUNK_BYTES: Final = 1 << 20

Span = tuple[MappedFile, int, bytes]
"""Bytes for one log file: the file, the position, the bytes."""


def blank_record(remaining: int) -> bytes:
    """What closes a file with ``remaining`` bytes left."""
    return BLANK_RECORD.pack(remaining, BLANK_MAGIC)


@final
class CommitLog:
    """The log of one store.

    Owned by the loop's thread, except: ``committed`` is written under the commit lock, ``flushed`` under the sync lock,
    by whichever thread holds it; ``is_read_only`` by any, once. The helper thread only makes files, and hands them over
    through a future.
    """

    def __init__(self, disk: Disk, directory: str, settings: StoreSettings, clock: Clock) -> None:
        self.files = FileQueue(disk, directory, settings.mapped_file_size_commit_log)
        self.fillers: Final = LogFillers(self.files)
        """The files that stand for lost ones."""
        self.blanks: dict[int, int] = {}
        """Where files begin that end in a large blank record, copied in parts, and where that record begins."""
        self.file_size: Final = settings.mapped_file_size_commit_log
        self._newest: tuple[int, bytes] = (0, b"")
        self.wrote = 0
        self.committed = 0
        """What is in the page cache of the files. Follows ``wrote`` at once where there is no buffer."""
        self.flushed = 0
        self.sync_count = 0
        """How often a file was synced since the start. Group commit keeps it far below the number of messages."""
        self.last_timestamp_ms = 0
        self.is_read_only = False
        self.file: MappedFile | None = None
        self.base_offset = 0
        self.position = 0
        self.pool: WritePool | None = None
        self._pool_drained: Callable[[], None] = lambda: None
        self._returned: Callable[[WriteBuffer], None] = lambda buffer: None
        self._mark_wrote: Callable[[int], None] = lambda end: None
        self._mark_flushed: Callable[[int], None] = lambda end: None
        self._file_begun: Callable[[int, bytes], None] = lambda base_offset, data: None
        self.demand_own: Callable[[int], None] = lambda offset: None
        """Called before bytes at an offset are trusted. Raises ``StoreFailed`` if the file belongs to another store."""

        self.preallocate_at = self.file_size // 2
        self.next: Final = NextFile(self.files, settings, clock)
        self._next_buffer: WriteBuffer | None = None
        self._commit_lock: Final = threading.Lock()
        self._sync_lock: Final = threading.Lock()

    def __repr__(self) -> str:
        return f"<CommitLog min={self.min_physical} wrote={self.wrote} flushed={self.flushed} {self.files!r}>"

    def borrow_from(
        self, pool: WritePool, *, drained: Callable[[], None], returned: Callable[[WriteBuffer], None]
    ) -> None:
        """Append through buffers of ``pool``.

        ``drained`` is called when a buffer is wanted and none is free: commit now. ``returned`` takes the buffers that
        files have done with.
        """
        self.pool, self._pool_drained, self._returned = pool, drained, returned

    def record_progress(
        self, *, wrote: Callable[[int], None] = lambda end: None, flushed: Callable[[int], None] = lambda end: None
    ) -> None:
        """Have it recorded, for the next start, how far the log has come, by the thread that has moved the position."""
        self._mark_wrote, self._mark_flushed = wrote, flushed

    def watch_files(self, *, begun: Callable[[int, bytes], None], demand_own: Callable[[int], None]) -> None:
        """``begun`` is called with the first bytes that were put into a file, whole records; see ``demand_own``."""
        self._file_begun, self.demand_own = begun, demand_own

    @property
    def min_physical(self) -> int:
        """The first offset that is still there."""
        return self.files.base_offset

    def load(self) -> None:
        """Open the files that are there, with blocks behind every byte of them, if there is room for that.

        The one that is appended to gets its blocks in ``start_at``; the others can be read without. A hole in between
        gets a filler.
        """
        self.files.load(setting="mappedFileSizeCommitLog", is_derived=False, fill=self.fillers.create)
        self.fillers.find()
        for file in self.files.files:
            if file.base_offset not in self.fillers:
                with suppress(StoreFull):
                    file.reserve(self.file_size)

    def move_to(self, end: int) -> None:
        """The log ends at ``end``, durably, which is not where an append has left it."""
        self.wrote = self.committed = self.flushed = end
        self.blanks = {base: start for base, start in self.blanks.items() if start < end}

    def start_at(self, offset: int) -> None:
        """Append from ``offset`` on; all before it is durable. The file is created if need be. Raises ``StoreFull``."""
        self.wrote = self.committed = self.flushed = offset
        file = self.open_file(offset - offset % self.file_size)
        file.reserve(self.file_size)
        if self.pool is not None and file.buffer is None:
            self._attach(file, offset)
        self.use(file, offset - file.base_offset)

    def open_file(self, base_offset: int) -> MappedFile:
        """The file that begins there, created if need be. Raises ``StoreFull``."""
        file = self.files.at(base_offset)
        if file is None:
            file = self.next.create(base_offset)
            self.files.adopt(file, is_durable=True)
        return file

    def _refuse_after(self, error: OSError) -> StoreFull | LogReadOnly:
        """A write failed: no space may come back, anything else ends writing for good."""
        if is_disk_full(error):
            return StoreFull(f"no space on the disk: {error}")
        self.is_read_only = True
        log.critical("the log cannot be written and is read-only now", extra={"reason": str(error)})
        return LogReadOnly(f"the log cannot be written: {error}")

    def use(self, file: MappedFile, position: int) -> None:
        """Make ``file`` the one that is written."""
        self.file = file
        self.base_offset = file.base_offset
        self.position = position
        self.preallocate_at = self.file_size // 2
        if position >= self.preallocate_at:
            self.preallocate()

    # -- the next file -------------------------------------------------------------------------------------------------

    def preallocate(self) -> None:
        """Have the file after the current one made by the helper thread. No error ever: a roll will meet it."""
        self.preallocate_at = self.file_size + 1
        base = self.base_offset + self.file_size
        if not self.is_next_file_wanted or not self.next.request(base):
            return
        if self.pool is not None and self._next_buffer is None:
            self._next_buffer = self.pool.borrow(base, base)

    @property
    def is_next_file_wanted(self) -> bool:
        """Whether the current file is half full and there is none after it, nor is one being made."""
        if self.position < self.file_size // 2 or self.files.at(self.base_offset + self.file_size) is not None:
            return False
        return self.next.is_wanted

    def file_after(self, base_offset: int) -> MappedFile:
        """The file behind the one that begins at ``base_offset``, made now if it is not there, with its buffer.

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
            self._pool_drained()
            raise PoolExhausted("every write buffer is full of bytes that are not committed yet")
        file.attach(buffer)

    # -- reading -------------------------------------------------------------------------------------------------------

    def at(self, offset: int) -> Extent | None:
        """Where the bytes at ``offset`` can be read now, or None. Not to be kept: a buffer may go to somebody else."""
        file = self.files.at(offset)
        return None if file is None else file.extent(offset)

    def slice(self, offset: int, size: int) -> memoryview | None:
        """``size`` bytes at ``offset``, not copied, or None unless all of them are written and in one extent."""
        if size < 0 or offset + size > self.wrote:
            return None
        extent = self.at(offset)
        if extent is None or offset + size > extent.end_offset:
            return None
        position = offset - extent.base_offset
        return extent.view[position : position + size]

    def view(self, offset: int) -> memoryview:
        """The log from ``offset`` on, as far as it lies in one piece of memory; empty where there is none.

        Do not keep it: the next ``advance`` may reuse the memory.
        """
        extent = self.at(offset)
        if extent is None or not self.min_physical <= offset < self.wrote:
            return memoryview(b"")
        end = min(extent.end_offset, self.wrote)
        return extent.view[offset - extent.base_offset : end - extent.base_offset]

    def newest(self, offset: int) -> bytes:
        """Everything from ``offset`` to the log's end, if that is just what was put there last; empty otherwise.

        Slaves and queues want these bytes right after the append: this spares reading them through the page cache.
        """
        start, data = self._newest
        return data if start == offset and start + len(data) == self.wrote else b""

    # -- durability ----------------------------------------------------------------------------------------------------

    def write_all(self, spans: Sequence[Span]) -> None:
        """Put bytes into files or their buffers. Raises ``StoreFull`` or ``LogReadOnly``; then nothing of it is there.

        What a failed write leaves behind is made zero again: it would be whole records behind shorter ones later.
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
                self._take_back(spans[: number + 1])
                raise self._refuse_after(exc) from exc
        for file, position, data in spans:
            if not position:
                self._file_begun(file.base_offset, data)
        self._newest = (file.base_offset + position, data) if len(data) <= NEWEST_BYTES_MAX else (0, b"")

    def _take_back(self, spans: Sequence[Span]) -> None:
        try:
            for file, position, data in spans:
                file.file.zero(position, position + len(data))
        except OSError:
            self.is_read_only = True

    def advance(self, file: MappedFile, position: int, timestamp_ms: int) -> None:
        """What was put before ``position`` of ``file`` counts now; the newest of it was stored at ``timestamp_ms``."""
        if file is not self.file:
            self.use(file, position)
        self.position = position
        self.last_timestamp_ms = timestamp_ms
        self.wrote = wrote = file.base_offset + position
        if self.pool is None:
            self.committed = wrote
        self._mark_wrote(wrote)
        if position > self.preallocate_at:
            self.preallocate()

    def note_store_time(self, timestamp_ms: int) -> None:
        """A message that was stored at ``timestamp_ms`` was found in the log: none is older from now on."""
        self.last_timestamp_ms = max(self.last_timestamp_ms, timestamp_ms)

    def refuse_writes(self) -> None:
        """Nothing more is appended. Any thread, once."""
        self.is_read_only = True

    def commit(self) -> int:
        """Write what is in buffers only into the files and say up to where. Any thread; an ``OSError`` is final."""
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
    def has_returnable(self) -> bool:
        """Whether a file that is full and committed still has a buffer. Any thread may ask."""
        return any(file.buffer is not None and file.end_offset <= self.committed for file in self.files.files)

    def return_buffers(self) -> None:
        """Let files that are full and committed give their buffers back. Only while no slice of them is in use."""
        for file in self.files.files:
            if file.buffer is not None and file.end_offset <= self.committed and file is not self.file:
                self._returned(file.detach())

    def return_all(self) -> None:
        """Take all buffers from their files, since everything is committed and nothing is written before a start."""
        assert self.committed == self.wrote, self
        self.file = None
        for file in self.files.files:
            if file.buffer is not None:
                self._returned(file.detach())
        if self._next_buffer is not None:
            self._returned(self._next_buffer)
            self._next_buffer = None

    def cut(self, end: int) -> None:
        """Make everything behind ``end`` zero, durably. Nothing may be in buffers. An ``OSError`` is final."""
        file = self.files.at(end)
        if file is not None:
            file.file.zero(end - file.base_offset, file.size)
            crash_points.hit(crash_points.MID_TRUNCATION)
            file.file.sync()
        self.files.remove_from(end + 1 if file is not None else end)
        self.files.sync_directory()
        # Between an end and files that held nothing a power loss may have taken the name of one: that is no hole.
        self.fillers.forget_from(end)

    def sync(self) -> int:
        """Make everything committed so far durable and say up to where. Any thread; an ``OSError`` is final."""
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
                self._mark_flushed(end)
            return end

    def close(self) -> None:
        """Close all files."""
        self.next.close()
        self.files.close()
