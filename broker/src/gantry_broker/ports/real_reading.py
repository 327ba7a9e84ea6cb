"""The real file system, for reading only: ``O_RDONLY``, no access times where the kernel allows it, no lock taken.

The lock question is ``F_GETLK``: it says who would be in the way of a lock and takes none. Our brokers and RocketMQ's
both hold a record lock on byte 0 of the store's ``lock`` file, so one question finds either. Reading is enough for it.
It must not be asked in the process that holds the lock: closing any descriptor of the file lets go of it there. Locks
on whole files (``flock``), which a directory of write buffers has, can only be read off the kernel's list.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import struct
from typing import Final, final

from gantry_broker.ports.disk import DiskSpace
from gantry_broker.ports.reading import FileFacts, LockHolder, ReadingFile
from gantry_broker.ports.real_buffers import file_system_of

READ_BYTES: Final = 4 << 20
_FLOCK: Final = struct.Struct("hhqqi4x")
"""C's ``struct flock`` on 64-bit Linux: type, whence, start, length, pid."""


@final
class RealReadingFile:
    """One open file. Owned by whoever opened it."""

    def __init__(self, path: str, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._size = os.fstat(descriptor).st_size

    def __repr__(self) -> str:
        return f"<RealReadingFile {self._path} size={self._size}>"

    @property
    def path(self) -> str:
        return self._path

    @property
    def size(self) -> int:
        return self._size

    def pread(self, length: int, position: int) -> bytes:
        data = os.pread(self._descriptor, length, position)
        while len(data) < length:
            more = os.pread(self._descriptor, length - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def read_into(self, target: memoryview, position: int) -> int:
        done = 0
        while done < len(target):
            count = os.preadv(self._descriptor, [target[done:]], position + done)
            if not count:
                break
            done += count
        return done

    def map(self) -> memoryview:
        if self._size == 0:
            return memoryview(b"")
        scratch = memoryview(bytearray(min(READ_BYTES, self._size)))
        for position in range(0, self._size, READ_BYTES):
            self.read_into(scratch[: min(READ_BYTES, self._size - position)], position)
        # The view keeps the mapping alive, and lets go of it with its last slice.
        return memoryview(mmap.mmap(self._descriptor, self._size, mmap.MAP_SHARED, mmap.PROT_READ))

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


@final
class RealReadingDisk:
    """The file system of this machine. Holds no state; any thread may use it."""

    def open(self, path: str) -> ReadingFile:
        return RealReadingFile(path, _open_untouched(path))

    def facts(self, path: str) -> FileFacts | None:
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return FileFacts(
            found.st_size, found.st_blocks * 512, found.st_mtime_ns // 1_000_000, stat.S_ISDIR(found.st_mode)
        )

    def list(self, directory: str) -> list[str]:
        try:
            return sorted(os.listdir(directory))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def space(self, path: str) -> DiskSpace:
        facts = os.statvfs(path)
        return DiskSpace(total=facts.f_blocks * facts.f_frsize, free=facts.f_bavail * facts.f_frsize)

    def file_system(self, path: str) -> str:
        try:
            return file_system_of(path)
        except OSError:
            return ""

    def lock_holder(self, path: str) -> LockHolder | None:
        try:
            descriptor = _open_untouched(path)
        except FileNotFoundError:
            return None
        try:
            asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
            kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
            return _listed_holder(os.fstat(descriptor)) if kind == fcntl.F_UNLCK else LockHolder(pid)
        finally:
            os.close(descriptor)


def _listed_holder(file: os.stat_result) -> LockHolder | None:
    """Who holds a lock on the whole file, as far as the kernel lists it: not processes of other containers."""
    name = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
    try:
        with open("/proc/locks", encoding="ascii", errors="replace") as lines:
            for line in lines:
                words = line.split()
                if words[1] == "FLOCK" and words[5] == name:
                    return LockHolder(max(int(words[4]), 0))
    except (OSError, ValueError, IndexError):
        return None
    return None


def _open_untouched(path: str) -> int:
    """Open for reading; without a trace in the access time where the kernel allows that, which is for our own files."""
    flags = os.O_RDONLY | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_NOATIME)
    except OSError as exc:
        if exc.errno not in (errno.EPERM, errno.EINVAL):
            raise
        return os.open(path, flags)
