"""Records of a store, one after the other, as they lie there: by place in the log, or by number in a queue.

The point is the damaged ones. Where no record is, there is a ``Hole`` with the reason, what the head still says, and
the bytes around; then it goes on with the next whole record. So a dump never ends because of what it finds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gantry_broker.ports.reading import ReadingDisk
from gantry_broker.store.inspect.facts import StoreFacts
from gantry_broker.store.inspect.log_reader import FoundRecord, LogReader
from gantry_store_files.queue_units import NO_UNIT, QueuePlace, QueueReader, Unit, is_filler
from gantry_wire.message import (
    BLANK_BYTES,
    RecordFault,
    StoredMessage,
    decode_record,
)

AROUND_BYTES: Final = 64
"""So many bytes before a hole are shown, and twice as many of it."""

_NO_FILE: Final = "there is no file for this place"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hole:
    """A place without a record."""

    offset: int
    length: int | None
    """Up to the next whole record; None if none follows."""

    reason: str
    around_start: int
    around: bytes
    """Bytes of the log from ``around_start`` on."""

    topic: str = ""
    queue_id: int | None = None
    queue_offset: int | None = None
    """Of the message that should be here, as far as a unit or the head itself says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoMessage:
    """A number of a queue that stands for nothing: filled in, expired, or never written."""

    topic: str
    queue_id: int
    queue_offset: int
    reason: str
    is_damage: bool = False


Dumped = StoredMessage | Hole | NoMessage


def dump_log(reader: LogReader, facts: StoreFacts, offset: int) -> Iterator[Dumped]:
    """Everything from the record on that holds ``offset``, to the end of the log."""
    at: int | None = _begin(reader, max(offset, facts.log_start))
    while at is not None and at < facts.files_end:
        found = reader.record_at(at)
        if found is not None and found.check.is_good:
            yield decode_record(found.data, 0, verify_crc=False)
            at += found.check.size
            continue
        if found is not None and found.check.fault is RecordFault.BLANK:
            at += found.check.size
            continue
        if found is not None and _is_log_end(reader, facts, at, found):
            return
        after = reader.next_record(at + 1, facts.files_end)
        yield _hole(reader, at, after, found)
        at = after


def dump_queue(
    disk: ReadingDisk, reader: LogReader, facts: StoreFacts, place: QueuePlace, start: int
) -> Iterator[Dumped]:
    """The messages of a queue from the number ``start`` on, found by its units."""
    queue = QueueReader(disk, place)
    for number in range(max(start, queue.first), queue.limit):
        unit = queue.unit(number)
        if unit == NO_UNIT:
            return
        yield _queued(reader, facts, place, number, unit)


def _queued(reader: LogReader, facts: StoreFacts, place: QueuePlace, number: int, unit: Unit) -> Dumped:
    physical = unit[0]
    if is_filler(unit):
        return NoMessage(topic=place.topic, queue_id=place.queue_id, queue_offset=number, reason="filled in")
    if physical < facts.log_start:
        reason = f"expired: it was at {physical}, and the log begins at {facts.log_start}"
        return NoMessage(topic=place.topic, queue_id=place.queue_id, queue_offset=number, reason=reason)
    found = reader.record_at(physical)
    if found is None or not found.check.is_good:
        after = reader.next_record(physical + 1, facts.files_end)
        return _hole(reader, physical, after, found, (place.topic, place.queue_id, number))
    message = decode_record(found.data, 0, verify_crc=False)
    if (message.topic, message.queue_id, message.queue_offset) != (place.topic, place.queue_id, number):
        other = f"{message.topic}/{message.queue_id} number {message.queue_offset}"
        return NoMessage(
            topic=place.topic, queue_id=place.queue_id, queue_offset=number,
            reason=f"its unit is wrong: it leads to {physical}, where {other} is", is_damage=True,
        )  # fmt: skip
    return message


def _begin(reader: LogReader, offset: int) -> int:
    """Where the record begins that holds ``offset``, or the hole behind the last whole record before it."""
    start = reader.record_before(offset)
    found = reader.record_at(start)
    is_before = found is not None and found.check.is_good and start + found.check.size <= offset
    return start + found.check.size if found is not None and is_before else start


def _is_log_end(reader: LogReader, facts: StoreFacts, offset: int, found: FoundRecord) -> bool:
    """Zeros, and no record behind them."""
    is_zero = found.check.fault is RecordFault.END and not any(found.data[:BLANK_BYTES])
    return is_zero and reader.next_record(offset, facts.files_end) is None


def _hole(
    reader: LogReader,
    offset: int,
    after: int | None,
    found: FoundRecord | None,
    named: tuple[str, int, int] | None = None,
) -> Hole:
    before = min((offset - one.base_offset for one in reader.segments if one.base_offset <= offset), default=0)
    start = offset - min(AROUND_BYTES, before)
    named = named or reader.name_at(offset)
    is_unread = any(begin <= offset < end for begin, end in reader.unreadable)
    fault = found.check.fault.value if found is not None and found.check.fault is not None else _NO_FILE
    return Hole(
        offset=offset,
        length=after - offset if after is not None else None,
        reason="the disk cannot read this" if is_unread else fault,
        around_start=start,
        around=reader.bytes_at(start, offset - start + 2 * AROUND_BYTES),
        topic=named[0] if named is not None else "",
        queue_id=named[1] if named is not None else None,
        queue_offset=named[2] if named is not None else None,
    )
