"""A protocol for opening and listing the files of a store, and its implementation by the local file system.

The protocol contains only what reading needs, so that the broker's ``Disk`` and ``ReadingDisk`` satisfy it, too. A
reader must expect that files vanish at any moment: retention and the deletion of a topic do not wait for readers.

``PlainDisk`` opens files with ``O_RDONLY`` and, where the kernel allows it, without updating their access times. Errors
are ``OSError`` with the ``errno`` of the system call.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from typing import Final, Protocol, final

READ_BYTES: Final = 4 << 20
"""How many bytes one read of a mapping's file asks for."""


class StoreFile(Protocol):
    """A file that is open for reading."""

    @property
    def path(self) -> str: ...

    @property
    def size(self) -> int:
        """Return the size at the time the file was opened."""
        ...

    def pread(self, length: int, position: int) -> bytes:
        """Return up to ``length`` bytes from ``position``; fewer only at the end of the file."""
        ...

    def close(self) -> None: ...


class StoreDisk(Protocol):
    """A tree of files that another process may own. Paths are absolute."""

    def open(self, path: str) -> StoreFile:
        """Open a file. Raises ``FileNotFoundError`` or ``IsADirectoryError``."""
        ...

    def file_size(self, path: str) -> int:
        """Return the size of a file. Raises ``FileNotFoundError`` or ``IsADirectoryError``."""
        ...

    def list(self, directory: str) -> list[str]:
        """Return the sorted names in ``directory``, or an empty list if there is no such directory."""
        ...


@final
class PlainFile:
    """An open file of the local file system. The caller that opened it must close it."""

    def __init__(self, path: str) -> None:
        descriptor = open_without_atime(path)
        file_status = os.fstat(descriptor)
        if stat.S_ISDIR(file_status.st_mode):
            os.close(descriptor)
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        self.path: Final = path
        self._descriptor = descriptor
        self.size: Final = file_status.st_size
        """The size at the time the file was opened."""

    def __repr__(self) -> str:
        return f"<PlainFile {self.path} size={self.size}>"

    def pread(self, length: int, position: int) -> bytes:
        """Return up to ``length`` bytes from ``position``; fewer only at the end of the file."""
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
        """Return a read-only mapping of the whole file.

        Every byte is read once before that, so that an unreadable disk raises an error here.
        """
        if self.size == 0:
            return memoryview(b"")
        scratch = memoryview(bytearray(min(READ_BYTES, self.size)))
        for position in range(0, self.size, READ_BYTES):
            self.read_into(scratch[: min(READ_BYTES, self.size - position)], position)
        # The view keeps the mapping alive until its last slice is released.
        return memoryview(mmap.mmap(self._descriptor, self.size, mmap.MAP_SHARED, mmap.PROT_READ))

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class LocalFileListing:
    """Lists files of the local file system and returns their sizes. It has no state; any thread may use it."""

    def file_size(self, path: str) -> int:
        """Return the size of a file. Raises ``FileNotFoundError`` or ``IsADirectoryError``."""
        file_status = os.stat(path)
        if stat.S_ISDIR(file_status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return file_status.st_size

    def list(self, directory: str) -> list[str]:
        """Return the sorted names in ``directory``, or an empty list if there is no such directory."""
        try:
            return sorted(os.listdir(directory))
        except (FileNotFoundError, NotADirectoryError):
            return []


class PlainDisk(LocalFileListing):
    """The local file system, opened for reading."""

    def open(self, path: str) -> PlainFile:
        """Open a file. Raises ``FileNotFoundError`` or ``IsADirectoryError``."""
        return PlainFile(path)


def pread_fully(descriptor: int, length: int, position: int) -> bytes:
    """Return up to ``length`` bytes, in as many reads as are needed; fewer only at the end of the file."""
    data = os.pread(descriptor, length, position)
    while len(data) < length:
        more = os.pread(descriptor, length - len(data), position + len(data))
        if not more:
            break
        data += more
    return data


def open_without_atime(path: str) -> int:
    """Open a file for reading and return its descriptor.

    The access time is not updated if the kernel allows that, which it does for files of the same user.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_NOATIME)
    except OSError as exc:
        if exc.errno not in (errno.EPERM, errno.EINVAL):
            raise
        return os.open(path, flags)
