"""Calls that settle received messages: acks, changes of the invisible time, and dead letters."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from gantry_access.permissions import consume_need, read_need
from gantry_client.errors import BadReply, BrokerRefused, ClientError, RequestFailed
from gantry_proxy.ack_batches import PendingAck
from gantry_proxy.brokers import require_ok
from gantry_proxy.context import CallContext, require_client_id
from gantry_proxy.core import ProxyCore
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.statuses import OK, ProxyError, joint_status, status_of
from gantry_proxy.translation.checks import check_invisible_ms, check_message_id, group_name, topic_name
from gantry_proxy.translation.handles import MessageReceipt, read_receipt, with_physical_offset
from gantry_proxy.translation.times import duration_ms
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.command import Command
from gantry_wire.commands.pull import ViewMessage
from gantry_wire.commands.send import SendBack
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.message import decode_record

ENTRIES_MAX: Final = 1_024
"""How many messages one call may acknowledge."""
DEAD_LETTER_LEVEL: Final = -1
"""The delay level that sends a message to the dead letters."""


async def ack_message(core: ProxyCore, context: CallContext, request: pb.AckMessageRequest) -> pb.AckMessageResponse:
    """Acknowledge messages. Each has a status of its own."""
    client_id = require_client_id(context)
    topic, group = topic_name(request.topic), group_name(request.group)
    core.guard.require(context, read_need(topic), consume_need(group))
    if len(request.entries) > ENTRIES_MAX:
        raise ProxyError(pb.PAYLOAD_TOO_LARGE, f"{len(request.entries)} entries, at most {ENTRIES_MAX} are allowed")
    core.clients.touch(context)
    acks = [_ack(core, client_id, topic, group, one) for one in request.entries]
    statuses = [await acks[0]] if len(acks) == 1 else await asyncio.gather(*acks)  # most calls have one; no task then
    return _ack_reply(request.entries, statuses)


def _ack_reply(entries: Sequence[pb.AckMessageEntry], statuses: Sequence[pb.Status]) -> pb.AckMessageResponse:
    reply = pb.AckMessageResponse()
    reply.status.MergeFrom(joint_status(statuses, "the call has no entry"))
    for entry, status in zip(entries, statuses, strict=True):
        result = reply.entries.add()
        result.message_id, result.receipt_handle = entry.message_id, entry.receipt_handle
        result.status.MergeFrom(status)
    return reply


_ACKNOWLEDGED: Final = _ack_reply([pb.AckMessageEntry()], [OK]).SerializeToString()
"""The reply for one message that was acknowledged, without its names: reading it is cheaper than filling it."""


def begin_ack(
    core: ProxyCore,
    context: CallContext,
    request: pb.AckMessageRequest,
    finish: Callable[[pb.AckMessageResponse], None],
) -> bool:
    """Acknowledge the one message of a call without a task; ``finish`` gets the reply that `ack_message` would return.

    Return False, with nothing done, if the call has several messages, if its receipt is refused or being replaced, or
    if the broker or the connection to it is not known. Raises ProxyError as `ack_message`.
    """
    if len(request.entries) != 1:
        return False
    entry = request.entries[0]
    if entry.HasField("lite_topic"):
        return False
    client_id = require_client_id(context)
    topic, group = topic_name(request.topic), group_name(request.group)
    core.guard.require(context, read_need(topic), consume_need(group))
    first = entry.receipt_handle
    message = core.renewals.find(client_id, first)
    if message is not None and message.is_changing:
        return False
    try:
        text, receipt, _ = read_receipt(first if message is None else message.receipt, core.wall_ms())
    except ProxyError:
        return False
    address = core.topics.fresh_master(topic, receipt.broker_name)
    if address is None:
        return False

    def on_outcome(outcome: Command | RequestFailed) -> None:
        is_settled = isinstance(outcome, Command) and outcome.code == ResponseCode.SUCCESS
        if message is not None:
            core.renewals.end_settling(message, is_settled=is_settled)
        if isinstance(outcome, Command):
            if is_settled:
                reply = pb.AckMessageResponse.FromString(_ACKNOWLEDGED)
                result = reply.entries[0]
                result.message_id, result.receipt_handle = entry.message_id, first
                finish(reply)
                return
            outcome = BrokerRefused(outcome.code, outcome.remark, address)
        finish(_ack_reply(request.entries, [status_of(outcome)]))

    if not core.acks.begin(address, PendingAck(topic, group, receipt, text, on_outcome)):
        return False
    if message is not None:
        core.renewals.begin_settling(message)
    core.clients.touch(context)
    return True


async def _ack(core: ProxyCore, client_id: str, topic: str, group: str, entry: pb.AckMessageEntry) -> pb.Status:
    try:
        if entry.HasField("lite_topic"):
            raise ProxyError(pb.UNSUPPORTED, "lite topics are not supported")
        async with core.renewals.settling(client_id, entry.receipt_handle) as text:
            receipt = read_receipt(text, core.wall_ms())
            address = await _address(core, topic, receipt)
            await core.brokers.ack(address, topic, group, receipt.text)
    except (ProxyError, ClientError, ValueError) as error:
        return status_of(error)
    return OK


async def change_invisible_duration(
    core: ProxyCore, context: CallContext, request: pb.ChangeInvisibleDurationRequest
) -> pb.ChangeInvisibleDurationResponse:
    """Change when a message is delivered again, and return its new receipt. The proxy stops renewing it."""
    client_id = require_client_id(context)
    topic, group = topic_name(request.topic), group_name(request.group)
    core.guard.require(context, read_need(topic), consume_need(group))
    invisible_ms = check_invisible_ms(duration_ms(request.invisible_duration), core.limits)
    core.clients.touch(context)
    async with core.renewals.settling(client_id, request.receipt_handle) as text:
        receipt = read_receipt(text, core.wall_ms())
        address = await _address(core, topic, receipt)
        new = await core.brokers.change_invisible(
            address, topic, group, receipt.text, invisible_ms, is_suspended=request.suspend
        )
    return pb.ChangeInvisibleDurationResponse(
        status=OK, receipt_handle=with_physical_offset(new, receipt.physical_offset)
    )


async def forward_to_dead_letters(
    core: ProxyCore, context: CallContext, request: pb.ForwardMessageToDeadLetterQueueRequest
) -> pb.ForwardMessageToDeadLetterQueueResponse:
    """Move a message to the dead letters of its group."""
    client_id = require_client_id(context)
    topic, group = topic_name(request.topic), group_name(request.group)
    core.guard.require(context, read_need(topic), consume_need(group))
    message_id = check_message_id(request.message_id)
    core.clients.touch(context)
    async with core.renewals.settling(client_id, request.receipt_handle) as text:
        receipt = read_receipt(text, core.wall_ms())
        await _require_same_message(core, topic, group, receipt)
        await send_to_dead_letters(core, topic, group, message_id, receipt)
    return pb.ForwardMessageToDeadLetterQueueResponse(status=OK)


async def _require_same_message(core: ProxyCore, topic: str, group: str, receipt: MessageReceipt) -> None:
    """Raise ProxyError unless the offset in the log that a client names is that of the message of its receipt.

    Brokers copy what is stored at the offset if this proxy may read it, so another offset would reveal another topic.
    The checksum makes sure that a record is there, and not a part of a body that a sender has made to look like one.
    """
    if receipt.physical_offset < 0:
        raise ProxyError(pb.INVALID_RECEIPT_HANDLE, "the receipt does not have the offset of the message")
    address, parsed = await _address(core, topic, receipt), receipt.receipt
    queue_topic = parsed.queue_topic(topic, group)
    header = ViewMessage(offset=receipt.physical_offset, topic=queue_topic)
    reply = require_ok(await core.brokers.request(address, RequestCode.VIEW_MESSAGE_BY_ID, header), address)
    try:
        found = decode_record(reply.body)
    except RemoteProtocolError as error:
        raise BadReply(f"{address} sent a damaged message: {error}") from error
    place = (found.topic, found.queue_id, found.queue_offset, found.physical_offset)
    if place != (queue_topic, parsed.queue_id, parsed.queue_offset, receipt.physical_offset):
        raise ProxyError(
            pb.INVALID_RECEIPT_HANDLE,
            f"the receipt has another offset in the log than its message: {receipt.physical_offset}",
        )


async def send_to_dead_letters(
    core: ProxyCore, topic: str, group: str, message_id: str, receipt: MessageReceipt
) -> None:
    """Copy a message to the dead letters of a group, then acknowledge it. A failure between them leaves both copies.

    The receipt must be that of a pop of this proxy, or have passed `_require_same_message`.
    """
    address = await _address(core, topic, receipt)
    header = SendBack(
        offset=receipt.physical_offset,
        group=group,
        delay_level=DEAD_LETTER_LEVEL,
        origin_msg_id=message_id,
        origin_topic=receipt.receipt.queue_topic(topic, group),
        max_reconsume_times=0,
    )
    require_ok(await core.brokers.request(address, RequestCode.CONSUMER_SEND_MSG_BACK, header), address)
    await core.brokers.ack(address, topic, group, receipt.text)


async def _address(core: ProxyCore, topic: str, receipt: MessageReceipt) -> str:
    """Return the address of the broker that issued a receipt. Raises ProxyError if the topic has no such broker."""
    known = await core.topics.get(topic)
    broker_name = receipt.receipt.broker_name
    if broker_name not in known.route.brokers:
        raise ProxyError(
            pb.INVALID_RECEIPT_HANDLE, f"the receipt is of broker {broker_name[:64]!r}, which does not have {topic!r}"
        )
    return await core.topics.master(topic, broker_name)
