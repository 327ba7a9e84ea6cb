"""The members of a consumer group: what they do, how far they are in their own view, and one message for one of them.

A broker passes each question on over the member's own connection, and waits for its answer up to ten seconds.
"""

from typing import Final, TypeVar, final

from gantry_client.admin_brokers import BrokerAddress, Brokers
from gantry_client.documents import ClientConnection
from gantry_client.errors import BadReply, InvalidMessage, RequestFailed, Unavailable
from gantry_client.session import Session
from gantry_remoting.addresses import join_address
from gantry_wire.codes import RequestCode
from gantry_wire.commands.clients import Document, MessageQueue
from gantry_wire.commands.consumers import (
    ConsumeDirectly,
    ConsumeResult,
    ConsumerRunningInfo,
    ConsumerStatus,
    ConsumerStatusRequest,
    RunningInfoRequest,
)
from gantry_wire.commands.fields import Fields
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.message import parse_offset_message_id

D = TypeVar("D", bound=Document)

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
            connections = await self._brokers.connections(broker.address, group)
            if connections is not None:
                found |= {one.client_id: one for one in connections.connection_set}
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
            status = await self._pass_on(
                address, RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, ConsumerStatus, question
            )
            for member, offsets in status.consumer_table.items():
                table.setdefault(member, {}).update(offsets)
        return dict(sorted(table.items()))

    async def running_info(self, group: str, client_id: str, *, has_stacks: bool = False) -> ConsumerRunningInfo:
        """What a member has in hand, and how it gets on. Raises BrokerRefused when no broker reaches it."""
        self._session.require_open()
        question = RunningInfoRequest(consumer_group=group, client_id=client_id, jstack_enable=has_stacks)
        failures: list[RequestFailed] = []
        for broker in await self._brokers.masters():
            try:
                return await self._pass_on(
                    broker.address, RequestCode.GET_CONSUMER_RUNNING_INFO, ConsumerRunningInfo, question
                )
            except BadReply:
                raise
            except RequestFailed as error:
                failures.append(error)
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
        return await self._pass_on(broker.address, RequestCode.CONSUME_MESSAGE_DIRECTLY, ConsumeResult, question)

    async def _pass_on(self, address: str, code: RequestCode, kind: type[D], question: Fields) -> D:
        return await self._session.calls.document(address, code, kind, question, timeout_ms=PASSED_ON_TIMEOUT_MS)

    async def _holder(self, offset_message_id: str) -> BrokerAddress:
        """The broker whose address stands in the id."""
        try:
            host, port, _ = parse_offset_message_id(offset_message_id)
        except RemoteProtocolError as error:
            raise InvalidMessage(str(error)) from error
        address = join_address(host, port)
        for broker in await self._brokers.all():
            if broker.address == address:
                return broker
        raise Unavailable(f"no broker is registered at {address}, which the message's id names")
