"""Reading a topic: all of its queues at once without committing anything, or as a member of a consumer group."""

import asyncio
import collections
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, final

from gantry_cli.account import client_settings
from gantry_cli.text import Start
from gantry_client import (
    ConsumerSettings,
    FetchStatus,
    MessageQueue,
    NoRoute,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    RequestFailed,
    Sql,
    StartFrom,
)

# -- all queues of a topic ---------------------------------------------------------------------------------------------
# Reading a topic without being a member of a group: all queues side by side, in the order of their store times.
#
#     queue 0   [begin ..... next ....... end)        what is there now: `[begin, end)`, merged by store time
#     queue 1         [begin .. next ............ end)
#
# Nothing is committed, so reading changes nothing for anybody. Following goes on at each queue's end as messages come.


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


# -- as a member of a group --------------------------------------------------------------------------------------------
# Reading a topic as a member of a group: messages are shared, and done once they are printed.
#
# The consumer's handler hands a message over and waits until it is said to be done; only then does it return, and only
# then does the message count as consumed. What was fetched and not printed when we stop is never committed, and goes to
# another member, or to the next call.


COMMIT_INTERVAL_MS: Final = 500
CLOSE_TIMEOUT_MS: Final = 100
PROGRESS_POLL_S: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """Which group reads which topic, and where it begins in queues that it has not begun."""

    group: str
    topic: str
    tags: str | Sql
    start: Start

    def settings(self) -> ConsumerSettings:
        start_from = StartFrom.LAST if self.start.is_latest else StartFrom.FIRST
        if self.start.timestamp_ms is not None:
            start_from = StartFrom.TIMESTAMP
        return ConsumerSettings(
            start_from=start_from,
            start_timestamp_ms=self.start.timestamp_ms or 0,
            commit_interval_ms=COMMIT_INTERVAL_MS,
            close_timeout_ms=CLOSE_TIMEOUT_MS,
            concurrency=1,
        )


@dataclass(frozen=True, slots=True)
class _Handover:
    """A message, and how to say that it is done."""

    message: ReceivedMessage
    done: asyncio.Event


async def group_messages(name_server: str, member: Membership, *, follow: bool) -> AsyncGenerator[Delivery, None]:
    """The group's messages as they come to us; without `follow` until the group has all that was there at the start."""
    handed_over: asyncio.Queue[_Handover | None] = asyncio.Queue()

    async def handle(message: ReceivedMessage) -> None:
        handover = _Handover(message, asyncio.Event())
        await handed_over.put(handover)
        await handover.done.wait()

    async def watch(ends: dict[MessageQueue, int], watcher: PullConsumer, consumer: PushConsumer) -> None:
        while not await _is_consumed(watcher, ends):
            await asyncio.sleep(PROGRESS_POLL_S)
            await consumer.commit()
        await handed_over.put(None)

    settings = client_settings()
    async with PullConsumer(name_server, member.group, client_settings=settings) as watcher:
        ends = {queue: await watcher.max_offset(queue) for queue in await watcher.queues(member.topic)}
        consumer = PushConsumer(
            name_server,
            member.group,
            topics={member.topic: member.tags},
            handler=handle,
            settings=member.settings(),
            client_settings=settings,
        )
        async with consumer:
            watching = None if follow else asyncio.create_task(watch(ends, watcher, consumer))
            try:
                while (handover := await _next(handed_over, watching)) is not None:
                    yield Delivery(handover.message, handover.done.set)
            finally:
                if watching is not None:
                    watching.cancel()
                    await asyncio.gather(watching, return_exceptions=True)


async def _next(handed_over: asyncio.Queue[_Handover | None], watching: asyncio.Task[None] | None) -> _Handover | None:
    """The next message, or None at the end. Raises what the watching task raised."""
    getting = asyncio.ensure_future(handed_over.get())
    try:
        await asyncio.wait({getting} | ({watching} if watching is not None else set()), return_when="FIRST_COMPLETED")
        if not getting.done() and watching is not None:
            watching.result()
        return await getting
    finally:
        getting.cancel()


async def _is_consumed(watcher: PullConsumer, ends: dict[MessageQueue, int]) -> bool:
    """Whether the group has committed everything below `ends`. Empty queues need no commit."""
    for queue, end in ends.items():
        if end == 0 or await watcher.min_offset(queue) >= end:
            continue
        committed = await watcher.committed(queue)
        if committed is None or committed < end:
            return False
    return True
