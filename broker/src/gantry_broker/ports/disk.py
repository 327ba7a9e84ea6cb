"""The disk, as a port: files of a fixed size that are mapped, and small files that are replaced whole.

The rule it guards: **no page is touched that has no blocks behind it.** A mapped page of a sparse file on a full disk
is not an error but a SIGBUS, which no handler survives. So a file is created at its full size, and ``reserve`` gives
blocks to a range before anybody writes to it; a full disk then is an ``OSError`` with ``ENOSPC`` at a place where
somebody can answer for it. ``view`` shows the whole file; writing beyond ``reserved`` is a bug of the caller.

Durability has two halves, kept apart here as they are on a real file system: ``DiskFile.sync`` makes the bytes of a
file durable, ``Disk.sync_directory`` makes names durable (creation, removal, renaming). A file whose name was not
synced may be gone after a power loss although its bytes were synced.

Errors are ``OSError`` with the ``errno`` of the real call, on both twins. What they mean is decided above.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol


class DiskSpace(NamedTuple):
    """How full the file system is, in bytes."""

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

    ``[0 ...... reserved ...... size)``: up to ``reserved`` there are blocks.
    The owner writes through ``view`` or ``pwrite``; ``sync`` may be called by another thread meanwhile.
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
        """Give blocks to ``[reserved, end)``. ``ENOSPC`` when there are none; then nothing changed."""
        ...

    def advise(self, start: int, end: int) -> None:
        """``[start, end)`` of the view is read next, and what is before it is not. A hint, never an error."""
        ...

    def read_in_order(self, is_expected: bool) -> None:
        """Whether reading ahead is worth while, as it is taken to be until somebody says otherwise. A hint."""
        ...

    def regrow(self) -> int | None:
        """Give the file its size again if another process has shortened it; where it ended then, or None.

        What was cut off is zeros afterwards. Without this a touch of the view behind the file's end is a SIGBUS. Any
        thread. ``reserved`` is 0 afterwards if there is no room for the blocks that were cut off.
        """
        ...

    def pread(self, length: int, position: int) -> bytes:
        """Up to ``length`` bytes; fewer only at the end of the file."""
        ...

    def pwrite(self, data: bytes | bytearray | memoryview, position: int) -> int:
        """Write some of ``data`` and say how much. May be short: see ``write_fully``."""
        ...

    def sync(self) -> None:
        """Return when every byte written before the call is on the disk. An error here is final."""
        ...

    def zero(self, start: int, end: int) -> None:
        """Make ``[start, end)`` read as zeros and keep its blocks."""
        ...

    def close(self) -> None:
        """Let go. Does not sync. Bytes that were written stay in the page cache."""
        ...


class Disk(Protocol):
    """A tree of files and directories. Paths are absolute."""

    def create(self, path: str, size: int, *, reserve: int = 0) -> DiskFile:
        """A new file of ``size`` zero bytes with blocks up to ``reserve``. After an error there is no file."""
        ...

    def open(self, path: str) -> DiskFile:
        """An existing file. ``reserved`` is 0 until somebody reserves."""
        ...

    def exists(self, path: str) -> bool: ...

    def file_size(self, path: str) -> int:
        """Raises ``FileNotFoundError``, or ``IsADirectoryError``."""
        ...

    def list(self, directory: str) -> list[str]:
        """Sorted names in ``directory``; empty if there is no such directory."""
        ...

    def is_directory(self, path: str) -> bool: ...

    def make_directory(self, path: str) -> None:
        """Create ``path`` and its parents, durable only after a ``sync_directory`` of each. No error if it exists."""
        ...

    def remove(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None: ...

    def rename(self, source: str, target: str) -> None:
        """Atomic; replaces ``target``. Durable only after ``sync_directory``."""
        ...

    def sync_directory(self, path: str) -> None: ...

    def read_file(self, path: str) -> bytes: ...

    def read_uncached(self, path: str, position: int, length: int) -> bytes:
        """Up to ``length`` bytes of a file as the media has them, where the file system can do that.

        The page cache stays as it is then. Fewer bytes only at the end of the file.
        """
        ...

    def write_file(self, path: str, data: bytes) -> None:
        """Replace the whole file atomically and durably: temporary, sync, rename, directory sync."""
        ...

    def space(self, path: str) -> DiskSpace: ...

    def lock(self, path: str) -> DiskLock:
        """Lock ``path``, creating it with the text ``lock``. ``BlockingIOError`` if somebody holds it."""
        ...


def remove_durably(disk: Disk, path: str) -> None:
    """Take away a file or a tree that may be there. Durable when this returns."""
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
                raise OSError(5, "a write wrote nothing", file.path)
            done += written
