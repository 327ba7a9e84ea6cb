"""Batches that RocketMQ stored as one record, in topics with ``queue.type=BatchCQ``.

    queue offset      7        8        9        10
    unit           record   filler   filler   record        a record with three messages, and the next one

The record takes as many queue offsets as it has messages: the first one has its unit, and fillers that point to the
same record follow. Gantry writes no such records, but serves those of a store that RocketMQ wrote. Clients take them
apart.
"""

from __future__ import annotations

from typing import NamedTuple

from gantry_broker.store.commit_log import CommitLog
from gantry_broker.store.consume_queue import FILLER_SIZE, ConsumeQueue
from gantry_broker.store.record_dispatch import BATCH_MESSAGES_MAX, parse_record_fields
from gantry_wire.message import check_record


class InnerBatch(NamedTuple):
    """The half-open range of queue offsets that one record takes."""

    start: int
    end: int


def fill_batch(queue: ConsumeQueue, end: int, physical: int) -> None:
    """Write the fillers of a batch after the unit of its record, so that ``end`` is the next offset.

    A filler at 0 would mean that everything before it has expired. Raises ``StoreFull``.
    """
    queue.fill_to(end, max(1, physical))


def find_inner_batch(log: CommitLog, queue: ConsumeQueue | None, offset: int) -> InnerBatch | None:
    """Return the batch whose record takes ``offset``, but begins before it; None for every other offset."""
    if queue is None or not _is_filler(queue, offset):
        return None
    for start in range(offset - 1, max(queue.min_offset, offset - BATCH_MESSAGES_MAX) - 1, -1):
        if not _is_filler(queue, start):
            break
    else:
        return None
    unit = queue.unit(start)
    if unit is None:
        return None
    physical, size, _ = unit
    view = log.view(physical)
    check = check_record(view, 0, physical_offset=physical, verify_crc=False)
    if not check.is_good or check.size != size:
        return None
    fields = parse_record_fields(view, 0, size, ())
    is_of_unit = fields[:3] == (queue.topic, queue.queue_id, start)
    return InnerBatch(start, start + fields.offsets) if is_of_unit and offset < start + fields.offsets else None


def _is_filler(queue: ConsumeQueue, offset: int) -> bool:
    unit = queue.unit(offset)
    return unit is not None and unit[1] == FILLER_SIZE
