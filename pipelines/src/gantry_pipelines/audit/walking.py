"""Walking a range of a log record by record, past whatever is not one.

    | record | record | ...damage... | record | blank ) next file | record |

A record is believed if its lengths agree, it claims the very place where it lies, and its checksums are right. Behind
damage the walk goes on at the next place of which all of that is true; a body that looks like a record does not claim
to lie where it lies. How much a record proves of itself is its *grade*, for copies of it are told apart by that.

Where nobody says who wrote a part of the log, a seal that is right proves the record, and one that is wrong may be a
copy that RocketMQ left in another message's properties: SUSPECT, which only counts against a copy that proves more.
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
_MAGIC_TAILS: Final = (0xA7, 0xAB)
_MAGIC_AT: Final = 4


class Grade(IntEnum):
    """What a place proves."""

    BAD = 0
    SUSPECT = 1
    """The body's CRC is right, and something that looks like a seal is not."""
    PLAIN = 2
    """The body's CRC is right, and there is no seal."""
    SEALED = 3
    """A checksum over all of it is right."""


class Record(NamedTuple):
    """A whole record, by what its queue must know of it."""

    physical: int
    size: int
    topic: str
    queue: int
    offset: int
    is_queued: bool
    tags: int
    grade: Grade

    @property
    def end(self) -> int:
        """Behind its last byte."""
        return self.physical + self.size


@final
@dataclass(slots=True)
class Walk:
    """What lies in a range."""

    records: list[Record] = field(default_factory=list)
    damages: list[Span] = field(default_factory=list)
    blanks: list[Span] = field(default_factory=list)
    end: int = 0
    """Where the walk ended: a record or a file begins here, or the bytes that were given end."""
    wanted: int = 0
    """Up to where bytes are needed for the record that begins at `end`; 0: that is not why it ended."""

    def add_records_behind(self, after: Walk) -> None:
        """Take the records and damages of a walk that began where this one ended."""
        self.records += after.records
        self.damages += after.damages
        self.wanted = after.wanted


def walk(data: Bytes, begin: int, stop: int, ours: tuple[Span, ...] | None, *, is_all: bool = False) -> Walk:
    """Records that begin in `[begin, stop)`, `begin` being a place at which one begins, or should.

    Damage at the end is followed to the next record, beyond `stop`, too, as far as there is data. `is_all`: there are
    no bytes behind these, so a record that says that it ends there has a wrong length if another one follows it.
    """
    result = Walk()
    view = memoryview(data.data)
    position, limit = begin - data.begin, stop - data.begin
    seals = True
    while position < limit:
        demanded = demands_seal(data.begin + position, ours)
        is_fast_sealed = demanded if demanded is not None else seals
        part = _stretch_end(data.begin + position, ours) - data.begin
        for plain in plain_records(view, position, min(limit, part), data.begin, is_sealed=is_fast_sealed):
            record = _plain(plain, view, data.begin, demanded, is_fast_sealed)
            result.records.append(record)
            position = record.end - data.begin
        if position >= limit:
            break
        check = check_record(view, position, physical_offset=data.begin + position, is_sealed=bool(demanded))
        if check.is_good:
            found = record_at(data, data.begin + position, ours)
            assert found is not None, "the same gate has just let it pass"
            seals = found.grade is not Grade.PLAIN
            result.records.append(found)
            position += check.size
        elif check.fault is RecordFault.BLANK:
            result.blanks.append(Span(data.begin + position, data.begin + position + check.size))
            position += check.size
        else:
            wanted = _wanted(view, position, data.begin)
            after = next_record(data, data.begin + position + 1, ours) if is_all or not wanted else data.end
            if wanted and after == data.end:
                result.wanted = wanted
                break
            result.damages.append(Span(data.begin + position, after))
            position = after - data.begin
    result.end = data.begin + position
    return result


def demands_seal(physical: int, ours: tuple[Span, ...] | None) -> bool | None:
    """Whether a record here must have a seal; None: nobody says."""
    if ours is None:
        return None
    return any(span.begin <= physical < span.end for span in ours)


def grade_at(data: Bytes, physical: int, ours: tuple[Span, ...] | None) -> Grade:
    """What lies at a place proves of itself."""
    record = record_at(data, physical, ours)
    return Grade.BAD if record is None else record.grade


def record_at(data: Bytes, physical: int, ours: tuple[Span, ...] | None) -> Record | None:
    """The whole record that begins at a place; None if there is none."""
    view = memoryview(data.data)
    position = physical - data.begin
    if not 0 <= position < len(view):
        return None
    demanded = demands_seal(physical, ours)
    check = check_record(view, position, physical_offset=physical, is_sealed=bool(demanded))
    if not check.is_good:
        return None
    message = decode_record(view, position, verify_crc=False)
    return Record(
        physical, check.size, message.topic, message.queue_id, message.queue_offset,
        not message.sys_flag & TRANSACTION_PREPARED, tags_code(message.properties.get(TAGS)),
        _grade(view, position, check.size, demanded),
    )  # fmt: skip


def next_record(data: Bytes, physical: int, ours: tuple[Span, ...] | None) -> int:
    """The first place from `physical` on at which a whole record begins; the end of the data if there is none."""
    at = max(physical - data.begin, 0)
    while True:
        found = data.data.find(_MAGIC_HEAD, at + _MAGIC_AT)
        if found < 0 or found + len(_MAGIC_HEAD) >= len(data.data):
            return data.end
        at = found - _MAGIC_AT
        if data.data[found + 3] in _MAGIC_TAILS and grade_at(data, data.begin + at, ours) is not Grade.BAD:
            return data.begin + at
        at += 1


def displaced(data: Bytes, span: Span) -> list[tuple[int, int, int]]:
    """Whole records in a damaged span that claim another place: (place, size, the place they claim)."""
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


def _grade(view: memoryview, position: int, size: int, demanded: bool | None) -> Grade:
    if demanded is not None:
        return Grade.SEALED if demanded else Grade.PLAIN
    if not has_seal(view, position + size):
        return Grade.PLAIN
    return Grade.SEALED if check_record(view, position, is_sealed=True).is_good else Grade.SUSPECT


def _plain(plain: PlainRecord, view: memoryview, base: int, demanded: bool | None, is_sealed: bool) -> Record:
    physical, size, topic, queue, offset, _, properties = plain
    if is_sealed:
        grade = Grade.SEALED
    elif demanded is None and properties[-SEAL_BYTES:].startswith(SEAL_MARK):
        grade = _grade(view, physical - base, size, None)
    else:
        grade = Grade.PLAIN
    tag = tag_of(properties).decode("utf-8", "replace")
    return Record(physical, size, topic.decode("utf-8", "replace"), queue, offset, True, tags_code(tag), grade)


def _stretch_end(physical: int, ours: tuple[Span, ...] | None) -> int:
    """Up to where the same is demanded of records as at `physical`."""
    edges = [edge for span in ours or () for edge in span if edge > physical]
    return min(edges, default=1 << 62)


def _wanted(view: memoryview, position: int, base: int) -> int:
    """Up to where bytes are needed, if what begins here is a record or a blank of which the end was not given."""
    remaining = len(view) - position
    if remaining < RECORD_BYTES_MIN:
        return base + position + RECORD_BYTES_MIN if any(view[position:]) else 0
    size = int.from_bytes(view[position : position + 4], "big")
    magic = bytes(view[position + 4 : position + 8])
    is_blank = magic == b"\xcb\xd4\x31\x94"
    is_record = magic[:3] == _MAGIC_HEAD and magic[3] in _MAGIC_TAILS
    claims = int.from_bytes(view[position + 28 : position + 36], "big") == base + position
    if size > remaining and size <= RECORD_BYTES_MAX and (is_blank or (is_record and claims)):
        return base + position + size
    return 0
