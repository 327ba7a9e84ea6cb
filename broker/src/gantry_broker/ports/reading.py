"""Reading, as a port: for tools that inspect a store and must not change it.

The rule it guards: **nothing is created, written, locked or touched.** A tool with this port and without ``Disk``
cannot break it by mistake. Files are opened for reading only, and the holder of a lock is queried without taking it: a
lock that is taken for a moment makes a broker fail that starts in that moment.

Bytes are read by ``read_into`` and ``pread``, not through a map. A page that the disk cannot read is an ``OSError`` of
a read and a SIGBUS in a map, and these tools are needed when a disk cannot read. ``map`` is for callers that need a
view nevertheless: it reads every byte once before it maps, so that a broken disk is an error there, too.

Errors are ``OSError`` with the ``errno`` of the real call.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from gantry_broker.ports.disk import DiskSpace
from gantry_store_files.disk import StoreDisk, StoreFile


class FileMetadata(NamedTuple):
    """Metadata of one file or directory."""

    size: int
    """The size of the file in bytes."""

    allocated: int
    """Number of bytes that have blocks; less than ``size`` for a sparse file."""

    is_directory: bool


class LockHolder(NamedTuple):
    """Another process that holds a lock."""

    pid: int
    """Its process id; 0 when it runs in another container."""


class ReadingFile(StoreFile, Protocol):
    """One file, open for reading."""

    def read_into(self, target: memoryview, position: int) -> int:
        """Fill ``target`` and return how many bytes; fewer only at the end of the file."""
        ...

    def map(self) -> memoryview:
        """Map all bytes, read-only. Every byte was read once before this returns."""
        ...


class ReadingDisk(StoreDisk, Protocol):
    """A tree of files that another process owns. Paths are absolute."""

    def open(self, path: str) -> ReadingFile: ...

    def metadata(self, path: str) -> FileMetadata | None:
        """Return the metadata of a path, links followed; None if it does not exist."""
        ...

    def space(self, path: str) -> DiskSpace: ...

    def file_system(self, path: str) -> str:
        """Return the type of the file system of ``path``; empty if it is unknown."""
        ...

    def lock_holder(self, path: str) -> LockHolder | None:
        """Return the holder of the lock that ``Disk.lock`` takes on ``path``, without taking it."""
        ...
