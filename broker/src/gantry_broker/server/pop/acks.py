"""Handles acks of popped messages, and changes of their invisible times.

    ack      -> the ack is in the log: the message is never delivered to the group again, also after a failover
    change   -> a new checkpoint of the one message, and the ack of the old one, are in the log together

An ack with a receipt of no open checkpoint succeeds without an effect, as in RocketMQ: the message is acked already, or
its time is over and it was delivered again. A change then fails with the code of a message that does not exist, where
RocketMQ would deliver the message again.

An ordered group has no checkpoints: an ack moves its offset when all messages before are acked, too. If the pop of its
receipt is not known any more, the ack counts only for a message that was stored before that pop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import Final, final

from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.handlers import handles
from gantry_broker.server.core.refusals import Refused
from gantry_broker.server.pop import requests
from gantry_broker.server.pop.checkpoints import Checkpoint, PopQueue
from gantry_broker.server.pop.order import ILLEGAL, SEPARATOR
from gantry_broker.server.pop.service import Pops
from gantry_broker.server.pop.writer import Answer
from gantry_remoting import Connection
from gantry_wire import Command, RequestCode, ResponseCode
from gantry_wire.commands.documents import read_document
from gantry_wire.commands.pop import (
    AckMessage,
    BatchAck,
    BatchAckMessages,
    ChangeInvisibleTime,
    ChangeInvisibleTimeResult,
)
from gantry_wire.pop_receipts import (
    ORDER_REVIVE_QUEUE,
    RETRY_FLAG_NONE,
    RETRY_FLAG_V1,
    RETRY_FLAG_V2,
    Receipt,
    queue_topic,
)

ACKS_MAX: Final = 1024
"""The limit of checkpoints in one batch of acks, which is handled while other requests wait."""

ORDERED_BITS_MAX: Final = 64
"""How many messages of an ordered pop one ack may name: a pop returns at most 32."""

BITS_BYTES_MAX: Final = 128 * 1024
"""The limit of the bits of one ack: a pop passes at most as many messages."""


@final
class PopAcks:
    """The handlers of acks. Owned by the event loop."""

    def __init__(self, core: BrokerCore, pops: Pops) -> None:
        self._core: Final = core
        self._pops: Final = pops

    # ------- acks

    @handles(RequestCode.ACK_MESSAGE)
    def ack(self, command: Command, connection: Connection) -> Command | Awaitable[Command | None] | None:
        """Ack one message, which then is never delivered to the group again."""
        request = AckMessage.read(command.ext)
        topic, queue_id = request.topic, request.queue_id
        requests.check_popped_message(self._core, topic, queue_id, request.offset, is_end_valid=True)
        receipt = requests.read_receipt(request.extra_info)
        answer = Answer(command, connection, command.reply())

        def act() -> Command | None:
            if receipt.is_ordered:
                queue = self._ordered_queue(topic, request.consumer_group, queue_id)
                return self._ack_ordered(queue, [request.offset], receipt.pop_time_ms, answer)
            checkpoint = self._find(topic, request.consumer_group, queue_id, receipt)
            acked = [] if checkpoint is None else [(checkpoint, checkpoint.bit_of(request.offset))]
            self._pops.writer.add_acks(acked, answer)
            return None

        return act() if self._pops.read_if_short() else self._pops.when_ready(command, act)

    @handles(RequestCode.BATCH_ACK_MESSAGE)
    def ack_batch(self, command: Command, connection: Connection) -> Command | Awaitable[Command | None] | None:
        """Ack messages of several checkpoints."""
        acks = read_document(command.body, BatchAckMessages).acks if command.body else []
        if not acks:
            return command.reply(ResponseCode.NO_MESSAGE, "the request has no acks")
        if len(acks) > ACKS_MAX:
            text = f"the request has acks of {len(acks)} checkpoints, but at most {ACKS_MAX}; send several requests"
            raise Refused(ResponseCode.INVALID_PARAMETER, text)
        for ack in acks:
            _check_batch_ack(ack)
        answer = Answer(command, connection, command.reply())

        def act() -> Command | None:
            acked: list[tuple[Checkpoint, int]] = []
            for ack in acks:
                if ack.revive_queue_id == ORDER_REVIVE_QUEUE:
                    refusal = self._ack_ordered(self._queue_of(ack), self._ordered_offsets(ack), ack.pop_time, None)
                    if refusal is not None:
                        answer.reply.code, answer.reply.remark = refusal.code, refusal.remark
                else:
                    acked += self._checkpoint_bits(ack)
            self._pops.writer.add_acks(acked, answer)
            return None

        return act() if self._pops.read_if_short() else self._pops.when_ready(command, act)

    def _checkpoint_bits(self, ack: BatchAck) -> Iterable[tuple[Checkpoint, int]]:
        topic = queue_topic(ack.topic, ack.consumer_group, ack.retry)
        key = ack.start_offset, ack.pop_time
        checkpoint = self._pops.journal.state.find(topic, ack.consumer_group, ack.queue_id, key)
        if checkpoint is None:
            return
        wanted, offsets = int.from_bytes(ack.bit_set, "little"), checkpoint.offsets
        if isinstance(offsets, range):  # they follow each other from the start on, so that both count the same bits
            yield checkpoint, wanted & (1 << len(offsets)) - 1
            return
        found = [one for one in offsets if wanted >> (one - ack.start_offset) & 1]
        yield checkpoint, checkpoint.bits_of(found)

    def _queue_of(self, ack: BatchAck) -> PopQueue | None:
        topic = queue_topic(ack.topic, ack.consumer_group, ack.retry)
        return self._ordered_queue(topic, ack.consumer_group, ack.queue_id)

    def _ordered_queue(self, topic: str, group: str, queue_id: int) -> PopQueue | None:
        """Return the state of a queue that the group may have popped; None if a pop would be refused.

        It may have to be created, since nothing is stored for an ordered pop before its first ack.
        """
        state = self._pops.journal.state
        found = state.queues.get((topic, group, queue_id))
        if found is None and requests.is_queue_of_group(self._core, group, topic, queue_id):
            found = state.queue(topic, group, queue_id)
        return found

    def _ordered_offsets(self, ack: BatchAck) -> list[int]:
        """Return the offsets of an ordered ack that the queue has; RocketMQ ignores the others, too."""
        wanted = int.from_bytes(ack.bit_set[: ORDERED_BITS_MAX // 8], "little")
        first, end = self._core.readable_range(queue_topic(ack.topic, ack.consumer_group, ack.retry), ack.queue_id)
        offsets = (ack.start_offset + distance for distance in range(ORDERED_BITS_MAX) if wanted >> distance & 1)
        return [offset for offset in offsets if first <= offset <= end]

    def _find(self, topic: str, group: str, queue_id: int, receipt: Receipt) -> Checkpoint | None:
        """Return the open checkpoint of a receipt, if it is from this broker."""
        if receipt.broker_name != self._core.settings.broker_name:
            return None
        return self._pops.journal.state.find(topic, group, queue_id, (receipt.start_offset, receipt.pop_time_ms))

    # ------- ordered groups

    def _ack_ordered(
        self, queue: PopQueue | None, offsets: Iterable[int], pop_time_ms: int, answer: Answer | None
    ) -> Command | None:
        """Ack messages of an ordered group, and move its offset. Return the answer if it is a refusal, or at once.

        An offset that was not popped refuses the request, but the others are acked, as in RocketMQ.
        """
        if queue is None:
            return None if answer is None else answer.reply
        ordered, writer = self._pops.ordered, self._pops.writer
        key, next_offset, refusal = f"{queue.topic}{SEPARATOR}{queue.group}", -1, None
        committed = self._core.offsets.find(queue.group, queue.topic, queue.queue_id) or 0
        for offset in offsets:
            start = max(queue.next_offset or 0, committed, next_offset)
            if offset < start:
                continue
            if not ordered.is_known(key, queue.queue_id) and not self._may_be_popped(queue, offset, pop_time_ms):
                continue
            moved = ordered.ack(key, queue.queue_id, offset, pop_time_ms, next_offset=start)
            if moved == ILLEGAL:
                refusal = _illegal(queue, offset, answer)
            next_offset = max(next_offset, moved)
        if next_offset > (queue.next_offset or 0):
            writer.set_position(queue, next_offset, is_void=False)
            self._pops.journal.note_progress(queue, next_offset)
        self._pops.wake_if_free(queue)
        if answer is not None and refusal is None:
            writer.add_acks([], answer)
        return refusal

    def _may_be_popped(self, queue: PopQueue, offset: int, pop_time_ms: int) -> bool:
        """Whether a pop at this time may have returned the message, since it was stored before."""
        _, end = self._core.readable_range(queue.topic, queue.queue_id)
        return offset < end and self._core.store.times.store_time(queue.topic, queue.queue_id, offset) <= pop_time_ms

    # ------- invisible times

    @handles(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
    def change(self, command: Command, connection: Connection) -> Command | Awaitable[Command | None] | None:
        """Give a message another invisible time; the answer has what a new receipt needs."""
        request = ChangeInvisibleTime.read(command.ext)
        requests.check_invisible_time(request.invisible_time, least_ms=0)
        topic, queue_id = request.topic, request.queue_id
        requests.check_popped_message(self._core, topic, queue_id, request.offset, is_end_valid=False)
        receipt = requests.read_receipt(request.extra_info)

        def act() -> Command | None:
            if receipt.is_ordered:
                return self._change_ordered(command, request, receipt)
            return self._change(Answer(command, connection, command.reply()), request, receipt)

        return act() if self._pops.read_if_short() else self._pops.when_ready(command, act)

    def _change(self, answer: Answer, request: ChangeInvisibleTime, receipt: Receipt) -> Command | None:
        writer = self._pops.writer
        old = self._find(request.topic, request.consumer_group, request.queue_id, receipt)
        bit = 0 if old is None else old.bit_of(request.offset)
        if old is None or not bit or writer.is_acked(old, bit):
            text = "the receipt names no message that is invisible: it was acked, or its time is over"
            return answer.command.reply(ResponseCode.NO_MESSAGE, text)
        offset, pop_time_ms = request.offset, self._pops.journal.times.pop_time_ms()
        new = _one_message(old.queue, offset, pop_time_ms, request.invisible_time)
        while writer.is_claimed(new):
            pop_time_ms += 1
            new = _one_message(old.queue, offset, pop_time_ms, request.invisible_time)
        new.broker_name, new.is_suspended = self._core.settings.broker_name, request.suspend
        ext = ChangeInvisibleTimeResult(
            pop_time=pop_time_ms, invisible_time=request.invisible_time, revive_qid=old.queue.revive_queue
        ).write()
        writer.add_change(old, bit, new, answer._replace(reply=answer.command.reply(ext=ext)))
        return None

    def _change_ordered(self, command: Command, request: ChangeInvisibleTime, receipt: Receipt) -> Command:
        pops = self._pops
        queue = self._ordered_queue(request.topic, request.consumer_group, request.queue_id)
        if queue is None or request.offset < (queue.next_offset or 0):
            text = "the receipt names no message that is invisible: it was acked"
            return command.reply(ResponseCode.NO_MESSAGE, text)
        times, invisible_ms = pops.journal.times, request.invisible_time
        visible_ms = times.monotonic_ms() + invisible_ms
        key = f"{queue.topic}{SEPARATOR}{queue.group}"
        pops.ordered.change_visible(key, queue.queue_id, request.offset, receipt.pop_time_ms, visible_ms)
        ext = ChangeInvisibleTimeResult(
            pop_time=receipt.pop_time_ms, revive_qid=ORDER_REVIVE_QUEUE,
            invisible_time=max(invisible_ms, times.pop_time_ms() + invisible_ms - receipt.pop_time_ms),
        ).write()  # fmt: skip
        return command.reply(ext=ext)


def _one_message(queue: PopQueue, offset: int, pop_time_ms: int, invisible_ms: int) -> Checkpoint:
    return Checkpoint(queue, offset, pop_time_ms, invisible_ms, range(offset, offset + 1))


def _check_batch_ack(ack: BatchAck) -> None:
    if ack.retry not in (RETRY_FLAG_NONE, RETRY_FLAG_V1, RETRY_FLAG_V2):
        raise Refused(ResponseCode.SYSTEM_ERROR, f"the retry flag of an ack is {ack.retry[:16]!r}, not 0, 1 or 2")
    if len(ack.bit_set) > BITS_BYTES_MAX:
        text = f"the bits of an ack have {len(ack.bit_set)} bytes, but at most {BITS_BYTES_MAX}"
        raise Refused(ResponseCode.INVALID_PARAMETER, text)


def _illegal(queue: PopQueue, offset: int, answer: Answer | None) -> Command:
    text = (
        f"offset is illegal, key:{queue.topic}@{queue.group}@{queue.queue_id}, old:{queue.next_offset}, commit:{offset}"
    )
    command = Command(code=0) if answer is None else answer.command
    return command.reply(ResponseCode.MESSAGE_ILLEGAL, text)
