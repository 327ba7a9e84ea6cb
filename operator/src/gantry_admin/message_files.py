"""Single messages out of the store's files: by queue and offset, and by where they lie in the log. Blocks.

It works while the broker stands still or is gone, and it reads what ``log_span`` allows and nothing else. A record is
shown when its own head says that it is the one that was asked for; a body that holds a whole record of somebody's
making is still a body.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from gantry_admin.errors import Problem
from gantry_admin.ranges import Span
from gantry_admin.store_files import StoreFiles
from gantry_store_files import UNIT, QueueBounds
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.message import RECORD_BYTES_MAX, RECORD_BYTES_MIN, RECORD_HEAD, StoredMessage, decode_record

ANSWER_BYTES_MAX: Final = 8 << 20
"""Of records that are read for one answer; the first one is read whatever its size."""


class Found(NamedTuple):
    """Messages of a queue, and how many were left out since they would be too much."""

    bounds: QueueBounds
    messages: Sequence[StoredMessage]
    left_out: int


def queue_messages(
    files: StoreFiles, span: Span, topic: str, queue_id: int, start: int | None, count: int
) -> Found:  # fmt: skip
    """``count`` messages from ``start`` on, or the newest. Raises ``Problem`` 404, 410 or 416."""
    bounds = files.bounds(topic, queue_id, span.begin, span.end)
    if start is None:
        start = max(bounds.end - count, bounds.begin)
    elif start < bounds.begin:
        text = f"what lies before offset {bounds.begin} of the queue is not there any more"
        raise Problem(410, text, oldest=bounds.begin)
    elif start >= bounds.end:
        raise Problem(416, f"the queue ends at offset {bounds.end} now", oldest=bounds.begin, end=bounds.end)
    end = min(start + count, bounds.end)
    if start >= end:
        return Found(bounds, (), 0)
    wanted = [
        (physical, size) for physical, size, _ in UNIT.iter_unpack(files.units(topic, queue_id, start, end))
        if RECORD_BYTES_MIN <= size <= RECORD_BYTES_MAX
    ]  # fmt: skip
    kept, total = 0, 0
    for _, size in reversed(wanted):  # the newest are what people look for
        total += size
        if kept and total > ANSWER_BYTES_MAX:
            break
        kept += 1
    read = (_record(files, span, physical, size) for physical, size in wanted[len(wanted) - kept :])
    return Found(bounds, [one for one in read if one is not None], len(wanted) - kept)


def message_at(files: StoreFiles, span: Span, physical: int) -> StoredMessage | None:
    """The message that begins there, if one does."""
    if not span.begin <= physical <= span.end - RECORD_BYTES_MIN:
        return None
    size, *_ = RECORD_HEAD.unpack(files.read(physical, physical + RECORD_HEAD.size))
    return _record(files, span, physical, size) if RECORD_BYTES_MIN <= size <= RECORD_BYTES_MAX else None


def _record(files: StoreFiles, span: Span, physical: int, size: int) -> StoredMessage | None:
    if physical < span.begin or physical + size > span.end:
        return None
    try:
        message = decode_record(files.read(physical, physical + size))
    except RemoteProtocolError:
        return None
    return message if message.physical_offset == physical else None
