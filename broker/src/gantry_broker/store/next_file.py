"""Preallocation of commit log files in a helper thread, so that a roll to the next file costs nothing.

A file has its size, all its blocks and its name on the disk before a record is written to it. Its pages are not brought
into memory ahead: a write of a new page is cheap, and the kernel reads ahead in folios of up to 2 MiB, to which each
small write costs several times as much. A file that would use the reserved space of the disk is not created, except by
a start or a change of the log: queues, index and tables need that space.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Final, final

from gantry_broker.errors import DiskTooSlow, StoreFull
from gantry_broker.ports.clock import Clock
from gantry_broker.store.file_queue import FileQueue
from gantry_broker.store.mapped_file import MappedFile, translate_disk_full
from gantry_broker.store.retention import has_room_for
from gantry_broker.store.settings import StoreSettings

log = logging.getLogger(__name__)

NEXT_FILE_WAIT_S: Final = 1.0
"""How long a roll waits for a file that is being created. RocketMQ's default for a busy page cache is as long."""


@final
class NextFileAllocator:
    """Creates the next log file in the thread ``gantry-allocate``, which hands it over in a future.

    Owned by the loop's thread.
    """

    def __init__(self, files: FileQueue, settings: StoreSettings, clock: Clock) -> None:
        self.future: Future[MappedFile] | None = None
        """The file that is being created, or is ready and not in use yet."""

        self._files: Final = files
        self._clock: Final = clock
        self._file_size: Final = settings.mapped_file_size_commit_log
        self._space_retry_interval_ms: Final = settings.space_retry_interval_ms
        self._space_retry_at_ms: int | None = None
        self._last_refusal = StoreFull("no space on the disk for the next file of the commit log")
        """Why the last attempt failed; sends are refused with it until the next attempt."""
        self._wait_s = NEXT_FILE_WAIT_S
        self._allocator = ThreadPoolExecutor(1, "gantry-allocate") if settings.is_preallocating else None

    def __repr__(self) -> str:
        return f"<NextFileAllocator {self.future!r}>"

    @property
    def is_wanted(self) -> bool:
        """Return whether the next file neither exists nor is being created."""
        return self.future is None or (self.future.done() and self.future.exception() is not None)

    def request(self, base_offset: int) -> bool:
        """Have the helper thread create the file at ``base_offset``. Return False if there is no thread for it."""
        if self._allocator is None:
            return False
        try:
            self.future = self._allocator.submit(self._create_with_room, base_offset)
        except RuntimeError as exc:
            # The system cannot start a thread. Appended records are safe; the roll will create the file itself.
            log.warning(
                "could not preallocate the next log file; the roll to it will create it", extra={"reason": str(exc)}
            )
            return False
        return True

    def take(self, base_offset: int) -> MappedFile:
        """Return the file at ``base_offset``, and create it now if it was not preallocated.

        Raises ``StoreFull`` or ``DiskTooSlow``.
        """
        if self._space_retry_at_ms is not None and self._clock.monotonic_ms() < self._space_retry_at_ms:
            raise type(self._last_refusal)(str(self._last_refusal))
        if self._allocator is not None and self.is_wanted:
            with suppress(RuntimeError):
                self.future = self._allocator.submit(self._create_with_room, base_offset)
        future = self.future
        try:
            file = self._create_with_room(base_offset) if future is None else future.result(self._wait_s)
        except TimeoutError:
            # The loop waits for the file once; later calls fail at once until it is ready.
            self._wait_s = 0.0
            raise DiskTooSlow("the next file of the commit log is not ready yet") from None
        except StoreFull as exc:
            self.future = None
            self._last_refusal = exc
            self._space_retry_at_ms = self._clock.monotonic_ms() + self._space_retry_interval_ms
            raise
        self.future, self._wait_s, self._space_retry_at_ms = None, NEXT_FILE_WAIT_S, None
        return file

    def _create_with_room(self, base_offset: int) -> MappedFile:
        with translate_disk_full(self._files.directory):
            space = self._files.disk.space(self._files.directory)
        if not has_room_for(space, self._file_size):
            raise StoreFull("creating the next file of the commit log would use the reserved space of the disk")
        return self.create(base_offset)

    def create(self, base_offset: int) -> MappedFile:
        """Create a file and make it durable with its name. Raises ``StoreFull``."""
        file = self._files.create(base_offset, reserve=self._file_size)
        # Its size and its name are durable before a record is written, so a file in the middle can never be missing.
        try:
            with translate_disk_full(file.path):
                file.file.sync()
                self._files.disk.sync_directory(self._files.directory)
        except StoreFull:
            file.close()
            self._files.disk.remove(file.path)
            raise
        return file

    def drop(self) -> None:
        """Wait for the preallocated file, and delete it."""
        future, self.future = self.future, None
        if future is not None and future.exception() is None:
            file = future.result()
            file.close()
            self._files.disk.remove(file.path)

    def close(self) -> None:
        """Stop the thread. A preallocated file stays on disk, where the next start finds it."""
        future, self.future = self.future, None
        if self._allocator is not None:
            self._allocator.shutdown(wait=True)
        if future is not None and future.exception() is None:
            future.result().close()
