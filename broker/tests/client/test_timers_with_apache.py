"""RocketMQ's broker and Gantry's deliver each other's timers, and keep to each other's recalls, on one store."""

import asyncio
import time
from pathlib import Path

import pytest
from gantry_interop import java, peers
from gantry_interop.processes import Nursery

from gantry_client import (
    Admin,
    BrokerRefused,
    ClientSettings,
    Message,
    Producer,
    ProducerSettings,
    PullConsumer,
    ReceivedMessage,
)
from gantry_testing.client import wait_until
from gantry_testing.slowness import patience
from gantry_wire.recall_handle import RecallHandle

pytestmark = [pytest.mark.verify, pytest.mark.needs_java]

LONG_TIMEOUTS = ClientSettings(connect_timeout_ms=60_000, request_timeout_ms=60_000)
LONG_SEND_TIMEOUT = ProducerSettings(send_timeout_ms=60_000)
SETTINGS = {"timerWheelEnable": "true", "recallMessageEnable": "true"}
STARTS = 4
"""The messages are due after the time of so many starts of RocketMQ, measured from the first send. The other broker
must run by then: RocketMQ does not keep to a recall whose message is due when it starts."""
DUE_S_MIN = 20.0
"""The messages are due no sooner, however fast a start of RocketMQ was."""
DELIVERY_S = patience(120.0)
"""How long a due message is waited for."""


@pytest.fixture(scope="module")
def due_s(tmp_path_factory: pytest.TempPathFactory) -> float:
    """Return how long after their first send the messages are due, by a start of RocketMQ on this machine."""
    java.build()
    folder = tmp_path_factory.mktemp("measured")
    with Nursery(folder / "logs") as nursery:
        began = time.monotonic()
        peer = peers.start("apache", nursery, peers.Layout(folder / "peer", settings=SETTINGS))
        took_s = time.monotonic() - began
        peer.stop()
    return max(DUE_S_MIN, STARTS * took_s)


async def send_timers(address: str, due_ms: int) -> dict[bytes, str]:
    """Send six messages that are due at the same time by each property, recall two; return those that are expected."""
    expected: dict[bytes, str] = {}
    async with (
        Admin(address, client_settings=LONG_TIMEOUTS) as admin,
        Producer(address, "timers", settings=LONG_SEND_TIMEOUT, client_settings=LONG_TIMEOUTS) as producer,
    ):
        await admin.topics.create("timers", queues=1)
        for number in range(6):
            rest_ms = due_ms - time.time_ns() // 1_000_000
            delay_ms, time_ms = (0, due_ms + number) if number % 2 else (rest_ms + number, 0)
            receipt = await producer.send(Message("timers", b"%d" % number, delay_ms=delay_ms, deliver_at_ms=time_ms))
            assert receipt.recall_handle
            if number in (1, 4):
                await producer.recall(receipt.recall_handle)
            else:
                expected[b"%d" % number] = receipt.message_id
    return expected


async def read_timers(address: str, count: int, due_s: float) -> list[ReceivedMessage]:
    """Return the delivered messages, once there are so many, and some seconds later."""
    async with PullConsumer(address, "timers-reader", client_settings=LONG_TIMEOUTS) as consumer:
        [queue] = await consumer.queues("timers")

        async def are_delivered() -> bool:
            return len((await consumer.fetch(queue, 0)).messages) >= count

        await wait_until(are_delivered, timeout_s=due_s + DELIVERY_S, what="the delivery of the timers")
        await asyncio.sleep(3)  # nothing more may follow
        return list((await consumer.fetch(queue, 0)).messages)


@pytest.mark.parametrize(("first", "second"), [("gantry", "apache"), ("apache", "gantry"), ("apache", "apache")])
def test_timers_are_delivered_by_the_other_broker(tmp_path: Path, due_s: float, first: str, second: str) -> None:
    """Pending messages are delivered once by the second broker, not before they are due, and recalled ones are not.

    With RocketMQ on both sides the rules of this test are checked: RocketMQ delivers up to two seconds late.
    """
    layout = peers.Layout(tmp_path / "peer", settings=SETTINGS)
    with Nursery(tmp_path / "logs") as nursery:
        peer = peers.start(first, nursery, layout)
        due_ms = time.time_ns() // 1_000_000 + int(due_s * 1000)
        expected = asyncio.run(send_timers(peer.address, due_ms))
        if first == "apache":
            time.sleep(3)  # RocketMQ puts messages into its wheel, and saves its progress, once a second
        peer.stop()
        peer = peers.start(second, nursery, layout)
        assert time.time_ns() // 1_000_000 < due_ms, "the machine is too slow for this test"
        found = asyncio.run(read_timers(peer.address, len(expected), due_s))
        peer.stop()

    assert {one.body: one.message_id for one in found} == expected
    assert len(found) == len(expected)
    assert all(one.store_timestamp_ms >= due_ms for one in found)


def test_rocketmq_answers_recalls_as_gantry_does(tmp_path: Path) -> None:
    """A handle of another topic and an invalid one are refused with the same codes by both brokers."""
    java.build()
    codes: dict[str, list[int]] = {}
    for kind in ("apache", "gantry"):
        with Nursery(tmp_path / kind / "logs") as nursery:
            peer = peers.start(kind, nursery, peers.Layout(tmp_path / kind / "peer", settings=SETTINGS))
            codes[kind] = asyncio.run(recall_codes(peer.address))
            peer.stop()

    assert codes["gantry"] == codes["apache"]


async def recall_codes(address: str) -> list[int]:
    """Return the codes of recalls that are refused."""
    codes = []
    async with (
        Admin(address, client_settings=LONG_TIMEOUTS) as admin,
        Producer(address, "timers", settings=LONG_SEND_TIMEOUT, client_settings=LONG_TIMEOUTS) as producer,
    ):
        await admin.topics.create("timers", queues=1)
        receipt = await producer.send(Message("timers", b"x", delay_ms=3_600_000))
        handle = RecallHandle.decode(receipt.recall_handle or "")
        for change in (
            handle._replace(broker_name="broker-a", deliver_ms="1"),
            handle._replace(deliver_ms="soon"),
            handle._replace(deliver_ms=str(1 << 60)),
        ):
            try:
                await producer.recall(change.encode())
                codes.append(0)
            except BrokerRefused as error:
                codes.append(error.code)
    return codes


async def send_and_await(address: str, count: int) -> None:
    """Send timers that are due at once, and wait until they are delivered."""
    async with (
        Admin(address, client_settings=LONG_TIMEOUTS) as admin,
        Producer(address, "timers", settings=LONG_SEND_TIMEOUT, client_settings=LONG_TIMEOUTS) as producer,
    ):
        await admin.topics.create("timers", queues=1)
        for number in range(count):
            await producer.send(Message("timers", b"past %d" % number, delay_ms=500))
    assert len(await read_timers(address, count, 0.5)) == count


def test_rocketmq_repeats_nothing_that_gantry_has_delivered(tmp_path: Path, due_s: float) -> None:
    """After a clean stop RocketMQ reads the timers from the first pending one on, as Gantry's `timercheck` says."""
    layout = peers.Layout(tmp_path / "peer", settings=SETTINGS)
    with Nursery(tmp_path / "logs") as nursery:
        peer = peers.start("gantry", nursery, layout)
        asyncio.run(send_and_await(peer.address, 3))
        due_ms = time.time_ns() // 1_000_000 + int(due_s * 1000)
        expected = asyncio.run(send_timers(peer.address, due_ms))
        peer.stop()
        peer = peers.start("apache", nursery, layout)
        assert time.time_ns() // 1_000_000 < due_ms, "the machine is too slow for this test"
        found = asyncio.run(read_timers(peer.address, 3 + len(expected), due_s))
        peer.stop()

    assert [one.body for one in found][:3] == [b"past 0", b"past 1", b"past 2"]
    assert {one.body: one.message_id for one in found[3:]} == expected
    assert len(found) == 3 + len(expected)
