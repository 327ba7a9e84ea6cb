"""Reading of a topic: all queues without committing offsets, or as a member of a consumer group."""

import asyncio
import collections
import contextlib
import signal
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, final

from gantry_cli.account import client_settings
from gantry_cli.text import StartPosition
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
# A topic is read without a group: all queues concurrently, in the order of store times.
#
#     queue 0   [begin ..... next ....... end)        existing messages: `[begin, end)`, merged by store time
#     queue 1         [begin .. next ............ end)
#
# No offset is committed, so consumers are not affected. New messages are then read from the end of each queue.


FETCH_MESSAGES: Final = 256
"""The most messages of one fetch from a queue."""

FOLLOW_WAIT_MS: Final = 15_000
"""How long the broker holds a fetch from a queue without new messages."""

RETRY_S: Final = 1.0
"""The time after a failed fetch before the next one, in seconds."""

READ_AHEAD_MAX: Final = 1024
"""The most new messages that wait to be printed."""


def _do_nothing() -> None:
    """Do nothing, since a message that was read without a group needs no acknowledgement."""


@final
@dataclass(frozen=True, slots=True)
class Delivery:
    """One message; the caller prints it and then calls `acknowledge`."""

    message: ReceivedMessage
    acknowledge: Callable[[], None] = _do_nothing


@final
@dataclass(slots=True)
class Cursor:
    """The next offset to read in one queue, the end of the existing messages, and the messages fetched so far."""

    queue: MessageQueue
    next_offset: int
    end: int
    buffer: collections.deque[ReceivedMessage] = field(default_factory=collections.deque)

    @property
    def needs_fetch(self) -> bool:
        """Whether existing messages of the queue are left, and none of them is in ``buffer``."""
        return not self.buffer and self.next_offset < self.end


@final
class TopicReader:
    """A reader of all queues of one topic. Owned by one event loop."""

    def __init__(self, consumer: PullConsumer, topic: str, *, tags: str | Sql, warn: Callable[[str], None]) -> None:
        self._consumer = consumer
        self._topic = topic
        self._tags = tags
        self._warn = warn

    async def open(self, start: StartPosition) -> list[Cursor]:
        """Return a cursor for each queue, from the start position to its current end. Raises ClientError."""
        queues: Sequence[MessageQueue] = await self._consumer.queues(self._topic)
        return list(await asyncio.gather(*(self._open_cursor(queue, start) for queue in queues)))

    async def read_existing(self, cursors: list[Cursor]) -> AsyncGenerator[Delivery, None]:
        """Yield the existing messages of all queues, oldest first. Raises ClientError."""
        while True:
            await asyncio.gather(*(self._fetch(cursor) for cursor in cursors if cursor.needs_fetch))
            if any(cursor.needs_fetch for cursor in cursors):
                continue  # the filter matched no message that was fetched, but the cursor advanced
            ready = [cursor for cursor in cursors if cursor.buffer]
            if not ready:
                return
            yield Delivery(min(ready, key=_store_order).buffer.popleft())

    async def read_new(self, cursors: list[Cursor]) -> AsyncGenerator[Delivery, None]:
        """Yield new messages as they arrive, until the caller stops."""
        arrived: asyncio.Queue[ReceivedMessage] = asyncio.Queue(READ_AHEAD_MAX)
        tasks = [asyncio.create_task(self._follow_queue(cursor, arrived)) for cursor in cursors]
        try:
            while True:
                yield Delivery(await arrived.get())
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _open_cursor(self, queue: MessageQueue, start: StartPosition) -> Cursor:
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
        # Messages from the end on are new: they are left to `read_new`, also if this fetch has returned or passed them.
        cursor.next_offset = min(result.next_offset, cursor.end)

    async def _follow_queue(self, cursor: Cursor, arrived: asyncio.Queue[ReceivedMessage]) -> None:
        """Put new messages of one queue into ``arrived``, until cancelled."""
        is_unavailable = False
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
                if not is_unavailable:
                    self._warn(f"{cursor.queue.broker_name} does not respond; retrying: {error}")
                is_unavailable = True
                await asyncio.sleep(RETRY_S)
                continue
            is_unavailable = False
            for message in result.messages:
                await arrived.put(message)
            cursor.next_offset = result.next_offset


def _store_order(cursor: Cursor) -> tuple[int, str, int]:
    """Return the sort key of the next message: its store time, then its broker and its offset in the broker's log."""
    first = cursor.buffer[0]
    return first.store_timestamp_ms, cursor.queue.broker_name, first.physical_offset


# -- as a member of a group --------------------------------------------------------------------------------------------
# A topic is read as a member of a group: messages are shared among members, and committed after they are printed.
#
# The consumer's handler queues a message and returns only after the message is acknowledged, that is, printed; then it
# counts as consumed. Messages that were fetched but not printed are never committed: another member or the next call
# gets them.

COMMIT_INTERVAL_MS: Final = 500
"""The time between two commits of printed messages."""

CLOSE_TIMEOUT_MS: Final = 100
"""How long the consumer may take to close, in milliseconds."""

PROGRESS_POLL_S: Final = 0.2
"""The time between two checks whether the group has consumed everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSubscription:
    """A group, its topic and filter, and the start position in queues without a committed offset."""

    group: str
    topic: str
    tags: str | Sql
    start: StartPosition

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
class _PendingMessage:
    """A message that waits until it is printed."""

    message: ReceivedMessage
    printed: asyncio.Event


async def consume_as_member(
    name_server: str, subscription: GroupSubscription, *, follow: bool
) -> AsyncGenerator[Delivery, None]:
    """Yield this member's messages; without `follow`, until the group has consumed what existed at the start."""
    pending: asyncio.Queue[_PendingMessage | None] = asyncio.Queue()

    async def handle(message: ReceivedMessage) -> None:
        unprinted = _PendingMessage(message, asyncio.Event())
        await pending.put(unprinted)
        await unprinted.printed.wait()

    async def wait_until_consumed(ends: dict[MessageQueue, int], watcher: PullConsumer, consumer: PushConsumer) -> None:
        while not await _is_consumed(watcher, ends):
            await asyncio.sleep(PROGRESS_POLL_S)
            await consumer.commit()
        await pending.put(None)

    settings = client_settings()
    async with PullConsumer(name_server, subscription.group, client_settings=settings) as watcher:
        ends = {queue: await watcher.max_offset(queue) for queue in await watcher.queues(subscription.topic)}
        consumer = PushConsumer(
            name_server,
            subscription.group,
            topics={subscription.topic: subscription.tags},
            handler=handle,
            settings=subscription.settings(),
            client_settings=settings,
        )
        async with consumer:
            watching = None if follow else asyncio.create_task(wait_until_consumed(ends, watcher, consumer))
            try:
                while (unprinted := await _next(pending, watching)) is not None:
                    yield Delivery(unprinted.message, unprinted.printed.set)
            finally:
                if watching is not None:
                    watching.cancel()
                    await asyncio.gather(watching, return_exceptions=True)


async def _next(
    pending: asyncio.Queue[_PendingMessage | None], watching: asyncio.Task[None] | None
) -> _PendingMessage | None:
    """Return the next message, or None at the end. Raises the error of the watching task."""
    getting = asyncio.ensure_future(pending.get())
    try:
        await asyncio.wait({getting} | ({watching} if watching is not None else set()), return_when="FIRST_COMPLETED")
        if not getting.done() and watching is not None:
            watching.result()
        return await getting
    finally:
        getting.cancel()


async def _is_consumed(watcher: PullConsumer, ends: dict[MessageQueue, int]) -> bool:
    """Return whether the group has committed all offsets below `ends`. Empty queues need no commit."""
    for queue, end in ends.items():
        if end == 0 or await watcher.min_offset(queue) >= end:
            continue
        committed = await watcher.committed(queue)
        if committed is None or committed < end:
            return False
    return True


# -- interruption ------------------------------------------------------------------------------------------------------


async def run_until_interrupted(work: Coroutine[Any, Any, None]) -> None:
    """Run until ``work`` ends, or until Ctrl-C or SIGTERM, which are normal ends of reading."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task
