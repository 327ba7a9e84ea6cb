"""Texts of clients: what goes to brokers and name servers is bounded, so that no call breaks a shared connection."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from proxy_world import BROKER, STORED, FakeBrokers, FakeStream, World, consumer_settings, popped, receipt_of

from gantry_proxy.handlers.acknowledging import forward_to_dead_letters
from gantry_proxy.handlers.offsets import pull_message
from gantry_proxy.handlers.receiving import receive_message
from gantry_proxy.handlers.routing import query_assignment, query_route
from gantry_proxy.handlers.sending import recall_message
from gantry_proxy.handlers.sessions import accept_settings
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.statuses import ProxyError
from gantry_proxy.translation.checks import FILTER_CHARACTERS_MAX, MESSAGE_ID_CHARACTERS_MAX
from gantry_proxy.translation.handles import RECALL_HANDLE_CHARACTERS_MAX
from gantry_proxy.translation.routes import REPLY_BYTES_MAX
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.command import Command
from gantry_wire.commands.admin import SubscriptionGroupConfig
from gantry_wire.limits import HEADER_BYTES_MAX
from gantry_wire.message import encode_record

ORDERS, BILLING = pb.Resource(name="orders"), pb.Resource(name="billing")
QUEUE = pb.MessageQueue(topic=ORDERS, id=0, broker=pb.Broker(name=BROKER))


def world() -> World:
    one = World(FakeBrokers(kinds={"orders": "DELAY"}))
    one.join_consumer()
    one.brokers.popped = [popped(1)]
    return one


async def dead_letter(one: World, text: str) -> Any:
    call = pb.ForwardMessageToDeadLetterQueueRequest(
        group=BILLING, topic=ORDERS, receipt_handle=receipt_of(1), message_id=text
    )
    return await forward_to_dead_letters(one.core, one.context(), call)


async def recall(one: World, text: str) -> Any:
    """Recall with a valid handle that ends with this text."""
    handle = base64.urlsafe_b64encode(f"v1 orders {BROKER} 0 {text}".encode()).decode()[:-2]
    call = pb.RecallMessageRequest(topic=ORDERS, recall_handle=handle)
    return await recall_message(one.core, one.context(), call)


async def receive(one: World, text: str) -> Any:
    call = pb.ReceiveMessageRequest(
        group=BILLING, message_queue=QUEUE, batch_size=1, auto_renew=True,
        filter_expression=pb.FilterExpression(type=pb.TAG, expression=text),
    )  # fmt: skip
    return [reply async for reply in receive_message(one.core, one.context(), call)]


async def pull(one: World, text: str) -> Any:
    call = pb.PullMessageRequest(
        group=BILLING, message_queue=QUEUE, batch_size=1,
        filter_expression=pb.FilterExpression(type=pb.TAG, expression=text),
    )  # fmt: skip
    return [reply async for reply in pull_message(one.core, one.context(), call)]


async def subscribe(one: World, text: str) -> Any:
    return await accept_settings(one.core, one.context(), consumer_settings(topic=text), FakeStream())


@pytest.mark.parametrize(
    ("call", "characters_max", "code"),
    [
        (dead_letter, MESSAGE_ID_CHARACTERS_MAX, pb.ILLEGAL_MESSAGE_ID),
        (recall, RECALL_HANDLE_CHARACTERS_MAX, pb.BAD_REQUEST),
        (receive, FILTER_CHARACTERS_MAX, pb.ILLEGAL_FILTER_EXPRESSION),
        (pull, FILTER_CHARACTERS_MAX, pb.ILLEGAL_FILTER_EXPRESSION),
        (subscribe, 127, pb.ILLEGAL_TOPIC),
    ],
)
async def test_text_beyond_its_limit_reaches_no_server(
    call: Callable[[World, str], Awaitable[Any]], characters_max: int, code: pb.Code
) -> None:
    """A header beyond the limit of a server would close the connection that all clients share."""
    one = world()

    with pytest.raises(ProxyError) as caught:
        await call(one, "x" * (characters_max + 1))

    assert caught.value.code == code
    assert (one.brokers.requests, one.brokers.pops, one.brokers.acked) == ([], [], [])
    assert one.brokers.queries <= 1, "only the route of the topic of a call is queried"


async def test_longest_texts_are_served() -> None:
    """What the limits allow reaches the broker, and fits a header also if every character is escaped."""
    one = world()
    one.brokers.answers[RequestCode.VIEW_MESSAGE_BY_ID] = Command(code=ResponseCode.SUCCESS, body=encode_record(STORED))
    await dead_letter(one, "\x01" * MESSAGE_ID_CHARACTERS_MAX)
    one.brokers.popped = [popped(1, TAGS="x" * FILTER_CHARACTERS_MAX)]
    await receive(one, "x" * FILTER_CHARACTERS_MAX)

    codes = [request.code for request in one.brokers.requests]
    assert codes == [RequestCode.VIEW_MESSAGE_BY_ID, RequestCode.CONSUMER_SEND_MSG_BACK]
    assert len(one.brokers.pops) == 1
    assert FILTER_CHARACTERS_MAX * len("\\ud83d\\ude00") < HEADER_BYTES_MAX


@pytest.mark.parametrize("name", ["", "a b", "%RETRY%billing", "x" * 128])
async def test_settings_with_an_invalid_topic_register_no_client(name: str) -> None:
    """The topics of a subscription go to the name servers, as those of calls do."""
    one = World(FakeBrokers())

    with pytest.raises(ProxyError) as caught:
        await subscribe(one, name)

    assert (caught.value.code, len(one.clients), one.brokers.queries) == (pb.ILLEGAL_TOPIC, 0, 0)


# ------- texts that replies repeat


def endpoints_of(count: int = 1, host: str = "proxy.example") -> pb.Endpoints:
    return pb.Endpoints(scheme=pb.DOMAIN_NAME, addresses=[pb.Address(host=host, port=8081)] * count)


async def route(one: World, endpoints: pb.Endpoints, topic: pb.Resource = ORDERS) -> Any:
    call = pb.QueryRouteRequest(topic=topic, endpoints=endpoints)
    return await query_route(one.core, one.context(), call)


@pytest.mark.parametrize(
    "endpoints", [endpoints_of(host="x" * 256), endpoints_of(64, "x" * 200), endpoints_of(65), endpoints_of(0)]
)
async def test_addresses_of_a_client_are_limited(endpoints: pb.Endpoints) -> None:
    """A route repeats them for each queue."""
    one = World(FakeBrokers())
    call = pb.QueryAssignmentRequest(topic=ORDERS, group=BILLING, endpoints=endpoints)
    for refused in (route(one, endpoints), query_assignment(one.core, one.context(), call)):
        with pytest.raises(ProxyError) as caught:
            await refused
        assert caught.value.code == pb.ILLEGAL_ACCESS_POINT


async def test_usual_addresses_of_many_replicas_are_served() -> None:
    """64 addresses with long names are a large deployment."""
    endpoints = endpoints_of(64, "gantry-proxy-63.gantry-proxy-pods.messaging.svc.cluster.local")

    reply = await route(World(FakeBrokers()), endpoints)

    assert {queue.broker.endpoints.SerializeToString() for queue in reply.message_queues} == {
        endpoints.SerializeToString()
    }


@pytest.mark.parametrize(("addresses", "is_refused"), [(1, False), (64, True)])
async def test_reply_with_a_route_is_limited(addresses: int, is_refused: bool) -> None:
    """A topic with thousands of queues and a client with many addresses would give a reply of 60 MB."""
    one = World(FakeBrokers(queues=10_000))
    if is_refused:
        with pytest.raises(ProxyError, match="name fewer addresses"):
            await route(one, endpoints_of(addresses, "x" * 100))
        return

    reply = await route(one, endpoints_of(addresses, "x" * 100))

    assert len(reply.message_queues) == 10_000
    assert reply.ByteSize() < REPLY_BYTES_MAX


@pytest.mark.parametrize("queues", [4, 10_000])
async def test_assignment_in_order_is_limited(queues: int) -> None:
    """A group in order gets each queue by itself."""
    ordered = SubscriptionGroupConfig(group_name="billing", consume_message_orderly=True)
    one = World(FakeBrokers(queues=queues, groups={"billing": ordered}))
    call = pb.QueryAssignmentRequest(topic=ORDERS, group=BILLING, endpoints=endpoints_of(64, "x" * 100))
    if queues == 4:
        reply = await query_assignment(one.core, one.context(), call)
        assert len(reply.assignments) == 4
        return
    with pytest.raises(ProxyError, match="name fewer addresses"):
        await query_assignment(one.core, one.context(), call)


@pytest.mark.parametrize("characters", [255, 256])
async def test_namespace_is_limited(characters: int) -> None:
    """Replies repeat it for each queue and each message."""
    topic = pb.Resource(name="orders", resource_namespace="n" * characters)
    queue = pb.MessageQueue(topic=topic, id=0, broker=pb.Broker(name=BROKER))
    one = world()
    receive = pb.ReceiveMessageRequest(group=BILLING, message_queue=queue, batch_size=1, auto_renew=True)
    pull = pb.PullMessageRequest(group=BILLING, message_queue=queue, batch_size=1)
    one.brokers.answers[RequestCode.PULL_MESSAGE] = Command(
        code=ResponseCode.PULL_NOT_FOUND,
        ext={"nextBeginOffset": "0", "minOffset": "0", "maxOffset": "0", "suggestWhichBrokerId": "0"},
    )
    calls: list[Any] = [
        route(one, endpoints_of(), topic),
        _collect(receive_message(one.core, one.context(), receive)),
        _collect(pull_message(one.core, one.context(), pull)),
    ]
    if characters == 255:
        replies = await asyncio.gather(*calls)
        assert replies[0].message_queues[0].topic == topic
        assert replies[1][1].message.topic == topic
        return
    for failure in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(failure, ProxyError)
        assert failure.code == pb.BAD_REQUEST


async def _collect(replies: AsyncIterator[Any]) -> list[Any]:
    return [reply async for reply in replies]


async def test_unknown_fields_of_a_topic_are_not_repeated() -> None:
    """What a client appends to a name is no part of it."""
    unknown = b"\xa2\x06\xff\x7f" + b"x" * 16_383
    topic = pb.Resource.FromString(ORDERS.SerializeToString() + unknown)

    reply = await route(World(FakeBrokers()), endpoints_of(), topic)

    assert reply.ByteSize() < 1_000
