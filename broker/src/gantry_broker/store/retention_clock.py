"""The store's own time, by which messages expire: **a wall clock that is set never makes a message older**.

Store times of messages come from the wall clock of whoever was master, so their difference to this wall clock is no
age: a clock set a day ahead would expire everything at once, one set a day back would keep everything for a day too
long. The store counts time itself, by the clock that runs since the machine's boot, suspended time included, and notes
how far the log had come by when. A file is as old as the first note that covers its end.

    own time   ----------o---------o-------------o--->  now
    log end       [file][file][file][file][file]
                          `- everything below it was stored by then

On the same boot a stop, a crash and a suspend are measured exactly. After a reboot, or on another machine, only the
wall clock knows how long the store lay still; what it says beyond a minute must stand for an hour first, so that a
clock that is put right after the boot counts for nothing. Files from before the first note count by their store times.

Every doubt makes a file younger than it is: deleting late harms nobody.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, NamedTuple, final

import msgspec

from gantry_store_files.sealed import decode_sealed, encode_sealed

TOLERANCE_MS: Final = 60_000
SETTLE_MS: Final = 3_600_000
NOTE_INTERVAL_MS: Final = 60_000
NOTES_MAX: Final = 4_096
"""Beyond it every second note of the older half goes: files between two notes count as stored by the later one."""


class ClockReading(NamedTuple):
    """What the clocks say at one moment."""

    wall_ms: int
    boot_ms: int
    boot_id: str


class RetentionRecord(msgspec.Struct, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What is kept over a restart."""

    store: str
    """The uuid of the store whose offsets these are."""

    own_ms: int
    wall_ms: int
    boot_ms: int
    boot_id: str
    doubted_from_ms: int | None = None
    """While a standstill is in doubt: notes from this own time on move with it."""

    first_end: int
    """Where the log ended at the first note; what lies before counts by its store times."""

    notes: list[tuple[int, int]]
    """(offset, own time): by that time the log had come so far. Both grow."""

    cuts: int | None = None
    """How often the log's end had been cut (``StoreIdentity.cuts``); None in a record of an earlier version."""

    def after_cuts(self, cuts: int) -> RetentionRecord:
        """The record for a log that was cut ``cuts`` times: without notes, if some of these cuts came after it.

        Other messages may have the offsets of the notes then. What is in the log counts as stored now.
        """
        if self.cuts in (None, cuts):
            return self
        return msgspec.structs.replace(self, notes=[], first_end=0, cuts=cuts)


@final
class RetentionClock:
    """Owned by whoever plans. Pure: it is given what the clocks and the log say."""

    def __init__(
        self, now: ClockReading, *, newest_ms: int, log_end: int, record: RetentionRecord | None = None
    ) -> None:
        """``newest_ms`` is the store time of the newest message, 0 without one."""
        self._seen_boot_ms = self._start_boot_ms = now.boot_ms
        self._settled_wall_ms: int | None = None
        """What the wall clock said when own time stood still; None when nothing is left to find out."""

        self._gap_ms, self._gap_since_ms = -1, now.boot_ms
        if record is None:
            self._own_ms = min(now.wall_ms, newest_ms) if newest_ms > 0 else now.wall_ms
            self._settled_wall_ms = self._doubted_from_ms = self._own_ms
            self._first_end = log_end
            self._notes: list[tuple[int, int]] = []
        else:
            self._own_ms, self._first_end, self._notes = record.own_ms, record.first_end, list(record.notes)
            self._doubted_from_ms = record.own_ms if record.doubted_from_ms is None else record.doubted_from_ms
            if record.doubted_from_ms is None and now.boot_id == record.boot_id and now.boot_ms >= record.boot_ms:
                self._own_ms += now.boot_ms - record.boot_ms
            else:
                self._settled_wall_ms = record.wall_ms
        self.notes_count = 0
        """How many notes were made or forgotten since this process began; whoever keeps them watches it."""

        self._settle(now)

    def __repr__(self) -> str:
        return f"<RetentionClock own={self._own_ms} notes={len(self._notes)} doubted={self.is_doubtful}>"

    @property
    def is_doubtful(self) -> bool:
        """Whether the wall clock claims a standstill that is not believed yet."""
        return self._settled_wall_ms is not None

    def observe(self, now: ClockReading, *, log_begin: int, log_end: int) -> int:
        """Look at the clocks and the log, every few seconds or minutes, and get the store's own time."""
        self._own_ms += max(0, now.boot_ms - self._seen_boot_ms)
        self._seen_boot_ms = max(self._seen_boot_ms, now.boot_ms)
        self._settle(now)
        self._note(log_begin, log_end)
        return self._own_ms

    def stored_by(self, end_offset: int, newest_ms: int) -> int:
        """The own time by which everything before ``end_offset`` was stored; never earlier than it was."""
        if end_offset <= self._first_end:
            return newest_ms
        place = bisect_left(self._notes, (end_offset, 0))
        return self._notes[place][1] if place < len(self._notes) else self._own_ms

    def record(self, store: str, now: ClockReading, *, cuts: int | None = None) -> RetentionRecord:
        """What to keep, right after ``observe``. While a standstill is in doubt, it is kept in doubt."""
        wall_ms = now.wall_ms
        if self._settled_wall_ms is not None:
            wall_ms = self._settled_wall_ms + now.boot_ms - self._start_boot_ms
        return RetentionRecord(
            store=store, own_ms=self._own_ms, wall_ms=wall_ms, boot_ms=now.boot_ms, boot_id=now.boot_id,
            doubted_from_ms=self._doubted_from_ms if self.is_doubtful else None,
            first_end=self._first_end, notes=self._notes[:], cuts=cuts,
        )  # fmt: skip

    def _settle(self, now: ClockReading) -> None:
        """Believe in a standstill that the wall clock has claimed for long enough."""
        if self._settled_wall_ms is None:
            return
        gap_ms = max(0, now.wall_ms - (now.boot_ms - self._start_boot_ms) - self._settled_wall_ms)
        if abs(gap_ms - self._gap_ms) > TOLERANCE_MS or self._gap_ms < 0:
            self._gap_ms, self._gap_since_ms = gap_ms, now.boot_ms
        if gap_ms <= TOLERANCE_MS or now.boot_ms - self._gap_since_ms >= SETTLE_MS:
            self._own_ms += gap_ms
            self._settled_wall_ms = None
            start = self._doubted_from_ms
            self._notes = [(end, own_ms + gap_ms if own_ms >= start else own_ms) for end, own_ms in self._notes]

    def _note(self, log_begin: int, log_end: int) -> None:
        notes = self._notes
        count = len(notes)
        while notes and notes[-1][0] > log_end:  # the log was cut: other messages will have these offsets
            notes.pop()
        self._first_end = min(self._first_end, log_end)
        if len(notes) != count:
            self.notes_count += 1
        if log_end <= (notes[-1][0] if notes else self._first_end):
            return
        is_new = len(notes) < 2 or self._own_ms - notes[-2][1] >= NOTE_INTERVAL_MS
        if is_new:
            del notes[: bisect_left(notes, (log_begin, 0))]
            if len(notes) >= NOTES_MAX:
                del notes[0 : NOTES_MAX // 2 : 2]
            notes.append((log_end, self._own_ms))
            self.notes_count += 1
        else:  # the newest note covers what came since
            notes[-1] = (log_end, self._own_ms)


def encode_record(record: RetentionRecord) -> bytes:
    """A sealed document."""
    return encode_sealed(record)


def decode_record(data: bytes) -> RetentionRecord:
    """What ``data`` says. Raises ``ValueError`` for anything that is not whole."""
    return decode_sealed(data, RetentionRecord)
