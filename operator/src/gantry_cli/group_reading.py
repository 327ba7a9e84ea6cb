"""Reading a topic as a member of a group: messages are shared, and done once they are printed.

The consumer's handler hands a message over and waits until it is said to be done; only then does it return, and only
then does the message count as consumed. What was fetched and not printed when we stop is never committed, and goes to
another member, or to the next call.
"""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Final

from gantry_cli.account import client_settings
from gantry_cli.reading import Delivery
from gantry_cli.times import Start
from gantry_client import (
    ConsumerSettings,
    MessageQueue,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    Sql,
    StartFrom,
)

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
