"""RocketMQ's master as a slave sees it, in memory: a log without seals, and the stream of it.

Written from what RocketMQ does, apart from our own halves of that stream: a record may be cut anywhere, a chunk never
reaches over a file's end, a request of 0 means the last file, and of the blank that closes a file only eight bytes say
anything.
"""

from __future__ import annotations

import dataclasses
import struct
from typing import Final, final

from gantry_broker.ha.classic.slave_session import MasterRange
from gantry_testing.store_world import STORE_HOST, TINY
from gantry_wire.message import BLANK_MAGIC, BLANK_RECORD, StoredMessage, encode_record

FILE_BYTES: Final = TINY.mapped_file_size_commit_log


@final
class JavaMaster:
    """A log as RocketMQ writes it, without seals, and the stream of it as RocketMQ's master sends it."""

    def __init__(self, begin: int = 0) -> None:
        self.begin = begin
        self.log = b""
        self.starts: list[int] = []
        """Where each message begins."""

        self.acks: list[int] = []
        """Every offset that a slave has reported, over all connections."""

        self._requested = -1
        self._sent = -1
        self._reports = b""

    @property
    def end(self) -> int:
        """Of the log."""
        return self.begin + len(self.log)

    @property
    def range(self) -> MasterRange:
        """What it says of its log by remoting."""
        return MasterRange(self.begin, self.end)

    def bodies(self) -> list[bytes]:
        """Of all messages that were sent."""
        return [b"java %d" % number + bytes(number % 300) for number in range(len(self.starts))]

    def expire(self, begin: int) -> None:
        """Its oldest files are deleted; whoever was to get them next gets nothing any more."""
        self.log = self.log[begin - self.begin :]
        self.begin = begin

    def send(self, count: int = 1, topic: str = "orders") -> None:
        """Append messages, one by one."""
        for _ in range(count):
            number = len(self.starts)
            message = StoredMessage(
                topic=topic, queue_id=0, queue_offset=number, physical_offset=self.end,
                body=b"java %d" % number + bytes(number % 300), store_timestamp_ms=1_700_000_000_000 + number,
                store_host=STORE_HOST, properties_bytes=b"KEYS\x01k%d\x02" % number,
            )  # fmt: skip
            room = FILE_BYTES - self.end % FILE_BYTES
            if len(encode_record(message)) + 8 > room:
                # Only eight bytes are the blank's; the rest of the file is whatever lay there.
                self.log += BLANK_RECORD.pack(room, BLANK_MAGIC) + b"\xda" * (room - 8)
                message = dataclasses.replace(message, physical_offset=self.end)
            self.starts.append(self.end)
            self.log += encode_record(message)

    def fill(self, end: int) -> None:
        """Messages until the log has come to ``end``."""
        while self.end < end:
            self.send()

    def connected(self) -> None:
        """A new connection: nothing was asked for on it."""
        self._requested = self._sent = -1
        self._reports = b""

    def receive(self, data: bytes) -> None:
        """Offsets, from the slave."""
        self._reports += data
        while len(self._reports) >= 8:
            (offset,) = struct.unpack_from(">q", self._reports)
            self._reports = self._reports[8:]
            self.acks.append(offset)
            if self._requested < 0:
                self._requested = offset
                self._sent = offset or self.end - self.end % FILE_BYTES

    def beat(self) -> bytes:
        """A heartbeat."""
        return struct.pack(">qi", self._sent, 0)

    def pump(self, batch_bytes: int = 4_096) -> bytes:
        """Everything that there is, in chunks that end at a file's end or anywhere."""
        out = b""
        while self._requested >= 0 and self.begin <= self._sent < self.end:
            size = min(batch_bytes, self.end - self._sent, FILE_BYTES - self._sent % FILE_BYTES)
            place = self._sent - self.begin
            out += struct.pack(">qi", self._sent, size) + self.log[place : place + size]
            self._sent += size
        return out
