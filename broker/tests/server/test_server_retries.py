"""Retries: every delay in order, up to the limit of the group or the consumer, then the dead letters."""

from pathlib import Path

import pytest

from gantry_broker.app import Broker
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
from gantry_wire.commands.admin import SubscriptionGroupConfig
from gantry_wire.message import StoredMessage

RETRY, DEAD = f"%RETRY%{GROUP}", f"%DLQ%{GROUP}"
MINUTE = 60_000
LEVELS_MS = [
    1_000, 5_000, 10_000, 30_000, *(number * MINUTE for number in range(1, 11)), 20 * MINUTE, 30 * MINUTE,
    60 * MINUTE, 120 * MINUTE,
]  # fmt: skip
RETRIES = 16

pytestmark = pytest.mark.usefixtures("clock")


def queue_end(broker: Broker, topic: str, queue_id: int = 0) -> int:
    queue = broker.core.store.queues.get(topic, queue_id)
    return 0 if queue is None else queue.readable_end


async def send_back(client: Dialogue, message: StoredMessage, level: int = 0, **more: str) -> Command:
    ext = {"offset": str(message.physical_offset), "group": GROUP, "delayLevel": str(level), "originTopic": TOPIC}
    return await client.ask(36, {**ext, **more})


async def send_one(client: Dialogue) -> StoredMessage:
    await client.send_ok(b"hard", properties=properties_text(UNIQ_KEY=UNIQUE_ID, KEYS="k", own="mine"))
    [message] = await client.read()
    return message


async def wait_for_delay_rounds(broker: Broker) -> None:
    """Wait until the delay service has checked every level with the present time."""
    rounds = broker.delay.rounds
    await wait_until(lambda: broker.delay.rounds >= rounds + 2)


async def test_sixteen_retries_with_growing_delays(broker: Broker, clock: FakeClock, client: Dialogue) -> None:
    """Levels 3 to 18, one for each failure, none before its time; the seventeenth failure is the end."""
    message = await send_one(client)
    assert len(LEVELS_MS) == 18 == len(broker.settings.store.delay_levels_ms)

    for times in range(RETRIES):
        assert (await send_back(client, message)).code == 0
        wait_ms = LEVELS_MS[2 + times]
        clock.advance(wait_ms - 1)
        await wait_for_delay_rounds(broker)
        assert queue_end(broker, RETRY) == times, f"retry {times + 1} came before its {wait_ms} ms were over"
        clock.advance(1)
        await wait_until(lambda: queue_end(broker, RETRY) == times + 1)  # noqa: B023 - called at once
        [message] = await client.read(times, topic=RETRY)
        assert (message.reconsume_times, message.properties["RETRY_TOPIC"]) == (times + 1, TOPIC)

    assert (await send_back(client, message)).code == 0
    await wait_for_delay_rounds(broker)
    assert (queue_end(broker, RETRY), queue_end(broker, DEAD)) == (RETRIES, 1)
    [dead] = await client.read(topic=DEAD)
    assert (dead.body, dead.reconsume_times, dead.properties["KEYS"], dead.properties["own"]) == (
        b"hard", RETRIES + 1, "k", "mine",
    )  # fmt: skip
    assert dead.properties["UNIQ_KEY"] == UNIQUE_ID and "DELAY" not in dead.properties


@pytest.mark.parametrize(
    ("group_max", "request_max", "retries"),
    [(16, None, 16), (3, None, 3), (0, None, 0), (16, "1", 1), (1, "3", 3), (-1, None, 0), (16, "-1", 0)],
    ids=["default", "group", "group none", "request less", "request more", "group negative", "request negative"],
)
async def test_limits_of_the_group_and_of_the_request(
    broker: Broker, clock: FakeClock, client: Dialogue, group_max: int, request_max: str | None, retries: int
) -> None:
    """As many retries as the group allows; a limit in the request wins, whether it is smaller or larger."""
    broker.core.groups.put(SubscriptionGroupConfig(group_name=GROUP, retry_max_times=group_max))
    more = {} if request_max is None else {"maxReconsumeTimes": request_max}
    message = await send_one(client)

    for times in range(min(retries, 4)):
        assert (await send_back(client, message, level=1, **more)).code == 0
        clock.advance(LEVELS_MS[0])
        await wait_until(lambda: queue_end(broker, RETRY) == times + 1)  # noqa: B023 - called at once
        [message] = await client.read(times, topic=RETRY)
    if retries <= 4:
        assert (await send_back(client, message, level=1, **more)).code == 0
    assert (queue_end(broker, RETRY), queue_end(broker, DEAD)) == (min(retries, 4), 1 if retries <= 4 else 0)


async def test_changed_retry_limit_applies_at_once(broker: Broker, clock: FakeClock, client: Dialogue) -> None:
    """If the limit of a group is lowered, messages with as many failures go to the dead letters."""
    message = await send_one(client)
    for times in range(3):
        await send_back(client, message, level=1)
        clock.advance(LEVELS_MS[0])
        await wait_until(lambda: queue_end(broker, RETRY) == times + 1)  # noqa: B023 - called at once
        [message] = await client.read(times, topic=RETRY)

    broker.core.groups.put(SubscriptionGroupConfig(group_name=GROUP, retry_max_times=2))
    await send_back(client, message, level=1)

    assert queue_end(broker, DEAD) == 1


@pytest.mark.parametrize("level", ["19", "100", str((1 << 31) - 1)])
async def test_retry_level_beyond_the_last_is_the_last(
    broker: Broker, clock: FakeClock, client: Dialogue, level: str
) -> None:
    """Two hours, as for a delayed message."""
    message = await send_one(client)
    assert (await send_back(client, message, level=int(level))).code == 0

    clock.advance(LEVELS_MS[-1] - 1)
    await wait_for_delay_rounds(broker)
    assert queue_end(broker, RETRY) == 0
    clock.advance(1)
    await wait_until(lambda: queue_end(broker, RETRY) == 1)


async def test_failure_count_survives_a_restart(tmp_path: Path, clock: FakeClock) -> None:
    """The count is in the record: after a restart the third failure is the third, and waits as long."""
    async with running_broker(tmp_path, clock=clock) as broker, dialogue(broker) as client:
        message = await send_one(client)
        for times, wait_ms in enumerate(LEVELS_MS[2:4]):
            await send_back(client, message)
            clock.advance(wait_ms)
            await wait_until(lambda: queue_end(broker, RETRY) == times + 1)  # noqa: B023 - called at once
            [message] = await client.read(times, topic=RETRY)
        await send_back(client, message)

    async with running_broker(tmp_path, clock=clock) as broker, dialogue(broker) as client:
        clock.advance(LEVELS_MS[4] - 1)
        await wait_for_delay_rounds(broker)
        assert queue_end(broker, RETRY) == 2
        clock.advance(1)
        await wait_until(lambda: queue_end(broker, RETRY) == 3)
        [message] = await client.read(2, topic=RETRY)
        assert message.reconsume_times == 3


async def test_retries_are_spread_over_the_retry_queues(broker: Broker, clock: FakeClock, client: Dialogue) -> None:
    """A group with several retry queues uses them all, and the dead letters have one."""
    broker.core.groups.put(SubscriptionGroupConfig(group_name=GROUP, retry_queue_nums=3))
    message = await send_one(client)
    for _ in range(60):
        await send_back(client, message, level=1)
    await send_back(client, message, level=-1)
    clock.advance(LEVELS_MS[0])
    await wait_until(lambda: sum(queue_end(broker, RETRY, number) for number in range(3)) == 60)

    assert all(queue_end(broker, RETRY, number) > 0 for number in range(3))
    assert (queue_end(broker, RETRY, 3), queue_end(broker, DEAD)) == (0, 1)
