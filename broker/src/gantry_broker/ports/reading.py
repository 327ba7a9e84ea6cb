"""Reading, as a port: for tools that look at a store and must leave it exactly as they found it.

The rule it guards: **nothing is created, written, locked or touched.** Whoever holds this port and not ``Disk`` cannot
break it by mistake. Files are opened for reading only, and whether another process holds a lock is asked for, never
tried: a lock that is taken for a moment makes a broker fail that starts in that moment.

Bytes come by ``read_into`` and ``pread``, not through a map. A page that the disk cannot read is an ``OSError`` of a
read and a SIGBUS in a map, and these tools are for the day when a disk cannot read. ``map`` is for those who need a
view all the same: it reads every byte once before it maps, so that a broken disk is an error there, too.

Errors are ``OSError`` with the ``errno`` of the real call.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from gantry_broker.ports.disk import DiskSpace
from gantry_store_files.disk import StoreDisk, StoreFile


class FileFacts(NamedTuple):
    """What a directory says of one name."""

    size: int
    allocated: int
    """Bytes that have blocks; less than ``size`` for a sparse file."""

    is_directory: bool


class LockHolder(NamedTuple):
    """Another process that holds a lock."""

    pid: int
    """0 when it lives in another container."""


class ReadingFile(StoreFile, Protocol):
    """One file, open for reading."""

    def read_into(self, target: memoryview, position: int) -> int:
        """Fill ``target`` and say how far; less than all of it only at the end of the file."""
        ...

    def map(self) -> memoryview:
        """All bytes, read-only. Every one of them was read once before this returns."""
        ...


class ReadingDisk(StoreDisk, Protocol):
    """A tree of files that somebody else owns. Paths are absolute."""

    def open(self, path: str) -> ReadingFile: ...

    def facts(self, path: str) -> FileFacts | None:
        """What is there, links followed; None when nothing is."""
        ...

    def space(self, path: str) -> DiskSpace: ...

    def file_system(self, path: str) -> str:
        """The type of the file system that ``path`` is on; empty if it cannot be told."""
        ...

    def lock_holder(self, path: str) -> LockHolder | None:
        """Who holds the lock that ``Disk.lock`` takes on ``path``, asked without taking it."""
        ...
