"""Reading a topic without being a member of a group: all queues side by side, in the order of their store times.

    queue 0   [begin ..... next ....... end)        what is there now: `[begin, end)`, merged by store time
    queue 1         [begin .. next ............ end)

Nothing is committed, so reading changes nothing for anybody. Following goes on at each queue's end as messages come.
"""

import asyncio
import collections
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, final

from gantry_cli.times import Start
from gantry_client import FetchStatus, MessageQueue, NoRoute, PullConsumer, ReceivedMessage, RequestFailed, Sql

FETCH_MESSAGES: Final = 256
FOLLOW_WAIT_MS: Final = 15_000
RETRY_S: Final = 1.0
READ_AHEAD_MAX: Final = 1024


def _nothing() -> None:
    """An onlooker's message needs no word that it is done."""


@final
@dataclass(frozen=True, slots=True)
class Delivery:
    """One message for whoever prints it; `done` is called when it is printed."""

    message: ReceivedMessage
    done: Callable[[], None] = _nothing


@final
@dataclass(slots=True)
class Cursor:
    """How far one queue is read."""

    queue: MessageQueue
    next_offset: int
    end: int
    buffer: collections.deque[ReceivedMessage] = field(default_factory=collections.deque)

    @property
    def needs_fetch(self) -> bool:
        return not self.buffer and self.next_offset < self.end


@final
class TopicReader:
    """Reads one topic's queues. Owned by one event loop."""

    def __init__(self, consumer: PullConsumer, topic: str, *, tags: str | Sql, warn: Callable[[str], None]) -> None:
        self._consumer = consumer
        self._topic = topic
        self._tags = tags
        self._warn = warn

    async def open(self, start: Start) -> list[Cursor]:
        """Where to begin in each queue, and where each ends now. Raises ClientError."""
        queues: Sequence[MessageQueue] = await self._consumer.queues(self._topic)
        return list(await asyncio.gather(*(self._cursor(queue, start) for queue in queues)))

    async def present(self, cursors: list[Cursor]) -> AsyncGenerator[Delivery, None]:
        """What lies between begin and end of every queue, oldest first. Raises ClientError."""
        while True:
            await asyncio.gather(*(self._fetch(cursor) for cursor in cursors if cursor.needs_fetch))
            if any(cursor.needs_fetch for cursor in cursors):
                continue  # that fetch matched nothing, but moved on
            ready = [cursor for cursor in cursors if cursor.buffer]
            if not ready:
                return
            yield Delivery(min(ready, key=_age).buffer.popleft())

    async def following(self, cursors: list[Cursor]) -> AsyncGenerator[Delivery, None]:
        """What comes from now on, as it comes, until the caller stops."""
        arrived: asyncio.Queue[ReceivedMessage] = asyncio.Queue(READ_AHEAD_MAX)
        tasks = [asyncio.create_task(self._follow(cursor, arrived)) for cursor in cursors]
        try:
            while True:
                yield Delivery(await arrived.get())
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _cursor(self, queue: MessageQueue, start: Start) -> Cursor:
        end = await self._consumer.max_offset(queue)
        if start.is_latest:
            return Cursor(queue, end, end)
        if start.timestamp_ms is not None:
            return Cursor(queue, await self._consumer.offset_at(queue, start.timestamp_ms), end)
        return Cursor(queue, await self._consumer.min_offset(queue), end)

    async def _fetch(self, cursor: Cursor) -> None:
        result = await self._consumer.fetch(
            cursor.queue, cursor.next_offset, tags=self._tags, messages_max=FETCH_MESSAGES
        )
        if result.status is FetchStatus.NO_NEW:
            cursor.next_offset = cursor.end
            return
        cursor.buffer.extend(message for message in result.messages if message.queue_offset < cursor.end)
        cursor.next_offset = result.next_offset

    async def _follow(self, cursor: Cursor, arrived: asyncio.Queue[ReceivedMessage]) -> None:
        is_silent = False
        while True:
            try:
                result = await self._consumer.fetch(
                    cursor.queue,
                    cursor.next_offset,
                    tags=self._tags,
                    messages_max=FETCH_MESSAGES,
                    wait_ms=FOLLOW_WAIT_MS,
                )
            except (RequestFailed, NoRoute) as error:
                if not is_silent:
                    self._warn(f"{cursor.queue.broker_name} does not answer, trying again: {error}")
                is_silent = True
                await asyncio.sleep(RETRY_S)
                continue
            is_silent = False
            for message in result.messages:
                await arrived.put(message)
            cursor.next_offset = result.next_offset


def _age(cursor: Cursor) -> tuple[int, str, int]:
    """By store time; within one millisecond of one broker by the place in its log, which is the order of arrival."""
    first = cursor.buffer[0]
    return first.store_timestamp_ms, cursor.queue.broker_name, first.physical_offset
