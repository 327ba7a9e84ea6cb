"""The real disk: ``mmap``, ``posix_fallocate``, ``fdatasync``, ``flock``.

Three choices need an explanation. Files are mapped by ``mmap(2)`` and not by Python's ``mmap``, which keeps a second
descriptor of each file: the descriptors limit the number of queues. A map is never synced by itself: ``fdatasync``
writes pages dirtied through a map just as well. And ``close`` closes the descriptor at once but leaves the mapping to
its last reader: unmapping under a live slice would be a crash.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import shutil
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, cast, final

from gantry_broker.ports.disk import DiskFile, DiskLock, DiskSpace
from gantry_store_files.disk import LocalFileListing, pread_fully

ZERO_CHUNK = bytes(1 << 20)
"""What is written where blocks cannot be zeroed by ``fallocate``."""
FALLOC_FL_KEEP_SIZE = 0x01
FALLOC_FL_ZERO_RANGE = 0x10
SYNC_FILE_RANGE_WRITE = 2
MADV_POPULATE_READ = 22


HOLES_ARE_ZEROS: Final = frozenset({0xEF53, 0x58465342, 0x9123683E, 0x01021994})
"""File systems, by the magic numbers of statfs(2), on which ``SEEK_DATA`` skips nothing that was written.

They are ext4, XFS, Btrfs and tmpfs. Blocks that were allocated and never written count as a hole there, unless the page
cache has a page of them: a page that was written through a map and is not on the disk yet is never skipped. Elsewhere
that is not certain: ZFS has skipped such pages.
"""


def _load_function(name: str, argument_types: list[Any], result_type: Any) -> Callable[..., int] | None:
    """Return a function of the C library that Python does not wrap completely; None where the library lacks it."""
    try:
        function: Any = getattr(ctypes.CDLL(None, use_errno=True), name)
    except (OSError, AttributeError):
        return None
    function.argtypes, function.restype = argument_types, result_type
    return cast("Callable[..., int]", function)


_POINTER = ctypes.c_void_p
# Without fallocate, ``RealFile.zero`` writes zeros; without fstatfs, no hole is skipped; without sync_file_range, bytes
# are written when they are synced.
_FALLOCATE = _load_function("fallocate", [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64], ctypes.c_int)
_FSTATFS = _load_function("fstatfs", [ctypes.c_int, _POINTER], ctypes.c_int)
_MMAP = _load_function(
    "mmap", [_POINTER, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long], _POINTER
)
_MUNMAP = _load_function("munmap", [_POINTER, ctypes.c_size_t], ctypes.c_int)
_MADVISE = _load_function("madvise", [_POINTER, ctypes.c_size_t, ctypes.c_int], ctypes.c_int)
_SYNC_FILE_RANGE = _load_function(
    "sync_file_range", [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint], ctypes.c_int
)
_MAP_FAILED: Final = ctypes.c_void_p(-1).value
STATFS_BYTES: Final = 512
"""More than a ``struct statfs`` has on any machine."""


def _file_system_magic(descriptor: int) -> int:
    """Return the magic number of the file system of an open file; 0 if it is unknown.

    It is the first field, and has 4 or 8 bytes. On a big-endian machine with 8 bytes the result is 0.
    """
    status = ctypes.create_string_buffer(STATFS_BYTES)
    if _FSTATFS is None or _FSTATFS(descriptor, status) != 0:
        return 0
    return int.from_bytes(status.raw[:4], sys.byteorder)


def _with_path(error: OSError, path: str) -> OSError:
    """Return the same error with the file's name, which calls on a descriptor do not have."""
    return OSError(error.errno, error.strerror, path)


@contextmanager
def _adding_path(path: str) -> Iterator[None]:
    """Add the file's name to an error of a call on a descriptor."""
    try:
        yield
    except OSError as exc:
        raise _with_path(exc, path) from exc


@final
class _FileMap:
    """A shared map of a whole file, which keeps no descriptor. It is unmapped with its last slice."""

    def __init__(self, descriptor: int, size: int) -> None:
        assert _MMAP is not None and _MUNMAP is not None, "a C library has mmap"
        address = _MMAP(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, descriptor, 0)
        if address == _MAP_FAILED:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        self._address: Final = address
        self._size: Final = size
        pages = (ctypes.c_ubyte * size).from_address(address)
        self.view: Final = memoryview(pages).cast("B")
        """All bytes of the file. Each slice keeps ``pages``, and with it the map."""
        # Not at the exit of the interpreter, where other threads may still use slices.
        weakref.finalize(pages, _MUNMAP, address, size).atexit = False

    def advise(self, advice: int, start: int = 0, length: int | None = None) -> None:
        """Call ``madvise`` for a range; ``start`` is the start of a page."""
        length = self._size - start if length is None else length
        if _MADVISE is not None and _MADVISE(self._address + start, length, advice) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))


@final
class RealFile:
    """One open file of a fixed size. Owned by the caller that opened it; ``sync`` may run in another thread."""

    def __init__(self, path: str, descriptor: int, size: int) -> None:
        self.path: Final = path
        self._descriptor = descriptor
        self.size: Final = size
        self._reserved = 0
        self._is_read_ahead_useful = True
        self._are_holes_zeros: bool | None = None
        """Whether ``SEEK_DATA`` may be used; None until the first ``next_data``."""
        self._map: _FileMap | None = None

    def __repr__(self) -> str:
        return f"<RealFile {self.path} size={self.size} reserved={self._reserved}>"

    @property
    def reserved(self) -> int:
        return self._reserved

    @property
    def view(self) -> memoryview:
        if self._map is None:
            with _adding_path(self.path):
                self._map = _FileMap(self._descriptor, self.size)
            self._advise()
        return self._map.view

    def reserve(self, end: int) -> None:
        end = min(end, self.size)
        if end > self._reserved:
            with _adding_path(self.path):
                os.posix_fallocate(self._descriptor, self._reserved, end - self._reserved)
            self._reserved = end
            self._advise()

    def set_read_ahead(self, is_useful: bool) -> None:
        self._is_read_ahead_useful = is_useful
        with suppress(OSError):
            advice = os.POSIX_FADV_NORMAL if is_useful else os.POSIX_FADV_RANDOM
            os.posix_fadvise(self._descriptor, 0, 0, advice)
            self._advise()

    def _advise(self) -> None:
        """Disable reading ahead where it is not useful, as in a file that gets its blocks in steps.

        Such a file is written through the map, a few bytes here and there, and reading ahead would fill the
        neighbourhood of each fresh page with zeros: 1.4 ms instead of 5 us for each of a thousand new queues.
        """
        if self._map is not None:
            is_useful = self._is_read_ahead_useful and self._reserved >= self.size
            self._map.advise(mmap.MADV_NORMAL if is_useful else mmap.MADV_RANDOM)

    def advise(self, start: int, end: int) -> None:
        if self._map is None:
            return
        start, end = max(start, 0) // mmap.PAGESIZE * mmap.PAGESIZE, min(end, self.size)
        with suppress(OSError):
            if start > 0:
                # The pages leave this process, not the page cache. No dirty page is lost, because the map is shared.
                self._map.advise(mmap.MADV_DONTNEED, 0, start)
            if start < end:
                self._map.advise(mmap.MADV_WILLNEED, start, end - start)

    def map_ahead(self, start: int, end: int) -> None:
        pages = self._map
        if pages is not None and start < end <= self.size:
            with suppress(OSError):  # Linux before 5.14
                pages.advise(MADV_POPULATE_READ, start // mmap.PAGESIZE * mmap.PAGESIZE, end - start)

    def regrow(self) -> int | None:
        end = os.lseek(self._descriptor, 0, os.SEEK_END)  # lseek is the cheapest way to read the size.
        if end >= self.size:
            return None
        with _adding_path(self.path):
            os.ftruncate(self._descriptor, self.size)
        reserved, self._reserved = self._reserved, 0
        with suppress(OSError):  # The next write reserves the blocks again, and reports the error.
            self.reserve(reserved)
        return end

    def pread(self, length: int, position: int) -> bytes:
        try:
            return pread_fully(self._descriptor, length, position)
        except OSError as exc:
            raise _with_path(exc, self.path) from exc

    def next_data(self, position: int) -> int:
        if self._are_holes_zeros is None:
            self._are_holes_zeros = _file_system_magic(self._descriptor) in HOLES_ARE_ZEROS
        if not self._are_holes_zeros:
            return position
        try:
            return min(os.lseek(self._descriptor, position, os.SEEK_DATA), self.size)
        except OSError as exc:
            return self.size if exc.errno == errno.ENXIO else position

    def next_hole(self, position: int) -> int:
        if not self._are_holes_zeros:
            return self.size
        try:
            return min(os.lseek(self._descriptor, position, os.SEEK_HOLE), self.size)
        except OSError:
            return self.size

    def pwrite(self, data: bytes | bytearray | memoryview, position: int) -> int:
        try:
            return os.pwrite(self._descriptor, data, position)
        except OSError as exc:
            raise _with_path(exc, self.path) from exc

    def start_writeback(self) -> None:
        # Without a flag to wait, the call takes no error away from the next fdatasync.
        if _SYNC_FILE_RANGE is not None:
            _SYNC_FILE_RANGE(self._descriptor, 0, 0, SYNC_FILE_RANGE_WRITE)

    def sync(self) -> None:
        with _adding_path(self.path):
            os.fdatasync(self._descriptor)

    def zero(self, start: int, end: int) -> None:
        if start >= end:
            return
        if _FALLOCATE is not None:
            mode = FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE
            if _FALLOCATE(self._descriptor, mode, start, end - start) == 0:
                return
            code = ctypes.get_errno()
            if code not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                raise OSError(code, os.strerror(code), self.path)
        position = start
        while position < end:
            position += os.pwrite(self._descriptor, ZERO_CHUNK[: end - position], position)

    def close(self) -> None:
        if self._descriptor < 0:
            return
        os.close(self._descriptor)
        self._descriptor = -1
        # A slice that is still being read keeps the mapping until its owner drops it.
        mapping, self._map = self._map, None
        if mapping is not None:
            with suppress(BufferError):
                mapping.view.release()


def space_of(path: str) -> DiskSpace:
    """Return the space of the file system that contains ``path``.

    As in df, blocks that are reserved for root, or for another tenant of the volume, are neither free nor used.
    """
    status = os.statvfs(path)
    total = status.f_blocks - status.f_bfree + status.f_bavail
    return DiskSpace(total=total * status.f_frsize, free=status.f_bavail * status.f_frsize)


@final
class RealLock:
    """The exclusive locks on an open file, a ``flock`` and a record lock, which closing the file releases."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


@final
class RealDisk(LocalFileListing):
    """The file system of this machine. Holds no state; any thread may use it."""

    def create(self, path: str, size: int, *, reserve: int = 0) -> DiskFile:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        try:
            file = RealFile(path, descriptor, size)
            with _adding_path(path):
                os.ftruncate(descriptor, size)
            file.reserve(reserve)
        except BaseException:
            os.close(descriptor)
            os.unlink(path)
            raise
        return file

    def open(self, path: str) -> DiskFile:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        return RealFile(path, descriptor, os.fstat(descriptor).st_size)

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def make_directory(self, path: str) -> None:
        os.makedirs(path, mode=0o750, exist_ok=True)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def remove_tree(self, path: str) -> None:
        shutil.rmtree(path)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with _adding_path(path):
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def read_uncached(self, path: str, position: int, length: int) -> bytes:
        try:
            return self._read_directly(path, position, length)
        except OSError as error:
            # The file system is in memory, or does not support direct reads.
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
        with open(path, "rb", buffering=0) as file:
            return os.pread(file.fileno(), length, position)

    @staticmethod
    def _read_directly(path: str, position: int, length: int) -> bytes:
        start = position - position % mmap.PAGESIZE
        size = -(-(position + length - start) // mmap.PAGESIZE) * mmap.PAGESIZE
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
        try:
            with mmap.mmap(-1, size) as target:  # Direct reads need aligned memory.
                count = os.preadv(descriptor, [target], start)
                return bytes(target[position - start : max(min(count, position - start + length), position - start)])
        finally:
            os.close(descriptor)

    def read_file(self, path: str) -> bytes:
        with open(path, "rb") as stream:
            return stream.read()

    def write_file(self, path: str, data: bytes, *, is_private: bool = False) -> None:
        temporary = f"{path}.tmp"
        mode = 0o600 if is_private else 0o640
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        try:
            if is_private:
                os.fchmod(descriptor, mode)  # A crash may have left the temporary file with another mode.
            with _adding_path(path), memoryview(data) as whole:
                done = 0
                while done < len(whole):
                    done += os.write(descriptor, whole[done:])
                os.fsync(descriptor)
        except OSError:
            os.unlink(temporary)  # On a full disk a partial file would only occupy space.
            raise
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
        self.sync_directory(os.path.dirname(path))

    def append_file(self, path: str, data: bytes, *, end: int | None = None) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
        try:
            with _adding_path(path), memoryview(data) as whole:
                if end is not None and os.fstat(descriptor).st_size > end:
                    os.ftruncate(descriptor, end)
                done = 0
                while done < len(whole):
                    done += os.write(descriptor, whole[done:])
                os.fdatasync(descriptor)
        finally:
            os.close(descriptor)

    def space(self, path: str) -> DiskSpace:
        return space_of(path)

    def lock(self, path: str) -> DiskLock:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # RocketMQ takes a record lock on byte 0. It is taken here, too, so that neither starts beside the other.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            with _adding_path(path):
                os.pwrite(descriptor, b"lock", 0)
        except PermissionError as exc:
            os.close(descriptor)
            raise BlockingIOError(errno.EAGAIN, "locked by another process", path) from exc
        except BaseException:
            os.close(descriptor)
            raise
        return RealLock(descriptor)
