"""Calls of consumers that keep offsets: pulls, commits, committed offsets, and offsets by place or time."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from proxy_world import ADDRESS, BROKER, NOW_MS, UNAVAILABLE, FakeBrokers, World

from gantry_client.errors import BadReply, BrokerRefused, NoRoute, Unavailable
from gantry_proxy.handlers.offsets import get_offset, pull_message, query_offset, update_offset
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.statuses import ProxyError
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.command import Command
from gantry_wire.message import StoredMessage, encode_host, encode_record
from gantry_wire.properties import encode_properties

GROUP = pb.Resource(name="billing")


def queue(queue_id: int = 3, *, topic: str = "orders", broker: str = BROKER) -> pb.MessageQueue:
    return pb.MessageQueue(topic=pb.Resource(name=topic), id=queue_id, broker=pb.Broker(name=broker))


def record(offset: int, tag: str = "paid") -> bytes:
    return encode_record(
        StoredMessage(
            topic="orders", queue_id=3, body=b"body %d" % offset, physical_offset=1000 + offset, queue_offset=offset,
            born_host=encode_host("10.0.0.7", 1), store_host=encode_host("10.0.0.1", 10911),
            born_timestamp_ms=NOW_MS, store_timestamp_ms=NOW_MS,
            properties_bytes=encode_properties({"UNIQ_KEY": f"id-{offset}", "TAGS": tag}),
        )
    )  # fmt: skip


def pulled(code: int, *, next_offset: int = 9, body: bytes = b"") -> Command:
    ext = {"suggestWhichBrokerId": "0", "nextBeginOffset": str(next_offset), "minOffset": "2", "maxOffset": "9"}
    return Command(code=code, ext=ext, body=body)


def world(code: RequestCode, answer: Command | Exception) -> World:
    return World(FakeBrokers(answers={code: answer}))


async def pull(one: World, offset: int = 7, **more: Any) -> list[pb.PullMessageResponse]:
    request = pb.PullMessageRequest(
        **{"group": GROUP, "message_queue": queue(), "offset": offset, "batch_size": 100, **more}
    )
    return [reply async for reply in pull_message(one.core, one.context(), request)]


# ------- pulls


async def test_pull_returns_messages_and_the_next_offset() -> None:
    """Status, messages, offset: the next pull begins after all messages, also after those that do not match."""
    body = record(7) + record(8, "cancelled")
    one = world(RequestCode.PULL_MESSAGE, pulled(ResponseCode.SUCCESS, body=body))

    status, message, end = await pull(one, filter_expression=pb.FilterExpression(type=pb.TAG, expression="paid"))

    assert status.status.code == pb.OK
    assert (message.message.body, message.message.system_properties.queue_offset) == (b"body 7", 7)
    assert message.message.system_properties.receipt_handle == "", "a pulled message is not acknowledged"
    assert end.next_offset == 9
    [request] = one.brokers.requests
    header: Any = request.header
    assert (request.address, header.queue_id, header.queue_offset) == (ADDRESS, 3, 7)
    assert (header.max_msg_nums, header.subscription, header.commit_offset) == (32, "paid", 0)


@pytest.mark.parametrize("code", [ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY])
async def test_pull_without_messages_returns_the_next_offset(code: ResponseCode) -> None:
    """Nothing new, or nothing that matches: the consumer continues at the offset that the broker names."""
    replies = await pull(world(RequestCode.PULL_MESSAGE, pulled(code, next_offset=8)))

    assert [reply.WhichOneof("content") for reply in replies] == ["status", "next_offset"]
    assert (replies[0].status.code, replies[1].next_offset) == (pb.OK, 8)


async def test_pull_outside_of_the_queue_names_its_range() -> None:
    """The offset was deleted, or lies beyond the end: the text has the offset at which to continue."""
    with pytest.raises(ProxyError, match="2 to 9; continue at 2") as caught:
        await pull(world(RequestCode.PULL_MESSAGE, pulled(ResponseCode.PULL_OFFSET_MOVED, next_offset=2)), offset=1)

    assert caught.value.code == pb.ILLEGAL_OFFSET


@pytest.mark.parametrize(
    ("wanted_ms", "remaining_ms", "suspended_ms"),
    [(5_000, 30_000, 5_000), (60_000, 30_000, 20_000), (5_000, 2_000, 1_500)],
)
async def test_broker_holds_a_pull_for_the_time_that_the_client_waits(
    wanted_ms: int, remaining_ms: int, suspended_ms: int
) -> None:
    """At most until shortly before the deadline of the call, so that the reply arrives in time."""
    one = world(RequestCode.PULL_MESSAGE, pulled(ResponseCode.PULL_NOT_FOUND))
    request = pb.PullMessageRequest(
        group=GROUP, message_queue=queue(), batch_size=1,
        long_polling_timeout=Duration(seconds=wanted_ms // 1000),
    )  # fmt: skip

    async for _ in pull_message(one.core, one.context(remaining_ms=remaining_ms), request):
        pass

    header: Any = one.brokers.requests[0].header
    assert header.suspend_timeout_millis == suspended_ms


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"offset": -1}, pb.ILLEGAL_OFFSET),
        ({"batch_size": 0}, pb.BAD_REQUEST),
        ({"message_queue": queue(-1)}, pb.BAD_REQUEST),
        ({"message_queue": queue(topic="a b")}, pb.ILLEGAL_TOPIC),
        ({"group": pb.Resource(name="")}, pb.ILLEGAL_CONSUMER_GROUP),
        ({"filter_expression": pb.FilterExpression(type=pb.SQL, expression="a >")}, pb.ILLEGAL_FILTER_EXPRESSION),
    ],
)
async def test_invalid_pull_reaches_no_broker(more: dict[str, Any], code: pb.Code) -> None:
    """Each refusal has its code."""
    one = World()

    with pytest.raises(ProxyError) as caught:
        await pull(one, **more)

    assert (caught.value.code, one.brokers.requests) == (code, [])


async def test_pull_with_damaged_messages_is_an_error() -> None:
    """Half of a record is not passed on as the end of the queue."""
    with pytest.raises(BadReply, match="invalid messages"):
        await pull(world(RequestCode.PULL_MESSAGE, pulled(ResponseCode.SUCCESS, body=record(7)[:-1])))


async def test_pull_from_an_unknown_broker_is_refused() -> None:
    """A queue is named by its broker, as routes name it."""
    with pytest.raises(NoRoute, match="broker-z"):
        await pull(World(), message_queue=queue(broker="broker-z"))


# ------- offsets


async def test_offset_is_committed_at_the_broker_of_the_queue() -> None:
    """The reply comes after the broker has accepted it."""
    one = World()

    request = pb.UpdateOffsetRequest(group=GROUP, message_queue=queue(), offset=12)
    reply = await update_offset(one.core, one.context(), request)

    [sent] = one.brokers.requests
    header: Any = sent.header
    assert (reply.status.code, sent.code, sent.address) == (pb.OK, RequestCode.UPDATE_CONSUMER_OFFSET, ADDRESS)
    assert (header.consumer_group, header.topic, header.queue_id, header.commit_offset) == ("billing", "orders", 3, 12)


async def test_refused_commit_is_no_success() -> None:
    """The broker may be fenced, or it may not know the group."""
    one = world(RequestCode.UPDATE_CONSUMER_OFFSET, Command(code=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST))

    with pytest.raises(BrokerRefused):
        await update_offset(one.core, one.context(), pb.UpdateOffsetRequest(group=GROUP, message_queue=queue()))
    with pytest.raises(ProxyError, match="expected 0 or more"):
        request = pb.UpdateOffsetRequest(group=GROUP, message_queue=queue(), offset=-1)
        await update_offset(one.core, one.context(), request)


async def test_committed_offset_is_returned() -> None:
    """A group without one gets OFFSET_NOT_FOUND, so that the client decides where it begins."""
    found = world(RequestCode.QUERY_CONSUMER_OFFSET, Command(code=ResponseCode.SUCCESS, ext={"offset": "12"}))
    missing = world(RequestCode.QUERY_CONSUMER_OFFSET, Command(code=ResponseCode.QUERY_NOT_FOUND))
    request = pb.GetOffsetRequest(group=GROUP, message_queue=queue())

    reply = await get_offset(found.core, found.context(), request)
    with pytest.raises(ProxyError) as caught:
        await get_offset(missing.core, missing.context(), request)

    assert (reply.status.code, reply.offset) == (pb.OK, 12)
    assert caught.value.code == pb.OFFSET_NOT_FOUND


@pytest.mark.parametrize(
    ("policy", "code"),
    [
        (pb.BEGINNING, RequestCode.GET_MIN_OFFSET),
        (pb.END, RequestCode.GET_MAX_OFFSET),
        (pb.TIMESTAMP, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP),
    ],
)
async def test_offset_of_a_place_is_asked_from_the_broker(policy: Any, code: RequestCode) -> None:
    """The first offset, the end of the queue, or the first one at a time."""
    one = world(code, Command(code=ResponseCode.SUCCESS, ext={"offset": "5"}))
    request = pb.QueryOffsetRequest(
        message_queue=queue(), query_offset_policy=policy, timestamp=Timestamp(seconds=1_700_000_000)
    )

    reply = await query_offset(one.core, one.context(), request)

    assert (reply.offset, one.brokers.requests[0].code) == (5, code)
    header: Any = one.brokers.requests[0].header
    assert code != RequestCode.SEARCH_OFFSET_BY_TIMESTAMP or header.timestamp == 1_700_000_000_000


async def test_offset_by_time_needs_a_time() -> None:
    """Without one, the beginning of 1970 would be meant."""
    one = World()
    with pytest.raises(ProxyError, match="needs a timestamp"):
        request = pb.QueryOffsetRequest(message_queue=queue(), query_offset_policy=pb.TIMESTAMP)
        await query_offset(one.core, one.context(), request)


async def test_unreachable_broker_is_reported() -> None:
    """An unreachable broker is an error, and never the offset 0."""
    one = World()
    await one.topics.get("orders")
    one.brokers.failure = UNAVAILABLE

    with pytest.raises(Unavailable):
        await get_offset(one.core, one.context(), pb.GetOffsetRequest(group=GROUP, message_queue=queue()))
