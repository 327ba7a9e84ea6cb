"""Handles requests for offsets: of queues (first, end, by time), committed ones, and the progress of consumer groups.

Progress is requested with three codes:

    208   the offsets of one group, and its lag
    317   the same of all groups
    303   the times of the first, the last and the last consumed message of each queue

The topics of a group are those in which it has offsets. While it has consumers, topics without a subscription are
left out, as in RocketMQ, also if the request names one in ``topic``; a request with a list of ``topics`` gets exactly
these.
``pullOffset`` is the offset up to which readers have received messages: those between ``consumerOffset`` and it are in
flight.
"""

from collections.abc import Awaitable
from typing import Any, Final

import msgspec

from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.handlers import handles
from gantry_broker.server.core.queue_table import QueueTable, check_queue_count, iterate_queue_ids, serve_others
from gantry_broker.server.core.refusals import Refused
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
from gantry_wire.fastjson import dumps

_GROUPS_PER_STEP: Final = 1_000
"""How many groups are listed before other requests are served, whether they have queues or not."""


@handles(RequestCode.QUERY_CONSUMER_OFFSET)
def find_offset(core: BrokerCore, command: Command, connection: Connection) -> Command:
    """Answer with the committed offset of a group.

    Without one: 0 if the queue still has its first message and the request allows 0, otherwise code 22.
    """
    query = QueryConsumerOffset.read(command.ext)
    offset = core.offsets.find(query.consumer_group, query.topic, query.queue_id)
    if offset is None:
        first, _ = core.readable_range(query.topic, query.queue_id)  # a new group need not read the whole archive
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
    core.commit_offset(update.consumer_group, update.topic, update.queue_id, update.commit_offset)
    return command.reply()


@handles(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
def search_offset(core: BrokerCore, command: Command, connection: Connection) -> Command | Awaitable[Command]:
    search = SearchOffset.read(command.ext)
    is_upper = (search.boundary_type or "").upper() == "UPPER"
    if core.must_search_archive(search.topic, search.queue_id, search.timestamp, upper=is_upper):
        return _search_archive(core, command, search, is_upper=is_upper)
    offset = core.store.times.offset_by_time(search.topic, search.queue_id, search.timestamp, is_upper)
    return command.reply(ext=OffsetResult(offset=offset).write())


async def _search_archive(core: BrokerCore, command: Command, search: SearchOffset, *, is_upper: bool) -> Command:
    offset = await core.search_archive(search.topic, search.queue_id, search.timestamp, upper=is_upper)
    return command.reply(ext=OffsetResult(offset=offset).write())


@handles(RequestCode.GET_MAX_OFFSET)
def find_max_offset(core: BrokerCore, command: Command, connection: Connection) -> Command:
    address = QueueAddress.read(command.ext)
    _, end = core.readable_range(address.topic, address.queue_id)
    return command.reply(ext=OffsetResult(offset=end).write())


@handles(RequestCode.GET_MIN_OFFSET)
def find_min_offset(core: BrokerCore, command: Command, connection: Connection) -> Command:
    address = QueueAddress.read(command.ext)
    core.check_archive_known(address.topic, address.queue_id)
    first, _ = core.served_range(address.topic, address.queue_id)
    return command.reply(ext=OffsetResult(offset=first).write())


@handles(RequestCode.GET_EARLIEST_MSG_STORETIME)
def find_earliest_time(core: BrokerCore, command: Command, connection: Connection) -> Command:
    address = QueueAddress.read(command.ext)
    core.check_archive_known(address.topic, address.queue_id)
    timestamp = core.earliest_time(address.topic, address.queue_id)
    return command.reply(ext=TimestampResult(timestamp=timestamp).write())


@handles(RequestCode.GET_ALL_CONSUMER_OFFSET)
def list_offsets(core: BrokerCore, command: Command, connection: Connection) -> Command:
    document = msgspec.structs.replace(core.offsets.document(), pending_resets=None, freed=None)
    return command.reply(body=write_document(document))


@handles(RequestCode.GET_CONSUME_STATS)
async def get_group_progress(core: BrokerCore, command: Command, connection: Connection) -> Command:
    request = ConsumeStatsRequest.read(command.ext)
    group = request.consumer_group
    topics = request.topics
    if not topics:
        known = [request.topic] if request.topic else core.offsets.topics_of(group)
        topics = keep_subscribed(core, group, known)
    configs = [config for topic in dict.fromkeys(topics) if (config := core.topics.find(topic)) is not None]
    check_queue_count(sum(config.read_queue_nums for config in configs))
    table = QueueTable(core.settings.broker_name)
    for config in configs:
        await _add_progress(core, table, group, config.topic_name, config.read_queue_nums)
    rate = sum(core.topic_statistics.group_rate(group, config.topic_name) for config in configs)
    return command.reply(body=dumps({"consumeTps": float(rate), "offsetTable": table.render()}))


@handles(RequestCode.GET_BROKER_CONSUME_STATS)
async def get_broker_progress(core: BrokerCore, command: Command, connection: Connection) -> Command:
    """Answer with the progress of all groups. RocketMQ leaves ``pullOffset`` 0, so its in-flight total is negative."""
    request = BrokerConsumeStatsRequest.read(command.ext)
    async with core.progress_listing_lock:  # one at a time, since each may fill a frame
        return command.reply(body=await _progress_of_all(core, is_order=request.is_order))


async def _progress_of_all(core: BrokerCore, *, is_order: bool) -> bytes:
    listing: list[dict[str, list[dict[str, Any]]]] = []
    behind, in_flight, listed = 0, 0, 0
    topics = core.offsets.topics_by_group()
    for number, group in enumerate(list(core.groups.all)):
        if number % _GROUPS_PER_STEP == 0:
            await serve_others(core)
        stats = []
        for topic in keep_subscribed(core, group, topics.get(group, [])):
            config = core.topics.find(topic)
            if config is None or (is_order and not config.order):
                continue
            listed += config.write_queue_nums
            check_queue_count(listed)
            table = QueueTable(core.settings.broker_name)
            totals = await _add_progress(core, table, group, topic, config.write_queue_nums)
            behind, in_flight = behind + totals[0], in_flight + totals[1]
            stats.append({"consumeTps": core.topic_statistics.group_rate(group, topic), "offsetTable": table.render()})
        listing.append({group: stats})
    return dumps({
        "brokerAddr": core.settings.address,
        "consumeStatsList": listing,
        "totalDiff": behind,
        "totalInflightDiff": in_flight,
    })  # fmt: skip


async def _add_progress(core: BrokerCore, table: QueueTable, group: str, topic: str, count: int) -> tuple[int, int]:
    """Add the queues of a topic; return how many messages of them are not consumed, and how many are in flight."""
    behind = in_flight = 0
    async for queue_ids in iterate_queue_ids(core, count):
        rows = {queue_id: _get_queue_progress(core, group, topic, queue_id) for queue_id in queue_ids}
        behind += sum(row["brokerOffset"] - row["consumerOffset"] for row in rows.values())
        in_flight += sum(row["pullOffset"] - row["consumerOffset"] for row in rows.values())
        table.add(topic, rows.items())
    return behind, in_flight


def _get_queue_progress(core: BrokerCore, group: str, topic: str, queue_id: int) -> dict[str, int]:
    store, offsets = core.store, core.offsets
    begin, end = core.served_range(topic, queue_id)
    consumed = offsets.progress(group, topic, queue_id)
    last = store.times.store_time(topic, queue_id, consumed - 1) if 0 < consumed <= end else 0
    return {
        "brokerOffset": end,
        "consumerOffset": consumed,
        "lastTimestamp": max(0, last),
        "minOffset": begin,  # without it, expired messages would count as lag. RocketMQ lacks it; its clients ignore it
        "pullOffset": max(consumed, offsets.pulled.find(group, topic, queue_id)),
    }


@handles(RequestCode.QUERY_CONSUME_TIME_SPAN)
async def get_time_spans(core: BrokerCore, command: Command, connection: Connection) -> Command:
    """Answer with times of each queue: of its first, last and last consumed message, and the delay of the next."""
    request = TopicOfGroup.read(command.ext)
    topic = request.topic or ""
    config = core.topics.find(topic)
    if config is None:
        raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic[:300]}] not exist")
    spans = []
    async for queue_ids in iterate_queue_ids(core, config.write_queue_nums):
        spans += [msgspec.Raw(dumps(_get_time_span(core, request.group, topic, queue_id))) for queue_id in queue_ids]
    return command.reply(body=dumps({"consumeTimeSpanSet": spans}))


def _get_time_span(core: BrokerCore, group: str, topic: str, queue_id: int) -> dict[str, Any]:
    store = core.store
    first, end = core.readable_range(topic, queue_id)
    consumed = core.offsets.progress(group, topic, queue_id)
    earliest = core.earliest_time(topic, queue_id)
    next_time = store.times.store_time(topic, queue_id, max(consumed, first)) if consumed < end else -1
    return {
        "consumeTimeStamp": store.times.store_time(topic, queue_id, consumed - 1) if consumed > 0 else earliest,
        "delayTime": core.clock.wall_ms() - next_time if next_time >= 0 else 0,
        "maxTimeStamp": store.times.store_time(topic, queue_id, end - 1),
        "messageQueue": {"brokerName": core.settings.broker_name, "queueId": queue_id, "topic": topic},
        "minTimeStamp": earliest,
    }


def keep_subscribed(core: BrokerCore, group: str, topics: list[str]) -> list[str]:
    """Return the topics that the group subscribes to; all of them if it has no consumers or no subscriptions."""
    state = core.clients.consumers.get(group)
    if state is None or not state.subscriptions:
        return topics
    return [topic for topic in topics if topic in state.subscriptions]
