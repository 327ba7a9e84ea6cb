"""A slave's half of one replication stream: bytes in, bytes out, no socket.

Steps that wait for the disk (truncating the log, adopting the master's history) are not done here: the session stops in
the phase ``PREPARING``, until the owner of the socket has done what ``welcome`` demands and calls ``start_stream``.
Everything else happens at once: data is appended to the store as it arrives, and one ack for many frames reports the
end of the log.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from secrets import token_hex
from typing import Final, NamedTuple, Protocol, final

from gantry_broker.ha.frames import (
    DATA_BYTES_MAX,
    PREAMBLE,
    Ack,
    Challenge,
    Data,
    FrameReader,
    Heartbeat,
    Hello,
    Message,
    Range,
    RangeRequest,
    Ready,
    Refusal,
    StreamBroken,
    Sums,
    SumsRequest,
    Table,
    TailRequest,
    Welcome,
    encode,
)
from gantry_broker.ha.history import PIECES_MAX, SEARCH_BYTES, TAIL_BYTES, ReadableLog, piece_checksums
from gantry_wire.proofs import compute_proof, is_valid_proof


class SlaveLog(ReadableLog, Protocol):
    """The interface of the store that a session needs. Used by the loop's thread."""

    @property
    def received(self) -> int:
        """Position up to which the log survives a crash of this process."""
        ...

    def append(self, data: bytes, offset: int) -> None:
        """Append records. Raises what ``LogCopier.append`` raises."""
        ...


class SlaveFacts(NamedTuple):
    """The identity of the slave, for its HELLO."""

    cluster: str
    broker_name: str
    broker_id: int
    store_uuid: str
    file_bytes: int
    """Size of a log file; it must be the same on both sides."""

    promised_epoch: int
    """Epoch below which the slave has promised to follow no master."""

    is_crash_safe: bool
    """Whether what the slave receives survives a crash of its process."""

    address: str
    """Address where clients reach the slave."""

    secret: bytes = b""
    """The secret that all brokers of the group share; empty without one."""


class Phase(Enum):
    """The phases of a replication stream, on the slave's side."""

    CHALLENGE = auto()
    """The slave has sent its preamble, and waits for the challenge."""

    WELCOME = auto()
    """It has sent its HELLO, and answers the master's comparisons."""

    PREPARING = auto()
    """It changes its store as the welcome demands."""

    STREAMING = auto()
    """It copies the master's log."""

    REFUSED = auto()


@final
class SlaveSession:
    """One replication stream from a master. Owned by the loop."""

    def __init__(
        self,
        facts: SlaveFacts,
        log: SlaveLog,
        on_table: Callable[[Table], None],
        *,
        on_range: Callable[[Range], None] = lambda answer: None,
        ack_limit: Callable[[], int | None] = lambda: None,
    ) -> None:
        """Create a session. ``on_range`` receives records that the master sends on request.

        ``ack_limit`` returns the position beyond which nothing may be acknowledged yet; None if there is no limit.
        """
        self.phase = Phase.CHALLENGE
        self.welcome: Welcome | None = None
        self.refusal: Refusal | None = None
        """Why the master has refused this slave; None if it has not."""
        self.confirmed = -1
        """Position up to which consumers may read, as the master reports; -1 before its first report."""

        self.master_wrote = self.master_wrote_first = -1
        """End of the master's log, by the newest heartbeat and by the first one; -1 before."""

        self.promised_epoch = facts.promised_epoch
        """Epoch below which no master is followed, nor granted anything."""

        self.is_granting = False
        """Whether the last ack contained a grant."""

        self._facts: Final = facts
        self._log: Final = log
        self._on_table: Final = on_table
        self._on_range: Final = on_range
        self._ack_limit: Final = ack_limit
        self._reader: Final = FrameReader()
        self._nonce: Final = token_hex(16)
        self._echo_ms = -1
        self._acked = (-1, -1, -1)

    def __repr__(self) -> str:
        return f"<SlaveSession {self.phase.name} confirmed={self.confirmed}>"

    def begin(self) -> bytes:
        """Return the first bytes to send on the connection."""
        return PREAMBLE

    def receive(self, data: bytes) -> bytes:
        """Handle received data, and return the answer. Raises ``StreamBroken``, or what the store raises."""
        answers: list[bytes] = []
        for message in self._reader.feed(data):
            answer = self._answer(message)
            if answer is not None:
                answers.append(encode(answer))
        return b"".join(answers)

    def _answer(self, message: Message) -> Message | None:
        match self.phase, message:
            case Phase.STREAMING, Data():
                self._append(message)
                return None
            case Phase.STREAMING, Heartbeat():
                self._record_heartbeat(message)
                return None
            case Phase.STREAMING, RangeRequest():
                return Range(message.start, self._log.read_verified_range(message.start, message.end))
            case Phase.STREAMING, Range():
                self._on_range(message)
                return None
            case Phase.STREAMING, Table():
                self._on_table(message)
                return None
            case Phase.CHALLENGE, Challenge():
                self.phase = Phase.WELCOME
                return self._hello(message)
            case Phase.WELCOME, RangeRequest():
                return Range(message.start, self._log.read_verified_through(message.start, message.end))
            case Phase.WELCOME, SumsRequest():
                return self._sums(message)
            case Phase.WELCOME, TailRequest():
                return self._tail(message)
            case Phase.WELCOME, Welcome():
                return self._accept_welcome(message)
            case ((Phase.WELCOME | Phase.PREPARING | Phase.STREAMING), Refusal()):
                self.phase, self.refusal = Phase.REFUSED, message
                return None
        raise StreamBroken(f"unexpected {type(message).__name__} in phase {self.phase.name}")

    # -- the handshake -------------------------------------------------------------------------------------------------

    def _hello(self, challenge: Challenge) -> Hello:
        facts, history = self._facts, self._log.history
        self._challenge = challenge.nonce
        return Hello(
            cluster=facts.cluster, broker_name=facts.broker_name, broker_id=facts.broker_id,
            store_uuid=facts.store_uuid, epochs=list(history.epochs), begin=history.begin, end=history.end,
            file_bytes=facts.file_bytes, promised_epoch=self.promised_epoch, is_crash_safe=facts.is_crash_safe,
            address=facts.address, nonce=self._nonce,
            proof=compute_proof(facts.secret, "slave", challenge.nonce, self._nonce, facts.store_uuid),
            gives_ranges=True,
        )  # fmt: skip

    def _sums(self, request: SumsRequest) -> Sums:
        size = request.end - request.start
        is_small = 0 < size <= max(TAIL_BYTES, SEARCH_BYTES) and request.piece_bytes > 0
        if not is_small or request.start < 0 or size / request.piece_bytes > PIECES_MAX:
            piece = f"in pieces of {request.piece_bytes} bytes"
            raise StreamBroken(f"invalid checksum request: [{request.start}, {request.end}) {piece}")
        return Sums(sums=piece_checksums(self._log.read, request.start, request.end, request.piece_bytes))

    def _tail(self, request: TailRequest) -> Data:
        """Return records that this log has kept and the master has lost."""
        if not 0 < request.bytes_max <= DATA_BYTES_MAX or not self._log.history.begin <= request.start:
            raise StreamBroken(f"invalid tail request: from {request.start} on, at most {request.bytes_max} bytes")
        records = self._log.read_verified(request.start, request.bytes_max)
        if not records:
            raise StreamBroken(f"invalid tail request: from {request.start} on, where the slave's log has no records")
        return Data(request.start, self._log.history.epoch, -1, records)

    def _accept_welcome(self, welcome: Welcome) -> Message | None:
        if not is_valid_proof(welcome.proof, self._facts.secret, "master", self._nonce, self._challenge):
            raise StreamBroken("the master's secret differs from the slave's")
        if welcome.epoch < self.promised_epoch:
            raise StreamBroken(f"the master's epoch is {welcome.epoch}, but epoch {self.promised_epoch} was promised")
        history = self._log.history
        start = history.end if welcome.cut_to is None else welcome.cut_to
        if not welcome.is_restart and not (welcome.start == start and history.begin <= start <= history.end):
            raise StreamBroken(
                f"the master's stream begins at {welcome.start}, but this log is {history.begin} to {history.end}"
            )
        self.phase, self.welcome = Phase.PREPARING, welcome
        return None

    def start_stream(self) -> bytes:
        """Start the stream, after everything that ``welcome`` demands is done durably. Return the bytes to send."""
        assert self.phase is Phase.PREPARING and self.welcome is not None, self
        self.phase = Phase.STREAMING
        return encode(Ready(start=self.welcome.start)) + self.ack()

    # -- the stream ----------------------------------------------------------------------------------------------------

    def _append(self, data: Data) -> None:
        assert self.welcome is not None, "there is no stream without a welcome"
        if data.epoch != self.welcome.epoch:
            raise StreamBroken(f"data of epoch {data.epoch} in a stream of epoch {self.welcome.epoch}")
        self._log.append(data.records, data.offset)
        self._confirm(data.confirmed)

    def _record_heartbeat(self, heartbeat: Heartbeat) -> None:
        assert self.welcome is not None, "there is no stream without a welcome"
        if heartbeat.epoch != self.welcome.epoch:
            raise StreamBroken(f"heartbeat of epoch {heartbeat.epoch} in a stream of epoch {self.welcome.epoch}")
        self._echo_ms, self.master_wrote = heartbeat.sent_ms, heartbeat.wrote
        if self.master_wrote_first < 0:
            self.master_wrote_first = heartbeat.wrote
        self._confirm(heartbeat.confirmed)

    def _confirm(self, confirmed: int) -> None:
        """Move ``confirmed``, never backwards: consumers may have read up to it."""
        self.confirmed = max(self.confirmed, confirmed)

    def ack(self) -> bytes:
        """Return an ack with the log's positions; empty if it would repeat the last one."""
        if self.phase is not Phase.STREAMING or self.welcome is None:
            return b""
        limit = self._ack_limit()
        received = self._log.received if limit is None else min(self._log.received, limit)
        position = (received, min(self._log.flushed, received), self._echo_ms)
        if position == self._acked:
            return b""
        self._acked = position
        grant_ms = self.welcome.grant_ms if self.promised_epoch <= self.welcome.epoch else 0
        self.is_granting = grant_ms > 0
        return encode(Ack(self.welcome.epoch, *position, grant_ms))
