"""Timer messages of any delay are never early and never lost, and a recalled one is never delivered."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gantry_broker.app import Broker
from gantry_testing.fake_clock import FakeClock
from gantry_testing.local import TOPIC, Dialogue, dialogue, properties_text, running_broker, wait_until
from gantry_wire import Command, RequestCode, ResponseCode
from gantry_wire.message import StoredMessage

TIMERS = "rmq_sys_wheel_timer"
DAY_MS = 86_400_000


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def broker(tmp_path: Path, clock: FakeClock) -> AsyncIterator[Broker]:
    async with running_broker(tmp_path, clock=clock) as one:
        yield one


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[Dialogue]:
    async with dialogue(broker) as one:
        yield one


def unique_id(number: int) -> str:
    return f"{number:032X}"


async def send(client: Dialogue, body: bytes, **more: str) -> dict[str, str]:
    properties = {"UNIQ_KEY": unique_id(0), **more}
    return await client.send_ok(body, properties=properties_text(**properties), queueId="3")


async def recall(client: Dialogue, handle: str, topic: str = TOPIC) -> Command:
    return await client.ask(RequestCode.RECALL_MESSAGE, {"topic": topic, "recallHandle": handle, "producerGroup": "p"})


def queue_end(broker: Broker, topic: str = TOPIC, queue_id: int = 3) -> int:
    queue = broker.core.store.queues.get(topic, queue_id)
    return 0 if queue is None else queue.end


async def wait_for_rounds(broker: Broker) -> None:
    """Wait until the timers have checked everything with the present time."""
    rounds = broker.timers.rounds
    await wait_until(lambda: broker.timers.rounds >= rounds + 2 and not broker.timers._is_load_needed())
    rounds = broker.timers.rounds
    await wait_until(lambda: broker.timers.rounds >= rounds + 2)


async def delivered(client: Dialogue, count: int) -> list[StoredMessage]:
    stored: list[StoredMessage] = []
    while len(stored) < count:
        stored += await client.read(len(stored), queueId="3", maxMsgNums="100")
    return stored


@pytest.mark.parametrize(
    ("name", "text", "delay_ms"),
    [("TIMER_DELAY_SEC", "7", 7_000), ("TIMER_DELAY_MS", "250", 250), ("TIMER_DELIVER_MS", None, 40 * DAY_MS)],
)
async def test_timer_is_delivered_exactly_when_it_is_due(
    broker: Broker, clock: FakeClock, client: Dialogue, name: str, text: str | None, delay_ms: int
) -> None:
    """Any of the three properties delays a message, and it is delivered neither early nor late."""
    value = text or str(clock.wall_ms() + delay_ms)

    reply = await send(client, b"later", TAGS="A", **{name: value})

    assert reply["queueId"] == "3"
    assert "recallHandle" in reply
    [waiting] = await client.read(0, topic=TIMERS, queueId="0")
    assert (waiting.properties["REAL_TOPIC"], waiting.properties["REAL_QID"]) == (TOPIC, "3")
    clock.advance(delay_ms - 1)
    await wait_for_rounds(broker)
    assert queue_end(broker) == 0

    clock.advance(1)
    await wait_until(lambda: queue_end(broker) == 1)

    [message] = await client.read(0, queueId="3", subscription="A")
    assert message.body == b"later"
    assert message.properties[name] == value
    assert not {"REAL_TOPIC", "REAL_QID"} & message.properties.keys()


async def test_recalled_timer_is_never_delivered(broker: Broker, clock: FakeClock, client: Dialogue) -> None:
    """A recall that was answered with code 0 cancels its message and no other; repeating it succeeds."""
    handles = [
        (await send(client, b"%d" % n, UNIQ_KEY=unique_id(n), TIMER_DELAY_SEC="60"))["recallHandle"] for n in range(3)
    ]

    first = await recall(client, handles[1])
    again = await recall(client, handles[1])

    assert (first.code, again.code) == (0, 0)
    assert first.ext["msgId"] == unique_id(1)
    assert queue_end(broker, TIMERS, 0) == 4
    clock.advance(60_000)
    await wait_until(lambda: queue_end(broker) == 2)
    await wait_for_rounds(broker)
    assert [one.body for one in await delivered(client, 2)] == [b"0", b"2"]
    assert queue_end(broker) == 2


async def test_recall_of_a_delivered_timer_is_refused(broker: Broker, clock: FakeClock, client: Dialogue) -> None:
    """A message that was delivered cannot be recalled: RocketMQ's code for that is ILLEGAL_OPERATION."""
    handle = (await send(client, b"soon", TIMER_DELAY_MS="100"))["recallHandle"]
    clock.advance(100)
    await wait_until(lambda: queue_end(broker) == 1)

    reply = await recall(client, handle)

    assert reply.code == ResponseCode.ILLEGAL_OPERATION
    assert queue_end(broker, TIMERS, 0) == 1


async def test_timers_and_recalls_survive_a_restart(tmp_path: Path, clock: FakeClock) -> None:
    """After a restart pending messages are delivered once, in due order, and recalled ones are not."""
    async with running_broker(tmp_path, clock=clock) as broker, dialogue(broker) as client:
        for number in range(10):
            reply = await send(client, b"%d" % number, UNIQ_KEY=unique_id(number), TIMER_DELAY_SEC=str(100 - number))
            if number % 3 == 0:
                assert (await recall(client, reply["recallHandle"])).code == 0
        clock.advance(92_000)
        await wait_until(lambda: queue_end(broker) == 1)

    async with running_broker(tmp_path, clock=clock) as broker, dialogue(broker) as client:
        await wait_for_rounds(broker)
        assert queue_end(broker) == 1
        clock.advance(DAY_MS)
        await wait_until(lambda: queue_end(broker) == 6)
        await wait_for_rounds(broker)
        assert [one.body for one in await delivered(client, 6)] == [b"8", b"7", b"5", b"4", b"2", b"1"]
        assert queue_end(broker) == 6
