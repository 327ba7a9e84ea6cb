"""Calls of producers: sends and recalls. A send is tried at one broker; an SDK repeats it, with another queue.

The proxy does not retry: only the client knows its deadline, and a send that may have been stored must not be repeated
silently. A refusal and a lost connection are reported at once, and later sends prefer other brokers.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from gantry_access.permissions import publish_need
from gantry_client.calls import parse_header
from gantry_client.errors import BrokerRefused, Unavailable
from gantry_proxy.brokers import REQUEST_MS, require_ok
from gantry_proxy.context import CallContext
from gantry_proxy.core import ProxyCore
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.send_batches import JOINED_BODY_BYTES_MAX, JOINED_PROPERTIES_MAX, PendingSend, Place, send_request
from gantry_proxy.statuses import OK, ProxyError, code_of_broker, status
from gantry_proxy.translation.checks import topic_name
from gantry_proxy.translation.handles import OpenTransaction, recall_broker, write_transaction_id
from gantry_proxy.translation.outgoing import OutgoingMessage, check_kind, read_messages
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.command import Command
from gantry_wire.commands.clients import MessageQueue
from gantry_wire.commands.fields import Fields
from gantry_wire.commands.send import SendResult
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.message import parse_offset_message_id
from gantry_wire.names import is_retry_or_dead_letter

STORED_CODES: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    }
)
"""The codes of a stored message; only the first one means that the broker kept the promise of its mode."""
Finish = Callable[[pb.SendMessageResponse | Exception], None]
"""Ends the call of a send that was begun without a task."""


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
    message = _read(core, context, request)
    if _has_checked_kind(core, message):
        check_kind(await core.topics.kind(message.topic), message.kind, message.topic)
    queue, address = await core.topics.queue_for_send(message.topic, message.message_group, core.monotonic_s())
    code, header, body = send_request([message], queue)
    outcome: Command | Exception
    try:
        outcome = await core.brokers.request(address, code, header, body, timeout_ms=_timeout_ms(context))
    except Unavailable as error:
        outcome = error
    return await _conclude(core, message, outcome, (queue, address), 0)


def begin_send(core: ProxyCore, context: CallContext, request: pb.SendMessageRequest, finish: Finish) -> bool:
    """Send the one message of a call without a task; ``finish`` gets what `send_message` would return or raise.

    Return False, with nothing done, if the call has several messages, or if the topic or the connection to a broker is
    not known. Raises ProxyError as `send_message`. The message may share its request with those of other calls.
    """
    if len(request.messages) != 1:
        return False
    message = _read(core, context, request)
    traits = core.topics.fresh_traits(message.topic)
    if _has_checked_kind(core, message):
        if traits is None:
            return False
        check_kind(traits.kind, message.kind, message.topic)

    def on_outcome(outcome: Command | Exception, place: Place, position: int) -> None:
        if isinstance(outcome, Command) and outcome.code == ResponseCode.SUCCESS:
            core.topics.record_send(place[0].broker_name, core.monotonic_s(), is_connected=True)
            finish(_reply_or_error(message, outcome, place, position))
        else:  # the route may have to be queried again
            core.tasks.start(_finish(_conclude(core, message, outcome, place, position), finish), "failed-send")

    def choose() -> Place | None:
        return core.topics.fresh_queue_for_send(message.topic, message.message_group, core.monotonic_s())

    timeout_ms = _timeout_ms(context)
    if traits is not None and traits.takes_batches and _can_be_joined(message):
        return core.sends.begin(PendingSend(message, timeout_ms, on_outcome), choose)
    place = choose()
    if place is None:
        return False
    code, header, body = send_request([message], place[0])
    command = Command(code=code, ext=header.write(), body=body)
    return core.brokers.begin_request(place[1], command, timeout_ms, lambda outcome: on_outcome(outcome, place, 0))


def _can_be_joined(message: OutgoingMessage) -> bool:
    """Return whether a message may share a request with others of its topic."""
    is_small = len(message.body) <= JOINED_BODY_BYTES_MAX and len(message.properties) <= JOINED_PROPERTIES_MAX
    return message.kind == pb.NORMAL and is_small and not is_retry_or_dead_letter(message.topic)


def _read(core: ProxyCore, context: CallContext, request: pb.SendMessageRequest) -> OutgoingMessage:
    message = read_messages(request.messages, context.peer, core.wall_ms(), core.limits)
    core.guard.require(context, publish_need(message.topic))
    return message


def _has_checked_kind(core: ProxyCore, message: OutgoingMessage) -> bool:
    return core.limits.checks_message_types and not is_retry_or_dead_letter(message.topic)


def _timeout_ms(context: CallContext) -> int:
    return min(REQUEST_MS, max(1, context.remaining_ms))


async def _conclude(
    core: ProxyCore, message: OutgoingMessage, outcome: Command | Exception, place: Place, position: int
) -> pb.SendMessageResponse:
    """Return the reply to a send with this outcome. Raises what it failed with, after what other sends need to know."""
    queue, address = place
    if isinstance(outcome, Unavailable):
        core.topics.record_send(queue.broker_name, core.monotonic_s(), is_connected=False)
        await core.topics.refresh(message.topic)
    if isinstance(outcome, Exception):
        raise outcome
    core.topics.record_send(queue.broker_name, core.monotonic_s(), is_connected=True)
    if outcome.code not in STORED_CODES:
        if outcome.code in (ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.TOPIC_NOT_EXIST):
            await core.topics.refresh(message.topic)  # the broker is no master any more, or the topic was deleted
        raise BrokerRefused(outcome.code, outcome.remark, address)
    return _reply(message, outcome, place, position)


async def _finish(conclusion: Awaitable[pb.SendMessageResponse], finish: Finish) -> None:
    """The task of a send that was begun without one, and that the broker did not simply accept."""
    try:
        reply = await conclusion
    except Exception as error:  # noqa: BLE001  every call has a reply
        finish(error)
    else:
        finish(reply)


_STORED: Final = pb.SendMessageResponse(status=OK, entries=[pb.SendResultEntry(status=OK)]).SerializeToString()
"""The reply for one message that was stored, without its names: reading it is cheaper than filling it."""


def _stored_text(reply: Command) -> str:
    return f"the message is stored, but not as safely as the broker promises: {ResponseCode(reply.code).name}"


def _reply_or_error(
    message: OutgoingMessage, reply: Command, place: Place, position: int
) -> pb.SendMessageResponse | Exception:
    try:
        return _reply(message, reply, place, position)
    except Exception as error:  # noqa: BLE001  every call has a reply
        return error


def _reply(message: OutgoingMessage, reply: Command, place: Place, position: int) -> pb.SendMessageResponse:
    """Return the reply for stored messages, the first of which had this position in its request.

    Raises BadReply and ProxyError.
    """
    queue, address = place
    result = parse_header(reply, SendResult, address)
    if reply.code != ResponseCode.SUCCESS:
        stored = status(code_of_broker(reply.code), _stored_text(reply))
        return pb.SendMessageResponse(
            status=status(stored.code), entries=[pb.SendResultEntry(status=stored) for _ in message.message_ids]
        )
    response = pb.SendMessageResponse.FromString(_STORED)
    for number, message_id in enumerate(message.message_ids):
        entry = response.entries[0] if number == 0 else response.entries.add(status=OK)
        entry.message_id, entry.offset = message_id, result.queue_offset + position + number
        if (handle := reply.ext.get("recallHandle")) is not None:
            entry.recall_handle = handle
        if message.kind == pb.TRANSACTION:
            entry.transaction_id = _transaction_id(message_id, queue, result)
    return response


def _transaction_id(message_id: str, queue: MessageQueue, result: SendResult) -> str:
    try:
        _, _, physical_offset = parse_offset_message_id(result.msg_id)
    except RemoteProtocolError as error:
        raise ProxyError(
            pb.INTERNAL_SERVER_ERROR, f"the broker stored a half message without a valid id: {error}"
        ) from error
    return write_transaction_id(OpenTransaction(message_id, queue.broker_name, result.queue_offset, physical_offset))


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
