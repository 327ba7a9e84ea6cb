"""The real disk, with a simulated kill of the process.

``kill()`` has the effect of SIGKILL on a process that has a store open: descriptors are closed and locks are
free, nothing is flushed, nothing is removed; the page cache keeps every byte. It does not model a power loss: for that
there is ``FaultyDisk``, or a machine.
"""

from __future__ import annotations

from typing import final

from gantry_broker.ports.disk import DiskFile, DiskLock, DiskSpace
from gantry_broker.ports.real_disk import RealDisk


@final
class KillableDisk:
    """A ``RealDisk`` that keeps track of its open files and locks."""

    def __init__(self) -> None:
        self._real = RealDisk()
        self._open: list[DiskFile | DiskLock] = []

    def kill(self) -> None:
        """Close every file and release every lock."""
        for resource in self._open:
            if hasattr(resource, "release"):
                resource.release()
            else:
                resource.close()
        self._open.clear()

    def create(self, path: str, size: int, *, reserve: int = 0) -> DiskFile:
        file = self._real.create(path, size, reserve=reserve)
        self._open.append(file)
        return file

    def open(self, path: str) -> DiskFile:
        file = self._real.open(path)
        self._open.append(file)
        return file

    def lock(self, path: str) -> DiskLock:
        lock = self._real.lock(path)
        self._open.append(lock)
        return lock

    def exists(self, path: str) -> bool:
        return self._real.exists(path)

    def file_size(self, path: str) -> int:
        return self._real.file_size(path)

    def list(self, directory: str) -> list[str]:
        return self._real.list(directory)

    def is_directory(self, path: str) -> bool:
        return self._real.is_directory(path)

    def make_directory(self, path: str) -> None:
        self._real.make_directory(path)

    def remove(self, path: str) -> None:
        self._real.remove(path)

    def remove_tree(self, path: str) -> None:
        self._real.remove_tree(path)

    def rename(self, source: str, target: str) -> None:
        self._real.rename(source, target)

    def sync_directory(self, path: str) -> None:
        self._real.sync_directory(path)

    def read_uncached(self, path: str, position: int, length: int) -> bytes:
        return self._real.read_uncached(path, position, length)

    def read_file(self, path: str) -> bytes:
        return self._real.read_file(path)

    def write_file(self, path: str, data: bytes, *, is_private: bool = False) -> None:
        self._real.write_file(path, data, is_private=is_private)

    def append_file(self, path: str, data: bytes, *, end: int | None = None) -> None:
        self._real.append_file(path, data, end=end)

    def space(self, path: str) -> DiskSpace:
        return self._real.space(path)
