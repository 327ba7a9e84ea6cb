"""Rows D1, D6 and D8 of the fault catalogue on the in-memory disk: the same guarantees without mounting a disk.

The in-memory disk loses unsynced data at a power loss, has a configured size, and fails the configured calls. The other
tests of these rows do the same with ext4 under a whole broker. A twin is the same test without one guard.
"""

import errno
from dataclasses import replace

import pytest
from faults.modes import MODES, Medium, Mode

from gantry_broker.errors import LogReadOnly, StoreFull
from gantry_broker.store import next_file
from gantry_broker.store.settings import FlushSettings, PoolSettings
from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.faulty_volume import FaultyVolume
from gantry_testing.store_world import TINY, StoreWorld

RETRY_MS = 60_000
"""Long enough for the store to try again to create the next file."""


def world_in(mode: Mode, *, capacity: int = 1 << 30) -> StoreWorld:
    is_crash_safe = mode.medium is not Medium.ANONYMOUS
    pool = PoolSettings(is_enabled=True, buffers_count=3, path="/pool" if is_crash_safe else "")
    settings = replace(TINY, flush=FlushSettings(is_sync=mode.is_sync))
    if mode.medium is not Medium.OFF:
        settings = replace(settings, pool=pool)
    return StoreWorld(FaultyDisk(capacity=capacity), "/data/store", settings, FaultyVolume(is_crash_safe=is_crash_safe))


def flush(world: StoreWorld) -> None:
    """Flush as the flush thread does at its interval."""
    world.clock.advance(20_000)
    world.store.flush_step()


@pytest.mark.parametrize("seed", [None, 1, 2, 3], ids=["all", "torn1", "torn2", "torn3"])
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_power_loss_keeps_what_the_mode_guarantees(mode: Mode, seed: int | None) -> None:
    """D1: what was flushed, or promised with SYNC_FLUSH, survives; the log is a prefix, and nothing reappears later."""
    world = world_in(mode)
    world.open()
    for _ in range(5):
        world.send(count=20)
        flush(world)
        flushed = world.store.log.flushed
        world.send(count=3)
        kept = world.store.positions.promised if mode.is_sync else flushed
        world.lose_power(seed)

        report = world.open()

        assert report.end >= kept and report.lost_flushed_bytes == 0
        world.forget_after(report.end)
        flush(world)
        assert world.bodies() == world.sent_bodies()
    assert kept > 0


def fill(world: StoreWorld) -> None:
    """Send until the store refuses for lack of space."""
    with pytest.raises(StoreFull):
        for _ in range(10_000):
            world.send()
            world.store.commit_step()


@pytest.mark.parametrize("medium", [Medium.OFF, Medium.TMPFS])
def test_a_full_disk_refuses_sends_until_there_is_room(medium: Medium) -> None:
    """D6: refused with space left, everything is readable meanwhile, and with space sends resume without a restart."""
    world = world_in(Mode(False, medium), capacity=404 * 1024)
    world.open()

    fill(world)

    assert world.bodies() == world.sent_bodies()
    assert world.disk.space("/").free > 0
    world.faulty_disk.capacity = 1 << 30
    world.clock.advance(RETRY_MS)
    world.send(count=10)
    assert world.bodies() == world.sent_bodies()
    world.kill()
    world.open()
    assert world.bodies() == world.sent_bodies()


def test_without_the_reserve_the_log_takes_its_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """D6's twin: without the check for space the last file takes the space of queues and tables."""
    left = []
    for is_asked in (True, False):
        world = world_in(Mode(False, Medium.OFF), capacity=404 * 1024)
        if not is_asked:
            monkeypatch.setattr(next_file, "has_room_for", lambda space, size: True)
        world.open()
        fill(world)
        left.append(world.disk.space("/").free)

    assert left[1] < TINY.mapped_file_size_commit_log <= left[0]


@pytest.mark.parametrize("mode", [Mode(False, Medium.OFF), Mode(True, Medium.OFF)], ids=str)
def test_a_disk_that_turns_read_only_ends_the_log(mode: Mode) -> None:
    """D8: the first refused write is the last one; reads work, and the next start has everything before it."""
    world = world_in(mode)
    world.open()
    world.send(count=10)
    flush(world)
    world.faulty_disk.fail_next("write", errno.EROFS)

    with pytest.raises(LogReadOnly):
        world.send()

    with pytest.raises(LogReadOnly):
        world.send()
    assert world.bodies() == world.sent_bodies()
    world.kill()
    world.open()
    assert world.bodies() == world.sent_bodies()
    world.send()
