"""Calls of consumers that keep offsets: pulls, commits, committed offsets, and offsets by time.

RocketMQ's own proxy does not implement these calls; they follow the protocol's definitions. A queue is named by its
broker and id, as in routes.
"""

import logging
from collections.abc import AsyncIterator
from typing import Final

from gantry_access.permissions import consume_need, read_need
from gantry_client.calls import parse_header
from gantry_client.errors import BadReply
from gantry_client.fetching import FetchStatus, parse_pull_reply
from gantry_client.messages import to_received_message
from gantry_client.subscriptions import expression_type
from gantry_proxy.brokers import REQUEST_MS, require_ok
from gantry_proxy.context import CallContext, require_client_id
from gantry_proxy.core import ProxyCore
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.statuses import OK, ProxyError
from gantry_proxy.translation.checks import group_name, is_wanted, namespace_of, read_filter, topic_name
from gantry_proxy.translation.incoming import write_message
from gantry_proxy.translation.times import duration_ms, timestamp_ms
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.commands.offsets import (
    OffsetResult,
    QueryConsumerOffset,
    QueueAddress,
    SearchOffset,
    UpdateConsumerOffset,
)
from gantry_wire.commands.pull import PULL_SUBSCRIPTION, PULL_SUSPEND, PullMessage
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.message import decode_records

log = logging.getLogger(__name__)

MESSAGES_MAX: Final = 32
REPLY_RESERVE_MS: Final = 500


async def pull_message(
    core: ProxyCore, context: CallContext, request: pb.PullMessageRequest
) -> AsyncIterator[pb.PullMessageResponse]:
    """Yield the messages of a queue from an offset on, and the offset of the next pull."""
    require_client_id(context)
    topic, group = topic_name(request.message_queue.topic), group_name(request.group)
    core.guard.require(context, read_need(topic), consume_need(group))
    core.clients.touch(context)
    if request.batch_size < 1 or request.offset < 0:
        raise ProxyError(
            pb.ILLEGAL_OFFSET if request.offset < 0 else pb.BAD_REQUEST,
            f"offset {request.offset} and batch size {request.batch_size}: expected 0 or more, and 1 or more",
        )
    wanted, namespace = read_filter(request.filter_expression), namespace_of(request.message_queue.topic)
    address = await _address(core, request.message_queue)
    suspend_ms = max(0, min(
        duration_ms(request.long_polling_timeout), core.limits.poll_ms_max, context.remaining_ms - REPLY_RESERVE_MS
    ))  # fmt: skip
    header = PullMessage(
        consumer_group=group,
        topic=topic,
        queue_id=request.message_queue.id,
        queue_offset=request.offset,
        max_msg_nums=min(request.batch_size, MESSAGES_MAX),
        sys_flag=PULL_SUBSCRIPTION | (PULL_SUSPEND if suspend_ms else 0),
        commit_offset=0,
        suspend_timeout_millis=suspend_ms,
        sub_version=0,
        subscription=wanted.expression,
        expression_type=expression_type(wanted),
    )
    timeout_ms = suspend_ms + REQUEST_MS
    reply = await core.brokers.request(address, RequestCode.PULL_MESSAGE, header, timeout_ms=timeout_ms)
    found, result = parse_pull_reply(reply, address)
    if found is FetchStatus.OFFSET_MOVED:
        raise ProxyError(pb.ILLEGAL_OFFSET, f"offset {request.offset} is outside of the queue: {result.min_offset} to "
                         f"{result.max_offset}; continue at {result.next_begin_offset}")  # fmt: skip
    yield pb.PullMessageResponse(status=OK)
    if found is FetchStatus.FOUND:
        try:
            records = decode_records(reply.body)
        except RemoteProtocolError as error:
            raise BadReply(f"{address} answered a pull with invalid messages: {error}") from error
        for record in records:
            message = to_received_message(record, request.message_queue.broker.name, body_bytes_max=0)
            if is_wanted(wanted, message.tags):
                if message.compression:
                    message = await core.bodies.inflate(message)
                yield pb.PullMessageResponse(message=write_message(message, namespace=namespace))
    yield pb.PullMessageResponse(next_offset=result.next_begin_offset)


async def update_offset(
    core: ProxyCore, context: CallContext, request: pb.UpdateOffsetRequest
) -> pb.UpdateOffsetResponse:
    """Commit the offset up to which a group has consumed a queue."""
    topic, group = topic_name(request.message_queue.topic), group_name(request.group)
    core.guard.require(context, read_need(topic), consume_need(group))
    if request.offset < 0:
        raise ProxyError(pb.ILLEGAL_OFFSET, f"the offset is {request.offset}, expected 0 or more")
    address = await _address(core, request.message_queue)
    header = UpdateConsumerOffset(
        consumer_group=group, topic=topic, queue_id=request.message_queue.id, commit_offset=request.offset
    )
    require_ok(await core.brokers.request(address, RequestCode.UPDATE_CONSUMER_OFFSET, header), address)
    return pb.UpdateOffsetResponse(status=OK)


async def get_offset(core: ProxyCore, context: CallContext, request: pb.GetOffsetRequest) -> pb.GetOffsetResponse:
    """Return the committed offset of a group in a queue."""
    topic, group = topic_name(request.message_queue.topic), group_name(request.group)
    core.guard.require(context, read_need(topic), consume_need(group))
    address = await _address(core, request.message_queue)
    header = QueryConsumerOffset(
        consumer_group=group, topic=topic, queue_id=request.message_queue.id, set_zero_if_not_found=False
    )
    reply = await core.brokers.request(address, RequestCode.QUERY_CONSUMER_OFFSET, header)
    if reply.code == ResponseCode.QUERY_NOT_FOUND:
        raise ProxyError(pb.OFFSET_NOT_FOUND, f"group {group!r} has no committed offset in this queue")
    return pb.GetOffsetResponse(
        status=OK, offset=parse_header(require_ok(reply, address), OffsetResult, address).offset
    )


async def query_offset(core: ProxyCore, context: CallContext, request: pb.QueryOffsetRequest) -> pb.QueryOffsetResponse:
    """Return the first offset of a queue, its end, or the offset at a time."""
    topic = topic_name(request.message_queue.topic)
    core.guard.require(context, read_need(topic))
    address, queue_id = await _address(core, request.message_queue), request.message_queue.id
    if request.query_offset_policy == pb.TIMESTAMP:
        if not request.HasField("timestamp"):
            raise ProxyError(pb.BAD_REQUEST, "the policy TIMESTAMP needs a timestamp")
        search = SearchOffset(topic=topic, queue_id=queue_id, timestamp=timestamp_ms(request.timestamp))
        reply = await core.brokers.request(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search)
    else:
        code = RequestCode.GET_MAX_OFFSET if request.query_offset_policy == pb.END else RequestCode.GET_MIN_OFFSET
        reply = await core.brokers.request(address, code, QueueAddress(topic=topic, queue_id=queue_id))
    offset = parse_header(require_ok(reply, address), OffsetResult, address).offset
    return pb.QueryOffsetResponse(status=OK, offset=offset)


async def _address(core: ProxyCore, queue: pb.MessageQueue) -> str:
    if queue.id < 0:
        raise ProxyError(pb.BAD_REQUEST, f"the queue id is {queue.id}, expected 0 or more")
    return await core.topics.master(queue.topic.name, queue.broker.name)
