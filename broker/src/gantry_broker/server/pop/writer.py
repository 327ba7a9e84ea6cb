"""Appends the checkpoints and acks of one turn of the event loop together, and answers their requests.

    requests of a turn -> [ck, ck, ..., ack, bAck, ...] one append -> state -> answers, through the gate of sends

A pop is answered when its checkpoint is as safe as a message with the mode of this broker, and an ack when it is. So
a message whose ack was answered is never delivered again, and one that was popped is never forgotten.

Reading for a pop changes nothing. The position of a queue moves when the writer takes the claims of a pop, or the
messages that it has passed. If the append fails, the writer moves the positions of all of them back, and each request
gets the refusal of the store:

    queue   [ ... | claim 1..3 | passed 4..8 | )       refused: the next pop starts at 1
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, final

import msgspec

from gantry_broker.errors import BrokerError
from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.refusals import Refusal, Refused, store_refusal
from gantry_broker.server.pop import records
from gantry_broker.server.pop.checkpoints import SEPARATOR, Checkpoint, PopQueue, is_open
from gantry_broker.server.pop.journal import PopJournal
from gantry_broker.server.pop.records import AckRecord, CheckpointRecord, PositionRecord
from gantry_broker.server.send.ack_gate import AckGate
from gantry_broker.store.draft import Draft
from gantry_remoting import Connection
from gantry_status import RefusalReason
from gantry_wire import Command, ResponseCode, WireLimits

NOT_READY: Final = Refusal(
    ResponseCode.SERVICE_NOT_AVAILABLE,
    "service not available now, this broker is still reading the checkpoints of popped messages",
    RefusalReason.NOT_SERVING,
)
"""The answer while it is unknown which messages were popped and acked."""

_encode: Final = msgspec.json.encode


class Answer(NamedTuple):
    """The answer to a request, which is sent when its records are durable."""

    command: Command
    connection: Connection
    reply: Command


class Claim(NamedTuple):
    """Messages of a queue that a pop has read."""

    checkpoint: Checkpoint
    next_offset: int
    """Where the next pop continues."""


class Move(NamedTuple):
    """A change of where the next pop of a queue starts, which is committed if the append succeeds."""

    queue: PopQueue
    start: int
    next_offset: int


@final
class PopWriter:
    """The appends of pop consumption. Owned by the event loop."""

    def __init__(
        self, core: BrokerCore, journal: PopJournal, ack_gate: AckGate, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._core: Final = core
        self._journal: Final = journal
        self._ack_gate: Final = ack_gate
        self._loop: Final = loop
        self._limits: Final = WireLimits(frame_bytes_max=core.settings.frame_bytes_max)
        self._checkpoints: list[Checkpoint] = []
        self._moves: list[Move] = []
        self._acks: dict[Checkpoint, int] = {}
        self._answers: list[Answer] = []
        self._is_scheduled = False
        self.on_acked: Final[list[Callable[[], None]]] = []
        """Called when messages were acked, or delivered again."""

        self.ack_count = 0
        """The number of messages that were acked since this start."""

    def __repr__(self) -> str:
        count = len(self._checkpoints)
        return f"<PopWriter checkpoints={count} acks={len(self._acks)} answers={len(self._answers)}>"

    # -- the work of a turn --------------------------------------------------------------------------------------------

    def add_pop(self, claims: Iterable[Claim], answer: Answer) -> None:
        """Store the checkpoints of a pop at the end of this turn, then answer it. The next pop starts after them."""
        for claim in claims:
            checkpoint = claim.checkpoint
            self._checkpoints.append(checkpoint)
            self._move(Move(checkpoint.queue, checkpoint.start_offset, claim.next_offset))
        self._answer_later(answer)

    def add_passed(self, moves: Iterable[Move]) -> None:
        """Continue after messages that no pop of the group wants, or that do not exist any more.

        The end is committed at the end of this turn, when the checkpoints before these messages are in the log.
        """
        for move in moves:
            self._move(move)
            self._flush_later()

    def add_acks(self, acked: Iterable[tuple[Checkpoint, int]], answer: Answer) -> None:
        """Store acks of these bits of checkpoints at the end of this turn, then answer."""
        for checkpoint, bits in acked:
            self._acks[checkpoint] = self._acks.get(checkpoint, 0) | bits
        self._answer_later(answer)

    def add_change(self, old: Checkpoint, bit: int, new: Checkpoint, answer: Answer) -> None:
        """Replace a message's checkpoint by a new one at the end of this turn, then answer."""
        self._checkpoints.append(new)
        self.add_acks([(old, bit)], answer)

    def is_acked(self, checkpoint: Checkpoint, bit: int) -> bool:
        """Whether a message is acked, also if its ack is stored only at the end of this turn."""
        return bool((checkpoint.acked | self._acks.get(checkpoint, 0)) & bit)

    def is_claimed(self, checkpoint: Checkpoint) -> bool:
        """Whether a checkpoint with the same key is open, or is stored at the end of this turn."""
        queue, key = checkpoint.queue, checkpoint.key
        return key in queue.open or any(one.queue is queue and one.key == key for one in self._checkpoints)

    def set_position(self, queue: PopQueue, offset: int | None, *, is_void: bool) -> None:
        """Store a queue's next offset now; ``is_void``: and forget its checkpoints.

        A log without records of pops needs none for a queue whose checkpoints are void: a start finds none.
        Raises errors of the store, and Refused if the work of this turn so far is refused: ``offset`` may be beyond
        messages that are to be popped again.
        """
        refusal = self.flush()
        if refusal is not None and not is_void:
            raise Refused(refusal.code, refusal.remark)
        record = PositionRecord(
            offset=-1 if offset is None else offset, queue_id=queue.queue_id, topic=queue.topic, group=queue.group,
            is_void=is_void,
        )  # fmt: skip
        entries = [(queue.revive_queue, records.POSITION_TAG, _encode(record))]
        if is_void:  # a restart may read checkpoints of another revive queue after this record
            foreign = [one for one in queue.open.values() if one.revive_queue != queue.revive_queue]
            entries += [ack_entry(one, (1 << len(one.offsets)) - 1) for one in foreign]
        if self._journal.is_used or not is_void:
            self.append(entries)
        if is_void:
            self._journal.state.void(queue)
        queue.next_offset = offset
        self._core.offsets.popped_ends.discard(f"{queue.topic}{SEPARATOR}{queue.group}", queue.queue_id)

    def append(self, entries: Sequence[tuple[int, str, bytes]], before: Sequence[Draft] = ()) -> list[int]:
        """Append messages and then records together; return the offsets of the records in their revive queues.

        Raises errors of the store.
        """
        drafts = [*before, *(self._journal.draft(*entry) for entry in entries)]
        store = self._core.store
        _, offsets = store.append_contiguous(drafts) if before else store.append(drafts)
        own = list(offsets[len(before) :])
        for (number, _, _), offset in zip(entries, own, strict=True):
            self._journal.note_appended(number, offset)
        return own

    # -- the end of a turn ---------------------------------------------------------------------------------------------

    def flush(self) -> Refusal | None:
        """Append the work so far, apply it, and answer its requests; return the refusal if they were refused."""
        checkpoints, moves, acks, answers = self._checkpoints, self._moves, self._acks, self._answers
        if not answers and not moves:
            return None
        self._checkpoints, self._moves, self._acks, self._answers = [], [], {}, []
        if not self._journal.is_ready:
            return self._refuse(moves, answers, self._core.gate.write_refusal or NOT_READY)
        acked = [(checkpoint, bits & ~checkpoint.acked) for checkpoint, bits in acks.items() if is_open(checkpoint)]
        entries = [checkpoint_entry(checkpoint) for checkpoint in checkpoints]
        entries += [ack_entry(checkpoint, bits) for checkpoint, bits in acked if bits]
        try:
            offsets = self.append(entries) if entries else []
        except BrokerError as error:
            return self._refuse(moves, answers, store_refusal(error))
        state, times = self._journal.state, self._journal.times
        for checkpoint, offset in zip(checkpoints, offsets, strict=False):
            checkpoint.due_ms = times.due_ms(checkpoint.pop_time_ms, checkpoint.invisible_ms)
            state.open(checkpoint, offset)
        for move in moves:
            self._journal.note_progress(move.queue, move.next_offset)
        for checkpoint, bits in acked:
            self.ack_count += state.ack(checkpoint, bits)
        if acked:
            self.notify_acked()
        self._send(answers)
        return None

    def notify_acked(self) -> None:
        """Report that fewer messages are invisible, so that a pop may find more."""
        for notify in self.on_acked:
            notify()

    def _answer_later(self, answer: Answer) -> None:
        self._answers.append(answer)
        self._flush_later()

    def _move(self, move: Move) -> None:
        move.queue.next_offset = move.next_offset
        self._moves.append(move)

    def _flush_later(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._is_scheduled = False
        self.flush()

    def _refuse(self, moves: list[Move], answers: list[Answer], refusal: Refusal) -> Refusal:
        """Refuse the requests, and let the messages of their pops be popped again."""
        for queue, start, _ in moves:
            if queue.next_offset is not None:
                queue.next_offset = min(queue.next_offset, start)
        for answer in answers:
            self._send_now(answer._replace(reply=self._core.stats.refusals.reply(answer.command, refusal)))
        return refusal

    def _send(self, answers: list[Answer]) -> None:
        """Send the answers when the log is as safe up to its end as the mode promises."""
        if not self._ack_gate.must_wait():
            for answer in answers:
                self._send_now(answer)
            return
        held: dict[Connection, list[bytes]] = {}
        for command, connection, reply in answers:
            if not command.is_oneway:
                held.setdefault(connection, []).append(reply.encode_reply(self._limits))
        if held:
            frames = [(connection, b"".join(replies), len(replies)) for connection, replies in held.items()]
            self._ack_gate.hold(frames, self._core.store.log.wrote)

    def _send_now(self, answer: Answer) -> None:
        if not answer.command.is_oneway:
            answer.connection.send(answer.reply.encode_reply(self._limits))


def checkpoint_entry(checkpoint: Checkpoint) -> tuple[int, str, bytes]:
    """Return the revive queue, the tag and the body of a checkpoint's record."""
    queue = checkpoint.queue
    record = CheckpointRecord(
        start_offset=checkpoint.start_offset, pop_time=checkpoint.pop_time_ms, invisible_time=checkpoint.invisible_ms,
        queue_id=queue.queue_id, topic=queue.topic, group=queue.group, count=len(checkpoint.offsets),
        distances=checkpoint.distances, broker_name=checkpoint.broker_name,
        is_suspended=checkpoint.is_suspended,
    )  # fmt: skip
    return checkpoint.revive_queue, records.CHECKPOINT_TAG, _encode(record)


def ack_entry(checkpoint: Checkpoint, bits: int) -> tuple[int, str, bytes]:
    """Return the revive queue, the tag and the body of the record that acks these messages of a checkpoint."""
    queue, offsets = checkpoint.queue, checkpoint.offsets_of(bits)
    is_single = len(offsets) == 1
    record = AckRecord(
        start_offset=checkpoint.start_offset, pop_time=checkpoint.pop_time_ms, queue_id=queue.queue_id,
        topic=queue.topic, group=queue.group, ack_offset=offsets[0] if is_single else -1,
        several=None if is_single else offsets, broker_name=checkpoint.broker_name,
    )  # fmt: skip
    return checkpoint.revive_queue, records.ACK_TAG if is_single else records.BATCH_ACK_TAG, _encode(record)
