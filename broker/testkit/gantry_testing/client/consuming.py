"""A fake broker's handlers for consumers: pulls, offsets, membership, locks."""

import asyncio

from gantry_client.documents import ConsumerIds
from gantry_remoting.server import Connection
from gantry_testing.client.state import BrokerState, Handler, missing_topic
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.command import Command
from gantry_wire.commands.clients import (
    ConsumerGroup,
    HeartbeatData,
    LockBatch,
    LockBatchResult,
    UnregisterClient,
)
from gantry_wire.commands.documents import read_document, write_document
from gantry_wire.commands.offsets import (
    OffsetResult,
    QueryConsumerOffset,
    QueueAddress,
    SearchOffset,
    TimestampResult,
    UpdateConsumerOffset,
)
from gantry_wire.commands.pull import PULL_COMMIT_OFFSET, PULL_SUSPEND, PullMessage, PullResult
from gantry_wire.filters import parse_tag_filter


async def pull(state: BrokerState, command: Command, connection: Connection) -> Command:
    """Handle pulls (codes 11 and 361); hold the request while there is no message, if it allows that."""
    header = PullMessage.read(command.ext)
    config = state.topics.get(header.topic)
    if config is None:
        return missing_topic(command, header.topic)
    if header.sys_flag & PULL_COMMIT_OFFSET:
        state.offsets[header.consumer_group, header.topic, header.queue_id] = header.commit_offset
    loop = asyncio.get_running_loop()
    hold_deadline_s = loop.time() + (header.suspend_timeout_millis / 1000 if header.sys_flag & PULL_SUSPEND else 0)
    while True:
        reply = _pull_once(state, command, header)
        remaining_ms = int((hold_deadline_s - loop.time()) * 1000)
        if reply.code != ResponseCode.PULL_NOT_FOUND or remaining_ms <= 0 or not connection.is_open:
            return reply
        await state.log.wait_for_arrival(remaining_ms)


def _pull_once(state: BrokerState, command: Command, header: PullMessage) -> Command:
    queue = state.log.queue(header.topic, header.queue_id)
    records: list[bytes] = []
    offset = header.queue_offset
    if offset < queue.min_offset:
        code, offset = ResponseCode.PULL_OFFSET_MOVED, queue.min_offset
    elif offset > queue.max_offset:
        code, offset = ResponseCode.PULL_OFFSET_MOVED, queue.max_offset
    elif offset == queue.max_offset:
        code = ResponseCode.PULL_NOT_FOUND
    else:
        tags = parse_tag_filter(header.subscription)
        records, offset = state.log.read(queue, offset, header.max_msg_nums, tags)
        code = ResponseCode.SUCCESS if records else ResponseCode.PULL_RETRY_IMMEDIATELY
    result = PullResult(
        suggest_which_broker_id=0,
        next_begin_offset=offset,
        min_offset=queue.min_offset,
        max_offset=queue.max_offset,
    )
    return command.reply(code, code.name, ext=result.write(), body=b"".join(records))


def query_offset(state: BrokerState, command: Command, connection: Connection) -> Command:
    """Handle the request QUERY_CONSUMER_OFFSET (code 14)."""
    header = QueryConsumerOffset.read(command.ext)
    offset = state.offsets.get((header.consumer_group, header.topic, header.queue_id))
    if offset is None:
        return command.reply(ResponseCode.QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first")
    return command.reply(ext=OffsetResult(offset=offset).write())


def update_offset(state: BrokerState, command: Command, connection: Connection) -> Command:
    """Handle the request UPDATE_CONSUMER_OFFSET (code 15)."""
    header = UpdateConsumerOffset.read(command.ext)
    state.offsets[header.consumer_group, header.topic, header.queue_id] = header.commit_offset
    return command.reply()


def min_offset(state: BrokerState, command: Command, connection: Connection) -> Command:
    """Handle the request GET_MIN_OFFSET (code 31)."""
    header = QueueAddress.read(command.ext)
    offset = state.log.queue(header.topic, header.queue_id).min_offset
    return command.reply(ext=OffsetResult(offset=offset).write())


def max_offset(state: BrokerState, command: Command, connection: Connection) -> Command:
    """Handle the request GET_MAX_OFFSET (code 30)."""
    header = QueueAddress.read(command.ext)
    offset = state.log.queue(header.topic, header.queue_id).max_offset
    return command.reply(ext=OffsetResult(offset=offset).write())


def search_offset(state: BrokerState, command: Command, connection: Connection) -> Command:
    """Handle the request SEARCH_OFFSET_BY_TIMESTAMP (code 29)."""
    header = SearchOffset.read(command.ext)
    queue = state.log.queue(header.topic, header.queue_id)
    later = [m.queue_offset for m in queue.messages if m.store_timestamp_ms >= header.timestamp]
    return command.reply(ext=OffsetResult(offset=later[0] if later else queue.max_offset).write())


def earliest_time(state: BrokerState, command: Command, connection: Connection) -> Command:
    """Handle the request GET_EARLIEST_MSG_STORETIME (code 32)."""
    header = QueueAddress.read(command.ext)
    queue = state.log.queue(header.topic, header.queue_id)
    timestamp = queue.messages[queue.min_offset].store_timestamp_ms if queue.max_offset > queue.min_offset else -1
    return command.reply(ext=TimestampResult(timestamp=timestamp).write())


def heartbeat(state: BrokerState, command: Command, connection: Connection) -> Command:
    """Handle the request HEART_BEAT (code 34)."""
    document = read_document(command.body, HeartbeatData)
    before = state.clients.get(connection)
    state.clients[connection] = document
    known = {data.group_name for data in before.consumer_data_set} if before is not None else set()
    for data in document.consumer_data_set:
        state.topic(f"%RETRY%{data.group_name}")
        if data.group_name not in known:
            state.notify_group(data.group_name)
    return command.reply()


def unregister(state: BrokerState, command: Command, connection: Connection) -> Command:
    """Handle the request UNREGISTER_CLIENT (code 35)."""
    header = UnregisterClient.read(command.ext)
    document = state.clients.get(connection)
    if document is not None and header.consumer_group is not None:
        document.consumer_data_set = [
            data for data in document.consumer_data_set if data.group_name != header.consumer_group
        ]
        state.notify_group(header.consumer_group)
    if document is not None and header.producer_group is not None:
        document.producer_data_set = [
            data for data in document.producer_data_set if data.group_name != header.producer_group
        ]
    return command.reply()


def consumer_list(state: BrokerState, command: Command, connection: Connection) -> Command:
    """Handle the request GET_CONSUMER_LIST_BY_GROUP (code 38)."""
    header = ConsumerGroup.read(command.ext)
    ids = sorted({client_id for _, client_id, _ in state.consumers(header.consumer_group)})
    if not ids:
        return command.reply(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {header.consumer_group}")
    return command.reply(body=write_document(ConsumerIds(consumer_id_list=ids)))


def lock(state: BrokerState, command: Command, connection: Connection) -> Command:
    """Handle the request LOCK_BATCH_MQ (code 41)."""
    request = read_document(command.body, LockBatch)
    locked = [
        queue
        for queue in request.mq_set
        if state.locks.setdefault((request.consumer_group, queue), request.client_id) == request.client_id
    ]
    return command.reply(body=write_document(LockBatchResult(lock_ok_mq_set=locked)))


def unlock(state: BrokerState, command: Command, connection: Connection) -> Command:
    """Handle the request UNLOCK_BATCH_MQ (code 42)."""
    request = read_document(command.body, LockBatch)
    for queue in request.mq_set:
        if state.locks.get((request.consumer_group, queue)) == request.client_id:
            del state.locks[request.consumer_group, queue]
    return command.reply()


HANDLERS: dict[int, Handler] = {
    RequestCode.PULL_MESSAGE: pull,
    RequestCode.LITE_PULL_MESSAGE: pull,
    RequestCode.QUERY_CONSUMER_OFFSET: query_offset,
    RequestCode.UPDATE_CONSUMER_OFFSET: update_offset,
    RequestCode.GET_MIN_OFFSET: min_offset,
    RequestCode.GET_MAX_OFFSET: max_offset,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: search_offset,
    RequestCode.GET_EARLIEST_MSG_STORETIME: earliest_time,
    RequestCode.HEART_BEAT: heartbeat,
    RequestCode.UNREGISTER_CLIENT: unregister,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: consumer_list,
    RequestCode.LOCK_BATCH_MQ: lock,
    RequestCode.UNLOCK_BATCH_MQ: unlock,
}
