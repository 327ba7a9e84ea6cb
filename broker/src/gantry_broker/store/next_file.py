"""Log files are made ahead, in a helper thread, so that a roll to the next file costs nothing.

A file has its size, all its blocks and its name on the disk before a record goes in, and its first pages in memory. One
that would take the last room of the disk is not made: that room is for queues, index and tables.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Final, final

from gantry_broker.errors import DiskTooSlow, StoreFull
from gantry_broker.ports.clock import Clock
from gantry_broker.store.file_queue import FileQueue
from gantry_broker.store.mapped_file import MappedFile, full_disk_is_store_full
from gantry_broker.store.retention import has_room_for
from gantry_broker.store.settings import StoreSettings

log = logging.getLogger(__name__)

NEXT_FILE_WAIT_S: Final = 1.0
"""How long a roll waits for a file that is still being made; a page cache that stalls so long counts as busy, too."""
PREFAULT_BYTES: Final = 64 << 20
"""How much of a new file is brought into memory ahead; more would push out what consumers read."""
PREFAULT_CHUNK_BYTES: Final = 1 << 20


@final
class NextFile:
    """``gantry-allocate``. Owned by the loop's thread; the helper thread hands files over through a future."""

    def __init__(self, files: FileQueue, settings: StoreSettings, clock: Clock) -> None:
        self.future: Future[MappedFile] | None = None
        """The file that is being made, or is made and not in use yet."""

        self._files: Final = files
        self._clock: Final = clock
        self._file_size: Final = settings.mapped_file_size_commit_log
        self._space_retry_interval_ms: Final = settings.space_retry_interval_ms
        self._space_retry_at_ms: int | None = None
        self._wait_s = NEXT_FILE_WAIT_S
        self._allocator = ThreadPoolExecutor(1, "gantry-allocate") if settings.is_preallocating else None

    def __repr__(self) -> str:
        return f"<NextFile {self.future!r}>"

    @property
    def is_wanted(self) -> bool:
        """Whether there is none, nor is one being made."""
        return self.future is None or (self.future.done() and self.future.exception() is not None)

    def request(self, base_offset: int) -> bool:
        """Have the file that begins there made by the helper thread. False if there is no thread to make it."""
        if self._allocator is None:
            return False
        try:
            self.future = self._allocator.submit(self._create_with_room, base_offset)
        except RuntimeError as exc:
            # The system has no thread to give. What was appended stands; the roll will make the file itself.
            log.warning("the next file of the log is not made ahead", extra={"reason": str(exc)})
            return False
        return True

    def take(self, base_offset: int) -> MappedFile:
        """The file that begins there, made now if it was not made ahead. Raises ``StoreFull`` or ``DiskTooSlow``."""
        if self._space_retry_at_ms is not None and self._clock.monotonic_ms() < self._space_retry_at_ms:
            raise StoreFull("no space on the disk for the next file of the commit log")
        if self._allocator is not None and self.is_wanted:
            with suppress(RuntimeError):
                self.future = self._allocator.submit(self._create_with_room, base_offset)
        future = self.future
        try:
            file = self._create_with_room(base_offset) if future is None else future.result(self._wait_s)
        except TimeoutError:
            # The loop waits for it once; from then on whoever comes is told at once.
            self._wait_s = 0.0
            raise DiskTooSlow("the next file of the commit log is not ready yet") from None
        except StoreFull:
            self.future = None
            self._space_retry_at_ms = self._clock.monotonic_ms() + self._space_retry_interval_ms
            raise
        self.future, self._wait_s, self._space_retry_at_ms = None, NEXT_FILE_WAIT_S, None
        return file

    def _create_with_room(self, base_offset: int) -> MappedFile:
        with full_disk_is_store_full(self._files.directory):
            space = self._files.disk.space(self._files.directory)
        if not has_room_for(space, self._file_size):
            raise StoreFull("the next file of the commit log would take the last room of the disk")
        return self.create(base_offset)

    def create(self, base_offset: int) -> MappedFile:
        """A new file, durable with its name. Raises ``StoreFull``."""
        file = self._files.create(base_offset, reserve=self._file_size)
        # Its size and its name are durable before a record goes in: a file in the middle can then never be missing.
        try:
            with full_disk_is_store_full(file.path):
                file.file.sync()
                self._files.disk.sync_directory(self._files.directory)
        except StoreFull:
            file.close()
            self._files.disk.remove(file.path)
            raise
        if self._allocator is not None:
            self._prefault(file)
        return file

    def _prefault(self, file: MappedFile) -> None:
        """Have the first pages of a new file in memory: reading what has blocks and no bytes yet costs no disk."""
        end = min(file.size, PREFAULT_BYTES)
        with suppress(OSError, MemoryError):  # the file is as good without
            for position in range(0, end, PREFAULT_CHUNK_BYTES):
                file.file.pread(min(PREFAULT_CHUNK_BYTES, end - position), position)

    def drop(self) -> None:
        """The file made ahead is not wanted any more. Waits for it."""
        future, self.future = self.future, None
        if future is not None and future.exception() is None:
            file = future.result()
            file.close()
            self._files.disk.remove(file.path)

    def close(self) -> None:
        """End the thread. A file made ahead stays on disk, where the next start finds it."""
        future, self.future = self.future, None
        if self._allocator is not None:
            self._allocator.shutdown(wait=True)
        if future is not None and future.exception() is None:
            future.result().close()
