"""Requests to brokers and name servers: the port that handlers use, and its implementation over remoting.

Handlers know no connection: tests replace `BrokerPort` by a group of brokers in memory. One connection to each broker
carries the requests of all clients, long polls included, since a broker answers requests in any order.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, final

from gantry_client.calls import parse_document, require_success
from gantry_client.connections import ConnectionPool, OnOutcome, RequestHandler
from gantry_client.errors import BrokerRefused
from gantry_client.pop import PopClient, PopReply, PopRequest
from gantry_client.session import Session
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.command import Command
from gantry_wire.commands.admin import GroupField, SubscriptionGroupConfig, TopicConfig, TopicName
from gantry_wire.commands.clients import HeartbeatData, ProducerData, UnregisterClient
from gantry_wire.commands.documents import write_document
from gantry_wire.commands.fields import Fields
from gantry_wire.commands.nameserver import ClusterInfo, TopicRoute

REQUEST_MS: Final = 3_000
"""How long a broker may take for a request that does not wait for messages, as in RocketMQ's proxy."""

CheckHandler = Callable[[Command, str], Awaitable[None]]
"""Handles a broker's request for the state of a transaction, given the request and the address of the broker."""


class BrokerPort(Protocol):
    """What handlers need of the servers. Every method raises ClientError if the request fails."""

    async def topic_route(self, topic: str) -> TopicRoute | None:
        """Return the route of a topic; None if no broker has registered it."""

    async def cluster_info(self) -> ClusterInfo:
        """Return all brokers that the name servers know."""

    async def topic_config(self, address: str, topic: str) -> TopicConfig | None:
        """Return the configuration of a topic at a broker; None if it has none."""

    async def group_config(self, address: str, group: str) -> SubscriptionGroupConfig | None:
        """Return the configuration of a consumer group at a broker; None if it has none."""

    async def request(
        self, address: str, code: RequestCode, header: Fields, body: bytes = b"", *, timeout_ms: int = REQUEST_MS
    ) -> Command:
        """Return the reply of a broker, with any response code."""

    def can_begin(self, address: str) -> bool:
        """Return whether a connection to a broker is open, so that a request can begin without waiting."""

    def begin_request(self, address: str, command: Command, timeout_ms: int, on_outcome: OnOutcome) -> bool:
        """Send a request without waiting; later, ``on_outcome`` is called once.

        Return False, and send nothing, if that is not possible at once. Never raises.
        """

    async def pop(self, address: str, request: PopRequest) -> PopReply:
        """Pop messages at a broker, which may wait for some."""

    async def ack(self, address: str, topic: str, group: str, receipt: str) -> None:
        """Acknowledge a message by its receipt."""

    async def change_invisible(
        self, address: str, topic: str, group: str, receipt: str, invisible_ms: int, *, is_suspended: bool = False
    ) -> str:
        """Change the invisible time of a message, and return its new receipt."""

    async def register_producers(self, address: str, groups: list[str]) -> None:
        """Register this proxy at a broker as a member of producer groups, so that it is asked about transactions."""

    async def unregister_producer(self, address: str, group: str) -> None:
        """Leave a producer group at a broker."""

    async def register_consumer(self, slot: int, address: str, beat: HeartbeatData, language: str) -> None:
        """Register a consumer of this proxy at a broker, on the connection with this number."""

    async def unregister_consumer(self, slot: int, address: str, client_id: str, group: str) -> None:
        """Remove a consumer of this proxy from its group at a broker."""


@final
class RemotingBrokers:
    """The servers of one cluster. Belongs to the event loop of its session."""

    def __init__(self, session: Session) -> None:
        self._session: Final = session
        self._pop: Final = PopClient(session, body_bytes_max=0)  # `BodyInflater` decompresses them
        self._slots: Final[list[ConnectionPool]] = []
        """The connections on which consumers are registered, by their numbers."""
        self._answer_for_client: RequestHandler = _answer_nothing

    def __repr__(self) -> str:
        return f"<RemotingBrokers {self._session!r}>"

    def on_transaction_check(self, handle: CheckHandler) -> None:
        """Call ``handle`` for each request of a broker for the state of a transaction."""

        async def check(command: Command, address: str) -> Command | None:
            await handle(command, address)
            return None

        self._session.on_request(RequestCode.CHECK_TRANSACTION_STATE, check)

    def on_client_request(self, handle: RequestHandler) -> None:
        """Call ``handle`` for each request of a broker to a consumer that is registered there."""
        self._answer_for_client = handle

    async def topic_route(self, topic: str) -> TopicRoute | None:
        return await self._session.name_servers.route(topic)

    async def cluster_info(self) -> ClusterInfo:
        return await self._session.name_servers.cluster()

    async def topic_config(self, address: str, topic: str) -> TopicConfig | None:
        reply = await self._session.calls.request(address, RequestCode.GET_TOPIC_CONFIG, TopicName(topic=topic))
        if reply.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        return parse_document(require_success(reply, address), TopicConfig, address)

    async def group_config(self, address: str, group: str) -> SubscriptionGroupConfig | None:
        header = GroupField(group=group)
        reply = await self._session.calls.request(address, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, header)
        if reply.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
            return None
        return parse_document(require_success(reply, address), SubscriptionGroupConfig, address)

    async def request(
        self, address: str, code: RequestCode, header: Fields, body: bytes = b"", *, timeout_ms: int = REQUEST_MS
    ) -> Command:
        return await self._session.pool.request(address, Command(code=code, ext=header.write(), body=body), timeout_ms)

    def can_begin(self, address: str) -> bool:
        return self._session.pool.is_connected(address)

    def begin_request(self, address: str, command: Command, timeout_ms: int, on_outcome: OnOutcome) -> bool:
        return self._session.pool.begin_request(address, command, timeout_ms, on_outcome)

    async def pop(self, address: str, request: PopRequest) -> PopReply:
        return await self._pop.pop(address, request)

    async def ack(self, address: str, topic: str, group: str, receipt: str) -> None:
        await self._pop.ack(address, topic, group, receipt)

    async def change_invisible(
        self, address: str, topic: str, group: str, receipt: str, invisible_ms: int, *, is_suspended: bool = False
    ) -> str:
        return await self._pop.change_invisible(
            address, topic, group, receipt, invisible_ms=invisible_ms, is_suspended=is_suspended
        )

    async def register_producers(self, address: str, groups: list[str]) -> None:
        body = HeartbeatData(
            client_id=self._session.client_id, producer_data_set=[ProducerData(group_name=group) for group in groups]
        )
        await self._session.calls.request_success(address, RequestCode.HEART_BEAT, body=body)

    async def unregister_producer(self, address: str, group: str) -> None:
        header = UnregisterClient(client_id=self._session.client_id, producer_group=group)
        await self._session.calls.request_success(address, RequestCode.UNREGISTER_CLIENT, header)

    async def register_consumer(self, slot: int, address: str, beat: HeartbeatData, language: str) -> None:
        command = Command(code=RequestCode.HEART_BEAT, body=write_document(beat), language=language)
        require_success(await self._slot(slot).request(address, command, REQUEST_MS), address)

    async def unregister_consumer(self, slot: int, address: str, client_id: str, group: str) -> None:
        header = UnregisterClient(client_id=client_id, consumer_group=group)
        command = Command(code=RequestCode.UNREGISTER_CLIENT, ext=header.write())
        require_success(await self._slot(slot).request(address, command, REQUEST_MS), address)

    async def close(self) -> None:
        """Close the connections on which consumers are registered; those of the session are the session's."""
        await asyncio.gather(*(pool.close() for pool in self._slots))

    def _slot(self, number: int) -> ConnectionPool:
        while len(self._slots) <= number:
            pool = ConnectionPool(
                self._session.settings, answer=lambda command, address: self._answer_for_client(command, address)
            )
            self._slots.append(pool)
        return self._slots[number]


def _answer_nothing(command: Command, address: str) -> None:
    """Answer no request: the handler is set before the first consumer is registered."""


def require_ok(reply: Command, address: str) -> Command:
    """Return a reply whose code is 0. Raises BrokerRefused otherwise."""
    if reply.code != ResponseCode.SUCCESS:
        raise BrokerRefused(reply.code, reply.remark, address)
    return reply
