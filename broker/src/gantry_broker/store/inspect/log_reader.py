"""Reading of a commit log through a window, record by record or at one offset, in bounded memory, on a bad disk too.

    file    [base ...................[ window )........................ end)
                                      `- 8 MiB, read at once, moved along; the only large memory

Records are checked by ``check_record``, which the broker uses as well, so the two cannot disagree. Only the reading
differs: a page that the disk cannot read (``EIO``) is taken as zeros and recorded, so that one bad sector costs the
record that contains it, and not the rest of the log.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import Final, NamedTuple, final

from gantry_broker.ports.reading import ReadingDisk, ReadingFile
from gantry_broker.store.record_dispatch import RecordFields, parse_record_fields
from gantry_broker.store.recovery import SEARCH_BYTES, SEARCH_OVERLAP, Seals, record_starts
from gantry_broker.store.settings import StoreSettings
from gantry_store_files.segments import Segment, segment_at
from gantry_wire.message import (
    BLANK_BYTES,
    BLANK_MAGIC,
    BLANK_RECORD,
    MESSAGE_MAGICS,
    RECORD_BYTES_MAX,
    RECORD_BYTES_MIN,
    RecordCheck,
    RecordFault,
    check_record,
)

WINDOW_BYTES: Final = 8 << 20
"""The size of the window, the part of the log that is in memory."""
PAGE_BYTES: Final = 4096
"""The unit in which an unreadable part of the disk is skipped."""
_DELAY_LEVELS_MS: Final = StoreSettings().delay_levels_ms

RecordCallback = Callable[[memoryview, int, int, int], None]
"""A callback that takes (view, position in it, physical offset, size) of a whole record. It must not keep the view."""


class _FileVanished(Exception):
    """A file of the log was deleted meanwhile."""


class StopReason(StrEnum):
    """Why a walk through the log ended."""

    REACHED = "the requested end was reached"
    END = "zeros: the log ends here"
    MAGIC = "no record begins here: the magic is unknown"
    LENGTH = "the record length is invalid"
    OFFSET = "the record contains another offset"
    CRC = "the body does not match its CRC"
    SEAL = "the record does not match its seal, or has none"
    NO_FILE = "no log file holds this offset"
    UNREADABLE = "read error of the disk"


class Stop(NamedTuple):
    """The end of a walk through the log."""

    offset: int
    reason: StopReason


class FoundRecord(NamedTuple):
    """The bytes at one offset of the log, with the result of their check."""

    check: RecordCheck
    data: memoryview
    """The record's bytes if the check is good; else as many bytes as it claims, or up to some hundred."""


@final
class LogReader:
    """Reads the log of one store. Used by one thread; holds one open file and one window."""

    def __init__(self, disk: ReadingDisk, segments: Sequence[Segment], ownership_at: Seals) -> None:
        self.segments = tuple(segments)
        """The files of the log. A file that a running broker deletes meanwhile is removed from the list."""
        self.unreadable: Final[list[tuple[int, int]]] = []
        """Half-open ranges of the log that the disk cannot read, in the order in which they were found."""
        self._disk: Final = disk
        self._ownership_at: Final = ownership_at
        self._buffer = memoryview(bytearray(WINDOW_BYTES))
        self._scratch = memoryview(bytearray(SEARCH_BYTES + SEARCH_OVERLAP))
        self._file: ReadingFile | None = None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    # -- along the log -------------------------------------------------------------------------------------------------

    def walk(self, start: int, end: int, found: RecordCallback, *, verify_crc: bool = True) -> Stop:
        """Call ``found`` for every record that begins in ``[start, end)``, up to the first invalid one.

        Without ``verify_crc`` checksums are not checked.
        """
        offset = start
        while offset < end:
            segment = segment_at(self.segments, offset)
            if segment is None:
                return Stop(offset, StopReason.NO_FILE)
            try:
                stop = self._walk_file(segment, offset, end, found, verify_crc)
            except _FileVanished:
                return Stop(offset, StopReason.NO_FILE)
            if stop.reason is not StopReason.REACHED:
                return stop
            offset = stop.offset
        return Stop(offset, StopReason.REACHED)

    def _walk_file(self, segment: Segment, offset: int, end: int, found: RecordCallback, verify_crc: bool) -> Stop:
        file_end = segment.end_offset
        base = window_end = offset
        view = self._buffer[:0]
        is_ours, ours_end = self._ownership_at(offset)
        while offset < end and offset < file_end:
            if offset >= ours_end:
                is_ours, ours_end = self._ownership_at(offset)
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
            if magic in MESSAGE_MAGICS and offset + size > window_end and window_end < file_end:
                if offset + size > file_end or size > RECORD_BYTES_MAX:
                    return Stop(offset, self._reason(offset, BLANK_BYTES, StopReason.LENGTH))
                base, view, position = offset, self._load(segment, offset, size), 0
                window_end = base + len(view)
            check = _check(view, position, offset, is_ours=is_ours, verify_crc=verify_crc)
            if check.fault is not None:
                return Stop(offset, self._reason(offset, max(size, RECORD_BYTES_MIN), StopReason[check.fault.name]))
            found(view, position, offset, check.size)
            offset += check.size
        return Stop(offset, StopReason.REACHED)

    def _reason(self, offset: int, size: int, reason: StopReason) -> StopReason:
        """Return ``reason``, or ``UNREADABLE`` if the disk could not read the bytes."""
        end = offset + min(size, RECORD_BYTES_MAX)
        is_unread = any(start < end and offset < stop for start, stop in self.unreadable)
        return StopReason.UNREADABLE if is_unread else reason

    # -- at one place --------------------------------------------------------------------------------------------------

    def record_at(self, offset: int, *, verify_crc: bool = True, verify_seal: bool = True) -> FoundRecord | None:
        """Return the record or the invalid bytes at ``offset``; None if no file holds it.

        Without ``verify_crc`` its checksums are not checked; without ``verify_seal`` its seal may be missing.
        """
        segment = segment_at(self.segments, offset) if offset >= 0 else None
        if segment is None:
            return None
        room = segment.end_offset - offset
        try:
            head = self._read(segment, offset, min(room, RECORD_BYTES_MIN + 256))
        except _FileVanished:
            return None
        if len(head) < BLANK_BYTES:
            return FoundRecord(RecordCheck(RecordFault.END), memoryview(head))
        size, magic = BLANK_RECORD.unpack_from(head, 0)
        if magic == BLANK_MAGIC:
            fault = RecordFault.BLANK if size == room else RecordFault.LENGTH
            return FoundRecord(RecordCheck(fault, size if size == room else 0), memoryview(head))
        if magic in MESSAGE_MAGICS and not RECORD_BYTES_MIN <= size <= min(room, RECORD_BYTES_MAX):
            return FoundRecord(RecordCheck(RecordFault.LENGTH), memoryview(head))
        data = self._read(segment, offset, size) if magic in MESSAGE_MAGICS and size > len(head) else head
        is_ours = verify_seal and self._ownership_at(offset).is_ours
        check = _check(memoryview(data), 0, offset, is_ours=is_ours, verify_crc=verify_crc)
        return FoundRecord(check, memoryview(data)[: check.size] if check.is_good else memoryview(data))

    def identify_message(self, offset: int) -> tuple[str, int, int] | None:
        """Return topic, queue id and queue offset in the record at ``offset``, even if its checksum is wrong."""
        found = self.record_at(offset, verify_crc=False)
        return (
            None
            if found is None or not found.check.is_good
            else decode_record_fields(found.data, 0, found.check.size)[:3]
        )

    def bytes_at(self, offset: int, length: int) -> bytes:
        """Return raw bytes of one file, fewer at its end; empty if no file holds ``offset``."""
        segment = segment_at(self.segments, offset) if offset >= 0 else None
        try:
            return b"" if segment is None else self._read(segment, offset, min(length, segment.end_offset - offset))
        except _FileVanished:
            return b""

    def next_record(self, offset: int, end: int) -> int | None:
        """Return the start of the first whole record in ``[offset, end)``; None if there is none."""
        for segment in self.segments:
            if segment.end_offset > offset and segment.base_offset < end:
                for candidate in self._candidates(segment, max(offset, segment.base_offset), end):
                    found = self.record_at(candidate)
                    if found is not None and found.check.is_good:
                        return candidate
        return None

    def count_records(self, start: int, end: int, *, verify_crc: bool = True) -> int:
        """Return the number of whole records in ``[start, end)``, skipping damage between them."""
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
        """Return the start of the last whole record at or before ``offset``, or of its file if there is none."""
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

    def find_used_end(self, start: int, end: int) -> int:
        """Return the exclusive end of the bytes in ``[start, end)`` that are not zero; ``start`` if all are zero."""
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
                raise _FileVanished(segment.path) from exc
        return self._file

    def _load(self, segment: Segment, offset: int, bytes_min: int) -> memoryview:
        """Read the window that begins at ``offset``, with at least ``bytes_min`` bytes if the file has them."""
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
        # Reading page by page loses no more than the bad pages.
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
                self._add_unreadable(offset + done, offset + done + size)
            done += size
        return done

    def _add_unreadable(self, start: int, end: int) -> None:
        for index, (known_start, known_end) in enumerate(self.unreadable):
            if start <= known_end and known_start <= end:
                self.unreadable[index] = (min(start, known_start), max(end, known_end))
                return
        self.unreadable.append((start, end))


def decode_record_fields(view: memoryview, position: int, size: int) -> RecordFields:
    """Parse a good record, with RocketMQ's delay levels, since the tools have no settings."""
    return parse_record_fields(view, position, size, _DELAY_LEVELS_MS)


def _check(data: memoryview, position: int, offset: int, *, is_ours: bool, verify_crc: bool) -> RecordCheck:
    """Check a record as the broker does."""
    return check_record(data, position, physical_offset=offset, verify_crc=verify_crc, is_sealed=is_ours)
