"""The write buffer survives its process, belongs to one store and one start, and never blocks appends for long.

A start *replays* what a buffer has and the log file lacks. A buffer that does not continue the log is *set aside*: its
bytes are copied to a directory of the store.
"""

from __future__ import annotations

import dataclasses
import errno

import pytest

from gantry_broker.errors import PoolExhausted, StoreFailed, StoreLocked, StoreUnusable
from gantry_broker.store.committer import round_bytes
from gantry_broker.store.settings import FlushSettings, PoolSettings
from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.faulty_volume import FaultyVolume
from gantry_testing.store_world import TINY, StoreWorld

POOL = dataclasses.replace(TINY, pool=PoolSettings(is_enabled=True, buffers_count=3, path="/pool"))


def make_pooled(*, is_crash_safe: bool = True, is_sync: bool = False, count: int = 3) -> StoreWorld:
    pool = PoolSettings(is_enabled=True, buffers_count=count, path="/pool" if is_crash_safe else "")
    settings = dataclasses.replace(TINY, pool=pool, flush=FlushSettings(is_sync=is_sync))
    return StoreWorld(FaultyDisk(), "/data/store", settings, FaultyVolume(is_crash_safe=is_crash_safe))


@pytest.fixture
def pooled() -> StoreWorld:
    world = make_pooled()
    world.open()
    return world


def send_slowly(world: StoreWorld, count: int) -> None:
    """Send slowly, so that the commit thread runs in between and no append lacks a buffer."""
    for _ in range(count):
        world.send()
        world.store.commit_step()


def test_an_append_is_read_from_the_buffer_before_it_is_in_the_file(pooled: StoreWorld) -> None:
    """Consumers can read a message at once, before the commit writes it to the file."""
    pooled.send(count=5)

    assert pooled.bodies() == pooled.sent_bodies()
    assert (pooled.store.log.committed, pooled.store.log.flushed) == (0, 0)
    assert pooled.files("commitlog")["commitlog/00000000000000000000"].count(0) == 16 * 1024


def test_commit_copies_exactly_the_written_bytes(pooled: StoreWorld) -> None:
    """After the interval the file holds the bytes of the buffer, and ``committed`` covers them."""
    pooled.send(count=5)
    pooled.clock.advance(200)
    pooled.store.commit_step()

    assert pooled.store.log.committed == pooled.store.log.wrote
    data = pooled.files("commitlog")["commitlog/00000000000000000000"]
    assert data[: pooled.store.log.wrote] == b"".join(pooled.records.values())


def test_commit_follows_the_page_minimum(pooled: StoreWorld) -> None:
    """Before commitIntervalCommitLog has passed, a commit needs commitCommitLogLeastPages pages, as in RocketMQ."""
    pooled.send()
    pooled.store.commit_step()
    assert pooled.store.log.committed == 0

    pooled.append([pooled.draft(body=bytes(5 * 1024)) for _ in range(3)])
    pooled.append([pooled.draft(body=bytes(5 * 1024))])
    pooled.store.commit_step()
    assert pooled.store.log.committed == pooled.store.log.wrote


def test_uncommitted_messages_survive_a_kill(pooled: StoreWorld) -> None:
    """The process dies before any commit: every message is replayed, with its offsets, and counted."""
    pooled.send(count=7)
    wrote = pooled.store.log.wrote
    pooled.kill()

    report = pooled.open()

    assert (report.end, report.replayed_bytes, report.replayed_records) == (wrote, wrote, 7)
    assert pooled.bodies() == pooled.sent_bodies()
    pooled.send(count=3)
    assert pooled.bodies() == pooled.sent_bodies()


def test_uncommitted_messages_are_lost_without_the_replay(pooled: StoreWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin of the test above: without the replay all of them are lost."""
    from gantry_broker.store.opening import WritePools

    pooled.send(count=7)
    pooled.kill()
    monkeypatch.setattr(WritePools, "find_leftover", lambda self: [])

    assert pooled.open().end == 0


def test_a_kill_after_rolls_replays_over_several_files(pooled: StoreWorld) -> None:
    """Two full buffers and a part of a third, none committed: all of it comes back in order."""
    while pooled.store.log.wrote < 2 * 16 * 1024 + 1000:
        pooled.send()
    assert pooled.store.log.committed == 0
    pooled.kill()

    assert pooled.open().replayed_bytes > 2 * 16 * 1024
    assert pooled.bodies() == pooled.sent_bodies()


def test_interrupted_commit_is_completed_from_the_buffer(pooled: StoreWorld) -> None:
    """The file holds the first half of a record; the replay continues after the last whole one."""
    pooled.send(count=4)
    data = b"".join(pooled.records.values())
    pooled.kill()
    pooled.overwrite("commitlog/00000000000000000000", 0, data[: len(data) * 5 // 8])

    report = pooled.open()

    assert report.end == len(data)
    assert report.replayed_records == 2
    assert pooled.bodies() == pooled.sent_bodies()


def test_recovering_twice_gives_the_same_bytes(pooled: StoreWorld) -> None:
    """A crash right after a recovery changes nothing, and nothing is replayed again."""
    pooled.send(count=7)
    pooled.kill()
    pooled.open()
    pooled.kill()
    first = pooled.files("commitlog")

    report = pooled.open()

    assert report.replayed_bytes == 0
    assert pooled.files("commitlog") == first


def test_anonymous_memory_loses_exactly_the_uncommitted_messages() -> None:
    """It is not crash safe, so a kill loses a suffix of the log and nothing else."""
    world = make_pooled(is_crash_safe=False)
    world.open()
    assert not world.store.pools.status.is_crash_safe
    world.send(count=5)
    world.clock.advance(200)
    world.store.commit_step()
    committed = world.store.log.committed
    world.send(count=3)
    assert world.bodies() == world.sent_bodies(before=committed), "what a kill can take was shown"
    world.kill()

    assert world.open().end == committed
    world.forget_after(committed)
    assert world.bodies() == world.sent_bodies()


def test_power_loss_loses_the_buffers_and_keeps_flushed_messages(pooled: StoreWorld) -> None:
    """Buffers do not survive the machine; the log has the flushed messages."""
    pooled.send(count=5)
    flushed = pooled.store.flush()
    pooled.send(count=5)
    pooled.lose_power()

    assert pooled.open().end == flushed
    pooled.forget_after(flushed)
    assert pooled.bodies() == pooled.sent_bodies()


def test_a_flush_commits_first(pooled: StoreWorld) -> None:
    """A flush never waits for the commit thread: everything written before it is on the disk after it."""
    pooled.send(count=5)

    assert pooled.store.flush() == pooled.store.log.wrote == pooled.store.log.committed


def test_exhausted_pool_refuses_appends_until_a_commit(pooled: StoreWorld) -> None:
    """A disk slower than the senders causes refusals; after a commit sends succeed again, and nothing is lost."""
    with pytest.raises(PoolExhausted):
        for _ in range(1000):
            pooled.send()
    with pytest.raises(PoolExhausted):
        pooled.send()
    wrote = pooled.store.log.wrote

    pooled.store.commit_step()
    pooled.store.commit_step()
    pooled.send()

    assert pooled.store.log.wrote > wrote
    assert pooled.bodies() == pooled.sent_bodies()
    pooled.kill()
    pooled.open()
    assert pooled.bodies() == pooled.sent_bodies()


def test_a_pool_of_one_buffer_is_refused() -> None:
    """A roll needs the next buffer while the last one is still being committed, so one buffer is never enough."""
    with pytest.raises(ValueError, match=r"transientStorePoolSize.*2"):
        PoolSettings(is_enabled=True, buffers_count=1)


def test_a_pool_of_two_buffers_works() -> None:
    """Each roll waits for a commit, and the wait ends."""
    world = make_pooled(count=2)
    world.open()
    for _ in range(2000):
        try:
            world.send()
        except PoolExhausted:
            world.store.commit_step()
            world.store.commit_step()

    assert world.store.log.wrote > 5 * 16 * 1024
    assert world.bodies() == world.sent_bodies()


def test_buffers_are_used_in_turn_and_are_zero_when_free(pooled: StoreWorld) -> None:
    """A returned buffer is marked void at once and zeroed before it is borrowed again."""
    send_slowly(pooled, 600)

    assert pooled.store.log.min_physical == 0
    assert pooled.store.log.wrote > 4 * 16 * 1024
    assert pooled.bodies() == pooled.sent_bodies()
    pooled.close()
    assert [data.count(0) for data in pooled.volume.pieces.values()] == [512 + 16 * 1024] * 3


def test_the_pool_starts_in_the_middle_of_a_file(pooled: StoreWorld) -> None:
    """After a restart the current file continues in a buffer from its end; readers can read both parts."""
    pooled.send(count=5)
    pooled.close()
    pooled.open()
    pooled.send(count=5)

    assert pooled.store.log.committed < pooled.store.log.wrote
    assert pooled.bodies() == pooled.sent_bodies()
    pooled.kill()
    assert pooled.open().replayed_records == 5
    assert pooled.bodies() == pooled.sent_bodies()


def test_a_clean_stop_leaves_no_live_buffer(pooled: StoreWorld) -> None:
    """Everything is committed and flushed, so RocketMQ may open the store."""
    pooled.send(count=5)
    wrote = pooled.store.log.wrote
    pooled.close()
    settings, pooled.settings = pooled.settings, TINY

    report = pooled.open()

    assert (report.is_clean, report.end) == (True, wrote)
    assert pooled.bodies() == pooled.sent_bodies()
    assert settings is not TINY


def test_disabling_buffers_loses_no_message(pooled: StoreWorld) -> None:
    """The store knows the directory of its former buffers, replays them, and removes them."""
    pooled.send(count=5)
    pooled.kill()
    pooled.settings = TINY

    assert pooled.open().replayed_records == 5
    assert pooled.bodies() == pooled.sent_bodies()
    assert pooled.volume.pieces == {}


def test_a_failed_commit_is_final_and_loses_nothing(pooled: StoreWorld) -> None:
    """The log becomes read-only; the bytes are still in the buffer, and the next start replays them."""
    pooled.send(count=5)
    pooled.clock.advance(200)
    pooled.faulty_disk.fail_next("write", errno.EIO)
    pooled.store.commit_step()

    assert [type(error) for error in pooled.fatal] == [StoreFailed]
    assert not pooled.store.is_writable
    pooled.kill()
    assert pooled.open().replayed_records == 5
    assert pooled.bodies() == pooled.sent_bodies()


def test_a_short_write_of_a_commit_is_continued(pooled: StoreWorld) -> None:
    """``committed`` never covers bytes that a short write left out."""
    pooled.send(count=5)
    pooled.clock.advance(200)
    pooled.faulty_disk.short_write(100)
    pooled.faulty_disk.short_write(1)
    pooled.store.commit_step()

    data = pooled.files("commitlog")["commitlog/00000000000000000000"]
    assert data[: pooled.store.log.committed] == b"".join(pooled.records.values())


# -- buffers that do not belong --------------------------------------------------------------------------------------


def set_aside_reason(world: StoreWorld, path: str) -> bytes:
    return world.disk.read_file(f"{path}.json")


def test_a_buffer_of_another_store_is_set_aside_and_named(pooled: StoreWorld) -> None:
    """It is copied to set-aside with the reason, its memory is reused, and the store opens."""
    other = StoreWorld(FaultyDisk(), "/other/store", POOL, pooled.volume)
    pooled.send(count=5)
    content = b"".join(pooled.records.values())
    pooled.kill()

    report = other.open()

    assert report.replayed_bytes == 0
    [path] = report.set_aside
    assert other.disk.read_file(path) == content
    assert b"another store" in set_aside_reason(other, path)
    other.send(count=5)
    assert other.bodies() == other.sent_bodies()


def test_a_buffer_of_an_earlier_start_is_set_aside(pooled: StoreWorld) -> None:
    """The store has continued without it: its records must not follow newer ones."""
    pooled.send(count=5)
    outdated = {name: bytearray(data) for name, data in pooled.volume.pieces.items()}
    pooled.kill()
    pooled.volume.pieces = {}
    pooled.open()
    pooled.kill()
    pooled.volume.pieces = outdated

    report = pooled.open()

    assert (report.end, report.replayed_bytes) == (0, 0)
    [path] = report.set_aside
    assert b"of generation 1" in set_aside_reason(pooled, path)


def test_a_buffer_with_a_gap_before_it_is_set_aside(pooled: StoreWorld) -> None:
    """Only buffers that continue the end of the log without a gap are replayed."""
    send_slowly(pooled, 20)
    pooled.clock.advance(200)
    pooled.store.commit_step()
    pooled.close()
    pooled.open()
    pooled.send(count=5)
    pooled.kill()
    end = pooled.sent[9].end
    pooled.overwrite("commitlog/00000000000000000000", end, bytes(16 * 1024 - end))

    report = pooled.open()

    assert report.end == end
    [path] = report.set_aside
    assert b"the log ends at" in set_aside_reason(pooled, path)


def test_buffer_never_overwrites_other_bytes(pooled: StoreWorld) -> None:
    """If the file holds bytes that are neither zero nor those of the buffer, the buffer is set aside."""
    pooled.send(count=5)
    pooled.kill()
    pooled.overwrite("commitlog/00000000000000000000", pooled.sent[2].end, b"\x77")

    report = pooled.open()

    assert report.end == 0
    assert len(report.set_aside) == 1


def test_fully_committed_buffer_is_ignored(pooled: StoreWorld) -> None:
    """Nothing is set aside if the log has all records of the buffer, regardless of the header."""
    pooled.send(count=5)
    pooled.store.flush()
    outdated = {name: bytearray(data) for name, data in pooled.volume.pieces.items()}
    pooled.close()
    pooled.volume.pieces = outdated

    assert pooled.open().set_aside == []


def test_missing_memory_refuses_the_start_and_names_the_amount() -> None:
    """A failed start is better than a later SIGBUS."""
    world = make_pooled()
    world.volume.capacity = 40 * 1024

    with pytest.raises(StoreUnusable, match=r"write buffer 3 of 3 .*16896 bytes.*transientStorePoolSize"):
        world.open()


def test_two_stores_do_not_share_buffers(pooled: StoreWorld) -> None:
    """The second store is refused while the first is open."""
    other = StoreWorld(FaultyDisk(), "/other/store", POOL, pooled.volume)

    with pytest.raises(StoreLocked):
        other.open()

    pooled.send(count=5)
    assert pooled.bodies() == pooled.sent_bodies()


@pytest.mark.parametrize(
    ("committed_bytes", "elapsed_ms", "wanted"),
    [(16_384, 200, 16_384), (16_384, 1, 163_840), (1 << 20, 10, 1 << 20), (64 << 20, 10, 1 << 20), (0, 0, 16_384)],
)
def test_a_busy_log_is_committed_in_rounds(committed_bytes: int, elapsed_ms: int, wanted: int) -> None:
    """Four pages start a commit on an idle log; on a busy one the bytes of ten milliseconds, at most a mebibyte."""
    assert round_bytes(PoolSettings(), committed_bytes, elapsed_ms) == wanted


# -- synchronous flush -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_pool", [False, True], ids=["no-buffer", "buffer"])
def test_sync_flush_acknowledges_and_shows_only_flushed_messages(with_pool: bool) -> None:
    """``promised`` and ``confirmed`` follow ``flushed``; consumers see a message after the flush, not before."""
    world = make_pooled(is_sync=True)
    if not with_pool:
        world.settings = dataclasses.replace(TINY, flush=FlushSettings(is_sync=True))
    world.open()
    world.send(count=5)

    assert (world.store.positions.promised, world.store.positions.confirmed) == (0, 0)
    assert world.bodies() == []

    world.store.flush_step()
    assert world.store.positions.promised == world.store.positions.confirmed == world.store.log.wrote
    assert world.bodies() == world.sent_bodies()
    world.lose_power()
    world.open()
    assert world.bodies() == world.sent_bodies()
