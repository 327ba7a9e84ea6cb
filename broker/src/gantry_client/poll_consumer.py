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
from types import TracebackType
from typing import Self, final

from gantry_client.backlog import Backlog
from gantry_client.clock import Deadline
from gantry_client.errors import InvalidMessage
from gantry_client.group_member import GroupMember
from gantry_client.member_role import MemberRole
from gantry_client.messages import ReceivedMessage
from gantry_client.outgoing import check_group
from gantry_client.session import Session
from gantry_client.settings import ClientSettings, ConsumerSettings, NameServerAddresses
from gantry_client.subscriptions import Topics, Wanted, make_subscription, make_subscriptions
from gantry_wire.commands.clients import MessageQueue

POLL_FOREVER_MS = 3_600_000


@final
class PollConsumer:
    """Gives messages on request. Use it inside `async with`; it belongs to the event loop that starts it."""

    def __init__(
        self,
        name_servers: NameServerAddresses,
        group: str,
        *,
        topics: Topics,
        settings: ConsumerSettings | None = None,
        client_settings: ClientSettings | None = None,
    ) -> None:
        check_group(group)
        self.group = group
        self.settings = settings or ConsumerSettings()
        self._session = Session(name_servers, client_settings)
        self._member = GroupMember(
            self._session, MemberRole(group=group, is_passive=False), self.settings, self._deliver
        )
        self._member.subscriptions |= make_subscriptions(topics)
        if not self._member.subscriptions:
            raise InvalidMessage("a poll consumer needs a topic")
        self._ready: deque[tuple[Backlog, ReceivedMessage]] = deque()
        self._arrived = asyncio.Event()
        self._given: list[tuple[Backlog, ReceivedMessage]] = []
        """What the last poll gave; consumed when the next one comes."""

    def __repr__(self) -> str:
        return f"<PollConsumer {self.group} ready={len(self._ready)} {self._member!r}>"

    @property
    def queues(self) -> frozenset[MessageQueue]:
        """The queues that are read here now."""
        return frozenset(self._member.readers)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Join the group. Returns before the first message. Raises BrokerRefused for a filter that a broker refuses."""
        await self._session.start()
        try:
            await self._member.start()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Leave the group, committing what is consumed. What the last poll gave is not, unless `commit` said so."""
        self._forget_given()
        await self._member.close()
        await self._session.close()

    async def subscribe(self, topic: str, tags: Wanted = "*") -> None:
        """Want one more topic, or other tags of it; `tags` may also be an `Sql`, which a broker may refuse."""
        self._session.require_open()
        await self._member.subscribe(make_subscription(topic, tags))

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
