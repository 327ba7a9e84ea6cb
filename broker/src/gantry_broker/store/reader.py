"""Reading messages of a queue for a pull: the units to read, the limits, and RocketMQ's statuses.

The reply's body is the records as they lie in the log, copied out once; neighbours in the log are copied as one piece.
The identity of every record is compared before it is served (size, queue, queue offset, own physical offset; for the
first and the last also the topic, unless the sums of the queue match), so that a wrong queue file can never deliver a
message of another queue, and its bytes are verified (``log_guard``) at every read.

If the record itself is damaged, its neighbours are served and the message is skipped, unless a replica may have it:
then reading stops before it for a while, as it does before a gap that a start left because the log was damaged. If a
unit and its record disagree, ``queue_repair`` determines which of them is wrong, and rebuilds a wrong unit; until then
reading stops before it, with ``QueueRebuilding`` if it is the first message.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Final, NamedTuple

from gantry_broker.errors import QueueRebuilding
from gantry_broker.store.commit_log import CommitLog
from gantry_broker.store.consume_queue import FILLER_SIZE, UNIT, ConsumeQueue
from gantry_broker.store.identity import LOG_END_MAX
from gantry_broker.store.log_guard import LogGuard
from gantry_broker.store.mapped_file import Extent
from gantry_broker.store.settings import CONSUME_UNIT_BYTES
from gantry_speedups import native
from gantry_wire.checksum import crc32
from gantry_wire.message import (
    FLAG_BORN_HOST_V6,
    FLAG_STORE_HOST_V6,
    INT,
    RECORD_BYTES_MIN,
    stored_properties,
)

UNITS_SCANNED_MIN: Final = 800
"""How many units one pull may examine when a filter refuses most of them (RocketMQ: 16000 bytes)."""

FILTERED_UNITS: Final = 100
"""Units whose sums are compared at a time: most pulls with a filter are full long before `UNITS_SCANNED_MIN`."""

_IDENTITY: Final = struct.Struct(">i8xi4xqq")
"""The fields of a record that identify it: total size, queue id, queue offset, physical offset."""
_SIZE: Final = struct.Struct(">i")

_FLAGS_POSITION: Final = 39
"""The position of the last byte of a record's system flag."""

_BODY_LENGTH_POSITION: Final = 84
"""The position of the body's length in a record whose hosts are both IPv4."""

_HOSTS_V6: Final = FLAG_BORN_HOST_V6 | FLAG_STORE_HOST_V6

TagsCodeFilter = Callable[[int], bool] | frozenset[int] | None
"""Returns whether a message is wanted, by the code of its tag; None accepts all."""

IsLost = Callable[[ConsumeQueue, int, int], bool]
"""Called with queue, queue offset and physical offset for a unit that its record contradicts.

Returns whether the message is known to be lost, and is skipped; see ``QueueRepair.check_lost_or_repair``.
"""

KnownEnd = Callable[[ConsumeQueue, int, int, int], int]
"""Called with queue, first offset of the pull, offset and end. Returns the end of the units that match the log.

See ``QueueRepair.known_end``.
"""

PropertiesFilter = Callable[[str], bool] | None
"""Returns whether a message is wanted, by its properties as they are stored; None accepts all. It must not raise."""


class ReadStatus(Enum):
    """The outcome of a read. The names are sent to clients."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    """Messages were examined, and none of them is in the answer: a filter has refused them, or they are damaged."""

    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    """The queue offsets before ``next_offset`` have no message any more: theirs have expired or are lost."""

    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    """The queue is being rebuilt where the read would begin. The pull is held, as in an empty queue."""

    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    """The offset is beyond the end of the queue."""

    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    """The offset is the end of the queue: the next message will have it."""

    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    """The offset is before the first message that is left."""

    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    """There is no such queue."""

    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    """The queue has had no message that consumers may see."""

    OFFSET_RESET = "OFFSET_RESET"
    """The offset of the group was reset, and the reader must continue there; see ``server.core.offsets``."""


class ReadResult(NamedTuple):
    """The answer to one read."""

    status: ReadStatus
    next_offset: int
    """The queue offset at which to continue."""

    min_offset: int
    max_offset: int
    body: bytes = b""
    """The records as they are in the log, one after the other."""

    count: int = 0  # type: ignore[assignment]  # hides tuple.count, which is not used here
    is_waiting: bool = False
    """Whether the message at ``next_offset`` is damaged, or was not found by a start, and a replica may restore it.

    Read again later.
    """


def offset_fault(queue: ConsumeQueue | None, offset: int) -> ReadResult | None:
    """Return the result for an ``offset`` that cannot have a message, or None if it can have one."""
    if queue is None:
        return ReadResult(ReadStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
    minimum, maximum = queue.min_offset, queue.readable_end
    if maximum < offset <= queue.end:
        # The message exists and is not confirmed yet: the consumer has read the ones before it from another broker.
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
    accept: TagsCodeFilter,
    check_lost_or_repair: IsLost,
    guard: LogGuard,
    known_end: KnownEnd,
    want: PropertiesFilter = None,
    units_max: int | None = None,
) -> ReadResult:
    """Return up to ``count_max`` messages and about ``bytes_max`` bytes (at least one message) from ``offset`` on.

    ``check_lost_or_repair`` is called for units that their records contradict, ``known_end`` before a filter skips
    units, and ``guard`` verifies what is served. At most ``units_max`` units are examined, by default
    ``UNITS_SCANNED_MIN``, or ``count_max`` if that is more.
    """
    if queue is None or not queue.min_offset <= offset < queue.readable_end:
        if (
            queue is not None
            and offset < queue.min_offset
            and guard.damage.must_wait_before_gap(_first_physical(queue))
        ):
            # A start has begun the queue after damage, in which the message may lie.
            return ReadResult(
                ReadStatus.OFFSET_OVERFLOW_ONE, offset, queue.min_offset, queue.readable_end, is_waiting=True
            )
        fault = offset_fault(queue, offset)
        assert fault is not None
        return fault
    accepts = accept.__contains__ if isinstance(accept, frozenset) else accept
    at = commit_log.at
    is_verifying = guard.is_verifying
    parts: list[memoryview] = []
    total = count = 0
    status = ReadStatus.NO_MATCHED_MESSAGE
    next_offset = first = offset
    is_waiting = False
    last_bytes = 0
    body: bytes | None = None
    is_copied = False
    file: Extent | None = None
    base = file_end = run_start = run_end = 0
    units_end = offset + (units_max or max(UNITS_SCANNED_MIN, count_max))
    if native is not None and accepts is None and want is None:
        copied_end = min(units_end, offset + count_max, queue.readable_end)
        raw = queue.raw(offset, copied_end)
        extent = at(UNIT.unpack_from(raw)[0]) if raw else None
        if extent is not None:
            body, count, last_bytes = native.copy_records(
                raw, extent.view, extent.base_offset, queue.queue_id, offset, count_max, bytes_max
            )
            total, next_offset = len(body), offset + count
            is_copied = next_offset == copied_end or _is_full(raw, count, total, bytes_max)
            if not is_copied:
                parts.append(memoryview(body))
    units: Iterable[tuple[int, int, int]]
    if is_copied:
        units = ()  # the usual case: one piece, all that was asked for
    elif accepts is None:
        units = queue.units(next_offset, units_end)
    else:
        units = _known_units(queue, offset, units_end, known_end)
    for physical, size, tags_code in units:
        if count >= count_max or (count and total + size > bytes_max):
            break
        if size == FILLER_SIZE:
            is_waiting = guard.damage.must_wait_before_gap()
            if is_waiting:
                break
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
            or size < RECORD_BYTES_MIN
            or physical + size > file_end
            or _IDENTITY.unpack_from(file.view, position) != (size, queue.queue_id, next_offset, physical)
        ):
            if count:
                break
            if not check_lost_or_repair(queue, next_offset, physical):
                if next_offset == offset:
                    raise QueueRebuilding(queue.topic, queue.queue_id, offset)
                break
            is_waiting = _must_wait(guard, queue, next_offset, physical, size)
            if is_waiting:
                break
            next_offset += 1
            continue
        if want is not None:
            # A filter must be applied to verified properties only.
            if is_verifying and not guard.is_good(file.view, position, physical):
                if count:
                    break
                is_waiting = _must_wait(guard, queue, next_offset, physical, size)
                if is_waiting:
                    break
                next_offset += 1
                continue
            properties = stored_properties(file.view, position)
            if properties is None or not want(properties):
                next_offset += 1
                continue
        if position != run_end:
            if run_end > run_start:
                parts.append(file.view[run_start:run_end])
            run_start = position
        run_end = position + size
        last_bytes = size
        total += size
        if not count:
            first = next_offset
        count += 1
        next_offset += 1
    if file is not None and run_end > run_start:
        parts.append(file.view[run_start:run_end])
    if count == 0:
        if next_offset == offset and accepts is not None and offset < queue.readable_end and not is_waiting:
            raise QueueRebuilding(queue.topic, queue.queue_id, offset)
        if is_waiting and next_offset == offset:
            status = ReadStatus.OFFSET_OVERFLOW_ONE  # nothing new yet: a pull is held, or repeated
        return ReadResult(status, next_offset, queue.min_offset, queue.readable_end, is_waiting=is_waiting)
    if body is None or not is_copied:
        body = b"".join(parts)
    is_known = False
    if is_verifying:
        # This is ``QueueSums.matches``, inlined to save the calls.
        sums, index = queue.sums.values, first - queue.sums.start
        is_consecutive = next_offset - first == count
        is_known = is_consecutive and 0 <= index < len(sums) - count
        is_known = is_known and crc32(body, sums[index]) == sums[index + count]
        if not is_known:
            end = guard.verified_bytes(queue, first, count, body, is_consecutive=is_consecutive)
            if end < len(body):
                return _result_before_damage(guard, queue, offset, body, end)
    for start in () if is_known else (0, len(body) - last_bytes):
        if not _is_of_topic(body, start, queue):
            # A queue file of another topic in this place has matching numbers everywhere, so the topic is compared.
            _, _, number, physical = _IDENTITY.unpack_from(body, start)
            check_lost_or_repair(queue, number, physical)
            raise QueueRebuilding(queue.topic, queue.queue_id, number)
    return ReadResult(ReadStatus.FOUND, next_offset, queue.min_offset, queue.readable_end, body, count)


def _first_physical(queue: ConsumeQueue) -> int:
    """Return where the first message of a queue begins in the log."""
    return queue.stored_unit(queue.min_offset)[0] if queue.min_offset < queue.readable_end else LOG_END_MAX


def _is_full(units: bytes, count: int, total: int, bytes_max: int) -> bool:
    """Return whether the next of the ``units`` after the first ``count``, which have ``total`` bytes, is too large."""
    position = count * CONSUME_UNIT_BYTES
    return count > 0 and position < len(units) and total + UNIT.unpack_from(units, position)[1] > bytes_max


def _result_before_damage(guard: LogGuard, queue: ConsumeQueue, offset: int, body: bytes, end: int) -> ReadResult:
    """Return the result for a ``body`` whose record at ``end`` is damaged: the messages before that record.

    If there are none, the damaged message is skipped, and the next read continues after it; or the next read must wait
    before it.
    """
    size, _, damaged, physical = _IDENTITY.unpack_from(body, end)
    minimum, maximum = queue.min_offset, queue.readable_end
    if end:
        count, position = 0, 0
        while position < end:
            position += _SIZE.unpack_from(body, position)[0]
            count += 1
        return ReadResult(ReadStatus.FOUND, damaged, minimum, maximum, body[:end], count)
    if not _must_wait(guard, queue, damaged, physical, size):
        return ReadResult(ReadStatus.NO_MATCHED_MESSAGE, damaged + 1, minimum, maximum)
    status = ReadStatus.OFFSET_OVERFLOW_ONE if damaged == offset else ReadStatus.NO_MATCHED_MESSAGE
    return ReadResult(status, damaged, minimum, maximum, is_waiting=True)


def _must_wait(guard: LogGuard, queue: ConsumeQueue, offset: int, physical: int, size: int) -> bool:
    """Report the damaged record of a message. Return True while reading should wait for a replica to heal it."""
    return guard.damage.must_wait(physical, size, topic=queue.topic, queue_id=queue.queue_id, queue_offset=offset)


def _known_units(queue: ConsumeQueue, offset: int, end: int, known_end: KnownEnd) -> Iterator[tuple[int, int, int]]:
    """Yield the units of ``[offset, end)`` as far as their tags codes match the log."""
    begin, known, end = offset, queue.unit_sums.read_known, min(end, queue.readable_end)
    while offset < end:
        raw: bytes | memoryview = known(offset, end)
        if not raw:
            stop = known_end(queue, begin, offset, min(end, offset + FILTERED_UNITS))
            raw = queue.raw(offset, stop)
            if not raw:
                return
        yield from UNIT.iter_unpack(raw)
        offset += len(raw) // CONSUME_UNIT_BYTES


def _is_of_topic(data: bytes, start: int, queue: ConsumeQueue) -> bool:
    """Return whether the record at ``start`` has the queue's topic. Its size and its numbers were compared before."""
    flags = data[start + _FLAGS_POSITION]
    length_at = start + _BODY_LENGTH_POSITION
    if flags & _HOSTS_V6:
        length_at += 12 * bool(flags & FLAG_BORN_HOST_V6) + 12 * bool(flags & FLAG_STORE_HOST_V6)
    return data.startswith(queue.topic_field, length_at + 4 + INT.unpack_from(data, length_at)[0])
