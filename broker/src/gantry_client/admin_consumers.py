"""The consumers of a group: their state, their own view of the offsets, and direct consumption of one message.

A broker forwards each request but that for connections to the consumer, and waits up to ten seconds for the answer.
"""

from typing import Final, TypeVar, final

from gantry_client.admin_brokers import BrokerAddress, Brokers
from gantry_client.documents import ClientConnection
from gantry_client.errors import BadReply, InvalidMessage, RequestFailed, Unavailable
from gantry_client.session import Session
from gantry_remoting.addresses import is_same_address, join_address
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

FORWARDED_TIMEOUT_MS: Final = 15_000
"""The timeout of a forwarded request; longer than the ten seconds that a broker waits for a consumer."""


@final
class Consumers:
    """Requests to the consumers of groups, forwarded by the brokers that they are connected to."""

    def __init__(self, session: Session, brokers: Brokers) -> None:
        self._session = session
        self._brokers = brokers

    async def connections(self, group: str) -> dict[str, ClientConnection]:
        """Return the connected consumers of `group` on all masters, by client id."""
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
        """Return the offsets in `topic` that each consumer reports, by client id; silent consumers are left out."""
        self._session.require_open()
        request = ConsumerStatusRequest(topic=topic, group=group, client_addr=client_id)
        route = await self._session.routes.get(topic)
        table: dict[str, dict[MessageQueue, int]] = {}
        for address in filter(None, (route.master_address(name) for name in route.brokers)):
            status = await self._forward(
                address, RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, ConsumerStatus, request
            )
            for member, offsets in status.consumer_table.items():
                table.setdefault(member, {}).update(offsets)
        return dict(sorted(table.items()))

    async def running_info(self, group: str, client_id: str, *, has_stacks: bool = False) -> ConsumerRunningInfo:
        """Return the running information of a consumer. If no broker reaches it, raises the error of the first one."""
        self._session.require_open()
        request = RunningInfoRequest(consumer_group=group, client_id=client_id, jstack_enable=has_stacks)
        failures: list[RequestFailed] = []
        for broker in await self._brokers.masters():
            try:
                return await self._forward(
                    broker.address, RequestCode.GET_CONSUMER_RUNNING_INFO, ConsumerRunningInfo, request
                )
            except BadReply:
                raise
            except RequestFailed as error:
                failures.append(error)
        raise failures[0]

    async def consume(
        self, group: str, client_id: str, offset_message_id: str, *, topic: str | None = None
    ) -> ConsumeResult:
        """Have a consumer consume a stored message now and return the result. No offset changes.

        Raises BrokerRefused when the broker that stored it has no such message, or no such consumer.
        """
        self._session.require_open()
        broker = await self._find_storing_broker(offset_message_id)
        request = ConsumeDirectly(
            consumer_group=group, client_id=client_id, msg_id=offset_message_id, topic=topic, broker_name=broker.name
        )
        return await self._forward(broker.address, RequestCode.CONSUME_MESSAGE_DIRECTLY, ConsumeResult, request)

    async def _forward(self, address: str, code: RequestCode, kind: type[D], request: Fields) -> D:
        return await self._session.calls.request_document(address, code, kind, request, timeout_ms=FORWARDED_TIMEOUT_MS)

    async def _find_storing_broker(self, offset_message_id: str) -> BrokerAddress:
        """Return the broker whose address the message id contains."""
        try:
            host, port, _ = parse_offset_message_id(offset_message_id)
        except RemoteProtocolError as error:
            raise InvalidMessage(str(error)) from error
        address = join_address(host, port)
        for broker in await self._brokers.all():
            if is_same_address(broker.address, address):
                return broker
        raise Unavailable(f"no broker is registered at {address}, the address in the message id")
