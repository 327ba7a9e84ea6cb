"""Zeroing what ought to be zero, without giving blocks to what already is.

A queue or index file is sparse behind its end. After a crash there may be stale bytes there, which would be taken for
entries later. Zeroing the whole rest would allocate it; so the rest is read, and only what is not zero is overwritten.
"""

from __future__ import annotations

from typing import Final

from gantry_broker.ports.disk import DiskFile, write_fully

CHUNK_BYTES: Final = 64 * 1024
_ZEROS: Final = bytes(CHUNK_BYTES)


def scrub(file: DiskFile, start: int, end: int) -> int:
    """Make ``[start, end)`` zero; how many bytes had to be overwritten."""
    overwritten = 0
    for position in range(start, end, CHUNK_BYTES):
        length = min(CHUNK_BYTES, end - position)
        if file.pread(length, position).count(0) != length:
            write_fully(file, _ZEROS[:length], position)
            overwritten += length
    return overwritten
