"""What recovery does to the bytes of a file after a crash: zero what ought to be zero, rewrite what may be lost.

A queue or index file is sparse behind its end. There may be stale bytes there, which would be taken for entries later.
Zeroing the whole rest would allocate it; so the rest is read, and only what is not zero is overwritten.
"""

from __future__ import annotations

from typing import Final

from gantry_broker.ports.disk import DiskFile, write_fully

CHUNK_BYTES: Final = 64 * 1024
REWRITE_BYTES: Final = 1 << 20
_ZEROS: Final = bytes(CHUNK_BYTES)


def scrub(file: DiskFile, start: int, end: int) -> int:
    """Make ``[start, end)`` zero; how many bytes had to be overwritten.

    Only from the first byte that is not zero to the last: those have blocks, so that even a full disk can be scrubbed.
    """
    overwritten = 0
    for position in range(start, end, CHUNK_BYTES):
        data = file.pread(min(CHUNK_BYTES, end - position), position)
        if data.count(0) != len(data):
            first = len(data) - len(data.lstrip(b"\0"))
            length = len(data.rstrip(b"\0")) - first
            write_fully(file, _ZEROS[:length], position + first)
            overwritten += length
    return overwritten


def last_used(file: DiskFile, start: int) -> int:
    """The exclusive end of what is not zero in ``[start, size)``; ``start`` if all is."""
    last = start
    for position in range(start, file.size, REWRITE_BYTES):
        chunk = file.pread(min(REWRITE_BYTES, file.size - position), position)
        if chunk.count(0) != len(chunk):
            last = position + len(chunk.rstrip(b"\0"))
    return last


def rewrite(file: DiskFile, start: int, end: int) -> None:
    """Write ``[start, end)`` again with the bytes that are there, so that a sync has to bring them to the disk."""
    for position in range(start, end, REWRITE_BYTES):
        write_fully(file, file.pread(min(REWRITE_BYTES, end - position), position), position)
