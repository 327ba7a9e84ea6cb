"""Messages by key and by place.

The index knows hashes only, of topic and key together, and whoever chooses a key chooses its hash: what comes along
from another topic is left out here, since who may read this topic need not be one who may read that one.
"""

from typing import final

from gantry_broker.server.core import BrokerCore, HandlerTable
from gantry_broker.server.handlers.send import Refused
from gantry_remoting import Connection
from gantry_wire import Command, RequestCode, ResponseCode
from gantry_wire.commands.pull import QueryMessage, QueryMessageResult, ViewMessage
from gantry_wire.message import decode_record

QUERY_MESSAGES_MAX = 64
UNIQUE_QUERY_MESSAGES = 32
QUERY_BYTES_MAX = 8 * 1024 * 1024
"""What one answer holds at most, but for its first message; clients refuse frames over 16 MiB."""


@final
class QueryHandlers:
    """Codes 12 and 33. Owned by the event loop."""

    def __init__(self, core: BrokerCore) -> None:
        self._core = core

    def table(self) -> HandlerTable:
        return {RequestCode.QUERY_MESSAGE: self.query, RequestCode.VIEW_MESSAGE_BY_ID: self.view}

    def query(self, command: Command, connection: Connection) -> Command:
        query = QueryMessage.read(command.ext)
        is_unique = command.ext.get("_UNIQUE_KEY_QUERY") == "true"
        count_max = UNIQUE_QUERY_MESSAGES if is_unique else max(0, min(query.max_num, QUERY_MESSAGES_MAX))
        records, timestamp, physical_offset = self._core.store.query_keys(
            query.topic, query.key, count_max, query.begin_timestamp, query.end_timestamp
        )
        records = [record for record in records if decode_record(record).topic == query.topic]
        if not records:
            raise Refused(ResponseCode.QUERY_NOT_FOUND, "can not find message, maybe time range not correct")
        result = QueryMessageResult(index_last_update_timestamp=timestamp, index_last_update_phyoffset=physical_offset)
        return command.reply(ext=result.write(), body=b"".join(_fitting(records)))

    def view(self, command: Command, connection: Connection) -> Command:
        view = ViewMessage.read(command.ext)
        record = self._core.store.message_at(view.offset) if view.offset >= 0 else None
        if record is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {view.offset}")
        return command.reply(body=record)


def _fitting(records: list[bytes]) -> list[bytes]:
    """As many of the first records as one answer may hold."""
    size = 0
    for count, record in enumerate(records):
        size += len(record)
        if size > QUERY_BYTES_MAX and count:
            return records[:count]
    return records
