"""Sends the dead letters of a group back to their original topics.

    %DLQ%group   [begin ... already sent ... next ........ end)      `end` is the end of a queue when the run reaches it

The progress is the committed offset of a separate reader group on the brokers, so an interrupted run can be continued
from any machine. An offset is committed only after its messages are acknowledged: a run that crashes sends some
messages twice, and skips none that can be sent. Dead letters stay in their topic until they expire.
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
from gantry_wire import properties as property_names
from gantry_wire.commands.clients import MessageQueue
from gantry_wire.names import SYSTEM_GROUP_PREFIX, dead_letter_topic, group_fault, is_retry_or_dead_letter, topic_fault

READER_PREFIX: Final = f"{SYSTEM_GROUP_PREFIX}RESEND_"
"""The prefix of the reader group; brokers create such groups even where automatic creation is off."""

FETCH_MESSAGES: Final = 32
"""How many dead letters are fetched at once."""
COMMIT_EVERY: Final = 32
"""The acknowledged messages between two commits, and so how many a crash may send twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResendRequest:
    """Which dead letters to send again, and how."""

    group: str
    since_ms: int | None = None
    until_ms: int | None = None
    """Only dead letters stored in `[since, until)`; those before `since` are skipped, and progress passes them."""
    is_from_start: bool = False
    """Whether to include dead letters that were already sent again."""
    is_dry_run: bool = False
    """Whether to only count the messages that would be sent."""

    messages_max: int | None = None
    """Stop after examining this many; the next run continues there."""

    @property
    def topic(self) -> str:
        return dead_letter_topic(self.group)

    @property
    def reader(self) -> str:
        return READER_PREFIX + self.group


@dataclass(slots=True)
class ResendResult:
    """What happened to the dead letters that a run has examined."""

    sent: Counter[str] = field(default_factory=Counter)
    """The number of messages sent by topic; in a dry run, the number that would be sent."""
    unreadable: list[str] = field(default_factory=list)
    """Ids of messages that are damaged, or cannot be decompressed or sent unchanged; they are skipped."""
    without_origin: list[str] = field(default_factory=list)
    """Ids of messages without an original topic; they are skipped, too."""
    remaining: int = 0
    """Dead letters that existed when the run reached their queue, and were not examined because of `messages_max`."""

    @property
    def examined(self) -> int:
        """The number of examined dead letters."""
        return self.sent.total() + len(self.unreadable) + len(self.without_origin)


@final
class ResendRun:
    """One run over the dead letters of a group. Owned by one event loop."""

    def __init__(
        self,
        request: ResendRequest,
        reader: PullConsumer,
        producer: Producer,
        *,
        on_sent: Callable[[ReceivedMessage, str], None],
    ) -> None:
        """Create a run; ``on_sent`` is called with every sent message and its target topic."""
        self.result = ResendResult()
        self._request = request
        self._reader = reader
        self._producer = producer
        self._on_sent = on_sent

    async def run(self) -> ResendResult:
        """Send the present dead letters again. Raises ClientError; what was sent until then is committed."""
        for queue in await self._queues():
            await self._run_queue(queue)
        return self.result

    async def run_one(self, broker_name: str, queue_id: int, offset: int) -> ResendResult:
        """Send one dead letter again, even if it was sent before; the progress does not change.

        The result is empty if no dead letter has this offset. Raises ClientError.
        """
        for queue in await self._queues():
            if (queue.broker_name, queue.queue_id) == (broker_name, queue_id):
                result = await self._reader.fetch(queue, offset, messages_max=1)
                for message in result.messages:
                    if message.queue_offset == offset:
                        await self._send(message)
        return self.result

    async def _queues(self) -> Sequence[MessageQueue]:
        return await self._reader.queues(self._request.topic)

    async def _run_queue(self, queue: MessageQueue) -> None:
        begin, end = await self._range(queue)
        done, committed = begin, begin
        if self._request.messages_max is not None:
            stop = min(end, begin + max(self._request.messages_max - self.result.examined, 0))
            self.result.remaining += end - stop
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
                # An interrupted run commits, too: acknowledged messages need not be sent twice.
                await asyncio.shield(self._commit(queue, done))

    async def _range(self, queue: MessageQueue) -> tuple[int, int]:
        """Return the range of offsets to examine now."""
        request, reader = self._request, self._reader
        begin, end = await reader.min_offset(queue), await reader.max_offset(queue)
        if not request.is_from_start:
            begin = max(begin, await reader.committed(queue) or 0)
        if request.since_ms is not None:
            begin = max(begin, await reader.offset_at(queue, request.since_ms))
        if request.until_ms is not None:
            end = min(end, await reader.offset_at(queue, request.until_ms))
        return begin, max(begin, end)

    async def _messages(self, queue: MessageQueue, begin: int, end: int) -> AsyncIterator[ReceivedMessage]:
        offset = begin
        while offset < end:
            try:
                result = await self._reader.fetch(queue, offset, messages_max=FETCH_MESSAGES)
            except DamagedMessage as error:
                self.result.unreadable.append(error.message_id)
                offset = error.queue_offset + 1
                continue
            for message in result.messages:
                if message.queue_offset < end:
                    yield message
            if result.next_offset <= offset:
                if result.status is FetchStatus.NO_NEW:
                    return  # The message is not confirmed yet; the next run finds it.
                raise ResendStopped(
                    f"the dead letters of {self._request.group} were deleted while they were being read"
                )
            offset = result.next_offset

    async def _send(self, message: ReceivedMessage) -> None:
        topic = message.properties.get(property_names.RETRY_TOPIC, "")
        if topic_fault(topic) is not None or is_retry_or_dead_letter(topic):
            self.result.without_origin.append(message.message_id)
            return
        if message.body_fault is not None:
            self.result.unreadable.append(message.message_id)
            return
        if not self._request.is_dry_run:
            try:
                receipt = await self._producer.send_again(message, topic=topic)
            except (UnreadableBody, InvalidMessage):
                self.result.unreadable.append(message.message_id)
                return
            if not receipt.is_acknowledged:
                raise ResendStopped(
                    f"message {message.message_id} was stored in {topic}, but not acknowledged ({receipt.status.name})"
                )
        self.result.sent[topic] += 1
        self._on_sent(message, topic)

    async def _commit(self, queue: MessageQueue, offset: int) -> None:
        if not self._request.is_dry_run:
            await self._reader.commit(queue, offset)


def reader_fault(group: str) -> str | None:
    """Return why the reader group of `group` would be invalid, or None."""
    fault = group_fault(READER_PREFIX + group)
    return None if fault is None else f"{group[:64]!r}: {fault.value}"
