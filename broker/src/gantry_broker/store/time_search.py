"""Finding queue offsets by time: bisection over the store times of a queue's messages, which never fall.

times      t1 t1 t1 t3 t3           asked for t2:  LOWER is the first at or after it (the fourth),
offsets     0  1  2  3  4                          UPPER the last at or before it (the third)
"""

from __future__ import annotations

from gantry_broker.store.commit_log import CommitLog
from gantry_broker.store.consume_queue import ConsumeQueue
from gantry_broker.store.log_guard import LogGuard
from gantry_store_files.queue_units import NO_UNIT, Unit, has_expired, is_filler
from gantry_wire.message import INT, RECORD_BYTES_MIN, record_store_timestamp


def store_time(commit_log: CommitLog, guard: LogGuard, queue: ConsumeQueue, offset: int) -> int:
    """The store time of one message of a queue, or -1 where there is none, or a damaged one."""
    unit = queue.unit(offset)
    time_ms = None if unit is None or is_filler(unit) else _store_time(commit_log, guard, unit)
    return -1 if time_ms is None else time_ms


def _store_time(commit_log: CommitLog, guard: LogGuard, unit: Unit) -> int | None:
    """When a unit's message was stored; -1 where it has expired, None where it is damaged.

    A filler in the middle of a queue has the time of the message at its place, if there is one: if it counted as older
    than any time, so would the messages before it.
    """
    physical, size, _ = unit
    if size < RECORD_BYTES_MIN or has_expired(physical, size, commit_log.min_physical):
        return -1
    if is_filler(unit):
        head = commit_log.slice(physical, INT.size)
        size = 0 if head is None else INT.unpack(head)[0]
        if size < RECORD_BYTES_MIN:
            return None
    record = commit_log.slice(physical, size)
    if record is None:
        return None if is_filler(unit) else -1
    return record_store_timestamp(record) if guard.is_good(record, 0, physical) else None


def earliest_time(commit_log: CommitLog, guard: LogGuard, queue: ConsumeQueue) -> int:
    """The store time of the first message that is still there, or -1."""
    return store_time(commit_log, guard, queue, queue.min_offset)


def offset_by_time(
    commit_log: CommitLog, guard: LogGuard, queue: ConsumeQueue, timestamp_ms: int, *, is_upper: bool
) -> int:
    """LOWER: the first offset stored at or after the time, the queue's end if there is none.

    UPPER: the last offset stored at or before it; where every message is later, 0 as RocketMQ answers.
    """
    first, last = queue.min_offset, queue.readable_end
    while first < last:
        middle = (first + last) // 2
        looked_at, unit = middle, queue.unit(middle) or NO_UNIT
        time_ms = _store_time(commit_log, guard, unit)
        while time_ms is None and looked_at + 1 < last:
            # A damaged message says nothing: the next good one is later than it, or as late. Fillers share a place.
            looked_at = min(max(looked_at + 1, queue.end_before(unit[0] + 1)), last - 1)
            unit = queue.unit(looked_at) or NO_UNIT
            time_ms = _store_time(commit_log, guard, unit)
        if time_ms is not None and (time_ms < timestamp_ms or (is_upper and time_ms == timestamp_ms)):
            first = looked_at + 1
        else:
            last = middle
    if not is_upper:
        return first
    return first - 1 if first > queue.min_offset else 0
