"""Queries for messages by key and by place, and for units of consume queues. By time is a question of offsets: code 29.

    12 by key        topic + key -> hashes in the index -> records that carry the key, newest ones first if too many
    12 by unique id  the same, with `_UNIQUE_KEY_QUERY`: as many as RocketMQ gives, whatever the client asks for
    33 by place      the record at a physical offset, which the offset message id holds
    321 a queue      the units of a consume queue: where each message is in the log, how large, the hash of its tag

What consumers are not shown yet is not found here: a message that a covered fault can take back does not exist. Nor
does one of a deleted topic, though its records lie in the log until they expire.

The index knows hashes only. What merely has the same hash is left out here, where RocketMQ leaves that to its clients:
otherwise such messages use up the number that was asked for, and one that is there is not found; and who may read this
topic need not be one who may read that of the same hash. Times are compared to the millisecond; RocketMQ's are those
of the index, in whole seconds. Answers come in the order of the log, as Java's.

A query of a queue with a group returns its subscription too, and for one in SQL92 what its filter is. ``eval`` is
false, as RocketMQ writes it for every unit without an extension: this broker has no extensions. An index that the queue
does not hold is answered 0 with a text and no body, which is what RocketMQ's tool expects of it.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from gantry_broker.errors import IndexRebuilding
from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.clients import Subscription
from gantry_broker.server.core.handlers import handles
from gantry_broker.server.core.refusals import Refused
from gantry_broker.store.message_store import MessageStore
from gantry_remoting import Connection
from gantry_wire import Command, RequestCode, ResponseCode, decode_record, names
from gantry_wire.commands.consumers import QueryConsumeQueue
from gantry_wire.commands.pull import QueryMessage, QueryMessageResult, ViewMessage
from gantry_wire.fastjson import dumps
from gantry_wire.filters import is_tag_type
from gantry_wire.message import StoredMessage
from gantry_wire.properties import message_keys

QUERY_MESSAGES_MAX: Final = 64
"""Messages in one answer, whatever the client asks for; mqadmin asks for as many."""

UNIQUE_QUERY_MESSAGES: Final = 32
"""RocketMQ's defaultQueryMaxNum: messages with one unique id, which resends may give to several."""

MATCHES_MAX: Final = 1024
"""Equal hashes that one query reads a record for, while all other requests wait."""

QUERY_BYTES_MAX: Final = 8 * 1024 * 1024
"""What one answer holds at most, but for its first message; clients refuse frames over 16 MiB."""

QUEUE_UNITS_MAX: Final = 10_000
"""Units of a consume queue in one answer, whatever the client asks for: each is some hundred bytes of it."""

UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"


@handles(RequestCode.QUERY_MESSAGE)
def query_messages(core: BrokerCore, command: Command, connection: Connection) -> Command:
    query = QueryMessage.read(command.ext)
    is_unique = command.ext.get(UNIQUE_KEY_QUERY) == "true"
    count_max = UNIQUE_QUERY_MESSAGES if is_unique else max(0, min(query.max_num, QUERY_MESSAGES_MAX))
    store = core.store
    matches = store.keys.matches(
        query.topic, query.key, MATCHES_MAX if count_max else 0, query.begin_timestamp, query.end_timestamp
    )
    come_so_far = QueryMessageResult(
        index_last_update_timestamp=matches.last_timestamp_ms, index_last_update_phyoffset=matches.last_physical
    ).write()
    if query.topic not in core.topics:
        return _nothing(command, come_so_far, f"the topic[{query.topic[:300]}] does not exist")
    if not core.settings.store.is_index_enabled:
        return _nothing(command, come_so_far, "this broker keeps no index of keys: messageIndexEnable=false")
    records = fitting(_found_records(core, query, matches.physical_offsets), count_max)
    if not records and not matches.is_complete:
        raise IndexRebuilding("the key index is being rebuilt from the commit log; try again later")
    if not records:
        return _nothing(command, come_so_far, "can not find message, maybe time range not correct")
    return command.reply(ext=come_so_far, body=b"".join(reversed(records)))


def _nothing(command: Command, come_so_far: dict[str, str], why: str) -> Command:
    return command.reply(ResponseCode.QUERY_NOT_FOUND, why, ext=come_so_far)


def _found_records(core: BrokerCore, query: QueryMessage, offsets: list[int]) -> Iterator[bytes]:
    """The records that are meant, newest first."""
    for offset in offsets:
        data = shown_record(core.store, offset)
        if data is not None and is_meant(decode_record(data), query):
            yield data


@handles(RequestCode.VIEW_MESSAGE_BY_ID)
def view_message(core: BrokerCore, command: Command, connection: Connection) -> Command:
    view = ViewMessage.read(command.ext)
    return command.reply(body=named_record(core.store, view.offset))


def named_record(store: MessageStore, offset: int) -> bytes:
    """The record at the offset that a request names. Raises Refused where consumers may see none."""
    record = shown_record(store, offset)
    if record is None:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
    return record


def shown_record(store: MessageStore, offset: int) -> bytes | None:
    """The record at `offset`, if consumers may see it; they may see no half message, even by its place."""
    data = store.guard.message_at(offset) if 0 <= offset < store.dispatcher.dispatched else None
    return None if data is None or decode_record(data).topic in names.UNSHOWN_TOPICS else data


def is_meant(message: StoredMessage, query: QueryMessage) -> bool:
    """Whether it is the key itself, not another with its hash, and within the time."""
    return (
        message.topic == query.topic
        and query.begin_timestamp <= message.store_timestamp_ms <= query.end_timestamp
        and query.key in message_keys(message.properties)
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
        document |= _subscription(core, request.consumer_group, topic)
    return command.reply(body=dumps(document))


def _subscription(core: BrokerCore, group: str, topic: str) -> dict[str, Any]:
    found = core.clients.subscription(group, topic)
    if found is None:
        return {"filterData": f"{group}@{topic} is not online!"}
    return {"filterData": filter_text(group, found), "subscriptionData": msgspec.to_builtins(found.data)}


def filter_text(group: str, subscription: Subscription) -> str:
    """What is kept of a filter over properties, as RocketMQ prints it; it keeps nothing of tags."""
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
