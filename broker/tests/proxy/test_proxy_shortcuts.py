"""Sends and acks that begin without a task: each ends as the handler of its method would end it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from proxy_world import (
    ADDRESS,
    BROKER,
    NOW_MS,
    REFUSED,
    UNAVAILABLE,
    FakeBrokers,
    World,
    message,
    popped,
    receipt_of,
    send_reply,
)

from gantry_client.errors import RequestFailed, RequestTimeout
from gantry_proxy.cache import MISSING_MS, REFRESH_MS
from gantry_proxy.handlers.acknowledging import ack_message, begin_ack
from gantry_proxy.handlers.sending import begin_send, send_message
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.statuses import ProxyError
from gantry_testing.local import wait_until
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.command import Command

ORDERS, BILLING = pb.Resource(name="orders"), pb.Resource(name="billing")
SEND = RequestCode.SEND_MESSAGE_V2
TIMED_OUT = RequestTimeout("no reply")
RETRY_TOPIC = "%RETRY%billing_orders"


async def connected(kind: str = "NORMAL") -> World:
    """Return a proxy that knows its topic, and has a connection to its broker."""
    one = World(FakeBrokers(kinds={"orders": kind}, is_connected=True))
    await one.topics.get("orders")
    await one.topics.kind("orders")
    return one


def ack_request(*receipts: str) -> pb.AckMessageRequest:
    entries = [pb.AckMessageEntry(message_id="id", receipt_handle=receipt) for receipt in receipts]
    return pb.AckMessageRequest(group=BILLING, topic=ORDERS, entries=entries)


def send_request(*messages: pb.Message) -> pb.SendMessageRequest:
    return pb.SendMessageRequest(messages=messages or [message()])


async def shortcut(one: World, begin: Any, request: Any, outcome: Command | RequestFailed) -> Any:
    """Begin a call, give it the outcome of its request, and return what it finishes with."""
    finished: list[Any] = []
    assert begin(one.core, one.context(), request, finished.append)
    assert finished == []
    await asyncio.sleep(0)
    one.brokers.begun[-1][3](outcome)
    await wait_until(lambda: len(finished) == 1)
    return finished[0]


async def handled(one: World, handle: Any, request: Any) -> Any:
    """Return what the handler of the method returns or raises."""
    try:
        return await handle(one.core, one.context(), request)
    except Exception as error:  # noqa: BLE001  compared with that of the shortcut
        return error


def comparable(outcome: Any) -> Any:
    return (type(outcome), str(outcome)) if isinstance(outcome, Exception) else outcome


# ------- acks


@pytest.mark.parametrize("retry_flag", ["0", "1"])
async def test_ack_without_a_task_is_the_same_request(retry_flag: str) -> None:
    """The broker gets what it gets from the handler's client, also for a message of a retry topic."""
    one = await connected()
    receipt = receipt_of(5).replace(" 3 0 ", f" 3 {retry_flag} ")

    reply = await shortcut(one, begin_ack, ack_request(receipt), Command(code=ResponseCode.SUCCESS))

    [(address, command, timeout_ms, _)] = one.brokers.begun
    assert (address, command.code, timeout_ms) == (ADDRESS, RequestCode.ACK_MESSAGE, 3_000)
    assert command.ext == {
        "consumerGroup": "billing", "topic": RETRY_TOPIC if retry_flag == "1" else "orders", "queueId": "1",
        "extraInfo": receipt, "offset": "5",
    }  # fmt: skip
    assert reply == await ack_message(one.core, one.context(), ack_request(receipt))


@pytest.mark.parametrize("failure", [REFUSED, UNAVAILABLE, TIMED_OUT], ids=["refused", "lost", "late"])
async def test_failed_ack_without_a_task_has_the_status_of_the_handler(failure: RequestFailed) -> None:
    """The code of the broker, or of what the proxy knows, is in the entry and in the reply."""
    one = await connected()
    outcome = Command(code=REFUSED.code, remark=REFUSED.remark) if failure is REFUSED else failure

    reply = await shortcut(one, begin_ack, ack_request(receipt_of(5)), outcome)
    one.brokers.failure = failure

    assert reply.entries[0].status.code != pb.OK
    assert reply == await ack_message(one.core, one.context(), ack_request(receipt_of(5)))


@pytest.mark.parametrize(
    "receipts",
    [(), (receipt_of(1), receipt_of(2)), ("x",), (receipt_of(1, broker="unknown"),),
     (receipt_of(1, pop_time_ms=NOW_MS - 60_000),)],
    ids=["none", "two", "forged", "unknown broker", "expired"],
)  # fmt: skip
async def test_unusual_ack_is_left_to_the_handler(receipts: tuple[str, ...]) -> None:
    """Nothing was sent, so that the handler can do all of it."""
    one = await connected()

    assert not begin_ack(one.core, one.context(), ack_request(*receipts), lambda _: pytest.fail("finished"))
    assert one.brokers.begun == []


async def test_ack_is_left_to_the_handler_until_the_way_is_known() -> None:
    """Without a connection or a route the message stays in flight, and the handler finds its newest receipt."""
    one = await connected()
    one.renewals.add("client-1", "orders", "billing", [(receipt_of(1), 0)])
    one.brokers.is_connected = False
    assert not begin_ack(one.core, one.context(), ack_request(receipt_of(1)), lambda _: pytest.fail("finished"))
    one.brokers.is_connected = True
    one.now_ms += REFRESH_MS
    assert not begin_ack(one.core, one.context(), ack_request(receipt_of(1)), lambda _: pytest.fail("finished"))

    assert (one.renewals.message_count, one.brokers.begun) == (1, [])


async def test_ack_without_a_task_ends_the_renewal() -> None:
    """It is made with the newest receipt, and the reply names the one of the client."""
    one = await connected()
    one.renewals.add("client-1", "orders", "billing", [(receipt_of(1), 0)])
    one.now_ms += 55_000
    await one.renew()
    await one.topics.refresh("orders")

    reply = await shortcut(one, begin_ack, ack_request(receipt_of(1)), Command(code=ResponseCode.SUCCESS))

    assert one.brokers.begun[0][1].ext["extraInfo"] == receipt_of(1, pop_time_ms=NOW_MS + 1)
    assert reply.entries[0].receipt_handle == receipt_of(1)
    assert one.renewals.message_count == 0


async def test_forbidden_names_are_refused_at_once() -> None:
    """The error is that of the handler."""
    one = await connected()
    request = pb.AckMessageRequest(group=pb.Resource(name="a b"), topic=ORDERS, entries=ack_request("x").entries)

    with pytest.raises(ProxyError) as caught:
        begin_ack(one.core, one.context(), request, lambda _: pytest.fail("finished"))

    assert comparable(caught.value) == comparable(await handled(one, ack_message, request))


# ------- sends


@pytest.mark.parametrize(
    "outcome",
    [
        send_reply(), send_reply(recallHandle="handle"), send_reply(ResponseCode.FLUSH_DISK_TIMEOUT),
        Command(code=ResponseCode.SUCCESS), Command(code=ResponseCode.SYSTEM_BUSY, remark="busy"),
        Command(code=ResponseCode.SERVICE_NOT_AVAILABLE), UNAVAILABLE, TIMED_OUT,
    ],
    ids=["stored", "recallable", "not flushed", "no id", "busy", "no master", "lost", "late"],
)  # fmt: skip
async def test_send_without_a_task_ends_as_its_handler(outcome: Command | RequestFailed) -> None:
    """The same request, the same reply or error, and the same queries of routes afterwards."""
    one, other = await connected(), await connected()
    other.brokers.answers[SEND] = outcome

    finished = await shortcut(one, begin_send, send_request(), outcome)
    expected = await handled(other, send_message, send_request())

    assert comparable(finished) == comparable(expected)
    assert one.brokers.queries == other.brokers.queries
    [(address, command, timeout_ms, _)] = one.brokers.begun
    header: Any = other.brokers.requests[0].header
    assert {**command.ext, "e": ""} == {**header.write(), "e": ""}, "apart from the queue, which is another each time"
    assert (address, command.code, command.body, timeout_ms) == (ADDRESS, SEND, b"body", 3_000)


async def test_half_message_without_a_task_names_its_transaction() -> None:
    """Its id is made of the broker's reply, and a reply without a place is an error of the handler."""
    one, other = await connected("TRANSACTION"), await connected("TRANSACTION")
    half = send_request(message(message_type=pb.TRANSACTION))
    for reply in (send_reply(), Command(code=0, ext={"msgId": "x", "queueId": "1", "queueOffset": "7"})):
        other.brokers.answers[SEND] = reply
        finished = await shortcut(one, begin_send, half, reply)
        assert comparable(finished) == comparable(await handled(other, send_message, half))


async def test_unusual_send_is_left_to_the_handler() -> None:
    """Batches, unknown topics, old routes and missing connections: nothing was sent."""
    one = await connected()

    def begin(*messages: pb.Message) -> bool:
        return begin_send(one.core, one.context(), send_request(*messages), lambda _: pytest.fail("finished"))

    assert not begin(message(), message())
    assert not begin(message("unknown"))
    one.brokers.is_connected = False
    assert not begin()
    one.brokers.is_connected = True
    one.now_ms += REFRESH_MS
    assert not begin()
    assert one.brokers.begun == []


async def test_message_of_the_wrong_kind_is_refused_at_once() -> None:
    """The error is that of the handler."""
    one = await connected("FIFO")

    with pytest.raises(ProxyError) as caught:
        begin_send(one.core, one.context(), send_request(), lambda _: pytest.fail("finished"))

    assert comparable(caught.value) == comparable(await handled(one, send_message, send_request()))


# ------- what is known without a query


async def test_route_is_fresh_as_long_as_it_needs_no_query() -> None:
    """Like the handlers' answers, but a route that is old, missing or of a failover is not returned."""
    one = await connected()
    assert one.topics.fresh_master("orders", BROKER) == ADDRESS
    assert one.topics.fresh_master("orders", "unknown") is None
    assert one.topics.fresh_master("unknown", BROKER) is None
    one.now_ms += REFRESH_MS - 1
    assert one.topics.fresh_master("orders", BROKER) == ADDRESS
    one.now_ms += 1
    assert one.topics.fresh_master("orders", BROKER) is None

    one.brokers.masters["broker-b"] = ""
    await one.topics.refresh("orders")
    one.now_ms += MISSING_MS - 1
    assert one.topics.fresh_master("orders", BROKER) == ADDRESS
    assert one.topics.fresh_master("orders", "broker-b") is None
    one.now_ms += 1
    assert one.topics.fresh_master("orders", BROKER) is None


async def test_queue_is_fresh_only_if_it_can_be_written() -> None:
    """A topic without permission to write has no queue, and equal groups have equal queues."""
    one = await connected()
    first = one.topics.fresh_queue_for_send("orders", "group", 0.0)
    assert first is not None and first == one.topics.fresh_queue_for_send("orders", "group", 0.0)
    assert first == await one.topics.queue_for_send("orders", "group", 0.0)

    one.brokers.perm = 4
    await one.topics.refresh("orders")
    assert one.topics.fresh_queue_for_send("orders", "", 0.0) is None


def test_receipts_of_this_file_are_those_of_popped_messages() -> None:
    """The fake broker and the receipts that tests write agree."""
    assert f"{popped(5).receipt} {popped(5).message.physical_offset}" == receipt_of(5)
