"""Messages by key and by place, for whoever looks for one of them. By time is a question of offsets: code 29.

    12 by key        topic + key -> hashes in the index -> records that carry the key, newest ones first if too many
    12 by unique id  the same, with `_UNIQUE_KEY_QUERY`: as many as RocketMQ gives, whatever the client asks for
    33 by place      the record at a physical offset, which the offset message id holds

Nobody is shown here what consumers are not shown yet: a message that a covered fault can take back is not there. Nor is
one of a topic that is not there any more, though its records lie in the log until they expire.

The index knows hashes only. What merely has the same hash is left out here, where RocketMQ leaves that to its clients:
otherwise such messages use up the number that was asked for, and one that is there is not found; and who may read this
topic need not be one who may read that of the same hash. Times are compared to
the millisecond; RocketMQ's are those of the index, in whole seconds. Answers come in the order of the log, as Java's.
"""

from collections.abc import Iterator
from typing import Final, final

from gantry_broker.errors import IndexRebuilding
from gantry_broker.server.core.broker_core import BrokerCore, HandlerTable
from gantry_broker.server.send.handlers import Refused, index_keys
from gantry_broker.store.message_store import MessageStore
from gantry_remoting import Connection
from gantry_wire import Command, RequestCode, ResponseCode, decode_record, names
from gantry_wire.commands.pull import QueryMessage, QueryMessageResult, ViewMessage
from gantry_wire.message import StoredMessage

QUERY_MESSAGES_MAX: Final = 64
"""Messages in one answer, whatever the client asks for; mqadmin asks for as many."""

UNIQUE_QUERY_MESSAGES: Final = 32
"""RocketMQ's defaultQueryMaxNum: messages with one unique id, which resends may give to several."""

MATCHES_MAX: Final = 1024
"""Equal hashes that one query looks at. It reads a record for each, and everybody else waits for it."""

QUERY_BYTES_MAX: Final = 8 * 1024 * 1024
"""What one answer holds at most, but for its first message; clients refuse frames over 16 MiB."""

UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"


@final
class QueryHandlers:
    """Codes 12 and 33. Owned by the event loop."""

    def __init__(self, core: BrokerCore) -> None:
        self._core = core

    def table(self) -> HandlerTable:
        return {RequestCode.QUERY_MESSAGE: self.query, RequestCode.VIEW_MESSAGE_BY_ID: self.view}

    def query(self, command: Command, connection: Connection) -> Command:
        query = QueryMessage.read(command.ext)
        is_unique = command.ext.get(UNIQUE_KEY_QUERY) == "true"
        count_max = UNIQUE_QUERY_MESSAGES if is_unique else max(0, min(query.max_num, QUERY_MESSAGES_MAX))
        store = self._core.store
        matches = store.key_matches(
            query.topic, query.key, MATCHES_MAX if count_max else 0, query.begin_timestamp, query.end_timestamp
        )
        come_so_far = QueryMessageResult(
            index_last_update_timestamp=matches.last_timestamp_ms, index_last_update_phyoffset=matches.last_physical
        ).write()
        if query.topic not in self._core.topics:
            return self._nothing(command, come_so_far, f"the topic[{query.topic[:300]}] does not exist")
        if not self._core.settings.store.is_index_enabled:
            return self._nothing(command, come_so_far, "this broker keeps no index of keys: messageIndexEnable=false")
        records = fitting(self._found(query, matches.physical_offsets), count_max)
        if not records and not matches.is_complete:
            raise IndexRebuilding("the key index is being rebuilt from the commit log; try again later")
        if not records:
            return self._nothing(command, come_so_far, "can not find message, maybe time range not correct")
        return command.reply(ext=come_so_far, body=b"".join(reversed(records)))

    def _nothing(self, command: Command, come_so_far: dict[str, str], why: str) -> Command:
        return command.reply(ResponseCode.QUERY_NOT_FOUND, why, ext=come_so_far)

    def _found(self, query: QueryMessage, offsets: list[int]) -> Iterator[bytes]:
        """The records that are meant, newest first."""
        for offset in offsets:
            data = shown_record(self._core.store, offset)
            if data is not None and is_meant(decode_record(data), query):
                yield data

    def view(self, command: Command, connection: Connection) -> Command:
        view = ViewMessage.read(command.ext)
        record = shown_record(self._core.store, view.offset)
        if record is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {view.offset}")
        return command.reply(body=record)


def shown_record(store: MessageStore, offset: int) -> bytes | None:
    """The record at `offset`, if consumers may see it; they may see no half message, whoever knows its place."""
    data = store.message_at(offset) if 0 <= offset < store.dispatched else None
    return None if data is None or decode_record(data).topic in names.UNSHOWN_TOPICS else data


def is_meant(message: StoredMessage, query: QueryMessage) -> bool:
    """Whether it is the key itself, not another with its hash, and within the time."""
    return (
        message.topic == query.topic
        and query.begin_timestamp <= message.store_timestamp_ms <= query.end_timestamp
        and query.key in index_keys(message.properties)
    )


def fitting(records: Iterator[bytes], count_max: int) -> list[bytes]:
    """As many of the first records as one answer may hold; no more are read."""
    found: list[bytes] = []
    size = 0
    for record in records:
        size += len(record)
        if len(found) == count_max or (found and size > QUERY_BYTES_MAX):
            break
        found.append(record)
    return found
