"""What is derived from the log and built again: it is believed again only when all of it is on the disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gantry_broker.store import crash_points
from gantry_broker.store.recovery_point import RecoveryPoint, RecoveryPointFile
from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.store_world import TINY, StoreWorld, make_world

FIRST_FILE = "00000000000000000000"
UNIT = 20


class Died(BaseException):
    """The process has ended."""


@pytest.fixture(params=["real", "faulty"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> StoreWorld:
    """A store with two queues and a recovery point that knows all of it, cleanly stopped."""
    made = make_world(request.param, tmp_path)
    made.open()
    made.send("orders", 40)
    made.send("bills", 40)
    made.close()
    return made


def point_of(world: StoreWorld) -> RecoveryPoint:
    point = RecoveryPointFile(world.disk, world.root).read()
    assert point is not None
    return point


def die_in_recovery(world: StoreWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that is killed when the log is recovered, and nothing derived is on the disk."""

    def die(name: str) -> None:
        if name == crash_points.MID_RECOVERY:
            raise Died

    with monkeypatch.context() as patched:
        patched.setattr(crash_points, "hit", die)
        with pytest.raises(Died):
            world.open()
    world.disk.kill()


def assert_whole(world: StoreWorld) -> None:
    for topic in ("orders", "bills"):
        assert world.bodies(topic) == world.sent_bodies(topic)


def assert_indexed(world: StoreWorld) -> None:
    for message in world.messages("orders"):
        records, _, _ = world.store.keys.records("orders", message.properties["UNIQ_KEY"], 32, 0, 1 << 60)
        assert len(records) == 1


def test_a_queue_that_was_not_built_to_its_end_is_built_again(
    world: StoreWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue with a hole, and with the ends that the recovery point knows, is not believed if its builder has died."""
    world.disk.remove_tree(world.path("consumequeue/orders"))
    die_in_recovery(world, monkeypatch)
    world.overwrite(f"consumequeue/orders/0/{FIRST_FILE}", 15 * UNIT, bytes(10 * UNIT))

    assert point_of(world).damaged == [("orders", 0)]
    assert world.open().queues_rebuilt == [("orders", 0)]
    assert_whole(world)
    assert point_of(world).damaged == []


def test_an_index_that_was_not_built_to_its_end_is_built_again(
    world: StoreWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recovery point does not vouch for an index any more while it is built."""
    world.disk.remove_tree(world.path("index"))
    die_in_recovery(world, monkeypatch)

    assert not point_of(world).is_indexed
    assert world.open().is_index_rebuilt
    assert_indexed(world)
    assert point_of(world).is_indexed


def test_a_queue_that_begins_with_nothing_is_not_believed(world: StoreWorld) -> None:
    """A unit of zeros leads to the log's first message, and may be in that message's queue: its size says no."""
    world.overwrite(f"consumequeue/orders/0/{FIRST_FILE}", 0, bytes(10 * UNIT))

    assert world.open().queues_rebuilt == [("orders", 0)]
    assert_whole(world)


def test_a_full_disk_has_room_for_the_doubt_when_what_is_doubted_is_gone() -> None:
    """Where there is no room to write that a queue is wrong, its own files are the room."""
    world = StoreWorld(FaultyDisk(), "/data/store", replace(TINY, is_index_enabled=False))
    world.open()
    world.send("orders", 40)
    world.close()
    world.overwrite(f"consumequeue/orders/0/{FIRST_FILE}", 0, bytes(10 * UNIT))
    point_bytes = world.disk.file_size(world.path("recovery-point.json"))
    # Too little for a new point beside the old one, and enough for what it says more than that.
    world.faulty_disk.capacity = world.faulty_disk.space("/").used + point_bytes

    assert world.open().queues_rebuilt == [("orders", 0)]
    assert world.bodies("orders") == world.sent_bodies("orders")
