"""A slave's half of RocketMQ's replication stream, for a master that is a Java broker: bytes in, bytes out, no socket.

    COMPARING -> COPYING            or COPYING at once, where there is nothing to compare

The bytes that the slave has already arrive first, as far as they were requested, and must be the same; then whole
records are appended to the store, which verifies each. Reports hold the end of the log, but nothing beyond the request
until the log is known to be the master's.

The start of the stream, and the history that goes with it, is a pure decision:

    own log      [begin ------------------------------ end)
    master's log      [begin ------------------------------------- end)
                                     |--- compared ---|--- copied --->

The stream has no handshake, but a slave may request any offset. So the slave requests its own last bytes and compares
them as they arrive: a log that has the same last bytes has the same earlier bytes. Bytes that follow were not written
by a Gantry master, and the list of epochs records that, so that no seals are expected in them.

An empty disk gets the whole log. RocketMQ's master takes an offset of 0 for "the last file is enough", so the copy
begins at 1 if the log begins at 0, and the first byte is added here. It is the high byte of a record's length, which is
always zero; if it were not, the first record's verification would fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Final, NamedTuple, final

from gantry_broker.ha.classic.chunks import REPORT, Chunk, ChunkReader, RecordAssembler
from gantry_broker.ha.history import TAIL_BYTES, CannotFollow, History
from gantry_broker.ha.slave_session import SlaveLog
from gantry_broker.store.identity import Epoch


class MasterRange(NamedTuple):
    """The range of the master's log, as the master reports it."""

    begin: int
    end: int


class StreamStart(NamedTuple):
    """The decision how a stream begins."""

    request: int
    """The first offset that is requested."""

    end: int
    """End of the slave's own log, up to which bytes are compared; for a copy of the whole log, where that begins."""

    epochs: list[Epoch]
    """The history of the slave's log from then on."""

    is_restart: bool = False
    """Whether the slave's whole log is deleted first, and the copy begins at ``end``."""


def plan_stream_start(own: History, master: MasterRange, file_bytes: int) -> StreamStart:
    """Decide how the stream begins. Raises ``CannotFollow``."""
    if master.begin % file_bytes:
        text = f"the master's log begins at {master.begin}, which is not a multiple of {file_bytes} bytes"
        raise CannotFollow(f"{text}: mappedFileSizeCommitLog must be the same")
    is_empty = own.begin == own.end
    if is_empty or (own.end < master.begin and not _ends_with_gantry_records(own)):
        is_restart = own.end != master.begin
        return StreamStart(
            master.begin or 1, master.begin, foreign_epochs(own.epochs, master.begin, is_restart), is_restart
        )
    ours = f"this log is {own.begin} to {own.end}"
    if own.end > master.end:
        raise CannotFollow(f"{ours}, but the master's is only {master.begin} to {master.end}")
    request = max(own.begin, master.begin, own.end - TAIL_BYTES)
    if own.end <= master.begin and _ends_with_gantry_records(own):
        raise CannotFollow(f"{ours}, written by a Gantry master, but the master's log begins only at {master.begin}")
    return StreamStart(request or 1, own.end, foreign_epochs(own.epochs, own.end))


def foreign_epochs(epochs: Sequence[Epoch], end: int, is_restart: bool = False) -> list[Epoch]:
    """Return the history of a log that another master continues at ``end``, without empty epochs.

    With ``is_restart`` the log has nothing before ``end``, so none of its epochs is kept.
    """
    kept = [] if is_restart else [epoch for epoch in epochs if epoch.start < end]
    if not kept or kept[-1].is_ours:
        kept.append(Epoch(max((epoch.epoch for epoch in epochs), default=0) + 1, end, is_ours=False))
    return kept


def _ends_with_gantry_records(own: History) -> bool:
    """Return whether a Gantry master wrote the end of the log."""
    written = [epoch for epoch in own.epochs if epoch.start < own.end]
    return bool(written) and written[-1].is_ours


class Phase(Enum):
    """The phases of a stream from a Java master."""

    COMPARING = auto()
    """The bytes arrive that the slave has already."""

    COPYING = auto()
    """New bytes arrive, which are appended."""


@final
class ClassicSlaveSession:
    """One replication stream from a Java master. Owned by the loop."""

    def __init__(self, log: SlaveLog, start: StreamStart, file_bytes: int) -> None:
        """Create a session for a store that is prepared as ``start`` demands."""
        first = b"\0" if (start.request, start.end) == (1, 0) else b""
        self.phase = Phase.COMPARING if start.request < start.end else Phase.COPYING
        self._log: Final = log
        self._start: Final = start
        self._reader: Final = ChunkReader(start.request, file_bytes)
        self._assembly: Final = RecordAssembler(start.end, file_bytes, first)
        self._reported = start.request

    def __repr__(self) -> str:
        return f"<ClassicSlaveSession {self.phase.name} offset={self._reader.offset}>"

    @property
    def is_streaming(self) -> bool:
        return self.phase is Phase.COPYING

    @property
    def buffered(self) -> int:
        """Number of bytes that wait for the rest of their record."""
        return self._assembly.buffered

    def begin(self) -> bytes:
        """Return the first bytes to send on the connection."""
        return REPORT.pack(self._start.request)

    def receive(self, data: bytes) -> bytes:
        """Handle received data, and return the answer.

        Raises ``StreamBroken``, ``CannotFollow``, and the errors of the store.
        """
        fresh = b"".join([self._compare_chunk(chunk) for chunk in self._reader.feed(data)])
        offset = self._assembly.offset
        records = self._assembly.feed(fresh)
        if records:
            self._log.append(records, offset)
        return self.ack()

    def _compare_chunk(self, chunk: Chunk) -> bytes:
        """Return the new part of a chunk; raise if the rest differs from the own log."""
        if self.phase is Phase.COPYING:
            return chunk.data
        offset, data, end = chunk.offset, memoryview(chunk.data), self._start.end
        while data and offset < end:
            own = self._log.read(offset, min(len(data), end - offset))
            if not own or own != data[: len(own)]:
                text = f"this log, which ends at {end}, differs from the master's after offset {offset}"
                raise CannotFollow(text)
            offset, data = offset + len(own), data[len(own) :]
        if offset >= end:
            self.phase = Phase.COPYING
        return bytes(data)

    def ack(self) -> bytes:
        """Return a report of the log's end; empty if the same end was reported before."""
        return b"" if self._position() == self._reported else self.report()

    def report(self) -> bytes:
        """Return a report of the log's end, even an unchanged one: silence would end the stream."""
        self._reported = self._position()
        return REPORT.pack(self._reported)

    def _position(self) -> int:
        """Return the end to report: only the requested offset until the comparison is complete."""
        return max(self._log.received, self._start.request) if self.is_streaming else self._start.request
