"""Merges the sorted blocks of one hour of the due files, in rounds of bounded size.

    block 1   [ taken | chunk in memory .... | in the file ................ ]
    block 2   [ taken ...... | chunk .... | in the file .................. ]
    round        everything up to the smallest end of a chunk

Each entry is read and checked once, and memory is bounded however many entries are due in the hour, or in one of its
milliseconds: an hour of ten million entries has some 2,500 blocks, of which 32 entries each are in memory, 6 MB. The
number of blocks grows with the number of entries, and by one for each flush into this hour.
"""

from __future__ import annotations

import asyncio
import bisect
from typing import Final, final

from gantry_broker.server.core.persist import run_in_thread
from gantry_broker.server.timers.due_files import (
    HOUR_MS,
    Block,
    DamagedDueFile,
    DueFiles,
    Extent,
    due_file_name,
    split_entries,
)
from gantry_broker.server.timers.entries import ENTRY_BYTES, due_of

ROUND_ENTRIES: Final = 16 * 1024
"""About how many entries are in memory: a chunk is this divided by the number of blocks."""
CHUNK_ENTRIES_MIN: Final = 32
"""The smallest chunk, for hours with many blocks."""
ENTRIES_PER_SLICE: Final = 2048
"""How many entries are checked before other work: about a millisecond."""


@final
class _Cursor:
    """A block that is being read."""

    __slots__ = ("chunk", "end", "position")

    def __init__(self, block: Block) -> None:
        self.position = block.start
        """The position of the next entry that is not in memory."""
        self.end: Final = block.end
        self.chunk: list[bytes] = []

    @property
    def is_all_read(self) -> bool:
        return self.position >= self.end


@final
class DueMerge:
    """The entries of one hour from ``start`` on, in due order. Used by one task at a time."""

    def __init__(self, files: DueFiles, hour: int, start: bytes) -> None:
        self.hour: Final = hour
        self.start = start
        """Entries before this are taken."""
        self._files: Final = files
        self._known = Extent()
        """How much of the file is in the cursors. Later flushes append more."""
        self._cursors: list[_Cursor] = []

    def __repr__(self) -> str:
        return f"<DueMerge hour={self.hour} blocks={len(self._cursors)}>"

    async def next_round(self, end: bytes) -> tuple[list[bytes], bytes]:
        """Return the next entries, sorted, and the key before which all of them are; it is at most ``end``.

        Raises OSError and ``DamagedDueFile``; the merge must not be used after an error.
        """
        await self._add_blocks()
        await self._refill()
        limit = end
        for cursor in self._cursors:
            if not cursor.is_all_read:
                # What is equal to the last entry in memory is the same entry, which was indexed twice.
                limit = min(limit, cursor.chunk[-1] + b"\0")
        entries: list[bytes] = []
        for cursor in self._cursors:
            taken = bisect.bisect_left(cursor.chunk, limit)
            entries += cursor.chunk[:taken]
            del cursor.chunk[:taken]
        self._cursors = [one for one in self._cursors if one.chunk or not one.is_all_read]
        self.start = limit
        entries.sort()
        return entries, limit

    async def _add_blocks(self) -> None:
        known, end, start = self._known, self._files.hours.get(self.hour, Extent()), self.start
        if known != end:
            blocks = await run_in_thread(lambda: self._files.find_blocks(self.hour, known, end, start))
            self._cursors += map(_Cursor, blocks)
            self._known = end

    async def _refill(self) -> None:
        """Read on in the blocks of which at most half a chunk is in memory, so that few rounds need the disk."""
        chunk = max(CHUNK_ENTRIES_MIN, ROUND_ENTRIES // max(len(self._cursors), 1))
        while short := [one for one in self._cursors if not one.is_all_read and len(one.chunk) <= chunk // 2]:
            ranges = [(one.position, min(chunk * ENTRY_BYTES, one.end - one.position)) for one in short]
            parts = await run_in_thread(lambda ranges=ranges: self._files.read_parts(self.hour, ranges))  # type: ignore[misc]
            checked = 0
            for cursor, data in zip(short, parts, strict=True):
                cursor.position += len(data)
                for first in range(0, len(data), ENTRIES_PER_SLICE * ENTRY_BYTES):
                    part = data[first : first + ENTRIES_PER_SLICE * ENTRY_BYTES]
                    cursor.chunk += self._split(part)
                    checked += len(part) // ENTRY_BYTES
                    if checked >= ENTRIES_PER_SLICE:
                        checked = 0
                        await asyncio.sleep(0)

    def _split(self, data: bytes) -> list[bytes]:
        """Return the entries of a part of a block that are not taken. Raises ``DamagedDueFile``."""
        name = due_file_name(self.hour)
        entries = split_entries(data, name)
        if any(due_of(one) // HOUR_MS != self.hour for one in entries):
            raise DamagedDueFile(name, "it has an entry of another hour")
        return [one for one in entries if one >= self.start]
