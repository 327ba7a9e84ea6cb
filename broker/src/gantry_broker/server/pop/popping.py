"""Reads the messages of a pop from its queues, and claims them for the group.

    queues     the retry queue of the topic and group (first for one pop of five), then the queue of the request or all,
               in rotation; those of a priority topic by priority, and then the retry queue
    start      where the last pop ended, or the committed offset if that is later; a new group starts as it requests
    filter     by tags or by properties, as for pulls; messages that do not match are passed, and never popped later

Only messages that consumers may see are read, so that no fault of the mode can take one back. A queue in which a group
has too many messages that are not acked is left out until some are.
"""

from __future__ import annotations

import asyncio
import logging
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, final

from gantry_broker.errors import QueueRebuilding
from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.priorities import is_priority_topic, priority_factor
from gantry_broker.server.pop.checkpoints import Checkpoint, PopQueue
from gantry_broker.server.pop.journal import PopJournal
from gantry_broker.server.pop.order import OrderedQueues, OrderInfo, offset_list_of
from gantry_broker.server.pop.records import with_receipt
from gantry_broker.server.pop.writer import Claim, PopWriter
from gantry_broker.server.pull.pull_hold import FilterBudget
from gantry_broker.store.reader import ReadResult, ReadStatus
from gantry_wire import names
from gantry_wire.commands.pop import START_AT_MAX, PeekMessage, PopMessage
from gantry_wire.filters import MessageFilter, TagFilter, parse_tag_filter
from gantry_wire.message import decode_record
from gantry_wire.pop_receipts import (
    ORDER_REVIVE_QUEUE,
    Receipt,
    format_order_counts,
    retry_flag_of,
)

log = logging.getLogger(__name__)

PERCENT: Final = 100

READS_MAX: Final = 3
"""How often one pop reads a queue again from a corrected offset."""

_MOVED: Final = (ReadStatus.OFFSET_TOO_SMALL, ReadStatus.OFFSET_OVERFLOW_BADLY)
"""Results of a read from an offset that the queue does not have: reading continues at the one that it names."""

_PASSED: Final = (ReadStatus.NO_MATCHED_MESSAGE, ReadStatus.MESSAGE_WAS_REMOVING)
"""Results of a read that passed messages and found none."""

_HEAD: Final = struct.Struct(">i16xq")
"""The size and the queue offset of a record."""


class ReadingOrder(NamedTuple):
    """The order in which one pop reads its queues."""

    is_retry_first: bool = False
    is_by_priority: bool = False


IN_ROTATION: Final = ReadingOrder()
"""The order of most pops: the queues of the topic in turn, and then the retry queues."""


@dataclass(slots=True)
class Popped:
    """The messages of one pop, and the texts of its reply."""

    pop_time_ms: int
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


@final
class Popper:
    """Reads messages for pops. Owned by the event loop."""

    def __init__(
        self,
        core: BrokerCore,
        journal: PopJournal,
        writer: PopWriter,
        ordered: OrderedQueues,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._core: Final = core
        self._journal: Final = journal
        self._writer: Final = writer
        self._ordered: Final = ordered
        self.budget: Final = FilterBudget(loop)
        self._rotation = 0
        self._retry_share = 0
        """The sum of the shares of pops in percent, from which each 100 let one pop read its retry queue first."""

        self.random: Final = random.Random()
        """Decides which pops of a group read by priority."""

        self.limited: Final[set[PopQueue]] = set()
        """Queues that were left out since too many messages are not acked."""

        self.pop_count = 0
        """The number of messages that were popped since this start."""

    def __repr__(self) -> str:
        return f"<Popper popped={self.pop_count}>"

    def pop(self, request: PopMessage, message_filter: MessageFilter) -> Popped:
        """Read and claim messages; none are claimed if none are found. The journal is ready."""
        self._rotation += 1
        popped = Popped(self._journal.times.pop_time_ms())
        for topic, queue_id in self._queues(request, self._reading_order(request)):
            queue = self._journal.state.queue(topic, request.consumer_group, queue_id)
            self._pop_queue(queue, request, message_filter, popped)
        self.pop_count += popped.count
        return popped

    def has_messages(self, group: str, topic: str, queue_id: int, *, attempt_id: str | None, is_order: bool) -> bool:
        """Whether a pop of this group from a queue, or from all for a negative id, would find a message to examine."""
        request = PopMessage(
            consumer_group=group, topic=topic, queue_id=queue_id, max_msg_nums=1, invisible_time=1, poll_time=0,
            init_mode=0, order=is_order, attempt_id=attempt_id,
        )  # fmt: skip
        for name, number in self._queues(request):
            queue = self._journal.state.queue(name, group, number)
            if is_order and self._is_blocked(queue, attempt_id):
                continue
            first, end = self._core.readable_range(name, number)
            if max(self._known_start(queue) or 0, first) < end:
                return True
        return False

    def peek(self, request: PeekMessage) -> Popped:
        """Read messages that the group would pop next, without a claim."""
        self._rotation += 1
        popped = Popped(self._journal.times.pop_time_ms())
        like_pop = PopMessage(
            consumer_group=request.consumer_group, topic=request.topic, queue_id=request.queue_id,
            max_msg_nums=request.max_msg_nums, invisible_time=1, poll_time=0, init_mode=0,
        )  # fmt: skip
        for topic, queue_id in self._queues(like_pop):
            first, end = self._core.readable_range(topic, queue_id)
            queue = self._journal.state.queue(topic, request.consumer_group, queue_id)
            start = min(max(self._known_start(queue) or 0, first), end)
            popped.rest_count += end - start
            wanted = request.max_msg_nums - popped.count
            if wanted <= 0 or start == end:
                continue
            _, result = self._read(queue, start, wanted, parse_tag_filter(None), popped)
            if result is not None and result.count:
                popped.parts.append(result.body)
                popped.size += len(result.body)
                popped.count += result.count
        return popped

    def retry_topics(self, topic: str, group: str) -> list[str]:
        """Return the retry topics of a topic and group that exist, the one for new messages first."""
        is_v2 = self._core.settings.pop.is_retry_topic_v2
        found = [names.pop_retry_topic(topic, group, is_v2=kind) for kind in (is_v2, not is_v2)]
        return [name for name in found if name in self._core.topics]

    # -- queues --------------------------------------------------------------------------------------------------------

    def _reading_order(self, request: PopMessage) -> ReadingOrder:
        """Choose the order of a pop: by priority for a part of the pops of a group from a priority topic."""
        core, settings = self._core, self._core.settings.pop
        is_by_priority = (
            not request.order
            and is_priority_topic(core.topics.find(request.topic))
            and self.random.randrange(PERCENT) < priority_factor(core.groups.all.get(request.consumer_group))
        )
        share = settings.priority_retry_first_percent if is_by_priority else settings.retry_first_percent
        self._retry_share += share
        is_retry_first = self._retry_share >= PERCENT
        if is_retry_first:
            self._retry_share -= PERCENT
        return ReadingOrder(is_retry_first, is_by_priority)

    def _queues(self, request: PopMessage, order: ReadingOrder = IN_ROTATION) -> Iterator[tuple[str, int]]:
        """Yield the queues of a pop in the order in which it reads them."""
        retries = [] if request.order else self.retry_topics(request.topic, request.consumer_group)
        if order.is_retry_first:
            yield from self._all_queues(order, *retries)
        if request.queue_id < 0:
            yield from self._all_queues(order, request.topic)
        else:
            yield request.topic, request.queue_id
        if not order.is_retry_first:
            yield from self._all_queues(order, *retries)

    def _all_queues(self, order: ReadingOrder, *topics: str) -> Iterator[tuple[str, int]]:
        for topic in topics:
            config = self._core.topics.find(topic)
            count = 0 if config is None else config.read_queue_nums
            numbers = range(count)
            if order.is_by_priority and self._core.settings.pop.is_high_number_first:
                numbers = numbers[::-1]
            first = 0 if order.is_by_priority else self._rotation
            for number in numbers:
                yield topic, (first + number) % count

    def _known_start(self, queue: PopQueue) -> int | None:
        """Return where the next pop starts; None for a group that has no offset in the queue."""
        committed = self._core.offsets.find(queue.group, queue.topic, queue.queue_id)
        if committed is not None and committed > (queue.next_offset or 0):
            queue.next_offset = committed  # members that pull have consumed more
        return queue.next_offset

    def _start(self, queue: PopQueue, init_mode: int) -> int:
        """Return where this pop starts; a new group gets its offset now."""
        offsets, key = self._core.offsets, (queue.group, queue.topic, queue.queue_id)
        reset = offsets.resets.take(*key)
        if reset is not None:
            self.reset(queue, reset)
        start = self._known_start(queue)
        if start is None:
            start = queue.next_offset = self._first_offset(queue, init_mode)
            offsets.commit(*key, start)
        target = offsets.epoch_starts.redirect_offset(*key, start, committed=start)
        if target is None:
            return start
        self._writer.set_position(queue, target, is_void=False)
        return target

    def _first_offset(self, queue: PopQueue, init_mode: int) -> int:
        """Return where a new group starts: at the oldest message, or, as in RocketMQ, at the newest one."""
        first, end = self._core.readable_range(queue.topic, queue.queue_id)
        if init_mode != START_AT_MAX or queue.topic.startswith(names.RETRY_PREFIX):
            return first
        return max(end - 1, first, 0)

    def reset(self, queue: PopQueue, offset: int | None) -> None:
        """Let the group continue at ``offset``, and forget what it has popped. Raises errors of the store."""
        self._writer.set_position(queue, offset, is_void=True)
        self._ordered.forget(_order_key(queue), queue.queue_id)

    # -- one queue -----------------------------------------------------------------------------------------------------

    def _pop_queue(self, queue: PopQueue, request: PopMessage, message_filter: MessageFilter, popped: Popped) -> None:
        start = self._start(queue, request.init_mode)
        _, end = self._core.readable_range(queue.topic, queue.queue_id)
        if request.order and self._is_blocked(queue, request.attempt_id):
            return
        wanted = request.max_msg_nums - popped.count
        if wanted <= 0 or self._is_full(queue, wanted):
            popped.rest_count += max(0, end - start)
            return
        start, result = self._read(queue, start, wanted, message_filter, popped)
        if result is None:
            return
        popped.rest_count += max(0, result.max_offset - result.next_offset)
        if result.count:
            self._claim(queue, request, start, result, popped)
        elif result.status in _PASSED and result.next_offset > start:
            self._pass(queue, result, popped)

    def _read(
        self, queue: PopQueue, start: int, wanted: int, message_filter: MessageFilter, popped: Popped
    ) -> tuple[int, ReadResult | None]:
        """Read messages; return where reading began, and the result, or None while the queue is rebuilt."""
        store, settings = self._core.store, self._core.settings
        bytes_max = max(1, settings.pull_bytes_max - popped.size)
        result: ReadResult | None = None
        for _ in range(READS_MAX):
            try:
                if isinstance(message_filter, TagFilter):
                    result = store.read(
                        queue.topic, queue.queue_id, start, count_max=wanted, bytes_max=bytes_max,
                        accept=message_filter.codes or None,
                    )  # fmt: skip
                else:
                    units_max = self.budget.count_units(message_filter)
                    result = store.read(
                        queue.topic, queue.queue_id, start, count_max=wanted, bytes_max=bytes_max,
                        want=message_filter.accepts_encoded, units_max=units_max,
                    )  # fmt: skip
                    self.budget.spend(message_filter, max(0, min(units_max, result.next_offset - start)))
            except QueueRebuilding:
                return start, None
            if result.status not in _MOVED:
                break
            facts = {"topic": queue.topic, "queue": queue.queue_id, "group": queue.group, "offset": start}
            log.warning("pop offset is outside its queue; corrected", extra={**facts, "next": result.next_offset})
            start = result.next_offset
            self._writer.set_position(queue, start, is_void=False)
        return start, result

    def _pass(self, queue: PopQueue, result: ReadResult, popped: Popped) -> None:
        """Continue after messages that the filter does not want, or that do not exist any more."""
        queue.next_offset = result.next_offset
        popped.is_unfinished = popped.is_unfinished or result.next_offset < result.max_offset
        self._writer.flush()  # the checkpoints before these messages must be in the log before the offset is committed
        self._journal.note_progress(queue, result.next_offset)

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
            queue.next_offset = result.next_offset
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

    # -- ordered consumption, and limits -------------------------------------------------------------------------------

    def _is_blocked(self, queue: PopQueue, attempt_id: str | None) -> bool:
        return self._ordered.is_blocked(
            _order_key(queue), queue.queue_id, attempt_id, self._journal.times.monotonic_ms()
        )

    def _record_order(
        self, queue: PopQueue, request: PopMessage, offsets: list[int], pop_time_ms: int, flag: str
    ) -> str:
        info = OrderInfo(
            pop_time=pop_time_ms, invisible_time=request.invisible_time, offset_list=offset_list_of(offsets),
            last_consumed_ms=pop_time_ms, attempt_id=request.attempt_id,
            wall_lead_ms=self._journal.times.wall_lead_ms(),
        )  # fmt: skip
        delivered = self._ordered.record_pop(_order_key(queue), queue.queue_id, info)
        return format_order_counts(flag, queue.queue_id, len(offsets), delivered)

    def _is_full(self, queue: PopQueue, wanted: int) -> bool:
        """Whether the group, or all groups together, have too many messages that are not acked."""
        settings = self._core.settings.pop
        is_full = (
            queue.inflight_count + wanted > settings.inflight_max
            or self._journal.state.inflight_count + wanted > settings.inflight_total_max
        )
        if is_full and not self.limited:
            facts = {"topic": queue.topic, "queue": queue.queue_id, "group": queue.group}
            log.warning(
                "too many popped messages are not acked; pops wait", extra={**facts, "inflight": queue.inflight_count}
            )
        if is_full:
            self.limited.add(queue)
        return is_full


def _order_key(queue: PopQueue) -> str:
    return f"{queue.topic}@{queue.group}"


def queue_offsets_of(body: bytes) -> list[int]:
    """Return the queue offsets of records."""
    offsets: list[int] = []
    position = 0
    while position < len(body):
        size, offset = _HEAD.unpack_from(body, position)
        offsets.append(offset)
        position += size
    return offsets
