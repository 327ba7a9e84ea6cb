"""Consume queues: which directories are one, what their units say, and which units can be read.

    consumequeue/<topic>/<queue id>/<segment>      | physical offset 8 | size 4 | tags code 8 |
                                                   unit n is at byte 20 * n of the queue

A unit with the size 0x7FFFFFFF is a *filler*: there is no message under its number. Two kinds of it are in use:

    (0, filler, 0)        before the first message of a queue: everything up to here has expired
    (place, filler, 0)    in the middle, for messages that are lost. Nearly always the next message begins at ``place``;
                          it may be the one before, or no message. Physical offsets rise along the queue in any case,
                          by which it is searched

So only a filler at place 0 says that what lies before it is gone. One in the middle counts like a message at its place.

The queue is searched by bisection, for which the units must rise. Files may vanish meanwhile: retention deletes the
oldest ones, so a unit whose file is gone has expired, and so has every unit before it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, final

from gantry_store_files.disk import StoreDisk
from gantry_store_files.log_spans import read_span
from gantry_store_files.segments import segment_at, segments_of, whole_segments
from gantry_wire.message import (
    MESSAGE_MAGIC_V1,
    MESSAGE_MAGIC_V2,
    RECORD_BYTES_MIN,
    RECORD_HEAD,
    record_store_timestamp,
)
from gantry_wire.names import path_component, topic_fault

UNIT: Final = struct.Struct(">qiq")
UNIT_BYTES: Final = 20
assert UNIT.size == UNIT_BYTES

FILLER_SIZE: Final = 0x7FFFFFFF
"""The size in a unit under whose number there is no message."""

EXTENSION_CODE_MAX: Final = -(1 << 31) - 1
"""Tags codes up to here are addresses in RocketMQ's queue extension, and say nothing about tags."""

QUEUE_ID_MAX: Final = 0x7FFFFFFF
QUEUE_ID_DIGITS_MAX: Final = len(str(QUEUE_ID_MAX))

Unit = tuple[int, int, int]
"""Physical offset, size, tags code."""

NO_UNIT: Final[Unit] = (0, 0, 0)
"""Nothing was written under this number."""

STORE_TIME_BYTES: Final = 80
"""Of a record, up to its store time."""

EXPIRED_UNIT: Final[Unit] = (0, FILLER_SIZE, 0)
BLOCK_BYTES_MAX: Final = 3200 * UNIT_BYTES


class QueuePlace(NamedTuple):
    """A directory that is a queue's by its name."""

    topic: str
    queue_id: int
    directory: str


class QueueBounds(NamedTuple):
    """The units ``[begin, end)`` of a queue that can be read."""

    begin: int
    end: int


# -- directories -------------------------------------------------------------------------------------------------------


def parse_queue_id(name: str) -> int | None:
    """The queue that a directory or a property names, or None for anything else, such as ``007``."""
    is_canonical = len(name) <= QUEUE_ID_DIGITS_MAX and name.isascii() and name.isdigit() and str(int(name)) == name
    return int(name) if is_canonical and int(name) <= QUEUE_ID_MAX else None


def queue_place(root: str, topic: str, queue_id: int) -> QueuePlace:
    """Where a queue of the store in ``root`` lies. Raises ``ValueError`` for a topic that cannot be one."""
    return QueuePlace(topic, queue_id, f"{root}/consumequeue/{path_component(topic)}/{queue_id}")


def queue_ids(disk: StoreDisk, root: str, topic: str) -> list[int]:
    """The queues of a topic that have a directory, in order; none for a topic that cannot be one."""
    if topic_fault(topic) is not None:
        return []
    names = disk.list(f"{root}/consumequeue/{path_component(topic)}")
    return sorted(queue_id for name in names if (queue_id := parse_queue_id(name)) is not None)


def queue_places(disk: StoreDisk, root: str) -> Iterator[QueuePlace]:
    """Every directory below ``consumequeue/`` that can be a queue's, by topic and queue id."""
    for topic in disk.list(f"{root}/consumequeue"):
        for queue_id in queue_ids(disk, root, topic):
            yield queue_place(root, topic, queue_id)


# -- units -------------------------------------------------------------------------------------------------------------


def head_store_time(head: bytes | bytearray | memoryview, physical: int) -> int | None:
    """When the record that begins at ``physical`` was stored, by its first bytes; None if none begins there.

    A message's unit is believed to lead to one. A filler's place may be in the middle of a record, where any eight
    bytes would pass for a time.
    """
    if len(head) < STORE_TIME_BYTES:
        return None
    _, magic, _, _, _, _, claimed, _, _ = RECORD_HEAD.unpack_from(head)
    is_record = magic in (MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2) and claimed == physical
    return record_store_timestamp(head) if is_record else None


def is_filler(unit: Unit) -> bool:
    """Whether the unit says that there is no message under its number."""
    return unit[1] == FILLER_SIZE


def is_empty(unit: Unit) -> bool:
    """Whether there is no message under the unit's number: it is a filler, or was never written."""
    return unit[1] in (0, FILLER_SIZE)


def has_expired(physical: int, size: int, log_start: int) -> bool:
    """Whether a unit, and with it every unit before, leads to what lies before ``log_start``."""
    return (physical, size) == (0, FILLER_SIZE) or physical < log_start


def begins_before(unit: Unit, end: int) -> bool:
    """Whether a unit's message begins before ``end``; a filler counts by its place."""
    return unit[:2] == (0, FILLER_SIZE) or (unit[1] > 0 and 0 <= unit[0] < end)


def ends_before(unit: Unit, end: int) -> bool:
    """Whether no byte of a unit's message lies at ``end`` or behind it."""
    return is_filler(unit) or unit[0] + unit[1] <= end


def partition(first: int, last: int, holds: Callable[[int], bool]) -> int:
    """The first number in ``[first, last)`` for which ``holds`` does not hold, by bisection; ``last`` without one."""
    while first < last:
        middle = (first + last) // 2
        if holds(middle):
            first = middle + 1
        else:
            last = middle
    return first


@final
class QueueReader:
    """The units of one queue. Opens a file for each block and closes it again: a store has thousands of queues."""

    def __init__(
        self, disk: StoreDisk, place: QueuePlace, *, block_bytes: int = BLOCK_BYTES_MAX, file_bytes: int | None = None
    ) -> None:
        """With ``file_bytes`` files count up to the first one that is missing or of another size, as for a start."""
        self.place: Final = place
        segments = segments_of(disk, place.directory)
        self.segments: Final = segments if file_bytes is None else whole_segments(segments, file_bytes)
        self.vanished: str = ""
        """The file that was there and is not any more: its topic was deleted, or its messages expired."""
        self._disk: Final = disk
        self._block_units: Final = max(block_bytes // UNIT_BYTES, 1)
        self._block_start = 0
        self._block: list[Unit] = []

    def __repr__(self) -> str:
        return f"<QueueReader {self.place.topic}/{self.place.queue_id} [{self.first}, {self.limit})>"

    @property
    def first(self) -> int:
        """The number of the first unit that there are bytes for."""
        return self.segments[0].base_offset // UNIT_BYTES if self.segments else 0

    @property
    def limit(self) -> int:
        """Behind the last unit that there are bytes for."""
        return self.segments[-1].end_offset // UNIT_BYTES if self.segments else 0

    def unit(self, offset: int) -> Unit:
        """The unit of a queue offset; ``NO_UNIT`` where nothing was written, or there is no file."""
        index = offset - self._block_start
        if not 0 <= index < len(self._block):
            self._block_start, self._block = offset, self._load(offset, self._block_units) or []
            index = 0
        return self._block[index] if self._block else NO_UNIT

    def unit_again(self, offset: int) -> Unit:
        """The unit as it is now, for whoever reads while somebody writes."""
        self._block = []
        return self.unit(offset)

    def read(self, start: int, end: int) -> bytes | None:
        """The bytes of the units ``[start, end)``; None unless all of them are there."""
        found = read_span(self._disk, self.segments, start * UNIT_BYTES, end * UNIT_BYTES)
        return None if found.holes else found.data

    def _load(self, offset: int, count: int) -> list[Unit] | None:
        """Up to ``count`` units from ``offset`` on, of one file; None if that file has vanished."""
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

    # -- by bisection, for which the units must rise -------------------------------------------------------------------

    def bounds(self, log_start: int, log_end: int) -> QueueBounds:
        """The units whose messages lie in ``[log_start, log_end)`` of the log."""
        end = self.partition(self.first, self.limit, lambda unit: begins_before(unit, log_end))
        if end > self.first and not ends_before(self.lone_unit(end - 1), log_end):
            end -= 1
        return QueueBounds(self.first_from(log_start, end), end)

    def end(self, *, before: int | None = None) -> int:
        """Behind the last unit; with ``before`` behind the last whose message begins before that physical offset."""
        if before is None:
            return self.partition(self.first, self.limit, lambda unit: unit[1] > 0)
        limit = before
        return self.partition(self.first, self.limit, lambda unit: unit[1] > 0 and 0 <= unit[0] < limit)

    def first_from(self, physical: int, end: int) -> int:
        """The first unit before ``end`` whose message begins at ``physical`` or later; a filler counts by its place."""
        return self.partition(self.first, end, lambda unit: has_expired(unit[0], unit[1], physical))

    def first_stored_at(
        self, timestamp_ms: int, bounds: QueueBounds, log_start: int, store_time: Callable[[Unit], int | None]
    ) -> int:
        """The first unit in ``bounds`` whose message was stored at ``timestamp_ms`` or later; their end without one.

        ``store_time`` reads when the message at a unit's place was stored: -1 if it has expired, None if no message
        begins there, which says nothing. Then the next place is asked: what is there is later, or as late.
        """

        def is_older(offset: int) -> bool:
            while offset < bounds.end:
                unit = self.lone_unit(offset)
                physical, size, _ = unit
                if has_expired(physical, size, log_start) or size < RECORD_BYTES_MIN:
                    return True
                stored_ms = store_time(unit)
                if stored_ms is not None:
                    return stored_ms < timestamp_ms
                offset = max(self.first_from(physical + 1, bounds.end), offset + 1)
            return False

        return partition(bounds.begin, bounds.end, is_older)

    def partition(self, first: int, last: int, holds: Callable[[Unit], bool]) -> int:
        """The first unit of ``[first, last)`` for which ``holds`` does not hold."""
        return partition(first, last, lambda offset: holds(self.lone_unit(offset)))

    def lone_unit(self, offset: int) -> Unit:
        """One unit, read alone: bisection has no use for its neighbours. Where its file has vanished it has expired."""
        index = offset - self._block_start
        if 0 <= index < len(self._block):
            return self._block[index]
        units = self._load(offset, 1)
        if units is None:
            return EXPIRED_UNIT
        return units[0] if units else NO_UNIT
