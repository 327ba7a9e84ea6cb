"""Receives, acks and renewals through the proxy: what clients get, and what happens to every other message."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from proxy_world import ADDRESS, BROKER, NOW_MS, REFUSED, UNAVAILABLE, FakeBrokers, World, popped, receipt_of

from gantry_proxy.handlers.acknowledging import ack_message, change_invisible_duration
from gantry_proxy.handlers.receiving import receive_message
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.renewal import RENEWED_MS, RETURN_MS, WORK_MS_MAX
from gantry_proxy.settings import ProxyLimits
from gantry_proxy.statuses import ProxyError
from gantry_wire.codes import RequestCode
from gantry_wire.commands.admin import SubscriptionGroupConfig

ORDERS, BILLING = pb.Resource(name="orders"), pb.Resource(name="billing")


def request(**fields: Any) -> pb.ReceiveMessageRequest:
    queue = pb.MessageQueue(topic=ORDERS, id=-1, broker=pb.Broker(name=BROKER))
    defaults: dict[str, Any] = {"group": BILLING, "message_queue": queue, "batch_size": 16, "auto_renew": True}
    return pb.ReceiveMessageRequest(**{**defaults, **fields})


async def receive(one: World, remaining_ms: int = 30_000, **fields: Any) -> list[pb.Message]:
    replies = receive_message(one.core, one.context(remaining_ms=remaining_ms), request(**fields))
    found = [reply async for reply in replies]
    assert found[0].status.code == pb.OK
    return [reply.message for reply in found[1:]]


async def refusal(one: World, remaining_ms: int = 30_000, **fields: Any) -> pb.Code:
    with pytest.raises(ProxyError) as caught:
        await receive(one, remaining_ms, **fields)
    return caught.value.code


def world(**group: Any) -> World:
    one = World(FakeBrokers(groups={"billing": SubscriptionGroupConfig(group_name="billing", **group)}))
    one.join_consumer()
    return one


async def test_received_message_has_what_the_producer_sent_and_a_receipt() -> None:
    """System properties are fields; those of the application remain, and the receipt names the place in the log."""
    one = world()
    one.brokers.popped = [popped(3, reconsume_times=2, TAGS="red", KEYS="a b", price="7", PGROUP="orders", CLUSTER="c")]

    [message] = await receive(one)

    system = message.system_properties
    assert dict(message.user_properties) == {"price": "7"}
    assert (system.message_id, system.tag, list(system.keys)) == ("id-3", "red", ["a", "b"])
    assert (system.receipt_handle, system.delivery_attempt) == (receipt_of(3), 3)
    assert (system.queue_id, system.queue_offset, message.body) == (1, 3, b"body 3")
    assert system.body_encoding == pb.IDENTITY


async def test_pop_takes_the_settings_of_the_group() -> None:
    """A group in order pops in order, and a push consumer gets the proxy's invisible time."""
    one = world(consume_message_orderly=True)
    one.brokers.popped = [popped()]

    await receive(one, attempt_id="attempt-1", batch_size=500)

    pop = one.brokers.pops[0]
    assert (pop.is_order, pop.attempt_id, pop.messages_max, pop.queue_id) == (True, "attempt-1", 32, -1)
    assert (pop.invisible_ms, pop.poll_ms, pop.is_from_newest) == (RENEWED_MS, 20_000, True)


async def test_simple_consumer_chooses_the_invisible_time() -> None:
    """Without renewal the time of the call counts, and nothing is renewed."""
    one = world()
    one.brokers.popped = [popped()]

    await receive(one, auto_renew=False, invisible_duration=Duration(seconds=30))

    assert one.brokers.pops[0].invisible_ms == 30_000
    assert one.renewals.message_count == 0


@pytest.mark.parametrize("seconds", [0, 1, -5, 13 * 3600, 10**11])
async def test_impossible_invisible_time_is_refused(seconds: int) -> None:
    """Zero, negative times and years reach no broker."""
    one = world()

    code = await refusal(one, auto_renew=False, invisible_duration=Duration(seconds=seconds))

    assert code == pb.ILLEGAL_INVISIBLE_TIME
    assert one.brokers.pops == []


@pytest.mark.parametrize(
    ("remaining_ms", "wanted_s", "poll_ms"),
    [(30_000, None, 20_000), (30_000, 15, 15_000), (30_000, 1, 5_000), (12_000, 20, 11_500), (30_000, 10**9, 20_000)],
)
async def test_poll_ends_before_the_deadline_of_the_client(
    remaining_ms: int, wanted_s: int | None, poll_ms: int
) -> None:
    """A poll takes the time that the client wants, within the limits, and leaves time for the reply."""
    one = world()
    one.brokers.popped = [popped()]
    wanted = {} if wanted_s is None else {"long_polling_timeout": Duration(seconds=wanted_s)}

    await receive(one, remaining_ms, **wanted)

    assert one.brokers.pops[0].poll_ms == poll_ms


async def test_call_without_time_for_a_poll_is_refused() -> None:
    """A client that waits less than the shortest poll would lose messages."""
    assert await refusal(world(), 3_000) == pb.ILLEGAL_POLLING_TIME


async def test_empty_poll_is_a_status() -> None:
    """No message is not an error of the proxy, and SDKs poll again."""
    assert await refusal(world()) == pb.MESSAGE_NOT_FOUND


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group": pb.Resource(name="a b")}, pb.ILLEGAL_CONSUMER_GROUP),
        ({"group": pb.Resource(name="CID_RMQ_SYS_TRANS")}, pb.ILLEGAL_CONSUMER_GROUP),
        ({"batch_size": 0}, pb.BAD_REQUEST),
        ({"attempt_id": "x" * 300}, pb.BAD_REQUEST),
        ({"filter_expression": pb.FilterExpression(type=pb.SQL, expression="price >")}, pb.ILLEGAL_FILTER_EXPRESSION),
    ],
)
async def test_invalid_receive_is_refused_before_any_broker(fields: dict[str, Any], code: pb.Code) -> None:
    """Names, sizes and filters are checked first."""
    one = world()

    assert await refusal(one, **fields) == code
    assert one.brokers.pops == []


async def test_colliding_tag_is_acknowledged_and_not_delivered() -> None:
    """Brokers compare hashes of tags; the proxy compares tags."""
    one = world()
    one.brokers.popped = [popped(1, TAGS="red"), popped(2, TAGS="blue")]

    [message] = await receive(one, filter_expression=pb.FilterExpression(expression="red"))

    assert message.system_properties.message_id == "id-1"
    assert one.brokers.acked == [("orders", "billing", receipt_of(2))]


async def test_message_delivered_too_often_goes_to_the_dead_letters() -> None:
    """The proxy moves it, as a consumer would, and then acknowledges it."""
    one = world(retry_max_times=3)
    one.brokers.popped = [popped(1, reconsume_times=4), popped(2, reconsume_times=3)]

    [message] = await receive(one)

    header: Any = one.brokers.requests[0].header
    assert message.system_properties.message_id == "id-2"
    assert (one.brokers.requests[0].code, header.offset, header.delay_level) == (
        RequestCode.CONSUMER_SEND_MSG_BACK, 1001, -1,
    )  # fmt: skip
    assert one.brokers.acked == [("orders", "billing", receipt_of(1))]


async def test_unread_messages_return_to_the_group() -> None:
    """A client that stops reading loses nothing: what it did not read is delivered again soon."""
    one = world()
    one.brokers.popped = [popped(1), popped(2), popped(3)]
    replies = receive_message(one.core, one.context(), request())

    assert (await anext(replies)).status.code == pb.OK
    assert (await anext(replies)).message.system_properties.message_id == "id-1"
    await anext(replies)
    await replies.aclose()  # type: ignore[attr-defined]

    assert one.brokers.changed == [(receipt_of(2), RETURN_MS), (receipt_of(3), RETURN_MS)]
    assert one.renewals.message_count == 1


async def test_messages_for_a_client_that_went_away_return_to_the_group() -> None:
    """A client may vanish during a long poll; the broker answers nevertheless."""
    one = world()
    one.brokers.popped = [popped(1)]
    waiting, answered = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        waiting.set()
        await answered.wait()

    one.brokers.before_pop = hold
    call = asyncio.ensure_future(receive(one))
    await waiting.wait()
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)

    answered.set()
    for _ in range(10):
        await asyncio.sleep(0)

    assert one.brokers.changed == [(receipt_of(1), RETURN_MS)]


async def test_waiting_receives_of_a_client_are_limited() -> None:
    """Receives that a client gave up still wait at the broker, so they count."""
    one = World(FakeBrokers(), limits=ProxyLimits(calls_per_client_max=2))
    one.join_consumer()
    one.clients.find("client-1").pops = 2  # type: ignore[union-attr]

    assert await refusal(one) == pb.TOO_MANY_REQUESTS


# ------- acks


async def ack(one: World, *receipts: str, group: str = "billing") -> pb.AckMessageResponse:
    entries = [pb.AckMessageEntry(message_id="id", receipt_handle=receipt) for receipt in receipts]
    call = pb.AckMessageRequest(group=pb.Resource(name=group), topic=ORDERS, entries=entries)
    return await ack_message(one.core, one.context(), call)


async def test_ack_of_another_replica_reaches_the_broker() -> None:
    """A receipt contains all that an ack needs: a proxy that never saw the message can send it."""
    one = World(FakeBrokers())

    reply = await ack(one, receipt_of(1), receipt_of(2))

    assert (reply.status.code, [entry.status.code for entry in reply.entries]) == (pb.OK, [pb.OK, pb.OK])
    assert one.brokers.acked == [("orders", "billing", receipt_of(1)), ("orders", "billing", receipt_of(2))]


FORGED = [
    "", "x", "1 2 3", "a b c d e f g h", f"1 {NOW_MS} 60000 3 0 {BROKER} 1", f"1 {NOW_MS} 60000 3 7 {BROKER} 1 1 5",
    f"-1 {NOW_MS} 60000 3 0 {BROKER} 1 1 5", f"1 {NOW_MS} 60000 3 0 {BROKER} 1 1 5 9", f"{receipt_of(1)}x",
    f"1 {10**30} 60000 3 0 {BROKER} 1 1 5", receipt_of(1)[:20], "x" * 5000,
    receipt_of(1, broker="unknown"), receipt_of(1, pop_time_ms=NOW_MS - 60_000),
]  # fmt: skip


@pytest.mark.parametrize("receipt", FORGED)
async def test_forged_truncated_or_expired_receipt_reaches_no_broker(receipt: str) -> None:
    """Each has its own refusal; other entries of the call are not affected."""
    one = World(FakeBrokers())

    reply = await ack(one, receipt, receipt_of(9))

    assert [entry.status.code for entry in reply.entries] == [pb.INVALID_RECEIPT_HANDLE, pb.OK]
    assert reply.status.code == pb.MULTIPLE_RESULTS
    assert one.brokers.acked == [("orders", "billing", receipt_of(9))]


async def test_failed_ack_is_reported_for_its_entry() -> None:
    """A refusal of the broker is the status of the entry and of the call."""
    one = World(FakeBrokers())
    await one.topics.get("orders")
    one.brokers.failure = REFUSED

    reply = await ack(one, receipt_of(1))

    assert (reply.status.code, reply.entries[0].status.code) == (pb.INTERNAL_SERVER_ERROR, pb.INTERNAL_SERVER_ERROR)


@pytest.mark.parametrize("is_suspended", [True, False])
async def test_suspended_delivery_is_forwarded(is_suspended: bool) -> None:
    """The broker counts no failure for it."""
    one = World(FakeBrokers())
    call = pb.ChangeInvisibleDurationRequest(
        group=BILLING, topic=ORDERS, receipt_handle=receipt_of(1), invisible_duration=Duration(seconds=5),
        suspend=is_suspended,
    )  # fmt: skip

    await change_invisible_duration(one.core, one.context(), call)

    assert one.brokers.suspended == ([receipt_of(1)] if is_suspended else [])


@pytest.mark.parametrize("seconds", [-1, 13 * 3600])
async def test_invisible_time_is_changed_within_limits(seconds: int) -> None:
    """A change returns a new receipt; an impossible time is refused."""
    one = World(FakeBrokers())
    call = pb.ChangeInvisibleDurationRequest(
        group=BILLING, topic=ORDERS, receipt_handle=receipt_of(1), invisible_duration=Duration(seconds=5)
    )

    reply = await change_invisible_duration(one.core, one.context(), call)
    call.invisible_duration.seconds = seconds
    with pytest.raises(ProxyError) as caught:
        await change_invisible_duration(one.core, one.context(), call)

    assert one.brokers.changed == [(receipt_of(1), 5_000)]
    assert reply.receipt_handle == receipt_of(1, pop_time_ms=NOW_MS + 1, invisible_ms=5_000)
    assert caught.value.code == pb.ILLEGAL_INVISIBLE_TIME


# ------- renewals


async def in_flight() -> World:
    one = world()
    one.brokers.popped = [popped(1)]
    await receive(one)
    return one


async def test_message_in_flight_is_renewed_before_its_time_ends() -> None:
    """The first renewal comes when ten seconds are left, and each later one lasts longer."""
    one = await in_flight()

    one.now_ms += RENEWED_MS - 10_001
    await one.renew()
    assert one.brokers.changed == []
    one.now_ms += 1
    await one.renew()
    one.now_ms += 60_000
    await one.renew()

    assert [invisible_ms for _, invisible_ms in one.brokers.changed] == [60_000, 180_000]
    assert one.renewals.renewed == 2


async def test_ack_after_a_renewal_uses_the_newest_receipt() -> None:
    """The client keeps the first receipt; the proxy knows the newest one, and stops renewing."""
    one = await in_flight()
    one.now_ms += RENEWED_MS - 5_000
    await one.renew()

    reply = await ack(one, receipt_of(1))

    assert reply.status.code == pb.OK
    assert one.brokers.acked == [("orders", "billing", receipt_of(1, pop_time_ms=NOW_MS + 1))]
    assert one.renewals.message_count == 0


async def test_message_of_a_stuck_consumer_returns_to_the_group() -> None:
    """After the longest time of work, the message gets the delay of the group's retry policy."""
    one = await in_flight()
    one.now_ms += WORK_MS_MAX
    await one.renew()

    assert one.brokers.changed == [(receipt_of(1), 10_000)]
    assert one.renewals.message_count == 0


async def test_messages_of_a_client_that_is_gone_return_to_the_group() -> None:
    """They are delivered to another client at once."""
    one = await in_flight()

    one.renewals.return_messages("client-1")
    await one.wait_for_workers()

    assert one.brokers.changed == [(receipt_of(1), RETURN_MS)]
    assert one.renewals.message_count == 0


async def test_failed_renewal_is_repeated_and_a_refused_one_is_not() -> None:
    """A broker may come back before the time of the message ends; a receipt that it does not know will not."""
    lost, refused = await in_flight(), await in_flight()
    lost.now_ms += RENEWED_MS - 5_000
    refused.now_ms += RENEWED_MS - 5_000
    lost.brokers.failure, refused.brokers.failure = UNAVAILABLE, REFUSED

    await lost.renew()
    await refused.renew()

    assert (lost.renewals.message_count, refused.renewals.message_count) == (1, 0)
    for _ in range(4):
        await lost.renew()
    lost.now_ms += 4_999
    await lost.renew()
    assert lost.renewals.message_count == 1
    lost.now_ms += 1
    await lost.renew()
    assert lost.renewals.message_count == 0


async def test_messages_beyond_the_limit_are_not_renewed() -> None:
    """The memory for one client is bounded; such messages return when their time ends."""
    one = World(FakeBrokers(), limits=ProxyLimits(in_flight_messages_per_client_max=1))
    one.join_consumer()
    one.brokers.popped = [popped(1), popped(2)]

    assert len(await receive(one)) == 2
    assert one.renewals.message_count == 1
    assert one.brokers.masters == {BROKER: ADDRESS}
