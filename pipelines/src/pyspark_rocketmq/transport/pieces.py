"""Turn a task into ranges of a log: the part of reading that files and sidecars share.

The queue units have the log offsets of the messages. Messages that lie close together are read as one range; bytes
between two of them are read and discarded up to `gap_bytes_max`, since another range costs more than that:

    log     | a | x | a | a |   ... far ...   | a | a | x | a |
    ranges  [---------------)                 [----------------)       x: of another queue, discarded

A task in log order reads the units of all its queues first, and then each byte of the log once. The boundaries of
records come from units and never from walking the log, so a record is known before it is read, and none can be missed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, final

import numpy as np
import numpy.typing as npt

from gantry_store_files import FILLER_SIZE, UNIT_BYTES
from gantry_wire.message import RECORD_BYTES_MAX, RECORD_BYTES_MIN
from pyspark_rocketmq.errors import DamagedRecord
from pyspark_rocketmq.model import QueueId, QueueRange, Task
from pyspark_rocketmq.replica_view import Bytes, Expected, Numbers, Piece, tag_codes
from pyspark_rocketmq.settings import ReadSettings

UNIT: Final = np.dtype([("physical", ">i8"), ("size", ">i4"), ("tags", ">i8")])
"""A queue unit: the offset in the log, the size, and the tags code of one message."""
assert UNIT.itemsize == UNIT_BYTES
Units = npt.NDArray[Any]

UNITS_PER_REQUEST: Final = 1 << 16
"""The most units that are read at a time."""
UNITS_PER_PROBE: Final = 1 << 12
"""A binary search ends with one request for this many units, which costs as much as a request for one."""
_INT_MIN, _INT_MAX = -(1 << 31), (1 << 31) - 1


class LogSource(Protocol):
    """A log and its queues, as bytes. Methods raise ViewErrors and Refused."""

    @property
    def where(self) -> str: ...

    def units(self, queue: QueueId, begin: int, end: int) -> Units:
        """Return exactly these units, at most UNITS_PER_REQUEST."""

    def ranges(self, wanted: Sequence[tuple[int, int]]) -> Iterator[Bytes]:
        """Yield the bytes of each range of the log, in turn."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Locations:
    """Where wanted records lie: one entry for each, in the order of the task."""

    queue: Numbers
    offset: Numbers
    physical: Numbers
    size: Numbers

    @property
    def ends(self) -> Numbers:
        return self.physical + self.size

    def pick(self, chosen: Any) -> _Locations:
        return _Locations(self.queue[chosen], self.offset[chosen], self.physical[chosen], self.size[chosen])


def log_pieces(task: Task, source: LogSource, settings: ReadSettings) -> Iterator[Piece]:
    """Yield all records of a task, in its order."""
    if task.physical is not None:
        yield from _in_log_order(task, task.physical, source, settings)
    else:
        yield from _in_queue_order(task, source, settings)


def _in_queue_order(task: Task, source: LogSource, settings: ReadSettings) -> Iterator[Piece]:
    """Yield the records of each range of the task, one range after the other."""
    for number, wanted in enumerate(task.ranges):
        for begin in range(wanted.begin, wanted.end, UNITS_PER_REQUEST):
            end = min(begin + UNITS_PER_REQUEST, wanted.end)
            locations, _ = _filter_by_tags(_locate(source, number, wanted.queue, begin, end), task)
            before = tuple(replace(one, begin=one.end) for one in task.ranges[:number])

            def rest(at: int, head: tuple[QueueRange, ...] = before, index: int = number) -> Task:
                moved = replace(task.ranges[index], begin=at)
                return replace(task, ranges=(*head, moved, *task.ranges[index + 1 :]))

            runs = find_runs(locations.physical, locations.size, settings)
            ends = [int(locations.offset[last - 1]) + 1 for _, last in runs[:-1]] + [end]
            yield from _read(source, locations, runs, [rest(at) for at in ends])


def _in_log_order(task: Task, span: tuple[int, int], source: LogSource, settings: ReadSettings) -> Iterator[Piece]:
    """Yield the records in a span of the log that are in the ranges of the task."""
    begin, end = span
    parts = [
        _locate(source, number, wanted.queue, first, min(first + UNITS_PER_REQUEST, stop))
        for number, wanted in enumerate(task.ranges)
        for first, stop in [_find_units_in_span(source, wanted, begin, end)]
        for first in range(first, stop, UNITS_PER_REQUEST)
    ]
    locations, _ = _filter_by_tags(_concatenate(parts), task)
    locations = locations.pick((locations.physical >= begin) & (locations.physical < end))
    locations = locations.pick(np.argsort(locations.physical, kind="stable"))
    if (locations.physical[1:] < locations.ends[:-1]).any():
        raise DamagedRecord(f"{source.where}: two queue units claim the same bytes of the log [{begin}, {end})")
    runs = find_runs(locations.physical, locations.size, settings)
    ends = [int(locations.ends[last - 1]) for _, last in runs[:-1]] + [end]
    yield from _read(source, locations, runs, [replace(task, physical=(min(at, end), end)) for at in ends])


def _read(source: LogSource, locations: _Locations, runs: list[tuple[int, int]], rests: list[Task]) -> Iterator[Piece]:
    """Yield one piece for each run; without any, an empty one that marks this part of the task as done."""
    if not runs:
        nothing = np.empty(0, np.int64)
        yield Piece(np.empty(0, np.uint8), nothing, Expected(nothing, nothing), rests[-1], source.where)
        return
    spans = [(int(locations.physical[first]), int(locations.ends[last - 1])) for first, last in runs]
    for (first, last), (begin, _), data, rest in zip(runs, spans, source.ranges(spans), rests, strict=True):
        some = locations.pick(slice(first, last))
        expected = Expected(some.queue, some.offset, some.physical, some.size)
        yield Piece(data, some.physical - begin, expected, rest, source.where)


def _locate(source: LogSource, number: int, queue: QueueId, begin: int, end: int) -> tuple[_Locations, Numbers]:
    """Return the locations in units, and their tags codes, without fillers. Raises DamagedRecord."""
    units = source.units(queue, begin, end)
    assert len(units) == end - begin, "a source returns exactly the requested units, or raises"
    physical, size = units["physical"].astype(np.int64), units["size"].astype(np.int64)
    is_message = size != FILLER_SIZE
    is_unit = (size >= RECORD_BYTES_MIN) & (size <= RECORD_BYTES_MAX) & (physical >= 0) | ~is_message
    if not is_unit.all():
        bad = begin + int(np.argmin(is_unit))
        raise DamagedRecord(
            f"{source.where}: the unit of {queue} at offset {bad} is damaged: it does not point to a record"
        )
    locations = _Locations(np.full(len(units), number, dtype=np.int64), np.arange(begin, end), physical, size)
    return locations.pick(is_message), units["tags"].astype(np.int64)[is_message]


def locate_unit(units: Units) -> tuple[int, int]:
    """Return (physical offset, size) of the message of one unit; a filler has a physical offset, and size 0."""
    unit = units[0]
    size = int(unit["size"])
    return int(unit["physical"]), 0 if size == FILLER_SIZE else size


def _concatenate(parts: list[tuple[_Locations, Numbers]]) -> tuple[_Locations, Numbers]:
    if not parts:
        nothing = np.empty(0, np.int64)
        return _Locations(nothing, nothing, nothing, nothing), nothing
    some = [locations for locations, _ in parts]
    together = _Locations(
        np.concatenate([one.queue for one in some]), np.concatenate([one.offset for one in some]),
        np.concatenate([one.physical for one in some]), np.concatenate([one.size for one in some]),
    )  # fmt: skip
    return together, np.concatenate([tags for _, tags in parts])


def _filter_by_tags(found: tuple[_Locations, Numbers], task: Task) -> tuple[_Locations, Numbers]:
    """Drop records whose tags code cannot match. A code that is no hash (of an extended unit) may be any tag."""
    locations, tags = found
    codes = tag_codes(task)
    if codes is None:
        return found
    can_match = np.isin(tags, np.array(sorted(codes), dtype=np.int64)) | (tags < _INT_MIN) | (tags > _INT_MAX)
    return locations.pick(can_match), tags[can_match]


def _find_units_in_span(source: LogSource, wanted: QueueRange, begin: int, end: int) -> tuple[int, int]:
    """Return which units of a range can lie in `[begin, end)` of the log.

    So a whole queue need not be read for one chunk.
    """
    if wanted.count <= UNITS_PER_REQUEST:
        return wanted.begin, wanted.end
    first = _bisect(source, wanted.queue, wanted.begin, wanted.end, begin)
    return first, _bisect(source, wanted.queue, first, wanted.end, end)


def _bisect(source: LogSource, queue: QueueId, first: int, last: int, physical: int) -> int:
    """Return the first unit whose message lies at `physical` or beyond."""
    while last - first > UNITS_PER_PROBE:
        middle = (first + last) // 2
        if int(source.units(queue, middle, middle + 1)["physical"][0]) < physical:
            first = middle + 1
        else:
            last = middle
    if first == last:
        return first
    return first + int(np.searchsorted(source.units(queue, first, last)["physical"].astype(np.int64), physical))


def find_runs(physical: Numbers, size: Numbers, settings: ReadSettings) -> list[tuple[int, int]]:
    """Return the runs of records `[first, last)` that are read as one range. Pure."""
    count = len(physical)
    if not count:
        return []
    ends = physical + size
    gaps = physical[1:] - ends[:-1]
    breaks = (np.flatnonzero((gaps > settings.gap_bytes_max) | (gaps < 0)) + 1).tolist()
    runs: list[tuple[int, int]] = []
    for first, last in zip([0, *breaks], [*breaks, count], strict=True):
        runs += _split_run(ends, first, last, int(physical[first]), physical, settings.range_bytes)
    return runs


def _split_run(
    ends: Numbers, first: int, last: int, begin: int, physical: Numbers, bytes_max: int
) -> Iterable[tuple[int, int]]:
    """Yield a run as ranges of at most `bytes_max`, or of one record."""
    while first < last:
        stop = first + int(np.searchsorted(ends[first:last], begin + bytes_max, "right"))
        stop = max(stop, first + 1)
        yield first, stop
        first = stop
        begin = int(physical[first]) if first < last else begin
