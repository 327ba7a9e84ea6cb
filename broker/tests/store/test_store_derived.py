"""Rebuilt derived files are trusted only when all of their data is on the disk.

*Derived* are files that can be rebuilt from the log: consume queues, key index, checkpoint and recovery point.
"""

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


class ProcessEnded(BaseException):
    """Raised where the process under test would have ended."""


@pytest.fixture(params=["real", "faulty"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> StoreWorld:
    """Return a cleanly stopped store with two queues and a recovery point that covers both."""
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


def end_in_recovery(world: StoreWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start and end when the log is recovered and no derived file is on the disk."""

    def end_process(name: str) -> None:
        if name == crash_points.MID_RECOVERY:
            raise ProcessEnded

    with monkeypatch.context() as patched:
        patched.setattr(crash_points, "hit", end_process)
        with pytest.raises(ProcessEnded):
            world.open()
    world.disk.kill()


def assert_all_messages_served(world: StoreWorld) -> None:
    for topic in ("orders", "bills"):
        assert world.bodies(topic) == world.sent_bodies(topic)


def assert_indexed(world: StoreWorld) -> None:
    for message in world.messages("orders"):
        records, _, _ = world.store.keys.records("orders", message.properties["UNIQ_KEY"], 32, 0, 1 << 60)
        assert len(records) == 1


def test_incompletely_rebuilt_queue_is_rebuilt(world: StoreWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue with a hole and the ends of the recovery point is not trusted after its rebuild was interrupted."""
    world.disk.remove_tree(world.path("consumequeue/orders"))
    end_in_recovery(world, monkeypatch)
    world.overwrite(f"consumequeue/orders/0/{FIRST_FILE}", 15 * UNIT, bytes(10 * UNIT))

    assert point_of(world).damaged == [("orders", 0)]
    assert world.open().queues_rebuilt == [("orders", 0)]
    assert_all_messages_served(world)
    assert point_of(world).damaged == []


def test_incompletely_rebuilt_index_is_rebuilt(world: StoreWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recovery point does not declare an index durable while it is rebuilt."""
    world.disk.remove_tree(world.path("index"))
    end_in_recovery(world, monkeypatch)

    assert not point_of(world).is_indexed
    assert world.open().is_index_rebuilt
    assert_indexed(world)
    assert point_of(world).is_indexed


def test_queue_that_begins_with_zeros_is_not_trusted(world: StoreWorld) -> None:
    """A unit of zeros leads to the log's first message, perhaps one of that queue; its size exposes it."""
    world.overwrite(f"consumequeue/orders/0/{FIRST_FILE}", 0, bytes(10 * UNIT))

    assert world.open().queues_rebuilt == [("orders", 0)]
    assert_all_messages_served(world)


def test_deleting_untrusted_files_makes_room_for_the_recovery_point() -> None:
    """If the disk is too full to record that a queue is wrong, the queue's own files are deleted first."""
    world = StoreWorld(FaultyDisk(), "/data/store", replace(TINY, is_index_enabled=False))
    world.open()
    world.send("orders", 40)
    world.close()
    world.overwrite(f"consumequeue/orders/0/{FIRST_FILE}", 0, bytes(10 * UNIT))
    point_bytes = world.disk.file_size(world.path("recovery-point.json"))
    # Too little for a new point beside the old one, and enough for the additional bytes of the new one.
    world.faulty_disk.capacity = world.faulty_disk.space("/").used + point_bytes

    assert world.open().queues_rebuilt == [("orders", 0)]
    assert world.bodies("orders") == world.sent_bodies("orders")
