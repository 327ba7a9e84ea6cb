"""A slave's half of one replication stream: bytes in, bytes out, no socket.

What has to wait for the disk (cutting the log, taking the master's history over) is not done here: the session stops
at ``PREPARING`` and holds what is wanted; the owner of the socket does it and calls ``ready``. Everything else happens
at once: data goes into the store as it comes, and one ack for many frames reports how far that is.
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
    AskRange,
    AskSums,
    AskTail,
    Beat,
    Challenge,
    Data,
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
    encode,
)
from gantry_broker.ha.history import PIECES_MAX, SEARCH_BYTES, TAIL_BYTES, ReadableLog, sums_of
from gantry_broker.ha.master_session import is_proved, proof_of


class SlaveLog(ReadableLog, Protocol):
    """What a session needs of the store. Used by the loop's thread."""

    @property
    def received(self) -> int:
        """Up to where the log survives this process."""
        ...

    def append(self, data: bytes, offset: int) -> None:
        """Raises what ``LogCopier.append`` raises."""
        ...


class SlaveFacts(NamedTuple):
    """Who the slave is."""

    cluster: str
    broker_name: str
    broker_id: int
    store_uuid: str
    file_bytes: int
    promised_epoch: int
    is_crash_safe: bool
    address: str
    secret: bytes = b""


class Phase(Enum):
    """Where the stream is."""

    CHALLENGE = auto()
    WELCOME = auto()
    PREPARING = auto()
    STREAMING = auto()
    REFUSED = auto()


@final
class SlaveSession:
    """One stream. Owned by the loop."""

    def __init__(
        self,
        facts: SlaveFacts,
        log: SlaveLog,
        on_table: Callable[[Table], None],
        *,
        on_range: Callable[[Range], None] = lambda answer: None,
    ) -> None:
        """``on_range`` takes what the master gives of its log."""
        self.phase = Phase.CHALLENGE
        self.welcome: Welcome | None = None
        self.refusal: Refusal | None = None
        self.confirmed = -1
        """How far consumers may read, as the master reports; -1 before its first report."""

        self.master_wrote = self.master_wrote_first = -1
        """Where the master's log ends, by the newest beat, and by the first one."""

        self.promised_epoch = facts.promised_epoch
        """No master below it is followed, nor granted anything."""

        self.is_granting = False
        """Whether the last ack held a grant."""

        self._facts: Final = facts
        self._log: Final = log
        self._on_table: Final = on_table
        self._on_range: Final = on_range
        self._reader: Final = FrameReader()
        self._nonce: Final = token_hex(16)
        self._echo_ms = -1
        self._acked = (-1, -1, -1)

    def __repr__(self) -> str:
        return f"<SlaveSession {self.phase.name} confirmed={self.confirmed}>"

    def begin(self) -> bytes:
        """The first bytes of the connection."""
        return PREAMBLE

    def receive(self, data: bytes) -> bytes:
        """What to answer. Raises ``StreamBroken``, or what the store raises."""
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
            case Phase.STREAMING, Beat():
                self._heard(message)
                return None
            case Phase.STREAMING, AskRange():
                return Range(message.start, self._log.healthy_records(message.start, message.end))
            case Phase.STREAMING, Range():
                self._on_range(message)
                return None
            case Phase.STREAMING, Table():
                self._on_table(message)
                return None
            case Phase.CHALLENGE, Challenge():
                self.phase = Phase.WELCOME
                return self._hello(message)
            case Phase.WELCOME, AskRange():
                return Range(message.start, self._log.records_through(message.start, message.end))
            case Phase.WELCOME, AskSums():
                return self._sums(message)
            case Phase.WELCOME, AskTail():
                return self._tail(message)
            case Phase.WELCOME, Welcome():
                return self._welcomed(message)
            case ((Phase.WELCOME | Phase.PREPARING | Phase.STREAMING), Refusal()):
                self.phase, self.refusal = Phase.REFUSED, message
                return None
        raise StreamBroken(f"a {type(message).__name__} while {self.phase.name}")

    # -- the handshake -------------------------------------------------------------------------------------------------

    def _hello(self, challenge: Challenge) -> Hello:
        facts, history = self._facts, self._log.history
        self._challenge = challenge.nonce
        return Hello(
            cluster=facts.cluster, broker_name=facts.broker_name, broker_id=facts.broker_id,
            store_uuid=facts.store_uuid, epochs=list(history.epochs), begin=history.begin, end=history.end,
            file_bytes=facts.file_bytes, promised_epoch=self.promised_epoch, is_crash_safe=facts.is_crash_safe,
            address=facts.address, nonce=self._nonce,
            proof=proof_of(facts.secret, "slave", challenge.nonce, self._nonce, facts.store_uuid), gives_ranges=True,
        )  # fmt: skip

    def _sums(self, asked: AskSums) -> Sums:
        size = asked.end - asked.start
        is_small = 0 < size <= max(TAIL_BYTES, SEARCH_BYTES) and asked.piece_bytes > 0
        if not is_small or asked.start < 0 or size / asked.piece_bytes > PIECES_MAX:
            raise StreamBroken(f"sums of {asked.start} to {asked.end} in pieces of {asked.piece_bytes}")
        return Sums(sums=sums_of(self._log.read, asked.start, asked.end, asked.piece_bytes))

    def _tail(self, asked: AskTail) -> Data:
        """The master has lost what we have kept."""
        if not 0 < asked.bytes_max <= DATA_BYTES_MAX or not self._log.history.begin <= asked.start:
            raise StreamBroken(f"the tail from {asked.start} on, in pieces of {asked.bytes_max}")
        records = self._log.whole_records(asked.start, asked.bytes_max)
        if not records:
            raise StreamBroken(f"the tail from {asked.start} on, and this log has none there")
        return Data(asked.start, self._log.history.epoch, -1, records)

    def _welcomed(self, welcome: Welcome) -> Message | None:
        if not is_proved(welcome.proof, self._facts.secret, "master", self._nonce, self._challenge):
            raise StreamBroken("the master does not know this group's secret")
        if welcome.epoch < self.promised_epoch:
            raise StreamBroken(f"the master is of epoch {welcome.epoch}, and {self.promised_epoch} was promised")
        history = self._log.history
        start = history.end if welcome.cut_to is None else welcome.cut_to
        if not welcome.is_restart and not (welcome.start == start and history.begin <= start <= history.end):
            raise StreamBroken(
                f"the master begins at {welcome.start}, and this log is {history.begin} to {history.end}"
            )
        self.phase, self.welcome = Phase.PREPARING, welcome
        return None

    def ready(self) -> bytes:
        """What ``welcome`` asks for is done, durably."""
        assert self.phase is Phase.PREPARING and self.welcome is not None, self
        self.phase = Phase.STREAMING
        return encode(Ready(start=self.welcome.start)) + self.ack()

    # -- the stream ----------------------------------------------------------------------------------------------------

    def _append(self, data: Data) -> None:
        assert self.welcome is not None, "there is no stream without a welcome"
        if data.epoch != self.welcome.epoch:
            raise StreamBroken(f"data of epoch {data.epoch} in a stream of {self.welcome.epoch}")
        self._log.append(data.records, data.offset)
        self._confirm(data.confirmed)

    def _heard(self, beat: Beat) -> None:
        assert self.welcome is not None, "there is no stream without a welcome"
        if beat.epoch != self.welcome.epoch:
            raise StreamBroken(f"a beat of epoch {beat.epoch} in a stream of {self.welcome.epoch}")
        self._echo_ms, self.master_wrote = beat.sent_ms, beat.wrote
        if self.master_wrote_first < 0:
            self.master_wrote_first = beat.wrote
        self._confirm(beat.confirmed)

    def _confirm(self, confirmed: int) -> None:
        """Move ``confirmed``, never backwards: consumers may have read up to it."""
        self.confirmed = max(self.confirmed, confirmed)

    def ack(self) -> bytes:
        """How far the log is; nothing if that was reported before."""
        if self.phase is not Phase.STREAMING or self.welcome is None:
            return b""
        received = self._log.received
        position = (received, min(self._log.flushed, received), self._echo_ms)
        if position == self._acked:
            return b""
        self._acked = position
        grant_ms = self.welcome.grant_ms if self.promised_epoch <= self.welcome.epoch else 0
        self.is_granting = grant_ms > 0
        return encode(Ack(self.welcome.epoch, *position, grant_ms))
