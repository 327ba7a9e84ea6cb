"""The poll consumer: the application asks for messages when it is ready for some, as a member of a group.

    async with PollConsumer("127.0.0.1:9876", "billing", topics="orders") as consumer:
        async for message in consumer:
            ...

What `poll` gave counts as consumed when the application polls again, or calls `commit`: whoever crashes in between
gets it again. There are no retry topics here; an application that cannot consume a message decides itself what to do.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import final

from gantry_client.backlog import Backlog
from gantry_client.client import MemberClient
from gantry_client.clock import Deadline
from gantry_client.member_role import MemberRole
from gantry_client.messages import ReceivedMessage
from gantry_client.settings import ClientSettings, ConsumerSettings, NameServerAddresses
from gantry_client.subscriptions import Topics
from gantry_wire.commands.clients import MessageQueue

POLL_FOREVER_MS = 3_600_000


@final
class PollConsumer(MemberClient):
    """Gives messages on request. Use it inside `async with`; it belongs to the event loop that starts it.

    Closing it commits what is consumed and leaves the group. What the last poll gave is not consumed, unless `commit`
    said so.
    """

    def __init__(
        self,
        name_servers: NameServerAddresses,
        group: str,
        *,
        topics: Topics,
        settings: ConsumerSettings | None = None,
        client_settings: ClientSettings | None = None,
    ) -> None:
        role = MemberRole(group=group, is_passive=False)
        super().__init__(name_servers, role, topics, settings or ConsumerSettings(), client_settings)
        self._ready: deque[tuple[Backlog, ReceivedMessage]] = deque()
        self._arrived = asyncio.Event()
        self._given: list[tuple[Backlog, ReceivedMessage]] = []
        """What the last poll gave; consumed when the next one comes."""

    def __repr__(self) -> str:
        return f"<PollConsumer {self.group} ready={len(self._ready)} {self._member!r}>"

    async def _leave(self) -> None:
        """Commit what is consumed."""
        self._forget_given()
        await super()._leave()

    async def poll(self, messages_max: int = 32, *, timeout_ms: int = 1000) -> list[ReceivedMessage]:
        """Up to `messages_max` messages, as soon as there are any; none when `timeout_ms` passes before.

        What the poll before gave is consumed now.
        """
        self._session.require_open()
        self._finish_given()
        deadline = Deadline(timeout_ms)
        while not (messages := self._take(messages_max)):
            self._arrived.clear()
            try:
                async with asyncio.timeout_at(deadline.at):
                    await self._arrived.wait()
            except TimeoutError:
                return []
        return messages

    async def commit(self) -> None:
        """What the last poll gave is consumed; tell the brokers now."""
        self._session.require_open()
        self._finish_given()
        await self._member.commit()

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        """Messages one by one, for ever. Each is consumed when the next is asked for."""
        while True:
            for message in await self.poll(1, timeout_ms=POLL_FOREVER_MS):
                yield message

    def _deliver(self, queue: MessageQueue, backlog: Backlog, messages: Sequence[ReceivedMessage]) -> None:
        self._ready.extend((backlog, message) for message in messages)
        self._arrived.set()

    def _take(self, messages_max: int) -> list[ReceivedMessage]:
        while self._ready and len(self._given) < messages_max:
            backlog, message = self._ready.popleft()
            if not backlog.is_dropped:
                backlog.begin()
                self._given.append((backlog, message))
        return [message for _, message in self._given]

    def _finish_given(self) -> None:
        for backlog, message in self._given:
            backlog.done(message.queue_offset)
        self._forget_given()

    def _forget_given(self) -> None:
        for backlog, _ in self._given:
            backlog.end()
        self._given = []
