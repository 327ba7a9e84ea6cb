"""Dead letters of a group on their way back to the topics that they came from.

    %DLQ%group   [begin ... sent already ... next ........ end)      `end` is where the topic ended at the start

How far they have been sent again is the committed offset of a reader of our own, on the brokers: a run that was
interrupted is gone on with, from any machine. An offset is committed only behind messages that were acknowledged, so a
run that dies sends some of them twice, and never leaves one out. Dead letters stay where they are until they expire.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, final

from gantry_client.errors import DamagedMessage, InvalidMessage, ResendStopped, UnreadableBody
from gantry_client.fetching import FetchStatus
from gantry_client.messages import ReceivedMessage
from gantry_client.producer import Producer
from gantry_client.pull_consumer import PullConsumer
from gantry_wire import properties as names
from gantry_wire.commands.clients import MessageQueue
from gantry_wire.names import dead_letter_topic, group_fault, is_retry_or_dead_letter, topic_fault

READER_PREFIX: Final = "CID_RMQ_SYS_RESEND_"
"""Of the reader's group; brokers make groups of this prefix also where they make no others."""

FETCH_MESSAGES: Final = 32
COMMIT_EVERY: Final = 32
"""Acknowledged messages after which progress is committed: as many may be sent twice after a crash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resend:
    """What was asked for."""

    group: str
    since_ms: int | None = None
    until_ms: int | None = None
    """Dead letters stored in `[since, until)`; those before `since` are passed over, and progress goes beyond them."""
    is_from_start: bool = False
    """Also those that were sent again already."""
    is_dry: bool = False
    messages_max: int | None = None
    """Stop after so many that were looked at; the next run goes on there."""

    @property
    def topic(self) -> str:
        return dead_letter_topic(self.group)

    @property
    def reader(self) -> str:
        return READER_PREFIX + self.group


@dataclass(slots=True)
class Tally:
    """What has become of the dead letters that were looked at."""

    sent: Counter[str] = field(default_factory=Counter)
    """By topic; in a dry run those that would be sent."""
    unreadable: list[str] = field(default_factory=list)
    """Ids of messages that cannot be unpacked, or sent as they are; they are passed over."""
    without_origin: list[str] = field(default_factory=list)
    """Ids of messages that do not say where they came from; they are passed over, too."""
    left: int = 0
    """Dead letters that were there at the start and were not looked at, since `messages_max` were."""

    @property
    def looked_at(self) -> int:
        """All of them."""
        return self.sent.total() + len(self.unreadable) + len(self.without_origin)


@final
class DeadLetters:
    """One run. Owned by one event loop."""

    def __init__(
        self, wish: Resend, reader: PullConsumer, producer: Producer, *, said: Callable[[ReceivedMessage, str], None]
    ) -> None:
        """``said`` is called with every message that is sent, and the topic that it goes to."""
        self.tally = Tally()
        self._wish = wish
        self._reader = reader
        self._producer = producer
        self._said = said

    async def run(self) -> Tally:
        """Send again what there is now. Raises ClientError; what was sent until then is committed."""
        for queue in await self._queues():
            await self._run_queue(queue)
        return self.tally

    async def run_one(self, broker_name: str, queue_id: int, offset: int) -> Tally:
        """Send one of them again, whatever was sent already; progress stays where it is. An empty tally: none is there.

        Raises ClientError.
        """
        for queue in await self._queues():
            if (queue.broker_name, queue.queue_id) == (broker_name, queue_id):
                result = await self._reader.fetch(queue, offset, messages_max=1)
                for message in result.messages:
                    if message.queue_offset == offset:
                        await self._send(message)
        return self.tally

    async def _queues(self) -> Sequence[MessageQueue]:
        return await self._reader.queues(self._wish.topic)

    async def _run_queue(self, queue: MessageQueue) -> None:
        begin, end = await self._range(queue)
        done, committed = begin, begin
        if self._wish.messages_max is not None:
            stop = min(end, begin + max(self._wish.messages_max - self.tally.looked_at, 0))
            self.tally.left += end - stop
            end = stop
        try:
            async for message in self._messages(queue, begin, end):
                await self._send(message)
                done = message.queue_offset + 1
                if done - committed >= COMMIT_EVERY:
                    await self._commit(queue, done)
                    committed = done
        finally:
            if done > committed:
                # Also when interrupted: what is acknowledged need not be sent twice.
                await asyncio.shield(self._commit(queue, done))

    async def _range(self, queue: MessageQueue) -> tuple[int, int]:
        """The offsets to look at now."""
        wish, reader = self._wish, self._reader
        begin, end = await reader.min_offset(queue), await reader.max_offset(queue)
        if not wish.is_from_start:
            begin = max(begin, await reader.committed(queue) or 0)
        if wish.since_ms is not None:
            begin = max(begin, await reader.offset_at(queue, wish.since_ms))
        if wish.until_ms is not None:
            end = min(end, await reader.offset_at(queue, wish.until_ms))
        return begin, max(begin, end)

    async def _messages(self, queue: MessageQueue, begin: int, end: int) -> AsyncIterator[ReceivedMessage]:
        offset = begin
        while offset < end:
            try:
                result = await self._reader.fetch(queue, offset, messages_max=FETCH_MESSAGES)
            except DamagedMessage as error:
                self.tally.unreadable.append(error.message_id)
                offset = error.queue_offset + 1
                continue
            for message in result.messages:
                if message.queue_offset < end:
                    yield message
            if result.next_offset <= offset:
                if result.status is FetchStatus.NO_NEW:
                    return  # not confirmed yet: the next call finds it
                raise ResendStopped(f"the dead letters of {self._wish.group} were deleted while they were read")
            offset = result.next_offset

    async def _send(self, message: ReceivedMessage) -> None:
        topic = message.properties.get(names.RETRY_TOPIC, "")
        if topic_fault(topic) is not None or is_retry_or_dead_letter(topic):
            self.tally.without_origin.append(message.message_id)
            return
        if message.body_fault is not None:
            self.tally.unreadable.append(message.message_id)
            return
        if not self._wish.is_dry:
            try:
                receipt = await self._producer.send_again(message, topic=topic)
            except (UnreadableBody, InvalidMessage):
                self.tally.unreadable.append(message.message_id)
                return
            if not receipt.is_acknowledged:
                raise ResendStopped(
                    f"message {message.message_id} was stored in {topic}, but not acknowledged ({receipt.status.name})"
                )
        self.tally.sent[topic] += 1
        self._said(message, topic)

    async def _commit(self, queue: MessageQueue, offset: int) -> None:
        if not self._wish.is_dry:
            await self._reader.commit(queue, offset)


def reader_fault(group: str) -> str | None:
    """Why there can be no reader for this group."""
    fault = group_fault(READER_PREFIX + group)
    return None if fault is None else f"{group[:64]!r}: {fault.value}"
