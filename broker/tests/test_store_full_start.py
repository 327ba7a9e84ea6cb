"""A start on a disk without one free block: it comes up for reads, and takes messages again once there is room."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from gantry_broker.errors import StoreFull
from gantry_broker.store.draft import Draft
from gantry_broker.testing.local import running_broker
from gantry_broker.testing.store_world import BORN_HOST, StoreWorld, make_world

COUNT = 240


def stopped(*, is_clean: bool) -> StoreWorld:
    world = make_world("faulty", Path())
    world.open()
    for number in range(COUNT):
        world.append([world.draft("orders", number % 3, keys=f"key-{number}")])
        world.clock.advance(1)
        if number == COUNT // 2:
            world.clock.advance(60_000)
            world.store.flush_step()
    world.store.flush()
    if is_clean:
        world.close()
    else:
        world.kill()
    return world


def append_until_full(world: StoreWorld) -> None:
    for number in range(1000):
        world.append([world.draft("orders", number % 3)])


@pytest.mark.parametrize(
    ("is_clean", "missing"),
    [(True, None), (True, "checkpoint"), (True, "recovery-point.json"), (True, "index"), (False, None),
     (False, "checkpoint"), (False, "recovery-point.json")],
)  # fmt: skip
def test_a_full_disk_stops_no_start(*, is_clean: bool, missing: str | None) -> None:
    """Everything is read; sends are refused for want of room, and taken without a restart when there is some."""
    world = stopped(is_clean=is_clean)
    if missing == "index":
        world.disk.remove_tree(world.path("index"))
    elif missing is not None and world.disk.exists(world.path(missing)):
        world.disk.remove(world.path(missing))
    world.faulty_disk.capacity = world.faulty_disk.space("/").used

    world.open()

    for queue_id in range(3):
        assert world.bodies("orders", queue_id) == world.sent_bodies("orders", queue_id)
    with pytest.raises(StoreFull):
        append_until_full(world)
    world.faulty_disk.capacity = 1 << 30
    world.clock.advance(60_000)
    world.append([world.draft("orders", 0)])
    world.store.flush()
    world.repair()
    for queue_id in range(3):
        assert world.bodies("orders", queue_id) == world.sent_bodies("orders", queue_id)
    for number in range(0, COUNT, 17):
        assert len(world.store.query_keys("orders", f"key-{number}", 64, 0, 1 << 60)[0]) == 1


async def test_a_table_that_is_missing_after_a_clean_stop_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A clean stop writes every table: one that is gone would silently begin empty, consumers' offsets among them."""
    async with running_broker(tmp_path) as broker:
        queue = broker.store.queue("orders", 0)
        broker.store.append([Draft(queue, b"x", b"", 0, 0, 0, BORN_HOST, 0, 0, 0, 0, ())])
    (tmp_path / "config" / "consumerOffset.json").unlink()
    (tmp_path / "config" / "consumerOffset.json.bak").unlink(missing_ok=True)

    with caplog.at_level(logging.ERROR):
        async with running_broker(tmp_path):
            pass
    [line] = [record for record in caplog.records if "is missing" in record.getMessage()]
    assert vars(line)["path"].endswith("consumerOffset.json")

    caplog.clear()
    async with running_broker(tmp_path):
        pass
    assert not [record for record in caplog.records if "is missing" in record.getMessage()]
