"""Request and reply: both ends. One sends a message and waits for an answer to it; another answers what it consumed.

A request is a message like any other, with three properties: an id that ties the reply to it, the client id of whoever
asked, and how long that waits. The reply does not travel by way of a topic: the replier gives it to a broker, which
hands it to the requester on the connection of its heartbeats. So a requester makes itself known, before it asks, to
every broker that may come to hold its reply: those of its topic, and those of their clusters' reply topics, where
Java's clients send any reply. Ours give a reply to the broker that the request came from.

Nothing here is at least once. A reply that comes too late, or to a requester that is gone, is lost, and a request that
is consumed twice is answered twice: the first answer counts.
"""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, final

from gantry_client.client import Client
from gantry_client.clock import Deadline, wall_ms
from gantry_client.errors import (
    BrokerRefused,
    ClientClosed,
    ClientError,
    InvalidMessage,
    NoReply,
    NoRoute,
    UnreadableBody,
)
from gantry_client.messages import Message, ReceivedMessage, SendReceipt, SendStatus, Tagged
from gantry_client.outgoing import prepare
from gantry_client.routes import Route
from gantry_client.session import Session
from gantry_client.settings import ProducerSettings
from gantry_wire import properties as names
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
"""Between two questions for the route of a reply topic: a broker registers again after a second."""

GREETING_MS_MAX: Final = 1000
"""How long a first request waits for brokers to know its sender: one that is down must not eat the deadline."""

_OURS: Final = frozenset({names.CORRELATION_ID, names.REPLY_TO_CLIENT, names.TIME_TO_LIVE, names.MESSAGE_TYPE})
"""Properties that tie requests and replies together."""

_TAKEN: Final = frozenset(status.value for status in SendStatus)
"""What a broker says to a reply that the requester has; anything but 0 is about the copy that the broker keeps."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Reply(Tagged):
    """What somebody answered to a request."""

    body: bytes = field(repr=False)
    properties: dict[str, str] = field(repr=False)
    """The replier's own, and what clients and brokers add."""
    flag: int = 0
    born_timestamp_ms: int = 0
    born_host: str = ""
    """Where the replier is."""


@final
class Requests:
    """The requests of one client that wait for replies. Belongs to one event loop."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._waiting: dict[str, asyncio.Future[Reply]] = {}
        self._clusters: set[str] = set()
        """Clusters whose brokers are known."""
        session.on_request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self._on_reply)

    def __repr__(self) -> str:
        return f"<Requests waiting={len(self._waiting)}>"

    async def request(
        self, message: Message, deadline: Deadline, send: Callable[[Message], Awaitable[SendReceipt]]
    ) -> Reply:
        """Send `message` with `send`, and wait for what somebody answers. Raises NoReply, and what `send` raises."""
        taken = _OURS.intersection(message.properties)
        if taken:
            raise InvalidMessage(f"properties {sorted(taken)} are set by the request itself")
        await self._become_known(message.topic, deadline)
        number = str(uuid.uuid4())
        ours = {
            names.CORRELATION_ID: number,
            names.REPLY_TO_CLIENT: self._session.client_id,
            names.TIME_TO_LIVE: str(deadline.remaining_ms),
        }
        waiter: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[number] = waiter
        try:
            await self._send_request(send, replace(message, properties={**message.properties, **ours}), waiter)
            async with asyncio.timeout_at(deadline.at):
                return await waiter
        except TimeoutError as error:
            raise NoReply(message.topic) from error
        finally:
            del self._waiting[number]
            waiter.cancel()

    def close(self) -> None:
        """Whoever waits stops waiting."""
        for waiter in self._waiting.values():
            if not waiter.done():
                waiter.set_exception(ClientClosed("the client was closed while it waited for a reply"))

    async def _send_request(
        self, send: Callable[[Message], Awaitable[SendReceipt]], message: Message, waiter: "asyncio.Future[Reply]"
    ) -> None:
        try:
            await send(message)
        except ClientError:
            if not waiter.done():  # A reply says more than the lost answer to the send.
                raise

    async def _become_known(self, topic: str, deadline: Deadline) -> None:
        """Have every broker that a reply may be given to know this client."""
        routes = self._session.routes
        try:
            async with asyncio.timeout_at(deadline.at):
                clusters = (await routes.for_sending(topic)).clusters - self._clusters
                for cluster in clusters:
                    await self._find(cluster)
        except TimeoutError as error:
            raise NoReply(topic, "no name server answered in time; nothing was sent") from error
        try:
            async with asyncio.timeout(min(GREETING_MS_MAX, deadline.remaining_ms) / 1000):
                await self._session.greet(routes.addresses(masters_only=True))
        except TimeoutError:
            log.info("a broker does not know this client yet", extra={"topic": topic})

    async def _find(self, cluster: str) -> None:
        self._clusters.add(cluster)
        try:
            await self._session.routes.get(reply_topic(cluster))
        except NoRoute:
            log.info("a cluster has no reply topic", extra={"cluster": cluster})

    def _on_reply(self, command: Command, address: str) -> Command:
        """Code 326. A reply that nobody waits for any more is taken and dropped, as Java's clients do."""
        try:
            header = PushReply.read(command.ext)
        except FieldError as error:
            log.warning("a reply cannot be read", extra={"broker": address, "reason": str(error)})
            return command.reply(ResponseCode.SYSTEM_ERROR, f"the reply cannot be read: {error}")
        properties = parse_properties(header.properties or "")
        waiter = self._waiting.get(properties.get(names.CORRELATION_ID, ""))
        if waiter is None or waiter.done():
            log.info("a reply came that nobody waits for", extra={"broker": address})
            return command.reply()
        try:
            body = inflate_body(command.body, header.sys_flag, BODY_INFLATED_BYTES_MAX)
        except RemoteProtocolError as error:
            waiter.set_exception(UnreadableBody(f"the reply's body: {error}"))
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
        """Answer a message that was sent as a request; returns when the requester has the answer.

        A handler may answer the message that it consumes. One that lets its errors out has the request delivered, and
        answered, again. Raises InvalidMessage when the message was no request, BrokerRefused when the requester is gone
        or does not take the answer, and RequestTimeout, Unavailable or NoRoute.
        """
        self._session.require_open()
        message = reply_message(request, body, tags=tags, keys=keys, properties=properties or {})
        settings = self._reply_settings
        outgoing = prepare(message, self._session.unique_ids.next(wall_ms()), settings)
        deadline = Deadline(timeout_ms or settings.send_timeout_ms)
        route = await self._find_route(message.topic, deadline)
        queue = _queue_at(request.queue.broker_name, route.write_queues)
        header = outgoing.header(self.group, queue, wall_ms(), default_topic_queues=settings.default_topic_queues)
        address = route.demand_master(queue.broker_name)
        command = Command(code=RequestCode.SEND_REPLY_MESSAGE_V2, ext=header.write(), body=outgoing.body)
        answer = await self._session.pool.request(address, command, max(1, deadline.remaining_ms))
        if answer.code not in _TAKEN:
            raise BrokerRefused(answer.code, answer.remark, address)

    async def _find_route(self, topic: str, deadline: Deadline) -> Route:
        """Where replies are sent. Raises NoRoute when no name server has the reply topic before the deadline.

        Every broker registers its reply topic, so the one that gave us the request has it. A name server that was
        restarted, or that this broker has not reached yet, learns of it within seconds.
        """
        while True:
            try:
                return await self._session.routes.for_sending(topic)
            except NoRoute:
                if deadline.remaining_ms <= ROUTE_RETRY_MS:
                    raise
            await asyncio.sleep(ROUTE_RETRY_MS / 1000)


def reply_message(
    request: ReceivedMessage, body: bytes, *, tags: str | None, keys: Sequence[str], properties: Mapping[str, str]
) -> Message:
    """The message that answers `request`. Raises InvalidMessage when nobody waits for one."""
    asked = request.properties
    missing = [name for name in (names.CORRELATION_ID, names.REPLY_TO_CLIENT, names.CLUSTER) if not asked.get(name)]
    if missing:
        raise InvalidMessage(f"message {request.message_id} is no request: it has no {', '.join(missing)}")
    taken = _OURS.intersection(properties)
    if taken:
        raise InvalidMessage(f"properties {sorted(taken)} are set by the reply itself")
    ours = {
        names.MESSAGE_TYPE: names.REPLY_TYPE,
        names.CORRELATION_ID: asked[names.CORRELATION_ID],
        names.REPLY_TO_CLIENT: asked[names.REPLY_TO_CLIENT],
        names.TIME_TO_LIVE: asked.get(names.TIME_TO_LIVE, ""),
    }
    return Message(reply_topic(asked[names.CLUSTER]), body, tags=tags, keys=keys, properties={**properties, **ours})


def _queue_at(broker_name: str, queues: Sequence[MessageQueue]) -> MessageQueue:
    """A queue of the broker that the request came from: the requester is known there. Any other if it has none."""
    return next((queue for queue in queues if queue.broker_name == broker_name), queues[0])
