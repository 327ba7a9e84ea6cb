"""Texts of clients: what goes to brokers and name servers is bounded, so that no call breaks a shared connection."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from proxy_world import BROKER, FakeBrokers, FakeStream, World, consumer_settings, popped, receipt_of

from gantry_proxy.handlers.acknowledging import forward_to_dead_letters
from gantry_proxy.handlers.offsets import pull_message
from gantry_proxy.handlers.receiving import receive_message
from gantry_proxy.handlers.sending import recall_message
from gantry_proxy.handlers.sessions import accept_settings
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.statuses import ProxyError
from gantry_proxy.translation.checks import FILTER_CHARACTERS_MAX, MESSAGE_ID_CHARACTERS_MAX
from gantry_proxy.translation.handles import RECALL_HANDLE_CHARACTERS_MAX
from gantry_wire.codes import RequestCode
from gantry_wire.limits import HEADER_BYTES_MAX

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
    await dead_letter(one, "\x01" * MESSAGE_ID_CHARACTERS_MAX)
    one.brokers.popped = [popped(1, TAGS="x" * FILTER_CHARACTERS_MAX)]
    await receive(one, "x" * FILTER_CHARACTERS_MAX)

    [request] = one.brokers.requests
    assert (request.code, len(one.brokers.pops)) == (RequestCode.CONSUMER_SEND_MSG_BACK, 1)
    assert FILTER_CHARACTERS_MAX * len("\\ud83d\\ude00") < HEADER_BYTES_MAX


@pytest.mark.parametrize("name", ["", "a b", "%RETRY%billing", "x" * 128])
async def test_settings_with_an_invalid_topic_register_no_client(name: str) -> None:
    """The topics of a subscription go to the name servers, as those of calls do."""
    one = World(FakeBrokers())

    with pytest.raises(ProxyError) as caught:
        await subscribe(one, name)

    assert (caught.value.code, len(one.clients), one.brokers.queries) == (pb.ILLEGAL_TOPIC, 0, 0)
