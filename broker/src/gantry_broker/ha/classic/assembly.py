"""Raw bytes of a log, cut anywhere, put together to whole records again.

    came     ...............|..........|....|..................|
    records  |-------|------------|------------|---------|------ - -
                                                          `- waits for its rest, here, bounded

Only where a record ends is found out here. Whether it is one, by its checksum and its own offset, is the log's
business, which looks at every one before it takes it. A length that cannot be ends the stream before a byte of it is
waited for.
"""

from __future__ import annotations

from typing import Final, final

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
