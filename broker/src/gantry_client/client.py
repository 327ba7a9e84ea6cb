"""The base classes of the client's endpoints: a session from `start` to `close`, shared producer and consumer code.

    Client               Admin, PullConsumer
      ProducerClient     Producer, TransactionProducer
      ConsumerClient     PushConsumer, PollConsumer
      ReplyingClient     Producer, PushConsumer (in `replies`)

An endpoint whose start fails is closed again before the error leaves `start`. Every public name here is public API of
each class below it; what only some classes offer belongs in those.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from gantry_client.backlog import Backlog
from gantry_client.consumer_role import ConsumerRole
from gantry_client.errors import InvalidMessage
from gantry_client.group_consumer import GroupConsumer
from gantry_client.handling import HandlerCalls
from gantry_client.messages import ReceivedMessage
from gantry_client.outgoing import check_group
from gantry_client.sender import Sender
from gantry_client.session import Session
from gantry_client.settings import (
    ClientSettings,
    ConsumerSettings,
    MessageModel,
    NameServerAddresses,
    ProducerSettings,
)
from gantry_client.subscriptions import FilterExpression, TopicFilters, make_subscription, make_subscriptions
from gantry_wire.commands.clients import MessageQueue
from gantry_wire.names import retry_topic


class Client:
    """One session with a cluster, for use inside `async with`. Belongs to the event loop that starts it."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.client_id}>"

    @property
    def client_id(self) -> str:
        """The id by which brokers identify this client."""
        return self._session.client_id

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Open the client. A consumer of a group joins it; this returns before its first message.

        Raises BrokerRefused when a broker refuses a message filter.
        """
        await self._session.start()
        try:
            await self._join()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Unregister from the brokers and close the connections. Pending calls fail."""
        await self._leave()
        await self._session.close()

    async def _join(self) -> None:
        """Start the work of the endpoint; the session is open."""

    async def _leave(self) -> None:
        """End the work of the endpoint; the session is still open, unless its start failed."""


class ProducerClient(Client):
    """A client that sends messages for one producer group."""

    def __init__(
        self,
        name_servers: NameServerAddresses,
        group: str,
        settings: ProducerSettings | None,
        client_settings: ClientSettings | None,
        *,
        is_announced: bool = True,
    ) -> None:
        """With ``is_announced`` False, heartbeats do not name this client as a producer of the group."""
        check_group(group)
        self.group = group
        self.settings = settings or ProducerSettings()
        super().__init__(
            Session(name_servers, client_settings, default_topic_queues=self.settings.default_topic_queues)
        )
        if is_announced:
            self._session.enter_producer_group(group)
        self._sender = Sender(self._session, group, self.settings)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.group} outstanding={self._sender.outstanding}>"

    async def queues(self, topic: str) -> Sequence[MessageQueue]:
        """Return the queues to which messages of `topic` can be sent now."""
        self._session.require_open()
        return (await self._session.routes.for_sending(topic)).write_queues

    async def refresh(self, topic: str) -> None:
        """Refresh the route of `topic`, so that a promoted master is found at once. Raises RequestFailed."""
        self._session.require_open()
        await self._session.routes.refresh(topic)


class ConsumerClient(Client, ABC):
    """A client that consumes as one of the consumers of a group."""

    def __init__(
        self,
        name_servers: NameServerAddresses,
        role: ConsumerRole,
        topics: TopicFilters,
        settings: ConsumerSettings,
        client_settings: ClientSettings | None,
        *,
        calls: HandlerCalls | None = None,
    ) -> None:
        """Create a consumer; ``calls`` invokes the application's handler, for push consumers only."""
        check_group(role.group)
        self.group = role.group
        self.settings = settings
        super().__init__(Session(name_servers, client_settings))
        subscriptions = make_subscriptions(topics)
        if not subscriptions:
            raise InvalidMessage(f"a {'push' if role.is_passive else 'poll'} consumer needs a topic")
        if role.is_passive and settings.model is MessageModel.CLUSTERING:
            subscriptions |= make_subscriptions(retry_topic(role.group))
        self._consumer = GroupConsumer(self._session, role, settings, subscriptions, self._deliver, calls)

    @property
    def queues(self) -> frozenset[MessageQueue]:
        """The queues that are assigned to this consumer now."""
        return frozenset(self._consumer.readers)

    async def subscribe(self, topic: str, tags: FilterExpression = "*") -> None:
        """Subscribe to another topic, or change its filter; `tags` may also be an `Sql`, which a broker may refuse."""
        self._session.require_open()
        await self._consumer.subscribe(make_subscription(topic, tags))

    async def _join(self) -> None:
        await self._consumer.start()

    async def _leave(self) -> None:
        await self._consumer.close()

    @abstractmethod
    def _deliver(self, queue: MessageQueue, backlog: Backlog, messages: Sequence[ReceivedMessage]) -> None:
        """Accept fetched messages, in order, with the backlog that contains them."""
