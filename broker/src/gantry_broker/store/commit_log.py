"""The commit log: every message of every topic, in the order of arrival, in consecutive files.

    [min_physical ...... flushed ...... committed = wrote ...... end of the last file)

Bytes go in through ``view`` of the last used file, at ``position``; ``wrote`` moves after them. A record is never
split: when one does not fit with 8 bytes to spare, a blank record closes the file and the next file takes it. The next
file is made in a helper thread when the current one is half full, and has all its blocks before it is mapped.

What it refuses to know: queues, keys, who may see what. Those read ``wrote`` and ask for bytes.
"""

from __future__ import annotations

import errno
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, final

from gantry_broker.errors import LogReadOnly, StoreFull
from gantry_broker.ports.clock import Clock
from gantry_broker.ports.disk import Disk
from gantry_broker.store.file_queue import FileQueue
from gantry_broker.store.mapped_file import MappedFile, full_disk_is_store_full
from gantry_broker.store.settings import StoreSettings
from gantry_wire.message import BLANK_MAGIC, BLANK_RECORD

_EMPTY_VIEW: Final = memoryview(bytearray(0))


def blank_record(remaining: int) -> bytes:
    """What closes a file with ``remaining`` bytes left."""
    return BLANK_RECORD.pack(remaining, BLANK_MAGIC)


@final
class CommitLog:
    """The log of one store.

    Owned by the loop's thread, except: ``flushed`` is written by the flush thread, ``is_read_only`` by either, once.
    The helper thread only makes files, and hands them over through a future.
    """

    def __init__(self, disk: Disk, directory: str, settings: StoreSettings, clock: Clock) -> None:
        self.files = FileQueue(disk, directory, settings.mapped_file_size_commit_log)
        self.file_size: Final = settings.mapped_file_size_commit_log
        self.wrote = 0
        self.flushed = 0
        self.last_timestamp_ms = 0
        self.is_read_only = False
        self.file: MappedFile | None = None
        self.view = _EMPTY_VIEW
        self.base_offset = 0
        self.position = 0
        self.preallocate_at = self.file_size // 2
        self._clock = clock
        self._space_retry_interval_ms: Final = settings.space_retry_interval_ms
        self._space_retry_at_ms: int | None = None
        self._next: Future[MappedFile] | None = None
        self._allocator = ThreadPoolExecutor(1, "gantry-allocate") if settings.is_preallocating else None

    def __repr__(self) -> str:
        return f"<CommitLog min={self.min_physical} wrote={self.wrote} flushed={self.flushed} {self.files!r}>"

    @property
    def committed(self) -> int:
        """What is in the page cache: everything, as long as appends go straight into the map."""
        return self.wrote

    @property
    def min_physical(self) -> int:
        """The first offset that is still there."""
        return self.files.base_offset

    def load(self) -> None:
        """Open the files that are there, with blocks behind every byte of them."""
        self.files.load(setting="mappedFileSizeCommitLog", is_derived=False)
        for file in self.files.files:
            file.reserve(self.file_size)

    def start_at(self, offset: int) -> None:
        """Append from ``offset`` on. The file that holds it is created if need be. Raises ``StoreFull``."""
        file = self.files.at(offset)
        if file is None:
            file = self._create(offset - offset % self.file_size)
            self.files.adopt(file)
            self.files.is_directory_dirty = False
        self.wrote = offset
        self.use(file, offset - file.base_offset)

    def refuse_after(self, error: OSError) -> StoreFull | LogReadOnly:
        """A write failed: no space may come back, anything else ends writing for good."""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return StoreFull(f"no space on the disk: {error}")
        self.is_read_only = True
        return LogReadOnly(f"the log cannot be written: {error}")

    def use(self, file: MappedFile, position: int) -> None:
        """Make ``file`` the one that is written."""
        self.file = file
        self.view = file.view
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
        if self._allocator is None or self._next is not None or self.files.at(base) is not None:
            return
        self._next = self._allocator.submit(self._create, base)

    def _create(self, base_offset: int) -> MappedFile:
        file = self.files.create(base_offset, reserve=self.file_size)
        # Its size and its name are durable before a record goes in: a file in the middle can then never be missing.
        try:
            with full_disk_is_store_full(file.path):
                file.file.sync()
                self.files.disk.sync_directory(self.files.directory)
        except StoreFull:
            file.close()
            self.files.disk.remove(file.path)
            raise
        return file

    def file_after(self, base_offset: int) -> MappedFile:
        """The file behind the one that begins at ``base_offset``, made now if it is not there. Raises ``StoreFull``."""
        base = base_offset + self.file_size
        file = self.files.at(base)
        if file is not None:
            return file
        self._refuse_while_full()
        future, self._next = self._next, None
        try:
            made_ahead = future is not None and future.exception() is None
            file = future.result() if future is not None and made_ahead else self._create(base)
        except StoreFull:
            self._space_retry_at_ms = self._clock.monotonic_ms() + self._space_retry_interval_ms
            raise
        self._space_retry_at_ms = None
        self.files.adopt(file)
        self.files.is_directory_dirty = False
        return file

    def _refuse_while_full(self) -> None:
        if self._space_retry_at_ms is not None and self._clock.monotonic_ms() < self._space_retry_at_ms:
            raise StoreFull("no space on the disk for the next file of the commit log")

    # -- reading -------------------------------------------------------------------------------------------------------

    def slice(self, offset: int, size: int) -> memoryview | None:
        """``size`` bytes at ``offset``, not copied, or None unless all of them are written and in one file."""
        if size < 0 or offset + size > self.wrote:
            return None
        file = self.files.at(offset)
        if file is None or offset + size > file.end_offset:
            return None
        position = offset - file.base_offset
        return file.view[position : position + size]

    # -- durability ----------------------------------------------------------------------------------------------------

    def sync(self) -> int:
        """Make everything written so far durable and say up to where. An ``OSError`` here is final."""
        end = self.wrote
        flushed = self.flushed
        if end > flushed:
            for file in self.files.files:
                if file.end_offset > flushed and file.base_offset < end:
                    file.file.sync()
            self.flushed = end
        return end

    def close(self) -> None:
        """Close all files. A file made ahead stays on disk, where the next start finds it."""
        future, self._next = self._next, None
        if self._allocator is not None:
            self._allocator.shutdown(wait=True)
        if future is not None and future.exception() is None:
            future.result().close()
        self.view = _EMPTY_VIEW
        self.files.close()
