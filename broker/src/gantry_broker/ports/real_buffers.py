"""Real memory for write buffers: files on hugetlbfs or tmpfs, and anonymous memory as the fallback.

Three facts determine the implementation. hugetlbfs supports only whole pages, and no ``write``: a file there must be
mapped. ``fallocate`` must come before the first touch, or a missing page is a SIGBUS. And a failed allocation keeps its
pages until the file is unlinked. Pages are locked where the system allows it, so that none is swapped out under an
append; elsewhere they are at least touched.

Long operations on memory use ``ctypes``, which lets other threads of this process run meanwhile; ``mmap``'s own methods
and slices would hold the interpreter's lock.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import mmap
import os
from typing import Any, Final, final

from gantry_broker.ports.buffers import PIECE_NAME_PREFIX, VOLUME_LOCK, BufferPiece, BufferVolume

log = logging.getLogger(__name__)

MEDIA: Final = ("hugetlbfs", "tmpfs")
"""File systems in memory whose files survive the process."""
MADV_POPULATE_WRITE: Final = 23
"""Linux's advice that makes all pages of a mapping present."""
_LIBC: Final[Any] = ctypes.CDLL(None, use_errno=True)
"""The C library, whose calls let other threads run."""
for _function in (_LIBC.mlock, _LIBC.madvise):
    _function.restype = ctypes.c_int
_LIBC.mlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_LIBC.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


@final
class MappedPiece:
    """One piece of memory in a mapping."""

    def __init__(self, name: str, mapping: mmap.mmap, page_bytes: int) -> None:
        self.name: Final = name
        self._mapping = mapping
        self.size: Final = len(mapping)
        self._pin: Any = ctypes.c_char.from_buffer(mapping)
        self._address = ctypes.addressof(self._pin)
        self.view: Final = memoryview(mapping)
        self.is_locked = _LIBC.mlock(self._address, self.size) == 0
        if not self.is_locked:
            self._touch(page_bytes)

    def __repr__(self) -> str:
        return f"<MappedPiece {self.name} size={self.size} locked={self.is_locked}>"

    def _touch(self, page_bytes: int) -> None:
        if _LIBC.madvise(self._address, self.size, MADV_POPULATE_WRITE) == 0:
            return
        if ctypes.get_errno() != errno.EINVAL:  # EINVAL: an older kernel does not support it.
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), self.name)
        for position in range(0, self.size, page_bytes):
            self.view[position] = self.view[position]

    def zero(self, start: int, end: int) -> None:
        assert 0 <= start <= end <= self.size, (start, end, self)
        ctypes.memset(self._address + start, 0, end - start)

    def close(self) -> None:
        self._pin = None
        try:
            self.view.release()
            self._mapping.close()
        except BufferError:
            return  # A slice is still being read; its owner keeps the mapping alive.


@final
class FileVolume:
    """A directory on hugetlbfs or tmpfs. Raises ValueError for any other file system."""

    is_crash_safe = True

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.medium: Final = file_system_of(directory)
        if self.medium not in MEDIA:
            raise ValueError(
                f"{directory} is on {self.medium or 'an unknown file system'}: write buffers need a directory on "
                "hugetlbfs or tmpfs, or none at all for anonymous memory"
            )
        self.page_bytes: Final = os.statvfs(directory).f_bsize if self.medium == "hugetlbfs" else mmap.PAGESIZE
        self._lock = -1

    def __repr__(self) -> str:
        return f"<FileVolume {self._directory} {self.medium}>"

    def acquire(self) -> None:
        descriptor = os.open(f"{self._directory}/{VOLUME_LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise
        self._lock = descriptor

    def release(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def names(self) -> list[str]:
        return sorted(name for name in os.listdir(self._directory) if name.startswith(PIECE_NAME_PREFIX))

    def open(self, name: str) -> BufferPiece:
        descriptor = os.open(f"{self._directory}/{name}", os.O_RDWR | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            if size == 0 or size % self.page_bytes:
                raise OSError(errno.EINVAL, "not a whole number of pages", name)
            os.posix_fallocate(descriptor, 0, size)
            return MappedPiece(name, mmap.mmap(descriptor, size, mmap.MAP_SHARED), self.page_bytes)
        finally:
            os.close(descriptor)

    def create(self, name: str, size: int) -> BufferPiece:
        path = f"{self._directory}/{name}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)
            return MappedPiece(name, mmap.mmap(descriptor, size, mmap.MAP_SHARED), self.page_bytes)
        except BaseException:
            os.unlink(path)
            raise
        finally:
            os.close(descriptor)

    def remove(self, name: str) -> None:
        os.unlink(f"{self._directory}/{name}")


@final
class AnonymousVolume:
    """Pieces in anonymous memory of this process, which are lost with it."""

    medium = "anonymous"
    is_crash_safe = False
    page_bytes = mmap.PAGESIZE

    def acquire(self) -> None:
        return

    def release(self) -> None:
        return

    def names(self) -> list[str]:
        return []

    def open(self, name: str) -> BufferPiece:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)

    def create(self, name: str, size: int) -> BufferPiece:
        return MappedPiece(name, mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), self.page_bytes)

    def remove(self, name: str) -> None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)


def open_volume(path: str) -> BufferVolume:
    """Return the volume in the directory ``path``, or anonymous memory without one. Raises OSError or ValueError."""
    return FileVolume(path) if path else AnonymousVolume()


def file_system_of(path: str) -> str:
    """Return the kernel's name for the type of the file system of ``path``; empty if it is unknown."""
    device = os.stat(path).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            words = line.split()
            if words[2] == wanted:
                return words[words.index("-") + 1]
    return ""
