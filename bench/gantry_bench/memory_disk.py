"""The disk of the control loop: memory of this process, without system calls after a file was created.

The control does everything the store does in Python and touches no file. The difference between an append to the store
and one to the control is therefore the cost of files, page cache, buffers and helper threads. All pages are touched
when a file is created: a control that takes page faults would hide those of the files it is compared with. Nothing
written is meant to be read again: a log file larger than ``POPULATED_BYTES_MAX`` has only ``WINDOW_BYTES`` of memory,
which are overwritten from their start again and again.
"""

from __future__ import annotations

import errno
import mmap
import os
from typing import Final, final

from gantry_broker.ports.disk import DiskFile, DiskLock, DiskSpace

WINDOW_BYTES: Final = 64 << 20
POPULATED_BYTES_MAX: Final = 448 << 20
"""The limit of prefaulted bytes: a key index is below it, a log file of 512 MiB is not, because a roll would wait for
it.
"""
PLENTY_BYTES: Final = 1 << 50
"""The size and the free space that the disk reports."""


@final
class MemoryFile:
    """One file in memory. Owned by the thread of the loop."""

    def __init__(self, path: str, size: int) -> None:
        self._path = path
        self._size = size
        self._reserved = 0
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._is_window = size > POPULATED_BYTES_MAX
        self._map = mmap.mmap(-1, max(size, 1), flags if self._is_window else flags | mmap.MAP_POPULATE)
        self._view = memoryview(self._map)[:size]
        if self._is_window:
            for position in range(0, WINDOW_BYTES, mmap.PAGESIZE):
                self._view[position] = 0

    def __repr__(self) -> str:
        return f"<MemoryFile {self._path} size={self._size}>"

    @property
    def path(self) -> str:
        return self._path

    @property
    def size(self) -> int:
        return self._size

    @property
    def reserved(self) -> int:
        return self._reserved

    @property
    def view(self) -> memoryview:
        return self._view

    def reserve(self, end: int) -> None:
        self._reserved = max(self._reserved, min(end, self._size))

    def advise(self, start: int, end: int) -> None:
        """Do nothing, because all pages are in memory."""

    def map_ahead(self, start: int, end: int) -> None:
        """Do nothing, because all pages are mapped."""

    def set_read_ahead(self, is_useful: bool) -> None:
        """Do nothing, because there is no read-ahead."""

    def regrow(self) -> int | None:
        """Do nothing, because no other process has this memory."""
        return None

    def pread(self, length: int, position: int) -> bytes:
        return bytes(self._view[position : position + length])

    def next_data(self, position: int) -> int:
        """Return ``position``, because this memory has no holes."""
        return position

    def next_hole(self, position: int) -> int:
        """Return the end of the file, because this memory has no holes."""
        return self._size

    def pwrite(self, data: bytes | bytearray | memoryview, position: int) -> int:
        if self._is_window:
            position %= WINDOW_BYTES - len(data)
        self._view[position : position + len(data)] = data
        return len(data)

    def start_writeback(self) -> None:
        return

    def sync(self) -> None:
        return

    def zero(self, start: int, end: int) -> None:
        return

    def close(self) -> None:
        return


@final
class NoLock:
    """A lock that does nothing, because no other process can see this memory."""

    def release(self) -> None:
        return


@final
class MemoryDisk:
    """An empty disk that exists as long as this object."""

    def __init__(self) -> None:
        self._files: dict[str, MemoryFile] = {}
        self._small_files: dict[str, bytes] = {}
        self._directories = {"/"}

    def create(self, path: str, size: int, *, reserve: int = 0) -> DiskFile:
        file = self._files[path] = MemoryFile(path, size)
        file.reserve(reserve)
        return file

    def open(self, path: str) -> DiskFile:
        return self._files[path]

    def exists(self, path: str) -> bool:
        return path in self._files or path in self._small_files or path in self._directories

    def file_size(self, path: str) -> int:
        return self._files[path].size

    def list(self, directory: str) -> list[str]:
        start = directory.rstrip("/") + "/"
        paths = (*self._files, *self._small_files, *self._directories)
        return sorted(
            {path[len(start) :].partition("/")[0] for path in paths if path.startswith(start) and path != "/"}
        )

    def is_directory(self, path: str) -> bool:
        return path in self._directories

    def make_directory(self, path: str) -> None:
        while path not in self._directories:
            self._directories.add(path)
            path = path.rpartition("/")[0] or "/"

    def remove(self, path: str) -> None:
        self._files.pop(path, None)
        self._small_files.pop(path, None)

    def remove_tree(self, path: str) -> None:
        for name in (*self._files, *self._small_files):
            if name.startswith(f"{path}/"):
                self.remove(name)

    def rename(self, source: str, target: str) -> None:
        self._small_files[target] = self._small_files.pop(source)

    def sync_directory(self, path: str) -> None:
        return

    def read_uncached(self, path: str, position: int, length: int) -> bytes:
        return self.read_file(path)[position : position + length]

    def read_file(self, path: str) -> bytes:
        if path not in self._small_files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return self._small_files[path]

    def write_file(self, path: str, data: bytes, *, is_private: bool = False) -> None:
        self._small_files[path] = data

    def append_file(self, path: str, data: bytes, *, end: int | None = None) -> None:
        self._small_files[path] = self._small_files.get(path, b"")[:end] + data

    def space(self, path: str) -> DiskSpace:
        return DiskSpace(total=PLENTY_BYTES, free=PLENTY_BYTES)

    def lock(self, path: str) -> DiskLock:
        return NoLock()
