"""The members of a consumer group: what they do, how far they are in their own view, and one message for one of them.

A broker passes each question on over the member's own connection, and waits for its answer up to ten seconds.
"""

from typing import Final, final

from gantry_client.admin_brokers import BrokerAddress, Brokers
from gantry_client.calls import document_of, succeeded
from gantry_client.documents import ClientConnection, ConsumerConnections
from gantry_client.errors import InvalidMessage, RequestFailed, Unavailable
from gantry_client.session import Session
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.commands.clients import ConsumerGroup, MessageQueue
from gantry_wire.commands.consumers import (
    ConsumeDirectly,
    ConsumeResult,
    ConsumerRunningInfo,
    ConsumerStatus,
    ConsumerStatusRequest,
    RunningInfoRequest,
)
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.message import parse_offset_message_id

PASSED_ON_TIMEOUT_MS: Final = 15_000
"""Longer than a broker waits for a member."""


@final
class Members:
    """Questions to members of groups, by way of the brokers that they are connected to."""

    def __init__(self, session: Session, brokers: Brokers) -> None:
        self._session = session
        self._brokers = brokers

    async def connections(self, group: str) -> dict[str, ClientConnection]:
        """Who is in `group` now, by client id, whichever broker knows of it."""
        self._session.require_open()
        found: dict[str, ClientConnection] = {}
        for broker in await self._brokers.masters():
            reply = await self._session.calls.ask(
                broker.address, RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerGroup(consumer_group=group)
            )
            if reply.code != ResponseCode.CONSUMER_NOT_ONLINE:
                document = document_of(succeeded(reply, broker.address), ConsumerConnections, broker.address)
                found |= {one.client_id: one for one in document.connection_set}
        return dict(sorted(found.items()))

    async def offsets(
        self, group: str, topic: str, *, client_id: str | None = None
    ) -> dict[str, dict[MessageQueue, int]]:
        """How far each member is in `topic`, in its own view, by client id; those that do not answer are left out."""
        self._session.require_open()
        question = ConsumerStatusRequest(topic=topic, group=group, client_addr=client_id)
        route = await self._session.routes.get(topic)
        table: dict[str, dict[MessageQueue, int]] = {}
        for address in filter(None, (route.master_address(name) for name in route.brokers)):
            reply = await self._session.calls.demand(
                address, RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, question, timeout_ms=PASSED_ON_TIMEOUT_MS
            )
            for member, offsets in document_of(reply, ConsumerStatus, address).consumer_table.items():
                table.setdefault(member, {}).update(offsets)
        return dict(sorted(table.items()))

    async def running_info(self, group: str, client_id: str, *, has_stacks: bool = False) -> ConsumerRunningInfo:
        """What a member has in hand, and how it gets on. Raises BrokerRefused when no broker reaches it."""
        self._session.require_open()
        question = RunningInfoRequest(consumer_group=group, client_id=client_id, jstack_enable=has_stacks)
        failures: list[RequestFailed] = []
        for broker in await self._brokers.masters():
            try:
                reply = await self._session.calls.demand(
                    broker.address,
                    RequestCode.GET_CONSUMER_RUNNING_INFO,
                    question,
                    timeout_ms=PASSED_ON_TIMEOUT_MS,
                )
            except RequestFailed as error:
                failures.append(error)
            else:
                return document_of(reply, ConsumerRunningInfo, broker.address)
        raise failures[0]

    async def consume(
        self, group: str, client_id: str, offset_message_id: str, *, topic: str | None = None
    ) -> ConsumeResult:
        """Have a member consume a stored message now, and say how that went. No offset moves by it.

        Raises BrokerRefused where the broker that stored it has no such message, or no such member.
        """
        self._session.require_open()
        broker = await self._holder(offset_message_id)
        question = ConsumeDirectly(
            consumer_group=group, client_id=client_id, msg_id=offset_message_id, topic=topic, broker_name=broker.name
        )
        reply = await self._session.calls.demand(
            broker.address, RequestCode.CONSUME_MESSAGE_DIRECTLY, question, timeout_ms=PASSED_ON_TIMEOUT_MS
        )
        return document_of(reply, ConsumeResult, broker.address)

    async def _holder(self, offset_message_id: str) -> BrokerAddress:
        """The broker whose address stands in the id."""
        try:
            host, port, _ = parse_offset_message_id(offset_message_id)
        except RemoteProtocolError as error:
            raise InvalidMessage(str(error)) from error
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        for broker in await self._brokers.all():
            if broker.address == address:
                return broker
        raise Unavailable(f"no broker is registered at {address}, which the message's id names")
