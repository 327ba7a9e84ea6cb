"""The search of a topic by ordinary pulls, newest messages first, with any broker of RocketMQ.

    queue 0   [begin ............. left)...round 2...)...round 1...end)
    queue 1          [begin ...... left)...round 2...)...round 1...end)

Each round pulls the newest part that is left of every queue, all queues concurrently, and yields what it found, newest
first. Brokers filter by tag or SQL92; conditions on bodies are tested here. The ranges of all queues are fixed at the
start, so that the share that was scanned is exact.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Final, final

from gantry_cli.messages.content import accepts
from gantry_cli.text import StartPosition
from gantry_client import FetchStatus, MessageQueue, PullConsumer, ReceivedMessage
from gantry_client.subscriptions import FilterExpression
from gantry_wire.search import MessageMatcher

FIRST_ROUND: Final = 64
"""The messages of a queue in the first round: few, so that the first hits appear at once."""

ROUND_MAX: Final = 8_192
"""The most messages of a queue in a round, which bounds the memory for hits that wait to be sorted."""

FETCH_MESSAGES: Final = 256
"""The most messages of one pull."""


@final
@dataclass(slots=True)
class _QueueRange:
    """The offsets ``[begin, left)`` of a queue that are not scanned yet."""

    queue: MessageQueue
    begin: int
    left: int


@final
class TopicSearch:
    """One search. Owned by one event loop."""

    def __init__(
        self, consumer: PullConsumer, topic: str, matcher: MessageMatcher, *, server_filter: FilterExpression = "*"
    ) -> None:
        self.total = self.scanned = self.deleted = 0
        """The messages in the ranges of all queues; those that were compared with the conditions, here or by a broker;
        and those that were deleted before they were reached."""

        self._consumer: Final = consumer
        self._topic: Final = topic
        self._matcher: Final = matcher
        self._filter: Final = server_filter
        self._ranges: list[_QueueRange] = []

    @property
    def share(self) -> float:
        """Which share of the messages was scanned; 1 for an empty range."""
        return self.scanned / self.total if self.total else 1.0

    async def open(self, start: StartPosition, end: StartPosition) -> None:
        """Fix the ranges of all queues, from one time to another. Raises ClientError."""
        queues = await self._consumer.queues(self._topic)
        self._ranges = list(await asyncio.gather(*(self._range_of(queue, start, end) for queue in queues)))
        self.total = sum(one.left - one.begin for one in self._ranges)

    async def hits(self) -> AsyncGenerator[ReceivedMessage, None]:
        """Yield the matching messages. Raises ClientError. The counts are exact after each round."""
        count = FIRST_ROUND
        while left := [one for one in self._ranges if one.left > one.begin]:
            found = await asyncio.gather(*(self._scan(one, count) for one in left))
            hits = [message for messages in found for message in messages]
            hits.sort(key=_store_order, reverse=True)
            for message in hits:
                yield message
            count = min(count * 2, ROUND_MAX)

    async def _range_of(self, queue: MessageQueue, start: StartPosition, end: StartPosition) -> _QueueRange:
        begin, limit = await self._consumer.min_offset(queue), await self._consumer.max_offset(queue)
        if start.timestamp_ms is not None:
            begin = max(begin, await self._consumer.offset_at(queue, start.timestamp_ms))
        if end.timestamp_ms is not None:
            limit = min(limit, await self._consumer.offset_at(queue, end.timestamp_ms))
        return _QueueRange(queue, begin, max(begin, limit))

    async def _scan(self, part: _QueueRange, count: int) -> list[ReceivedMessage]:
        """Pull the newest ``count`` messages that are left of a queue, and return those that match."""
        start, end = max(part.left - count, part.begin), part.left
        found: list[ReceivedMessage] = []
        at = start
        while at < end:
            result = await self._consumer.fetch(part.queue, at, tags=self._filter, messages_max=FETCH_MESSAGES)
            if result.status is FetchStatus.NO_NEW or result.next_offset <= at:
                at = end  # the queue has become shorter
                break
            following = min(result.next_offset, end)
            if result.status is FetchStatus.OFFSET_MOVED:
                self.deleted += following - at
                start += following - at
            found += (one for one in result.messages if one.queue_offset < end and accepts(self._matcher, one))
            at = following
        self.scanned += end - start
        part.left = max(end - count, part.begin)
        return found


def _store_order(message: ReceivedMessage) -> tuple[int, str, int]:
    """Return the sort key of a message: its store time, then its broker and its offset in the broker's log."""
    return message.store_timestamp_ms, message.queue.broker_name, message.physical_offset
