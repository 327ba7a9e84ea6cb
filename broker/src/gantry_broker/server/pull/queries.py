"""Handles queries for messages by key and by offset, and for units of consume queues.

    12 by key        topic + key -> hashes in the index -> records that carry the key, newest ones first if too many
    12 by tag        the index type T -> units of the topic's queues with the hash of the tag (`tag_query`)
    12 by unique id  the same, with `_UNIQUE_KEY_QUERY`; the limit is RocketMQ's, not that of the request
    33 by offset     the record at a physical offset, which the offset message id holds
    321 a queue      the units of a consume queue: the physical offset, the size and the tag hash of each message

Messages that are not visible to consumers are not found here, since a fault may still remove them. Messages of a
deleted topic are found only by offset (33), until their records expire.

The index holds only hashes. Messages that merely have the same hash are left out here; RocketMQ leaves that to its
clients. Otherwise such messages would use up the limit of the request, so that an existing message is not found; and a
client that may read this topic need not be permitted to read one with the same hash. Times are compared to the
millisecond; RocketMQ's are those of the index, in whole seconds. Answers come in the order of the log, as Java's.

If a query of a queue (321) names a group, the answer contains the group's subscription too, and the filter of an SQL92
subscription. ``eval`` is false, as RocketMQ writes it for every unit without an extension: this broker has no
extensions. An index that the queue does not hold is answered with code 0, a text and no body, as RocketMQ's tool
expects.
"""

import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import msgspec

from gantry_broker.errors import IndexRebuilding
from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.clients import Subscription
from gantry_broker.server.core.handlers import handles
from gantry_broker.server.core.refusals import Refused
from gantry_broker.server.pull.tag_query import find_tagged, has_tag
from gantry_broker.store.key_index import KeyMatches
from gantry_broker.store.message_store import MessageStore
from gantry_remoting import Connection
from gantry_wire import Command, RequestCode, ResponseCode, decode_record, names
from gantry_wire.commands.consumers import QueryConsumeQueue
from gantry_wire.commands.pull import QueryMessage, QueryMessageResult, ViewMessage
from gantry_wire.fastjson import dumps
from gantry_wire.filters import is_tag_type
from gantry_wire.message import StoredMessage
from gantry_wire.properties import message_keys
from gantry_wire.signatures import UNIQUE_KEY_QUERY

QUERY_MESSAGES_MAX: Final = 64
"""The limit of messages in one answer; mqadmin requests as many."""

UNIQUE_QUERY_MESSAGES: Final = 32
"""RocketMQ's defaultQueryMaxNum: the limit of messages with one unique id, which resends have in common."""

MATCHES_MAX: Final = 1024
"""The limit of records with an equal hash that one query reads, while all other requests wait."""

TAG_INDEX: Final = "T"
"""The index type of a query by tag, which `tag_query` answers."""

QUERY_BYTES_MAX: Final = 8 * 1024 * 1024
"""The limit of one answer, except for its first message; clients refuse frames over 16 MiB."""

QUEUE_UNITS_MAX: Final = 10_000
"""The limit of units of a consume queue in one answer: each takes some hundred bytes."""


@handles(RequestCode.QUERY_MESSAGE)
def query_messages(core: BrokerCore, command: Command, connection: Connection) -> Command | Awaitable[Command]:
    query = QueryMessage.read(command.ext)
    if query.index_type == TAG_INDEX:
        return _query_by_tag(core, command, query)
    is_unique = command.ext.get(UNIQUE_KEY_QUERY) == "true"
    count_max = UNIQUE_QUERY_MESSAGES if is_unique else max(0, min(query.max_num, QUERY_MESSAGES_MAX))
    store = core.store
    matches = store.keys.matches(
        query.topic, query.key, MATCHES_MAX if count_max else 0, query.begin_timestamp, query.end_timestamp
    )
    index_progress = _write_progress(matches)
    if query.topic not in core.topics:
        return _reply_not_found(command, index_progress, f"the topic[{query.topic[:300]}] does not exist")
    if not core.settings.store.is_index_enabled:
        return _reply_not_found(command, index_progress, "this broker keeps no index of keys: messageIndexEnable=false")
    records = limit_records(_find_records(core, query, matches.physical_offsets, matches_query), count_max)
    if not records and not matches.is_complete:
        raise IndexRebuilding("the key index is being rebuilt from the commit log; try again later")
    if not records:
        return _reply_not_found(command, index_progress, "can not find message, maybe time range not correct")
    return command.reply(ext=index_progress, body=b"".join(reversed(records)))


async def _query_by_tag(core: BrokerCore, command: Command, query: QueryMessage) -> Command:
    """Answer with the newest messages that have a tag, from the queues of the topic."""
    count_max = max(0, min(query.max_num, QUERY_MESSAGES_MAX))
    progress = _write_progress(core.store.keys.matches(query.topic, query.key, 0, 0, 0))
    if query.topic not in core.topics:
        return _reply_not_found(command, progress, f"the topic[{query.topic[:300]}] does not exist")
    async with core.tag_query_lock:
        offsets = await find_tagged(core, query, count_max)
    records = limit_records(_find_records(core, query, offsets, has_tag), count_max)
    if not records:
        return _reply_not_found(command, progress, "can not find message, maybe time range not correct")
    return command.reply(ext=progress, body=b"".join(reversed(records)))


def _write_progress(matches: KeyMatches) -> dict[str, str]:
    """Return the header of an answer: how far the key index goes."""
    return QueryMessageResult(
        index_last_update_timestamp=matches.last_timestamp_ms, index_last_update_phyoffset=matches.last_physical
    ).write()


def _reply_not_found(command: Command, index_progress: dict[str, str], why: str) -> Command:
    return command.reply(ResponseCode.QUERY_NOT_FOUND, why, ext=index_progress)


def _find_records(
    core: BrokerCore,
    query: QueryMessage,
    offsets: list[int],
    is_match: Callable[[StoredMessage, QueryMessage], bool],
) -> Iterator[bytes]:
    """Yield the visible records that match the query, newest first."""
    for offset in offsets:
        data = read_visible_record(core.store, offset)
        if data is not None and is_match(decode_record(data), query):
            yield data


@handles(RequestCode.VIEW_MESSAGE_BY_ID)
def view_message(core: BrokerCore, command: Command, connection: Connection) -> Command:
    view = ViewMessage.read(command.ext)
    return command.reply(body=read_requested_record(core.store, view.offset))


def read_requested_record(store: MessageStore, offset: int) -> bytes:
    """Return the record at the offset that a request names. Raises Refused if no visible record begins there."""
    record = read_visible_record(store, offset)
    if record is None:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
    return record


def read_visible_record(store: MessageStore, offset: int) -> bytes | None:
    """Return the record at `offset` if it is visible to consumers; a half message never is."""
    data = store.guard.message_at(offset) if 0 <= offset < store.dispatcher.dispatched else None
    return None if data is None or decode_record(data).topic in names.HIDDEN_TOPICS else data


def matches_query(message: StoredMessage, query: QueryMessage) -> bool:
    """Whether a message has the key itself, not only its hash, and is within the time range."""
    return (
        message.topic == query.topic
        and query.begin_timestamp <= message.store_timestamp_ms <= query.end_timestamp
        and query.key in message_keys(message.properties)
    )


def limit_records(records: Iterator[bytes], count_max: int) -> list[bytes]:
    """Return the first records, as many as one answer may hold; no more are read."""
    found: list[bytes] = []
    size = 0
    for record in records:
        size += len(record)
        if len(found) == count_max or (found and size > QUERY_BYTES_MAX):
            break
        found.append(record)
    return found


@handles(RequestCode.QUERY_CONSUME_QUEUE)
def query_consume_queue(core: BrokerCore, command: Command, connection: Connection) -> Command:
    request = QueryConsumeQueue.read(command.ext)
    topic, queue_id, index = request.topic, request.queue_id, request.index
    queue = core.store.queues.get(topic, queue_id)
    if queue is None:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic[:300]} is not exist!")
    if not queue.min_offset <= index < queue.readable_end:
        return command.reply(remark=f"Index {index} of {queue_id}@{topic} is not exist!")
    end = index + max(0, min(request.count, QUEUE_UNITS_MAX))
    rows = [
        {"eval": False, "physicOffset": physical, "physicSize": size, "tagsCode": code}
        for physical, size, code in queue.units(index, end)
    ]
    document: dict[str, Any] = {
        "maxQueueIndex": queue.readable_end,
        "minQueueIndex": queue.min_offset,
        "queueData": rows,
    }
    if request.consumer_group is not None:
        document |= _describe_subscription(core, request.consumer_group, topic)
    return command.reply(body=dumps(document))


def _describe_subscription(core: BrokerCore, group: str, topic: str) -> dict[str, Any]:
    found = core.clients.subscription(group, topic)
    if found is None:
        return {"filterData": f"{group}@{topic} is not online!"}
    return {"filterData": format_filter(group, found), "subscriptionData": msgspec.to_builtins(found.data)}


def format_filter(group: str, subscription: Subscription) -> str:
    """Return the data of a filter over properties in RocketMQ's format, which has none for tags."""
    data = subscription.data
    if is_tag_type(data.expression_type):
        return "null"
    kept = {
        "clientVersion": data.sub_version,
        "consumerGroup": group,
        "dead": False,
        "deadTime": 0,
        "expression": data.sub_string,
        "expressionType": data.expression_type,
        "topic": data.topic,
    }
    return json.dumps(kept, indent="\t", separators=(",", ":"), ensure_ascii=False)
