"""Handles requests for offsets, and for the progress of consumer groups: of one (208), of all (317), in time (303).

The topics of a group are those in which it has offsets. While it has members, topics without a subscription are left
out, as in RocketMQ, also if the request names one in ``topic``; a request with a list of ``topics`` gets exactly these.
``pullOffset`` is the offset up to which readers have received messages: those between ``consumerOffset`` and it are in
flight.
"""

import asyncio
from collections import Counter
from typing import Any, Final

import msgspec

from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.handlers import handles
from gantry_broker.server.core.refusals import Refused
from gantry_broker.server.core.topics import queue_key
from gantry_remoting import Connection
from gantry_wire import Command, RequestCode, ResponseCode
from gantry_wire.commands.consumers import BrokerConsumeStatsRequest, ConsumeStatsRequest, TopicOfGroup
from gantry_wire.commands.documents import write_document
from gantry_wire.commands.offsets import (
    OffsetResult,
    QueryConsumerOffset,
    QueueAddress,
    SearchOffset,
    TimestampResult,
    UpdateConsumerOffset,
)
from gantry_wire.fastjson import ObjectKey, dumps

QUEUES_LISTED_MAX: Final = 100_000
"""The limit of queues in an answer about all groups. Each takes about 150 bytes: more do not fit into a frame."""


@handles(RequestCode.QUERY_CONSUMER_OFFSET)
def find_offset(core: BrokerCore, command: Command, connection: Connection) -> Command:
    """Answer with the committed offset of a group.

    Without one: 0 if the queue still has its first message and the request allows 0, otherwise code 22.
    """
    query = QueryConsumerOffset.read(command.ext)
    offset = core.offsets.find(query.consumer_group, query.topic, query.queue_id)
    if offset is None:
        first, _ = core.readable_range(query.topic, query.queue_id)
        if query.set_zero_if_not_found is False or first > 0:
            return command.reply(
                ResponseCode.QUERY_NOT_FOUND, "Not found, do not set to zero, maybe this group boot first"
            )
        offset = 0
    return command.reply(ext=OffsetResult(offset=offset).write())


@handles(RequestCode.UPDATE_CONSUMER_OFFSET)
def commit_offset(core: BrokerCore, command: Command, connection: Connection) -> Command:
    """Commit an offset. As in RocketMQ it does not create the group: a pull or a heartbeat comes first."""
    update = UpdateConsumerOffset.read(command.ext)
    if update.consumer_group not in core.groups.all:
        raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {update.consumer_group[:300]} not exist!")
    if update.topic not in core.topics:
        raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"Topic {update.topic[:300]} not exist!")
    if update.queue_id < 0:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"QueueId is {update.queue_id}, not valid")
    if update.commit_offset < 0:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"Offset is {update.commit_offset}, not valid")
    if core.offsets.resets.is_pending(update.consumer_group, update.topic, update.queue_id):
        return command.reply(remark="Offset has been previously reset")
    core.offsets.commit(update.consumer_group, update.topic, update.queue_id, update.commit_offset)
    return command.reply()


@handles(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
def search_offset(core: BrokerCore, command: Command, connection: Connection) -> Command:
    search = SearchOffset.read(command.ext)
    is_upper = (search.boundary_type or "").upper() == "UPPER"
    offset = core.store.times.offset_by_time(search.topic, search.queue_id, search.timestamp, is_upper)
    return command.reply(ext=OffsetResult(offset=offset).write())


@handles(RequestCode.GET_MAX_OFFSET)
def find_max_offset(core: BrokerCore, command: Command, connection: Connection) -> Command:
    address = QueueAddress.read(command.ext)
    _, end = core.readable_range(address.topic, address.queue_id)
    return command.reply(ext=OffsetResult(offset=end).write())


@handles(RequestCode.GET_MIN_OFFSET)
def find_min_offset(core: BrokerCore, command: Command, connection: Connection) -> Command:
    address = QueueAddress.read(command.ext)
    first, _ = core.readable_range(address.topic, address.queue_id)
    return command.reply(ext=OffsetResult(offset=first).write())


@handles(RequestCode.GET_EARLIEST_MSG_STORETIME)
def find_earliest_time(core: BrokerCore, command: Command, connection: Connection) -> Command:
    address = QueueAddress.read(command.ext)
    timestamp = core.store.times.earliest_time(address.topic, address.queue_id)
    return command.reply(ext=TimestampResult(timestamp=timestamp).write())


@handles(RequestCode.GET_ALL_CONSUMER_OFFSET)
def list_offsets(core: BrokerCore, command: Command, connection: Connection) -> Command:
    document = msgspec.structs.replace(core.offsets.document(), pending_resets=None)
    return command.reply(body=write_document(document))


@handles(RequestCode.GET_CONSUME_STATS)
def get_group_progress(core: BrokerCore, command: Command, connection: Connection) -> Command:
    request = ConsumeStatsRequest.read(command.ext)
    group = request.consumer_group
    topics = request.topics
    if not topics:
        known = [request.topic] if request.topic else core.offsets.topics_of(group)
        topics = keep_subscribed(core, group, known)
    table: dict[ObjectKey, Any] = {}
    rate = 0.0
    for topic in topics:
        config = core.topics.find(topic)
        if config is not None:
            table |= _build_queue_table(core, group, topic, config.read_queue_nums)
            rate += core.statistics.group_rate(group, topic)
    return command.reply(body=dumps({"consumeTps": rate, "offsetTable": table}))


@handles(RequestCode.GET_BROKER_CONSUME_STATS)
async def get_broker_progress(core: BrokerCore, command: Command, connection: Connection) -> Command:
    """Answer with the progress of all groups. RocketMQ leaves ``pullOffset`` 0, so its in-flight total is negative."""
    request = BrokerConsumeStatsRequest.read(command.ext)
    listing: list[dict[str, list[dict[str, Any]]]] = []
    totals, listed = Counter[str](), 0
    for group in list(core.groups.all):
        stats = []
        for topic in keep_subscribed(core, group, core.offsets.topics_of(group)):
            await _yield_to_other_requests(core)
            config = core.topics.find(topic)
            if config is None or (request.is_order and not config.order):
                continue
            listed += config.write_queue_nums
            if listed > QUEUES_LISTED_MAX:
                text = f"more than {QUEUES_LISTED_MAX} queues would be listed: ask for one group after another"
                raise Refused(ResponseCode.SYSTEM_ERROR, text)
            queues = _build_queue_table(core, group, topic, config.write_queue_nums)
            for queue in queues.values():
                totals["lag"] += queue["brokerOffset"] - queue["consumerOffset"]
                totals["in flight"] += queue["pullOffset"] - queue["consumerOffset"]
            stats.append({"consumeTps": core.statistics.group_rate(group, topic), "offsetTable": queues})
        listing.append({group: stats})
    document = {
        "brokerAddr": core.settings.address,
        "consumeStatsList": listing,
        "totalDiff": totals["lag"],
        "totalInflightDiff": totals["in flight"],
    }
    return command.reply(body=dumps(document))


async def _yield_to_other_requests(core: BrokerCore) -> None:
    """Serve other requests between two topics. Raises Refused if another thread has the store afterwards."""
    await asyncio.sleep(0)
    if core.gate.is_store_lent:
        raise Refused(
            ResponseCode.SERVICE_NOT_AVAILABLE, "service not available now, the log of this broker is being changed"
        )


@handles(RequestCode.QUERY_CONSUME_TIME_SPAN)
def get_time_spans(core: BrokerCore, command: Command, connection: Connection) -> Command:
    """Answer with times of each queue: of its first, last and last consumed message, and the delay of the next."""
    request = TopicOfGroup.read(command.ext)
    topic = request.topic or ""
    config = core.topics.find(topic)
    if config is None:
        raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic[:300]}] not exist")
    spans = [_get_time_span(core, request.group, topic, queue_id) for queue_id in range(config.write_queue_nums)]
    return command.reply(body=dumps({"consumeTimeSpanSet": spans}))


def _get_time_span(core: BrokerCore, group: str, topic: str, queue_id: int) -> dict[str, Any]:
    store = core.store
    first, end = core.readable_range(topic, queue_id)
    consumed = core.offsets.find(group, topic, queue_id) or 0
    earliest = store.times.earliest_time(topic, queue_id)
    next_time = store.times.store_time(topic, queue_id, max(consumed, first)) if consumed < end else -1
    return {
        "consumeTimeStamp": store.times.store_time(topic, queue_id, consumed - 1) if consumed > 0 else earliest,
        "delayTime": core.clock.wall_ms() - next_time if next_time >= 0 else 0,
        "maxTimeStamp": store.times.store_time(topic, queue_id, end - 1),
        "messageQueue": dict(queue_key(topic, core.settings.broker_name, queue_id)),
        "minTimeStamp": earliest,
    }


def keep_subscribed(core: BrokerCore, group: str, topics: list[str]) -> list[str]:
    """Return the topics that the group subscribes to; all of them if it has no members."""
    state = core.clients.consumers.get(group)
    if state is None or not state.subscriptions:
        return topics
    return [topic for topic in topics if topic in state.subscriptions]


def _build_queue_table(core: BrokerCore, group: str, topic: str, count: int) -> dict[ObjectKey, dict[str, int]]:
    name = core.settings.broker_name
    return {
        queue_key(topic, name, queue_id): _get_queue_progress(core, group, topic, queue_id) for queue_id in range(count)
    }


def _get_queue_progress(core: BrokerCore, group: str, topic: str, queue_id: int) -> dict[str, int]:
    store, offsets = core.store, core.offsets
    _, end = core.readable_range(topic, queue_id)
    consumed = max(0, offsets.find(group, topic, queue_id) or 0)
    last = store.times.store_time(topic, queue_id, consumed - 1) if 0 < consumed <= end else 0
    return {
        "brokerOffset": end,
        "consumerOffset": consumed,
        "lastTimestamp": max(0, last),
        "pullOffset": max(consumed, offsets.pulled.find(group, topic, queue_id)),
    }
