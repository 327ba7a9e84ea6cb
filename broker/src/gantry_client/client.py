"""The bases of the client's endpoints: a session from `start` to `close`, what producers share, and what members share.

    Client               Admin, PullConsumer
      ProducerClient     Producer, TransactionProducer
      MemberClient       PushConsumer, PollConsumer
      ReplyingClient     Producer, PushConsumer (in `replies`)

An endpoint whose start fails is closed again before the error leaves `start`. Every public name here is public API of
each class below it: what only some of them offer belongs in those.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from gantry_client.backlog import Backlog
from gantry_client.errors import InvalidMessage
from gantry_client.group_member import GroupMember
from gantry_client.handling import HandlerCalls
from gantry_client.member_role import MemberRole
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
from gantry_client.subscriptions import Topics, Wanted, make_subscription, make_subscriptions
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
        """How brokers know this client."""
        return self._session.client_id

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Open for use. A consumer that belongs to a group joins it, and returns before its first message.

        Raises BrokerRefused for a filter of messages that a broker refuses.
        """
        await self._session.start()
        try:
            await self._join()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Say goodbye to the brokers and close the connections. Calls under way fail."""
        await self._leave()
        await self._session.close()

    async def _join(self) -> None:
        """Begin the endpoint's own work; the session is open."""

    async def _leave(self) -> None:
        """End the endpoint's own work; the session is still open, unless it never was."""


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
        """With ``is_announced`` False no broker learns that this client belongs to the group."""
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
        """The queues that messages of `topic` go to now."""
        self._session.require_open()
        return (await self._session.routes.for_sending(topic)).write_queues

    async def refresh(self, topic: str) -> None:
        """Ask again where `topic` is: a broker that was promoted is found at once. Raises RequestFailed."""
        self._session.require_open()
        await self._session.routes.refresh(topic)


class MemberClient(Client, ABC):
    """A client that consumes as a member of a group."""

    def __init__(
        self,
        name_servers: NameServerAddresses,
        role: MemberRole,
        topics: Topics,
        settings: ConsumerSettings,
        client_settings: ClientSettings | None,
        *,
        calls: HandlerCalls | None = None,
    ) -> None:
        """``calls`` are those of the application's handler, where messages are pushed at one."""
        check_group(role.group)
        self.group = role.group
        self.settings = settings
        super().__init__(Session(name_servers, client_settings))
        subscriptions = make_subscriptions(topics)
        if not subscriptions:
            raise InvalidMessage(f"a {'push' if role.is_passive else 'poll'} consumer needs a topic")
        if role.is_passive and settings.model is MessageModel.CLUSTERING:
            subscriptions |= make_subscriptions(retry_topic(role.group))
        self._member = GroupMember(self._session, role, settings, subscriptions, self._deliver, calls)

    @property
    def queues(self) -> frozenset[MessageQueue]:
        """The queues that are read here now."""
        return frozenset(self._member.readers)

    async def subscribe(self, topic: str, tags: Wanted = "*") -> None:
        """Want one more topic, or other tags of it; `tags` may also be an `Sql`, which a broker may refuse."""
        self._session.require_open()
        await self._member.subscribe(make_subscription(topic, tags))

    async def _join(self) -> None:
        await self._member.start()

    async def _leave(self) -> None:
        await self._member.close()

    @abstractmethod
    def _deliver(self, queue: MessageQueue, backlog: Backlog, messages: Sequence[ReceivedMessage]) -> None:
        """Take messages that were fetched, in order, with the backlog that they are part of."""
