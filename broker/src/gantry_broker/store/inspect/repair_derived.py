"""The plan of the next start for the queues and the index of a store, as ``DerivedFiles`` decides it.

A start checks only the ends: a queue that is shorter than in the recovery point, or whose first or last unit does not
point to its message, is rebuilt from the log; so is an index that differs from the recovery point. All others are
trusted, and caught up. The same decisions are made here for a store that is not opened. Not detected here are an index
of another log, or one with missing older files: ``DerivedFiles`` compares the files' ends and some entries. Nor is a
damaged unit because of which a queue would begin too late, which ``QueueSearch`` detects.
"""

from __future__ import annotations

from functools import partial
from typing import Final, final

from gantry_broker.ports.reading import ReadingDisk
from gantry_broker.store.inspect.facts import StoreFacts
from gantry_broker.store.inspect.index_reader import IndexReader
from gantry_broker.store.inspect.log_reader import LogReader, decode_record_fields
from gantry_broker.store.record_dispatch import is_plausible_unit
from gantry_broker.store.recovery import StartPlan
from gantry_store_files.queue_units import QueueReader, is_filler, list_queue_locations
from gantry_store_files.segments import index_names, most_common_size, segment_at, segments_of

BLOCK_BYTES: Final = 20
"""Block size of the queue readers: only single units at the ends are read."""


@final
class DerivedPlanner:
    """Plans which queues are rebuilt, and whether the index is."""

    def __init__(self, disk: ReadingDisk, facts: StoreFacts, reader: LogReader, start: StartPlan) -> None:
        self._disk: Final = disk
        self._facts: Final = facts
        self._reader: Final = reader
        self._start: Final = start.start
        self._point: Final = facts.point if not start.is_full else None
        self._deleted: Final = facts.point.deleted if facts.point is not None else {}

    def find_queues_to_rebuild(self) -> list[tuple[str, int]]:
        """Return the queues that a start would rebuild, as (topic, queue id)."""
        point, rebuilt = self._point, []
        missing = {
            (topic, int(queue)) for topic, ends in (point.queues if point is not None else {}).items() for queue in ends
        }
        damaged = set(point.damaged) if point is not None else set()
        locations = list(list_queue_locations(self._disk, self._facts.root))
        known = self._facts.point.queue_file_bytes if self._facts.point is not None else 0
        size = known or most_common_size(
            [one for location in locations for one in segments_of(self._disk, location.directory)]
        )
        for location in locations:
            queue = QueueReader(self._disk, location, block_bytes=BLOCK_BYTES, file_bytes=size)
            name = (location.topic, location.queue_id)
            missing.discard(name)
            end = queue.end(before=self._start)
            durable = point.queues.get(location.topic, {}).get(str(location.queue_id), 0) if point is not None else 0
            if self._is_of_deleted_topic(queue, end):
                continue
            if point is None:
                continue
            start = point.starts.get(location.topic, {}).get(str(location.queue_id), 0)
            is_known = str(location.queue_id) in point.queues.get(location.topic, {})
            first = queue.first_from(self._facts.log_start, end)
            lacks_first_units = is_known and point.min_physical == self._facts.log_start and first > start
            if end < durable or lacks_first_units or name in damaged or not self._is_plausible(queue, end):
                rebuilt.append(name)
        ends = point.queues if point is not None else {}
        rebuilt += [(topic, queue_id) for topic, queue_id in missing if ends[topic][str(queue_id)] > 0]
        return sorted(rebuilt)

    def _is_of_deleted_topic(self, queue: QueueReader, end: int) -> bool:
        """Return whether the topic was deleted and the queue's files have reappeared after a crash."""
        first = queue.first_from(self._facts.log_start, end)
        return first < end and queue.unit(first)[0] < self._deleted.get(queue.location.topic, -1)

    def _is_plausible(self, queue: QueueReader, end: int) -> bool:
        """Return whether the first and the last unit point to messages of the queue, by the rule of the start."""
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
                continue  # Its file has just been deleted.
            name = (queue.location.topic, queue.location.queue_id, offset)
            fields = partial(decode_record_fields, found.data, 0, found.check.size)
            if not is_plausible_unit(unit, name, segment.end_offset, found.check, fields):
                return False
        return True

    def count_lost(self, damaged: list[tuple[int, int]], log_end: int) -> int:
        """Return the number of messages with queue units in damaged ranges or after the end of the log."""
        count = 0
        for location in list_queue_locations(self._disk, self._facts.root):
            queue = QueueReader(self._disk, location)
            end = queue.end()
            for begin, stop in [*damaged, (log_end, None)]:
                last = end if stop is None else queue.first_from(stop, end)
                lost = (queue.unit(offset) for offset in range(queue.first_from(begin, end), last))
                count += sum(not is_filler(unit) for unit in lost)
        return count

    def must_rebuild_index(self) -> bool:
        """Return whether a start would rebuild the index."""
        facts, point = self._facts, self._point
        names = index_names(self._disk, f"{facts.root}/index")
        if point is None:
            has_index = self._disk.metadata(f"{facts.root}/index") is not None
            return has_index and not (facts.is_clean_stop_trusted and self._are_loadable(names))
        if point.index is None or not point.is_indexed:
            return not point.is_indexed
        kept = [name for name in names if name <= point.index.name]
        newest = self._open_index(point.index.name) if point.index.name in kept else None
        is_short = newest is None or newest.header is None or newest.header.next_number < point.index.header.next_number
        return is_short or not self._are_loadable(kept)

    def _are_loadable(self, names: list[str]) -> bool:
        readers = [self._open_index(name) for name in names]
        return all(reader is not None and reader.is_loadable for reader in readers)

    def _open_index(self, name: str) -> IndexReader | None:
        try:
            reader = IndexReader(self._disk, f"{self._facts.root}/index/{name}")
        except OSError:
            return None
        reader.close()
        return reader
