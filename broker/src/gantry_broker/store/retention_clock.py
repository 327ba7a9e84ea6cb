"""The store's own time, by which messages expire: **setting the wall clock makes no message older**, but for one
case.

Store times of messages come from the wall clock of the master that stored them, so their difference to this wall clock
is no age: a clock set a day ahead would expire everything at once, one set a day back would keep everything for a day
too long. The store counts time itself, by the clock that runs since the machine's boot, suspended time included, and
makes notes of the log's end with that time. A file is as old as the first note that covers its end.

    own time   ----------o---------o-------------o--->  now         o: a note
    log        [file][file][file][file][file]
                         `- at the time of the first note, the log ended here

On the same boot the downtime of a stop, a crash or a suspend is measured exactly. After a reboot, or on another
machine, only the wall clock knows the downtime; a downtime of more than a minute is counted only after the wall clock
has claimed it for an hour, so that a clock that is corrected after the boot has no effect. That is the one case in
which a wrong wall clock counts. Files from before the first note count by their store times.

Every doubt makes a file younger than it is: late deletion is harmless.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, NamedTuple, final

import msgspec

from gantry_store_files.sealed import decode_sealed, encode_sealed

TOLERANCE_MS: Final = 60_000
"""A shorter downtime than this is counted at once, and two claims that differ by less are the same claim."""

CLAIM_MS_MIN: Final = 3_600_000
"""How long the wall clock must claim the same downtime before it is counted."""

NOTE_INTERVAL_MS: Final = 60_000
"""Shortest time between a note and the one after the next: the newest note moves with the present until then."""

NOTES_MAX: Final = 4_096
"""Beyond this number every second note of the older half is dropped: files between two notes use the later one."""


class ClockReading(NamedTuple):
    """The readings of the clocks at one moment."""

    wall_ms: int
    boot_ms: int
    """Time since the boot of the machine, suspended time included."""

    boot_id: str
    """The kernel's identifier of this boot; another one after each reboot."""


class RetentionRecord(msgspec.Struct, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The state of the clock that is kept over a restart."""

    store: str
    """The uuid of the store that the offsets belong to."""

    own_ms: int
    """The store's own time when the record was made."""

    wall_ms: int
    """The wall clock at that moment."""

    boot_ms: int
    boot_id: str
    doubted_from_ms: int | None = None
    """While a downtime is in doubt: notes from this own time on move with it. None otherwise."""

    first_end: int
    """The end of the log at the first note; earlier data counts by its store times."""

    notes: list[tuple[int, int]]
    """Pairs of log end and own time: the log had reached that end by that time. Both grow."""

    cuts: int | None = None
    """How often the log had been truncated (``StoreIdentity.cuts``); None in a record of an earlier version."""

    def with_trusted_notes(self, cuts: int) -> RetentionRecord:
        """Return the record, without its notes if the log was truncated after they were made.

        ``cuts`` is how often the log has been truncated by now. After a truncation other messages may have the offsets
        of the notes, so everything in the log counts as stored now.
        """
        if self.cuts in (None, cuts):
            return self
        return msgspec.structs.replace(self, notes=[], first_end=0, cuts=cuts)


@final
class RetentionClock:
    """The store's own clock and its notes. Owned by the retention loop. Pure: all readings are passed in."""

    def __init__(
        self, now: ClockReading, *, newest_ms: int, log_end: int, record: RetentionRecord | None = None
    ) -> None:
        """Create the clock. ``newest_ms`` is the store time of the newest message, 0 without one."""
        self._seen_boot_ms = self._start_boot_ms = now.boot_ms
        self._stopped_wall_ms: int | None = None
        """The wall clock at the moment when own time stopped counting; None if no downtime is in doubt."""

        self._claimed_ms, self._claimed_since_ms = -1, now.boot_ms
        """The downtime that the wall clock claims, -1 at first; and the boot time since which it has claimed that."""

        if record is None:
            self._own_ms = min(now.wall_ms, newest_ms) if newest_ms > 0 else now.wall_ms
            self._stopped_wall_ms = self._doubted_from_ms = self._own_ms
            self._first_end = log_end
            self._notes: list[tuple[int, int]] = []
        else:
            self._own_ms, self._first_end, self._notes = record.own_ms, record.first_end, list(record.notes)
            self._doubted_from_ms = record.own_ms if record.doubted_from_ms is None else record.doubted_from_ms
            if record.doubted_from_ms is None and now.boot_id == record.boot_id and now.boot_ms >= record.boot_ms:
                self._own_ms += now.boot_ms - record.boot_ms
            else:
                self._stopped_wall_ms = record.wall_ms
        self.note_changes = 0
        """How many notes were made or dropped since this process started. The record must be saved when it changes."""

        self._count_downtime(now)

    def __repr__(self) -> str:
        return f"<RetentionClock own={self._own_ms} notes={len(self._notes)} doubted={self.is_doubtful}>"

    @property
    def is_doubtful(self) -> bool:
        """Whether the wall clock claims a downtime that is not counted yet."""
        return self._stopped_wall_ms is not None

    def observe(self, now: ClockReading, *, log_begin: int, log_end: int) -> int:
        """Update the clock from the readings and the log, every few seconds or minutes. Return the store's own time."""
        self._own_ms += max(0, now.boot_ms - self._seen_boot_ms)
        self._seen_boot_ms = max(self._seen_boot_ms, now.boot_ms)
        self._count_downtime(now)
        self._update_notes(log_begin, log_end)
        return self._own_ms

    def latest_store_time(self, end_offset: int, newest_ms: int) -> int:
        """Return the own time by which everything before ``end_offset`` was stored; never too early.

        Before the first note that is ``newest_ms``, the store time of the newest message before ``end_offset``.
        """
        if end_offset <= self._first_end:
            return newest_ms
        index = bisect_left(self._notes, (end_offset, 0))
        return self._notes[index][1] if index < len(self._notes) else self._own_ms

    def record(self, store: str, now: ClockReading, *, cuts: int | None = None) -> RetentionRecord:
        """Return the record to save, right after ``observe``. A downtime that is in doubt stays in doubt."""
        wall_ms = now.wall_ms
        if self._stopped_wall_ms is not None:
            wall_ms = self._stopped_wall_ms + now.boot_ms - self._start_boot_ms
        return RetentionRecord(
            store=store, own_ms=self._own_ms, wall_ms=wall_ms, boot_ms=now.boot_ms, boot_id=now.boot_id,
            doubted_from_ms=self._doubted_from_ms if self.is_doubtful else None,
            first_end=self._first_end, notes=self._notes[:], cuts=cuts,
        )  # fmt: skip

    def _count_downtime(self, now: ClockReading) -> None:
        """Count the downtime in doubt, if it is short, or the wall clock has claimed it for long enough."""
        if self._stopped_wall_ms is None:
            return
        claimed_ms = max(0, now.wall_ms - (now.boot_ms - self._start_boot_ms) - self._stopped_wall_ms)
        if abs(claimed_ms - self._claimed_ms) > TOLERANCE_MS or self._claimed_ms < 0:
            self._claimed_ms, self._claimed_since_ms = claimed_ms, now.boot_ms
        if claimed_ms <= TOLERANCE_MS or now.boot_ms - self._claimed_since_ms >= CLAIM_MS_MIN:
            self._own_ms += claimed_ms
            self._stopped_wall_ms = None
            start = self._doubted_from_ms
            self._notes = [(end, own_ms + claimed_ms if own_ms >= start else own_ms) for end, own_ms in self._notes]

    def _update_notes(self, log_begin: int, log_end: int) -> None:
        """Note the end of the log with the present own time, and drop notes that are not valid or needed any more."""
        notes = self._notes
        count = len(notes)
        while notes and notes[-1][0] > log_end:  # the log was truncated: other messages will have these offsets
            notes.pop()
        self._first_end = min(self._first_end, log_end)
        if len(notes) != count:
            self.note_changes += 1
        if log_end <= (notes[-1][0] if notes else self._first_end):
            return
        is_new = len(notes) < 2 or self._own_ms - notes[-2][1] >= NOTE_INTERVAL_MS
        if is_new:
            del notes[: bisect_left(notes, (log_begin, 0))]
            if len(notes) >= NOTES_MAX:
                del notes[0 : NOTES_MAX // 2 : 2]
            notes.append((log_end, self._own_ms))
            self.note_changes += 1
        else:  # the note before the newest is younger than the interval: the newest is moved to the present
            notes[-1] = (log_end, self._own_ms)


def encode_record(record: RetentionRecord) -> bytes:
    """Encode the record as a sealed document."""
    return encode_sealed(record)


def decode_record(data: bytes) -> RetentionRecord:
    """Decode a sealed document. Raises ``ValueError`` if it is damaged."""
    return decode_sealed(data, RetentionRecord)
