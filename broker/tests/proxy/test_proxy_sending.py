"""Sends through the proxy: what a broker stores, which queue is chosen, and which messages are refused."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from proxy_world import NOW_MS, UNAVAILABLE, FakeBrokers, World, message, send_reply

from gantry_client.errors import NoRoute, Unavailable
from gantry_proxy.handlers.sending import recall_message, send_message
from gantry_proxy.handlers.transactions import end_transaction
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.settings import ProxyLimits
from gantry_proxy.statuses import ProxyError
from gantry_proxy.translation.outgoing import COMPRESSED, PREPARED
from gantry_proxy.translation.routes import bucket_of_group
from gantry_wire.batch import decode_batch
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.command import Command

SEND = RequestCode.SEND_MESSAGE_V2


def world(kind: str = "NORMAL", **answer: Any) -> World:
    brokers = FakeBrokers(kinds={"orders": kind})
    brokers.answers[SEND] = brokers.answers[RequestCode.SEND_BATCH_MESSAGE] = send_reply(**answer)
    return World(brokers)


async def send(one: World, *messages: pb.Message) -> pb.SendMessageResponse:
    return await send_message(one.core, one.context(), pb.SendMessageRequest(messages=messages))


async def refusal(one: World, *messages: pb.Message) -> pb.Code:
    with pytest.raises(ProxyError) as caught:
        await send(one, *messages)
    return caught.value.code


async def test_message_is_stored_with_the_properties_of_rocketmq() -> None:
    """Tag, keys, id, host and birth time become properties; the producer group is the topic."""
    one = world()
    sent = message(
        tag="red", keys=["a", "b"], trace_context="trace", born_host="host-1", born_timestamp=Timestamp(seconds=5)
    )
    sent.user_properties["price"] = "7"

    reply = await send(one, sent)

    assert one.brokers.sent_properties == {
        "price": "7", "TAGS": "red", "KEYS": "a b", "UNIQ_KEY": "01ABC", "WAIT": "true", "PGROUP": "orders",
        "TRACE_CONTEXT": "trace", "__BORNHOST": "host-1", "BORN_TIMESTAMP": "5000",
    }  # fmt: skip
    header: Any = one.brokers.requests[0].header
    assert (header.producer_group, header.topic, header.born_timestamp, header.sys_flag) == (
        "orders",
        "orders",
        5000,
        0,
    )
    assert reply.status.code == pb.OK
    assert [(one.message_id, one.offset, one.status.code) for one in reply.entries] == [("01ABC", 7, pb.OK)]


async def test_born_host_is_the_peer_if_the_client_names_none() -> None:
    """A broker sees only the proxy, so the host of the producer is a property."""
    one = world()

    await send(one, message())

    assert one.brokers.sent_properties["__BORNHOST"] == "192.0.2.7"


async def test_compressed_body_is_passed_on_with_its_flag() -> None:
    """The proxy neither compresses nor decompresses the bodies of producers."""
    one = world()

    await send(one, message(body=b"\x1f\x8bzip", body_encoding=pb.GZIP))

    header: Any = one.brokers.requests[0].header
    assert (header.sys_flag, one.brokers.requests[0].body) == (COMPRESSED, b"\x1f\x8bzip")


async def test_messages_of_a_group_go_to_one_queue() -> None:
    """The message group decides the queue by RocketMQ's jump hash."""
    one = world("FIFO")

    for _ in range(5):
        await send(one, message(message_group="customer-7", message_type=pb.FIFO))

    queues = {request.header.queue_id for request in one.brokers.requests}  # type: ignore[attr-defined]
    assert queues == {bucket_of_group("customer-7", 4)}


async def test_messages_without_a_group_use_all_queues() -> None:
    """Queues take turns, so that all consumers get messages."""
    one = world()

    for _ in range(8):
        await send(one, message())

    queues = [request.header.queue_id for request in one.brokers.requests]  # type: ignore[attr-defined]
    assert sorted(queues) == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("group", "buckets", "expected"),
    [
        ("", 5, 0),
        ("a", 1, 0),
        ("order-1", 8, 3),
        ("customer-7", 4, 2),
        ("customer-7", 16, 12),
        ("größe", 100, 73),
        ("order-99999", 1000, 873),
    ],
)
def test_group_hash_is_that_of_rocketmq(group: str, buckets: int, expected: int) -> None:
    """The values were made by RocketMQ's library: another queue would reorder the messages of running groups."""
    assert bucket_of_group(group, buckets) == expected


def test_group_hash_moves_few_groups_when_queues_are_added() -> None:
    """A jump hash moves about 1/n of the groups to the nth queue, and no group between the others."""
    moved = 0
    for number in range(1000):
        before, after = bucket_of_group(f"g-{number}", 9), bucket_of_group(f"g-{number}", 10)
        assert after in (before, 9)
        moved += before != after
    assert 50 < moved < 200


async def test_delivery_time_becomes_a_timer() -> None:
    """A message with a delivery time has the property of RocketMQ's timers."""
    one = world("DELAY", recallHandle="handle")
    at = Timestamp(seconds=NOW_MS // 1000 + 60)

    reply = await send(one, message(delivery_timestamp=at, message_type=pb.DELAY))

    assert one.brokers.sent_properties["TIMER_DELIVER_MS"] == str(NOW_MS + 60_000)
    assert reply.entries[0].recall_handle == "handle"


async def test_half_message_gets_a_transaction_id_that_any_replica_can_end() -> None:
    """The id names broker and offsets: another proxy sends the end to the same broker."""
    one, other = world("TRANSACTION"), world("TRANSACTION")
    sent = message(message_type=pb.TRANSACTION, orphaned_transaction_recovery_duration=Duration(seconds=30))

    reply = await send(one, sent)
    transaction_id = reply.entries[0].transaction_id
    end = pb.EndTransactionRequest(
        topic=pb.Resource(name="orders"), message_id="01ABC", transaction_id=transaction_id, resolution=pb.COMMIT
    )
    ended = await end_transaction(other.core, other.context(), end)

    assert one.brokers.sent_properties["TRAN_MSG"] == "true"
    assert one.brokers.sent_properties["CHECK_IMMUNITY_TIME_IN_SECONDS"] == "30"
    half: Any = one.brokers.requests[0].header
    assert half.sys_flag == PREPARED
    header: Any = other.brokers.requests[0].header
    assert (header.tran_state_table_offset, header.commit_log_offset, header.commit_or_rollback) == (7, 4711, 8)
    assert (header.producer_group, header.msg_id, header.bname) == ("orders", "01ABC", "broker-a")
    assert ended.status.code == pb.OK


@pytest.mark.parametrize("resolution", [pb.ROLLBACK, pb.COMMIT])
async def test_end_from_a_check_says_so(resolution: pb.TransactionResolution) -> None:
    """Brokers treat the answer to their question differently from a producer's own decision."""
    one = world("TRANSACTION")
    transaction_id = (await send(one, message(message_type=pb.TRANSACTION))).entries[0].transaction_id
    end = pb.EndTransactionRequest(
        topic=pb.Resource(name="orders"), transaction_id=transaction_id, resolution=resolution,
        source=pb.SOURCE_SERVER_CHECK,
    )  # fmt: skip

    await end_transaction(one.core, one.context(), end)

    header: Any = one.brokers.requests[-1].header
    assert header.from_transaction_check is True
    assert header.commit_or_rollback == (12 if resolution == pb.ROLLBACK else 8)


@pytest.mark.parametrize("text", ["", "x", "T1.", "T1.!!!", "T1.YQ", "T1." + "A" * 5000, "T1.YSBiIC0xIDU"])
async def test_forged_transaction_id_is_refused(text: str) -> None:
    """Nothing that this proxy did not issue reaches a broker."""
    one = world("TRANSACTION")
    end = pb.EndTransactionRequest(topic=pb.Resource(name="orders"), transaction_id=text, resolution=pb.COMMIT)

    with pytest.raises(ProxyError) as caught:
        await end_transaction(one.core, one.context(), end)

    assert caught.value.code == pb.INVALID_TRANSACTION_ID
    assert one.brokers.requests == []


async def test_batch_is_one_request_with_a_result_for_each_message() -> None:
    """Normal messages of one topic are sent together."""
    one = world()

    reply = await send(one, message(body=b"1", message_id="a"), message(body=b"2", message_id="b"))

    request = one.brokers.requests[0]
    assert request.code == RequestCode.SEND_BATCH_MESSAGE
    assert [entry.body for entry in decode_batch(request.body)] == [b"1", b"2"]
    assert [(entry.message_id, entry.offset) for entry in reply.entries] == [("a", 7), ("b", 8)]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (ResponseCode.FLUSH_DISK_TIMEOUT, pb.MASTER_PERSISTENCE_TIMEOUT),
        (ResponseCode.FLUSH_SLAVE_TIMEOUT, pb.SLAVE_PERSISTENCE_TIMEOUT),
        (ResponseCode.SLAVE_NOT_AVAILABLE, pb.HA_NOT_AVAILABLE),
    ],
)
async def test_message_without_the_promised_safety_is_no_success(code: ResponseCode, expected: pb.Code) -> None:
    """Stored, but not as safely as promised, is an error to the client."""
    reply = await send(world(code=code), message())

    assert (reply.status.code, reply.entries[0].status.code) == (expected, expected)
    assert reply.entries[0].message_id == ""


async def test_lost_connection_is_reported_and_the_route_refreshed() -> None:
    """The proxy does not repeat a send that may be stored; the next one may find another master."""
    one = world()
    one.brokers.answers[SEND] = UNAVAILABLE
    await one.topics.get("orders")
    queries = one.brokers.queries

    with pytest.raises(Unavailable):
        await send(one, message())

    assert len(one.brokers.requests) == 1
    assert one.brokers.queries == queries + 1


REFUSED_MESSAGES = [
    pytest.param(message(body=b""), pb.MESSAGE_BODY_EMPTY, id="no body"),
    pytest.param(message(body=bytes(4 * 1024 * 1024 + 1)), pb.MESSAGE_BODY_TOO_LARGE, id="large body"),
    pytest.param(message(message_id=" "), pb.ILLEGAL_MESSAGE_ID, id="no id"),
    pytest.param(message(topic="a b"), pb.ILLEGAL_TOPIC, id="topic with space"),
    pytest.param(message(topic="../x"), pb.ILLEGAL_TOPIC, id="topic as path"),
    pytest.param(message(topic="SCHEDULE_TOPIC_XXXX"), pb.ILLEGAL_TOPIC, id="system topic"),
    pytest.param(message(topic="rmq_sys_wheel_timer"), pb.ILLEGAL_TOPIC, id="internal topic"),
    pytest.param(message(topic="%RETRY%g"), pb.ILLEGAL_TOPIC, id="retry topic"),
    pytest.param(message(tag="a|b"), pb.ILLEGAL_MESSAGE_TAG, id="tag with bar"),
    pytest.param(message(tag=" "), pb.ILLEGAL_MESSAGE_TAG, id="blank tag"),
    pytest.param(message(tag="a\x01b"), pb.ILLEGAL_MESSAGE_TAG, id="tag with separator"),
    pytest.param(message(keys=["\x02"]), pb.ILLEGAL_MESSAGE_KEY, id="key with separator"),
    pytest.param(message(message_group="x" * 64), pb.ILLEGAL_MESSAGE_GROUP, id="long group"),
    pytest.param(
        message(delivery_timestamp=Timestamp(seconds=NOW_MS // 1000 + 41 * 86400)), pb.ILLEGAL_DELIVERY_TIME, id="far"
    ),
    pytest.param(message(delivery_timestamp=Timestamp(seconds=-5)), pb.ILLEGAL_DELIVERY_TIME, id="before 1970"),
    pytest.param(message(priority=10), pb.BAD_REQUEST, id="priority"),
    pytest.param(message(lite_topic="x"), pb.UNSUPPORTED, id="lite topic"),
    pytest.param(
        message(message_type=pb.TRANSACTION, orphaned_transaction_recovery_duration=Duration(seconds=4000)),
        pb.BAD_REQUEST, id="recovery",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("sent", "code"), REFUSED_MESSAGES)
async def test_invalid_message_is_refused_before_any_broker(sent: pb.Message, code: pb.Code) -> None:
    """Each fault has RocketMQ's code, and nothing is stored."""
    one = world("MIXED")

    assert await refusal(one, sent) == code
    assert one.brokers.requests == []


async def test_reserved_property_is_refused() -> None:
    """An application cannot set what brokers and clients set, such as the queue of a retry."""
    sent = message()
    sent.user_properties["REAL_TOPIC"] = "x"

    assert await refusal(world(), sent) == pb.ILLEGAL_MESSAGE_PROPERTY_KEY


async def test_too_many_properties_are_refused() -> None:
    """Number and size of properties have limits."""
    many, large = message(), message()
    for number in range(129):
        many.user_properties[f"p{number}"] = ""
    large.user_properties["p"] = "x" * 16 * 1024

    assert await refusal(world(), many) == pb.MESSAGE_PROPERTIES_TOO_LARGE
    assert await refusal(world(), large) == pb.MESSAGE_PROPERTIES_TOO_LARGE


async def test_messages_of_two_topics_are_refused() -> None:
    """One request sends to one topic."""
    one = world()
    one.brokers.kinds["bills"] = "NORMAL"

    assert await refusal(one, message(), message(topic="bills")) == pb.MESSAGE_CORRUPTED
    assert await refusal(one) == pb.MESSAGE_CORRUPTED


@pytest.mark.parametrize(
    ("kind", "sent", "fits"),
    [
        ("NORMAL", message(), True),
        ("NORMAL", message(message_group="g"), False),
        ("FIFO", message(message_group="g"), True),
        ("FIFO", message(), False),
        ("DELAY", message(delivery_timestamp=Timestamp(seconds=NOW_MS // 1000)), True),
        ("TRANSACTION", message(message_type=pb.TRANSACTION), True),
        ("NORMAL", message(message_type=pb.TRANSACTION), False),
        ("PRIORITY", message(priority=3), True),
        ("MIXED", message(message_group="g"), True),
    ],
)
async def test_kind_of_message_must_be_that_of_its_topic(kind: str, sent: pb.Message, fits: bool) -> None:
    """A topic accepts messages of its `message.type`; MIXED accepts all."""
    one = world(kind)

    if fits:
        assert (await send(one, sent)).status.code == pb.OK
    else:
        assert await refusal(one, sent) == pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
        relaxed = World(one.brokers, limits=ProxyLimits(checks_message_types=False))
        assert (await send(relaxed, sent)).status.code == pb.OK


async def test_unknown_topic_is_not_created() -> None:
    """A send through the proxy creates no topic, unlike one by remoting."""
    with pytest.raises(NoRoute):
        await send(world(), message(topic="unknown"))


async def test_recall_goes_to_the_broker_of_the_handle() -> None:
    """A recall handle names its broker."""
    one = world("DELAY")
    one.brokers.answers[RequestCode.RECALL_MESSAGE] = Command(code=0, ext={"msgId": "01ABC"})
    handle = "djEgb3JkZXJzIGJyb2tlci1hIDE4MDAwMDAwNjAwMDAgMDFBQkM="  # v1 orders broker-a 1800000060000 01ABC

    reply = await recall_message(
        one.core, one.context(), pb.RecallMessageRequest(topic=pb.Resource(name="orders"), recall_handle=handle)
    )

    header: Any = one.brokers.requests[0].header
    assert (header.recall_handle, header.topic, reply.message_id) == (handle, "orders", "01ABC")


@pytest.mark.parametrize("handle", ["", "!", "djE=", "djIgb3JkZXJzIGIgMSAx"])
async def test_forged_recall_handle_is_refused(handle: str) -> None:
    """A text that is no recall handle reaches no broker."""
    one = world("DELAY")
    request = pb.RecallMessageRequest(topic=pb.Resource(name="orders"), recall_handle=handle)

    with pytest.raises(ProxyError):
        await recall_message(one.core, one.context(), request)

    assert one.brokers.requests == []
