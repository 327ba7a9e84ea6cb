"""Delayed messages are never early and never lost; failed ones are retried, and then go to the dead letters."""

from pathlib import Path

import pytest

from gantry_broker.app import Broker
from gantry_broker.errors import StoreFull
from gantry_testing.fake_clock import FakeClock
from gantry_testing.local import (
    GROUP,
    TOPIC,
    UNIQUE_ID,
    Dialogue,
    dialogue,
    properties_text,
    running_broker,
    wait_until,
)
from gantry_wire import Command
from gantry_wire.commands.admin import SubscriptionGroupConfig, TopicConfig
from gantry_wire.message import StoredMessage

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
RETRY = f"%RETRY%{GROUP}"
DEAD = f"%DLQ%{GROUP}"
LEVELS_MS = [1_000, 5_000, 10_000, 30_000, 60_000]

pytestmark = pytest.mark.usefixtures("clock")


async def send(client: Dialogue, body: bytes, level: int | str, **more: str) -> dict[str, str]:
    text = properties_text(UNIQ_KEY=UNIQUE_ID, DELAY=str(level), **more)
    return await client.send_ok(body, properties=text, queueId="3")


def queue_end(broker: Broker, topic: str, queue_id: int = 0) -> int:
    queue = broker.core.store.queues.get(topic, queue_id)
    return 0 if queue is None else queue.end


async def wait_for_delay_rounds(broker: Broker) -> None:
    """Wait until the delay service has checked every level with the present time."""
    rounds = broker.delay.rounds
    await wait_until(lambda: broker.delay.rounds >= rounds + 2)


# ------- delayed


@pytest.mark.parametrize("level", [1, 2, 5])
async def test_delayed_message_waits_for_its_level(
    broker: Broker, clock: FakeClock, client: Dialogue, level: int
) -> None:
    """It is delivered to its topic exactly when its level's time has passed, and not a millisecond earlier."""
    reply = await send(client, b"later", level, TAGS="A", KEYS="k")

    assert reply["queueId"] == "3"
    [waiting] = await client.read(0, topic=SCHEDULE, queueId=str(level - 1))
    assert (waiting.properties["REAL_TOPIC"], waiting.properties["REAL_QID"]) == (TOPIC, "3")
    clock.advance(LEVELS_MS[level - 1] - 1)
    await wait_for_delay_rounds(broker)
    assert queue_end(broker, TOPIC, 3) == 0

    clock.advance(1)
    await wait_until(lambda: queue_end(broker, TOPIC, 3) == 1)

    [message] = await client.read(0, queueId="3", subscription="A")
    assert message.body == b"later"
    assert message.properties["UNIQ_KEY"] == UNIQUE_ID
    assert (message.properties["REAL_TOPIC"], message.properties["DELAY"]) == (TOPIC, str(level))
    assert message.born_timestamp_ms == waiting.born_timestamp_ms
    assert message.store_timestamp_ms == waiting.store_timestamp_ms + LEVELS_MS[level - 1]


async def test_level_beyond_the_last_counts_as_the_last(broker: Broker, client: Dialogue) -> None:
    """A level over 18 counts as 18; zero, a negative level or a non-number is no delay."""
    for text in ("19", "99999999999999999999"):
        await send(client, b"late", text)
    assert queue_end(broker, SCHEDULE, 17) == 2

    for text in ("0", "-1", "soon", ""):
        await send(client, b"now", text)
    assert queue_end(broker, TOPIC, 3) == 4


async def test_delivery_keeps_the_order_of_a_level(broker: Broker, clock: FakeClock, client: Dialogue) -> None:
    """Messages of a level are delivered in the order of their sends, each once, also if not all are due."""
    for number in range(200):
        await send(client, b"%d" % number, 1)
        clock.advance(1)

    clock.advance(1_000 - 200 + 50)
    await wait_until(lambda: queue_end(broker, TOPIC, 3) == 51)
    await wait_for_delay_rounds(broker)
    assert queue_end(broker, TOPIC, 3) == 51
    clock.advance(1_000)
    await wait_until(lambda: queue_end(broker, TOPIC, 3) == 200)

    stored: list[StoredMessage] = []
    while len(stored) < 200:
        stored += await client.read(len(stored), queueId="3", maxMsgNums="100")
    assert [int(message.body) for message in stored] == list(range(200))


async def test_level_does_not_delay_another(broker: Broker, clock: FakeClock, client: Dialogue) -> None:
    """A message of a short level passes one of a long level."""
    await send(client, b"long", 5)
    await send(client, b"short", 1)

    clock.advance(1_000)
    await wait_until(lambda: queue_end(broker, TOPIC, 3) == 1)

    assert [message.body for message in await client.read(0, queueId="3")] == [b"short"]


async def test_held_pull_wakes_for_a_delayed_message(broker: Broker, clock: FakeClock, client: Dialogue) -> None:
    """A consumer that waits gets a delayed message as soon as it is due."""
    broker.core.topics.put(TopicConfig(topic_name=TOPIC, read_queue_nums=4, write_queue_nums=4))
    await send(client, b"later", 1)
    waiting = client.start_pull(0, wait_ms=60_000, queueId="3")
    await wait_until(lambda: broker.pulls.hold.count == 1)

    clock.advance(1_000)

    assert (await waiting).code == 0


async def test_delivery_continues_after_a_restart(tmp_path: Path, clock: FakeClock) -> None:
    """After a clean restart delivered messages are not delivered again, and waiting ones still arrive."""
    async with running_broker(tmp_path, clock=clock) as broker, dialogue(broker) as client:
        await send(client, b"1", 1)
        clock.advance(1_000)
        await wait_until(lambda: queue_end(broker, TOPIC, 3) == 1)
        await send(client, b"2", 1)

    async with running_broker(tmp_path, clock=clock) as broker, dialogue(broker) as client:
        await wait_for_delay_rounds(broker)
        assert queue_end(broker, TOPIC, 3) == 1
        clock.advance(1_000)
        await wait_until(lambda: queue_end(broker, TOPIC, 3) == 2)
        await wait_for_delay_rounds(broker)

        assert [message.body for message in await client.read(0, queueId="3")] == [b"1", b"2"]
        progress = await client.ask_json(45)
        assert progress["offsetTable"] == {"1": 2}


async def test_delivery_waits_for_a_full_store(
    broker: Broker, clock: FakeClock, client: Dialogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A delayed message that finds the disk full is tried again, not skipped."""
    await send(client, b"later", 1)
    tries = 0

    def refuse(drafts: object) -> None:
        nonlocal tries
        tries += 1
        raise StoreFull("no room")

    with monkeypatch.context() as patch:
        patch.setattr(broker.core.store, "append", refuse)
        clock.advance(1_000)
        await wait_until(lambda: tries == 1)

    await wait_until(lambda: queue_end(broker, TOPIC, 3) == 1)


# ------- failed


async def send_back(client: Dialogue, message: StoredMessage, level: int = 0, **more: str) -> Command:
    ext = {
        "offset": str(message.physical_offset),
        "group": GROUP,
        "delayLevel": str(level),
        "originTopic": TOPIC,
        **more,
    }
    return await client.ask(36, ext)


async def newest(client: Dialogue, topic: str, offset: int) -> StoredMessage:
    [message] = await client.read(offset, topic=topic)
    return message


async def test_failed_message_is_retried_with_growing_delays(
    broker: Broker, clock: FakeClock, client: Dialogue
) -> None:
    """Each failure raises the delay level by one, from level 3; the message keeps its origin and its retry count."""
    first = await client.send_ok(b"hard", properties=properties_text(UNIQ_KEY=UNIQUE_ID, TAGS="A", colour="blue"))
    [message] = await client.read()

    for times, wait_ms in enumerate([10_000, 30_000, 60_000]):
        assert (await send_back(client, message)).code == 0
        clock.advance(wait_ms - 1)
        await wait_for_delay_rounds(broker)
        assert queue_end(broker, RETRY) == times
        clock.advance(1)
        await wait_until(lambda: queue_end(broker, RETRY) == times + 1)  # noqa: B023 - called at once

        message = await newest(client, RETRY, times)
        assert message.body == b"hard"
        assert message.reconsume_times == times + 1
        assert message.properties["RETRY_TOPIC"] == TOPIC
        assert message.properties["ORIGIN_MESSAGE_ID"] == first["msgId"]
        assert (message.properties["TAGS"], message.properties["colour"]) == ("A", "blue")
        assert message.properties["UNIQ_KEY"] == UNIQUE_ID


async def test_consumer_may_choose_the_delay(broker: Broker, clock: FakeClock, client: Dialogue) -> None:
    """A level that the consumer names is taken as it is."""
    await client.send_ok()
    [message] = await client.read()

    await send_back(client, message, level=1)

    clock.advance(1_000)
    await wait_until(lambda: queue_end(broker, RETRY) == 1)


@pytest.mark.parametrize("by", ["request", "group"])
async def test_message_goes_to_the_dead_letters_after_its_retries(
    broker: Broker, clock: FakeClock, client: Dialogue, by: str
) -> None:
    """After as many retries as the request or the group allows a message goes to the dead letters, at once."""
    broker.core.groups.put(SubscriptionGroupConfig(group_name=GROUP, retry_max_times=2 if by == "group" else 16))
    more = {"maxReconsumeTimes": "2"} if by == "request" else {}
    await client.send_ok(b"hopeless")
    [message] = await client.read()
    for times in range(2):
        await send_back(client, message, level=1, **more)
        clock.advance(1_000)
        await wait_until(lambda: queue_end(broker, RETRY) == times + 1)  # noqa: B023 - called at once
        message = await newest(client, RETRY, times)

    assert (await send_back(client, message, level=1, **more)).code == 0

    assert (queue_end(broker, RETRY), queue_end(broker, DEAD)) == (2, 1)
    dead = await newest(client, DEAD, 0)
    assert (dead.body, dead.reconsume_times, dead.properties["RETRY_TOPIC"]) == (b"hopeless", 3, TOPIC)
    assert "DELAY" not in dead.properties
    config = broker.core.topics.find(DEAD)
    assert config is not None and (config.write_queue_nums, config.perm) == (1, 6)


async def test_consumer_may_give_up_a_message_at_once(broker: Broker, client: Dialogue) -> None:
    """A negative level sends a message to the dead letters on its first failure."""
    await client.send_ok()
    [message] = await client.read()

    await send_back(client, message, level=-1)

    assert queue_end(broker, DEAD) == 1


async def test_group_without_retry_queues_retries_nothing(broker: Broker, client: Dialogue) -> None:
    """A group with no retry queues has its failed messages dropped, as RocketMQ does: code 0, nothing stored."""
    await client.send_ok()
    [message] = await client.read()
    broker.core.groups.put(SubscriptionGroupConfig(group_name=GROUP, retry_queue_nums=0))
    wrote = broker.core.store.log.wrote

    assert (await send_back(client, message)).code == 0

    assert broker.core.store.log.wrote == wrote


async def test_send_back_of_an_unknown_group_is_refused(tmp_path: Path) -> None:
    """An unknown group is 26 without auto-creation; the message stays where it is."""
    async with running_broker(tmp_path, autoCreateSubscriptionGroup="false") as broker, dialogue(broker) as client:
        broker.core.groups.put(SubscriptionGroupConfig(group_name=GROUP))
        await client.send_ok()
        [message] = await client.read()

        assert (await send_back(client, message, group="Unknown")).code == 26
        assert broker.core.topics.find("%RETRY%Unknown") is None


# ------- a consumer that resends by itself


async def resend(client: Dialogue, times: int, **more: str) -> Command:
    """Send a message to the retry topic, as a consumer does when its send-back has failed."""
    text = properties_text(UNIQ_KEY=UNIQUE_ID, DELAY="1", RETRY_TOPIC=TOPIC)
    return await client.send(b"again", code=310, topic=RETRY, properties=text, reconsumeTimes=str(times), **more)


async def test_resent_message_is_a_retry_until_the_limit(broker: Broker, clock: FakeClock, client: Dialogue) -> None:
    """The retry numbered as the maximum is still a retry; the next one goes to the dead letters without delay."""
    assert (await resend(client, 2, maxReconsumeTimes="2")).code == 0
    clock.advance(1_000)
    await wait_until(lambda: queue_end(broker, RETRY) == 1)
    assert (await newest(client, RETRY, 0)).reconsume_times == 2

    assert (await resend(client, 3, maxReconsumeTimes="2")).code == 0

    assert (queue_end(broker, RETRY), queue_end(broker, DEAD)) == (1, 1)
    assert (await newest(client, DEAD, 0)).reconsume_times == 3


async def test_resent_message_of_an_ordered_group_goes_to_the_dead_letters(broker: Broker, client: Dialogue) -> None:
    """A group that holds a queue lock consumes in order: what it resends goes to the dead letters."""
    body = {"consumerGroup": GROUP, "clientId": "c1", "mqSet": [{"topic": TOPIC, "brokerName": "b", "queueId": 0}]}
    await client.ask_json(41, body=body)

    assert (await resend(client, 0)).code == 0

    assert queue_end(broker, DEAD) == 1
