"""Acks, new invisible times and returns of messages whose receipt is being replaced, or whose last attempt failed."""

from __future__ import annotations

import asyncio

import pytest
from google.protobuf.duration_pb2 import Duration
from proxy_world import NOW_MS, REFUSED, UNAVAILABLE, FakeBrokers, World, popped, receipt_of
from test_proxy_receiving import BILLING, ORDERS, ack, in_flight

from gantry_client.errors import RequestTimeout, Unavailable
from gantry_proxy.handlers.acknowledging import begin_ack, change_invisible_duration
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.renewal import RENEWED_MS, RETURN_MS
from gantry_wire.codes import ResponseCode
from gantry_wire.command import Command

FIRST, SECOND = receipt_of(1), receipt_of(1, pop_time_ms=NOW_MS + 1)
THIRD = receipt_of(1, pop_time_ms=NOW_MS + 2, invisible_ms=180_000)


class Renewal:
    """One renewal that waits for the answer of the broker until it is released."""

    def __init__(self, one: World) -> None:
        self._answered, self._brokers = asyncio.Event(), one.brokers
        self._sent = asyncio.Event()
        one.brokers.before_change = self._wait
        one.now_ms += RENEWED_MS - 5_000
        self._task = asyncio.ensure_future(one.renew())

    async def _wait(self) -> None:
        self._sent.set()
        await self._answered.wait()

    async def begin(self) -> None:
        await self._sent.wait()
        self._brokers.before_change = None

    async def end(self) -> None:
        self._answered.set()
        await self._task


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def ack_request(receipt: str = FIRST) -> pb.AckMessageRequest:
    entry = pb.AckMessageEntry(message_id="id", receipt_handle=receipt)
    return pb.AckMessageRequest(group=BILLING, topic=ORDERS, entries=[entry])


async def test_ack_waits_for_the_receipt_that_a_renewal_brings() -> None:
    """With the old one it would succeed without effect, and the message would be delivered again."""
    one = await in_flight()
    renewal = Renewal(one)
    await renewal.begin()
    acking = asyncio.ensure_future(ack(one, FIRST))
    await turns()
    assert one.brokers.acked == []
    await renewal.end()

    assert (await acking).status.code == pb.OK
    assert [receipt for _, _, receipt in one.brokers.acked] == [SECOND]
    assert one.renewals.message_count == 0


async def test_ack_without_a_task_is_left_to_the_handler_during_a_renewal() -> None:
    """It would be made with the receipt that is being replaced. The twin begins it when the renewal has ended."""
    one = await in_flight()
    one.brokers.is_connected = True
    renewal = Renewal(one)
    await one.topics.refresh("orders")
    await renewal.begin()
    assert not begin_ack(one.core, one.context(), ack_request(), lambda _: pytest.fail("finished"))
    await renewal.end()

    assert begin_ack(one.core, one.context(), ack_request(), lambda _: None)
    await turns()
    assert one.brokers.begun[0][1].ext["extraInfo"] == SECOND


async def test_new_invisible_time_waits_for_a_renewal() -> None:
    """A failed message of a push consumer is delivered again after the time that the consumer chose."""
    one = await in_flight()
    renewal = Renewal(one)
    await renewal.begin()
    call = pb.ChangeInvisibleDurationRequest(
        group=BILLING, topic=ORDERS, receipt_handle=FIRST, invisible_duration=Duration(seconds=5)
    )
    changing = asyncio.ensure_future(change_invisible_duration(one.core, one.context(), call))
    await turns()
    await renewal.end()

    assert (await changing).receipt_handle == receipt_of(1, pop_time_ms=NOW_MS + 2, invisible_ms=5_000)
    assert one.brokers.changed == [(FIRST, 60_000), (SECOND, 5_000)]


async def test_message_returns_with_the_receipt_that_a_renewal_brings() -> None:
    """Its client is gone while it is renewed."""
    one = await in_flight()
    renewal = Renewal(one)
    await renewal.begin()
    one.renewals.return_messages("client-1")
    await turns()
    await renewal.end()

    assert one.brokers.changed == [(FIRST, 60_000), (SECOND, RETURN_MS)]


async def test_acked_message_is_not_returned() -> None:
    """A client that is gone may have sent an ack just before."""
    one = await in_flight()
    one.brokers.is_connected = True
    await one.topics.get("orders")
    assert begin_ack(one.core, one.context(), ack_request(), lambda _: None)
    one.renewals.return_messages("client-1")
    await turns()
    one.brokers.begun[0][3](Command(code=ResponseCode.SUCCESS))
    await one.wait_for_workers()

    assert one.brokers.changed == []


async def test_cancelled_ack_ends_no_renewal() -> None:
    """The client that waits for a renewal may go away."""
    one = await in_flight()
    renewal = Renewal(one)
    await renewal.begin()
    acking = asyncio.ensure_future(ack(one, FIRST))
    await turns()
    acking.cancel()
    await asyncio.gather(acking, return_exceptions=True)
    await renewal.end()

    assert (await ack(one, FIRST)).status.code == pb.OK
    assert [receipt for _, _, receipt in one.brokers.acked] == [SECOND]


async def renewed(failure: Exception | None = None) -> World:
    """Return a proxy with a message that was renewed twice, so that its first receipt has expired."""
    one = await in_flight()
    for _ in range(2):
        one.now_ms += RENEWED_MS - 5_000
        await one.renew()
    one.brokers.failure = failure
    return one


@pytest.mark.parametrize("failure", [UNAVAILABLE, REFUSED, RequestTimeout("no reply")])
async def test_repeated_ack_uses_the_newest_receipt_after_a_failure(failure: Exception) -> None:
    """SDKs repeat a failed ack with their first receipt, which has expired if the message was renewed."""
    one = await renewed(failure)
    assert (await ack(one, FIRST)).status.code != pb.OK
    one.brokers.failure = None

    assert (await ack(one, FIRST)).status.code == pb.OK
    assert [receipt for _, _, receipt in one.brokers.acked] == [THIRD]
    assert one.renewals.message_count == 0


async def test_repeated_ack_uses_the_newest_receipt_after_a_failure_without_a_task() -> None:
    """The same for acks that are begun without a task."""
    one = await renewed()
    one.brokers.is_connected = True
    await one.topics.refresh("orders")
    for outcome in (Unavailable("lost"), Command(code=ResponseCode.SYSTEM_ERROR), Command(code=ResponseCode.SUCCESS)):
        assert begin_ack(one.core, one.context(), ack_request(), lambda _: None)
        await turns()
        one.brokers.begun[-1][3](outcome)

    assert {command.ext["extraInfo"] for _, command, _, _ in one.brokers.begun} == {THIRD}
    assert one.renewals.message_count == 0


async def test_message_of_a_failed_ack_is_not_renewed_again() -> None:
    """If the client does not repeat it, the message is delivered again when its time ends, and is forgotten here."""
    one = await renewed(UNAVAILABLE)
    await ack(one, FIRST)
    one.brokers.failure = None
    one.now_ms += 180_000 - 1
    await one.renew()
    kept = one.renewals.message_count
    one.now_ms += 1
    await one.renew()

    assert [receipt for receipt, _ in one.brokers.changed] == [FIRST, SECOND]
    assert (kept, one.renewals.message_count) == (1, 0)


async def test_message_is_renewed_until_its_client_settles_it() -> None:
    """The twin: without an ack it is renewed, and its receipt replaced again."""
    one = await renewed()
    one.now_ms += 175_000
    await one.renew()

    assert [receipt for receipt, _ in one.brokers.changed] == [FIRST, SECOND, THIRD]


async def test_messages_of_other_replicas_are_settled_with_the_receipt_of_the_client() -> None:
    """Nothing is known of them here."""
    one = World(FakeBrokers(popped=[popped(1)]))

    assert (await ack(one, FIRST)).status.code == pb.OK
    assert [receipt for _, _, receipt in one.brokers.acked] == [FIRST]
