"""The push consumer: the application writes a handler, and every message of the group gets handled at least once.

    async def handle(message):
        ...                         # returns: consumed. Raises: delivered again later.

    async with PushConsumer("127.0.0.1:9876", "billing", topics={"orders": "new || paid"}, handler=handle):
        await asyncio.Event().wait()

At least once means: a message may come twice, after a crash, a rebalance or a lost answer. A handler should tell by
`message.message_id` or by its own keys whether it has done this one before.
"""

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self, final

from gantry_client.backlog import Backlog
from gantry_client.errors import InvalidMessage
from gantry_client.group_member import GroupMember
from gantry_client.handling import ConcurrentHandling, Handler, HandlerCalls, Handling, SendBacks
from gantry_client.member_role import MemberRole
from gantry_client.messages import ReceivedMessage
from gantry_client.ordered_handling import OrderedHandling
from gantry_client.outgoing import check_group
from gantry_client.replies import Replier
from gantry_client.session import Session
from gantry_client.settings import (
    ClientSettings,
    ConsumerSettings,
    MessageModel,
    NameServerAddresses,
    ProducerSettings,
)
from gantry_client.subscriptions import Topics, Wanted, make_subscription, make_subscriptions
from gantry_wire.commands.clients import MessageQueue
from gantry_wire.names import retry_topic


@final
class PushConsumer:
    """Calls a handler for every message. Use it inside `async with`; it belongs to the event loop that starts it."""

    def __init__(
        self,
        name_servers: NameServerAddresses,
        group: str,
        *,
        topics: Topics,
        handler: Handler,
        is_ordered: bool = False,
        settings: ConsumerSettings | None = None,
        client_settings: ClientSettings | None = None,
    ) -> None:
        check_group(group)
        self.group = group
        self.settings = settings or ConsumerSettings()
        self._session = Session(name_servers, client_settings)
        role = MemberRole(group=group, is_ordered=is_ordered and self.settings.model is MessageModel.CLUSTERING)
        self._member = GroupMember(self._session, role, self.settings, self._deliver)
        self._member.subscriptions |= make_subscriptions(topics)
        if not self._member.subscriptions:
            raise InvalidMessage("a push consumer needs a topic")
        if self.settings.model is MessageModel.CLUSTERING:
            self._member.subscriptions |= make_subscriptions(retry_topic(group))
        self._replier = Replier(self._session, group, ProducerSettings())
        calls = HandlerCalls(handler, self.settings.consume_timeout_ms, self._member.rates)
        self._member.calls = calls
        self._handling = self._make_handling(calls, is_ordered=is_ordered)

    def __repr__(self) -> str:
        return f"<PushConsumer {self.group} {self._member!r}>"

    @property
    def client_id(self) -> str:
        """How brokers know this consumer."""
        return self._session.client_id

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
        self._handling.start()
        try:
            await self._member.start()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Leave the group: stop reading, let running handlers end, commit, say goodbye."""
        await self._member.close()
        await self._handling.close()
        await self._session.close()

    async def run(self) -> None:
        """Consume until cancelled."""
        async with self:
            await asyncio.Event().wait()

    async def subscribe(self, topic: str, tags: Wanted = "*") -> None:
        """Want one more topic, or other tags of it; `tags` may also be an `Sql`, which a broker may refuse."""
        self._session.require_open()
        await self._member.subscribe(make_subscription(topic, tags))

    async def commit(self) -> None:
        """Commit what is done now, without waiting for the next time."""
        self._session.require_open()
        await self._member.commit()

    async def reply(
        self,
        request: ReceivedMessage,
        body: bytes,
        *,
        tags: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        """Answer a message that somebody sent as a request; for use in a handler. As `Producer.reply`.

        A handler that lets its errors out has the request delivered, and answered, again.
        """
        self._session.require_open()
        await self._replier.reply(request, body, tags=tags, keys=keys, properties=properties, timeout_ms=timeout_ms)

    def _deliver(self, queue: MessageQueue, backlog: Backlog, messages: Sequence[ReceivedMessage]) -> None:
        self._handling.deliver(queue, backlog, messages)

    def _make_handling(self, calls: HandlerCalls, *, is_ordered: bool) -> Handling:
        send_backs = SendBacks(self._session, self.group, self.settings)
        if not is_ordered:
            return ConcurrentHandling(calls, send_backs, self.settings)
        is_broadcast = self.settings.model is MessageModel.BROADCASTING
        is_locked = (lambda queue: True) if is_broadcast else self._member.locks.is_held
        return OrderedHandling(calls, send_backs, self.settings, is_locked=is_locked)
