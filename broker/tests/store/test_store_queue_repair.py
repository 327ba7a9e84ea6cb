"""A running store rebuilds what it finds wrong in its consume queues: no message is skipped, none is served twice."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from gantry_broker.errors import QueueRebuilding, StoreFailed
from gantry_broker.store import sliced_scan
from gantry_broker.store.consume_queue import UNIT
from gantry_broker.store.queue_repair import REPORT_INTERVAL_MS, QueueRepair
from gantry_broker.store.recovery_point import RecoveryPointFile
from gantry_testing.store_world import StoreWorld, make_world
from gantry_wire.message import RECORD_BYTES_MIN, decode_records

QUEUE_FILE_UNITS = 50
COUNT = 120
UNIT_BYTES = 20


@pytest.fixture(params=["real", "faulty"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> StoreWorld:
    """A store with two queues whose messages lie between each other, over several files of everything."""
    made = make_world(request.param, tmp_path)
    made.open()
    for _ in range(COUNT):
        made.send("orders")
        made.send("bills")
    made.store.flush()
    made.store.flush_step()
    return made


def damage(world: StoreWorld, offset: int, position: int, mask: int = 0x01, *, topic: str = "orders") -> None:
    """Flip bits of one unit, in the file of a store that runs."""
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


def assert_whole(world: StoreWorld) -> None:
    for topic in ("orders", "bills"):
        assert world.bodies(topic) == world.sent_bodies(topic)


@pytest.mark.verify(quick=56)
@pytest.mark.parametrize("offset", [0, 17, 49, 50, COUNT - 1])
@pytest.mark.parametrize("bit", range(0, 96, 5))
def test_a_flipped_bit_of_a_unit_costs_no_message(world: StoreWorld, offset: int, bit: int) -> None:
    """Each bit of a unit's physical offset and size: every message is served once, and the unit is right again."""
    expected = unit_of(world, offset)
    damage(world, offset, bit // 8, 1 << bit % 8)

    assert_whole(world)
    assert unit_of(world, offset) == expected
    assert world.store.repair.queues.units_rebuilt == 1
    assert world.store.repair.queues.units_lost == 0


def test_units_beside_each_other_are_rebuilt_together(world: StoreWorld) -> None:
    """A page of zeros, which lead to the first message of the log: its neighbours say where to look."""
    queue = world.store.queues.get("orders", 0)
    assert queue is not None
    queue.files.files[1].view[:] = bytes(QUEUE_FILE_UNITS * UNIT_BYTES)

    assert_whole(world)
    assert world.store.repair.queues.units_rebuilt == QUEUE_FILE_UNITS


def test_a_queue_without_one_right_unit_is_rebuilt_from_the_whole_log(world: StoreWorld) -> None:
    """Units that all lead into another queue prove nothing; the log is read from its beginning to its end."""
    orders, bills = world.store.queues.get("orders", 0), world.store.queues.get("bills", 0)
    assert orders is not None and bills is not None
    for theirs, ours in zip(bills.files.files, orders.files.files, strict=True):
        ours.view[: 20 * UNIT_BYTES] = bytes(theirs.view[: 20 * UNIT_BYTES])
        ours.view[20 * UNIT_BYTES : 21 * UNIT_BYTES] = bytes(UNIT_BYTES)
        ours.view[21 * UNIT_BYTES :] = bytes(theirs.view[21 * UNIT_BYTES :])
    world.store.repair.queues.start(orders, 20, reason="test")

    world.repair()

    assert_whole(world)


@pytest.mark.parametrize("start", [49, 50, 60, 99])
def test_a_file_of_another_topics_queue_shows_no_foreign_message(world: StoreWorld, start: int) -> None:
    """Queue number and offsets are right in a file that was swapped with that of another topic; the topic is not."""
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
    assert_whole(world)


def test_a_unit_that_leads_to_a_good_record_of_another_place_is_rebuilt(world: StoreWorld) -> None:
    """The neighbour's unit in its place: the message is served at its own offset, and the neighbour only once."""
    queue = world.store.queues.get("orders", 0)
    assert queue is not None
    view = queue.files.files[0].view
    view[UNIT_BYTES : 2 * UNIT_BYTES] = bytes(view[2 * UNIT_BYTES : 3 * UNIT_BYTES])

    assert_whole(world)


def test_a_read_waits_while_the_search_takes_more_than_one_step(
    world: StoreWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is skipped meanwhile: the read is refused with what to do, and is right when it is repeated."""
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
    assert_whole(world)


def test_appending_goes_on_while_a_queue_is_rebuilt(world: StoreWorld, monkeypatch: pytest.MonkeyPatch) -> None:
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

    assert_whole(world)


def test_a_damaged_record_is_no_reason_to_blame_its_unit(world: StoreWorld) -> None:
    """Both are checked: a message that is damaged in the log is passed over and named, its neighbours are served."""
    physical, size, _ = unit_of(world, 17)
    extent = world.store.log.at(physical)
    assert extent is not None
    extent.view[physical - extent.base_offset + 23] ^= 1

    expected = world.sent_bodies()
    assert world.bodies() == [*expected[:17], *expected[18:]]
    assert unit_of(world, 17)[:2] == (physical, size)
    assert (world.store.repair.queues.units_rebuilt, world.store.repair.queues.units_lost) == (0, 1)


def test_a_wrong_unit_of_a_damaged_record_leads_to_the_damage(world: StoreWorld) -> None:
    """It is no filler, which would hide the message once a replica has given it back."""
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

    assert_whole(world)


def test_a_repair_is_reported_once_for_each_queue(world: StoreWorld, caplog: pytest.LogCaptureFixture) -> None:
    """One line says what was wrong and how many units were rebuilt; more of the same within a minute is another one."""
    with caplog.at_level(logging.WARNING):
        for offset in (3, 40, 80):
            damage(world, offset, 6)
        assert_whole(world)
        lines = [record for record in caplog.records if "consume queue" in record.getMessage()]
        assert [vars(line)["units_rebuilt"] for line in lines] == [1]
        assert (vars(lines[0])["topic"], vars(lines[0])["queue_offset"]) == ("orders", 3)

        world.clock.advance(REPORT_INTERVAL_MS)
        world.repair()

    lines = [record for record in caplog.records if "consume queue" in record.getMessage()]
    assert [vars(line)["units_rebuilt"] for line in lines] == [1, 2]


def test_the_recovery_point_doubts_a_queue_until_it_is_repaired_and_synced(
    world: StoreWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash in the middle of a repair leaves a queue that the next start builds again."""
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


def test_a_repaired_unit_survives_a_power_loss(tmp_path: Path) -> None:
    """What was written in place lies behind what was flushed, and is synced all the same."""
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
    assert_whole_orders = world.sent_bodies()
    assert world.bodies() == assert_whole_orders
    world.clock.advance(60_000)
    world.store.flush_step()

    world.lose_power()
    world.open()

    assert world.store.repair.queues.units_rebuilt == 0
    assert world.bodies() == assert_whole_orders
    assert world.store.repair.queues.units_rebuilt == 0


def test_a_topic_that_is_deleted_meanwhile_is_left_alone(world: StoreWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repair ends with its queue."""
    monkeypatch.setattr(sliced_scan, "SLICE_BYTES", 1)
    damage(world, 17, 6)
    with pytest.raises(QueueRebuilding):
        world.store.read("orders", 0, 17, count_max=1, bytes_max=1 << 20)
    world.store.repair.step()
    world.store.delete_topic("orders")

    world.repair()

    assert world.bodies("bills") == world.sent_bodies("bills")


def test_a_queue_whose_repair_ends_the_store_is_never_taken_for_whole(
    world: StoreWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step after the failure tries again, and fails again, until the process has ended."""
    queues, queue = world.store.repair.queues, world.store.queues.get("orders", 0)
    assert queue is not None
    damage(world, 17, 6)
    queues.start(queue, 17, reason="a test")

    def fail(*_: object) -> None:
        raise StoreFailed("the log file was replaced")

    monkeypatch.setattr(QueueRepair, "_proved_before", fail)
    for _ in range(3):
        assert queues.step() is False
        assert queue.is_corrupt and not queues.repair_now("orders", 0)


def test_without_a_repair_a_wrong_unit_stalls_its_queue(world: StoreWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: with the repair off the message is never served."""
    monkeypatch.setattr(QueueRepair, "step", lambda self: False)
    damage(world, 17, 6)

    for _ in range(3):
        with pytest.raises(QueueRebuilding):
            world.store.read("orders", 0, 17, count_max=1, bytes_max=1 << 20)
