"""Dump of the records of a store, by physical offset in the log or by offset in a queue.

Its purpose is to show damage. For a place without a record it yields a ``Hole`` with the reason, the readable fields of
the head, and the bytes around it, and continues with the next whole record. So damage of the log never ends a dump. The
dump of a queue ends at its first empty unit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gantry_broker.ports.reading import ReadingDisk
from gantry_broker.store.inspect.facts import StoreFacts
from gantry_broker.store.inspect.log_reader import FoundRecord, LogReader
from gantry_store_files.queue_units import NO_UNIT, QueueLocation, QueueReader, Unit, is_filler
from gantry_wire.message import (
    BLANK_BYTES,
    RecordFault,
    StoredMessage,
    decode_record,
)

AROUND_BYTES: Final = 64
"""Number of bytes that are shown before a hole; twice as many are shown of the hole itself."""

_NO_FILE: Final = "no log file holds this offset"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hole:
    """A place in the log without a valid record."""

    offset: int
    """The physical offset at which the place begins."""

    length: int | None
    """Number of bytes up to the next whole record; None if none follows."""

    reason: str
    """Why no valid record is here."""

    around_start: int
    """The physical offset at which the shown bytes begin, before the hole."""

    around: bytes
    """Bytes of the log from ``around_start`` on."""

    topic: str = ""
    """Topic of the message that should be here, if it is known."""

    queue_id: int | None = None
    queue_offset: int | None = None
    """Queue offset of the message that should be here, if a queue unit or the record's head contains it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoMessage:
    """A queue offset without a message: a filler, an expired message, or a wrong unit."""

    topic: str
    queue_id: int
    queue_offset: int
    reason: str
    """Why the queue offset has no message."""

    is_damage: bool = False
    """Whether the queue is wrong here; a filler and an expired message are no damage."""


DumpEntry = StoredMessage | Hole | NoMessage


def dump_log(reader: LogReader, facts: StoreFacts, offset: int) -> Iterator[DumpEntry]:
    """Yield all records and holes from the record that holds ``offset`` to the end of the log."""
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
    disk: ReadingDisk, reader: LogReader, facts: StoreFacts, location: QueueLocation, start: int
) -> Iterator[DumpEntry]:
    """Yield the messages of a queue from the queue offset ``start`` on, found by its units."""
    queue = QueueReader(disk, location)
    for number in range(max(start, queue.first), queue.limit):
        unit = queue.unit(number)
        if unit == NO_UNIT:
            return
        yield _read_entry(reader, facts, location, number, unit)


def _read_entry(reader: LogReader, facts: StoreFacts, location: QueueLocation, number: int, unit: Unit) -> DumpEntry:
    """Return the message to which a unit points, or the reason why there is none."""
    physical = unit[0]
    if is_filler(unit):
        return NoMessage(topic=location.topic, queue_id=location.queue_id, queue_offset=number, reason="filler")
    if physical < facts.log_start:
        reason = f"expired: it was at {physical}, and the log begins at {facts.log_start}"
        return NoMessage(topic=location.topic, queue_id=location.queue_id, queue_offset=number, reason=reason)
    found = reader.record_at(physical)
    if found is None or not found.check.is_good:
        after = reader.next_record(physical + 1, facts.files_end)
        return _hole(reader, physical, after, found, (location.topic, location.queue_id, number))
    message = decode_record(found.data, 0, verify_crc=False)
    if (message.topic, message.queue_id, message.queue_offset) != (location.topic, location.queue_id, number):
        other = f"{message.topic}/{message.queue_id} offset {message.queue_offset}"
        return NoMessage(
            topic=location.topic, queue_id=location.queue_id, queue_offset=number,
            reason=f"wrong unit: it points to {physical}, which holds {other}", is_damage=True,
        )  # fmt: skip
    return message


def _begin(reader: LogReader, offset: int) -> int:
    """Return the start of the record that holds ``offset``, or of the hole that holds it."""
    start = reader.record_before(offset)
    found = reader.record_at(start)
    is_before = found is not None and found.check.is_good and start + found.check.size <= offset
    return start + found.check.size if found is not None and is_before else start


def _is_log_end(reader: LogReader, facts: StoreFacts, offset: int, found: FoundRecord) -> bool:
    """Return whether the log ends at ``offset``: there are zeros, and no record after them."""
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
    named = named or reader.identify_message(offset)
    is_unread = any(begin <= offset < end for begin, end in reader.unreadable)
    fault = found.check.fault.value if found is not None and found.check.fault is not None else _NO_FILE
    return Hole(
        offset=offset,
        length=after - offset if after is not None else None,
        reason="read error of the disk" if is_unread else fault,
        around_start=start,
        around=reader.bytes_at(start, offset - start + 2 * AROUND_BYTES),
        topic=named[0] if named is not None else "",
        queue_id=named[1] if named is not None else None,
        queue_offset=named[2] if named is not None else None,
    )
