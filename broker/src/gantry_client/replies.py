"""Request and reply: a requester sends a message and waits for the reply of the client that consumes it.

A request is an ordinary message with three properties: a correlation id, the client id of the requester, and how long
it waits. The requester reads the reply from no topic: the replier sends it to a broker, which pushes it to the
requester over the connection of its heartbeats, and may store a copy in its reply topic. So before a requester sends,
it announces itself with a heartbeat to every broker that may receive the reply: those of its topic, and those of the
reply topics of their clusters, where Java's clients send any reply. This client sends a reply to the broker that the
request came from.

Replies are not delivered at least once. A reply that is late, or whose requester is gone, is lost. A request that is
consumed twice is answered twice, and the first reply counts.
"""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, final

from gantry_client.client import Client
from gantry_client.clock import Deadline, deadline_after, wall_ms
from gantry_client.errors import (
    BrokerRefused,
    ClientClosed,
    ClientError,
    InvalidMessage,
    NoReply,
    NoRoute,
    UnreadableBody,
)
from gantry_client.messages import Message, ReceivedMessage, SendReceipt, SendStatus, TaggedMessage
from gantry_client.outgoing import prepare_message
from gantry_client.routes import Route
from gantry_client.session import Session
from gantry_client.settings import ProducerSettings
from gantry_wire import properties as property_names
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.command import Command
from gantry_wire.commands.clients import MessageQueue
from gantry_wire.commands.fields import FieldError
from gantry_wire.commands.send import PushReply
from gantry_wire.compress import inflate_body
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.limits import BODY_INFLATED_BYTES_MAX
from gantry_wire.names import reply_topic
from gantry_wire.properties import parse_properties

log = logging.getLogger(__name__)

ROUTE_RETRY_MS: Final = 200
"""The interval between queries for the route of a reply topic; brokers repeat a registration after a second."""

ANNOUNCE_MS_MAX: Final = 1000
"""How long a first request waits for its heartbeats: a broker that is down must not use up the deadline."""

_CORRELATION_PROPERTIES: Final = frozenset(
    {
        property_names.CORRELATION_ID,
        property_names.REPLY_TO_CLIENT,
        property_names.TIME_TO_LIVE,
        property_names.MESSAGE_TYPE,
    }
)
"""The properties that correlate requests and replies."""

_ACCEPTED_CODES: Final = frozenset(status.value for status in SendStatus)
"""Response codes for a reply that reached the requester; codes other than 0 concern the broker's stored copy."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Reply(TaggedMessage):
    """The reply of a consumer to a request."""

    body: bytes = field(repr=False)
    properties: dict[str, str] = field(repr=False)
    """The properties of the replier, and those that clients and brokers add."""
    flag: int = 0
    born_timestamp_ms: int = 0
    born_host: str = ""
    """The address of the replier."""


@final
class Requests:
    """The pending requests of one client. Belongs to one event loop."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._waiting: dict[str, asyncio.Future[Reply]] = {}
        self._clusters: set[str] = set()
        """The clusters whose reply topics have a known route."""
        session.on_request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self._on_reply)

    def __repr__(self) -> str:
        return f"<Requests waiting={len(self._waiting)}>"

    async def request(
        self, message: Message, deadline: Deadline, send: Callable[[Message], Awaitable[SendReceipt]]
    ) -> Reply:
        """Send `message` with `send`, and wait for the reply. Raises NoReply, and what `send` raises."""
        reserved = _CORRELATION_PROPERTIES.intersection(message.properties)
        if reserved:
            raise InvalidMessage(f"properties {sorted(reserved)} are reserved for requests")
        await self._announce_client(message.topic, deadline)
        correlation_id = str(uuid.uuid4())
        correlation = {
            property_names.CORRELATION_ID: correlation_id,
            property_names.REPLY_TO_CLIENT: self._session.client_id,
            property_names.TIME_TO_LIVE: str(deadline.remaining_ms),
        }
        waiter: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = waiter
        try:
            await self._send_request(send, replace(message, properties={**message.properties, **correlation}), waiter)
            async with asyncio.timeout_at(deadline.at):
                return await waiter
        except TimeoutError as error:
            raise NoReply(message.topic) from error
        finally:
            del self._waiting[correlation_id]
            waiter.cancel()

    def close(self) -> None:
        """Fail all pending requests with ClientClosed."""
        for waiter in self._waiting.values():
            if not waiter.done():
                waiter.set_exception(ClientClosed("the client was closed while waiting for a reply"))

    async def _send_request(
        self, send: Callable[[Message], Awaitable[SendReceipt]], message: Message, waiter: "asyncio.Future[Reply]"
    ) -> None:
        try:
            await send(message)
        except ClientError:
            if not waiter.done():  # The request was consumed, although the reply to the send was lost.
                raise

    async def _announce_client(self, topic: str, deadline: Deadline) -> None:
        """Send a heartbeat to every broker that may receive the reply."""
        routes = self._session.routes
        try:
            async with asyncio.timeout_at(deadline.at):
                clusters = (await routes.for_sending(topic)).clusters - self._clusters
                for cluster in clusters:
                    await self._load_reply_route(cluster)
        except TimeoutError as error:
            raise NoReply(topic, "no name server replied in time; nothing was sent") from error
        try:
            async with asyncio.timeout(min(ANNOUNCE_MS_MAX, deadline.remaining_ms) / 1000):
                await self._session.announce(routes.addresses(masters_only=True))
        except TimeoutError:
            log.info("heartbeat before request timed out", extra={"topic": topic})

    async def _load_reply_route(self, cluster: str) -> None:
        """Query the route of a cluster's reply topic; one that fails or finds none is repeated by the next request."""
        try:
            await self._session.routes.get(reply_topic(cluster))
        except NoRoute:
            log.info("cluster has no reply topic", extra={"cluster": cluster})
        else:
            self._clusters.add(cluster)

    def _on_reply(self, command: Command, address: str) -> Command:
        """Handle code 326. A reply without a pending request is accepted and discarded, as by Java's clients."""
        try:
            header = PushReply.read(command.ext)
        except FieldError as error:
            log.warning("invalid reply to request", extra={"broker": address, "reason": str(error)})
            return command.reply(ResponseCode.SYSTEM_ERROR, f"invalid reply: {error}")
        properties = parse_properties(header.properties or "")
        waiter = self._waiting.get(properties.get(property_names.CORRELATION_ID, ""))
        if waiter is None or waiter.done():
            log.info("discarded reply without pending request", extra={"broker": address})
            return command.reply()
        try:
            body = inflate_body(command.body, header.sys_flag, BODY_INFLATED_BYTES_MAX)
        except RemoteProtocolError as error:
            waiter.set_exception(UnreadableBody(f"the body of the reply cannot be decompressed: {error}"))
            return command.reply()
        waiter.set_result(
            Reply(
                body=body,
                properties=properties,
                flag=header.flag,
                born_timestamp_ms=header.born_timestamp,
                born_host=header.born_host,
            )
        )
        return command.reply()


class ReplyingClient(Client):
    """A client whose application may answer requests."""

    group: str
    _reply_settings: ProducerSettings

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
        """Reply to a message that was sent as a request; returns when the requester has the reply.

        A handler may reply to the message that it consumes. If it raises, the request is delivered and answered again.
        Raises InvalidMessage if the message is not a request, BrokerRefused if the requester is gone or rejects the
        reply, and RequestTimeout, Unavailable or NoRoute.
        """
        self._session.require_open()
        message = reply_message(request, body, tags=tags, keys=keys, properties=properties or {})
        settings = self._reply_settings
        outgoing = prepare_message(message, self._session.unique_ids.next(wall_ms()), settings)
        deadline = deadline_after(timeout_ms, settings.send_timeout_ms)
        route = await self._find_route(message.topic, deadline)
        queue = _queue_of_broker(request.queue.broker_name, route.write_queues)
        header = outgoing.header(self.group, queue, wall_ms(), default_topic_queues=settings.default_topic_queues)
        address = route.require_master(queue.broker_name)
        command = Command(code=RequestCode.SEND_REPLY_MESSAGE_V2, ext=header.write(), body=outgoing.body)
        answer = await self._session.pool.request(address, command, max(1, deadline.remaining_ms))
        if answer.code not in _ACCEPTED_CODES:
            raise BrokerRefused(answer.code, answer.remark, address)

    async def _find_route(self, topic: str, deadline: Deadline) -> Route:
        """Return the route of a reply topic. Raises NoRoute if no name server has it before the deadline.

        Raises Unavailable if none replies. Every broker registers its reply topic, so the broker of the request has it.
        A name server that restarted, or that this broker has not reached yet, receives the registration within seconds.
        """
        while True:
            try:
                return await self._session.routes.for_sending_until(topic, deadline)
            except NoRoute:
                if deadline.remaining_ms <= ROUTE_RETRY_MS:
                    raise
            await asyncio.sleep(ROUTE_RETRY_MS / 1000)


def reply_message(
    request: ReceivedMessage, body: bytes, *, tags: str | None, keys: Sequence[str], properties: Mapping[str, str]
) -> Message:
    """Build the reply to `request`. Raises InvalidMessage if the message is not a request."""
    request_properties = request.properties
    missing = [
        name
        for name in (property_names.CORRELATION_ID, property_names.REPLY_TO_CLIENT, property_names.CLUSTER)
        if not request_properties.get(name)
    ]
    if missing:
        raise InvalidMessage(f"message {request.message_id} is not a request: it has no {', '.join(missing)}")
    reserved = _CORRELATION_PROPERTIES.intersection(properties)
    if reserved:
        raise InvalidMessage(f"properties {sorted(reserved)} are reserved for replies")
    correlation = {
        property_names.MESSAGE_TYPE: property_names.REPLY_TYPE,
        property_names.CORRELATION_ID: request_properties[property_names.CORRELATION_ID],
        property_names.REPLY_TO_CLIENT: request_properties[property_names.REPLY_TO_CLIENT],
        property_names.TIME_TO_LIVE: request_properties.get(property_names.TIME_TO_LIVE, ""),
    }
    return Message(
        reply_topic(request_properties[property_names.CLUSTER]),
        body,
        tags=tags,
        keys=keys,
        properties={**properties, **correlation},
    )


def _queue_of_broker(broker_name: str, queues: Sequence[MessageQueue]) -> MessageQueue:
    """Return a queue of the broker of the request, where the requester is connected, or else any queue."""
    return next((queue for queue in queues if queue.broker_name == broker_name), queues[0])
