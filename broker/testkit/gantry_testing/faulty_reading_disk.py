"""A test double of the port ``ReadingDisk`` over a disk of the test kit, with unreadable pages and hooks before reads.

    reading_disk = FaultyReadingDisk(world.disk)
    reading_disk.break_page(path, position)          reading it is EIO, as on a disk with a bad sector
    reading_disk.before_read.append(lambda path, position: ...)      the broker writes while a tool reads
    FaultyReadingDisk(world.disk, {"/pool": world.volume})         write buffers are files too

A tool that gets this double cannot write, since the port has no write operation.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from typing import Final, final

from gantry_broker.ports.disk import Disk, DiskFile, DiskSpace
from gantry_broker.ports.reading import FileMetadata, LockHolder, ReadingFile
from gantry_testing.faulty_volume import FaultyVolume

PAGE_BYTES: Final = 4096


@final
class FaultyReadingFile:
    """One open file of a ``FaultyReadingDisk``."""

    def __init__(self, reading_disk: FaultyReadingDisk, file: DiskFile) -> None:
        self._reading_disk = reading_disk
        self._file = file

    @property
    def path(self) -> str:
        return self._file.path

    @property
    def size(self) -> int:
        return self._file.size

    def pread(self, length: int, position: int) -> bytes:
        self._reading_disk.meet_fault(self._file.path, position, length)
        return self._file.pread(length, position)

    def read_into(self, target: memoryview, position: int) -> int:
        data = self.pread(len(target), position)
        target[: len(data)] = data
        return len(data)

    def map(self) -> memoryview:
        return memoryview(self.pread(self.size, 0))

    def close(self) -> None:
        self._file.close()


@final
class MemoryFile:
    """A write buffer as other processes see it."""

    def __init__(self, path: str, data: bytearray) -> None:
        self.path: Final = path
        self._data: Final = data

    @property
    def size(self) -> int:
        return len(self._data)

    def pread(self, length: int, position: int) -> bytes:
        return bytes(self._data[position : position + length])

    def read_into(self, target: memoryview, position: int) -> int:
        data = self.pread(len(target), position)
        target[: len(data)] = data
        return len(data)

    def map(self) -> memoryview:
        return memoryview(bytes(self._data))

    def close(self) -> None:
        return


@final
class FaultyReadingDisk:
    """The double of the reading port; see the module's docstring."""

    def __init__(self, disk: Disk, volumes: Mapping[str, FaultyVolume] | None = None) -> None:
        self._disk: Final = disk
        self._volumes: Final = dict(volumes or {})
        self._broken: Final[dict[str, set[int]]] = {}
        self.before_read: Final[list[Callable[[str, int], None]]] = []
        """Hooks that are called with the path and the position before each read."""

        self.holder: LockHolder | None = None
        """The process that holds all locks; None if no process does."""

    def break_page(self, path: str, position: int) -> None:
        """Make the page that contains ``position`` unreadable."""
        self._broken.setdefault(path, set()).add(position // PAGE_BYTES)

    def meet_fault(self, path: str, position: int, length: int) -> None:
        for hook in tuple(self.before_read):
            hook(path, position)
        first, end = position // PAGE_BYTES, (position + max(length, 1) - 1) // PAGE_BYTES + 1
        if any(first <= page < end for page in self._broken.get(path, ())):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    def open(self, path: str) -> ReadingFile:
        directory, _, name = path.rpartition("/")
        if directory in self._volumes:
            return MemoryFile(path, self._volumes[directory].pieces[name])
        return FaultyReadingFile(self, self._disk.open(path))

    def metadata(self, path: str) -> FileMetadata | None:
        if path in self._volumes:
            return FileMetadata(0, 0, is_directory=True)
        if not self._disk.exists(path):
            return None
        is_directory = self._disk.is_directory(path)
        size = 0 if is_directory else self._disk.file_size(path)
        return FileMetadata(size, size, is_directory)

    def file_size(self, path: str) -> int:
        if path in self._volumes:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return self._disk.file_size(path)

    def list(self, directory: str) -> list[str]:
        return self._volumes[directory].names() if directory in self._volumes else self._disk.list(directory)

    def space(self, path: str) -> DiskSpace:
        return self._disk.space(path)

    def file_system(self, path: str) -> str:
        return self._volumes[path].medium if path in self._volumes else "memory"

    def lock_holder(self, path: str) -> LockHolder | None:
        return self.holder if self._disk.exists(path) else None
