"""Calls of producers: sends and recalls. A send is tried at one broker; an SDK repeats it, with another queue.

The proxy does not retry: only the client knows its deadline, and a send that may have been stored must not be repeated
silently. A refusal and a lost connection are reported at once, and later sends prefer other brokers.
"""

from gantry_access.permissions import publish_need
from gantry_client.calls import parse_header
from gantry_client.errors import BrokerRefused, Unavailable
from gantry_proxy.brokers import REQUEST_MS, require_ok
from gantry_proxy.context import CallContext
from gantry_proxy.core import ProxyCore
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.statuses import OK, ProxyError, code_of_broker, joint_status, status
from gantry_proxy.translation.checks import topic_name
from gantry_proxy.translation.handles import OpenTransaction, recall_broker, write_transaction_id
from gantry_proxy.translation.outgoing import OutgoingMessage, check_kind, read_messages
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.command import Command
from gantry_wire.commands.clients import MessageQueue
from gantry_wire.commands.fields import Fields
from gantry_wire.commands.send import SendMessageV2, SendResult
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.message import parse_offset_message_id
from gantry_wire.names import AUTO_CREATE_TOPIC, is_retry_or_dead_letter

STORED_CODES = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    }
)
"""The codes of a stored message; only the first one means that the broker kept the promise of its mode."""


class RecallRequest(Fields):
    """Code 370: recall a message before it is delivered."""

    topic: str
    recall_handle: str
    producer_group: str | None = None
    bname: str | None = None


class RecallResult(Fields):
    """The header of the reply to code 370."""

    msg_id: str = ""


async def send_message(core: ProxyCore, context: CallContext, request: pb.SendMessageRequest) -> pb.SendMessageResponse:
    """Send the messages of a request to one queue."""
    message = read_messages(request.messages, context.peer, core.wall_ms(), core.limits)
    core.guard.require(context, publish_need(message.topic))
    if core.limits.checks_message_types and not is_retry_or_dead_letter(message.topic):
        check_kind(await core.topics.kind(message.topic), message.kind, message.topic)
    queue, address = await core.topics.queue_for_send(message.topic, message.message_group, core.monotonic_s())
    reply = await _send(core, context, message, queue, address)
    result = parse_header(reply, SendResult, address)
    stored = status(code_of_broker(reply.code), _stored_text(reply))
    entries = [_entry(message, position, queue, reply, result, stored) for position in range(len(message.message_ids))]
    return pb.SendMessageResponse(status=joint_status([one.status for one in entries], "no result"), entries=entries)


async def _send(
    core: ProxyCore, context: CallContext, message: OutgoingMessage, queue: MessageQueue, address: str
) -> Command:
    header = SendMessageV2(
        producer_group=message.topic,
        topic=message.topic,
        default_topic=AUTO_CREATE_TOPIC,
        default_topic_queue_nums=4,
        queue_id=queue.queue_id,
        sys_flag=message.sys_flag,
        born_timestamp=message.born_timestamp_ms,
        flag=0,
        properties=message.properties,
        reconsume_times=0,
        unit_mode=False,
        batch=message.is_batch,
        broker_name=queue.broker_name,
    )
    code = RequestCode.SEND_BATCH_MESSAGE if message.is_batch else RequestCode.SEND_MESSAGE_V2
    try:
        timeout_ms = min(REQUEST_MS, max(1, context.remaining_ms))
        reply = await core.brokers.request(address, code, header, message.body, timeout_ms=timeout_ms)
    except Unavailable:
        core.topics.record_send(queue.broker_name, core.monotonic_s(), is_connected=False)
        await core.topics.refresh(message.topic)
        raise
    core.topics.record_send(queue.broker_name, core.monotonic_s(), is_connected=True)
    if reply.code not in STORED_CODES:
        if reply.code in (ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.TOPIC_NOT_EXIST):
            await core.topics.refresh(message.topic)  # the broker is no master any more, or the topic was deleted
        raise BrokerRefused(reply.code, reply.remark, address)
    return reply


def _stored_text(reply: Command) -> str:
    if reply.code == ResponseCode.SUCCESS:
        return "OK"
    return f"the message is stored, but not as safely as the broker promises: {ResponseCode(reply.code).name}"


def _entry(
    message: OutgoingMessage, position: int, queue: MessageQueue, reply: Command, result: SendResult, stored: pb.Status
) -> pb.SendResultEntry:
    if reply.code != ResponseCode.SUCCESS:
        return pb.SendResultEntry(status=stored)
    message_id = message.message_ids[position]
    entry = pb.SendResultEntry(
        status=OK,
        message_id=message_id,
        offset=result.queue_offset + position,
        recall_handle=reply.ext.get("recallHandle", ""),
    )
    if message.kind == pb.TRANSACTION:
        try:
            _, _, physical_offset = parse_offset_message_id(result.msg_id)
        except RemoteProtocolError as error:
            raise ProxyError(
                pb.INTERNAL_SERVER_ERROR, f"the broker stored a half message without a valid id: {error}"
            ) from error
        transaction = OpenTransaction(message_id, queue.broker_name, result.queue_offset, physical_offset)
        entry.transaction_id = write_transaction_id(transaction)
    return entry


async def recall_message(
    core: ProxyCore, context: CallContext, request: pb.RecallMessageRequest
) -> pb.RecallMessageResponse:
    """Recall a message before it is delivered."""
    topic = topic_name(request.topic)
    core.guard.require(context, publish_need(topic))
    if core.limits.checks_message_types:
        check_kind(await core.topics.kind(topic), pb.DELAY, topic)
    broker_name = recall_broker(request.recall_handle)
    address = await core.topics.master(topic, broker_name)
    header = RecallRequest(topic=topic, recall_handle=request.recall_handle, producer_group=topic, bname=broker_name)
    reply = require_ok(await core.brokers.request(address, RequestCode.RECALL_MESSAGE, header), address)
    return pb.RecallMessageResponse(status=OK, message_id=parse_header(reply, RecallResult, address).msg_id)
