"""The bytes of RocketMQ's replication stream.

    slave                                          master
      | offset (8) --------------------------------> |   the first one is a request, the others are acks
      | <------------- offset (8) | size (4) | bytes |   raw bytes of the log; size 0 is a heartbeat

A chunk never crosses the end of a log file, and may end in the middle of a record. Every head holds the offset of the
next byte, so that each side can check that they still agree.

Received bytes are assembled into whole records again:

    received ...............|..........|....|..................|
    records  |-------|------------|------------|---------|------ - -
                                                          `- waits for its rest, here, bounded

Only the end of each record is determined here. The log verifies every record's checksum and offset before it accepts
it. An impossible length ends the stream as soon as the head of that record has arrived.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple, final

from gantry_broker.ha.frames import StreamBroken
from gantry_wire.message import (
    BLANK_BYTES,
    BLANK_MAGIC,
    BLANK_RECORD,
    MESSAGE_MAGICS,
    RECORD_BYTES_MAX,
    RECORD_BYTES_MIN,
)

REPORT: Final = struct.Struct(">q")
"""What a slave sends: an offset of the log."""
CHUNK_HEAD: Final = struct.Struct(">qi")
"""The head of a chunk: the offset of its first byte, and its size."""
assert (REPORT.size, CHUNK_HEAD.size) == (8, 12)

CHUNK_BYTES_MAX: Final = 1 << 20
"""Largest chunk that is sent. RocketMQ's slave has a buffer of 4 MiB, and never completes a larger one."""

REPORT_INTERVAL_S: Final = 5.0
"""Longest time for which either side sends nothing."""


class Chunk(NamedTuple):
    """Some bytes of the log, or a heartbeat. A chunk of the stream is passed on in parts, as they arrive."""

    offset: int
    """The offset of its first byte in the log."""

    data: bytes


@final
class ChunkReader:
    """Parses a master's stream, and checks that each byte is the next one. Buffers less than a head."""

    def __init__(self, offset: int, file_bytes: int) -> None:
        self.offset = offset
        """Log offset of the next byte."""

        self._file_bytes: Final = file_bytes
        self._head = b""
        self._missing = 0

    def feed(self, data: bytes) -> Iterator[Chunk]:
        """Return the received data in pieces. Raises ``StreamBroken`` at the first invalid head."""
        start = 0
        while start < len(data):
            if self._missing:
                piece = data[start : start + self._missing]
                start += len(piece)
                self._missing -= len(piece)
                offset = self.offset
                self.offset += len(piece)
                yield Chunk(offset, piece)
                continue
            taken = data[start : start + CHUNK_HEAD.size - len(self._head)]
            start += len(taken)
            self._head += taken
            if len(self._head) == CHUNK_HEAD.size:
                head, self._head = self._head, b""
                self._missing = self._check_head(*CHUNK_HEAD.unpack(head))
                if not self._missing:
                    yield Chunk(self.offset, b"")

    def _check_head(self, offset: int, size: int) -> int:
        if offset != self.offset:
            raise StreamBroken(f"the master sent offset {offset}, but offset {self.offset} was expected")
        if not 0 <= size <= self._file_bytes - offset % self._file_bytes:
            text = f"the master sent {size} bytes at offset {offset}, beyond a log file of {self._file_bytes} bytes"
            raise StreamBroken(f"{text}: mappedFileSizeCommitLog must be the same")
        return size


@final
class RecordAssembler:
    """Assembles the bytes of one stream into whole records."""

    def __init__(self, offset: int, file_bytes: int, start: bytes = b"") -> None:
        """Create an assembler. ``start`` is the known bytes of the log at ``offset``, which the stream lacks."""
        self.offset = offset
        """Offset of the first byte that was not returned yet."""

        self._file_bytes: Final = file_bytes
        self._data = bytearray(start)

    @property
    def buffered(self) -> int:
        """Number of bytes that wait for the rest of their record."""
        return len(self._data)

    def feed(self, data: bytes) -> bytes:
        """Return every complete record, in one piece. Raises ``StreamBroken``."""
        self._data += data
        end, available = 0, len(self._data)
        while available - end >= BLANK_BYTES:
            size = self._size_at(end)
            if end + size > available:
                break
            end += size
        records = bytes(memoryview(self._data)[:end])
        del self._data[:end]
        self.offset += end
        return records

    def _size_at(self, position: int) -> int:
        size: int
        size, magic = BLANK_RECORD.unpack_from(self._data, position)
        offset = self.offset + position
        room = self._file_bytes - offset % self._file_bytes
        if magic == BLANK_MAGIC:
            if size != room:
                text = f"the master's log file ends at {offset + size}, but this broker's at {offset + room}"
                raise StreamBroken(f"{text}: mappedFileSizeCommitLog must be the same")
        elif magic not in MESSAGE_MAGICS or not RECORD_BYTES_MIN <= size <= room:
            raise StreamBroken(f"invalid record at offset {offset}: {size} bytes, magic {magic & 0xFFFFFFFF:#x}")
        if size > RECORD_BYTES_MAX:
            raise StreamBroken(f"the record at offset {offset} has {size} bytes, more than {RECORD_BYTES_MAX}")
        return size
