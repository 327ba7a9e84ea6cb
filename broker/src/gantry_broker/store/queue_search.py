"""Search of consume queues by physical offset, which a damaged unit does not mislead.

    units          ... | n-2 | n-1 | n | n+1 | ...        is the border before unit n?
    log            record of n-1 |  physical  | record of n

Bisection reads some twenty units and believes them, so one damaged unit can send it to the wrong side: messages would
be skipped, or shown too early. Physical offsets ascend along a queue. So the border that bisection has found is right
if the units on both of its sides are *certain*, even if other units are wrong. A unit is certain if the record that it
points to is its message. Where there can be no record, for fillers and for messages that have expired, its physical
offset must not contradict those of its neighbours.

An intact queue costs two records. At an uncertain unit the search continues to the next certain one on each side. If
that one shows that the border is elsewhere, it is bisected for again. The units that remain are uncertain, and the
border lies among them: each search says what it does then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, final

from gantry_broker.store.commit_log import CommitLog
from gantry_broker.store.consume_queue import ConsumeQueue
from gantry_broker.store.identity import LOG_END_MAX
from gantry_broker.store.queue_table import QueueTable
from gantry_broker.store.record_dispatch import parse_record_fields
from gantry_broker.store.recovery import Seals
from gantry_broker.store.sliced_scan import LogScan
from gantry_store_files.queue_units import EXPIRED_UNIT, NO_UNIT, Unit, has_expired, is_filler
from gantry_wire.message import RECORD_BYTES_MIN, check_record
from gantry_wire.plain_records import PlainRecord

log = logging.getLogger(__name__)


class Border(NamedTuple):
    """The uncertain units ``[start, end)``; none in an intact queue.

    All units before ``start`` lie before the border, and all from ``end`` on after it.
    """

    start: int
    end: int


@final
class QueueSearch:
    """Searches the queues of one store. Without state; each method says which thread may call it."""

    def __init__(self, commit_log: CommitLog, queues: QueueTable) -> None:
        self._log: Final = commit_log
        self._queues: Final = queues

    def find_start(self, queue: ConsumeQueue, first: int, end: int) -> int:
        """Return the first of the units ``[first, end)`` whose message is in the log. Called by a start.

        The log has no records of expired messages. So if the border is uncertain, the lower offset is returned: the
        start finds that the unit there does not point to its message, and rebuilds the queue. A single expired unit has
        no neighbour that confirms it, and is believed.
        """
        begin = self._log.min_physical
        border = self._find_border(queue, first, end, lambda unit: has_expired(unit[0], unit[1], begin))
        unit = queue.stored_unit(first)
        if border.start == first < border.end and 0 <= unit[0] < begin and unit[1] >= RECORD_BYTES_MIN:
            return first + 1
        return border.start

    def min_offset_at(self, queue: ConsumeQueue, begin: int) -> int:
        """Return what ``min_offset`` becomes when the log begins at ``begin``, where a flushed file ends. Any thread.

        If the border is uncertain, the lower offset is returned, since a unit that stays can still be repaired. The
        result is meaningless for a queue that ``is_corrupt`` afterwards.
        """
        first, last = queue.min_offset, queue.readable_end
        # Later files are not read: they may have write buffers, which only the loop's thread may read.
        return self._find_border(queue, first, last, lambda unit: has_expired(unit[0], unit[1], begin), begin).start

    def end_before(self, queue: ConsumeQueue, physical: int, seals: Seals) -> int:
        """Return the end that the queue had when the log ended at ``physical``.

        Called by the loop's thread, or by the one to which the store belongs meanwhile. If the border is uncertain, the
        log is read from the last certain message to ``physical``, and decides.
        """
        border = self._find_border(queue, queue.min_offset, queue.readable_end, lambda unit: unit[0] < physical)
        if border.start == border.end:
            return border.start
        end = self._end_in_log(queue, border, physical, seals)
        log.warning(
            "consume queue has damaged units; its end was searched for in the commit log",
            extra={"topic": queue.topic, "queue_id": queue.queue_id, "queue_offset": border.start, "end": end},
        )
        return end

    # -- the border ----------------------------------------------------------------------------------------------------

    def _find_border(
        self, queue: ConsumeQueue, first: int, last: int, is_before: Callable[[Unit], bool], read_end: int = LOG_END_MAX
    ) -> Border:
        """Bisect the units ``[first, last)``, until the units on both sides of the border are certain.

        The log is read only before ``read_end``.
        """
        first, last = queue.limit_to_files(first, last)
        while True:
            middle = queue.partition(first, last, is_before)
            start = end = middle
            while start > first and not self._is_certain(queue, start - 1, read_end):
                start -= 1
            if start > first and not is_before(queue.stored_unit(start - 1)):
                last = start - 1
                continue
            while end < last and not self._is_certain(queue, end, read_end):
                end += 1
            if end < last and is_before(queue.stored_unit(end)):
                first = end + 1
                continue
            return Border(start, end)

    def _is_certain(self, queue: ConsumeQueue, number: int, read_end: int) -> bool:
        """Return whether a unit is right, as far as the log before ``read_end`` or its neighbours can show."""
        unit = queue.stored_unit(number)
        physical, size, _ = unit
        if not 0 <= physical < self._log.files.end_offset or size < RECORD_BYTES_MIN:
            return False
        if is_filler(unit) or not self._log.min_physical <= physical < read_end:
            return self._is_confirmed_by_neighbours(queue, number, unit)
        return self._points_to_its_message(queue, number, unit)

    def _is_confirmed_by_neighbours(self, queue: ConsumeQueue, number: int, unit: Unit) -> bool:
        """Return whether a unit is in order with its neighbours.

        An expired one needs a neighbour that has expired, too. Otherwise a first unit with a damaged offset would make
        its message expire.
        """
        before, after = queue.stored_unit(number - 1), queue.stored_unit(number + 1)
        neighbours = [one for one in (before, after) if one != NO_UNIT]
        begin = self._log.min_physical
        if not is_filler(unit) and unit[0] < begin and all(one[0] >= begin for one in neighbours):
            return False
        return _is_in_order(before, unit, begin) and (after == NO_UNIT or _is_in_order(unit, after, begin))

    def _points_to_its_message(self, queue: ConsumeQueue, number: int, unit: Unit) -> bool:
        physical, size, _ = unit
        extent = self._log.at(physical)
        if extent is None or physical < self._queues.deleted.get(queue.topic, -1):
            return False
        position = physical - extent.base_offset
        check = check_record(extent.view, position, physical_offset=physical, verify_crc=False)
        if not check.is_good or check.size != size:
            return False
        return parse_record_fields(extent.view, position, size, ())[:3] == (queue.topic, queue.queue_id, number)

    # -- the log decides -----------------------------------------------------------------------------------------------

    def _end_in_log(self, queue: ConsumeQueue, border: Border, physical: int, seals: Seals) -> int:
        """Return the end of the uncertain units whose messages begin before ``physical``.

        A message is found by its record. If the log is damaged there, too, units count that point into the damage.
        """
        begin = max(self._log.min_physical, self._queues.deleted.get(queue.topic, 0))
        before = queue.stored_unit(border.start - 1)
        if border.start > queue.min_offset and not has_expired(before[0], before[1], begin):
            begin = before[0]
        found: list[int] = []

        def take(queue_id: int, number: int, topic: bytes) -> None:
            if queue_id == queue.queue_id and border.start <= number < border.end and topic == queue.topic_bytes:
                found.append(number)

        def take_plain(records: Iterable[PlainRecord], run_end: int) -> int:
            for record_start, size, topic, queue_id, number, _, _ in records:
                run_end = record_start + size
                take(queue_id, number, topic)
            return run_end

        def take_any(view: memoryview, position: int, record_start: int, size: int) -> None:
            fields = parse_record_fields(view, position, size, ())
            if fields.is_queued:
                take(fields.queue_id, fields.queue_offset, fields.topic.encode())

        scan = LogScan(self._log, begin, physical, seals, on_record=take_any, on_plain_records=take_plain)
        while scan.step():
            pass
        for number in range(border.start, border.end):
            place = queue.stored_unit(number)[0]
            if any(start <= place < end for start, end in scan.damaged):
                found.append(number)
        return max(found, default=border.start - 1) + 1


def _is_in_order(unit: Unit, following: Unit, begin: int) -> bool:
    """Return whether two neighbours may follow each other: physical offsets ascend, and records do not overlap.

    A filler at physical offset 0 may follow any unit that has expired in a log that begins at ``begin``.
    """
    if following[:2] == EXPIRED_UNIT[:2]:
        return unit == NO_UNIT or has_expired(unit[0], unit[1], begin)
    is_between_messages = not is_filler(unit) and not is_filler(following)
    return unit[0] + (unit[1] if is_between_messages else 0) <= following[0]
