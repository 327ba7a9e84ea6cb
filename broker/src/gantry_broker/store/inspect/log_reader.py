"""Reading a commit log through a window: record by record, or at one place, in bounded memory, on a broken disk too.

    file    [base ...................[ window )........................ end)
                                      `- 8 MiB, read at once, moved along; the only large memory there is

Records are judged by ``check_record``, the gate that the broker itself uses, so the two cannot disagree. What is its
own here is the reading: a page that the disk refuses (``EIO``) is taken as zeros and remembered, so that one bad sector
costs the record that it is in, and not the rest of the log.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import Final, NamedTuple, final

from gantry_broker.ports.reading import ReadingDisk, ReadingFile
from gantry_broker.store.record_dispatch import RecordFacts, record_facts
from gantry_broker.store.recovery import SEARCH_BYTES, SEARCH_OVERLAP, Seals, record_starts
from gantry_broker.store.settings import StoreSettings
from gantry_store_files.segments import Segment, segment_at
from gantry_wire.message import (
    BLANK_BYTES,
    BLANK_MAGIC,
    BLANK_RECORD,
    MESSAGE_MAGIC_V1,
    MESSAGE_MAGIC_V2,
    RECORD_BYTES_MAX,
    RECORD_BYTES_MIN,
    RecordCheck,
    RecordFault,
    check_record,
)

WINDOW_BYTES: Final = 8 << 20
PAGE_BYTES: Final = 4096
_DELAY_LEVELS_MS: Final = StoreSettings().delay_levels_ms
_MAGICS: Final = frozenset((MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2))

Found = Callable[[memoryview, int, int, int], None]
"""(view, position in it, physical offset, size) of a whole record. The view is another one after the call."""


class _Vanished(Exception):
    """A file that was there is not any more."""


class StopReason(StrEnum):
    """Why a walk ended where it did."""

    REACHED = "the end that was asked for"
    END = "zeros: the log ends here"
    MAGIC = "no record begins here: the magic is unknown"
    LENGTH = "a length that cannot be"
    OFFSET = "a record of another place"
    CRC = "a body that does not match its CRC"
    SEAL = "a record that does not match its seal, or lost it"
    NO_FILE = "there is no file for this place"
    UNREADABLE = "the disk cannot read this"


class Stop(NamedTuple):
    """Where a walk ended."""

    offset: int
    reason: StopReason


class FoundRecord(NamedTuple):
    """What lies at one place."""

    check: RecordCheck
    data: memoryview
    """The record's bytes if the check is good; else what begins there, up to some hundred bytes."""


@final
class LogReader:
    """The log of one store. Used by one thread; holds one open file and one window."""

    def __init__(self, disk: ReadingDisk, segments: Sequence[Segment], ours_from: Seals) -> None:
        self.segments = tuple(segments)
        """The files. One that vanishes while it is looked for was expired by a running broker, and leaves the list."""
        self.unreadable: Final[list[tuple[int, int]]] = []
        """Half-open ranges of the log that the disk refuses to read, in the order in which they were met."""
        self._disk: Final = disk
        self._ours_from: Final = ours_from
        self._buffer = memoryview(bytearray(WINDOW_BYTES))
        self._scratch = memoryview(bytearray(SEARCH_BYTES + SEARCH_OVERLAP))
        self._file: ReadingFile | None = None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    # -- along the log -------------------------------------------------------------------------------------------------

    def walk(self, start: int, end: int, found: Found, *, verify_crc: bool = True) -> Stop:
        """Tell ``found`` of every record that begins in ``[start, end)`` until something is none."""
        offset = start
        while offset < end:
            segment = segment_at(self.segments, offset)
            if segment is None:
                return Stop(offset, StopReason.NO_FILE)
            try:
                stop = self._walk_file(segment, offset, end, found, verify_crc)
            except _Vanished:
                return Stop(offset, StopReason.NO_FILE)
            if stop.reason is not StopReason.REACHED:
                return stop
            offset = stop.offset
        return Stop(offset, StopReason.REACHED)

    def _walk_file(self, segment: Segment, offset: int, end: int, found: Found, verify_crc: bool) -> Stop:
        file_end = segment.end_offset
        base = window_end = offset
        view = self._buffer[:0]
        is_ours, ours_end = self._ours_from(offset)
        while offset < end and offset < file_end:
            if offset >= ours_end:
                is_ours, ours_end = self._ours_from(offset)
            if window_end < file_end and window_end - offset < BLANK_BYTES:
                base, view = offset, self._load(segment, offset, BLANK_BYTES)
                window_end = base + len(view)
            position = offset - base
            if window_end - offset < BLANK_BYTES:
                return Stop(offset, StopReason.END)
            size, magic = BLANK_RECORD.unpack_from(view, position)
            if magic == BLANK_MAGIC:
                if offset + size != file_end:
                    return Stop(offset, self._reason(offset, BLANK_BYTES, StopReason.LENGTH))
                return Stop(file_end, StopReason.REACHED)
            if magic in _MAGICS and offset + size > window_end and window_end < file_end:
                if offset + size > file_end or size > RECORD_BYTES_MAX:
                    return Stop(offset, self._reason(offset, BLANK_BYTES, StopReason.LENGTH))
                base, view, position = offset, self._load(segment, offset, size), 0
                window_end = base + len(view)
            check = _judge(view, position, offset, is_ours=is_ours, verify_crc=verify_crc)
            if check.fault is not None:
                return Stop(offset, self._reason(offset, max(size, RECORD_BYTES_MIN), StopReason[check.fault.name]))
            found(view, position, offset, check.size)
            offset += check.size
        return Stop(offset, StopReason.REACHED)

    def _reason(self, offset: int, size: int, reason: StopReason) -> StopReason:
        """The reason, unless the true one is that the disk did not give the bytes."""
        end = offset + min(size, RECORD_BYTES_MAX)
        is_unread = any(start < end and offset < stop for start, stop in self.unreadable)
        return StopReason.UNREADABLE if is_unread else reason

    # -- at one place --------------------------------------------------------------------------------------------------

    def record_at(self, offset: int, *, verify_crc: bool = True, verify_seal: bool = True) -> FoundRecord | None:
        """What lies at ``offset``; None where there is no file."""
        segment = segment_at(self.segments, offset) if offset >= 0 else None
        if segment is None:
            return None
        room = segment.end_offset - offset
        try:
            head = self._read(segment, offset, min(room, RECORD_BYTES_MIN + 256))
        except _Vanished:
            return None
        if len(head) < BLANK_BYTES:
            return FoundRecord(RecordCheck(RecordFault.END), memoryview(head))
        size, magic = BLANK_RECORD.unpack_from(head, 0)
        if magic == BLANK_MAGIC:
            fault = RecordFault.BLANK if size == room else RecordFault.LENGTH
            return FoundRecord(RecordCheck(fault, size if size == room else 0), memoryview(head))
        if magic in _MAGICS and not RECORD_BYTES_MIN <= size <= min(room, RECORD_BYTES_MAX):
            return FoundRecord(RecordCheck(RecordFault.LENGTH), memoryview(head))
        data = self._read(segment, offset, size) if magic in _MAGICS and size > len(head) else head
        is_ours = verify_seal and self._ours_from(offset).is_ours
        check = _judge(memoryview(data), 0, offset, is_ours=is_ours, verify_crc=verify_crc)
        return FoundRecord(check, memoryview(data)[: check.size] if check.is_good else memoryview(data))

    def name_at(self, offset: int) -> tuple[str, int, int] | None:
        """Topic, queue id and queue offset that the record at ``offset`` names, even if its checksum is wrong."""
        found = self.record_at(offset, verify_crc=False)
        return None if found is None or not found.check.is_good else facts_of(found.data, 0, found.check.size)[:3]

    def bytes_at(self, offset: int, length: int) -> bytes:
        """Raw bytes of one file, fewer at its end; empty where there is no file."""
        segment = segment_at(self.segments, offset) if offset >= 0 else None
        try:
            return b"" if segment is None else self._read(segment, offset, min(length, segment.end_offset - offset))
        except _Vanished:
            return b""

    def next_record(self, offset: int, end: int) -> int | None:
        """Where the first whole record at or after ``offset`` and before ``end`` begins."""
        for segment in self.segments:
            if segment.end_offset > offset and segment.base_offset < end:
                for candidate in self._candidates(segment, max(offset, segment.base_offset), end):
                    found = self.record_at(candidate)
                    if found is not None and found.check.is_good:
                        return candidate
        return None

    def count_records(self, start: int, end: int, *, verify_crc: bool = True) -> int:
        """How many whole records there are in ``[start, end)``, whatever lies between them."""
        count = 0

        def found(_view: memoryview, _position: int, _offset: int, _size: int) -> None:
            nonlocal count
            count += 1

        at = self.next_record(start, end)
        while at is not None:
            stop = self.walk(at, end, found, verify_crc=verify_crc)
            at = self.next_record(stop.offset + 1, end)
        return count

    def record_before(self, offset: int) -> int:
        """Where the last whole record at or before ``offset`` begins, or the beginning of its file."""
        segment = segment_at(self.segments, offset)
        if segment is None:
            return offset
        end = offset + 1
        while end > segment.base_offset:
            start = max(segment.base_offset, end - SEARCH_BYTES)
            for candidate in reversed(list(self._candidates(segment, start, end))):
                found = self.record_at(candidate)
                if found is not None and found.check.is_good:
                    return candidate
            end = start
        return segment.base_offset

    def _candidates(self, segment: Segment, start: int, end: int) -> Iterator[int]:
        stop = min(segment.end_offset, end)
        for chunk in range(start, stop, SEARCH_BYTES):
            data = self.bytes_at(chunk, SEARCH_BYTES + SEARCH_OVERLAP)
            yield from record_starts(data, chunk, min(SEARCH_BYTES, stop - chunk))

    def last_used(self, start: int, end: int) -> int:
        """The exclusive end of what is not zero in ``[start, end)``; ``start`` if all is."""
        last = start
        for segment in self.segments:
            begin = max(start, segment.base_offset)
            for chunk in range(begin, min(end, segment.end_offset), SEARCH_BYTES):
                used = len(self.bytes_at(chunk, min(SEARCH_BYTES, end - chunk)).rstrip(b"\0"))
                if used:
                    last = chunk + used
        return last

    # -- the disk ------------------------------------------------------------------------------------------------------

    def _open(self, segment: Segment) -> ReadingFile:
        if self._file is None or self._file.path != segment.path:
            self.close()
            try:
                self._file = self._disk.open(segment.path)
            except FileNotFoundError as exc:
                self.segments = tuple(one for one in self.segments if one.path != segment.path)
                raise _Vanished(segment.path) from exc
        return self._file

    def _load(self, segment: Segment, offset: int, bytes_min: int) -> memoryview:
        """The window that begins at ``offset``, with at least ``bytes_min`` if the file has them."""
        if bytes_min > len(self._buffer):
            self._buffer = memoryview(bytearray(bytes_min))
        target = self._buffer[: min(len(self._buffer), segment.end_offset - offset)]
        return target[: self._fill(segment, offset, target)]

    def _read(self, segment: Segment, offset: int, length: int) -> bytes:
        if length > len(self._scratch):
            self._scratch = memoryview(bytearray(length))
        target = self._scratch[:length]
        return bytes(target[: self._fill(segment, offset, target)])

    def _fill(self, segment: Segment, offset: int, target: memoryview) -> int:
        file, position = self._open(segment), offset - segment.base_offset
        try:
            return file.read_into(target, position)
        except OSError as exc:
            if exc.errno != errno.EIO:
                raise
        # Page by page, to lose no more than what is broken.
        done = 0
        while done < len(target):
            size = min(PAGE_BYTES - (position + done) % PAGE_BYTES, len(target) - done)
            page = target[done : done + size]
            try:
                count = file.read_into(page, position + done)
                page[count:] = bytes(size - count)
            except OSError as exc:
                if exc.errno != errno.EIO:
                    raise
                page[:] = bytes(size)
                self._remember(offset + done, offset + done + size)
            done += size
        return done

    def _remember(self, start: int, end: int) -> None:
        for index, (known_start, known_end) in enumerate(self.unreadable):
            if start <= known_end and known_start <= end:
                self.unreadable[index] = (min(start, known_start), max(end, known_end))
                return
        self.unreadable.append((start, end))


def facts_of(view: memoryview, position: int, size: int) -> RecordFacts:
    """The facts of a good record, by RocketMQ's delay levels: the tools have no settings."""
    return record_facts(view, position, size, _DELAY_LEVELS_MS)


def _judge(data: memoryview, position: int, offset: int, *, is_ours: bool, verify_crc: bool) -> RecordCheck:
    """The broker's own gate."""
    return check_record(data, position, physical_offset=offset, verify_crc=verify_crc, is_sealed=is_ours)
