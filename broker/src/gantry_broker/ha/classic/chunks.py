"""The bytes of RocketMQ's replication stream.

    slave                                          master
      | offset (8) --------------------------------> |   the first one asks, the others acknowledge
      | <------------- offset (8) | size (4) | bytes |   raw bytes of the log; size 0 is a heartbeat

A chunk never reaches over the end of a log file, and may end in the middle of a record. Every head names the offset of
the next byte, so that each side can see that they still agree.

What comes is put together to whole records again:

    came     ...............|..........|....|..................|
    records  |-------|------------|------------|---------|------ - -
                                                          `- waits for its rest, here, bounded

Only where a record ends is found out here. Whether it is one, by its checksum and its own offset, is the log's
business, which verifies every one before it takes it. A length that cannot be ends the stream before a byte of it is
waited for.
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
    MESSAGE_MAGIC_V1,
    MESSAGE_MAGIC_V2,
    RECORD_BYTES_MAX,
    RECORD_BYTES_MIN,
)

REPORT: Final = struct.Struct(">q")
CHUNK_HEAD: Final = struct.Struct(">qi")
assert (REPORT.size, CHUNK_HEAD.size) == (8, 12)

CHUNK_BYTES_MAX: Final = 1 << 20
"""What we send in one. RocketMQ's slave has a buffer of 4 MiB: a larger chunk never becomes whole there."""

REPORT_INTERVAL_S: Final = 5.0
"""Either side sends something at least so often."""


class Chunk(NamedTuple):
    """Some bytes of the log; as much of a chunk as came, since the rest is not waited for. Or a heartbeat."""

    offset: int
    data: bytes


@final
class ChunkReader:
    """Takes a master's stream apart, and sees that each byte is the next one. Holds less than a head."""

    def __init__(self, offset: int, file_bytes: int) -> None:
        self.offset = offset
        """Of the next byte of the log."""

        self._file_bytes: Final = file_bytes
        self._head = b""
        self._missing = 0

    def feed(self, data: bytes) -> Iterator[Chunk]:
        """What came, piece by piece. Raises ``StreamBroken`` at the first head that cannot be."""
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
                self._missing = self._checked(*CHUNK_HEAD.unpack(head))
                if not self._missing:
                    yield Chunk(self.offset, b"")

    def _checked(self, offset: int, size: int) -> int:
        if offset != self.offset:
            raise StreamBroken(f"it sends what lies at {offset}, and {self.offset} comes next")
        if not 0 <= size <= self._file_bytes - offset % self._file_bytes:
            text = f"it sends {size} bytes at {offset}, over the end of a log file of {self._file_bytes}"
            raise StreamBroken(f"{text}: mappedFileSizeCommitLog must be the same")
        return size


@final
class RecordAssembly:
    """Of one stream."""

    def __init__(self, offset: int, file_bytes: int, start: bytes = b"") -> None:
        """``start`` is what is known of the log from ``offset`` on and will not come."""
        self.offset = offset
        """Where the first byte lies that was not given out."""

        self._file_bytes: Final = file_bytes
        self._data = bytearray(start)

    @property
    def buffered(self) -> int:
        """How many bytes wait for the rest of their record."""
        return len(self._data)

    def feed(self, data: bytes) -> bytes:
        """Every record that is whole now, in one piece. Raises ``StreamBroken``."""
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
                text = f"a file ends at {offset + size}, and here at {offset + room}"
                raise StreamBroken(f"{text}: mappedFileSizeCommitLog must be the same")
        elif magic not in (MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2) or not RECORD_BYTES_MIN <= size <= room:
            raise StreamBroken(f"what lies at {offset} is no record: {size} bytes, magic {magic & 0xFFFFFFFF:#x}")
        if size > RECORD_BYTES_MAX:
            raise StreamBroken(f"the record at {offset} has {size} bytes, more than {RECORD_BYTES_MAX}")
        return size
