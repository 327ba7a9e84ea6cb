"""Search of queue offsets by time: bisection over the store times of a queue's messages, which never fall.

times      t1 t1 t1 t3 t3           asked for t2:  LOWER is the first at or after it (the fourth),
offsets     0  1  2  3  4                          UPPER the last at or before it (the third)
"""

from __future__ import annotations

from typing import Final, final

from gantry_broker.store.commit_log import CommitLog
from gantry_broker.store.consume_queue import ConsumeQueue
from gantry_broker.store.log_guard import LogGuard
from gantry_broker.store.queue_table import QueueTable
from gantry_store_files.queue_units import NO_UNIT, Unit, has_expired, is_filler
from gantry_wire.message import INT, RECORD_BYTES_MIN, RECORD_HEAD, record_store_timestamp


@final
class TimeSearch:
    """Answers queries for store times and for offsets by time. Owned by the loop's thread."""

    def __init__(self, commit_log: CommitLog, queues: QueueTable, guard: LogGuard) -> None:
        self._log: Final = commit_log
        self._queues: Final = queues
        self._guard: Final = guard

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the store time of one message, or -1 if there is none or it is damaged."""
        queue = self._queues.get(topic, queue_id)
        return -1 if queue is None else self._message_time(queue, offset)

    def earliest_time(self, topic: str, queue_id: int) -> int:
        """Return the store time of the first message that a queue still has, or -1."""
        queue = self._queues.get(topic, queue_id)
        return -1 if queue is None else self._message_time(queue, queue.min_offset)

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, upper: bool = False) -> int:
        """Return the queue offset for a time. LOWER: the first offset stored at or after it, or the queue's end.

        UPPER: the last offset stored at or before it; if every message is later, 0 as in RocketMQ. 0 as well for a
        queue that does not exist.
        """
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            return 0
        first, last = queue.min_offset, queue.readable_end
        while first < last:
            middle = (first + last) // 2
            probed, unit = middle, queue.unit(middle) or NO_UNIT
            time_ms = self._unit_time(queue, probed, unit)
            while time_ms is None and probed + 1 < last:
                # A damaged message, or one with a damaged unit, has no known time; the next good one is not earlier.
                probed += 1
                if is_filler(unit):  # Fillers share one physical offset.
                    probed = min(max(probed, queue.end_before(unit[0] + 1)), last - 1)
                unit = queue.unit(probed) or NO_UNIT
                time_ms = self._unit_time(queue, probed, unit)
            if time_ms is not None and (time_ms < timestamp_ms or (upper and time_ms == timestamp_ms)):
                first = probed + 1
            else:
                last = middle
        if not upper:
            return first
        return first - 1 if first > queue.min_offset else 0

    def _message_time(self, queue: ConsumeQueue, offset: int) -> int:
        unit = queue.unit(offset)
        time_ms = None if unit is None or is_filler(unit) else self._unit_time(queue, offset, unit)
        return -1 if time_ms is None else time_ms

    def _unit_time(self, queue: ConsumeQueue, offset: int, unit: Unit) -> int | None:
        """Return when a unit's message was stored; -1 if it has expired, None if the message or its unit is damaged.

        A filler (a unit without a message) in the middle of a queue has the time of the message at its physical offset,
        if there is one: if it counted as older than any time, so would the messages before it.
        """
        physical, size, _ = unit
        if self._has_expired(unit):
            # A unit that is damaged so that it points too far back has neighbours that have not expired.
            neighbour = queue.unit(offset - 1 if offset > queue.min_offset else offset + 1)
            return -1 if is_filler(unit) or neighbour is None or self._has_expired(neighbour) else None
        if is_filler(unit):
            head = self._log.slice(physical, INT.size)
            size = 0 if head is None else INT.unpack(head)[0]
        record = self._log.slice(physical, size) if size >= RECORD_BYTES_MIN else None
        if record is None or not self._guard.is_good(record, 0, physical):
            return None
        _, _, _, queue_id, _, number, _, _, _ = RECORD_HEAD.unpack_from(record)
        is_of_unit = is_filler(unit) or (queue_id, number) == (queue.queue_id, offset)
        return record_store_timestamp(record) if is_of_unit else None

    def _has_expired(self, unit: Unit) -> bool:
        return has_expired(unit[0], unit[1], self._log.min_physical)
