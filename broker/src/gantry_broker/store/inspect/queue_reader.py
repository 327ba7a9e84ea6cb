"""Reading the units of one consume queue: by number, in blocks, from files that may be missing or too short.

| physical offset 8 | size 4 | tags code 8 |      unit n is at byte 20 * n of the queue
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from gantry_broker.ports.reading import ReadingDisk, ReadingFile
from gantry_broker.store.consume_queue import FILLER_SIZE, UNIT
from gantry_broker.store.inspect.segments import QueuePlace, segment_at, segments_of, whole_segments
from gantry_broker.store.settings import CONSUME_UNIT_BYTES

Unit = tuple[int, int, int]
"""Physical offset, size, tags code."""

NO_UNIT: Final[Unit] = (0, 0, 0)
BLOCK_BYTES_MAX: Final = 3200 * CONSUME_UNIT_BYTES


def is_filler(unit: Unit) -> bool:
    """Whether the unit says that there is no message under its number."""
    return unit[1] == FILLER_SIZE


@final
class QueueReader:
    """The units of one queue. Opens a file for each block and closes it again: a store has thousands of queues."""

    def __init__(
        self, disk: ReadingDisk, place: QueuePlace, *, block_bytes: int = BLOCK_BYTES_MAX, file_bytes: int | None = None
    ) -> None:
        """With ``file_bytes`` files count up to the first one that is missing or of another size, as for a start."""
        self.place: Final = place
        segments = segments_of(disk, place.directory)
        self.segments: Final = segments if file_bytes is None else whole_segments(segments, file_bytes)
        self.vanished: str = ""
        """The file that was there and is not any more: its topic was deleted, or its messages expired."""
        self._disk: Final = disk
        self._block_units: Final = max(block_bytes // CONSUME_UNIT_BYTES, 1)
        self._block_start = 0
        self._block: list[Unit] = []

    def __repr__(self) -> str:
        return f"<QueueReader {self.place.topic}/{self.place.queue_id} [{self.first}, {self.limit})>"

    @property
    def first(self) -> int:
        """The number of the first unit that there are bytes for."""
        return self.segments[0].base_offset // CONSUME_UNIT_BYTES if self.segments else 0

    @property
    def limit(self) -> int:
        """Behind the last unit that there are bytes for."""
        return self.segments[-1].end_offset // CONSUME_UNIT_BYTES if self.segments else 0

    def unit(self, offset: int) -> Unit:
        """The unit of a queue offset; ``NO_UNIT`` where nothing was written, or there is no file."""
        index = offset - self._block_start
        if not 0 <= index < len(self._block):
            self._load(offset)
            index = 0
        return self._block[index] if self._block else NO_UNIT

    def unit_again(self, offset: int) -> Unit:
        """The unit as it is now, for whoever reads while somebody writes."""
        self._block = []
        return self.unit(offset)

    def _load(self, offset: int) -> None:
        self._block_start, self._block = offset, []
        segment = segment_at(self.segments, offset * CONSUME_UNIT_BYTES) if offset >= 0 else None
        if segment is None:
            return
        try:
            file: ReadingFile = self._disk.open(segment.path)
        except FileNotFoundError:
            self.vanished = segment.path
            return
        try:
            data = file.pread(self._block_units * CONSUME_UNIT_BYTES, offset * CONSUME_UNIT_BYTES - segment.base_offset)
        finally:
            file.close()
        self._block = list(UNIT.iter_unpack(data[: len(data) // CONSUME_UNIT_BYTES * CONSUME_UNIT_BYTES]))

    # -- by bisection, for which the units must rise -------------------------------------------------------------------

    def end(self, *, before: int | None = None) -> int:
        """Behind the last unit; with ``before`` behind the last whose message begins before that physical offset."""
        if before is None:
            return self._partition(self.first, self.limit, lambda unit: unit[1] > 0)
        limit = before
        return self._partition(self.first, self.limit, lambda unit: unit[1] > 0 and 0 <= unit[0] < limit)

    def first_from(self, physical: int, end: int) -> int:
        """The first unit before ``end`` whose message begins at ``physical`` or later."""
        return self._partition(self.first, end, lambda unit: is_filler(unit) or unit[0] < physical)

    def _partition(self, first: int, last: int, holds: Callable[[Unit], bool]) -> int:
        while first < last:
            middle = (first + last) // 2
            if holds(self._single(middle)):
                first = middle + 1
            else:
                last = middle
        return first

    def _single(self, offset: int) -> Unit:
        """One unit, read alone: bisection has no use for its neighbours."""
        index = offset - self._block_start
        if 0 <= index < len(self._block):
            return self._block[index]
        segment = segment_at(self.segments, offset * CONSUME_UNIT_BYTES)
        if segment is None:
            return NO_UNIT
        try:
            file = self._disk.open(segment.path)
        except FileNotFoundError:
            self.vanished = segment.path
            return NO_UNIT
        try:
            data = file.pread(CONSUME_UNIT_BYTES, offset * CONSUME_UNIT_BYTES - segment.base_offset)
        finally:
            file.close()
        return UNIT.unpack(data) if len(data) == CONSUME_UNIT_BYTES else NO_UNIT
