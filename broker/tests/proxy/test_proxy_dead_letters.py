"""Dead letters through the proxy: a client may move the message of its receipt, and no other one."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from proxy_world import ADDRESS, STORED, FakeBrokers, World, receipt_of

from gantry_client.errors import BadReply, BrokerRefused
from gantry_proxy.handlers.acknowledging import forward_to_dead_letters
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.statuses import ProxyError
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.command import Command
from gantry_wire.message import StoredMessage, encode_record

ORDERS, BILLING = pb.Resource(name="orders"), pb.Resource(name="billing")
VIEW, SEND_BACK = RequestCode.VIEW_MESSAGE_BY_ID, RequestCode.CONSUMER_SEND_MSG_BACK


def world(stored: StoredMessage = STORED) -> World:
    """Return a proxy whose broker has one message, at any offset for which it is asked."""
    one = World(FakeBrokers())
    one.brokers.answers[VIEW] = Command(code=ResponseCode.SUCCESS, body=encode_record(stored))
    return one


async def forward(one: World, receipt: str) -> pb.Code:
    call = pb.ForwardMessageToDeadLetterQueueRequest(group=BILLING, topic=ORDERS, receipt_handle=receipt)
    try:
        return (await forward_to_dead_letters(one.core, one.context(), call)).status.code
    except ProxyError as error:
        return error.code


@pytest.mark.parametrize(("retry_flag", "topic"), [("0", "orders"), ("1", "%RETRY%billing_orders")])
async def test_message_of_a_receipt_is_moved(retry_flag: str, topic: str) -> None:
    """The proxy reads the message, copies it, and acknowledges it, also if it comes from a retry topic."""
    one = world(replace(STORED, topic=topic))
    receipt = receipt_of(1).replace(" 3 0 ", f" 3 {retry_flag} ")

    assert await forward(one, receipt) == pb.OK

    assert [(request.address, request.code) for request in one.brokers.requests] == [
        (ADDRESS, VIEW), (ADDRESS, SEND_BACK),
    ]  # fmt: skip
    view, back = (request.header for request in one.brokers.requests)
    assert (view.offset, view.topic) == (1001, topic)  # type: ignore[attr-defined]
    assert (back.offset, back.origin_topic) == (1001, topic)  # type: ignore[attr-defined]
    assert one.brokers.acked == [("orders", "billing", receipt)]


@pytest.mark.parametrize(
    "stored",
    [
        replace(STORED, topic="payments"), replace(STORED, topic="%RETRY%other_orders"), replace(STORED, queue_id=2),
        replace(STORED, queue_offset=2), replace(STORED, physical_offset=1002),
    ],
    ids=["topic", "retry topic", "queue", "queue offset", "place in the log"],
)  # fmt: skip
async def test_forged_offset_in_the_log_copies_nothing(stored: StoredMessage) -> None:
    """The account has permission for the topic of the call only, and the proxy's account for all of them."""
    one = world(stored)

    assert await forward(one, receipt_of(1)) == pb.INVALID_RECEIPT_HANDLE

    assert [request.code for request in one.brokers.requests] == [VIEW]
    assert one.brokers.acked == []


async def test_body_that_looks_like_a_message_copies_nothing() -> None:
    """A sender can write a record into a body that extends over other messages, but does not know their checksum."""
    one = world()
    record = bytearray(encode_record(STORED))
    record[record.index(b"body")] ^= 1
    one.brokers.answers[VIEW] = Command(code=ResponseCode.SUCCESS, body=bytes(record))

    with pytest.raises(BadReply):
        await forward(one, receipt_of(1))

    assert [request.code for request in one.brokers.requests] == [VIEW]


async def test_offset_without_a_message_copies_nothing() -> None:
    """The refusal of the broker is reported."""
    one = world()
    one.brokers.answers[VIEW] = Command(code=ResponseCode.SYSTEM_ERROR, remark="can not find message")

    with pytest.raises(BrokerRefused):
        await forward(one, receipt_of(1))

    assert [request.code for request in one.brokers.requests] == [VIEW]


async def test_dead_letter_without_a_place_in_the_log_is_refused() -> None:
    """Receipts of plain remoting clients lack it, and a broker could not find the message."""
    one = world()

    assert await forward(one, " ".join(receipt_of(1).split(" ")[:8])) == pb.INVALID_RECEIPT_HANDLE
    assert one.brokers.requests == []


async def test_dead_letter_is_not_acknowledged_if_the_copy_failed() -> None:
    """Otherwise the message would be lost."""
    one = world()
    one.brokers.answers[SEND_BACK] = Command(code=ResponseCode.SYSTEM_ERROR)

    with pytest.raises(BrokerRefused):
        await forward(one, receipt_of(1))

    assert one.brokers.acked == []
