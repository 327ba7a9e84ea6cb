"""The poll consumer: a consumer of a group from which the application polls messages.

    async with PollConsumer("127.0.0.1:9876", "billing", topics="orders") as consumer:
        async for message in consumer:
            ...

Polled messages count as consumed when the application polls again or calls `commit`; after a crash in between they are
redelivered. So only one task may poll at a time. There are no retry topics; an application that cannot consume a
message decides itself what to do.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import final

from gantry_client.backlog import Backlog
from gantry_client.client import ConsumerClient
from gantry_client.clock import Deadline
from gantry_client.consumer_role import ConsumerRole
from gantry_client.messages import ReceivedMessage
from gantry_client.settings import ClientSettings, ConsumerSettings, NameServerAddresses
from gantry_client.subscriptions import TopicFilters
from gantry_wire.commands.clients import MessageQueue

POLL_FOREVER_MS = 3_600_000
"""The timeout of one poll while messages are iterated over without end."""


@final
class PollConsumer(ConsumerClient):
    """Returns messages on request. Use it inside `async with`; it belongs to the event loop that starts it.

    Closing it commits what is consumed and leaves the group. The messages of the last poll count as consumed only after
    `commit`.
    """

    def __init__(
        self,
        name_servers: NameServerAddresses,
        group: str,
        *,
        topics: TopicFilters,
        settings: ConsumerSettings | None = None,
        client_settings: ClientSettings | None = None,
    ) -> None:
        role = ConsumerRole(group=group, is_passive=False)
        super().__init__(name_servers, role, topics, settings or ConsumerSettings(), client_settings)
        self._ready: deque[tuple[Backlog, ReceivedMessage]] = deque()
        self._arrived = asyncio.Event()
        self._polled: list[tuple[Backlog, ReceivedMessage]] = []
        """The messages of the last poll; the next poll marks them as consumed."""
        self._is_polling = False

    def __repr__(self) -> str:
        return f"<PollConsumer {self.group} ready={len(self._ready)} {self._consumer!r}>"

    async def _leave(self) -> None:
        """Leave the group and commit what is consumed."""
        self._clear_polled()
        await super()._leave()

    async def poll(self, messages_max: int = 32, *, timeout_ms: int = 1000) -> list[ReceivedMessage]:
        """Return up to `messages_max` messages as soon as there are any, or none after `timeout_ms`.

        The messages of the previous poll count as consumed now. Raises RuntimeError while another poll waits: the next
        poll of either caller would mark the messages of the other as consumed.
        """
        self._session.require_open()
        if self._is_polling:
            raise RuntimeError(
                "another poll of this consumer waits for messages; poll from one task or thread at a time"
            )
        self._is_polling = True
        try:
            self._consume_polled()
            return await self._wait_for_messages(messages_max, Deadline(timeout_ms))
        finally:
            self._is_polling = False

    async def commit(self) -> None:
        """Mark the messages of the last poll as consumed, and commit the offsets. A failure is logged and retried."""
        self._session.require_open()
        self._consume_polled()
        await self._consumer.commit()

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        """Yield messages one by one without end. Each is consumed when the next is requested."""
        while True:
            for message in await self.poll(1, timeout_ms=POLL_FOREVER_MS):
                yield message

    def _deliver(self, queue: MessageQueue, backlog: Backlog, messages: Sequence[ReceivedMessage]) -> None:
        self._ready.extend((backlog, message) for message in messages)
        self._arrived.set()

    async def _wait_for_messages(self, messages_max: int, deadline: Deadline) -> list[ReceivedMessage]:
        while not (messages := self._take_ready(messages_max)):
            self._arrived.clear()
            try:
                async with asyncio.timeout_at(deadline.at):
                    await self._arrived.wait()
            except TimeoutError:
                return []
        return messages

    def _take_ready(self, messages_max: int) -> list[ReceivedMessage]:
        while self._ready and len(self._polled) < messages_max:
            backlog, message = self._ready.popleft()
            if not backlog.is_dropped:
                backlog.start_handler()
                self._polled.append((backlog, message))
        return [message for _, message in self._polled]

    def _consume_polled(self) -> None:
        for backlog, message in self._polled:
            backlog.mark_done(message.queue_offset)
        self._clear_polled()

    def _clear_polled(self) -> None:
        for backlog, _ in self._polled:
            backlog.end_handler()
        self._polled = []
