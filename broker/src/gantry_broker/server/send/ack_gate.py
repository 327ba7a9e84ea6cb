"""Holds the answer to a send until the message is as durable as the mode promises: the states of a send.

The state of a send is not stored: it follows from positions of the log and from the end of the send's record. Positions
grow, except `acked`, which moves back when a slave leaves: then sends wait again. Sends change their states in log
order. A *pass* is all sends of one turn of the event loop, which are appended together.

    state         reached when                      moved by                                next states
    RECEIVED      its checks have passed            `SendPath`: it is part of the pass      APPENDED, or a refusal
    APPENDED      end <= wrote                      the end of the loop's turn              FLUSHED, REPLICATED
    FLUSHED       end <= flushed (SYNC_FLUSH)       the flush thread; else code 10          ACKNOWLEDGED
    REPLICATED    end <= acked (SYNC_MASTER)        acks of the slaves; else code 12        ACKNOWLEDGED
    ACKNOWLEDGED  end <= promised, code 0 is sent   `AckGate.release`                       VISIBLE
    VISIBLE       end <= confirmed                  `server.pull.visibility`

FLUSHED and REPLICATED are waited for in parallel, each with a deadline that begins at the append; a mode that does not
wait for one of them takes it as reached. ACKNOWLEDGED needs both; a send that has one in time waits for the other.
A master that needs grants (short permissions to acknowledge, where no ack is needed) reaches REPLICATED only while it
has one of every electable slave, or the Lease. Codes 10 and 12 mean "stored, not promised". So does code 11, the answer
if a send has to wait for slaves and not enough of them are in sync. Such a message may survive and become visible, but
the client counts it as not acknowledged. A producer that does not want to wait (`WAIT=false`) is answered when its
message is APPENDED.

Two functions decide. `must_wait` is called once for each append, and decides whether its answers are held at all.
`_promised` returns the position up to which sends may be acknowledged (`store.positions`); while another member may be
the master, no send may.

No handler waits for a disk or a slave: the answers of an append are held here, in one deque for each deadline, and
leave when the flush thread or an ack has moved a position. They are kept as bytes with code 0, and a missed deadline
rewrites them. That is rare, and the usual case costs one deque entry for each append and connection.
"""

import asyncio
import enum
import json
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol, final

from gantry_broker.server.core.refusals import Refusal
from gantry_broker.server.core.stats import BrokerStats
from gantry_broker.store.message_store import MessageStore
from gantry_remoting import Connection
from gantry_status import RefusalReason
from gantry_wire import Command, ResponseCode
from gantry_wire.frame import FRAME_HEAD


class SendState(enum.Enum):
    """The states of a send; the table above shows when each is reached."""

    RECEIVED = "received"
    APPENDED = "appended"
    FLUSHED = "flushed"
    REPLICATED = "replicated"
    ACKNOWLEDGED = "acknowledged"
    VISIBLE = "visible"


TIMEOUT_CODES: Final = {
    SendState.FLUSHED: ResponseCode.FLUSH_DISK_TIMEOUT,
    SendState.REPLICATED: ResponseCode.FLUSH_SLAVE_TIMEOUT,
}
"""The code of the answer to a send that does not reach the state before its deadline."""

ANSWERS_FULL: Final = Refusal(
    ResponseCode.SYSTEM_BUSY, "[OVERLOAD]system busy, start flow control for a while", RefusalReason.WAITING_FULL
)
"""The answer to a send when `sends_max` sends wait: held answers take memory, and a hanging disk releases none."""


class Acks(Protocol):
    """The log positions that the slaves have acknowledged."""

    def acked_offset(self) -> int:
        """Return the position that enough slaves have acknowledged; -1 if too few of them have a known position."""


class Replicas(Protocol):
    """The state of replication that the gate needs."""

    @property
    def acks(self) -> Acks: ...

    @property
    def is_waiting_for_slaves(self) -> bool:
        """Whether sends have to wait for slaves now."""

    def has_enough(self) -> bool:
        """Whether enough slaves are connected, and close to the end of the log."""

    def may_acknowledge(self) -> bool:
        """Whether no other member can be the master now."""


class _Deadline(NamedTuple):
    """A state that answers wait for, and the time limit in milliseconds."""

    state: SendState
    timeout_ms: int


class Receiver(Protocol):
    """Where answers are sent: the connection of a client, or a waiting task."""

    def send(self, data: bytes) -> None:
        """Send complete frames to the client, or pass them to the task."""


@final
class _Waiter:
    """A task that waits for the code of one answer."""

    def __init__(self, future: asyncio.Future[ResponseCode]) -> None:
        self._future: Final = future

    def send(self, data: bytes) -> None:
        if not self._future.done():
            _, header_bytes = FRAME_HEAD.unpack_from(data)
            header = json.loads(data[FRAME_HEAD.size : FRAME_HEAD.size + header_bytes])
            self._future.set_result(ResponseCode(header["code"]))


class _Held(NamedTuple):
    """The answers to the sends of one connection in one append."""

    end: int
    """The physical offset of the end of their last record."""

    at: float
    """The time of the append, in loop time."""

    connection: Receiver
    replies: bytes
    """Complete frames with code 0."""

    sends: int
    """Number of sends that the frames answer."""


@final
class AckGate:
    """The only place that decides when a send is acknowledged. Owned by the event loop."""

    def __init__(
        self,
        store: MessageStore,
        replicas: Replicas,
        stats: BrokerStats,
        loop: asyncio.AbstractEventLoop,
        *,
        flush_timeout_ms: int | None,  # None: answers do not wait for the disk
        slave_timeout_ms: int,
        sends_max: int = 1 << 62,
    ) -> None:
        """At most ``sends_max`` sends wait for their answers; further ones are refused before they are appended."""
        self.count = 0
        """The number of sends that wait for their answers."""

        self.late_count = 0
        """The number of sends since this start that were answered with code 10, 11 or 12: stored, but not promised."""

        self._store: Final = store
        self._replicas: Final = replicas
        self._loop: Final = loop
        self._waits: Final = stats.ack_waits
        self.sends_max = sends_max
        self._is_disk_waited_for: Final = flush_timeout_ms is not None
        self._positions: Final[dict[SendState, Callable[[], int]]] = {
            SendState.APPENDED: lambda: store.log.wrote,
            SendState.FLUSHED: lambda: store.log.flushed,
            SendState.REPLICATED: self._replicated,
            SendState.ACKNOWLEDGED: self._promised,
            SendState.VISIBLE: lambda: store.positions.confirmed,
        }
        """Records that end at or before the position have reached the state."""

        deadlines = [_Deadline(SendState.REPLICATED, slave_timeout_ms)]
        if flush_timeout_ms is not None:
            deadlines.append(_Deadline(SendState.FLUSHED, flush_timeout_ms))
        self._deadlines: Final = sorted(deadlines, key=lambda one: one.timeout_ms)
        self._held_by_deadline: Final[list[deque[_Held]]] = [deque() for _ in deadlines]
        """The held answers, one deque for each deadline, the shortest first.

        At the first deadline, an answer whose state is reached moves to the second deque. So the answers there have
        smaller offsets than those in the first.
        """

        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        positions = " ".join(f"{state.value}={position()}" for state, position in self._positions.items())
        return f"<AckGate held={self.count} late={self.late_count} {positions}>"

    # ------- decisions

    def must_wait(self) -> bool:
        """Whether the answers to the last append have to wait. Called once for each append."""
        replicas = self._replicas
        return self._is_disk_waited_for or replicas.is_waiting_for_slaves or not replicas.may_acknowledge()

    def set_limits(self, *, sends_max: int) -> None:
        """Set how many sends may wait."""
        self.sends_max = sends_max

    def _promised(self) -> int:
        """Return the position up to which records may be acknowledged; -1 if none may."""
        return self._store.positions.promised if self._replicas.may_acknowledge() else -1

    def _replicated(self) -> int:
        """Return the position up to which records are on enough slaves; -1 if none may be acknowledged."""
        replicas = self._replicas
        if not replicas.may_acknowledge():
            return -1
        return replicas.acks.acked_offset() if replicas.is_waiting_for_slaves else self._store.log.wrote

    # ------- holding and releasing answers

    def reply_or_hold(
        self, command: Command, reply: Command, connection: Connection, *, is_waiting: bool = True
    ) -> Command | None:
        """Return the reply to the last append if it is to be sent at once; None if it is held here.

        The reply to a one-way ``command`` is never held: ``BrokerService`` drops what a handler returns for such a
        request, but a held reply would be sent. ``is_waiting`` is False for a producer that does not want to wait until
        its message is durable.
        """
        if command.is_oneway or not self.must_wait():
            return reply
        if not is_waiting:
            self._store.note_answered()
            return reply
        self.hold([(connection, reply.encode(), 1)], self._store.log.wrote)
        return None

    async def wait_until_acknowledged(self) -> ResponseCode:
        """Wait until the last append may be acknowledged; return 0, or the code that a client would get instead.

        Call it in the same turn of the loop as the append. A broker that stops drops the answer, and cancels the task.
        """
        if not self.must_wait():
            return ResponseCode.SUCCESS
        future: asyncio.Future[ResponseCode] = self._loop.create_future()
        self.hold([(_Waiter(future), Command(code=ResponseCode.SUCCESS).encode(), 1)], self._store.log.wrote)
        return await future

    def hold(self, answers: Sequence[tuple[Receiver, bytes, int]], end: int) -> None:
        """Hold the answers of one append that ends at ``end``: connection, frames, and number of sends of each.

        If not enough slaves to wait for are in sync, the answers are sent at once with code 11.
        """
        replicas, now, held_answers, total = self._replicas, self._loop.time(), self._held_by_deadline[0], 0
        is_short = replicas.is_waiting_for_slaves and not replicas.has_enough()  # not enough slaves to wait for
        assert not held_answers or held_answers[-1].end <= end, "offsets grow"
        was_empty = not held_answers
        for connection, replies, count in answers:
            held = _Held(end, now, connection, replies, count)
            if is_short:
                self._answer_late(held, ResponseCode.SLAVE_NOT_AVAILABLE)
                continue
            held_answers.append(held)
            total += count
        self.count += total
        # With an empty first queue the timer, if any, is set for an answer that waits for a later state.
        if self._timer is None or (was_empty and total and self._expires_at(0) < self._timer.when()):
            self._set_timer()

    def release(self) -> None:
        """Send the held answers of all sends that are acknowledged now."""
        promised, now, waits = self._promised(), self._loop.time(), self._waits
        batches: dict[Receiver, list[bytes]] = {}
        for held_answers in reversed(self._held_by_deadline):
            while held_answers and held_answers[0].end <= promised:
                held = held_answers.popleft()
                self.count -= held.sends
                waits[min(int((now - held.at) * 1e6).bit_length(), len(waits) - 1)] += held.sends
                batches.setdefault(held.connection, []).append(held.replies)
        for connection, replies in batches.items():
            connection.send(b"".join(replies))

    def stop(self) -> None:
        """Drop all held answers without sending them."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for held_answers in self._held_by_deadline:
            held_answers.clear()
        self.count = 0

    # ------- deadlines

    def _expires_at(self, index: int) -> float:
        return self._held_by_deadline[index][0].at + self._deadlines[index].timeout_ms / 1000

    def _set_timer(self) -> None:
        times = [self._expires_at(index) for index, held_answers in enumerate(self._held_by_deadline) if held_answers]
        if self._timer is not None:
            self._timer.cancel()
        if times:
            self._timer = self._loop.call_at(min(times), self._expire)

    def _expire(self) -> None:
        """Answer the sends whose deadline has passed, and set the timer for the next deadline."""
        self._timer = None
        self.release()  # a send that is durable but not answered yet is not late
        now = self._loop.time()
        for index, (deadline, held_answers) in enumerate(zip(self._deadlines, self._held_by_deadline, strict=True)):
            while held_answers and self._expires_at(index) <= now:
                held = held_answers.popleft()
                if held.end <= self._positions[deadline.state]() and index + 1 < len(self._held_by_deadline):
                    self._held_by_deadline[index + 1].append(held)
                    continue
                self.count -= held.sends
                self._answer_late(held, TIMEOUT_CODES[deadline.state])
        self._set_timer()

    def _answer_late(self, held: _Held, code: ResponseCode) -> None:
        self.late_count += held.sends
        held.connection.send(replace_code(held.replies, code))


def replace_code(replies: bytes, code: ResponseCode) -> bytes:
    """Return these frames, which are JSON replies with code 0, with another code."""
    parts: list[bytes] = []
    position = 0
    while position < len(replies):
        total, header_bytes = FRAME_HEAD.unpack_from(replies, position)
        start, end = position + FRAME_HEAD.size, position + 4 + total
        header = json.loads(replies[start : start + header_bytes])
        header["code"] = int(code)
        data = json.dumps(header, separators=(",", ":")).encode()
        body = replies[start + header_bytes : end]
        parts += (FRAME_HEAD.pack(4 + len(data) + len(body), len(data)), data, body)
        position = end
    return b"".join(parts)
