"""A running store repairs its consume queues: no message is skipped, and none is served twice."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from gantry_broker.errors import QueueRebuilding, StoreFailed
from gantry_broker.store import sliced_scan
from gantry_broker.store.consume_queue import UNIT
from gantry_broker.store.queue_repair import QueueRepair
from gantry_broker.store.recovery_point import RecoveryPointFile
from gantry_broker.store.repair_log import REPORT_INTERVAL_MS
from gantry_testing.store_world import StoreWorld, make_world
from gantry_wire.message import RECORD_BYTES_MIN, decode_records

QUEUE_FILE_UNITS = 50
COUNT = 120
UNIT_BYTES = 20


@pytest.fixture(params=["real", "faulty"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> StoreWorld:
    """A store with two queues whose messages alternate in the log, over several files of each kind."""
    made = make_world(request.param, tmp_path)
    made.open()
    for _ in range(COUNT):
        made.send("orders")
        made.send("bills")
    made.store.flush()
    made.store.flush_step()
    return made


def damage(world: StoreWorld, offset: int, position: int, mask: int = 0x01, *, topic: str = "orders") -> None:
    """Flip bits of one unit in the file of a running store."""
    queue = world.store.queues.get(topic, 0)
    assert queue is not None
    file = queue.files.at(offset * UNIT_BYTES)
    assert file is not None
    file.view[offset * UNIT_BYTES - file.base_offset + position] ^= mask


def unit_of(world: StoreWorld, offset: int, topic: str = "orders") -> tuple[int, int, int]:
    queue = world.store.queues.get(topic, 0)
    assert queue is not None
    unit = queue.unit(offset)
    assert unit is not None
    return unit


def assert_all_messages_served(world: StoreWorld) -> None:
    for topic in ("orders", "bills"):
        assert world.bodies(topic) == world.sent_bodies(topic)


@pytest.mark.verify(quick=56)
@pytest.mark.parametrize("offset", [0, 17, 49, 50, COUNT - 1])
@pytest.mark.parametrize("bit", range(0, 96, 5))
def test_flipped_bit_of_a_unit_loses_no_message(world: StoreWorld, offset: int, bit: int) -> None:
    """For every fifth bit of a unit's offset and size, every message is served once and the unit is repaired."""
    expected = unit_of(world, offset)
    damage(world, offset, bit // 8, 1 << bit % 8)

    assert_all_messages_served(world)
    assert unit_of(world, offset) == expected
    assert world.store.repair.queues.units_rebuilt == 1
    assert world.store.repair.queues.units_lost == 0


def test_unit_that_points_too_far_does_not_end_its_queue_early(world: StoreWorld) -> None:
    """A start and a promotion remove units after an offset of the log, which is found by bisection."""
    queue = world.store.queues.get("orders", 0)
    assert queue is not None
    end = 100
    physical_end = unit_of(world, end)[0]
    misled: list[int] = []
    for offset in range(end - 2):
        damage(world, offset, 4, 0x08)
        assert queue.end_before(physical_end) == end, offset
        if queue.partition(0, COUNT, lambda unit: unit[0] < physical_end) != end:
            misled.append(offset)
        damage(world, offset, 4, 0x08)
    assert misled, "the twin: plain bisection finds another end for these damaged units"


def test_adjacent_wrong_units_are_rebuilt_together(world: StoreWorld) -> None:
    """Units of zeros lead to the first message of the log; their neighbours limit the range to search."""
    queue = world.store.queues.get("orders", 0)
    assert queue is not None
    queue.files.files[1].view[:] = bytes(QUEUE_FILE_UNITS * UNIT_BYTES)

    assert_all_messages_served(world)
    assert world.store.repair.queues.units_rebuilt == QUEUE_FILE_UNITS


def test_queue_without_any_right_unit_is_rebuilt_from_the_whole_log(world: StoreWorld) -> None:
    """Units that all lead into another queue prove nothing, so the whole log is read."""
    orders, bills = world.store.queues.get("orders", 0), world.store.queues.get("bills", 0)
    assert orders is not None and bills is not None
    for theirs, ours in zip(bills.files.files, orders.files.files, strict=True):
        ours.view[: 20 * UNIT_BYTES] = bytes(theirs.view[: 20 * UNIT_BYTES])
        ours.view[20 * UNIT_BYTES : 21 * UNIT_BYTES] = bytes(UNIT_BYTES)
        ours.view[21 * UNIT_BYTES :] = bytes(theirs.view[21 * UNIT_BYTES :])
    world.store.repair.queues.request_repair(orders, 20, reason="test")

    world.repair()

    assert_all_messages_served(world)


@pytest.mark.parametrize("start", [49, 50, 60, 99])
def test_queue_file_of_another_topic_serves_no_foreign_message(world: StoreWorld, start: int) -> None:
    """In a file swapped with another topic's, queue id and offsets match; only the topic differs."""
    world.close()
    names = [f"consumequeue/{topic}/0/{1000:020d}" for topic in ("orders", "bills")]
    ours, theirs = (world.disk.read_file(world.path(name)) for name in names)
    world.overwrite(names[0], 0, theirs)
    world.overwrite(names[1], 0, ours)
    world.open()

    topics = set()
    for _ in range(3):
        try:
            result = world.store.read("orders", 0, start, count_max=32, bytes_max=1 << 20)
        except QueueRebuilding:
            world.repair()
            continue
        topics |= {message.topic for message in decode_records(result.body)}
    assert topics == {"orders"}
    assert_all_messages_served(world)


def test_unit_that_leads_to_another_good_record_is_rebuilt(world: StoreWorld) -> None:
    """With the neighbour's unit in its place, the message is served at its own offset, and the neighbour once."""
    queue = world.store.queues.get("orders", 0)
    assert queue is not None
    view = queue.files.files[0].view
    view[UNIT_BYTES : 2 * UNIT_BYTES] = bytes(view[2 * UNIT_BYTES : 3 * UNIT_BYTES])

    assert_all_messages_served(world)


def test_read_is_refused_while_the_search_takes_several_steps(
    world: StoreWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No message is skipped meanwhile: the read is refused, and succeeds when it is repeated."""
    monkeypatch.setattr(sliced_scan, "SLICE_BYTES", 1)
    damage(world, 17, 6)
    woken: list[str] = []
    world.store.on_appended.append(lambda queues: woken.extend(queue.topic for queue in queues))

    assert world.store.read("orders", 0, 10, count_max=32, bytes_max=1 << 20).next_offset == 17
    for _ in range(2):
        with pytest.raises(QueueRebuilding, match=r"orders/0 is being rebuilt"):
            world.store.read("orders", 0, 17, count_max=32, bytes_max=1 << 20)
    assert woken == []

    world.repair()

    assert woken == ["orders"]
    assert world.store.read("orders", 0, 17, count_max=3, bytes_max=1 << 20).next_offset == 20
    assert_all_messages_served(world)


def test_appending_continues_while_a_queue_is_rebuilt(world: StoreWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue under repair takes new messages, in order and without a gap."""
    monkeypatch.setattr(sliced_scan, "SLICE_BYTES", 1)
    queue = world.store.queues.get("orders", 0)
    assert queue is not None
    queue.files.files[0].view[:] = bytes(QUEUE_FILE_UNITS * UNIT_BYTES)
    with pytest.raises(QueueRebuilding):
        world.store.read("orders", 0, 0, count_max=32, bytes_max=1 << 20)

    while world.store.repair.step():
        world.send("orders")
        world.store.advance()

    assert_all_messages_served(world)


def test_damaged_record_does_not_make_its_unit_wrong(world: StoreWorld) -> None:
    """A message that is damaged in the log is skipped and reported, and its neighbours are served."""
    physical, size, _ = unit_of(world, 17)
    extent = world.store.log.at(physical)
    assert extent is not None
    extent.view[physical - extent.base_offset + 23] ^= 1

    expected = world.sent_bodies()
    assert world.bodies() == [*expected[:17], *expected[18:]]
    assert unit_of(world, 17)[:2] == (physical, size)
    assert (world.store.repair.queues.units_rebuilt, world.store.repair.queues.units_lost) == (0, 1)


def test_wrong_unit_of_a_damaged_record_leads_to_the_damage(world: StoreWorld) -> None:
    """A filler would hide the message after a replica has healed it."""
    physical, size, _ = unit_of(world, 17)
    extent = world.store.log.at(physical)
    assert extent is not None
    extent.view[physical - extent.base_offset + 23] ^= 1
    damage(world, 17, 6)

    expected = world.sent_bodies()
    assert world.bodies() == [*expected[:17], *expected[18:]]
    assert unit_of(world, 17) == (physical, RECORD_BYTES_MIN, 0)

    extent.view[physical - extent.base_offset + 23] ^= 1
    world.store.repair.queues.forget_lost(physical, physical + size)

    assert_all_messages_served(world)


def test_repair_is_logged_once_for_each_queue(world: StoreWorld, caplog: pytest.LogCaptureFixture) -> None:
    """One line has the reason and the number of rebuilt units; later repairs within a minute share another one."""
    with caplog.at_level(logging.WARNING):
        for offset in (3, 40, 80):
            damage(world, offset, 6)
        assert_all_messages_served(world)
        lines = [record for record in caplog.records if "consume queue" in record.getMessage()]
        assert [vars(line)["units_rebuilt"] for line in lines] == [1]
        assert (vars(lines[0])["topic"], vars(lines[0])["queue_offset"]) == ("orders", 3)

        world.clock.advance(REPORT_INTERVAL_MS)
        world.repair()

    lines = [record for record in caplog.records if "consume queue" in record.getMessage()]
    assert [vars(line)["units_rebuilt"] for line in lines] == [1, 2]


def test_recovery_point_lists_a_queue_until_it_is_repaired_and_synced(
    world: StoreWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash during a repair the next start rebuilds the queue."""
    monkeypatch.setattr(sliced_scan, "SLICE_BYTES", 1)
    damage(world, 17, 6)
    with pytest.raises(QueueRebuilding):
        world.store.read("orders", 0, 17, count_max=1, bytes_max=1 << 20)
    world.store.flush_step()
    points = RecoveryPointFile(world.disk, world.root)
    point = points.read()
    assert point is not None and point.damaged == [("orders", 0)]

    world.repair()
    world.store.flush_step()

    point = points.read()
    assert point is not None and point.damaged == []
    file = world.disk.read_file(world.path("consumequeue/orders/0/" + "0" * 20))
    assert UNIT.unpack_from(file, 17 * UNIT_BYTES) == unit_of(world, 17)


def test_repaired_unit_survives_a_power_loss(tmp_path: Path) -> None:
    """A unit that is rewritten before the flushed end is synced, too."""
    world = make_world("faulty", tmp_path)
    world.open()
    world.send("orders", COUNT)
    world.store.flush()
    world.store.flush_step()
    world.clock.advance(60_000)
    world.store.flush_step()
    damage(world, 17, 6)
    node = world.faulty_disk._file(world.path("consumequeue/orders/0/" + "0" * 20))
    node.sync()
    expected = world.sent_bodies()
    assert world.bodies() == expected
    world.clock.advance(60_000)
    world.store.flush_step()

    world.lose_power()
    world.open()

    assert world.store.repair.queues.units_rebuilt == 0
    assert world.bodies() == expected
    assert world.store.repair.queues.units_rebuilt == 0


def test_repair_ends_when_its_topic_is_deleted(world: StoreWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repair of a deleted topic ends and changes nothing."""
    monkeypatch.setattr(sliced_scan, "SLICE_BYTES", 1)
    damage(world, 17, 6)
    with pytest.raises(QueueRebuilding):
        world.store.read("orders", 0, 17, count_max=1, bytes_max=1 << 20)
    world.store.repair.step()
    world.store.delete_topic("orders")

    world.repair()

    assert world.bodies("bills") == world.sent_bodies("bills")


def test_queue_whose_repair_fails_the_store_stays_corrupt(world: StoreWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps after the failure fail again until the process has ended."""
    queues, queue = world.store.repair.queues, world.store.queues.get("orders", 0)
    assert queue is not None
    damage(world, 17, 6)
    queues.request_repair(queue, 17, reason="a test")

    def fail(*_: object) -> None:
        raise StoreFailed("the log file was replaced")

    monkeypatch.setattr(QueueRepair, "_proved_before", fail)
    for _ in range(3):
        assert queues.step() is False
        assert queue.is_corrupt and not queues.repair_now("orders", 0)


def test_without_repair_a_wrong_unit_blocks_its_queue(world: StoreWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the repair the message is never served."""
    monkeypatch.setattr(QueueRepair, "step", lambda self: False)
    damage(world, 17, 6)

    for _ in range(3):
        with pytest.raises(QueueRebuilding):
            world.store.read("orders", 0, 17, count_max=1, bytes_max=1 << 20)
