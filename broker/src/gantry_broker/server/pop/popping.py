"""Reads the messages of a pop from its queues, and claims them for the group.

    queues     the retry queue of the topic and group (first for one pop of five), then the queue of the request or all,
               in rotation; those of a priority topic by priority, and then the retry queue
    start      where the last pop ended, or the committed offset if that is later; a new group starts as it requests
    filter     by tags or by properties, as for pulls; messages that do not match are passed, and never popped later

Only messages that consumers may see are read, so that no fault of the mode can take one back. A queue in which a group
has too many messages that are not acked is left out until some are.

A pop first reads all of its queues, which changes none of them, and then claims what it has read. If the store refuses
something in between, nothing is claimed.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterator
from typing import Final, NamedTuple, final

from gantry_broker.errors import QueueRebuilding
from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.priorities import is_priority_topic, priority_factor
from gantry_broker.server.pop.checkpoints import PopQueue
from gantry_broker.server.pop.claims import PopClaims, Popped, QueueRead, order_key
from gantry_broker.server.pop.journal import PopJournal
from gantry_broker.server.pop.order import OrderedQueues
from gantry_broker.server.pop.writer import PopWriter
from gantry_broker.server.pull.pull_hold import FilterBudget
from gantry_broker.store.reader import ReadResult, ReadStatus
from gantry_wire import names
from gantry_wire.commands.pop import START_AT_MAX, PeekMessage, PopMessage
from gantry_wire.filters import MessageFilter, TagFilter, parse_tag_filter
from gantry_wire.limits import HEADER_BYTES_MAX

log = logging.getLogger(__name__)

PERCENT: Final = 100

READS_MAX: Final = 3
"""How often one pop reads a queue again from a corrected offset."""

_MOVED: Final = (ReadStatus.OFFSET_TOO_SMALL, ReadStatus.OFFSET_OVERFLOW_BADLY)
"""Results of a read from an offset that the queue does not have: reading continues at the one that it names."""


class ReadingOrder(NamedTuple):
    """The order in which one pop reads its queues."""

    is_retry_first: bool = False
    is_by_priority: bool = False


IN_ROTATION: Final = ReadingOrder()
"""The order of most pops: the queues of the topic in turn, and then the retry queues."""


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
        self._claims: Final = PopClaims(core, journal, writer, ordered)
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
        """Read messages, and claim them for the group once the writer gets the claims. The journal is ready.

        Raises errors of the store, and Refused; then nothing is claimed.
        """
        self._rotation += 1
        popped = Popped()
        for topic, queue_id in self._queues(request, self._reading_order(request)):
            queue = self._journal.state.queue(topic, request.consumer_group, queue_id)
            self._read_queue(queue, request, message_filter, popped)
        self._claims.claim_all(request, popped)
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
            if is_order and self.is_blocked(queue, attempt_id):
                continue
            first, end = self._core.readable_range(name, number)
            if max(self._known_start(queue) or 0, first) < end:
                return True
        return False

    def peek(self, request: PeekMessage) -> Popped:
        """Read messages that the group would pop next, without a claim."""
        self._rotation += 1
        popped = Popped()
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
            if wanted <= 0 or popped.is_filled or start == end:
                continue
            read = self._read(queue, start, wanted, parse_tag_filter(None), popped)
            if read is not None and popped.take(read, self._bytes_max):
                popped.parts.append(read.result.body)
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
        reset = offsets.resets.find(*key)
        if reset is not None:
            self.reset(queue, reset)
            offsets.resets.complete(*key)
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
        self._ordered.forget(order_key(queue), queue.queue_id, self._journal.times.pop_time_ms())

    # -- one queue -----------------------------------------------------------------------------------------------------

    @property
    def _bytes_max(self) -> int:
        """The limit of the messages of one reply, unless one message is larger."""
        settings = self._core.settings
        return max(1, min(settings.pull_bytes_max, settings.frame_bytes_max - HEADER_BYTES_MAX))

    def _read_queue(self, queue: PopQueue, request: PopMessage, message_filter: MessageFilter, popped: Popped) -> None:
        start = self._start(queue, request.init_mode)
        _, end = self._core.readable_range(queue.topic, queue.queue_id)
        if request.order and self.is_blocked(queue, request.attempt_id):
            return
        wanted = request.max_msg_nums - popped.count
        if wanted <= 0 or popped.is_filled or self._is_full(queue, wanted):
            popped.rest_count += max(0, end - start)
            return
        read = self._read(queue, start, wanted, message_filter, popped)
        if read is not None:
            result = read.result
            next_offset = result.next_offset if popped.take(read, self._bytes_max) else read.start
            popped.rest_count += max(0, result.max_offset - next_offset)

    def _read(
        self, queue: PopQueue, start: int, wanted: int, message_filter: MessageFilter, popped: Popped
    ) -> QueueRead | None:
        """Read messages; return None while the queue is rebuilt."""
        store = self._core.store
        bytes_max = max(1, self._bytes_max - popped.size)
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
                return None
            if result.status not in _MOVED:
                break
            facts = {"topic": queue.topic, "queue": queue.queue_id, "group": queue.group, "offset": start}
            log.warning("pop offset is outside its queue; corrected", extra={**facts, "next": result.next_offset})
            start = result.next_offset
            self._writer.set_position(queue, start, is_void=False)
        return None if result is None else QueueRead(queue, start, result)

    # -- ordered consumption, and limits -------------------------------------------------------------------------------

    def is_blocked(self, queue: PopQueue, attempt_id: str | None) -> bool:
        """Whether messages of an ordered queue are invisible, so that none is to be popped."""
        return self._ordered.is_blocked(
            order_key(queue), queue.queue_id, attempt_id, self._journal.times.monotonic_ms()
        )

    def has_room(self, queue: PopQueue) -> bool:
        """Whether one more message of a queue may be popped and not acked."""
        settings, state = self._core.settings.pop, self._journal.state
        return queue.inflight_count < settings.inflight_max and state.inflight_count < settings.inflight_total_max

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
