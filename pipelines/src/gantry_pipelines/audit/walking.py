"""Walk a range of a log record by record, and continue after damage.

    | record | record | ...damage... | record | blank ) next file | record |

A record is valid if its lengths match, its physical offset is its position, and its checksums are right. After damage
the walk continues at the next valid record; a body that contains the bytes of a record does not have the right
physical offset. The *grade* of a record is how much of it its checksums prove; of different copies of a record the one
with the higher grade is right.

If it is unknown which broker wrote a part of the log, a valid seal proves the record, but an invalid one may be a copy
that RocketMQ left in another message's properties: such a record is SUSPECT, and loses only against a higher grade.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple, final

from gantry_pipelines.audit.copies import Bytes
from gantry_pipelines.audit.model import Span
from gantry_wire.hashing import tags_code
from gantry_wire.message import (
    RECORD_BYTES_MAX,
    RECORD_BYTES_MIN,
    TRANSACTION_PREPARED,
    RecordFault,
    check_record,
    decode_record,
)
from gantry_wire.plain_records import PlainRecord, plain_records, tag_of
from gantry_wire.properties import TAGS
from gantry_wire.seal import SEAL_BYTES, SEAL_MARK, has_seal

_MAGIC_HEAD: Final = b"\xda\xa3\x20"
"""The bytes with which the magic number of every record begins."""

_MAGIC_TAILS: Final = (0xA7, 0xAB)
"""The last byte of that number, in both versions of the format."""

_MAGIC_AT: Final = 4
"""The position of the magic number in a record."""


class Grade(IntEnum):
    """How much of a record its checksums prove."""

    BAD = 0
    """A checksum is wrong, or lengths do not match."""
    SUSPECT = 1
    """The body's CRC is valid, but the record ends with an invalid seal."""
    PLAIN = 2
    """The body's CRC is valid, and the record has no seal."""
    SEALED = 3
    """The checksum of the whole record is valid."""


class Record(NamedTuple):
    """A valid record, with the fields that its unit must have."""

    physical: int
    size: int
    topic: str
    queue: int
    offset: int
    is_queued: bool
    """Whether the record has a unit in its queue."""

    tags: int
    """The tags code that its unit must have."""

    grade: Grade

    @property
    def end(self) -> int:
        """The offset after the record's last byte."""
        return self.physical + self.size


@final
@dataclass(slots=True)
class Walk:
    """The records, damages and blanks of a range."""

    records: list[Record] = field(default_factory=list)
    damages: list[Span] = field(default_factory=list)
    """The spans without a valid record."""
    blanks: list[Span] = field(default_factory=list)
    """The unused ends of files (fillers)."""
    end: int = 0
    """Where the walk ended: a record or a file begins here, or the data ends."""
    needed_end: int = 0
    """Offset up to which data is needed for the record that begins at `end`; 0: the walk did not end for that."""

    def append_walk(self, after: Walk) -> None:
        """Add the records and damages of a walk that began where this one ended."""
        self.records += after.records
        self.damages += after.damages
        self.needed_end = after.needed_end


def walk(data: Bytes, begin: int, stop: int, sealed_spans: tuple[Span, ...] | None, *, is_all: bool = False) -> Walk:
    """Find the records that begin in `[begin, stop)`; a record begins, or should begin, at `begin`.

    Damage at the end is followed to the next record, also beyond `stop`, as far as there is data. `is_all`: the log has
    no bytes after the data, so a record that seems to end after it has a wrong length.
    """
    result = Walk()
    view = memoryview(data.data)
    position, limit = begin - data.begin, stop - data.begin
    is_last_sealed = True
    while position < limit:
        is_required = requires_seal(data.begin + position, sealed_spans)
        is_seal_expected = is_required if is_required is not None else is_last_sealed
        part = _stretch_end(data.begin + position, sealed_spans) - data.begin
        for plain in plain_records(view, position, min(limit, part), data.begin, is_sealed=is_seal_expected):
            record = _convert_plain_record(plain, view, data.begin, is_required, is_seal_expected)
            result.records.append(record)
            position = record.end - data.begin
        if position >= limit:
            break
        check = check_record(view, position, physical_offset=data.begin + position, is_sealed=bool(is_required))
        if check.is_good:
            found = record_at(data, data.begin + position, sealed_spans)
            assert found is not None, "expected the record that `check_record` has accepted"
            is_last_sealed = found.grade is not Grade.PLAIN
            result.records.append(found)
            position += check.size
        elif check.fault is RecordFault.BLANK:
            result.blanks.append(Span(data.begin + position, data.begin + position + check.size))
            position += check.size
        else:
            needed_end = _needed_end(view, position, data.begin)
            after = next_record(data, data.begin + position + 1, sealed_spans) if is_all or not needed_end else data.end
            if needed_end and after == data.end:
                result.needed_end = needed_end
                break
            result.damages.append(Span(data.begin + position, after))
            position = after - data.begin
    result.end = data.begin + position
    return result


def requires_seal(physical: int, sealed_spans: tuple[Span, ...] | None) -> bool | None:
    """Return whether a record at this position must have a seal; None if that is unknown."""
    if sealed_spans is None:
        return None
    return any(span.begin <= physical < span.end for span in sealed_spans)


def grade_at(data: Bytes, physical: int, sealed_spans: tuple[Span, ...] | None) -> Grade:
    """Return the grade of the record at a position; BAD if there is no valid one."""
    record = record_at(data, physical, sealed_spans)
    return Grade.BAD if record is None else record.grade


def record_at(data: Bytes, physical: int, sealed_spans: tuple[Span, ...] | None) -> Record | None:
    """Return the valid record that begins at a position; None if there is none."""
    view = memoryview(data.data)
    position = physical - data.begin
    if not 0 <= position < len(view):
        return None
    is_required = requires_seal(physical, sealed_spans)
    check = check_record(view, position, physical_offset=physical, is_sealed=bool(is_required))
    if not check.is_good:
        return None
    message = decode_record(view, position, verify_crc=False)
    return Record(
        physical, check.size, message.topic, message.queue_id, message.queue_offset,
        not message.sys_flag & TRANSACTION_PREPARED, tags_code(message.properties.get(TAGS)),
        _grade(view, position, check.size, is_required),
    )  # fmt: skip


def next_record(data: Bytes, physical: int, sealed_spans: tuple[Span, ...] | None) -> int:
    """Return the position of the first valid record from `physical` on; the end of the data if there is none."""
    at = max(physical - data.begin, 0)
    while True:
        found = data.data.find(_MAGIC_HEAD, at + _MAGIC_AT)
        if found < 0 or found + len(_MAGIC_HEAD) >= len(data.data):
            return data.end
        at = found - _MAGIC_AT
        if data.data[found + 3] in _MAGIC_TAILS and grade_at(data, data.begin + at, sealed_spans) is not Grade.BAD:
            return data.begin + at
        at += 1


def find_displaced_records(data: Bytes, span: Span) -> list[tuple[int, int, int]]:
    """Return valid records in a damaged span that belong to another position: (position, size, physical offset)."""
    found: list[tuple[int, int, int]] = []
    view = memoryview(data.data)
    at = max(span.begin - data.begin, 0)
    stop = min(span.end - data.begin, len(view))
    while True:
        magic = data.data.find(_MAGIC_HEAD, at + _MAGIC_AT, stop)
        if magic < 0 or magic + len(_MAGIC_HEAD) >= len(view):
            return found
        at = magic - _MAGIC_AT
        check = check_record(view, at) if data.data[magic + 3] in _MAGIC_TAILS else None
        if check is not None and check.is_good:
            claimed = decode_record(view, at, verify_crc=False).physical_offset
            if claimed != data.begin + at:
                found.append((data.begin + at, check.size, claimed))
                at += check.size
                continue
        at += 1


def _grade(view: memoryview, position: int, size: int, is_required: bool | None) -> Grade:
    if is_required is not None:
        return Grade.SEALED if is_required else Grade.PLAIN
    if not has_seal(view, position + size):
        return Grade.PLAIN
    return Grade.SEALED if check_record(view, position, is_sealed=True).is_good else Grade.SUSPECT


def _convert_plain_record(
    plain: PlainRecord, view: memoryview, base: int, is_required: bool | None, is_sealed: bool
) -> Record:
    physical, size, topic, queue, offset, _, properties = plain
    if is_sealed:
        grade = Grade.SEALED
    elif is_required is None and properties[-SEAL_BYTES:].startswith(SEAL_MARK):
        grade = _grade(view, physical - base, size, None)
    else:
        grade = Grade.PLAIN
    tag = tag_of(properties).decode("utf-8", "replace")
    return Record(physical, size, topic.decode("utf-8", "replace"), queue, offset, True, tags_code(tag), grade)


def _stretch_end(physical: int, sealed_spans: tuple[Span, ...] | None) -> int:
    """Return the end of the stretch in which seals are required, or not required, as at `physical`."""
    edges = [edge for span in sealed_spans or () for edge in span if edge > physical]
    return min(edges, default=1 << 62)


def _needed_end(view: memoryview, position: int, base: int) -> int:
    """Return up to where data is needed if a record or a blank begins here whose end is not in the data; else 0."""
    remaining = len(view) - position
    if remaining < RECORD_BYTES_MIN:
        return base + position + RECORD_BYTES_MIN if any(view[position:]) else 0
    size = int.from_bytes(view[position : position + 4], "big")
    magic = bytes(view[position + 4 : position + 8])
    is_blank = magic == b"\xcb\xd4\x31\x94"
    is_record = magic[:3] == _MAGIC_HEAD and magic[3] in _MAGIC_TAILS
    is_at_position = int.from_bytes(view[position + 28 : position + 36], "big") == base + position
    if size > remaining and size <= RECORD_BYTES_MAX and (is_blank or (is_record and is_at_position)):
        return base + position + size
    return 0
