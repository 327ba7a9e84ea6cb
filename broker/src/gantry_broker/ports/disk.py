"""The disk, as a port: mapped files of a fixed size, and small files that are replaced as a whole.

The rule it guards: **no page is touched that has no blocks.** Touching a mapped page of a sparse file on a full disk is
not an error but a SIGBUS, which no handler survives. So a file is created at its full size, and ``reserve`` allocates
blocks for a range before anything is written there; a full disk then raises an ``OSError`` with ``ENOSPC`` where the
caller can handle it. ``view`` shows the whole file; writing beyond ``reserved`` is a bug of the caller.

Durability has two halves, kept apart here as they are on a real file system: ``DiskFile.sync`` makes the bytes of a
file durable, ``Disk.sync_directory`` makes names durable (creation, removal, renaming). A file whose name was not
synced may be gone after a power loss although its bytes were synced.

Errors are ``OSError`` with the ``errno`` of the real call, in both implementations. The layers above interpret them.
"""

from __future__ import annotations

import errno
from typing import NamedTuple, Protocol


class DiskSpace(NamedTuple):
    """Size and free space of a file system, in bytes."""

    total: int
    free: int

    @property
    def used(self) -> int:
        return self.total - self.free


class DiskLock(Protocol):
    """An exclusive lock on one file, held until released or until the process ends."""

    def release(self) -> None: ...


class DiskFile(Protocol):
    """One open file of a fixed size.

    ``[0 ...... reserved ...... size)``: up to ``reserved`` there are blocks. The owner writes through ``view`` or
    ``pwrite``; ``sync`` may be called by another thread meanwhile.
    """

    @property
    def path(self) -> str: ...

    @property
    def size(self) -> int: ...

    @property
    def reserved(self) -> int:
        """Exclusive end of the range that is known to have blocks."""
        ...

    @property
    def view(self) -> memoryview:
        """The whole file, writable, as unsigned bytes. The first use maps it."""
        ...

    def reserve(self, end: int) -> None:
        """Allocate blocks for ``[reserved, end)``. Raises ``OSError`` with ``ENOSPC`` on a full disk.

        After an error nothing has changed.
        """
        ...

    def advise(self, start: int, end: int) -> None:
        """Announce that ``[start, end)`` of the view is read next, and earlier bytes are not.

        A hint, never an error.
        """
        ...

    def map_ahead(self, start: int, end: int) -> None:
        """Map the pages of ``[start, end)`` of the view, so that reading them does not interrupt the reader.

        It waits for bytes that the disk has to deliver. A hint, never an error. Any thread may call it.
        """
        ...

    def set_read_ahead(self, is_useful: bool) -> None:
        """Set whether the kernel should read ahead in this file, as it does by default. A hint, never an error."""
        ...

    def regrow(self) -> int | None:
        """Restore the size if another process has shortened the file.

        Return the size to which the file had been shortened; None if it still has its size. The lost bytes are zeros
        afterwards. Without this, touching the view beyond the file's end is a SIGBUS. Any thread may call it.
        ``reserved`` is 0 afterwards if there is no room for the lost blocks.
        """
        ...

    def pread(self, length: int, position: int) -> bytes:
        """Read up to ``length`` bytes; fewer only at the end of the file."""
        ...

    def next_data(self, position: int) -> int:
        """Return a position at or after ``position`` such that all bytes from there to it are zeros, without reading.

        ``size`` if all bytes to the end are zeros. ``position`` itself is always right, and is returned where it is
        not known what the file system has stored.
        """
        ...

    def next_hole(self, position: int) -> int:
        """Return where the bytes end that ``next_data`` does not skip, if ``position`` is one of them.

        ``size`` if they reach to the end, or if it is not known what the file system has stored.
        """
        ...

    def pwrite(self, data: bytes | bytearray | memoryview, position: int) -> int:
        """Write some of ``data`` and return how much. May be short: see ``write_fully``."""
        ...

    def start_writeback(self) -> None:
        """Start to write dirty bytes to the disk, without waiting: a later ``sync`` has less to do.

        A hint, never an error: an error of the write is one of the next ``sync``.
        """
        ...

    def sync(self) -> None:
        """Return when every byte written before the call is on the disk. An error here is final."""
        ...

    def zero(self, start: int, end: int) -> None:
        """Make ``[start, end)`` read as zeros and keep its blocks."""
        ...

    def close(self) -> None:
        """Close the file without a sync. Written bytes stay in the page cache."""
        ...


class Disk(Protocol):
    """A tree of files and directories. Paths are absolute."""

    def create(self, path: str, size: int, *, reserve: int = 0) -> DiskFile:
        """Create a file of ``size`` zero bytes with blocks up to ``reserve``. After an error nothing was created."""
        ...

    def open(self, path: str) -> DiskFile:
        """Open an existing file. ``reserved`` is 0 until ``reserve`` is called."""
        ...

    def exists(self, path: str) -> bool: ...

    def file_size(self, path: str) -> int:
        """Return the size in bytes. Raises ``FileNotFoundError``, or ``IsADirectoryError``."""
        ...

    def list(self, directory: str) -> list[str]:
        """Return the sorted names in ``directory``; empty if there is no such directory."""
        ...

    def is_directory(self, path: str) -> bool: ...

    def make_directory(self, path: str) -> None:
        """Create ``path`` and its parents, durable only after a ``sync_directory`` of each. No error if it exists."""
        ...

    def remove(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None: ...

    def rename(self, source: str, target: str) -> None:
        """Rename atomically, replacing ``target``. Durable only after ``sync_directory``."""
        ...

    def sync_directory(self, path: str) -> None: ...

    def read_file(self, path: str) -> bytes: ...

    def read_uncached(self, path: str, position: int, length: int) -> bytes:
        """Read up to ``length`` bytes from the media, without changing the page cache.

        Where the file system does not support that, this is an ordinary read. Fewer bytes are returned only at the end
        of the file.
        """
        ...

    def write_file(self, path: str, data: bytes, *, is_private: bool = False) -> None:
        """Replace the whole file atomically and durably: temporary file, sync, rename, directory sync.

        A file with ``is_private`` is readable by its owner only, also where the process gives access to its group.
        """
        ...

    def append_file(self, path: str, data: bytes, *, end: int | None = None) -> None:
        """Append to a file, which is created if it is missing; its bytes are durable when this returns.

        With ``end`` the file is cut to this size first: what is left there of an append that has failed is removed. The
        name of a new file is durable only after ``sync_directory``. After an error any part of ``data`` may be there.
        """
        ...

    def space(self, path: str) -> DiskSpace: ...

    def lock(self, path: str) -> DiskLock:
        """Lock ``path``, creating it with the text ``lock``. Raises ``BlockingIOError`` if it is locked already."""
        ...


def remove_durably(disk: Disk, path: str) -> None:
    """Remove a file or a tree, if it exists. Durable when this returns."""
    if not disk.exists(path):
        return
    if disk.is_directory(path):
        disk.remove_tree(path)
    else:
        disk.remove(path)
    disk.sync_directory(path.rpartition("/")[0])


def write_fully(file: DiskFile, data: bytes | bytearray | memoryview, position: int) -> None:
    """Write all of ``data``, however short the single writes are."""
    with memoryview(data) as whole:
        done = 0
        while done < len(whole):
            written = file.pwrite(whole[done:], position + done)
            if written <= 0:
                raise OSError(errno.EIO, "a write wrote no bytes", file.path)
            done += written
