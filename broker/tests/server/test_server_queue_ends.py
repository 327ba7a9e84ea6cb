"""A queue whose messages have all expired continues at its offset, also on a slave that never had any of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from test_server_roles import SYNC, UNASSIGNED, running_group, wait_until_copied, wait_until_following

from gantry_broker.app import Broker
from gantry_broker.errors import StoreFull
from gantry_broker.server.roles.table_sync import QueueEnds, QueueEndsDocument
from gantry_broker.store.consume_queue import ConsumeQueue
from gantry_broker.store.inspect.findings import Harm, Kind
from gantry_broker.store.queue_table import QUEUE_OFFSET_MAX, QueueTable
from gantry_status.orders import HaRole, OrderRefused
from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.local import GROUP, TOPIC, dialogue, expire
from gantry_testing.store_world import TINY, StoreWorld
from gantry_testing.verifying import kinds, verify
from gantry_wire import ResponseCode

SMALL = {"mappedFileSizeCommitLog": "131072", "maxMessageSize": "16384"}
IDLE, BUSY = 1, 0


@pytest.fixture
def world() -> Iterator[StoreWorld]:
    one = StoreWorld(FaultyDisk(), "/store", TINY)
    one.open()
    yield one
    one.store.close()


@pytest.fixture
def queue_ends(world: StoreWorld) -> QueueEnds:
    return QueueEnds(world.store)


def report_end(end: int, topic: str = "idle", number: int = 0) -> QueueEndsDocument:
    """Return a table of queue ends, as the master sends it."""
    return QueueEndsDocument({topic: {number: end}})


def next_number(world: StoreWorld, topic: str = "idle") -> int:
    """Return the queue offset of the next message."""
    queue = world.store.queues.get(topic, 0)
    return 0 if queue is None else queue.end


@pytest.mark.parametrize("end", [1, 7, 60, 61, 1_000])
def test_empty_queue_continues_at_the_reported_end_after_a_restart(
    world: StoreWorld, queue_ends: QueueEnds, end: int
) -> None:
    """At a file's border, within a file, and many files on; nothing can be read before the first message."""
    queue_ends.receive(report_end(end), world.store.log.wrote)

    queue_ends.apply_reached(world.store.dispatcher.dispatched)

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


def test_queue_ends_wait_until_the_masters_log_is_visible(world: StoreWorld, queue_ends: QueueEnds) -> None:
    """Older messages of the queue may not have arrived yet."""
    queue_ends.receive(report_end(7), world.store.log.wrote + 1)

    queue_ends.apply_reached(world.store.dispatcher.dispatched)

    assert next_number(world) == 0


@pytest.mark.parametrize("end", [3, 7, 1_000])
def test_queue_whose_last_messages_were_lost_continues_after_them(
    world: StoreWorld, queue_ends: QueueEnds, end: int
) -> None:
    """The master has accepted their loss; no offset is assigned twice, also after a restart, and by a next master."""
    world.send("idle", 2)
    queue_ends.receive(report_end(end), world.store.log.wrote)

    queue_ends.apply_reached(world.store.dispatcher.dispatched)

    assert next_number(world) == end
    assert queue_ends.document().end_table == {"idle": {0: end}}
    world.store.close()
    world.open()
    assert next_number(world) == end
    world.send("idle", 1)
    assert next_number(world) == end + 1
    world.store.close()
    assert kinds(verify(world)) == {(Kind.NUMBERS_MISSING, Harm.ODD)}
    world.open()


def test_queue_that_has_more_messages_keeps_its_end(world: StoreWorld, queue_ends: QueueEnds) -> None:
    """Its offsets come from the log."""
    world.send("idle", 9)
    queue_ends.receive(report_end(7), world.store.log.wrote)

    queue_ends.apply_reached(world.store.dispatcher.dispatched)

    assert next_number(world) == 9
    assert queue_ends.document().end_table == {}


def test_deleted_topic_starts_at_zero(world: StoreWorld, queue_ends: QueueEnds) -> None:
    """Its reported ends are forgotten; those of other topics stay."""
    queue_ends.receive(QueueEndsDocument({"idle": {0: 7}, "other": {0: 9}}), world.store.log.wrote)
    queue_ends.forget_topic("idle")

    queue_ends.apply_reached(world.store.dispatcher.dispatched)

    assert (next_number(world), next_number(world, "other")) == (0, 9)


def test_new_master_adopts_all_queue_ends_at_once(world: StoreWorld, queue_ends: QueueEnds) -> None:
    """It assigns the next offsets, wherever the old master's log ended."""
    queue_ends.receive(
        QueueEndsDocument({f"idle-{number}": {0: 7} for number in range(20)}), world.store.log.wrote + 100
    )

    queue_ends.adopt()

    assert {next_number(world, f"idle-{number}") for number in range(20)} == {7}


def test_queue_ends_are_applied_in_small_steps(world: StoreWorld, queue_ends: QueueEnds) -> None:
    """The loop is not blocked by a long table."""
    queue_ends.receive(QueueEndsDocument({f"idle-{number}": {0: 7} for number in range(20)}), world.store.log.wrote)
    turns = 0
    while any(next_number(world, f"idle-{number}") == 0 for number in range(20)):
        queue_ends.apply_reached(world.store.dispatcher.dispatched)
        turns += 1

    assert turns == 3


@pytest.mark.parametrize("place", [("a/b", 0, 7), ("idle", -1, 7), ("idle", 0, -1), ("idle", 0, QUEUE_OFFSET_MAX + 1)])
def test_invalid_queue_end_is_logged_and_ignored(
    world: StoreWorld, queue_ends: QueueEnds, place: tuple[str, int, int], caplog: pytest.LogCaptureFixture
) -> None:
    """The ends of other queues are applied."""
    topic, number, end = place
    queue_ends.receive(QueueEndsDocument({topic: {number: end}, "other": {0: 9}}), world.store.log.wrote)

    queue_ends.apply_reached(world.store.dispatcher.dispatched)

    assert next_number(world, "other") == 9
    assert "ignored an invalid queue end that the master reported" in caplog.text


def test_queue_ends_are_retried_without_room(
    world: StoreWorld, queue_ends: QueueEnds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No end counts as applied that is not."""

    def full(*_: object) -> bool:
        raise StoreFull("no room")

    queue_ends.receive(report_end(7), world.store.log.wrote)
    with monkeypatch.context() as patch:
        patch.setattr(type(world.store.queues), "raise_end", full)
        queue_ends.apply_reached(world.store.dispatcher.dispatched)
    assert next_number(world) == 0

    queue_ends.apply_reached(world.store.dispatcher.dispatched)

    assert next_number(world) == 7


def test_queue_end_is_kept_in_memory_without_room_for_a_file(
    world: StoreWorld, queue_ends: QueueEnds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is kept as long as the process; the file is created with the first message."""

    def full(*_: object) -> None:
        raise StoreFull("no room")

    queue_ends.receive(QueueEndsDocument({"idle": {0: 7}, "other": {0: 9}}), world.store.log.wrote)
    with monkeypatch.context() as patch:
        patch.setattr(ConsumeQueue, "extend", full)
        queue_ends.adopt()
        assert [next_number(world, topic) for topic in ("idle", "other")] == [7, 9], "expected all queues to be tried"

    world.send("idle", 1)

    assert next_number(world) == 8
    world.store.close()
    world.open()
    assert next_number(world) == 8


def test_file_of_a_queue_end_is_created_as_soon_as_there_is_space(
    world: StoreWorld, queue_ends: QueueEnds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slave tries again; without a file a restart would begin at 0."""

    def full(*_: object) -> None:
        raise StoreFull("no room")

    queue_ends.receive(report_end(7), world.store.log.wrote)
    with monkeypatch.context() as patch:
        patch.setattr(ConsumeQueue, "extend", full)
        queue_ends.apply_reached(world.store.dispatcher.dispatched)
    queue_ends.apply_reached(world.store.dispatcher.dispatched)

    world.store.close()
    world.open()
    assert next_number(world) == 7


def test_new_master_needs_space_for_the_offsets_of_lost_messages(queue_ends: QueueEnds, world: StoreWorld) -> None:
    """Without it no end is applied; with it all are, and no offset is assigned twice."""
    world.send("lost", 2)
    world.send("idle", 2)
    queue_ends.receive(QueueEndsDocument({"empty": {0: 7}, "idle": {0: 5}, "lost": {0: 40}}), 1 << 40)
    assert isinstance(world.disk, FaultyDisk)
    world.disk.capacity = world.disk.space("/").used
    with pytest.raises(StoreFull):
        queue_ends.adopt()
    assert [next_number(world, topic) for topic in ("lost", "idle", "empty")] == [2, 2, 0]

    world.disk.capacity *= 2
    queue_ends.adopt()

    assert [next_number(world, topic) for topic in ("lost", "idle", "empty")] == [40, 5, 7]


def test_new_master_needs_space_for_further_files_of_a_queue(queue_ends: QueueEnds, world: StoreWorld) -> None:
    """That is noticed only when the files are created."""
    world.send("lost", 2)
    queue_ends.receive(report_end(500, "lost"), 1 << 40)
    assert isinstance(world.disk, FaultyDisk)
    world.disk.capacity = world.disk.space("/").used + TINY.mapped_file_size_consume_queue
    with pytest.raises(StoreFull, match="topic lost, queue 0"):
        queue_ends.adopt()

    world.disk.capacity *= 2
    queue_ends.adopt()

    assert next_number(world, "lost") == 500


# ------- real brokers


async def send(broker: Broker, number: int, count: int, body: bytes = b"x") -> list[int]:
    """Send messages, and return their queue offsets."""
    async with dialogue(broker) as client:
        return [int((await client.send_ok(body, queueId=str(number)))["queueOffset"]) for _ in range(count)]


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize("when", ["soon", "late", "never, the twin"])
async def test_empty_slave_continues_offsets_as_the_next_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """No offset is assigned twice, and a consumer at the end is not moved.

    The twin has a master that reports nothing. With a late report, the ends are applied by the promotion,
    before consumers' offsets are clamped.
    """
    is_reported = when != "never, the twin"
    if when == "late":
        monkeypatch.setattr(QueueEnds, "apply_reached", lambda self, dispatched: None)
    elif not is_reported:
        monkeypatch.setattr(QueueEnds, "document", lambda self: QueueEndsDocument())
    conf = {**SYNC, **UNASSIGNED, **SMALL}
    async with running_group(tmp_path) as members:
        first = await members.start("one", **conf, brokerId="1")
        await first.orders.promote(1 << 8, [2], False)
        second = await members.start("two", **conf, brokerId="2")
        await second.orders.follow(1 << 8, first.settings.ha_address)
        await wait_until_following(first, 2)
        assert await send(first, IDLE, 5) == [0, 1, 2, 3, 4]
        async with dialogue(first) as client:
            await client.make_group(GROUP)
            await client.ask(15, {"consumerGroup": GROUP, "topic": TOPIC, "queueId": str(IDLE), "commitOffset": "5"})
        await send(first, BUSY, 20, bytes(10_000))
        await wait_until_copied(first, second)
        await second.close()
        await expire(first)

        second = await members.start("two", **conf, brokerId="2", storePathRootDir=str(tmp_path / "empty"))
        await second.orders.follow(1 << 8, first.settings.ha_address)
        await wait_until_following(first, 2)
        await wait_until_copied(first, second)
        await second.orders.promote(300, [1], False)
        await first.orders.follow(300, second.settings.ha_address)
        await wait_until_following(second, 1)

        assert await send(second, IDLE, 2) == ([5, 6] if is_reported else [0, 1])
        assert (second.core.offsets.find(GROUP, TOPIC, IDLE) == 5) is is_reported


async def test_promotion_without_space_for_fillers_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slave stays one, serves reads, and takes no sends; with space it becomes master, after the lost messages."""
    conf = {**SYNC, **UNASSIGNED, **SMALL}
    async with running_group(tmp_path) as members:
        first = await members.start("one", **conf, brokerId="1")
        await first.orders.promote(1 << 8, [2], False)
        second = await members.start("two", **conf, brokerId="2")
        await second.orders.follow(1 << 8, first.settings.ha_address)
        await wait_until_following(first, 2)
        assert await send(first, IDLE, 5) == [0, 1, 2, 3, 4]
        await wait_until_copied(first, second)
        second.replication.tables.queue_ends.receive(QueueEndsDocument({TOPIC: {IDLE: 50_000}}), 1 << 40)

        def full(*_: object) -> None:
            raise StoreFull("no room for a file: No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(QueueTable, "reserve_to", full)
            for force in (False, True):
                with pytest.raises(OrderRefused, match=r"cannot become master: no room .* make room on the disk"):
                    await second.orders.promote(300, [1], force)
        status = await second.orders.status()
        assert (status.role, status.epoch, status.promised_epoch) == (HaRole.SLAVE, 1 << 8, 300)
        assert "queue offsets of lost messages" in status.problem
        async with dialogue(second) as client:
            assert len(await client.read(0, queueId=str(IDLE))) == 5
            assert (await client.send(b"x")).code == ResponseCode.SERVICE_NOT_AVAILABLE

        await second.orders.promote(300, [1], False)
        await first.orders.follow(300, second.settings.ha_address)
        await wait_until_following(second, 1)
        assert await send(second, IDLE, 1) == [50_000]
        assert (await second.orders.status()).problem == ""
