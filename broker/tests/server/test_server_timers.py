"""Timer messages of any delay are never early and never lost, and a recalled one is never delivered."""

from pathlib import Path

import pytest

from gantry_broker.app import Broker
from gantry_testing.fake_clock import FakeClock
from gantry_testing.local import TOPIC, UNIQUE_ID, Dialogue, dialogue, properties_text, running_broker, wait_until
from gantry_testing.timer_client import (
    DAY_MS,
    TIMERS,
    delivered,
    queue_end,
    recall,
    send_timer,
    unique_id,
    wait_for_rounds,
)
from gantry_wire import RequestCode, ResponseCode
from gantry_wire.commands.admin import TopicConfig
from gantry_wire.recall_handle import RecallHandle

pytestmark = pytest.mark.usefixtures("clock")


@pytest.mark.parametrize(
    "pairs",
    [
        {"TIMER_DELAY_SEC": "soon"},
        {"TIMER_DELAY_MS": ""},
        {"TIMER_DELIVER_MS": "1.5"},
        {"TIMER_DELAY_SEC": "9" * 30},
        {"TIMER_DELAY_SEC": str(40 * 86_400 + 1)},
        {"TIMER_DELAY_SEC": "x", "TRAN_MSG": "true"},
    ],
    ids=str,
)
async def test_timer_with_an_invalid_time_is_refused(broker: Broker, client: Dialogue, pairs: dict[str, str]) -> None:
    """A time that is no number, or is beyond timerMaxDelaySec, is code 13 with RocketMQ's text, and stores nothing."""
    reply = await client.send(properties=properties_text(UNIQ_KEY=UNIQUE_ID, **pairs))

    assert reply.code == ResponseCode.MESSAGE_ILLEGAL
    assert "should not be bigger than the max delay 3456000000ms" in (reply.remark or "")
    assert broker.store.log.wrote == 0


async def test_timers_are_refused_if_they_are_switched_off(tmp_path: Path) -> None:
    """With timerWheelEnable=false a timer message is refused by name, and delay levels work."""
    async with running_broker(tmp_path, timerWheelEnable="false") as broker, dialogue(broker) as client:
        reply = await client.send(properties=properties_text(UNIQ_KEY=UNIQUE_ID, TIMER_DELAY_MS="9"))
        await client.send_ok(properties=properties_text(UNIQ_KEY=UNIQUE_ID, DELAY="1"))

    assert (reply.code, "timerWheelEnable is false" in (reply.remark or "")) == (13, True)


@pytest.mark.parametrize(
    "pairs",
    [
        {"TIMER_DELAY_SEC": "-5"},
        {"TIMER_DELAY_MS": "0"},
        {"TIMER_DELIVER_MS": "1000"},
        {"TIMER_DELAY_SEC": "60", "TIMER_OUT_MS": "1000"},
    ],
    ids=str,
)
async def test_timer_that_is_due_already_is_an_ordinary_message(
    broker: Broker, client: Dialogue, pairs: dict[str, str]
) -> None:
    """A time in the past, and a message that was a timer before, is stored in its topic at once, without a handle."""
    reply = await send_timer(client, b"now", **pairs)

    assert "recallHandle" not in reply
    assert (queue_end(broker), queue_end(broker, TIMERS, 0)) == (1, 0)


async def test_delay_level_wins_over_a_timer(broker: Broker, clock: FakeClock, client: Dialogue) -> None:
    """A message with both has the delay of its level, and loses the timer property, as in RocketMQ."""
    await send_timer(client, b"later", DELAY="1", TIMER_DELAY_SEC="3600")
    clock.advance(1_000)
    await wait_until(lambda: queue_end(broker) == 1)

    [message] = await delivered(client, 1)
    assert "TIMER_DELAY_SEC" not in message.properties


async def test_batch_with_a_timer_is_refused(broker: Broker, client: Dialogue) -> None:
    """A batch is appended to one queue, so none of its messages can be a timer."""
    data, inner = properties_text(UNIQ_KEY=UNIQUE_ID, TIMER_DELAY_MS="9").encode(), b"x"
    size = 4 * 5 + len(inner) + 2 + len(data)
    entry = b"".join((size.to_bytes(4), bytes(12), len(inner).to_bytes(4), inner, len(data).to_bytes(2), data))
    reply = await client.send(entry, code=RequestCode.SEND_BATCH_MESSAGE, batch="true")

    assert (reply.code, broker.store.log.wrote) == (13, 0)


async def test_committed_timer_waits_from_its_commit(broker: Broker, clock: FakeClock, client: Dialogue) -> None:
    """The delay of a half message begins with the commit of its transaction."""
    pairs = properties_text(UNIQ_KEY=UNIQUE_ID, TRAN_MSG="true", PGROUP="producers", TIMER_DELAY_SEC="10")
    half = await client.send_ok(b"paid", properties=pairs, queueId="3", sysFlag="4")
    assert "recallHandle" not in half
    clock.advance(1_000)
    ext = {
        "producerGroup": "producers",
        "tranStateTableOffset": half["queueOffset"],
        "commitLogOffset": str(int(half["msgId"][-16:], 16)),
        "commitOrRollback": "8",
    }
    assert (await client.ask(RequestCode.END_TRANSACTION, ext)).code == 0

    clock.advance(9_999)
    await wait_for_rounds(broker)
    assert queue_end(broker) == 0
    clock.advance(1)
    await wait_until(lambda: queue_end(broker) == 1)
    assert [one.body for one in await delivered(client, 1)] == [b"paid"]


async def test_clock_that_is_set_back_delays_and_never_hastens(
    broker: Broker, clock: FakeClock, client: Dialogue
) -> None:
    """After a jump back new messages wait for their times, and old ones are delivered once."""
    await send_timer(client, b"old", TIMER_DELAY_SEC="7200")
    clock.jump_wall(3_600_000)
    await send_timer(client, b"first", TIMER_DELAY_SEC="1")
    clock.advance(1_000)
    await wait_until(lambda: queue_end(broker) == 1)

    clock.jump_wall(-3_000_000)
    await send_timer(client, b"second", TIMER_DELAY_SEC="60")
    await send_timer(client, b"third", TIMER_DELAY_SEC="600")
    clock.advance(59_999)
    await wait_for_rounds(broker)
    assert queue_end(broker) == 1
    clock.advance(1)
    await wait_until(lambda: queue_end(broker) == 2)
    clock.advance(540_000)
    await wait_until(lambda: queue_end(broker) == 3)
    clock.advance(7_200_000)
    await wait_until(lambda: queue_end(broker) == 4)
    await wait_for_rounds(broker)
    assert [one.body for one in await delivered(client, 4)] == [b"first", b"second", b"third", b"old"]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"recallHandle": "no handle"}, ResponseCode.ILLEGAL_OPERATION),
        ({"recallHandle": ""}, ResponseCode.ILLEGAL_OPERATION),
        ({"topic": "Other"}, ResponseCode.ILLEGAL_OPERATION),
        ({"topic": "Unknown"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"recallHandle": RecallHandle(TOPIC, "elsewhere", "1", "x").encode()}, ResponseCode.ILLEGAL_OPERATION),
        ({"recallHandle": RecallHandle(TOPIC, "test-broker", "x", "y").encode()}, ResponseCode.ILLEGAL_OPERATION),
        ({"recallHandle": RecallHandle(TOPIC, "test-broker", "99", "y").encode()}, ResponseCode.ILLEGAL_OPERATION),
    ],
    ids=str,
)
async def test_recall_with_an_invalid_handle_is_refused(
    broker: Broker, client: Dialogue, change: dict[str, str], code: ResponseCode
) -> None:
    """A handle of another topic, broker or format, or of no message, has RocketMQ's code, and stores nothing."""
    broker.core.topics.put(TopicConfig(topic_name="Other", read_queue_nums=4, write_queue_nums=4))
    handle = (await send_timer(client, b"later", TIMER_DELAY_SEC="60"))["recallHandle"]
    end = broker.store.log.wrote

    reply = await client.ask(RequestCode.RECALL_MESSAGE, {"topic": TOPIC, "recallHandle": handle} | change)

    assert (reply.code, broker.store.log.wrote) == (code, end)


@pytest.mark.parametrize(
    ("name", "text", "delay_ms"),
    [("TIMER_DELAY_SEC", "7", 7_000), ("TIMER_DELAY_MS", "250", 250), ("TIMER_DELIVER_MS", None, 40 * DAY_MS)],
)
async def test_timer_is_delivered_exactly_when_it_is_due(
    broker: Broker, clock: FakeClock, client: Dialogue, name: str, text: str | None, delay_ms: int
) -> None:
    """Any of the three properties delays a message, and it is delivered neither early nor late."""
    value = text or str(clock.wall_ms() + delay_ms)

    reply = await send_timer(client, b"later", TAGS="A", **{name: value})

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
        (await send_timer(client, b"%d" % n, UNIQ_KEY=unique_id(n), TIMER_DELAY_SEC="60"))["recallHandle"]
        for n in range(3)
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
    handle = (await send_timer(client, b"soon", TIMER_DELAY_MS="100"))["recallHandle"]
    clock.advance(100)
    await wait_until(lambda: queue_end(broker) == 1)

    reply = await recall(client, handle)

    assert reply.code == ResponseCode.ILLEGAL_OPERATION
    assert queue_end(broker, TIMERS, 0) == 1


async def test_timers_and_recalls_survive_a_restart(tmp_path: Path, clock: FakeClock) -> None:
    """After a restart pending messages are delivered once, in due order, and recalled ones are not."""
    async with running_broker(tmp_path, clock=clock) as broker, dialogue(broker) as client:
        for number in range(10):
            reply = await send_timer(
                client, b"%d" % number, UNIQ_KEY=unique_id(number), TIMER_DELAY_SEC=str(100 - number)
            )
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
