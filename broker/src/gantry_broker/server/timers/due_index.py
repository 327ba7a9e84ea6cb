"""The entries on their way into the due files and out of them, in slices that do not delay requests.

    timer topic --read--> [ buffer ] --flush, worker thread--> due files --load, in slices--> DueWindow

The buffer holds entries that are read and not in the files yet. It is flushed every ``FLUSH_INTERVAL_S``, or when it is
large; the position in the queue is saved only after all of its files are synced. A flush of entries for many minutes is
done in steps, so that a load does not wait for all of them. Flushes and loads are done by one task, one after another.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final, final

from gantry_broker.server.core.persist import run_in_thread
from gantry_broker.server.timers.due_files import MINUTE_MS, DueFiles, IndexedPosition
from gantry_broker.server.timers.entries import (
    ENTRY_BYTES,
    MESSAGE,
    decode_entry,
    due_of,
    first_key,
    is_intact,
    source_of,
)
from gantry_broker.server.timers.progress import TimerState
from gantry_broker.server.timers.window import RUN_MAX, SORTED_MAX, DueWindow

log = logging.getLogger(__name__)

FLUSH_INTERVAL_S: Final = 5.0
"""How often the buffer is flushed. A start reads again what was not flushed: a few seconds of messages."""
BUFFERED_MAX: Final = 64 * 1024
"""How many buffered entries start a flush at once."""
BUFFERED_LIMIT: Final = 4 * BUFFERED_MAX
"""At this number, about 30 MB, reading pauses until the disk has taken some."""
FILES_PER_STEP: Final = 256
"""How many files one step of a flush appends to and syncs."""
ENTRIES_PER_SLICE: Final = 2048
"""How many entries a load examines before other work: about a millisecond."""


class DamagedDueFile(Exception):
    """A due file has an invalid entry, so all due files must be built again from the log."""


@final
class DueIndex:
    """Buffers entries for the due files, and loads the window from them. Owned by the event loop."""

    def __init__(self, files: DueFiles) -> None:
        self.files: Final = files
        self._buffer: dict[int, list[bytes]] = {}
        self._in_flight: dict[int, list[bytes]] = {}
        self.buffered = 0
        """The number of entries that are not in the files yet."""

    def __repr__(self) -> str:
        return f"<DueIndex buffered={self.buffered} {self.files!r}>"

    @property
    def is_full(self) -> bool:
        """Whether reading has to pause."""
        return self.buffered >= BUFFERED_LIMIT

    def clear(self) -> None:
        """Forget the entries that are not in the files."""
        self._buffer, self._in_flight, self.buffered = {}, {}, 0

    def add(self, data: bytes) -> None:
        """Add an entry, to be written to the file of its minute."""
        self._buffer.setdefault(due_of(data) // MINUTE_MS, []).append(data)
        self.buffered += 1

    async def flush(self, position: IndexedPosition) -> None:
        """Write the buffer to the files, a step at a time, then the position. Raises OSError; call it again then.

        ``position`` is that of the last entry that was added before the call.
        """
        for minute, entries in self._buffer.items():
            self._in_flight.setdefault(minute, []).extend(entries)
        self._buffer = {}
        while self._in_flight:
            step = dict(list(self._in_flight.items())[:FILES_PER_STEP])
            parts = {minute: b"".join(entries) for minute, entries in step.items()}
            for minute, entries in step.items():
                self.files.note_minute(minute, len(entries))
            await run_in_thread(lambda parts=parts: self.files.append(parts))  # type: ignore[misc]
            for minute, entries in step.items():
                if self._in_flight.get(minute) is entries:  # not cleared meanwhile
                    del self._in_flight[minute]
                    self.buffered -= len(entries)
        await run_in_thread(lambda: self.files.save_position(position))

    def _waiting_entries(self, minute: int) -> Iterable[bytes]:
        """Return the entries of a minute that are not in its file yet."""
        return (*self._in_flight.get(minute, ()), *self._buffer.get(minute, ()))

    def _next_minute(self, minute: int) -> int | None:
        """Return the first minute from this one on that has entries."""
        found = [one for one in (*self._buffer, *self._in_flight) if one >= minute]
        in_files = self.files.next_minute(minute)
        return min(found if in_files is None else [*found, in_files], default=None)

    async def load(self, window: DueWindow, state: TimerState, *, read: int, horizon_ms: int) -> None:
        """Load the next entries into the window, of one minute at most, if any are due before ``horizon_ms``.

        ``read`` is the offset from which the queue will be read again, so entries in the files from there on are
        ignored. The window's `covered` does not change meanwhile. Raises OSError and ``DamagedDueFile``.
        """
        start = window.covered
        minute = self._next_minute(due_of(start) // MINUTE_MS)
        if minute is None or minute * MINUTE_MS > horizon_ms:
            window.add_run((), max(start, first_key(horizon_ms)))
            return
        end = first_key((minute + 1) * MINUTE_MS)
        run = _Run(start, end, state, read)
        position = 0
        while data := await run_in_thread(lambda: self.files.read(minute, position)):  # noqa: B023 - awaited at once
            position += len(data)
            for first in range(0, len(data), ENTRIES_PER_SLICE * ENTRY_BYTES):
                run.take(data[first : first + ENTRIES_PER_SLICE * ENTRY_BYTES])
                await asyncio.sleep(0)
        run.take_waiting(self._waiting_entries(minute))
        if window.covered == start:  # else the window was restarted meanwhile
            run.cut()
            window.add_run(run.entries, run.end)

    def minutes_before(self, minute: int) -> list[int]:
        """Remove the minutes before this one from the list, and return them: their files are not needed any more."""
        minutes = self.files.minutes
        old = [one for one in minutes if one < minute and one not in self._buffer and one not in self._in_flight]
        if old:
            removed = set(old)
            self.files.minutes = [one for one in minutes if one not in removed]
            for one in old:
                self.files.counts.pop(one, None)
        return old


@final
class _Run:
    """The entries of a minute in ``[start, end)`` that are not delivered, at most the first ``RUN_MAX`` of them."""

    def __init__(self, start: bytes, end: bytes, state: TimerState, read: int) -> None:
        self.entries: list[bytes] = []
        self.end = end
        self._start: Final = start
        self._state: Final = state
        self._read: Final = read

    def take(self, data: bytes) -> None:
        """Add the entries of a part of the file. Raises ``DamagedDueFile``."""
        for first in range(0, len(data), ENTRY_BYTES):
            one = data[first : first + ENTRY_BYTES]
            if not is_intact(one):
                raise DamagedDueFile
            if self._start <= one < self.end:
                entry = decode_entry(one)
                is_read = source_of(entry) < self._read
                if is_read and (entry.kind != MESSAGE or not self._state.is_passed(entry.due_ms, entry.queue_offset)):
                    self.entries.append(one)
        if len(self.entries) > SORTED_MAX:
            self.cut()

    def take_waiting(self, entries: Iterable[bytes]) -> None:
        """Add entries that were read and are not in the file yet."""
        for one in entries:
            if self._start <= one < self.end:
                self.entries.append(one)

    def cut(self) -> None:
        """Keep the first ``RUN_MAX`` entries, and end the run after them."""
        if len(self.entries) > RUN_MAX:
            self.entries.sort()
            self.end = self.entries[RUN_MAX]
            del self.entries[RUN_MAX:]
