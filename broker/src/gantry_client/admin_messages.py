"""Looking up single messages: by offset message id, by unique message id, by key."""

from typing import Final, final

from gantry_client.calls import require_success
from gantry_client.errors import BadReply, InvalidMessage
from gantry_client.messages import ReceivedMessage, to_received_message
from gantry_client.session import Session
from gantry_remoting.addresses import is_same_address, join_address
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.command import Command
from gantry_wire.commands.pull import QueryMessage, ViewMessage
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.message import StoredMessage, decode_record, decode_records, parse_offset_message_id
from gantry_wire.properties import KEYS, UNIQUE_KEY, split_keys
from gantry_wire.signatures import UNIQUE_KEY_QUERY

TIMESTAMP_MAX: Final = (1 << 63) - 1
"""A time after all messages."""


@final
class Messages:
    """Requests that look up single messages."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def view(self, offset_message_id: str, topic: str | None = None) -> ReceivedMessage:
        """Return the message with an offset message id. Raises BrokerRefused when the message no longer exists.

        The id contains the address of the broker that stored the message. With `topic` the broker name is looked up in
        the route; otherwise the message carries the address in place of a broker name.
        """
        self._session.require_open()
        try:
            host, port, offset = parse_offset_message_id(offset_message_id)
        except RemoteProtocolError as error:
            raise InvalidMessage(str(error)) from error
        address = join_address(host, port)
        reply = await self._session.calls.request_success(
            address, RequestCode.VIEW_MESSAGE_BY_ID, ViewMessage(offset=offset, topic=topic)
        )
        try:
            return to_received_message(decode_record(reply.body), await self._broker_name(topic, address))
        except RemoteProtocolError as error:
            raise BadReply(f"{address} sent a damaged message: {error}") from error

    async def by_key(
        self, topic: str, key: str, *, messages_max: int = 32, begin_ms: int = 0, end_ms: int = TIMESTAMP_MAX
    ) -> list[ReceivedMessage]:
        """Return messages of `topic` with `key`, by store time. Brokers search by hash; the key is compared here."""
        found = await self._query(topic, key, (messages_max, begin_ms, end_ms), is_unique_key=False)
        return [message for message in found if key in message.keys][:messages_max]

    async def by_id(self, topic: str, message_id: str) -> list[ReceivedMessage]:
        """Return messages of `topic` with the unique id of their sender: one, or several after a retried send."""
        found = await self._query(topic, message_id, (32, 0, TIMESTAMP_MAX), is_unique_key=True)
        return [message for message in found if message.properties.get(UNIQUE_KEY) == message_id]

    async def records_at(
        self, address: str, topic: str, key: str, *, messages_max: int = 32, is_unique_key: bool = False
    ) -> list[StoredMessage]:
        """Return the records of `topic` that one broker's index lists under `key`, by offset. Needs no name server."""
        self._session.require_open()
        request = QueryMessage(
            topic=topic, key=key, max_num=messages_max, begin_timestamp=0, end_timestamp=TIMESTAMP_MAX
        )
        found = await self._query_index(address, request, is_unique_key=is_unique_key)
        matching = (record for record in found if key in _keys_of(record, is_unique_key=is_unique_key))
        unique = {record.physical_offset: record for record in matching}
        return [unique[offset] for offset in sorted(unique)][:messages_max]

    async def _query_index(self, address: str, request: QueryMessage, *, is_unique_key: bool) -> list[StoredMessage]:
        """Return the records that one broker finds, which may be none."""
        header = request.write()
        header[UNIQUE_KEY_QUERY] = "true" if is_unique_key else "false"
        command = Command(code=RequestCode.QUERY_MESSAGE, ext=header)
        reply = await self._session.pool.request(address, command, self._session.settings.request_timeout_ms)
        if reply.code == ResponseCode.QUERY_NOT_FOUND:
            return []
        try:
            return decode_records(require_success(reply, address).body)
        except RemoteProtocolError as error:
            raise BadReply(f"{address} sent a damaged message: {error}") from error

    async def _query(
        self, topic: str, key: str, bounds: tuple[int, int, int], *, is_unique_key: bool
    ) -> list[ReceivedMessage]:
        self._session.require_open()
        messages_max, begin_ms, end_ms = bounds
        request = QueryMessage(
            topic=topic, key=key, max_num=messages_max, begin_timestamp=begin_ms, end_timestamp=end_ms
        )
        route = await self._session.routes.get(topic)
        found: list[ReceivedMessage] = []
        for broker_name, address in route.read_addresses():
            records = await self._query_index(address, request, is_unique_key=is_unique_key)
            found += (to_received_message(record, broker_name) for record in records)
        unique = {message.offset_message_id: message for message in found}
        return sorted(unique.values(), key=lambda message: (message.store_timestamp_ms, message.physical_offset))

    async def _broker_name(self, topic: str | None, address: str) -> str:
        if topic is not None:
            route = await self._session.routes.get(topic)
            for broker_name, addresses in route.brokers.items():
                if any(is_same_address(address, one) for one in addresses.values()):
                    return broker_name
        return address


def _keys_of(record: StoredMessage, *, is_unique_key: bool) -> tuple[str, ...]:
    text = record.properties.get(UNIQUE_KEY if is_unique_key else KEYS, "")
    return (text,) if is_unique_key else split_keys(text)
