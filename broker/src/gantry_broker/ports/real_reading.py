"""The real file system, for reading only: files are opened by ``PlainDisk``, and no lock is taken.

The holder of a lock is queried by ``F_GETLK``, which reports a conflicting lock and takes none. Our brokers and
RocketMQ's both hold a record lock on byte 0 of the store's ``lock`` file, so one query finds either; read access is
enough. It must not be called in the process that holds the lock: closing any descriptor of the file releases the lock
there. Locks on whole files (``flock``), which a directory of write buffers has, are only in the kernel's list.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
from typing import Final, final

from gantry_broker.ports.disk import DiskSpace
from gantry_broker.ports.reading import FileMetadata, LockHolder
from gantry_broker.ports.real_buffers import file_system_of
from gantry_broker.ports.real_disk import space_of
from gantry_store_files.disk import PlainDisk, open_without_atime

_FLOCK: Final = struct.Struct("hhqqi4x")
"""C's ``struct flock`` on 64-bit Linux: type, whence, start, length, pid."""


@final
class RealReadingDisk(PlainDisk):
    """The file system of this machine. Holds no state; any thread may use it."""

    def metadata(self, path: str) -> FileMetadata | None:
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return FileMetadata(found.st_size, found.st_blocks * 512, stat.S_ISDIR(found.st_mode))

    def space(self, path: str) -> DiskSpace:
        return space_of(path)

    def file_system(self, path: str) -> str:
        try:
            return file_system_of(path)
        except OSError:
            return ""

    def lock_holder(self, path: str) -> LockHolder | None:
        try:
            descriptor = open_without_atime(path)
        except FileNotFoundError:
            return None
        try:
            query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
            kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, query))
            return _listed_holder(os.fstat(descriptor)) if kind == fcntl.F_UNLCK else LockHolder(pid)
        finally:
            os.close(descriptor)


def _listed_holder(file: os.stat_result) -> LockHolder | None:
    """Return the holder of a lock on the whole file, if the kernel lists it.

    The list contains no processes of other containers.
    """
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
