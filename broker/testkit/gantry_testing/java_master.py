"""A model of RocketMQ's master as a slave sees it, in memory: a log without seals, and its replication stream.

It follows RocketMQ's behaviour, and shares no code with Gantry's master and slave of that stream: a record may be split
anywhere, a chunk never crosses a file's end, a request of 0 means the last file, and only eight bytes of the blank that
closes a file have a meaning.
"""

from __future__ import annotations

import struct
from typing import Final, final

import msgspec

from gantry_broker.ha.classic.slave_session import MasterRange
from gantry_testing.store_world import STORE_HOST, TINY
from gantry_wire.message import BLANK_MAGIC, BLANK_RECORD, StoredMessage, encode_record

FILE_BYTES: Final = TINY.mapped_file_size_commit_log


@final
class JavaMaster:
    """A log as RocketMQ writes it, without seals, and its stream as RocketMQ's master sends it."""

    def __init__(self, begin: int = 0) -> None:
        self.begin = begin
        self.log = b""
        self.starts: list[int] = []
        """The offset at which each message begins."""

        self.acks: list[int] = []
        """Every offset that a slave has reported, over all connections."""

        self._requested = -1
        """The first offset that the slave has reported on this connection; -1 before that."""

        self._sent = -1
        """The offset of the next byte to send."""

        self._reports = b""
        """Received bytes that are no complete report yet."""

    @property
    def end(self) -> int:
        """The end of the log."""
        return self.begin + len(self.log)

    @property
    def range(self) -> MasterRange:
        """The range of the log as it reports it by remoting."""
        return MasterRange(self.begin, self.end)

    def bodies(self) -> list[bytes]:
        """The bodies of all messages that were sent."""
        return [b"java %d" % number + bytes(number % 300) for number in range(len(self.starts))]

    def expire(self, begin: int) -> None:
        """Delete the oldest files; a slave that needs them next gets no more data."""
        self.log = self.log[begin - self.begin :]
        self.begin = begin

    def send(self, count: int = 1, topic: str = "orders") -> None:
        """Append messages one by one."""
        for _ in range(count):
            number = len(self.starts)
            message = StoredMessage(
                topic=topic, queue_id=0, queue_offset=number, physical_offset=self.end,
                body=b"java %d" % number + bytes(number % 300), store_timestamp_ms=1_700_000_000_000 + number,
                store_host=STORE_HOST, properties_bytes=b"KEYS\x01k%d\x02" % number,
            )  # fmt: skip
            room = FILE_BYTES - self.end % FILE_BYTES
            if len(encode_record(message)) + 8 > room:
                # Only eight bytes belong to the blank; the rest of the file has arbitrary content.
                self.log += BLANK_RECORD.pack(room, BLANK_MAGIC) + b"\xda" * (room - 8)
                message = msgspec.structs.replace(message, physical_offset=self.end)
            self.starts.append(self.end)
            self.log += encode_record(message)

    def fill(self, end: int) -> None:
        """Append messages until the log reaches ``end``."""
        while self.end < end:
            self.send()

    def accept_connection(self) -> None:
        """Begin a new connection, on which nothing was requested yet."""
        self._requested = self._sent = -1
        self._reports = b""

    def receive(self, data: bytes) -> None:
        """Handle offsets from the slave."""
        self._reports += data
        while len(self._reports) >= 8:
            (offset,) = struct.unpack_from(">q", self._reports)
            self._reports = self._reports[8:]
            self.acks.append(offset)
            if self._requested < 0:
                self._requested = offset
                self._sent = offset or self.end - self.end % FILE_BYTES

    def heartbeat(self) -> bytes:
        """Return a heartbeat of the stream."""
        return struct.pack(">qi", self._sent, 0)

    def pump(self, batch_bytes: int = 4_096) -> bytes:
        """Return all pending data, in chunks that end at a file's end or anywhere."""
        out = b""
        while self._requested >= 0 and self.begin <= self._sent < self.end:
            size = min(batch_bytes, self.end - self._sent, FILE_BYTES - self._sent % FILE_BYTES)
            place = self._sent - self.begin
            out += struct.pack(">qi", self._sent, size) + self.log[place : place + size]
            self._sent += size
        return out
