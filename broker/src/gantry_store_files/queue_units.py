"""Consume queues: their directories, the meaning of their units, and the range of units that can be read.

    consumequeue/<topic>/<queue id>/<segment>      | physical offset 8 | size 4 | tags code 8 |
                                                   unit n is at byte 20 * n of the queue

A unit with the size 0x7FFFFFFF is a *filler*: its queue offset has no message. There are two kinds of fillers:

    (0, filler, 0)         before the first message of a queue: everything up to here has expired
    (offset, filler, 0)    between messages, in place of lost ones. Nearly always ``offset`` is where the next message
                           begins; it may also be where the previous one begins, or no message may begin there. Physical
                           offsets ascend along the queue in any case, so that it can be searched

So only a filler at physical offset 0 means that everything before it has expired. Any other filler counts like a
message at its offset.

The queue is searched by bisection, which requires ascending units. Files may vanish during a search: retention deletes
the oldest ones, so a unit whose file has vanished has expired, and so has every unit before it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, final

from gantry_store_files.disk import StoreDisk
from gantry_store_files.log_spans import read_span
from gantry_store_files.segments import contiguous_segments, segment_at, segments_of
from gantry_wire.message import (
    MESSAGE_MAGICS,
    RECORD_BYTES_MIN,
    RECORD_HEAD,
    record_store_timestamp,
)
from gantry_wire.names import path_component, topic_fault

UNIT: Final = struct.Struct(">qiq")
UNIT_BYTES: Final = 20
assert UNIT.size == UNIT_BYTES

FILLER_SIZE: Final = 0x7FFFFFFF
"""The size in a unit whose queue offset has no message."""

EXTENSION_CODE_MAX: Final = -(1 << 31) - 1
"""Tags codes up to this value are addresses in RocketMQ's queue extension, not hashes of tags."""

QUEUE_ID_MAX: Final = 0x7FFFFFFF
QUEUE_ID_DIGITS_MAX: Final = len(str(QUEUE_ID_MAX))

Unit = tuple[int, int, int]
"""Physical offset, size, tags code."""

NO_UNIT: Final[Unit] = (0, 0, 0)
"""The unit where nothing was written."""

STORE_TIME_BYTES: Final = 80
"""A number of bytes from the start of a record that includes its store time, with hosts of IPv4 and of IPv6."""

EXPIRED_UNIT: Final[Unit] = (0, FILLER_SIZE, 0)
"""The filler before the first message of a queue."""
BLOCK_BYTES_MAX: Final = 3200 * UNIT_BYTES
"""How many bytes of units a reader loads at once."""


class QueueLocation(NamedTuple):
    """A directory whose name is that of a queue."""

    topic: str
    queue_id: int
    directory: str


class QueueBounds(NamedTuple):
    """The range ``[begin, end)`` of a queue's units that can be read."""

    begin: int
    """The queue offset of the first unit."""

    end: int


# -- directories -------------------------------------------------------------------------------------------------------


def parse_queue_id(name: str) -> int | None:
    """Return the queue id in the name of a directory or a property, or None for other names, such as ``007``."""
    is_canonical = len(name) <= QUEUE_ID_DIGITS_MAX and name.isascii() and name.isdigit() and str(int(name)) == name
    return int(name) if is_canonical and int(name) <= QUEUE_ID_MAX else None


def queue_location(root: str, topic: str, queue_id: int) -> QueueLocation:
    """Return the location of a queue in the store ``root``. Raises ``ValueError`` for an invalid topic name."""
    return QueueLocation(topic, queue_id, f"{root}/consumequeue/{path_component(topic)}/{queue_id}")


def queue_ids(disk: StoreDisk, root: str, topic: str) -> list[int]:
    """Return the ids of a topic's queues that have a directory, in order; none for an invalid topic name."""
    if topic_fault(topic) is not None:
        return []
    names = disk.list(f"{root}/consumequeue/{path_component(topic)}")
    return sorted(queue_id for name in names if (queue_id := parse_queue_id(name)) is not None)


def list_queue_locations(disk: StoreDisk, root: str) -> Iterator[QueueLocation]:
    """Yield every queue directory below ``consumequeue/``, by topic and queue id."""
    for topic in disk.list(f"{root}/consumequeue"):
        for queue_id in queue_ids(disk, root, topic):
            yield queue_location(root, topic, queue_id)


# -- units -------------------------------------------------------------------------------------------------------------


def head_store_time(head: bytes | bytearray | memoryview, physical: int) -> int | None:
    """Return the store time of the record that begins at ``physical``; None if no record begins there.

    ``head`` is the bytes at ``physical``. A message's unit always points to a record, but the offset of a filler may be
    in the middle of one, where any eight bytes could be taken for a time.
    """
    if len(head) < STORE_TIME_BYTES:
        return None
    _, magic, _, _, _, _, claimed, _, _ = RECORD_HEAD.unpack_from(head)
    is_record = magic in MESSAGE_MAGICS and claimed == physical
    return record_store_timestamp(head) if is_record else None


def is_filler(unit: Unit) -> bool:
    """Return whether the unit is a filler, which has no message."""
    return unit[1] == FILLER_SIZE


def is_empty(unit: Unit) -> bool:
    """Return whether the unit has no message: it is a filler, or was never written."""
    return unit[1] in (0, FILLER_SIZE)


def has_expired(physical: int, size: int, log_start: int) -> bool:
    """Return whether a unit, and with it every unit before, points before ``log_start``."""
    return (physical, size) == (0, FILLER_SIZE) or physical < log_start


def begins_before(unit: Unit, end: int) -> bool:
    """Return whether a unit's message begins before ``end``; a filler counts by its offset."""
    return unit[:2] == (0, FILLER_SIZE) or (unit[1] > 0 and 0 <= unit[0] < end)


def ends_before(unit: Unit, end: int) -> bool:
    """Return whether all bytes of a unit's message are before ``end``."""
    return is_filler(unit) or unit[0] + unit[1] <= end


def partition(start: int, end: int, predicate: Callable[[int], bool]) -> int:
    """Return the first number in ``[start, end)`` for which ``predicate`` is false; ``end`` if it is true for all.

    The search is by bisection: the predicate must be true up to one number and false from there on.
    """
    while start < end:
        middle = (start + end) // 2
        if predicate(middle):
            start = middle + 1
        else:
            end = middle
    return start


def partition_past_damage(start: int, end: int, predicate: Callable[[int], bool]) -> int:
    """Return what ``partition`` returns, also if the predicate is wrong for one damaged unit.

    If bisection ends at such a unit, the next two units, or the last two before it, show that: the search continues on
    their side of it. Nearer to the right end, only the log could show which unit is wrong.
    """
    while True:
        found = partition(start, end, predicate)
        if found + 2 < end and predicate(found + 1) and predicate(found + 2):
            start = found + 1
        elif found - 3 >= start and not predicate(found - 2) and not predicate(found - 3):
            end = found - 1
        else:
            return found


@final
class QueueReader:
    """A reader for the units of one queue. It keeps no file open between two reads: a store has thousands of queues."""

    def __init__(
        self,
        disk: StoreDisk,
        location: QueueLocation,
        *,
        block_bytes: int = BLOCK_BYTES_MAX,
        file_bytes: int | None = None,
    ) -> None:
        """List the files of the queue.

        With ``file_bytes`` only the files before the first one that is missing or of another size count, as at a start.
        """
        self.location: Final = location
        segments = segments_of(disk, location.directory)
        self.segments: Final = segments if file_bytes is None else contiguous_segments(segments, file_bytes)
        self.vanished: str = ""
        """The path of a file that has vanished since it was listed: its topic was deleted, or its messages have
        expired."""
        self._disk: Final = disk
        self._block_units: Final = max(block_bytes // UNIT_BYTES, 1)
        self._block_start = 0
        self._block: list[Unit] = []

    def __repr__(self) -> str:
        return f"<QueueReader {self.location.topic}/{self.location.queue_id} [{self.first}, {self.limit})>"

    @property
    def first(self) -> int:
        """Return the queue offset of the first unit in the files."""
        return self.segments[0].base_offset // UNIT_BYTES if self.segments else 0

    @property
    def limit(self) -> int:
        """Return the end of the units in the files."""
        return self.segments[-1].end_offset // UNIT_BYTES if self.segments else 0

    def unit(self, offset: int) -> Unit:
        """Return the unit at a queue offset; ``NO_UNIT`` where nothing was written or the file is missing."""
        index = offset - self._block_start
        if not 0 <= index < len(self._block):
            self._block_start, self._block = offset, self._load(offset, self._block_units) or []
            index = 0
        return self._block[index] if self._block else NO_UNIT

    def reread_unit(self, offset: int) -> Unit:
        """Return the unit as it is now, for callers that read while the queue is written."""
        self._block = []
        return self.unit(offset)

    def read(self, start: int, end: int) -> bytes | None:
        """Return the bytes of the units ``[start, end)``, or None unless all of them can be read."""
        found = read_span(self._disk, self.segments, start * UNIT_BYTES, end * UNIT_BYTES)
        return None if found.holes else found.data

    def _load(self, offset: int, count: int) -> list[Unit] | None:
        """Return up to ``count`` units from ``offset`` on, of one file; None if that file has vanished."""
        segment = segment_at(self.segments, offset * UNIT_BYTES) if offset >= 0 else None
        if segment is None:
            return []
        try:
            file = self._disk.open(segment.path)
        except FileNotFoundError:
            self.vanished = segment.path
            return None
        try:
            data = file.pread(count * UNIT_BYTES, offset * UNIT_BYTES - segment.base_offset)
        finally:
            file.close()
        return list(UNIT.iter_unpack(data[: len(data) // UNIT_BYTES * UNIT_BYTES]))

    # -- bisection, which requires ascending units -------------------------------------------------------------------

    def bounds(self, log_start: int, log_end: int) -> QueueBounds:
        """Return the range of units whose messages are in ``[log_start, log_end)`` of the log."""
        end = self._find(self.first, self.limit, lambda unit: begins_before(unit, log_end))
        if end > self.first and not ends_before(self.read_single_unit(end - 1), log_end):
            end -= 1
        return QueueBounds(self.first_from(log_start, end), end)

    def end(self, *, before: int | None = None) -> int:
        """Return the end of the written units.

        With ``before`` return the end of those whose message begins before that physical offset.
        """
        if before is None:
            return self.partition(self.first, self.limit, lambda unit: unit[1] > 0)
        limit = before
        return self._find(self.first, self.limit, lambda unit: unit[1] > 0 and 0 <= unit[0] < limit)

    def first_from(self, physical: int, end: int) -> int:
        """Return the first unit before ``end`` whose message begins at ``physical`` or later.

        A filler counts by its offset.
        """
        return self._find(self.first, end, lambda unit: has_expired(unit[0], unit[1], physical))

    def first_stored_at(
        self, timestamp_ms: int, bounds: QueueBounds, log_start: int, store_time: Callable[[Unit], int | None]
    ) -> int:
        """Return the first unit in ``bounds`` whose message was stored at ``timestamp_ms`` or later, else their end.

        ``store_time`` returns the store time of the message at a unit's offset: -1 if it has expired, and None if no
        message begins there. In that case the next offset is tried, whose store time is the same or later.
        """

        def is_older(offset: int) -> bool:
            while offset < bounds.end:
                unit = self.read_single_unit(offset)
                physical, size, _ = unit
                if has_expired(physical, size, log_start) or size < RECORD_BYTES_MIN:
                    return True
                stored_ms = store_time(unit)
                if stored_ms is not None:
                    return stored_ms < timestamp_ms
                offset = max(self.first_from(physical + 1, bounds.end), offset + 1)
            return False

        return partition(bounds.begin, bounds.end, is_older)

    def partition(self, start: int, end: int, predicate: Callable[[Unit], bool]) -> int:
        """Return the first unit of ``[start, end)`` for which ``predicate`` is false; ``end`` if there is none."""
        return partition(start, end, lambda offset: predicate(self.read_single_unit(offset)))

    def _find(self, start: int, end: int, predicate: Callable[[Unit], bool]) -> int:
        """Return what ``partition`` returns, also if one unit is damaged."""
        return partition_past_damage(start, end, lambda offset: predicate(self.read_single_unit(offset)))

    def read_single_unit(self, offset: int) -> Unit:
        """Return one unit, read alone, because bisection does not need its neighbours.

        A unit whose file has vanished has expired.
        """
        index = offset - self._block_start
        if 0 <= index < len(self._block):
            return self._block[index]
        units = self._load(offset, 1)
        if units is None:
            return EXPIRED_UNIT
        return units[0] if units else NO_UNIT
