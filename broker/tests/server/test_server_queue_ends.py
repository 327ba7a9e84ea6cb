"""A queue whose messages have all expired goes on where it was, also on a slave that never saw any of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from test_server_roles import MOVED, SYNC, copied, follows, group

from gantry_broker.app import Broker
from gantry_broker.errors import StoreFull
from gantry_broker.server.roles.table_sync import QueueEnds, QueueEndsDocument
from gantry_broker.store.consume_queue import ConsumeQueue
from gantry_broker.store.queue_table import QUEUE_OFFSET_MAX
from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.local import GROUP, TOPIC, dialogue, expire
from gantry_testing.store_world import TINY, StoreWorld
from gantry_testing.verifying import kinds, verify

SMALL = {"mappedFileSizeCommitLog": "131072", "maxMessageSize": "16384"}
IDLE, BUSY = 1, 0


@pytest.fixture
def world() -> Iterator[StoreWorld]:
    one = StoreWorld(FaultyDisk(), "/store", TINY)
    one.open()
    yield one
    one.store.close()


@pytest.fixture
def ends(world: StoreWorld) -> QueueEnds:
    return QueueEnds(world.store)


def says(end: int, topic: str = "idle", number: int = 0) -> QueueEndsDocument:
    """A master's word."""
    return QueueEndsDocument({topic: {number: end}})


def next_number(world: StoreWorld, topic: str = "idle") -> int:
    """What the next message gets."""
    queue = world.store.queues.get(topic, 0)
    return 0 if queue is None else queue.end


@pytest.mark.parametrize("end", [1, 7, 60, 61, 1_000])
def test_an_empty_queue_goes_on_where_it_is_told_also_after_a_restart(
    world: StoreWorld, ends: QueueEnds, end: int
) -> None:
    """At a file's border, within a file, and far behind; nothing is there to be read before the first message."""
    ends.receive(says(end), world.store.log.wrote)

    ends.reach(world.store.dispatcher.dispatched)

    assert next_number(world) == end
    queue = world.store.queues.get("idle", 0)
    assert queue is not None
    assert (queue.min_offset, queue.readable_end) == (end, end)
    world.store.close()
    world.open()
    assert next_number(world) == end
    world.send("idle", 3)
    queue = world.store.queues.get("idle", 0)
    assert queue is not None
    assert (queue.min_offset, queue.end) == (end, end + 3)
    world.store.close()
    assert kinds(verify(world)) == set()
    world.open()


def test_nothing_is_made_before_all_that_the_master_had_is_shown(world: StoreWorld, ends: QueueEnds) -> None:
    """Older messages of the queue may still be on their way."""
    ends.receive(says(7), world.store.log.wrote + 1)

    ends.reach(world.store.dispatcher.dispatched)

    assert next_number(world) == 0


def test_a_queue_that_has_messages_knows_better(world: StoreWorld, ends: QueueEnds) -> None:
    """Its numbers come from the log."""
    world.send("idle", 2)
    ends.receive(says(7), world.store.log.wrote)

    ends.reach(world.store.dispatcher.dispatched)

    assert next_number(world) == 2


def test_a_topic_that_is_deleted_begins_anew(world: StoreWorld, ends: QueueEnds) -> None:
    """What was said of it is forgotten; of others it stays."""
    ends.receive(QueueEndsDocument({"idle": {0: 7}, "other": {0: 9}}), world.store.log.wrote)
    ends.forget_topic("idle")

    ends.reach(world.store.dispatcher.dispatched)

    assert (next_number(world), next_number(world, "other")) == (0, 9)


def test_a_new_master_makes_all_of_them_at_once(world: StoreWorld, ends: QueueEnds) -> None:
    """It gives out the next numbers, wherever the old master's log ended."""
    ends.receive(QueueEndsDocument({f"idle-{number}": {0: 7} for number in range(20)}), world.store.log.wrote + 100)

    ends.adopt()

    assert {next_number(world, f"idle-{number}") for number in range(20)} == {7}


def test_many_are_made_a_few_in_each_turn(world: StoreWorld, ends: QueueEnds) -> None:
    """The loop is not held up by all of them."""
    ends.receive(QueueEndsDocument({f"idle-{number}": {0: 7} for number in range(20)}), world.store.log.wrote)
    turns = 0
    while any(next_number(world, f"idle-{number}") == 0 for number in range(20)):
        ends.reach(world.store.dispatcher.dispatched)
        turns += 1

    assert turns == 3


@pytest.mark.parametrize("place", [("a/b", 0, 7), ("idle", -1, 7), ("idle", 0, -1), ("idle", 0, QUEUE_OFFSET_MAX + 1)])
def test_a_queue_that_cannot_be_is_left_out(
    world: StoreWorld, ends: QueueEnds, place: tuple[str, int, int], caplog: pytest.LogCaptureFixture
) -> None:
    """The others are made, and it is said."""
    topic, number, end = place
    ends.receive(QueueEndsDocument({topic: {number: end}, "other": {0: 9}}), world.store.log.wrote)

    ends.reach(world.store.dispatcher.dispatched)

    assert next_number(world, "other") == 9
    assert "the master reports an impossible queue" in caplog.text


def test_without_room_it_is_tried_again(world: StoreWorld, ends: QueueEnds, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is believed made that is not."""

    def full(*_: object) -> bool:
        raise StoreFull("no room")

    ends.receive(says(7), world.store.log.wrote)
    with monkeypatch.context() as patch:
        patch.setattr(type(world.store.queues), "set_start_offset", full)
        ends.reach(world.store.dispatcher.dispatched)
    assert next_number(world) == 0

    ends.reach(world.store.dispatcher.dispatched)

    assert next_number(world) == 7


def test_without_room_for_a_file_the_number_holds_all_the_same(
    world: StoreWorld, ends: QueueEnds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as the process; the file comes with the first message."""

    def full(*_: object) -> None:
        raise StoreFull("no room")

    ends.receive(says(7), world.store.log.wrote)
    with monkeypatch.context() as patch:
        patch.setattr(ConsumeQueue, "extend", full)
        ends.adopt()
    assert next_number(world) == 7

    world.send("idle", 1)

    assert next_number(world) == 8
    world.store.close()
    world.open()
    assert next_number(world) == 8


# ------- real brokers


async def send(broker: Broker, number: int, count: int, body: bytes = b"x") -> list[int]:
    """The numbers that the messages get."""
    async with dialogue(broker) as client:
        return [int((await client.send_ok(body, queueId=str(number)))["queueOffset"]) for _ in range(count)]


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize("when", ["soon", "late", "twin"])
async def test_a_slave_that_comes_with_nothing_counts_on_as_the_next_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """No number is given away twice, and a consumer that stands there is not moved. The twin's master says nothing.

    Late is with the promotion, before anybody looks whether consumers' offsets can be right.
    """
    is_told = when != "twin"
    if when == "late":
        monkeypatch.setattr(QueueEnds, "reach", lambda self, dispatched: None)
    elif not is_told:
        monkeypatch.setattr(QueueEnds, "document", lambda self: QueueEndsDocument())
    conf = {**SYNC, **MOVED, **SMALL}
    async with group(tmp_path) as members:
        first = await members.start("one", **conf, brokerId="1")
        await first.orders.promote(1 << 8, [2], False)
        second = await members.start("two", **conf, brokerId="2")
        await second.orders.follow(1 << 8, first.settings.ha_address)
        await follows(first, 2)
        assert await send(first, IDLE, 5) == [0, 1, 2, 3, 4]
        async with dialogue(first) as client:
            await client.make_group(GROUP)
            await client.ask(15, {"consumerGroup": GROUP, "topic": TOPIC, "queueId": str(IDLE), "commitOffset": "5"})
        await send(first, BUSY, 20, bytes(10_000))
        await copied(first, second)
        await second.close()
        await expire(first)

        second = await members.start("two", **conf, brokerId="2", storePathRootDir=str(tmp_path / "empty"))
        await second.orders.follow(1 << 8, first.settings.ha_address)
        await follows(first, 2)
        await copied(first, second)
        await second.orders.promote(300, [1], False)
        await first.orders.follow(300, second.settings.ha_address)
        await follows(second, 1)

        assert await send(second, IDLE, 2) == ([5, 6] if is_told else [0, 1])
        assert (second.core.offsets.find(GROUP, TOPIC, IDLE) == 5) is is_told
