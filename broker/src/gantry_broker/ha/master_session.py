"""A master's half of one replication stream: bytes in, bytes out, no socket and no clock of its own.

    PREAMBLE -> HELLO -> (sums, until the common end is proved) -> WELCOME -> READY -> data until the stream ends
                    |       `-- (records where they differ: damage on one side is not another history)
                    |                                    `-- (its tail, while the master compares) --.
                    `--------------------- REFUSAL, and the end; also after a READY -----------------'

The owner of the socket calls ``receive`` with received data, ``pump`` when there is room to send, and
``encode_heartbeat`` regularly. A slave counts from its READY on, under the identity of its HELLO, until its connection
ends. Impossible input is rejected: an ack of bytes that were never sent ends the stream, and so does an ack that moves
backwards.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from secrets import token_hex
from typing import Final, NamedTuple, Protocol, final

from gantry_broker.ha.acknowledgement import AckSet, SlaveProgress
from gantry_broker.ha.frames import (
    PREAMBLE,
    Ack,
    Challenge,
    Data,
    FrameKind,
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
    data_head,
    encode,
)
from gantry_broker.ha.history import Comparison, History, Verdict, compare, refusal_text
from gantry_broker.ha.log_comparison import ComparedLog, Fork, LogComparison, Step
from gantry_wire.proofs import compute_proof, is_valid_proof

BATCH_BYTES: Final = 256 << 10
"""Bytes in one frame of data, if the records allow it."""


class MasterLog(ComparedLog, Protocol):
    """The interface of the store that a session needs. Used by the loop's thread."""

    @property
    def wrote(self) -> int: ...

    @property
    def confirmed(self) -> int: ...

    def rest_of_record(self, offset: int) -> bytes:
        """Return verified bytes from ``offset`` to the end of its record; empty where a record begins or is damaged."""
        ...

    def append_tail(self, data: bytes, offset: int) -> None:
        """Append records that this log has lost and a slave has kept. Raises ``StreamBroken``."""
        ...


class MasterFacts(NamedTuple):
    """The identity of the master, and its demands on slaves: log files of ``file_bytes``, grants of ``grant_ms``."""

    cluster: str
    broker_name: str
    file_bytes: int
    epoch: int
    grant_ms: int = 0
    secret: bytes = b""
    is_comparing: bool = False
    """Whether the master is starting: no slave follows yet, and records that only slaves have are fetched."""

    is_classic_counted: bool = True
    """Whether an ack of a slave of RocketMQ's may be waited for."""

    electable: tuple[int, ...] = ()
    broker_id: int = -1
    acks_needed: int = 0


class Phase(Enum):
    """The phases of a replication stream on the master's side, most of them named for the frame that it waits for."""

    PREAMBLE = auto()
    HELLO = auto()
    SUMS = auto()
    EXAMINING = auto()  # Waits for the slave's records where the logs differ.
    TAIL = auto()  # Waits for the end of the log, which this master has lost.
    READY = auto()
    STREAMING = auto()
    REFUSED = auto()


_AWAITED: Final[dict[Phase, frozenset[FrameKind]]] = {
    Phase.PREAMBLE: frozenset(),
    Phase.HELLO: frozenset({FrameKind.HELLO}),
    Phase.SUMS: frozenset({FrameKind.SUMS}),
    Phase.TAIL: frozenset({FrameKind.DATA}),
    Phase.READY: frozenset({FrameKind.READY, FrameKind.ACK}),
    Phase.EXAMINING: frozenset({FrameKind.RANGE}),
    Phase.STREAMING: frozenset({FrameKind.ACK, FrameKind.RANGE_REQUEST, FrameKind.RANGE}),
    Phase.REFUSED: frozenset(),
}
"""Kinds of frames that may be buffered in each phase. Before the slave is authenticated that is only a HELLO."""


@final
class MasterSession:
    """One replication stream to a slave. Owned by the loop."""

    def __init__(
        self,
        facts: MasterFacts,
        log: MasterLog,
        slaves: AckSet,
        *,
        on_range: Callable[[Range], None] = lambda answer: None,
    ) -> None:
        """Create a session. ``on_range`` receives records that the slave sends on request."""
        self.phase = Phase.PREAMBLE
        self.slave: SlaveProgress | None = None
        self.hello: Hello | None = None
        self.refusal: Refusal | None = None
        self.sent = -1
        """Offset of the next byte to send; -1 before the stream."""

        self.echo_ms = -1
        """Time of the newest heartbeat that the slave has answered, on the master's clock."""

        self.grant_ms = 0
        """Duration of the grant in the slave's last ack, in milliseconds; 0 for none."""

        self.is_compared = False
        """Whether the comparison is over: the master's log has all that this slave would not have to truncate."""

        self._facts: Final = facts
        self._log: Final = log
        self._slaves: Final = slaves
        self._on_range: Final = on_range
        self._reader: Final = FrameReader()
        self._preamble = b""
        self._nonce: Final = token_hex(16)
        self._verdict = Comparison(Verdict.FOREIGN, 0)
        self._comparison: LogComparison | None = None

    def __repr__(self) -> str:
        slave = f"{self.hello.broker_id}" if self.hello is not None else "?"
        return f"<MasterSession slave={slave} {self.phase.name} sent={self.sent}>"

    @property
    def is_streaming(self) -> bool:
        return self.phase is Phase.STREAMING

    @property
    def _comparison_now(self) -> LogComparison:
        assert self._comparison is not None, "a comparison has begun"
        return self._comparison

    def close(self) -> None:
        """Remove the slave and its acks, because the connection is closed."""
        if self.slave is not None:
            self._slaves.leave(self.slave)
            self.slave = None

    # -- receiving -----------------------------------------------------------------------------------------------------

    def receive(self, data: bytes, now: float) -> bytes:
        """Handle received data, and return the answer.

        Raises ``StreamBroken``. After a ``refusal`` the caller closes the connection.
        """
        if self.phase is Phase.PREAMBLE:
            self._preamble += data
            if not PREAMBLE.startswith(self._preamble[: len(PREAMBLE)]):
                raise StreamBroken("not a Gantry replication client: unknown preamble")
            if len(self._preamble) < len(PREAMBLE):
                return b""
            data, self._preamble, self.phase = self._preamble[len(PREAMBLE) :], b"", Phase.HELLO
            return encode(Challenge(nonce=self._nonce)) + self._handle(data, now)
        return self._handle(data, now)

    def _handle(self, data: bytes, now: float) -> bytes:
        answers: list[bytes] = []
        for message in self._reader.feed(data, _AWAITED[self.phase]):
            if self.phase is Phase.REFUSED:
                break
            answer = self._answer(message, now)
            if answer is not None:
                answers.append(encode(answer))
        return b"".join(answers)

    def _answer(self, message: Message, now: float) -> Message | None:
        match self.phase, message:
            case Phase.STREAMING, Ack():
                self._record_ack(message, now)
                return None
            case Phase.STREAMING, RangeRequest():
                return Range(message.start, self._log.read_verified_range(message.start, message.end))
            case Phase.STREAMING, Range():
                self._on_range(message)
                return None
            case Phase.HELLO, Hello():
                return self._check_hello(message)
            case Phase.SUMS, Sums():
                return self._continue_comparison(self._comparison_now.take_sums(message.sums))
            case Phase.EXAMINING, Range():
                return self._continue_comparison(self._comparison_now.take_records(message.records))
            case Phase.TAIL, Data():
                return self._append_tail(message)
            case Phase.READY, Ready():
                return self._start_stream(message, now)
        raise StreamBroken(f"unexpected {type(message).__name__} in phase {self.phase.name}")

    # -- the handshake -------------------------------------------------------------------------------------------------

    def _check_hello(self, hello: Hello) -> Message:
        """Check that the slave belongs to this broker's shard, and compare the lists of epochs."""
        facts = self._facts
        self.hello = hello
        if not is_valid_proof(hello.proof, facts.secret, "slave", self._nonce, hello.nonce, hello.store_uuid):
            return self._refuse("secret", "the slave's secret differs from the master's")
        if (hello.cluster, hello.broker_name) != (facts.cluster, facts.broker_name):
            theirs, ours = f"{hello.cluster}/{hello.broker_name}", f"{facts.cluster}/{facts.broker_name}"
            return self._refuse("stranger", f"the slave belongs to {theirs}, but the master to {ours}")
        if hello.broker_id <= 0:
            return self._refuse("identity", f"the slave's brokerId is {hello.broker_id}, expected 1 or more")
        if hello.file_bytes != facts.file_bytes:
            text = f"the slave's log files have {hello.file_bytes} bytes, and the master's have {facts.file_bytes}"
            return self._refuse("file-size", f"{text}: mappedFileSizeCommitLog must be the same")
        if hello.promised_epoch > facts.epoch:
            text = f"the slave has promised to follow no master below epoch {hello.promised_epoch}"
            return self._refuse("fenced", f"{text}; this master's epoch is {facts.epoch}")
        if not 0 <= hello.begin <= hello.end or any(epoch.start < 0 for epoch in hello.epochs):
            raise StreamBroken(f"invalid log: begin {hello.begin}, end {hello.end}, epochs {hello.epochs}")
        history = History(hello.epochs, hello.begin, hello.end)
        self._verdict = verdict = compare(self._log.history, history)
        is_fetched = facts.is_comparing and verdict.verdict is Verdict.AHEAD
        if not verdict.may_follow and not is_fetched:
            text = refusal_text(verdict, master=self._log.history, slave=history)
            return self._refuse(verdict.verdict.name.lower(), text)
        if verdict.verdict in (Verdict.COPY, Verdict.COPY_AGAIN):
            return self._welcome()
        comparison = self._comparison = LogComparison(
            self._log, max(hello.begin, self._log.history.begin), verdict.start,
            file_bytes=facts.file_bytes, gives_ranges=hello.gives_ranges,
        )  # fmt: skip
        return self._continue_comparison(comparison.begin())

    def _continue_comparison(self, step: Step) -> Message:
        """Request what the comparison before the common end needs next, or answer with its result."""
        match step:
            case SumsRequest():
                self.phase = Phase.SUMS
            case RangeRequest():
                self.phase = Phase.EXAMINING
            case Fork(offset=offset):
                text = f"the slave's log differs from offset {offset} on, although the epochs are the same"
                return self._refuse("fork", text)
            case None:
                return self._request_tail() if self._verdict.verdict is Verdict.AHEAD else self._welcome()
        return step

    def _request_tail(self) -> TailRequest:
        """Request the records of this epoch that only the slave has: the master has lost its end."""
        self.phase = Phase.TAIL
        return TailRequest(start=self._log.wrote, bytes_max=BATCH_BYTES)

    def _append_tail(self, data: Data) -> Message:
        assert self.hello is not None, "only a slave that has sent its HELLO has a tail"
        if not data.records or data.offset + len(data.records) > self.hello.end:
            text = f"invalid tail: {len(data.records)} bytes at {data.offset}"
            raise StreamBroken(f"{text}, but the slave's log ends at {self.hello.end}")
        self._log.append_tail(data.records, data.offset)
        return self._request_tail() if self._log.wrote < self.hello.end else self._welcome()

    def _welcome(self) -> Message:
        assert self.hello is not None, "only a slave that has sent its HELLO is welcomed"
        facts, history, verdict = self._facts, self._log.history, self._verdict
        if facts.is_comparing:
            self.is_compared = True
            return self._refuse(
                "comparing", "this master is starting and compares its log with its slaves' logs; try again"
            )
        self.phase = Phase.READY
        return Welcome(
            epoch=facts.epoch,
            epochs=list(history.epochs),
            begin=history.begin,
            start=verdict.start,
            is_restart=verdict.verdict in (Verdict.COPY_AGAIN, Verdict.COPY),
            cut_to=verdict.start if verdict.verdict is Verdict.TRUNCATE else None,
            grant_ms=facts.grant_ms,
            electable=list(facts.electable),
            master_id=facts.broker_id,
            acks_needed=facts.acks_needed,
            proof=compute_proof(facts.secret, "master", self.hello.nonce, self._nonce),
            gives_ranges=True,
        )

    def _start_stream(self, ready: Ready, now: float) -> Message | None:
        if ready.start != self._verdict.start:
            raise StreamBroken(f"the slave is ready at offset {ready.start}, but {self._verdict.start} was expected")
        assert self.hello is not None, "only a slave that has sent its HELLO can be ready"
        if self._log.history.begin > ready.start:
            text = f"offset {ready.start} has expired on the master"
            return self._refuse("expired", f"{text}; the slave retries with a new handshake")
        self.slave = self._slaves.join(self.hello.store_uuid, self.hello.broker_id, now)
        if self.slave is None:
            return self._refuse(
                "duplicate", f"a slave with brokerId {self.hello.broker_id} or with the same store is connected already"
            )
        self.phase, self.sent = Phase.STREAMING, ready.start
        return None

    def _refuse(self, reason: str, text: str) -> Refusal:
        self.phase = Phase.REFUSED
        self.refusal = Refusal(reason=reason, text=text, is_final=reason in ("stranger", "identity", "file-size"))
        return self.refusal

    # -- the stream ----------------------------------------------------------------------------------------------------

    def _record_ack(self, ack: Ack, now: float) -> None:
        """Record the positions and the grant of an ack."""
        assert self.slave is not None, "a streaming slave has joined"
        if ack.epoch != self._facts.epoch:
            text = f"the slave acknowledged epoch {ack.epoch}"
            raise StreamBroken(f"{text}, but the stream's epoch is {self._facts.epoch}")
        self.slave.advance(ack.received, ack.flushed, self.sent, now)
        self.echo_ms, self.grant_ms = ack.echo_ms, ack.grant_ms

    def pump(self, bytes_max: int) -> list[bytes]:
        """Return what may be sent now, about ``bytes_max``: nothing before the stream, at the end, and at damage."""
        parts: list[bytes] = []
        if self.phase is not Phase.STREAMING:
            return parts
        log, epoch = self._log, self._facts.epoch
        while bytes_max > 0 and self.sent < log.wrote:
            records = log.read_verified(self.sent, min(BATCH_BYTES, bytes_max))
            if not records:
                if self.sent < log.history.begin:
                    raise StreamBroken(f"the log at offset {self.sent} has expired")
                break  # A damaged record has been reported; the stream waits until it is repaired.
            parts += (data_head(self.sent, epoch, log.confirmed, records), records)
            self.sent += len(records)
            bytes_max -= len(records)
        return parts

    def encode_heartbeat(self, now_ms: int) -> bytes:
        """Return a heartbeat, with the positions of the log and how far consumers may read."""
        if self.phase is not Phase.STREAMING:
            return b""
        log = self._log
        return encode(Heartbeat(self._facts.epoch, log.confirmed, log.wrote, log.flushed, now_ms))

    def has_range(self, end: int) -> bool:
        """Return whether the slave can be asked for records before ``end``."""
        gives_ranges = self.hello is not None and self.hello.gives_ranges
        return gives_ranges and self.slave is not None and self.slave.received >= end

    def encode_table(self, table: Table) -> bytes:
        """Return the frame of a changed table; empty before the stream."""
        return encode(table) if self.phase is Phase.STREAMING else b""
