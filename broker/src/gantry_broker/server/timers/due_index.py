"""The entries on their way into the due files and out of them, in slices that do not delay requests.

    timer topic --read--> [ buffer ] --flush--> file of the hour, or `later` --split, once an hour--> files of the hours
                                                              `--load: merge of its blocks--> DueWindow

The buffer holds entries that are read and not in the files yet. It is flushed every ``FLUSH_INTERVAL_S``, or when it is
large; the position in the queue is saved only after all of its files are synced. `later` is *split* into the files of
the hours when it is large, and before one of its hours comes due. That is done in steps, between which the window is
loaded: only hours that need no split are. Flushes, splits and loads are done by one task, one after another.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from typing import Final, final

from gantry_broker.server.core.persist import run_in_thread
from gantry_broker.server.timers.due_files import (
    BLOCK_ENTRIES_MAX,
    HOUR_MS,
    LATER,
    OFFSET_MAX,
    DamagedDueFile,
    DueFiles,
    Extent,
    IndexedPosition,
    Part,
    encode_block,
    split_entries,
)
from gantry_broker.server.timers.due_merge import ENTRIES_PER_SLICE, DueMerge
from gantry_broker.server.timers.entries import ENTRY_BYTES, MESSAGE, decode_entry, due_of, first_key, source_of
from gantry_broker.server.timers.marks import TimerState
from gantry_broker.server.timers.window import DueWindow

log = logging.getLogger(__name__)

FLUSH_INTERVAL_S: Final = 5.0
"""How often the buffer is flushed. A start reads again what was not flushed: a few seconds of messages."""
BUFFERED_MAX: Final = 64 * 1024
"""How many buffered entries start a flush at once."""
BUFFERED_LIMIT: Final = 4 * BUFFERED_MAX
"""At this number, about 30 MB, reading pauses until the disk has taken some."""
LATER_ENTRIES_MAX: Final = 512 * 1024
"""With so many entries, 20 MB, `later` is split. They are in memory meanwhile."""
SPLIT_AHEAD_MS: Final = 15 * 60_000
"""`later` is split this long before one of its hours begins, so that no load waits for that."""
FILES_PER_STEP: Final = 64
"""How many files one step of a split appends to and syncs."""


@final
class _Split:
    """A split of `later` that is in progress."""

    def __init__(self, hour: int) -> None:
        self.hour: Final = hour
        self.read = Extent()
        self.parts: dict[int, bytearray] = {}
        """The entries of each hour that are read from `later` and not in the file of the hour."""


@final
class DueIndex:
    """Buffers entries for the due files, and loads the window from them. Owned by the event loop."""

    def __init__(self, files: DueFiles) -> None:
        self.files: Final = files
        self.buffered = 0
        """The number of entries that are not in the files yet."""
        self._buffer: dict[int, list[bytes]] = {}
        self._in_flight: dict[int, list[bytes]] = {}
        self._split: _Split | None = None
        self._merge: DueMerge | None = None

    def __repr__(self) -> str:
        return f"<DueIndex buffered={self.buffered} {self.files!r}>"

    @property
    def is_full(self) -> bool:
        """Whether reading has to pause."""
        return self.buffered >= BUFFERED_LIMIT

    def clear(self) -> None:
        """Forget the entries that are not in the files, which were removed."""
        self._buffer, self._in_flight, self.buffered = {}, {}, 0
        self._split = self._merge = None

    def add(self, data: bytes) -> None:
        """Add an entry, to be written to the files."""
        self._buffer.setdefault(due_of(data) // HOUR_MS, []).append(data)
        self.buffered += 1

    # ------- into the files

    async def flush(self, position: IndexedPosition) -> None:
        """Write the buffer to the files, then the position. Raises OSError; call it again then.

        ``position`` is that of the last entry that was added before the call. Not called while a split is in progress.
        """
        assert self._split is None, "a split removes what `later` has"
        for hour, entries in self._buffer.items():
            self._in_flight.setdefault(hour, []).extend(entries)
        self._buffer = {}
        files = self.files
        for hour in sorted(one for one in self._in_flight if one <= files.split_hour):
            part = await _make_part(hour, files.hours.get(hour, Extent()), _batches_of(self._in_flight[hour]))
            await run_in_thread(lambda part=part: files.append([part]))  # type: ignore[misc]
            files.hours[hour] = part.after
            self._note_written([hour])
        hours = list(self._in_flight)
        if hours:
            entries = [one for hour in hours for one in self._in_flight[hour]]
            part = Part(None, files.later, b"".join(entries), await _first_source(entries))
            await run_in_thread(lambda: files.append([part]))
            files.later = part.after
            self._note_written(hours)
        await run_in_thread(lambda: files.save_position(position))

    def _note_written(self, hours: Iterable[int]) -> None:
        for hour in hours:
            self.buffered -= len(self._in_flight.pop(hour))

    def is_split_needed(self, now_ms: int) -> bool:
        """Whether `split_step` has work to do."""
        is_soon = (now_ms + SPLIT_AHEAD_MS) // HOUR_MS > self.files.split_hour
        return self._split is not None or is_soon or self.files.later.size >= LATER_ENTRIES_MAX * ENTRY_BYTES

    async def split_step(self, due_ms: int) -> None:
        """Do a part of the move of entries from `later` to the files of their hours.

        From the end of the split on, entries of the hour of ``due_ms`` and of those before are put there directly.
        Raises OSError, after which the step is repeated, and ``DamagedDueFile``.
        """
        files = self.files
        if self._split is None:
            self._split = _Split(due_ms // HOUR_MS)
        split = self._split
        if split.read.size < files.later.size:
            data = await run_in_thread(lambda: files.read_later(split.read.size))
            for first in range(0, len(data), ENTRIES_PER_SLICE * ENTRY_BYTES):
                for one in split_entries(data[first : first + ENTRIES_PER_SLICE * ENTRY_BYTES], LATER):
                    split.parts.setdefault(due_of(one) // HOUR_MS, bytearray()).extend(one)
                await asyncio.sleep(0)
            split.read = split.read.extended(data)
            if split.read.size == files.later.size and not split.read.is_same(files.later):
                raise DamagedDueFile(LATER, "it does not match its checksum")
        elif split.parts:
            await self._append_split(split)
        else:
            files.later, files.split_hour = Extent(), max(files.split_hour, split.hour)
            if split.read.size:
                await run_in_thread(lambda: files.save_position(files.saved_position))
            self._split = None

    async def _append_split(self, split: _Split) -> None:
        parts: list[Part] = []
        for hour in sorted(split.parts)[:FILES_PER_STEP]:
            parts.append(await _make_part(hour, self.files.hours.get(hour, Extent()), _batches_in(split.parts[hour])))
        await run_in_thread(lambda: self.files.append(parts))
        for part in parts:
            assert part.hour is not None, "a split appends to files of hours"
            self.files.hours[part.hour] = part.after
            del split.parts[part.hour]

    async def remove_before(self, hour: int) -> bool:
        """Remove the files of the hours before this one, which are not needed any more. False if there are none.

        Raises OSError; a start removes what is left.
        """
        hours = self.files.hours
        old = [one for one in hours if one < hour and one not in self._buffer and one not in self._in_flight]
        if not old or self._split is not None:
            return False
        for one in old:
            del hours[one]
        await run_in_thread(lambda: self.files.save_position(self.files.saved_position))
        await run_in_thread(lambda: self.files.remove(old))
        return True

    # ------- out of the files

    async def load(self, window: DueWindow, state: TimerState, *, read: int, horizon_ms: int) -> None:
        """Load the next entries into the window, of one hour at most, if any are due before ``horizon_ms``.

        ``read`` is the offset from which the queue will be read again, so entries in the files from there on are
        ignored. The window's `covered` does not change meanwhile, unless the window is restarted; then nothing is
        loaded. Raises OSError and ``DamagedDueFile``.
        """
        if horizon_ms // HOUR_MS > self.files.split_hour:
            await self.split_step(horizon_ms)
            return
        start, horizon = window.covered, first_key(horizon_ms)
        hour = self._next_hour(due_of(start) // HOUR_MS)
        if hour is None or hour * HOUR_MS > horizon_ms:
            window.add_run((), max(start, horizon))
            return
        merge, self._merge = self._merge, None
        if merge is None or merge.hour != hour or merge.start != start:
            merge = DueMerge(self.files, hour, start)
        end = max(start, min(first_key((hour + 1) * HOUR_MS), horizon))
        entries, limit = await merge.next_round(end)
        wanted = await _select(entries, state, read)
        if window.covered != start:
            return
        wanted += [one for one in self._waiting_entries(hour) if start <= one < limit]
        wanted.sort()
        window.add_run(wanted, limit)
        self._merge = merge

    def _waiting_entries(self, hour: int) -> Iterable[bytes]:
        """Return the entries of an hour that are not in its file yet."""
        return (*self._in_flight.get(hour, ()), *self._buffer.get(hour, ()))

    def _next_hour(self, hour: int) -> int | None:
        """Return the first hour from this one on that has entries."""
        return min((one for one in (*self._buffer, *self._in_flight, *self.files.hours) if one >= hour), default=None)


def _batches_of(entries: list[bytes]) -> Iterator[list[bytes]]:
    """Yield the entries, as many at a time as a block has."""
    for first in range(0, len(entries), BLOCK_ENTRIES_MAX):
        yield entries[first : first + BLOCK_ENTRIES_MAX]


def _batches_in(data: bytearray) -> Iterator[list[bytes]]:
    """Yield the entries in these bytes, as many at a time as a block has: as objects all would need 100 MB."""
    for first in range(0, len(data), BLOCK_ENTRIES_MAX * ENTRY_BYTES):
        yield split_entries(bytes(data[first : first + BLOCK_ENTRIES_MAX * ENTRY_BYTES]), LATER)


async def _make_part(hour: int, before: Extent, batches: Iterable[list[bytes]]) -> Part:
    """Return an append of the entries, a sorted block for each batch."""
    blocks: list[bytes] = []
    first_source = OFFSET_MAX
    for entries in batches:
        blocks.append(encode_block(sorted(entries)))
        first_source = min(first_source, await _first_source(entries))
    return Part(hour, before, b"".join(blocks), first_source)


async def _first_source(entries: list[bytes]) -> int:
    """Return the smallest queue offset of the records from which entries were made."""
    found = OFFSET_MAX
    for first in range(0, len(entries), ENTRIES_PER_SLICE):
        part = entries[first : first + ENTRIES_PER_SLICE]
        found = min(found, min(source_of(decode_entry(one)) for one in part))
        await asyncio.sleep(0)
    return found


async def _select(entries: list[bytes], state: TimerState, read: int) -> list[bytes]:
    """Return the entries of messages that are read and not delivered, and all recalls that are read."""
    found: list[bytes] = []
    for first in range(0, len(entries), ENTRIES_PER_SLICE):
        for one in entries[first : first + ENTRIES_PER_SLICE]:
            entry = decode_entry(one)
            is_read = source_of(entry) < read
            if is_read and (entry.kind != MESSAGE or not state.is_passed(entry.due_ms, entry.queue_offset)):
                found.append(one)
        await asyncio.sleep(0)
    return found
