"""A master's half of one replication stream: bytes in, bytes out, no socket and no clock of its own.

    PREAMBLE -> HELLO -> (sums, until the common end is proved) -> WELCOME -> READY -> data for ever
                    |       `-- (records where they differ: a damaged one on either side is no other history)
                    |                                    `-- (its tail, while the master compares) --.
                    `--------------------- REFUSAL, and the end -------------------------------------'

The owner of the socket calls ``receive`` with what came, ``pump`` when there is room to send, and ``beat`` now and
then. A slave counts from its READY on, under the identity of its HELLO, and not a moment longer than its connection.
Nothing impossible is accepted: an ack of bytes that were never sent ends the stream, and so does
one that goes back.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Generator, Sequence
from enum import Enum, auto
from secrets import token_hex
from typing import Final, NamedTuple, Protocol, final

from gantry_broker.ha.acknowledgement import AckSet, SlaveProgress
from gantry_broker.ha.frames import (
    PREAMBLE,
    Ack,
    AskRange,
    AskSums,
    AskTail,
    Beat,
    Challenge,
    Data,
    FrameKind,
    FrameReader,
    Hello,
    Message,
    Range,
    Ready,
    Refusal,
    StreamBroken,
    Sums,
    Table,
    Welcome,
    data_head,
    encode,
)
from gantry_broker.ha.history import (
    PIECE_BYTES_MIN,
    Comparison,
    History,
    Question,
    ReadableLog,
    Verdict,
    compare,
    find_fork,
)
from gantry_wire.message import INT

BATCH_BYTES: Final = 256 << 10
"""In one frame of data, if the records allow it."""

DOUBTS_MAX: Final = 64
"""Places where the logs differ that are examined in one handshake. More is another log, or a disk that is no use."""


class MasterLog(ReadableLog, Protocol):
    """What a session needs of the store. Read by the loop's thread."""

    @property
    def wrote(self) -> int: ...

    @property
    def confirmed(self) -> int: ...

    def rest_of_record(self, offset: int) -> bytes:
        """Verified bytes from ``offset`` to the end of the record that it lies in the middle of; empty at its begin."""
        ...

    def record_around(self, offset: int) -> int:
        """Where the record begins that ``offset`` lies in or at; if that is damaged, where the one before it ends."""
        ...

    def end_of_damage(self, offset: int) -> int:
        """Where the log is good again behind the damage at ``offset``."""
        ...

    def append_tail(self, data: bytes, offset: int) -> None:
        """Take back what a slave has kept. Raises ``StreamBroken``."""
        ...


class MasterFacts(NamedTuple):
    """Who the master is, and what it asks of slaves."""

    cluster: str
    broker_name: str
    file_bytes: int
    epoch: int
    grant_ms: int = 0
    secret: bytes = b""
    is_comparing: bool = False
    """Whether this is a master's start: no slave follows yet, and what slaves have more is fetched."""

    is_classic_counted: bool = True
    """Whether an ack of a slave of RocketMQ's may be waited for."""

    electable: tuple[int, ...] = ()
    broker_id: int = -1
    acks_needed: int = 0


class Phase(Enum):
    """Where the stream is."""

    PREAMBLE = auto()
    HELLO = auto()
    SUMS = auto()
    DOUBT = auto()
    TAIL = auto()
    READY = auto()
    STREAMING = auto()
    REFUSED = auto()


_AWAITED: Final[dict[Phase, frozenset[FrameKind]]] = {
    Phase.PREAMBLE: frozenset(),
    Phase.HELLO: frozenset({FrameKind.HELLO}),
    Phase.SUMS: frozenset({FrameKind.SUMS}),
    Phase.TAIL: frozenset({FrameKind.DATA}),
    Phase.READY: frozenset({FrameKind.READY, FrameKind.ACK}),
    Phase.DOUBT: frozenset({FrameKind.RANGE}),
    Phase.STREAMING: frozenset({FrameKind.ACK, FrameKind.ASK_RANGE, FrameKind.RANGE}),
    Phase.REFUSED: frozenset(),
}
"""Kinds of frames that are kept until they are whole. Before the slave has proved who it is that is a HELLO only."""


def proof_of(secret: bytes, *words: str) -> str:
    """Prove knowledge of the secret without sending it. Empty if there is none."""
    return hmac.digest(secret, "\0".join(words).encode(), "sha256").hex() if secret else ""


def is_proved(proof: str, secret: bytes, *words: str) -> bool:
    """Whether the peer knows the secret. Takes the same time whatever ``proof`` is."""
    return hmac.compare_digest(proof_of(secret, *words).encode(), proof.encode())


@final
class MasterSession:
    """One stream. Owned by the loop."""

    def __init__(
        self,
        facts: MasterFacts,
        log: MasterLog,
        slaves: AckSet,
        *,
        on_range: Callable[[Range], None] = lambda answer: None,
    ) -> None:
        """``on_range`` takes what a slave gives of its log."""
        self.phase = Phase.PREAMBLE
        self.slave: SlaveProgress | None = None
        self.hello: Hello | None = None
        self.refusal: Refusal | None = None
        self.sent = -1
        """Where the next byte to send lies; -1 before the stream."""

        self.echo_ms = -1
        """The newest beat that the slave has answered, on the master's clock."""

        self.grant_ms = 0
        self.is_compared = False
        """Whether the master's log now has all that this slave's has."""

        self._facts: Final = facts
        self._log: Final = log
        self._slaves: Final = slaves
        self._on_range: Final = on_range
        self._reader: Final = FrameReader()
        self._start = b""
        self._nonce: Final = token_hex(16)
        self._verdict = Comparison(Verdict.FOREIGN, 0)
        self._doubtful = (0, 0, b"")
        """Where the logs differ: begin, end, and what good records this one has there."""

        self._doubts = 0
        self._stride = 0
        """How many bytes of the slave's damage are skipped at once. It doubles while the damage continues."""

        self._is_unproved = False
        """Whether bytes were skipped without a matching record behind them that shows that they are only damaged."""

        self._search: Generator[Question, Sequence[int], int | None] | None = None

    def __repr__(self) -> str:
        who = f"{self.hello.broker_id}" if self.hello is not None else "?"
        return f"<MasterSession slave={who} {self.phase.name} sent={self.sent}>"

    @property
    def is_streaming(self) -> bool:
        return self.phase is Phase.STREAMING

    def close(self) -> None:
        """The connection is gone, and the slave's acks with it."""
        if self.slave is not None:
            self._slaves.leave(self.slave)
            self.slave = None

    # -- what comes ----------------------------------------------------------------------------------------------------

    def receive(self, data: bytes, now: float) -> bytes:
        """What to answer. Raises ``StreamBroken``; after a ``refusal`` the connection is closed, too."""
        if self.phase is Phase.PREAMBLE:
            self._start += data
            if not PREAMBLE.startswith(self._start[: len(PREAMBLE)]):
                raise StreamBroken("it does not begin as ours does")
            if len(self._start) < len(PREAMBLE):
                return b""
            data, self._start, self.phase = self._start[len(PREAMBLE) :], b"", Phase.HELLO
            return encode(Challenge(nonce=self._nonce)) + self._take(data, now)
        return self._take(data, now)

    def _take(self, data: bytes, now: float) -> bytes:
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
                self._acked(message, now)
                return None
            case Phase.STREAMING, AskRange():
                return Range(message.start, self._log.healthy_records(message.start, message.end))
            case Phase.STREAMING, Range():
                self._on_range(message)
                return None
            case Phase.HELLO, Hello():
                return self._meet(message)
            case Phase.SUMS, Sums():
                return self._compare_on(message.sums)
            case Phase.DOUBT, Range():
                return self._settle_doubt(message.records)
            case Phase.TAIL, Data():
                return self._fetched(message)
            case Phase.READY, Ready():
                return self._begin(message, now)
        raise StreamBroken(f"a {type(message).__name__} while {self.phase.name}")

    # -- the handshake -------------------------------------------------------------------------------------------------

    def _meet(self, hello: Hello) -> Message:
        """Check that the slave belongs to this broker's shard, and compare the lists of epochs."""
        facts = self._facts
        self.hello = hello
        if not is_proved(hello.proof, facts.secret, "slave", self._nonce, hello.nonce, hello.store_uuid):
            return self._refuse("secret", "it does not know this group's secret")
        if (hello.cluster, hello.broker_name) != (facts.cluster, facts.broker_name):
            theirs, ours = f"{hello.cluster}/{hello.broker_name}", f"{facts.cluster}/{facts.broker_name}"
            return self._refuse("stranger", f"it is of {theirs}, and this is {ours}")
        if hello.broker_id <= 0:
            return self._refuse("identity", f"brokerId {hello.broker_id} is not a slave's")
        if hello.file_bytes != facts.file_bytes:
            text = f"its log files have {hello.file_bytes} bytes, and ours {facts.file_bytes}"
            return self._refuse("file-size", f"{text}: mappedFileSizeCommitLog must be the same")
        if hello.promised_epoch > facts.epoch:
            text = f"it has promised epoch {hello.promised_epoch} to somebody else, and this is {facts.epoch}"
            return self._refuse("fenced", text)
        if not 0 <= hello.begin <= hello.end or any(epoch.start < 0 for epoch in hello.epochs):
            raise StreamBroken("a log that cannot be")
        self._verdict = verdict = compare(self._log.history, History(hello.epochs, hello.begin, hello.end))
        is_fetched = facts.is_comparing and verdict.verdict is Verdict.AHEAD
        if not verdict.may_follow and not is_fetched:
            return self._refuse(verdict.verdict.name.lower(), f"it {verdict.verdict.value}: at {verdict.start}")
        if verdict.verdict in (Verdict.COPY, Verdict.RESTART):
            return self._welcome()
        self._search = find_fork(self._log.read, max(hello.begin, self._log.history.begin), verdict.start)
        return self._compare_on(None)

    def _compare_on(self, sums: list[int] | None) -> Message:
        """Compare the bytes before the common end, too."""
        assert self._search is not None, "sums are asked for by a search"
        try:
            question = next(self._search) if sums is None else self._search.send(sums)
        except StopIteration as end:
            if end.value is None:
                return self._ask_tail() if self._verdict.verdict is Verdict.AHEAD else self._welcome()
            return self._doubt(end.value)
        self.phase = Phase.SUMS
        return AskSums(start=question[0], end=question[1], piece_bytes=question[2])

    def _doubt(self, place: int) -> Message:
        """The logs differ at ``place``: are they two histories, or is one of them damaged there?"""
        assert self.hello is not None, "only a slave that has sent its HELLO is compared"
        if not self.hello.gives_ranges or self._doubts == DOUBTS_MAX:
            return self._refuse_fork(place)
        self._doubts += 1
        end = min(
            place + PIECE_BYTES_MIN,
            self._verdict.start,
            place - place % self._facts.file_bytes + self._facts.file_bytes,
        )
        begin = max(self._log.record_around(place), self._log.history.begin)
        self._doubtful = begin, end, self._log.records_through(begin, end)
        self.phase = Phase.DOUBT
        return AskRange(start=begin, end=end)

    def _settle_doubt(self, theirs: bytes) -> Message:
        """A slave's good records there: what differs from ours is another history, what is missing is damaged.

        Where only damage is, the rest is compared on. It is healed when the stream is up, whichever side has it. Long
        damage of the slave, such as a whole file, is passed over in ever longer strides, if what follows is the same:
        another history differs up to the end.
        """
        begin, end, ours = self._doubtful
        common = min(len(ours), len(theirs))
        if ours[:common] != theirs[:common]:
            return self._refuse_fork(begin)
        resume = end
        if begin + len(ours) < end and len(ours) <= common:
            resume = self._log.end_of_damage(begin + common)
        elif begin + common < end:
            resume = begin + common + INT.unpack_from(ours, common)[0]
            self._stride = 0 if common else max(PIECE_BYTES_MIN, 2 * self._stride)
            self._is_unproved &= not common
            far = self._log.record_around(min(resume + self._stride, self._verdict.start - PIECE_BYTES_MIN))
            if self._stride and far > resume:
                resume, self._is_unproved = far, True
        if self._is_unproved and resume >= self._verdict.start:
            return self._refuse_fork(begin)
        self._search = find_fork(self._log.read, resume, self._verdict.start)
        return self._compare_on(None)

    def _refuse_fork(self, place: int) -> Refusal:
        return self._refuse("fork", f"its log is another one from {place} on, though the epochs are the same")

    def _ask_tail(self) -> AskTail:
        """Ask for what the slave has more of this very epoch: the master has lost its end."""
        self.phase = Phase.TAIL
        return AskTail(start=self._log.wrote, bytes_max=BATCH_BYTES)

    def _fetched(self, data: Data) -> Message:
        assert self.hello is not None, "only a slave that has sent its HELLO has a tail"
        if not data.records or data.offset + len(data.records) > self.hello.end:
            raise StreamBroken(f"{len(data.records)} bytes at {data.offset} of a log that ends at {self.hello.end}")
        self._log.append_tail(data.records, data.offset)
        return self._ask_tail() if self._log.wrote < self.hello.end else self._welcome()

    def _welcome(self) -> Message:
        assert self.hello is not None, "only a slave that has sent its HELLO is welcomed"
        facts, history, verdict = self._facts, self._log.history, self._verdict
        if facts.is_comparing:
            self.is_compared = True
            return self._refuse("comparing", "this master starts, and compares its log with its slaves'; come again")
        self.phase = Phase.READY
        return Welcome(
            epoch=facts.epoch,
            epochs=list(history.epochs),
            begin=history.begin,
            start=verdict.start,
            is_restart=verdict.verdict in (Verdict.RESTART, Verdict.COPY),
            cut_to=verdict.start if verdict.verdict is Verdict.CUT else None,
            grant_ms=facts.grant_ms,
            electable=list(facts.electable),
            master_id=facts.broker_id,
            acks_needed=facts.acks_needed,
            proof=proof_of(facts.secret, "master", self.hello.nonce, self._nonce),
            gives_ranges=True,
        )

    def _begin(self, ready: Ready, now: float) -> Message | None:
        if ready.start != self._verdict.start:
            raise StreamBroken(f"it is ready at {ready.start} and not at {self._verdict.start}")
        assert self.hello is not None, "only a slave that has sent its HELLO can be ready"
        if self._log.history.begin > ready.start:
            return self._refuse("expired", "what it needs has expired meanwhile; it may come again")
        self.slave = self._slaves.join(self.hello.store_uuid, self.hello.broker_id, now)
        if self.slave is None:
            return self._refuse(
                "duplicate", f"a slave with brokerId {self.hello.broker_id}, or this very store, is here"
            )
        self.phase, self.sent = Phase.STREAMING, ready.start
        return None

    def _refuse(self, reason: str, text: str) -> Refusal:
        self.phase = Phase.REFUSED
        self.refusal = Refusal(reason=reason, text=text, is_final=reason in ("stranger", "identity", "file-size"))
        return self.refusal

    # -- the stream ----------------------------------------------------------------------------------------------------

    def _acked(self, ack: Ack, now: float) -> None:
        assert self.slave is not None, "who is streaming has joined"
        if ack.epoch != self._facts.epoch:
            raise StreamBroken(f"it acknowledges epoch {ack.epoch}, and this is {self._facts.epoch}")
        self.slave.advance(ack.received, ack.flushed, self.sent, now)
        self.echo_ms, self.grant_ms = ack.echo_ms, ack.grant_ms

    def pump(self, bytes_max: int) -> list[bytes]:
        """What may be sent now, at most about so many bytes; nothing before the stream or at the log's end."""
        parts: list[bytes] = []
        if self.phase is not Phase.STREAMING:
            return parts
        log, epoch = self._log, self._facts.epoch
        while bytes_max > 0 and self.sent < log.wrote:
            records = log.whole_records(self.sent, min(BATCH_BYTES, bytes_max))
            if not records:
                if self.sent < log.history.begin:
                    raise StreamBroken(f"the log has nothing at {self.sent} any more")
                break  # a damaged record, which is reported: the stream waits until it is healed
            parts += (data_head(self.sent, epoch, log.confirmed, records), records)
            self.sent += len(records)
            bytes_max -= len(records)
        return parts

    def beat(self, now_ms: int) -> bytes:
        """A heartbeat, with the positions of the log and how far consumers may read."""
        if self.phase is not Phase.STREAMING:
            return b""
        log = self._log
        return encode(Beat(self._facts.epoch, log.confirmed, log.wrote, log.flushed, now_ms))

    def has_range(self, end: int) -> bool:
        """Whether the slave may be asked for what lies before ``end``."""
        is_willing = self.hello is not None and self.hello.gives_ranges
        return is_willing and self.slave is not None and self.slave.received >= end

    def table(self, table: Table) -> bytes:
        """A document that has changed."""
        return encode(table) if self.phase is Phase.STREAMING else b""
