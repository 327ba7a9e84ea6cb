"""A slave's half of RocketMQ's replication stream, for a master that is a Java broker: bytes in, bytes out, no socket.

    COMPARING -> COPYING            or at once COPYING, where there is nothing to compare

What is here already comes first, as far as it was asked for, and must be the same; then whole records go into the
store, which checks each. Reports say how far the log is, and nothing before it is known to be the master's.

Where following begins, and with which history, is a pure decision:

    own log      [begin ------------------------------ end)
    master's log      [begin ------------------------------------- end)
                                     |--- compared ---|--- copied --->

The stream has no handshake, but a slave may ask for any offset. So we ask for the last bytes that we have already and
compare them as they come: a log that has the same bytes has all that came before them. What then follows was not
written by us, and the list of epochs records that, so that no seals are expected in it.

An empty disk gets the whole log. RocketMQ's master takes an offset of 0 for "the last file is enough", so the copy
begins at 1 if the log begins at 0, and the first byte is put before it here. It is the high byte of a record's length,
always zero; if not, the first record's checks would say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Final, NamedTuple, final

from gantry_broker.ha.classic.chunks import REPORT, Chunk, ChunkReader, RecordAssembly
from gantry_broker.ha.history import TAIL_BYTES, CannotFollow, History
from gantry_broker.ha.slave_session import SlaveLog
from gantry_broker.store.identity import Epoch


class MasterRange(NamedTuple):
    """The range of the master's log, as it reports it."""

    begin: int
    end: int


class Start(NamedTuple):
    """How to begin."""

    request: int
    """The first offset that is asked for."""

    end: int
    """Up to where our log is there already, and is compared."""

    epochs: list[Epoch]
    is_restart: bool = False
    """Whether all of our log goes first, and begins anew at ``end``."""


def plan_start(own: History, master: MasterRange, file_bytes: int) -> Start:
    """Raises ``CannotFollow``."""
    if master.begin % file_bytes:
        text = f"the master's log begins at {master.begin}, where no file of {file_bytes} bytes does"
        raise CannotFollow(f"{text}: mappedFileSizeCommitLog must be the same")
    is_empty = own.begin == own.end
    if is_empty or (own.end < master.begin and not _is_tail_ours(own)):
        is_restart = own.end != master.begin
        return Start(master.begin or 1, master.begin, foreign_epochs(own.epochs, master.begin, is_restart), is_restart)
    ours = f"this log is {own.begin} to {own.end}"
    if own.end > master.end:
        raise CannotFollow(f"{ours}, and the master's {master.begin} to {master.end}: it has not got what is here")
    request = max(own.begin, master.begin, own.end - TAIL_BYTES)
    if own.end <= master.begin and _is_tail_ours(own):
        raise CannotFollow(f"{ours}, written here, and the master's log begins at {master.begin} only")
    return Start(request or 1, own.end, foreign_epochs(own.epochs, own.end))


def foreign_epochs(epochs: Sequence[Epoch], end: int, is_restart: bool = False) -> list[Epoch]:
    """The history of a log that another master continues at ``end``, without epochs in which nothing was written."""
    kept = [] if is_restart else [epoch for epoch in epochs if epoch.start < end]
    if not kept or kept[-1].is_ours:
        kept.append(Epoch(max((epoch.epoch for epoch in epochs), default=0) + 1, end, is_ours=False))
    return kept


def _is_tail_ours(own: History) -> bool:
    """Whether a Gantry master wrote what is at the end."""
    written = [epoch for epoch in own.epochs if epoch.start < own.end]
    return bool(written) and written[-1].is_ours


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
        """How far the log is; nothing if that was reported before."""
        return b"" if self._position() == self._reported else self.report()

    def report(self) -> bytes:
        """How far the log is, again if need be: silence would end the stream."""
        self._reported = self._position()
        return REPORT.pack(self._reported)

    def _position(self) -> int:
        """Before the comparison is over, no more is reported than what was asked for."""
        return max(self._log.received, self._start.request) if self.is_streaming else self._start.request
