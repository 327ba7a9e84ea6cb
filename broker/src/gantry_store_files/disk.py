"""Opening and listing the files of a store, as a port, and this machine's file system behind it.

The protocol is what reading needs and no more, so that the broker's ``Disk`` and ``ReadingDisk`` satisfy it, too. A
reader must expect that files vanish at any moment: retention and the deletion of a topic do not wait.

``PlainDisk`` opens files with ``O_RDONLY`` and, where the kernel allows it, without a trace in their access times.
Errors are ``OSError`` with the ``errno`` of the real call.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from typing import Final, Protocol, final

READ_BYTES: Final = 4 << 20


class StoreFile(Protocol):
    """One file, open for reading."""

    @property
    def path(self) -> str: ...

    @property
    def size(self) -> int:
        """As it was when the file was opened."""
        ...

    def pread(self, length: int, position: int) -> bytes:
        """Up to ``length`` bytes; fewer only at the end of the file."""
        ...

    def close(self) -> None: ...


class StoreDisk(Protocol):
    """A tree of files that another process may own. Paths are absolute."""

    def open(self, path: str) -> StoreFile:
        """Raises ``FileNotFoundError``, or ``IsADirectoryError``."""
        ...

    def file_size(self, path: str) -> int:
        """Raises ``FileNotFoundError``, or ``IsADirectoryError``."""
        ...

    def list(self, directory: str) -> list[str]:
        """Sorted names in ``directory``; empty if there is no such directory."""
        ...


@final
class PlainFile:
    """One open file. Owned by whoever opened it."""

    def __init__(self, path: str) -> None:
        descriptor = open_untouched(path)
        facts = os.fstat(descriptor)
        if stat.S_ISDIR(facts.st_mode):
            os.close(descriptor)
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        self.path: Final = path
        self._descriptor = descriptor
        self.size: Final = facts.st_size
        """As it was when the file was opened."""

    def __repr__(self) -> str:
        return f"<PlainFile {self.path} size={self.size}>"

    def pread(self, length: int, position: int) -> bytes:
        """Up to ``length`` bytes; fewer only at the end of the file."""
        return pread_fully(self._descriptor, length, position)

    def read_into(self, target: memoryview, position: int) -> int:
        """Fill ``target`` and return how many bytes that were; fewer only at the end of the file."""
        done = 0
        while done < len(target):
            count = os.preadv(self._descriptor, [target[done:]], position + done)
            if not count:
                break
            done += count
        return done

    def map(self) -> memoryview:
        """All bytes, read-only. Each is read once before this returns, so that a broken disk is an error here."""
        if self.size == 0:
            return memoryview(b"")
        scratch = memoryview(bytearray(min(READ_BYTES, self.size)))
        for position in range(0, self.size, READ_BYTES):
            self.read_into(scratch[: min(READ_BYTES, self.size - position)], position)
        # The view keeps the mapping alive, and lets go of it with its last slice.
        return memoryview(mmap.mmap(self._descriptor, self.size, mmap.MAP_SHARED, mmap.PROT_READ))

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class NamedFiles:
    """Names and sizes in the file system of this machine. Holds no state; any thread may use it."""

    def file_size(self, path: str) -> int:
        """Raises ``FileNotFoundError``, or ``IsADirectoryError``."""
        facts = os.stat(path)
        if stat.S_ISDIR(facts.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return facts.st_size

    def list(self, directory: str) -> list[str]:
        """Sorted names in ``directory``; empty if there is no such directory."""
        try:
            return sorted(os.listdir(directory))
        except (FileNotFoundError, NotADirectoryError):
            return []


class PlainDisk(NamedFiles):
    """The file system of this machine, for reading."""

    def open(self, path: str) -> PlainFile:
        """Raises ``FileNotFoundError``, or ``IsADirectoryError``."""
        return PlainFile(path)


def pread_fully(descriptor: int, length: int, position: int) -> bytes:
    """Up to ``length`` bytes, however short the single reads are; fewer only at the end of the file."""
    data = os.pread(descriptor, length, position)
    while len(data) < length:
        more = os.pread(descriptor, length - len(data), position + len(data))
        if not more:
            break
        data += more
    return data


def open_untouched(path: str) -> int:
    """Open for reading; without a trace in the access time where the kernel allows that, which is for our own files."""
    flags = os.O_RDONLY | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_NOATIME)
    except OSError as exc:
        if exc.errno not in (errno.EPERM, errno.EINVAL):
            raise
        return os.open(path, flags)
