"""What a start would do to the queues and the index of a store: the account of ``Recovery``'s first half.

A start looks at ends only: a queue that is shorter than its recovery point says, or whose first or last unit leads
elsewhere, is built again from the log; an index that is not what the point says is, too. The rest is believed, and
caught up. Here the same is asked of a store that is not opened.
"""

from __future__ import annotations

from functools import partial
from typing import Final, final

from gantry_broker.ports.reading import ReadingDisk
from gantry_broker.store.inspect.facts import StoreFacts
from gantry_broker.store.inspect.index_reader import IndexReader
from gantry_broker.store.inspect.log_reader import LogReader, facts_of
from gantry_broker.store.record_dispatch import is_plausible_unit
from gantry_broker.store.recovery import StartPlan
from gantry_store_files.queue_units import QueueReader, is_filler, queue_places
from gantry_store_files.segments import index_names, segment_at, segments_of, usual_size

BLOCK_BYTES: Final = 20
"""Ends are looked at, neighbours are not."""


@final
class DerivedPlanner:
    """What becomes of queues and index."""

    def __init__(self, disk: ReadingDisk, facts: StoreFacts, reader: LogReader, start: StartPlan) -> None:
        self._disk: Final = disk
        self._facts: Final = facts
        self._reader: Final = reader
        self._start: Final = start.start
        self._point: Final = facts.point if not start.is_full else None
        self._deleted: Final = facts.point.deleted if facts.point is not None else {}

    def queues_rebuilt(self) -> list[tuple[str, int]]:
        """Which queues are built again."""
        point, rebuilt = self._point, []
        missing = {
            (topic, int(queue)) for topic, ends in (point.queues if point is not None else {}).items() for queue in ends
        }
        damaged = set(point.damaged) if point is not None else set()
        places = list(queue_places(self._disk, self._facts.root))
        known = self._facts.point.queue_file_bytes if self._facts.point is not None else 0
        size = known or usual_size([one for place in places for one in segments_of(self._disk, place.directory)])
        for place in places:
            queue = QueueReader(self._disk, place, block_bytes=BLOCK_BYTES, file_bytes=size)
            name = (place.topic, place.queue_id)
            missing.discard(name)
            end = queue.end(before=self._start)
            durable = point.queues.get(place.topic, {}).get(str(place.queue_id), 0) if point is not None else 0
            if self._is_of_deleted(queue, end):
                continue
            if point is None:
                continue
            start = point.starts.get(place.topic, {}).get(str(place.queue_id), 0)
            is_known = str(place.queue_id) in point.queues.get(place.topic, {})
            first = queue.first_from(self._facts.log_start, end)
            is_headless = is_known and point.min_physical == self._facts.log_start and first > start
            if end < durable or is_headless or name in damaged or not self._is_plausible(queue, end):
                rebuilt.append(name)
        ends = point.queues if point is not None else {}
        rebuilt += [(topic, queue_id) for topic, queue_id in missing if ends[topic][str(queue_id)] > 0]
        return sorted(rebuilt)

    def _is_of_deleted(self, queue: QueueReader, end: int) -> bool:
        """Whether the topic was deleted, and a crash has brought the queue's files back."""
        first = queue.first_from(self._facts.log_start, end)
        return first < end and queue.unit(first)[0] < self._deleted.get(queue.place.topic, -1)

    def _is_plausible(self, queue: QueueReader, end: int) -> bool:
        """As the start asks: whether the first and the last unit lead to messages of the queue."""
        first = queue.first_from(self._facts.log_start, end)
        for offset in {first, end - 1} if first < end else ():
            unit = queue.unit(offset)
            if is_filler(unit):
                continue
            segment = segment_at(self._facts.log, unit[0])
            if segment is None:
                return False
            found = self._reader.record_at(unit[0], verify_crc=False)
            if found is None:
                continue  # its file has vanished a moment ago
            name = (queue.place.topic, queue.place.queue_id, offset)
            facts = partial(facts_of, found.data, 0, found.check.size)
            if not is_plausible_unit(unit, name, segment.end_offset, found.check, facts):
                return False
        return True

    def count_lost(self, rotten: list[tuple[int, int]], log_end: int) -> int:
        """How many messages the queues know that lie in what is rotten, or behind the log's end."""
        count = 0
        for place in queue_places(self._disk, self._facts.root):
            queue = QueueReader(self._disk, place)
            end = queue.end()
            for begin, stop in [*rotten, (log_end, None)]:
                last = end if stop is None else queue.first_from(stop, end)
                lost = (queue.unit(offset) for offset in range(queue.first_from(begin, end), last))
                count += sum(not is_filler(unit) for unit in lost)
        return count

    def is_index_rebuilt(self) -> bool:
        """Whether the index is built again."""
        facts, point = self._facts, self._point
        names = index_names(self._disk, f"{facts.root}/index")
        if point is None:
            is_there = self._disk.facts(f"{facts.root}/index") is not None
            return is_there and not (facts.is_stop_believed and self._are_good(names))
        if point.index is None or not point.is_indexed:
            return not point.is_indexed
        kept = [name for name in names if name <= point.index.name]
        newest = self._open_index(point.index.name) if point.index.name in kept else None
        is_short = (
            newest is None
            or newest.header is None
            or (facts.is_stop_believed and newest.header.next_number < point.index.header.next_number)
        )
        return is_short or not self._are_good(kept)

    def _are_good(self, names: list[str]) -> bool:
        readers = [self._open_index(name) for name in names]
        return all(reader is not None and reader.is_loadable for reader in readers)

    def _open_index(self, name: str) -> IndexReader | None:
        try:
            reader = IndexReader(self._disk, f"{self._facts.root}/index/{name}")
        except OSError:
            return None
        reader.close()
        return reader
