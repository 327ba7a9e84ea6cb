"""Delays with clock changes, full disks, deleted topics and damaged files: nothing early, nothing lost."""

from pathlib import Path

import pytest

from gantry_broker.app import Broker
from gantry_broker.errors import ConfigCorrupt, StoreFull
from gantry_broker.server.delay import service as delay
from gantry_broker.server.delay.drafts import due_drafts
from gantry_broker.server.delay.service import OBSERVATIONS_MAX, ObservedEnds
from gantry_testing.fake_clock import FakeClock
from gantry_testing.local import (
    TOPIC,
    UNIQUE_ID,
    Dialogue,
    dialogue,
    properties_text,
    running_broker,
    wait_until,
)

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
HOUR_MS = 3_600_000

pytestmark = pytest.mark.usefixtures("clock")


class NoQueueEnds:
    """Observed ends that are always empty, for the twins with a clock."""

    def observe(self, level: int, end: int, *, now_ms: int, delay_ms: int) -> int:
        return 0

    def forget(self) -> None:
        """Do nothing, since nothing is observed."""


async def send(client: Dialogue, body: bytes, level: int, **more: str) -> None:
    await client.send_ok(body, queueId="3", properties=properties_text(UNIQ_KEY=UNIQUE_ID, DELAY=str(level)), **more)


def queue_end(broker: Broker, topic: str = TOPIC, queue_id: int = 3) -> int:
    queue = broker.core.store.queues.get(topic, queue_id)
    return 0 if queue is None else queue.readable_end


async def wait_for_delay_rounds(broker: Broker) -> None:
    rounds = broker.delay.rounds
    await wait_until(lambda: broker.delay.rounds >= rounds + 2)


def overwrite_files(root: Path, pattern: str, text: str) -> int:
    """Overwrite matching files, and return their number."""
    found = list(root.rglob(pattern))
    for path in found:
        path.write_text(text)
    return len(found)


def test_message_has_waited_only_if_observed_one_delay_ago() -> None:
    """A message that was observed has waited one delay later, to the millisecond; a later message has not."""
    observed = ObservedEnds()
    assert observed.observe(1, 5, now_ms=0, delay_ms=1_000) == 0
    assert observed.observe(1, 9, now_ms=500, delay_ms=1_000) == 0
    assert observed.observe(1, 9, now_ms=999, delay_ms=1_000) == 0
    assert observed.observe(1, 9, now_ms=1_000, delay_ms=1_000) == 5
    assert observed.observe(1, 9, now_ms=1_499, delay_ms=1_000) == 5
    assert observed.observe(1, 9, now_ms=1_500, delay_ms=1_000) == 9
    assert observed.observe(2, 7, now_ms=1_500, delay_ms=1_000) == 0, "expected no observation of another level"


def test_observed_ends_are_limited_and_cover_every_message() -> None:
    """A level that grows often has a limited number of observations; a message is late by their interval at most."""
    observed = ObservedEnds()
    delay_ms = 1_600
    for now_ms in range(5_000):
        waited = observed.observe(1, now_ms + 1, now_ms=now_ms, delay_ms=delay_ms)
        assert max(0, now_ms - delay_ms - delay_ms // OBSERVATIONS_MAX) <= waited <= max(0, now_ms - delay_ms + 1)
    assert len(observed._observed[1]) <= OBSERVATIONS_MAX + 1


def test_cut_queue_is_observed_again() -> None:
    """The message at an offset after a cut is another one, which has not waited."""
    observed = ObservedEnds()
    observed.observe(1, 9, now_ms=0, delay_ms=1_000)
    assert observed.observe(1, 9, now_ms=1_000, delay_ms=1_000) == 9

    assert observed.observe(1, 4, now_ms=1_001, delay_ms=1_000) == 0
    assert observed.observe(1, 4, now_ms=2_001, delay_ms=1_000) == 4
    observed.forget()
    assert observed.observe(1, 4, now_ms=9_000, delay_ms=1_000) == 0


async def send_after_the_clock_was_set_back(broker: Broker, clock: FakeClock, client: Dialogue) -> None:
    """A message of level 3, ten seconds, that was stored while the clock was an hour behind the log."""
    await client.send_ok(b"now", queueId="0")
    clock.jump_wall(-HOUR_MS)
    await send(client, b"later", 3)
    await wait_for_delay_rounds(broker)


async def test_clock_set_back_does_not_hold_up_delayed_messages(
    broker: Broker, clock: FakeClock, client: Dialogue
) -> None:
    """A message waits for exactly its delay, without the hour that the clock was set back."""
    await send_after_the_clock_was_set_back(broker, clock, client)

    clock.advance(9_999)
    await wait_for_delay_rounds(broker)
    assert queue_end(broker) == 0

    clock.advance(1)
    await wait_until(lambda: queue_end(broker) == 1)


async def test_without_observed_ends_delivery_waits_for_the_clock(
    broker: Broker, clock: FakeClock, client: Dialogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: with the store timestamps alone the message would be late."""
    monkeypatch.setattr(broker.delay, "_observed_ends", NoQueueEnds())
    await send_after_the_clock_was_set_back(broker, clock, client)

    clock.advance(10_000)
    await wait_for_delay_rounds(broker)
    assert queue_end(broker) == 0

    clock.advance(HOUR_MS)
    await wait_until(lambda: queue_end(broker) == 1)


@pytest.mark.verify
async def test_clock_going_back_and_forth_delivers_once(broker: Broker, clock: FakeClock, client: Dialogue) -> None:
    """Every message once, in order, whichever proof comes first."""
    for number in range(40):
        await send(client, b"%d" % number, 2)
        clock.jump_wall((-1) ** number * 7_000)
        clock.advance(400)
        await wait_for_delay_rounds(broker)
    clock.advance(20_000)
    await wait_until(lambda: broker.delay.progress.next_offset(2) == 40)

    bodies: list[bytes] = []
    while len(bodies) < 40:
        bodies += [message.body for message in await client.read(len(bodies), queueId="3", maxMsgNums="32")]
    assert bodies == [b"%d" % number for number in range(40)]


async def test_deleted_topic_does_not_hold_up_delivery(broker: Broker, clock: FakeClock, client: Dialogue) -> None:
    """Its message is delivered to a topic that is created again; others arrive in time."""
    await send(client, b"gone", 1, topic="Gone")
    await send(client, b"here", 1)
    assert (await client.ask(215, {"topic": "Gone"})).code == 0

    clock.advance(1_000)
    await wait_until(lambda: queue_end(broker) == 1)

    assert broker.delay.progress.next_offset(1) == 2
    assert "Gone" in broker.core.topics
    await client.send_ok(b"again", topic="Gone", queueId="3")
    assert [message.body for message in await client.read(0, topic="Gone", queueId="3")] == [b"gone", b"again"]


async def test_refused_append_of_a_level_does_not_stop_the_others(
    broker: Broker, clock: FakeClock, client: Dialogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused level is retried a second later, and the task continues with the others."""
    await send(client, b"one", 1)
    await send(client, b"two", 2)

    def refuse(data: bytes, *, delay_ms: int, **more: object) -> object:
        if delay_ms == 1_000:
            raise StoreFull("no")
        return due_drafts(data, delay_ms=delay_ms, **more)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(delay, "due_drafts", refuse)
        clock.advance(5_000)
        await wait_until(lambda: broker.delay.progress.next_offset(2) == 1)
        assert broker.delay.progress.next_offset(1) == 0

    await wait_until(lambda: broker.delay.progress.next_offset(1) == 1)


@pytest.mark.parametrize(
    "text", ["{", '{"offsetTable": {"1": "far"}}', "[]", ""], ids=["cut", "shape", "list", "empty"]
)
async def test_damaged_progress_file_is_read_from_its_backup(tmp_path: Path, clock: FakeClock, text: str) -> None:
    """The .bak file holds the same progress: nothing is delivered again, and nothing is skipped."""
    async with running_broker(tmp_path, clock=clock) as broker, dialogue(broker) as client:
        for number in (b"1", b"2"):
            await send(client, number, 1)
            clock.advance(1_000)
            await wait_until(lambda number=number: queue_end(broker) == int(number))  # type: ignore[misc]
            await broker.core.persistence.write_stale()
    assert overwrite_files(tmp_path, "delayOffset.json", text) == 1

    async with running_broker(tmp_path, clock=clock) as broker, dialogue(broker) as client:
        assert broker.delay.progress.next_offset(1) == 2
        await send(client, b"3", 1)
        clock.advance(1_000)
        await wait_until(lambda: queue_end(broker) == 3)


async def test_broker_without_readable_progress_does_not_start(tmp_path: Path, clock: FakeClock) -> None:
    """If each copy that exists is damaged, the start fails instead of repeating or skipping messages."""
    async with running_broker(tmp_path, clock=clock) as broker, dialogue(broker) as client:
        await send(client, b"1", 1)
        clock.advance(1_000)
        await wait_until(lambda: queue_end(broker) == 1)
    assert overwrite_files(tmp_path, "delayOffset.json*", "{") >= 1

    with pytest.raises(ConfigCorrupt, match="delayOffset"):
        async with running_broker(tmp_path, clock=clock):
            pass
