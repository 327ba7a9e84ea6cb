"""A slave's half of RocketMQ's replication stream, for a master that is a Java broker: bytes in, bytes out, no socket.

    COMPARING -> COPYING            or at once COPYING, where there is nothing to compare

What is here already comes first, as far as it was asked for, and must be the same; then whole records go into the
store, which checks each. Reports say how far the log is, and nothing before it is known to be the master's.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final, final

from gantry_broker.ha.classic.assembly import RecordAssembly
from gantry_broker.ha.classic.chunks import REPORT, Chunk, ChunkReader
from gantry_broker.ha.classic.start import Start
from gantry_broker.ha.history import CannotFollow
from gantry_broker.ha.slave_session import SlaveLog


class Phase(Enum):
    """Where the stream is."""

    COMPARING = auto()
    COPYING = auto()


@final
class ClassicSlaveSession:
    """One stream. Owned by the loop."""

    def __init__(self, log: SlaveLog, start: Start, file_bytes: int) -> None:
        """What ``start`` asks of the store is done."""
        first = b"\0" if (start.request, start.end) == (1, 0) else b""
        self.phase = Phase.COMPARING if start.request < start.end else Phase.COPYING
        self._log: Final = log
        self._start: Final = start
        self._reader: Final = ChunkReader(start.request, file_bytes)
        self._assembly: Final = RecordAssembly(start.end, file_bytes, first)
        self._reported = start.request

    def __repr__(self) -> str:
        return f"<ClassicSlaveSession {self.phase.name} offset={self._reader.offset}>"

    @property
    def is_streaming(self) -> bool:
        return self.phase is Phase.COPYING

    @property
    def buffered(self) -> int:
        """How many bytes wait for the rest of their record."""
        return self._assembly.buffered

    def begin(self) -> bytes:
        """The first bytes of the connection."""
        return REPORT.pack(self._start.request)

    def receive(self, data: bytes) -> bytes:
        """What to answer. Raises ``StreamBroken``, ``CannotFollow``, or what the store raises."""
        fresh = b"".join([self._compared(chunk) for chunk in self._reader.feed(data)])
        offset = self._assembly.offset
        records = self._assembly.feed(fresh)
        if records:
            self._log.append(records, offset)
        return self.ack()

    def _compared(self, chunk: Chunk) -> bytes:
        """What of it is new; the rest must be what we have."""
        if self.phase is Phase.COPYING:
            return chunk.data
        offset, data, end = chunk.offset, memoryview(chunk.data), self._start.end
        while data and offset < end:
            own = self._log.read(offset, min(len(data), end - offset))
            if not own or own != data[: len(own)]:
                text = f"this log, up to {end}, is another one than the master's: they differ behind {offset}"
                raise CannotFollow(text)
            offset, data = offset + len(own), data[len(own) :]
        if offset >= end:
            self.phase = Phase.COPYING
        return bytes(data)

    def ack(self) -> bytes:
        """How far the log is; nothing if that was said before."""
        return b"" if self._position() == self._reported else self.report()

    def report(self) -> bytes:
        """How far the log is, again if need be: silence would end the stream."""
        self._reported = self._position()
        return REPORT.pack(self._reported)

    def _position(self) -> int:
        """While nothing is proved, what was asked for is all that is said."""
        return max(self._log.received, self._start.request) if self.is_streaming else self._start.request
