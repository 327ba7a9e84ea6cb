"""The call that receives messages: a pop at one broker, which may wait for messages.

    status | message ... | delivery timestamp

With `auto_renew` the proxy chooses the invisible time and renews it. A message whose tag only collides with a wanted
one is acknowledged and not delivered. One that was delivered too often goes to the dead letters. A message that the
client does not read returns to the group.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

import msgspec

from gantry_access.permissions import consume_need, read_need
from gantry_client.errors import ClientError
from gantry_client.pop import PoppedMessage, PopReply, PopRequest, PopStatus
from gantry_proxy.clients import ProxyClient
from gantry_proxy.context import CallContext, require_client_id
from gantry_proxy.core import ProxyCore
from gantry_proxy.handlers.acknowledging import send_to_dead_letters
from gantry_proxy.handlers.sessions import group_of, require_owner
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.renewal import RENEWED_MS, RETURN_MS
from gantry_proxy.statuses import OK, ProxyError
from gantry_proxy.translation.checks import (
    check_invisible_ms,
    group_name,
    is_wanted,
    namespace_of,
    read_filter,
    topic_name,
)
from gantry_proxy.translation.client_settings import attempts_max
from gantry_proxy.translation.handles import read_receipt, with_physical_offset
from gantry_proxy.translation.incoming import fill_message
from gantry_proxy.translation.times import duration_ms, to_timestamp
from gantry_wire.commands.admin import SubscriptionGroupConfig
from gantry_wire.filters import MessageFilter

log = logging.getLogger(__name__)

MESSAGES_MAX: Final = 32
"""How many messages one call receives; the limit of brokers."""
REPLY_RESERVE_MS: Final = 500
"""How long before the deadline of the client a long poll ends, so that its reply arrives in time."""
ATTEMPT_ID_CHARACTERS_MAX: Final = 255
SETTINGS_WAIT_S: Final = 3.0
"""How long a receive waits for the settings of its client. Some SDKs send both at once. And a client whose proxy has
stopped repeats its receive at another one before its stream is open there, which takes SDKs a second."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """The messages of one call, each with the receipt that the client gets."""

    topic: str
    group: str
    messages: Sequence[tuple[PoppedMessage, str]]
    invisible_ms: int
    """For how long they are invisible at first."""


async def receive_message(
    core: ProxyCore, context: CallContext, request: pb.ReceiveMessageRequest
) -> AsyncIterator[pb.ReceiveMessageResponse]:
    """Yield the replies of one receive. Raises ProxyError and ClientError before the first one.

    What was not read when the iterator is closed returns to the group.
    """
    namespace, written = namespace_of(request.message_queue.topic), 0
    client, delivery = await _receive(core, context, request)
    try:
        yield pb.ReceiveMessageResponse(status=OK)
        for popped, receipt in delivery.messages:
            message, response = popped.message, pb.ReceiveMessageResponse()
            if message.compression:
                message = await core.bodies.inflate(message)
            fill_message(
                response.message, message, namespace=namespace, receipt=receipt, invisible_ms=delivery.invisible_ms
            )
            yield response
            written += 1
    finally:
        for _, receipt in delivery.messages[written:]:
            await _return(core, client, delivery, receipt)


async def _receive(
    core: ProxyCore, context: CallContext, request: pb.ReceiveMessageRequest
) -> tuple[ProxyClient, Delivery]:
    """Return the messages of a receive, and its client. Raises ProxyError and ClientError."""
    require_client_id(context)
    topic, group = topic_name(request.message_queue.topic), group_name(request.group)
    core.guard.require(context, read_need(topic), consume_need(group))
    wanted = read_filter(request.filter_expression)
    address, pop = await _pop_request(core, context, request, wanted)  # an invalid request leaves no client
    client, context = await _find_consumer(core, context, group, is_simple=not request.auto_renew)
    own = client.settings if group == client.group else pb.Settings(subscription=pb.Subscription(group=request.group))
    config = await group_of(core, own, topic)
    is_order = config is not None and config.consume_message_orderly
    pop = replace(pop, is_order=is_order, poll_ms=_poll_ms(core, context, request))
    reply = await _pop(core, client, address, pop)
    if reply.status is PopStatus.FULL:
        raise ProxyError(pb.TOO_MANY_REQUESTS, "too many receives wait at the broker")
    found = await _deliverable(core, pop, reply, wanted, config)
    delivery = Delivery(topic=topic, group=group, messages=found, invisible_ms=pop.invisible_ms)
    if core.clients.find(client.client_id) is not client:
        _return_all(core, client, delivery)
        raise ProxyError(pb.UNRECOGNIZED_CLIENT_TYPE, "the client has left, or its account was revoked")
    if not found:
        raise ProxyError(pb.MESSAGE_NOT_FOUND, "no new message")
    if request.auto_renew:
        received = ((receipt, popped.message.reconsume_times) for popped, receipt in found)
        core.renewals.add(client.client_id, topic, group, received)
    return client, delivery


async def _find_consumer(
    core: ProxyCore, context: CallContext, group: str, *, is_simple: bool
) -> tuple[ProxyClient, CallContext]:
    """Return the client of a receive, and its context with the time that is left. Raises ProxyError without one.

    The receives of a simple consumer need no settings; others wait for them, since some SDKs send both at once.
    """
    client_id, begun_s, remaining_s = context.client_id, core.monotonic_s(), context.remaining_ms / 1_000
    client = core.clients.find(client_id)
    if client is None and is_simple:
        client = core.clients.restore_consumer(client_id, group, context)
    elif client is None:
        client = await core.clients.wait_for(client_id, min(SETTINGS_WAIT_S, remaining_s / 2))
    if client is None or client.is_producer:
        raise ProxyError(pb.UNRECOGNIZED_CLIENT_TYPE, "the client has sent no settings of a consumer")
    require_owner(core, context, client)
    core.clients.record_life(client)
    waited_ms = int((core.monotonic_s() - begun_s) * 1_000)
    if not waited_ms:
        return client, context
    return client, msgspec.structs.replace(context, remaining_ms=context.remaining_ms - waited_ms)


def end_of_replies(core: ProxyCore) -> pb.ReceiveMessageResponse:
    """Return the last reply of every receive, also of a refused one."""
    return pb.ReceiveMessageResponse(delivery_timestamp=to_timestamp(core.wall_ms()))


async def _pop(core: ProxyCore, client: ProxyClient, address: str, pop: PopRequest) -> PopReply:
    """Pop messages. If the client goes away meanwhile, the messages of the reply return to the group."""
    if client.pops >= core.limits.calls_per_client_max:
        raise ProxyError(pb.TOO_MANY_REQUESTS, f"{client.pops} receives of the client are waiting already")
    answer: asyncio.Future[PopReply] = asyncio.get_running_loop().create_future()
    client.pops += 1
    core.tasks.start(_pop_into(answer, core, client, address, pop), "pop")
    try:
        return await asyncio.shield(answer)
    except asyncio.CancelledError:
        answer.add_done_callback(lambda done: _return_late(core, client, pop, done))
        raise


async def _pop_into(
    answer: asyncio.Future[PopReply], core: ProxyCore, client: ProxyClient, address: str, pop: PopRequest
) -> None:
    try:
        answer.set_result(await core.brokers.pop(address, pop))
    except (ClientError, ValueError) as error:
        answer.set_exception(error)
    finally:
        client.pops -= 1
        answer.cancel()  # has no effect on an answer that is set


def _return_late(core: ProxyCore, client: ProxyClient, pop: PopRequest, answer: asyncio.Future[PopReply]) -> None:
    """Return the messages of a reply for which no client waits any more."""
    if answer.cancelled() or answer.exception() is not None:
        return
    found = [(one, _receipt(one)) for one in answer.result().messages]
    _return_all(core, client, Delivery(topic=pop.topic, group=pop.group, messages=found, invisible_ms=pop.invisible_ms))


def _return_all(core: ProxyCore, client: ProxyClient, delivery: Delivery) -> None:
    for _, receipt in delivery.messages:
        core.tasks.start(_return(core, client, delivery, receipt), "return-message")


def _receipt(popped: PoppedMessage) -> str:
    return with_physical_offset(popped.receipt, popped.message.physical_offset)


async def _return(core: ProxyCore, client: ProxyClient, delivery: Delivery, receipt: str) -> None:
    try:
        async with core.renewals.settling(client.client_id, receipt) as text:
            address = await core.topics.master(delivery.topic, read_receipt(text, now_ms=0).receipt.broker_name)
            await core.brokers.change_invisible(address, delivery.topic, delivery.group, text, RETURN_MS)
    except ClientError as error:
        log.info("failed to return message", extra={"topic": delivery.topic, "reason": str(error)})


async def _pop_request(
    core: ProxyCore, context: CallContext, request: pb.ReceiveMessageRequest, wanted: MessageFilter
) -> tuple[str, PopRequest]:
    """Return the request to a broker, and its address, as it is without an order. Raises ProxyError and ClientError."""
    topic, limits = request.message_queue.topic.name, core.limits
    if not request.batch_size > 0:
        raise ProxyError(pb.BAD_REQUEST, f"the batch size is {request.batch_size}, expected 1 or more")
    if len(request.attempt_id) > ATTEMPT_ID_CHARACTERS_MAX:
        raise ProxyError(pb.BAD_REQUEST, f"the attempt id has more than {ATTEMPT_ID_CHARACTERS_MAX} characters")
    invisible_ms = RENEWED_MS
    if not request.auto_renew:
        invisible_ms = check_invisible_ms(
            duration_ms(request.invisible_duration), limits, least_ms=limits.invisible_ms_min
        )
    poll_ms = _poll_ms(core, context, request)
    broker_name = request.message_queue.broker.name
    if not broker_name:
        broker_name = await core.topics.any_read_broker(topic)
    address = await core.topics.master(topic, broker_name)
    return address, PopRequest(
        topic=topic,
        group=request.group.name,
        broker_name=broker_name,
        messages_max=min(request.batch_size, MESSAGES_MAX),
        invisible_ms=invisible_ms,
        poll_ms=poll_ms,
        filter=wanted,
        attempt_id=request.attempt_id or None,
        is_from_newest=True,
    )


def _poll_ms(core: ProxyCore, context: CallContext, request: pb.ReceiveMessageRequest) -> int:
    """Return how long the broker may wait for messages. Raises ProxyError if the client does not wait long enough."""
    limits, available_ms = core.limits, context.remaining_ms - REPLY_RESERVE_MS
    if available_ms < limits.poll_ms_min - REPLY_RESERVE_MS:
        raise ProxyError(
            pb.ILLEGAL_POLLING_TIME,
            f"the deadline of the call is in {context.remaining_ms} ms, but a poll takes at least {limits.poll_ms_min}",
        )
    wanted_ms = available_ms
    if request.HasField("long_polling_timeout"):
        wanted_ms = duration_ms(request.long_polling_timeout)
    return min(max(wanted_ms, limits.poll_ms_min), limits.poll_ms_max, available_ms)


async def _deliverable(
    core: ProxyCore, pop: PopRequest, reply: PopReply, wanted: MessageFilter, config: SubscriptionGroupConfig | None
) -> list[tuple[PoppedMessage, str]]:
    """Return the messages that the client gets, and settle the others."""
    found: list[tuple[PoppedMessage, str]] = []
    most = attempts_max(config)
    for popped in reply.messages:
        receipt = _receipt(popped)
        try:
            if not is_wanted(wanted, popped.message.tags):
                address = await core.topics.master(pop.topic, read_receipt(receipt, now_ms=0).receipt.broker_name)
                await core.brokers.ack(address, pop.topic, pop.group, receipt)
                continue
            if popped.message.reconsume_times >= most:
                parsed = read_receipt(receipt, now_ms=0)
                await send_to_dead_letters(core, pop.topic, pop.group, popped.message.message_id, parsed)
                continue
        except ClientError as error:
            log.info("failed to settle message; delivering it", extra={"topic": pop.topic, "reason": str(error)})
        found.append((popped, receipt))
    return found
