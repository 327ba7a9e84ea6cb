"""Planning of recovery and scanning of the log: where to start, and what damage means. Pure functions.

    [min_physical ...... start ...... durable mark ...... end of the files)
      queues and index     |- read record by record; dispatched again -|
      are trusted here

Two kinds of damage look alike. A **torn tail** is where a crash stopped the writing: the log ends there, and what
follows, valid or not, was not flushed for certain and must never reappear. **Rot** is damage to bytes that had been
flushed: truncating there would remove good, acknowledged messages after it. The durable mark distinguishes them: it is
how far the log was known to be on disk. Damage before the mark, with a good record between the damage and the mark, is
rot: it is reported and skipped. Any other damage ends the log. After a clean stop everything had been flushed, so the
mark is infinite.

A kill of the process tears no record: what it has written is complete in the page cache. So if only the process ended,
everything that it had written is treated as flushed (``complete_mark``). What a write buffer still holds is excepted:
there the log ends, and the buffer is replayed after it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import merge
from typing import Final, Protocol

from gantry_broker.store.identity import LOG_END_MAX, OwnershipRange
from gantry_broker.store.recovery_point import RecoveryPoint
from gantry_wire.message import (
    MAGIC_POSITION,
    MESSAGE_MAGICS,
    PHYSICAL_OFFSET_POSITION,
    RecordCheck,
    RecordFault,
    check_record,
)
from gantry_wire.plain_records import PlainRun

INFINITE: Final = 1 << 62
"""A mark beyond any log, after a clean stop."""
_MAGICS: Final = tuple(struct.pack(">i", magic) for magic in MESSAGE_MAGICS)
MAGIC_END: Final = MAGIC_POSITION + 4
"""The position of the byte after the magic of a record."""

SEARCH_BYTES: Final = 1 << 20
"""How many bytes are searched for records at once."""

SEARCH_OVERLAP: Final = PHYSICAL_OFFSET_POSITION + 8
"""How many more bytes are read, since the physical offset of a record may lie in the next piece."""
_ZEROS: Final = bytes(SEARCH_BYTES + SEARCH_OVERLAP)

Seals = Callable[[int], OwnershipRange]
"""Returns for an offset whether records must have a seal there, and up to where that holds. See ``identity``."""


PlainRecordsHandler = Callable[[PlainRun, int], int]
"""Called with a run of plain records (of the usual form, see ``gantry_wire.plain_records``), which may be empty, and
the offset where it begins. Returns where it ends."""

READ_AHEAD_BYTES: Final = 32 << 20
"""How many bytes the disk is asked to read ahead at a time."""


def no_seals(_offset: int) -> OwnershipRange:
    """Return that no record needs a seal, for a log that this broker has not written."""
    return OwnershipRange(False, LOG_END_MAX)


class LogRange(Protocol):
    """A range of the log that is one piece of memory."""

    @property
    def base_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def view(self) -> memoryview: ...


class LogFile(LogRange, Protocol):
    """The interface of a log file that the scan needs."""

    def advise(self, start: int, end: int) -> None:
        """Hint that ``[start, end)`` is read next, and nothing before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFacts:
    """What is known before a byte of the log is read."""

    is_clean: bool
    """Whether the last run stopped cleanly."""

    min_physical: int
    """The first offset of the log."""

    files_end: int
    """The end of the log's last file, which is preallocated."""

    sealed_flushed: int
    """The flushed end of the log that the checkpoint's seal records; 0 without one."""

    point_through: int | None
    """The offset of the recovery point, before which everything is durable; None without one."""

    is_point_proved: bool
    """The result of ``is_point_proved``: a good record ends at ``point_through``, or a log file begins there."""

    failed_flushed: int | None = None
    """Up to where the log was flushed when a flush failed, if one has."""

    written: int = 0
    """Up to where a killed process had written the log, without what write buffers hold; 0 if not known."""


@dataclass(frozen=True, slots=True)
class StartPlan:
    """Where a start begins to read, and the marks that classify damage. The module describes both."""

    start: int
    """The offset from which the log is read."""

    durable_mark: int
    """Up to where the log was known to be on the disk."""

    is_full: bool
    """Whether the whole log is read, since there is no usable recovery point."""

    complete_mark: int
    """Up to where the log was complete when it was last used: damage before it is rot."""


def is_point_proved(
    point: RecoveryPoint | None, file_size: int, record_at: Callable[[int], RecordCheck | None]
) -> bool:
    """Return whether the record that the recovery point names ends at ``through``, or a log file begins there.

    Only the position is proved, not every byte of the record: it need not have a seal.
    """
    if point is None:
        return False
    if file_size and point.through % file_size == 0:
        return True
    check = record_at(point.tail) if point.tail >= 0 else None
    return check is not None and check.is_good and point.tail + check.size == point.through


def plan_start(facts: StartFacts) -> StartPlan:
    """Return where recovery starts to read, and which damage is rot."""
    through = facts.point_through
    is_point_usable = through is not None and facts.is_point_proved and facts.min_physical <= through <= facts.files_end
    start = through if is_point_usable and through is not None else facts.min_physical
    mark = INFINITE if facts.is_clean else max(facts.sealed_flushed, start if is_point_usable else 0)
    complete = max(mark, facts.written)
    if facts.failed_flushed is not None:
        # Nothing that was written after the last good flush is trusted: the page cache drops what it could not write.
        mark = complete = max(facts.failed_flushed, start if is_point_usable else 0)
    return StartPlan(start, mark, not is_point_usable, complete)


@dataclass(slots=True)
class ScanResult:
    """The result of scanning the log."""

    end: int
    """The exclusive end of the log."""

    damaged: list[tuple[int, int]] = field(default_factory=list)
    """Half-open ranges of damaged bytes that were skipped."""

    lost_flushed: int = 0
    """How many bytes before ``complete_mark`` are missing at the end of the log: flushed, or written before a kill."""


def scan_log(
    files: Sequence[LogFile],
    start: int,
    complete_mark: int,
    on_record: Callable[[memoryview, int, int, int], None],
    *,
    on_plain_records: PlainRecordsHandler | None = None,
    seals: Seals = no_seals,
) -> ScanResult:
    """Read records from ``start`` to the end of the log; ``on_record(view, position, physical offset, size)`` for each.

    With ``on_plain_records`` the plain ones are given to it instead, in runs.
    """
    result = ScanResult(end=start)
    offset = start
    is_sealed, sealed_end = seals(start)
    for index, file in enumerate(files):
        if file.end_offset <= offset:
            continue
        view, base, end = file.view, file.base_offset, file.end_offset
        read_ahead_end = offset
        while offset < end:
            if offset >= sealed_end:
                is_sealed, sealed_end = seals(offset)
            if offset >= read_ahead_end:
                read_ahead_end = min(end, offset + READ_AHEAD_BYTES)
                file.advise(offset, read_ahead_end + READ_AHEAD_BYTES)
            if on_plain_records is not None:
                stop = min(read_ahead_end, sealed_end) - base
                run_end = on_plain_records(PlainRun(view, offset - base, stop, base, is_sealed=is_sealed), offset)
                if run_end > offset:
                    offset = run_end
                    continue
            check = check_record(view, offset - base, physical_offset=offset, is_sealed=is_sealed)
            if check.is_good:
                on_record(view, offset - base, offset, check.size)
                offset += check.size
                continue
            if check.fault is RecordFault.BLANK and offset + check.size == end:
                offset = end
                continue
            after = _next_record(files[index:], offset, complete_mark, seals) if offset < complete_mark else None
            if after is None:
                result.end = offset
                if complete_mark != INFINITE:
                    result.lost_flushed = max(0, complete_mark - offset)
                return result
            result.damaged.append((offset, after))
            offset = after
        result.end = offset
    return result


def _next_record(files: Sequence[LogFile], damaged: int, complete_mark: int, seals: Seals) -> int | None:
    """Return where the first whole record after ``damaged`` begins, or None if that is after the mark."""
    for file in files:
        for offset in record_candidates(file, max(damaged + 1, file.base_offset), file.end_offset):
            if offset > complete_mark:
                return None
            position, is_sealed = offset - file.base_offset, seals(offset).is_ours
            if check_record(file.view, position, physical_offset=offset, is_sealed=is_sealed).is_good:
                return offset
    return None


def count_whole_records(file: LogRange, start: int, stop: int, seals: Seals) -> int:
    """Return how many whole records ``file`` has in ``[start, stop)``; damage between them is skipped."""
    count, end = 0, start
    for offset in record_candidates(file, start, stop):
        if offset >= end:
            is_sealed = seals(offset).is_ours
            check = check_record(file.view, offset - file.base_offset, physical_offset=offset, is_sealed=is_sealed)
            if check.is_good:
                count, end = count + 1, offset + check.size
    return count


def record_candidates(file: LogRange, start: int, stop: int) -> Iterator[int]:
    """Yield the offsets of ``file`` in ``[start, stop)`` where a record seems to begin."""
    for chunk in range(start, stop, SEARCH_BYTES):
        position = chunk - file.base_offset
        data = bytes(file.view[position : position + SEARCH_BYTES + SEARCH_OVERLAP])
        if data == _ZEROS:
            continue  # Every start searches the unwritten rest of the log, and comparing is faster than searching.
        yield from record_starts(data, chunk, min(SEARCH_BYTES, stop - chunk))


def record_starts(data: bytes, offset: int, count: int) -> Iterator[int]:
    """Yield the offsets in the first ``count`` bytes of ``data``, which lies at ``offset``, where a record may begin.

    The record has a magic there, and its own physical offset matches.
    """
    for position in merge(*(_find_all(data, magic) for magic in _MAGICS)):  # lazily: most want the first one
        begin = position - MAGIC_POSITION
        if 0 <= begin < count and begin + SEARCH_OVERLAP <= len(data):
            own = int.from_bytes(data[begin + PHYSICAL_OFFSET_POSITION : begin + SEARCH_OVERLAP], "big")
            if own == offset + begin:
                yield own


def record_starts_backward(data: bytes) -> Iterator[int]:
    """Yield the positions in ``data`` where a record may begin, by its magic alone, the last one first."""
    end = len(data)
    while (position := max(data.rfind(magic, 0, end) for magic in _MAGICS)) >= MAGIC_POSITION:
        yield position - MAGIC_POSITION
        end = position


def _find_all(data: bytes, pattern: bytes) -> Iterator[int]:
    position = data.find(pattern)
    while position >= 0:
        yield position
        position = data.find(pattern, position + 1)
