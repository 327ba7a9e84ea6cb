"""The scan of a topic's messages, newest first: queue units, then the records that they point to, in blocks of the log.

    queue 0   [begin ............... next)             units are taken from the ends of all queues: those whose
    queue 1        [begin ........ next)               records begin in the newest WINDOW_BYTES of the log
    log       [........|..window..|scanned)

    units of a window  ->  by the codes of their tags  ->  runs of adjacent records  ->  read  ->  needle  ->  decode

The invariant is that of `store_files`: **no byte beyond min(confirmed, committed) is read as a message**; the ranges of
all queues are fixed at the start, by that limit and by the time range. Files may be rolled and deleted meanwhile. What
was deleted before it was reached is counted, so that the share that was scanned stays exact.

A record is decoded only if it may match: it contains the matcher's needle, or it is opaque, or its unit points to the
offset that the wanted id names. The test compares this with a scan that decodes every record.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Final, NamedTuple, final

from gantry_admin.errors import Problem
from gantry_admin.ranges import Span
from gantry_admin.search.log_blocks import LogBlocks
from gantry_admin.store_files import StoreFiles
from gantry_store_files import EXTENSION_CODE_MAX, UNIT, Unit, is_filler
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.message import RECORD_BYTES_MAX, RECORD_BYTES_MIN, decode_record
from gantry_wire.search import MessageMatcher, Needle
from gantry_wire.search.needles import ESCAPE, OPAQUE_FLAGS, SYS_FLAG_LOW_BYTE, places

WINDOW_BYTES: Final = 1 << 20
"""The part of the log from which records are read at a time. It is the memory of a scan, and the work between two
checks of the deadline; a record that is larger is read alone."""

GAP_BYTES: Final = 4096
"""The longest gap between two records of one read: reading a page more is cheaper than another system call."""

UNITS_MAX: Final = 4096
"""The queue units that are loaded at a time."""


class Step(NamedTuple):
    """The result of one window."""

    records: list[bytes]
    """The records of the messages that match, newest first."""

    is_limited: bool
    """Whether the scan stopped within the window because it had found enough."""


@final
class TopicScan:
    """One scan. Owned by one thread; every method blocks."""

    def __init__(
        self, files: StoreFiles, topic: str, span: Span, matcher: MessageMatcher, *,
        spend: Callable[[int], None] = lambda count: None, uses_needle: bool = True,
    ) -> None:  # fmt: skip
        """Fix the ranges of all queues. ``spend`` is called with the bytes of each read, before it.

        Without ``uses_needle`` every record is decoded, for tests.
        """
        self.scanned = self.deleted = self.unreadable = self.read_bytes = 0
        self._matcher: Final = matcher
        self._codes: Final = matcher.unit_codes(topic)
        self._span: Final = span
        self._spend: Final = spend
        self._needle: Final = matcher.needle if uses_needle else None
        self._blocks: Final = LogBlocks(files)
        self._queues: Final = [
            queue for number in files.queue_ids(topic)
            if (queue := _open_queue(files, topic, number, span, matcher)) is not None
        ]  # fmt: skip
        self.total: Final = sum(queue.end - queue.begin for queue in self._queues)
        """The messages in the ranges of all queues, with the units that have no message."""

    def __repr__(self) -> str:
        return f"<TopicScan {self.scanned} of {self.total}>"

    def close(self) -> None:
        """Close the files that are open."""
        self._blocks.close()

    @property
    def is_complete(self) -> bool:
        """Whether every message in the ranges was scanned or is deleted."""
        return all(queue.begin >= queue.end for queue in self._queues)

    def step(self, hits_max: int) -> Step:
        """Scan one window, and return at most ``hits_max`` records. After a limited step the scan is over."""
        newest = max(queue.newest() for queue in self._queues)
        units = [unit for queue in self._queues for unit in queue.take_from(newest + 1 - WINDOW_BYTES)]
        units.sort()
        for queue in self._queues:
            self.deleted += queue.take_deleted()
        before = self.deleted
        found: list[bytes] = []
        for run in adjacent_runs(self._select(units)):
            present = self._read(run)
            for unit in self._candidates(present):
                record = self._matching_record(unit, unit[0] - present[0][0])
                if record is None:
                    continue
                found.append(record)
                if len(found) >= hits_max:
                    self.scanned += len(units) - bisect_left(units, unit)
                    return Step(found, is_limited=True)
        self.scanned += len(units) - (self.deleted - before)
        return Step(found, is_limited=False)

    def _select(self, units: list[Unit]) -> list[Unit]:
        """Return the units that have a message which may match, by the codes of their tags."""
        begin, end, codes = self._span.begin, self._span.end, self._codes
        valid = [
            unit for unit in units
            if RECORD_BYTES_MIN <= unit[1] <= RECORD_BYTES_MAX and begin <= unit[0] and unit[0] + unit[1] <= end
        ]  # fmt: skip
        if len(valid) < len(units):
            self.unreadable += len(units) - len(valid) - sum(map(is_filler, units))
        if not codes:
            return valid
        return [unit for unit in valid if unit[2] in codes or unit[2] <= EXTENSION_CODE_MAX]

    # -- records -------------------------------------------------------------------------------------------------------

    def _read(self, run: list[Unit]) -> list[Unit]:
        """Read the records of a run into the buffer, and return the units of those that were read.

        The others are counted: as deleted if their file is older than the log, otherwise as unreadable.
        """
        if self._read_block(run):
            return run
        oldest = self._blocks.oldest()
        present = [] if oldest is None else [unit for unit in run if unit[0] >= oldest]
        self.deleted += len(run) - len(present)
        if not present or self._read_block(present):
            return present
        self.unreadable += len(present)
        return []

    def _read_block(self, run: list[Unit]) -> bool:
        start, end = run[0][0], run[-1][0] + run[-1][1]
        self._spend(end - start)
        is_read = self._blocks.read(start, end)
        self.read_bytes += (end - start) * is_read
        return is_read

    def _candidates(self, run: list[Unit]) -> Iterator[Unit]:
        """Yield the units of a run whose records, in the buffer, may match; newest first."""
        if not run:
            return
        if self._needle is None:
            yield from reversed(run)
            return
        start, end = run[0][0], run[-1][0] + run[-1][1]
        yield from self._containing(run, start, end - start, self._needle)

    def _containing(self, run: list[Unit], start: int, size: int, needle: Needle) -> Iterator[Unit]:
        """Yield the units of a block whose records contain the needle, and those that may match without it."""
        block, named = self._blocks.buffer, self._matcher.named_offset
        found = {
            unit for unit in run
            if block[unit[0] - start + SYS_FLAG_LOW_BYTE] & OPAQUE_FLAGS or unit[0] == named
        }  # fmt: skip
        found.update(_units_at(needle.places(block, size), run, start))
        if needle.may_be_escaped:
            found.update(_units_at(places(ESCAPE, block, size), run, start))
        yield from sorted(found, reverse=True)

    def _matching_record(self, unit: Unit, position: int) -> bytes | None:
        """Return the record of a unit, at a position of the buffer, if it matches."""
        record = bytes(memoryview(self._blocks.buffer)[position : position + unit[1]])
        try:
            message = decode_record(record)
        except RemoteProtocolError:
            self.unreadable += 1
            return None
        if message.physical_offset != unit[0] or message.size != unit[1]:
            self.unreadable += 1
            return None
        return record if self._matcher.accepts(message) else None


def _units_at(places: Iterator[tuple[int, int]], run: list[Unit], start: int) -> Iterator[Unit]:
    """Yield the units of a run whose records, in a block that begins at ``start``, contain one of these places."""
    end = 0
    for first, last in places:
        if first < end:
            continue  # another place in the same record
        unit = run[bisect_right(run, start + first, key=_physical) - 1]
        if start + last <= unit[0] + unit[1]:
            end = unit[0] + unit[1] - start
            yield unit


_physical: Final = itemgetter(0)
_size: Final = itemgetter(1)


def adjacent_runs(units: list[Unit]) -> Iterator[list[Unit]]:
    """Yield the units in runs of records that lie closely together, the newest run first; each run ascends."""
    if units and units[-1][0] + units[-1][1] - units[0][0] - sum(map(_size, units)) <= GAP_BYTES:
        yield units  # no gap is longer
        return
    run: list[Unit] = []
    for unit in reversed(units):
        if run and run[-1][0] - (unit[0] + unit[1]) > GAP_BYTES:
            yield run[::-1]
            run = []
        run.append(unit)
    if run:
        yield run[::-1]


# -- queues ------------------------------------------------------------------------------------------------------------


def _open_queue(
    files: StoreFiles, topic: str, queue_id: int, span: Span, matcher: MessageMatcher
) -> _QueueRange | None:
    """Return the range of a queue in the time range; None if the queue was deleted meanwhile."""
    criteria = matcher.criteria
    try:
        begin, end = files.bounds(topic, queue_id, span.begin, span.end)
        if criteria.to_ms is not None:
            end = min(files.offset_at(topic, queue_id, criteria.to_ms, span.begin, span.end)[0], end)
        if criteria.from_ms is not None:
            begin = max(files.offset_at(topic, queue_id, criteria.from_ms, span.begin, span.end)[0], begin)
    except Problem as problem:
        if problem.status == 404:
            return None
        raise
    return _QueueRange(files, topic, queue_id, begin, max(begin, end))


@final
class _QueueRange:
    """The units ``[begin, end)`` of a queue that are left to scan; units are taken from the end."""

    def __init__(self, files: StoreFiles, topic: str, queue_id: int, begin: int, end: int) -> None:
        self.begin = begin
        self.end = end
        self._deleted = 0
        self._files: Final = files
        self._name: Final = (topic, queue_id)
        self._loaded: list[Unit] = []
        """The units before ``end`` that are loaded, in the order of the queue."""

    def newest(self) -> int:
        """Return where the record of the last unit begins; -1 if no unit is left."""
        self._load()
        return self._loaded[-1][0] if self._loaded else -1

    def take_from(self, physical: int) -> list[Unit]:
        """Take all units at the end whose records begin at ``physical`` or later."""
        taken: list[Unit] = []
        while self._load() and self._loaded[-1][0] >= physical:
            # Units ascend; a damaged one that does not must not prevent progress.
            index = min(bisect_left(self._loaded, (physical,)), len(self._loaded) - 1)
            taken += self._loaded[index:]
            self.end -= len(self._loaded) - index
            del self._loaded[index:]
        return taken

    def take_deleted(self) -> int:
        """Return how many units were deleted before they were taken, since the last call."""
        count, self._deleted = self._deleted, 0
        return count

    def _load(self) -> bool:
        """Load units if none is loaded, and return whether there are any."""
        while not self._loaded and self.begin < self.end:
            start = max(self.begin, self.end - UNITS_MAX)
            try:
                self._loaded = list(UNIT.iter_unpack(self._files.units(*self._name, start, self.end)))
            except Problem:
                self._drop_deleted(start)
        return bool(self._loaded)

    def _drop_deleted(self, start: int) -> None:
        """Count the units before the oldest file of the queue as deleted; all of them if no other unit is."""
        first = self._files.first_unit(*self._name)
        begin = first if first is not None and start < first < self.end else self.end
        self._deleted += begin - self.begin
        self.begin = begin
