"""One file of a log or a queue: a fixed size, a base offset that is its name, a map of all its bytes.

    [0 ...... position ...... reserved ...... size)      offset = base_offset + position

The file does not interpret its content and keeps no positions of its own: the log or the queue knows where it ends. It
guarantees that a file's name is its base offset, and raises ``StoreFull`` if it cannot be created or get its blocks.

A log file may have a write buffer, which then holds what was written from its start on, while the file may still lack
it. Readers ask for the *extent* that holds an offset and read from its view, wherever that is:

    file     [base ...... start ...... end)        without a buffer: one extent, the file itself
              `- file's map -'`- buffer -'         with one from the middle on: two

After a crash, recovery zeroes what must be zero (``zero_range``), and writes again what may be lost (``rewrite``). A
queue or index file is sparse after its end. Stale bytes there would be taken for entries later: before a power loss,
the kernel may have written later pages before earlier ones. Zeroing the whole rest would allocate it, so what may have
been written there is read, and only bytes that are not zero are overwritten. What the file system has never stored is
not read: it is nearly all of the file, and reading it would take 12 ms for each queue.
"""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple, final

from gantry_broker.errors import OutOfDescriptors, StoreFull, is_out_of_descriptors
from gantry_broker.ports.disk import Disk, DiskFile, write_fully
from gantry_broker.store.write_buffer import WriteBuffer
from gantry_store_files.segments import segment_name


@contextmanager
def translate_disk_full(what: str) -> Iterator[None]:
    """Raise ``StoreFull`` for an ``OSError`` of an operation that needs space for ``what``.

    Every error counts as a lack of space, or of descriptors (``OutOfDescriptors``), except that a file exists or is
    missing: these two pass unchanged.
    """
    try:
        yield
    except (FileExistsError, FileNotFoundError):
        raise
    except OSError as exc:
        if is_out_of_descriptors(exc):
            raise OutOfDescriptors(_descriptors_needed(what, exc)) from exc
        raise StoreFull(f"no room for {what}: {exc.strerror}") from exc


def _descriptors_needed(what: str, error: OSError) -> str:
    """Return which limit prevents that ``what`` is opened, and what to raise."""
    if error.errno == errno.ENFILE:
        return f"too many open files in the system to open {what}; raise its limit (sysctl fs.file-max)"
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"too many open files to open {what}: the limit of this process is {limit}; raise its hard limit "
        "(LimitNOFILE=, ulimit -Hn) and restart the broker, or close connections"
    )


class Extent(NamedTuple):
    """A range of a log and its bytes: those at ``offset`` are at ``offset - base_offset`` of ``view``."""

    base_offset: int
    end_offset: int
    view: memoryview


@final
class MappedFile:
    """An open file of a log or a queue.

    Consume queue files are written through ``view`` and synced by the thread ``gantry-point`` (``point_writer``); log
    files are written by ``pwrite`` or through a write buffer, and synced by ``Flusher.flush`` in any thread.
    """

    __slots__ = ("_file_extent", "_last_extent", "base_offset", "buffer", "end_offset", "file", "size", "view")

    def __init__(self, file: DiskFile, base_offset: int) -> None:
        self.file = file
        self.base_offset = base_offset
        self.size = file.size
        self.end_offset = base_offset + file.size
        self.view = file.view
        """All bytes of the file itself, without the write buffer."""
        self.buffer: WriteBuffer | None = None
        """The write buffer; None while the file is written directly."""
        # The extent in the file, and the last extent, which is in the buffer if there is one.
        self._file_extent = self._last_extent = Extent(base_offset, self.end_offset, self.view)

    def __repr__(self) -> str:
        return f"<MappedFile {segment_name(self.base_offset)} size={self.size} reserved={self.file.reserved}>"

    @classmethod
    def create(cls, disk: Disk, directory: str, base_offset: int, *, size: int, reserve: int) -> MappedFile:
        """Create a file of zeros with blocks up to ``reserve``. Raises ``StoreFull``; then there is no file."""
        path = f"{directory}/{segment_name(base_offset)}"
        with translate_disk_full(path):
            file = disk.create(path, size, reserve=reserve)
            try:
                return cls(file, base_offset)
            except OSError:
                # The file could not be mapped, perhaps only for lack of memory now. Left behind, it would block its
                # own name.
                file.close()
                disk.remove(path)
                raise

    @property
    def path(self) -> str:
        return self.file.path

    def reserve(self, end: int) -> None:
        """Allocate blocks for everything before position ``end``. Raises ``StoreFull``."""
        if end > self.file.reserved:
            with translate_disk_full(self.file.path):
                self.file.reserve(end)

    def advise(self, start: int, end: int) -> None:
        """Hint that ``[start, end)`` of the log is read next from the file, and nothing before it."""
        self.file.advise(start - self.base_offset, end - self.base_offset)

    def map_ahead(self, start: int, end: int) -> None:
        """Map ``[start, end)`` of the log from the file before it is read. A hint, never an error."""
        self.file.map_ahead(start - self.base_offset, end - self.base_offset)

    def set_read_ahead(self, is_useful: bool) -> None:
        """Set whether the kernel should read ahead in this file. A hint, never an error."""
        self.file.set_read_ahead(is_useful)

    def extent(self, offset: int) -> Extent:
        """Return the extent that holds the bytes at ``offset``."""
        extent = self._last_extent
        return extent if offset >= extent.base_offset else self._file_extent

    def attach(self, buffer: WriteBuffer) -> None:
        """Attach a write buffer: from its start on, this file is written and read in the buffer."""
        assert self.buffer is None and buffer.base_offset == self.base_offset and buffer.start < self.end_offset, self
        split = buffer.start - self.base_offset
        self.buffer = buffer
        self._file_extent = Extent(self.base_offset, buffer.start, self.view[:split])
        self._last_extent = Extent(buffer.start, self.end_offset, buffer.view[split:])

    def detach(self) -> WriteBuffer:
        """Detach the write buffer after all of it was committed to the file. No slice of it may be in use."""
        buffer, self.buffer = self.buffer, None
        assert buffer is not None, self
        extent = self._last_extent
        self._file_extent = self._last_extent = Extent(self.base_offset, self.end_offset, self.view)
        extent.view.release()
        return buffer

    def close(self) -> None:
        if self.buffer is not None:
            self.detach()
        self.file.close()


def is_zero(data: bytes | memoryview) -> bool:
    """Return whether all bytes are zero, as after the head of a filler."""
    return not any(data) if len(data) < 64 else bytes(data).count(0) == len(data)


CHUNK_BYTES: Final = 64 * 1024
"""How much is compared with zeros at a time."""
REWRITE_BYTES: Final = 1 << 20
"""How much ``rewrite`` reads and writes at a time."""
WRITEBACK_BYTES: Final = 32 << 20
"""After how much ``rewrite`` lets the disk begin to write."""
_ZEROS: Final = bytes(max(CHUNK_BYTES, REWRITE_BYTES))


def zero_range(file: DiskFile, start: int, end: int) -> int:
    """Make ``[start, end)`` zero, and return how many bytes had to be overwritten.

    Each chunk is overwritten only from its first byte that is not zero to its last: those have blocks already, so this
    works on a full disk, too.
    """
    overwritten = 0
    for position, data in _written_chunks(file, start, end, CHUNK_BYTES):
        if data != _ZEROS[: len(data)]:
            first = len(data) - len(data.lstrip(b"\0"))
            length = len(data.rstrip(b"\0")) - first
            write_fully(file, _ZEROS[:length], position + first)
            overwritten += length
    return overwritten


def _written_chunks(file: DiskFile, start: int, end: int, chunk_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield chunks of ``[start, end)`` with their positions, without long ranges that are known to be zeros."""
    for begin, stop in _written_ranges(file, start, end):
        position = begin
        while position < stop:
            data = file.pread(min(chunk_bytes, stop - position), position)
            if not data:
                return  # Another process has shortened the file.
            yield position, data
            position += len(data)


def _written_ranges(file: DiskFile, start: int, end: int) -> list[tuple[int, int]]:
    """Return the ranges of ``[start, end)`` that may have bytes other than zero.

    They are found before any of them is read: reading lets the kernel read ahead, and what it has in the page cache
    counts as written, so that the end of the ranges would always be ahead.
    """
    ranges: list[tuple[int, int]] = []
    position = start
    while (position := max(position, file.next_data(position))) < end:
        hole = max(file.next_hole(position), position + 1)
        if ranges and position - ranges[-1][1] < CHUNK_BYTES:  # also bounds the number of ranges
            position = ranges.pop()[0]
        ranges.append((position, min(hole, end)))
        position = hole
    return ranges


def find_used_end(file: DiskFile, start: int) -> int:
    """Return the exclusive end of the bytes in ``[start, size)`` that are not zero; ``start`` if all are zero."""
    last = start
    for position, chunk in _written_chunks(file, start, file.size, REWRITE_BYTES):
        if chunk != _ZEROS[: len(chunk)]:
            last = position + len(chunk.rstrip(b"\0"))
    return last


def rewrite(file: DiskFile, start: int, end: int) -> None:
    """Write ``[start, end)`` again with its present bytes, so that the next sync brings them to the disk."""
    for position in range(start, end, REWRITE_BYTES):
        write_fully(file, file.pread(min(REWRITE_BYTES, end - position), position), position)
        if (position - start) % WRITEBACK_BYTES == 0:
            file.start_writeback()
