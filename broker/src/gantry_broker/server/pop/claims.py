"""Claims the messages that a pop has read, and makes the parts of its reply.

    reads of all queues -> checkpoints or ordered entries, pop time -> records with receipts, texts of the header

Nothing here moves the position of a queue: the writer does when it takes the claims, and moves it back if the append
fails. So a pop whose reply cannot be made, or that the store refuses, takes no message from the group.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final, NamedTuple, final

from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.pop.checkpoints import Checkpoint, PopQueue
from gantry_broker.server.pop.journal import PopJournal
from gantry_broker.server.pop.order import SEPARATOR, OrderedQueues, OrderInfo, offset_list_of
from gantry_broker.server.pop.records import with_receipt
from gantry_broker.server.pop.writer import Claim, Move, PopWriter
from gantry_broker.store.reader import ReadResult, ReadStatus
from gantry_wire.commands.pop import PopMessage
from gantry_wire.message import decode_record
from gantry_wire.pop_receipts import ORDER_REVIVE_QUEUE, Receipt, format_order_counts, retry_flag_of

_PASSED: Final = (ReadStatus.NO_MATCHED_MESSAGE, ReadStatus.MESSAGE_WAS_REMOVING)
"""Results of a read that passed messages and found none."""

_HEAD: Final = struct.Struct(">i16xq")
"""The size and the queue offset of a record."""


class QueueRead(NamedTuple):
    """What a pop has read from one queue."""

    queue: PopQueue
    start: int
    """Where reading began, and the next offset of the queue, unless that was moved since."""

    result: ReadResult


@dataclass(slots=True)
class Popped:
    """The messages of one pop, and the texts of its reply."""

    pop_time_ms: int = 0
    reads: list[QueueRead] = field(default_factory=list)
    is_filled: bool = False
    """Whether no message of another queue fits into the reply."""

    parts: list[bytes] = field(default_factory=list)
    count: int = 0
    size: int = 0
    claims: list[Claim] = field(default_factory=list)
    queues: list[tuple[str, int, int, list[int]]] = field(default_factory=list)
    """For each queue its retry flag, its id, where the pop began to read, and the offsets of the messages."""

    order_counts: list[str] = field(default_factory=list)
    rest_count: int = 0
    """The number of messages that are left in the queues."""

    is_unfinished: bool = False
    """Whether messages are left that were not examined, because a filter examines a limited number at once."""

    revive_queue: int = 0

    def take(self, read: QueueRead, bytes_max: int) -> bool:
        """Add what was read from a queue; False if it does not fit any more.

        A read returns at least one message, however large. So only the first message may be larger than the limit.
        """
        size = self.size + len(read.result.body)
        self.is_filled = size >= bytes_max
        if self.count and size > bytes_max:
            return False
        self.reads.append(read)
        self.size, self.count = size, self.count + read.result.count
        return True


@final
class PopClaims:
    """Claims messages for groups. Owned by the event loop."""

    def __init__(self, core: BrokerCore, journal: PopJournal, writer: PopWriter, ordered: OrderedQueues) -> None:
        self._core: Final = core
        self._journal: Final = journal
        self._writer: Final = writer
        self._ordered: Final = ordered

    def claim_all(self, request: PopMessage, popped: Popped) -> None:
        """Claim what was read, and pass the messages that the filter does not want or that do not exist any more."""
        # A write for a later queue may have ended this turn's work: if that was refused, earlier reads begin too late.
        reads = [read for read in popped.reads if read.queue.next_offset == read.start]
        popped.pop_time_ms = self._pop_time_ms(reads)
        popped.count = popped.size = 0
        passed: list[Move] = []
        for queue, start, result in reads:
            if result.count:
                self._claim(queue, request, start, result, popped)
            elif result.status in _PASSED and result.next_offset > start:
                passed.append(Move(queue, start, result.next_offset))
                popped.is_unfinished = popped.is_unfinished or result.next_offset < result.max_offset
        self._writer.add_passed(passed)

    def _pop_time_ms(self, reads: list[QueueRead]) -> int:
        """Return the present time, or the first one after it that names no open checkpoint of these reads.

        The wall clock may have been set back.
        """
        time_ms = self._journal.times.pop_time_ms()
        while any((read.start, time_ms) in read.queue.open for read in reads):
            time_ms += 1
        return time_ms

    def _claim(self, queue: PopQueue, request: PopMessage, start: int, result: ReadResult, popped: Popped) -> None:
        offsets = queue_offsets_of(result.body)
        flag = retry_flag_of(queue.topic)
        if request.order:
            popped.revive_queue = ORDER_REVIVE_QUEUE
            popped.order_counts.append(self._record_order(queue, request, offsets, popped.pop_time_ms, flag))
        else:
            checkpoint = self._checkpoint(queue, request, start, offsets, popped)
            popped.claims.append(Claim(checkpoint, result.next_offset))
            popped.revive_queue = queue.revive_queue
        body = result.body
        if queue.topic != request.topic:
            body = self._with_receipts(queue, request, start, body, popped)
        popped.parts.append(body)
        popped.size += len(body)
        popped.count += result.count
        popped.queues.append((flag, queue.queue_id, start, offsets))

    def _checkpoint(
        self, queue: PopQueue, request: PopMessage, start: int, offsets: list[int], popped: Popped
    ) -> Checkpoint:
        is_dense = offsets[0] == start and offsets[-1] - start + 1 == len(offsets)
        kept = range(start, start + len(offsets)) if is_dense else tuple(offsets)
        checkpoint = Checkpoint(queue, start, popped.pop_time_ms, request.invisible_time, kept)
        checkpoint.broker_name = self._core.settings.broker_name
        return checkpoint

    def _with_receipts(self, queue: PopQueue, request: PopMessage, start: int, body: bytes, popped: Popped) -> bytes:
        """Return messages of a retry queue with the topic that was asked for, and with their receipts."""
        receipt = Receipt(
            start, popped.pop_time_ms, request.invisible_time, queue.revive_queue, retry_flag_of(queue.topic),
            self._core.settings.broker_name, queue.queue_id,
        )  # fmt: skip
        parts: list[bytes] = []
        position = 0
        while position < len(body):
            message = decode_record(body, position, verify_crc=False)
            text = receipt._replace(queue_offset=message.queue_offset).text
            end = position + message.size
            parts.append(with_receipt(message, request.topic, text) or body[position:end])
            position = end
        return b"".join(parts)

    def _record_order(
        self, queue: PopQueue, request: PopMessage, offsets: list[int], pop_time_ms: int, flag: str
    ) -> str:
        info = OrderInfo(
            pop_time=pop_time_ms, invisible_time=request.invisible_time, offset_list=offset_list_of(offsets),
            last_consumed_ms=pop_time_ms, attempt_id=request.attempt_id,
            wall_lead_ms=self._journal.times.wall_lead_ms(),
        )  # fmt: skip
        delivered = self._ordered.record_pop(order_key(queue), queue.queue_id, info)
        return format_order_counts(flag, queue.queue_id, len(offsets), delivered)


def order_key(queue: PopQueue) -> str:
    """Return the key of a queue's group in the table of ordered pops."""
    return f"{queue.topic}{SEPARATOR}{queue.group}"


def queue_offsets_of(body: bytes) -> list[int]:
    """Return the queue offsets of records."""
    offsets: list[int] = []
    position = 0
    while position < len(body):
        size, offset = _HEAD.unpack_from(body, position)
        offsets.append(offset)
        position += size
    return offsets
