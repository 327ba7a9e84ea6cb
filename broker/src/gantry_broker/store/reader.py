"""Reading messages of a queue for a pull: which units, up to which limits, with which of RocketMQ's statuses.

The reply's body is the records as they lie in the log, copied out once; neighbours in the log are copied as one piece.
Every record is asked who it is before it is served (size, queue, queue offset, own physical offset), so that a wrong
queue file can never make a consumer see a foreign message. Where the record itself is rotten the message is lost and
passed over, its neighbours are served; where the record is good and the queue is wrong, reading stops with
``StoreCorrupt`` and the queue is rebuilt at the next start.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple

from gantry_broker.errors import StoreCorrupt
from gantry_broker.store.commit_log import CommitLog
from gantry_broker.store.consume_queue import FILLER_SIZE, ConsumeQueue
from gantry_broker.store.mapped_file import Extent
from gantry_wire.message import check_record, stored_properties

log = logging.getLogger(__name__)

UNITS_SCANNED_MIN: Final = 800
"""How many units one pull may look at when a filter refuses most of them (RocketMQ: 16000 bytes)."""

_IDENTITY: Final = struct.Struct(">i8xi4xqq")
"""Of a record: total size, queue id, queue offset, physical offset."""

Accept = Callable[[int], bool] | frozenset[int] | None
"""Whether a message is wanted, by the code of its tag; None for all."""

Want = Callable[[str], bool] | None
"""Whether a message is wanted, by its properties as they are stored; None for all. It must not raise."""


class ReadStatus(Enum):
    """What a read found; the names travel to clients."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    OFFSET_RESET = "OFFSET_RESET"


class ReadResult(NamedTuple):
    """The answer to one read."""

    status: ReadStatus
    next_offset: int
    min_offset: int
    max_offset: int
    body: bytes = b""
    count: int = 0  # type: ignore[assignment]  # hides tuple.count, which nobody wants here


def offset_fault(queue: ConsumeQueue | None, offset: int) -> ReadResult | None:
    """Why nothing can be at ``offset``, as the answer to give, or None when something can."""
    if queue is None:
        return ReadResult(ReadStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
    minimum, maximum = queue.min_offset, queue.readable_end
    if maximum < offset <= queue.end:
        # It is there, and not confirmed yet: whoever asks for it has seen what lies before it elsewhere.
        return ReadResult(ReadStatus.OFFSET_OVERFLOW_ONE, offset, minimum, maximum)
    if maximum == 0:
        return ReadResult(ReadStatus.NO_MESSAGE_IN_QUEUE, 0, minimum, maximum)
    if offset < minimum:
        return ReadResult(ReadStatus.OFFSET_TOO_SMALL, minimum, minimum, maximum)
    if offset == maximum:
        return ReadResult(ReadStatus.OFFSET_OVERFLOW_ONE, offset, minimum, maximum)
    if offset > maximum:
        return ReadResult(ReadStatus.OFFSET_OVERFLOW_BADLY, maximum, minimum, maximum)
    return None


def read_messages(
    commit_log: CommitLog,
    queue: ConsumeQueue | None,
    offset: int,
    *,
    count_max: int,
    bytes_max: int,
    accept: Accept,
    is_ours: Callable[[int], bool],
    want: Want = None,
    units_max: int | None = None,
) -> ReadResult:
    """Up to ``count_max`` messages and about ``bytes_max`` bytes (at least one message) from ``offset`` on.

    ``is_ours`` says of a physical offset whether a record there must be sealed. At most ``units_max`` messages are
    looked at, by default as many as a filter of tags may.
    """
    refusal = offset_fault(queue, offset)
    if refusal is not None or queue is None:
        assert refusal is not None
        return refusal
    accepts = accept.__contains__ if isinstance(accept, frozenset) else accept
    at, min_physical = commit_log.at, commit_log.min_physical
    parts: list[memoryview] = []
    total = count = 0
    status = ReadStatus.NO_MATCHED_MESSAGE
    next_offset = offset
    file: Extent | None = None
    base = file_end = run_start = run_end = 0
    for physical, size, tags_code in queue.units(offset, offset + (units_max or max(UNITS_SCANNED_MIN, count_max))):
        if count >= count_max or (count and total + size > bytes_max):
            break
        if size == FILLER_SIZE or physical < min_physical:
            status = ReadStatus.MESSAGE_WAS_REMOVING
            next_offset += 1
            continue
        if accepts is not None and not accepts(tags_code):
            next_offset += 1
            continue
        if not base <= physical < file_end:
            if file is not None and run_end > run_start:
                parts.append(file.view[run_start:run_end])
            file = at(physical)
            base, file_end = (file.base_offset, file.end_offset) if file is not None else (0, 0)
            run_start = run_end = 0
        position = physical - base
        if (
            file is None
            or physical + size > file_end
            or _IDENTITY.unpack_from(file.view, position) != (size, queue.queue_id, next_offset, physical)
        ):
            if count:
                break
            _refuse_or_pass(commit_log, queue, next_offset, physical, is_sealed=is_ours(physical))
            next_offset += 1
            continue
        if want is not None:
            properties = stored_properties(file.view, position)
            if properties is None:
                _refuse_or_pass(commit_log, queue, next_offset, physical, is_sealed=is_ours(physical))
            if properties is None or not want(properties):
                next_offset += 1
                continue
        if position != run_end:
            if run_end > run_start:
                parts.append(file.view[run_start:run_end])
            run_start = position
        run_end = position + size
        total += size
        count += 1
        next_offset += 1
    if file is not None and run_end > run_start:
        parts.append(file.view[run_start:run_end])
    if count == 0:
        return ReadResult(status, next_offset, queue.min_offset, queue.readable_end)
    return ReadResult(ReadStatus.FOUND, next_offset, queue.min_offset, queue.readable_end, b"".join(parts), count)


def _refuse_or_pass(commit_log: CommitLog, queue: ConsumeQueue, offset: int, physical: int, *, is_sealed: bool) -> None:
    """A unit and its record disagree. Raise when the queue is wrong; log and let it pass when the record is rotten."""
    file = commit_log.at(physical)
    if file is not None and physical < commit_log.wrote:
        check = check_record(file.view, physical - file.base_offset, physical_offset=physical, is_sealed=is_sealed)
        if not check.is_good:
            facts = {"topic": queue.topic, "queue_id": queue.queue_id, "queue_offset": offset, "offset": physical}
            log.error("a stored message is damaged and was passed over", extra=facts)
            return
    queue.is_corrupt = True
    raise StoreCorrupt(physical, f"{queue!r} says that its message {offset} is here, but it is not")
