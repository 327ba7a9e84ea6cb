"""When the log is flushed, what is reported about it, and that a failed flush is final.

D4 is a row of the fault catalogue (`broker/tests/faults/rows.py`).
"""

from __future__ import annotations

import dataclasses
import errno
import threading
from pathlib import Path

import pytest

from gantry_broker.errors import LogReadOnly, StoreFailed
from gantry_broker.store.checkpoint import CHECKPOINT_BYTES, CheckpointContent, decode_checkpoint, encode_checkpoint
from gantry_broker.store.flusher import is_flush_due
from gantry_broker.store.settings import FlushSettings, PoolSettings
from gantry_testing.faulty_disk import FaultyFile
from gantry_testing.store_world import TINY, StoreWorld, make_world

SETTINGS = FlushSettings()


@pytest.fixture
def world(tmp_path: Path) -> StoreWorld:
    made = make_world("faulty", tmp_path)
    made.open()
    return made


@pytest.mark.parametrize(
    ("dirty", "age", "expected"),
    [(0, 99_999, False), (1, 500, False), (4 * 4096 - 1, 9_999, False), (4 * 4096, 0, True), (1, 10_000, True)],
)
def test_log_is_flushed_at_the_page_minimum_or_the_interval(dirty: int, age: int, expected: bool) -> None:
    """The log is flushed at four dirty pages, or after ten seconds."""
    assert is_flush_due(SETTINGS, dirty, age, is_awaited=False) == expected


def test_awaited_flush_is_due_with_the_first_byte(world: StoreWorld) -> None:
    """A flush for which senders wait needs neither pages nor time. The twin is one for which none does."""
    world.send(count=1)
    world.store.flush_step()
    assert world.store.log.flushed == 0
    world.store.await_flushes(is_awaited=True)
    world.store.flush_step()
    assert world.store.log.flushed == world.store.log.wrote
    world.store.await_flushes(is_awaited=False)
    world.send(count=1)
    world.store.flush_step()
    assert world.store.log.flushed < world.store.log.wrote


def test_flushed_moves_only_after_an_fsync(world: StoreWorld) -> None:
    """A step that is not due leaves ``flushed`` alone; a flush moves it to the written end."""
    world.send(count=3)
    world.store.flush_step()
    assert world.store.log.flushed == 0

    assert world.store.flush() == world.store.log.wrote == world.store.log.flushed


def test_commit_of_a_flush_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages in an anonymous buffer are shown when they are committed, so a flush that commits some reports it."""
    world = make_world("faulty", tmp_path, dataclasses.replace(TINY, pool=PoolSettings(is_enabled=True)))
    world.open()
    reports: list[int] = []
    monkeypatch.setattr(world.store._lifecycle.flusher, "_on_progress", lambda: reports.append(0))

    world.store.flush()
    assert reports == [], "nothing was committed"
    world.send(count=1)
    assert world.store.log.committed < world.store.log.wrote
    world.store.flush()
    assert reports == [0]


def test_bytes_appended_during_a_sync_are_not_flushed(world: StoreWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written while a sync runs may not be on the disk: ``flushed`` covers it only after the next sync."""
    world.send(count=3)
    end, sync = world.store.log.wrote, FaultyFile.sync

    def sync_and_append(file: FaultyFile) -> None:
        sync(file)
        if world.store.log.wrote == end:
            world.send(count=1)

    monkeypatch.setattr(FaultyFile, "sync", sync_and_append)

    assert world.store.flush() == end == world.store.log.flushed < world.store.log.committed
    assert world.store.flush() == world.store.log.flushed == world.store.log.wrote


def test_a_failed_sync_is_final(world: StoreWorld) -> None:
    """After EIO nothing is flushed or accepted any more, and the owner is notified once."""
    world.send(count=3)
    world.faulty_disk.fail_next("sync", errno.EIO)

    with pytest.raises(StoreFailed):
        world.store.flush()
    syncs = world.faulty_disk.operations["sync"]
    with pytest.raises(StoreFailed):
        world.store.flush()

    assert world.faulty_disk.operations["sync"] == syncs, "a failed sync was tried again"
    assert world.store.log.flushed == 0
    assert [type(exc) for exc in world.fatal] == [StoreFailed]
    with pytest.raises(LogReadOnly):
        world.send()
    assert len(world.bodies()) == 3


def test_a_store_that_failed_to_flush_is_recovered_at_the_next_start(world: StoreWorld) -> None:
    """Closing after a failed flush leaves the abort marker; the unflushed range is rewritten and synced."""
    world.send(count=3)
    world.faulty_disk.fail_next("sync", errno.EIO)
    with pytest.raises(StoreFailed):
        world.store.flush()
    world.close()

    report = world.open()

    assert not report.is_clean
    assert world.store.log.flushed == report.end
    world.lose_power()
    world.open()
    assert world.bodies() == world.sent_bodies()


def test_rot_before_a_failed_flush_costs_only_its_own_message(world: StoreWorld) -> None:
    """What was flushed before is on the disk, also without a recovery point: the log does not end at the damage."""
    world.send(count=6)
    world.store.flush()
    damaged, after = world.sent[1].end, world.sent[2].end
    world.faulty_disk.fail_next("sync", errno.EIO)
    world.send()
    with pytest.raises(StoreFailed):
        world.store.flush()
    world.kill()
    for name in ("recovery-point.json", "checkpoint"):
        world.disk.remove(world.path(name))
    world.overwrite(f"commitlog/{0:020d}", damaged + 60, b"XXXX")

    report = world.open()

    assert report.damaged == [(damaged, after)]
    assert report.end >= world.sent[-2].end


def test_range_of_a_failed_flush_is_rewritten_before_it_is_trusted(world: StoreWorld) -> None:
    """D4: the page cache shows bytes that are on no disk, and calls them clean: only rewriting them helps."""
    world.send(count=3)
    world.store.flush()
    world.send(count=3)
    world.faulty_disk.fail_next("sync", errno.EIO)
    with pytest.raises(StoreFailed):
        world.store.flush()
    assert world.disk.exists(world.path("flush-failed"))
    world.kill()

    world.open()

    assert not world.disk.exists(world.path("flush-failed"))
    assert world.bodies() == world.sent_bodies()
    world.lose_power()
    world.open()
    assert world.bodies() == world.sent_bodies()


def test_range_of_a_failed_flush_is_lost_without_rewriting(world: StoreWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """D4's twin: a recovery that only syncs reports bytes as flushed that a power loss then loses."""
    world.send(count=30)
    world.faulty_disk.fail_next("sync", errno.EIO)
    with pytest.raises(StoreFailed):
        world.store.flush()
    world.kill()
    monkeypatch.setattr("gantry_broker.store.recovery_execution.rewrite", lambda file, start, end: None)
    world.open()
    assert world.bodies() == world.sent_bodies()
    world.lose_power()

    world.open()

    assert len(world.bodies()) < 30


def test_a_failure_in_the_background_reaches_the_owner(tmp_path: Path) -> None:
    """The flush thread reports through on_fatal and ends; the loop finds a read-only log."""
    flush = dataclasses.replace(SETTINGS, flush_interval_ms=1, recovery_point_interval_ms=0)
    world = make_world("faulty", tmp_path, dataclasses.replace(TINY, flush=flush))
    reported = threading.Event()
    failures: list[Exception] = []

    def report_failure(failure: Exception) -> None:
        failures.append(failure)
        reported.set()

    store = world.make_store(report_failure)
    store.open()
    world.adopt(store)
    world.faulty_disk.fail_next("sync", errno.EIO, count=100)

    world.send()

    assert reported.wait(120)
    assert [type(failure) for failure in failures] == [StoreFailed]
    assert not store.is_writable
    store.close()


def test_flush_thread_flushes_and_stops(tmp_path: Path) -> None:
    """Written bytes are flushed by the thread without a request, and close ends the thread."""
    flush = dataclasses.replace(SETTINGS, flush_interval_ms=1, recovery_point_interval_ms=0)
    world = make_world("real", tmp_path, dataclasses.replace(TINY, flush=flush))
    store = world.make_store()
    store.open()
    world.adopt(store)
    world.send(count=5)

    deadline = threading.Event()
    for _ in range(1000):
        if store.log.flushed == store.log.wrote:
            break
        deadline.wait(0.01)

    assert store.log.flushed == store.log.wrote
    store.close()
    assert "gantry-flush" not in {thread.name for thread in threading.enumerate()}


def test_the_checkpoint_is_written_after_what_it_describes(world: StoreWorld) -> None:
    """At any crash the checkpoint covers at most what is on the disk."""
    checkpoint = CheckpointContent()
    for _ in range(30):
        world.send(count=3)
        world.clock.advance(3_000)
        world.store.flush_step()
        checkpoint = decode_checkpoint(world.disk.read_file(world.path("checkpoint")))
        assert checkpoint.flushed <= world.store.log.flushed
        assert checkpoint.log_timestamp_ms <= world.store.log.last_timestamp_ms
    flushed = checkpoint.flushed
    world.lose_power()

    assert flushed > 0
    assert world.open().end >= flushed


def test_checkpoint_has_rocketmqs_layout_and_gantrys_seal() -> None:
    """Five longs at 0, 8, 16, 24, 32 of a 4096 byte file; the seal is valid only if both parts match."""
    facts = CheckpointContent(1, 2, 3, 4, 5, 6)
    data = encode_checkpoint(facts)

    assert len(data) == CHECKPOINT_BYTES
    assert data[:40] == b"".join(number.to_bytes(8, "big") for number in range(1, 6))
    assert decode_checkpoint(data) == facts
    touched = data[:32] + (7).to_bytes(8, "big") + data[40:]
    assert decode_checkpoint(touched) == facts._replace(confirmed=7, flushed=0, is_ours=False)
    assert decode_checkpoint(data[:24]) == CheckpointContent(1, 2, 3, 0, 0, 0, is_ours=False)
    assert decode_checkpoint(b"") == CheckpointContent(is_ours=False)


def test_a_recovery_point_is_true_at_every_moment_of_a_concurrent_append(tmp_path: Path) -> None:
    """A thread writes points while the loop appends; after a kill at any time a start recovers everything written."""
    flush = dataclasses.replace(SETTINGS, flush_interval_ms=0, recovery_point_interval_ms=0, checkpoint_interval_ms=0)
    settings = dataclasses.replace(
        TINY,
        flush=flush,
        mapped_file_size_commit_log=1 << 18,
        mapped_file_size_consume_queue=20_000,
        max_index_num=5_000,
    )
    world = make_world("real", tmp_path, settings)
    for _ in range(5):
        store = world.make_store()
        store.open()
        world.adopt(store)
        for i in range(150):
            world.append([world.draft("orders", (i + j) % 4) for j in range(7)])
        store._lifecycle.flusher.stop()
        store._lifecycle.point_writer.stop()
        world.kill()

    report = world.open()

    assert report.queues_rebuilt == []
    assert not report.is_index_rebuilt
    for queue_id in range(4):
        assert world.bodies("orders", queue_id) == world.sent_bodies("orders", queue_id)


def test_full_disk_delays_the_recovery_point_only(world: StoreWorld) -> None:
    """Everything is flushed and served; the old point stays valid, and a new one follows when there is space."""
    world.send(count=3)
    world.store.flush_step()
    world.faulty_disk.capacity = world.faulty_disk.space("/").used
    world.send(count=3)
    world.clock.advance(world.settings.flush.recovery_point_interval_ms)

    world.store.flush_step()

    assert world.fatal == []
    assert world.store.log.flushed == world.store.log.wrote
    world.send()
    assert len(world.bodies()) == 7

    world.faulty_disk.capacity = 1 << 30
    world.clock.advance(world.settings.flush.recovery_point_interval_ms)
    world.store.flush_step()
    world.lose_power()
    world.open()
    assert world.bodies() == world.sent_bodies()


def test_a_store_on_a_full_disk_stops_and_starts_again(world: StoreWorld) -> None:
    """A clean stop without room for its point is recovered like any other stop, and loses nothing."""
    world.send(count=5)
    world.faulty_disk.capacity = world.faulty_disk.space("/").used

    world.close()
    report = world.open()

    assert world.fatal == []
    assert not report.is_clean
    assert world.bodies() == world.sent_bodies()
