"""The content of a write buffer at a kill is present at the next start, or reported as missing.

The file ``log-end`` is a mapped page, which survives a kill and records how far a start of the store wrote the log.
"""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from gantry_broker.ports.clock import SystemClock
from gantry_broker.store import crash_points, offline
from gantry_broker.store.log_end import (
    ENDS_POSITION,
    HEAD,
    HEADS_POSITION,
    PAGE_BYTES,
    LogEndFile,
    LogEndOwner,
    decode_log_end,
    encode_log_end,
    read_memory_scope,
)
from gantry_broker.store.loss import LossCause, LostRange
from gantry_broker.store.settings import FlushSettings, PoolSettings
from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.faulty_volume import FaultyVolume
from gantry_testing.store_world import TINY, StoreWorld, make_world

POOL = PoolSettings(is_enabled=True, buffers_count=3, path="/pool")
SIZE = 16 * 1024
"""The size of a log file in bytes."""
OWNER = LogEndOwner("0" * 32, 7, "boot-1/")

Pieces = dict[str, bytearray]


def pooled(kind: str, tmp_path: Path) -> StoreWorld:
    return make_world(kind, tmp_path, dataclasses.replace(TINY, pool=POOL))


def current_buffer(world: StoreWorld) -> str:
    """Return the name of the buffer that is written now."""
    pool = world.store.pools.pool
    assert pool is not None
    [name] = [buffer.piece.name for buffer in pool.find_leftover() if buffer.start < world.store.log.wrote]
    return name


def copy_of(pieces: Pieces) -> Pieces:
    return {name: bytearray(data) for name, data in pieces.items()}


def removed(world: StoreWorld, name: str, older: Pieces) -> None:
    del world.volume.pieces[name]


def all_removed(world: StoreWorld, name: str, older: Pieces) -> None:
    world.volume.pieces.clear()


def truncated(world: StoreWorld, name: str, older: Pieces) -> None:
    del world.volume.pieces[name][2048:]


def zeroed(world: StoreWorld, name: str, older: Pieces) -> None:
    world.volume.pieces[name][:] = bytes(len(world.volume.pieces[name]))


def rolled_back(world: StoreWorld, name: str, older: Pieces) -> None:
    world.volume.pieces[name][:] = older[name]


def swapped(world: StoreWorld, name: str, older: Pieces) -> None:
    other = StoreWorld(FaultyDisk(), "/other/store", world.settings, FaultyVolume())
    other.open()
    other.send(count=50)
    world.volume.pieces[name][:] = other.volume.pieces[current_buffer(other)]


def flipped(world: StoreWorld, name: str, older: Pieces) -> None:
    world.volume.pieces[name][30] ^= 1


DAMAGES = [removed, all_removed, truncated, zeroed, rolled_back, swapped, flipped]


@pytest.mark.parametrize("damage", DAMAGES)
def test_content_of_damaged_write_buffer_is_reported_and_its_offsets_are_not_reused(
    kind: str, tmp_path: Path, damage: Callable[[StoreWorld, str, Pieces], None]
) -> None:
    """After a kill the log must reach the recorded end: the rest is missing until the loss is accepted."""
    world = pooled(kind, tmp_path)
    world.open()
    world.send(count=20)
    world.store.flush()
    world.send(count=20)
    older = copy_of(world.volume.pieces)
    wrote_before = world.store.log.wrote
    world.send(count=20)
    committed, wrote, name = world.store.log.committed, world.store.log.wrote, current_buffer(world)
    world.kill()
    damage(world, name, older)

    for _ in range(2):
        report = world.open()
        [lost] = report.missing
        start = wrote_before if damage is rolled_back else committed
        assert lost == LostRange(start, wrote, LossCause.TAIL) and report.end == start
        world.kill()
    world.open()
    world.store.accept_loss("a test")

    physical, offsets = world.append([world.draft()])
    assert physical[0] >= wrote and offsets[0] >= 60
    world.kill()
    assert world.open().missing == []
    assert [message.queue_offset for message in world.messages()][-1] == offsets[0]


def test_without_log_end_file_lost_buffers_are_not_detected(tmp_path: Path) -> None:
    """Without the log-end file the loss of the test above is silent."""
    world = pooled("faulty", tmp_path)
    world.open()
    world.send(count=20)
    world.kill()
    world.volume.pieces.clear()
    world.disk.remove(world.path("log-end"))

    assert world.open().missing == []


def test_kill_with_intact_buffers_reports_no_loss(kind: str, tmp_path: Path) -> None:
    """The recorded end is never beyond what was written, over rolls, commits and starts."""
    world = pooled(kind, tmp_path)
    for number in range(12):
        assert world.open().missing == []
        for _ in range(40):
            world.send()
            if number % 2:
                world.store.commit_step()
        if number % 3 == 2:
            world.store.flush()
        wrote = world.store.log.wrote
        world.kill()
        report = world.open()
        assert (report.missing, report.end) == ([], wrote)
        assert world.bodies() == world.sent_bodies()
        world.close() if number % 4 == 3 else world.kill()


def test_clean_stop_needs_no_buffers(kind: str, tmp_path: Path) -> None:
    """Everything is in the files after a clean stop, so removed buffers are no loss."""
    world = pooled(kind, tmp_path)
    world.open()
    world.send(count=20)
    world.close()
    world.volume.pieces.clear()

    assert world.open().missing == []


@pytest.mark.parametrize("seed", [None, 1, 2, 3, 4, 5])
def test_log_end_of_another_boot_is_ignored(tmp_path: Path, seed: int | None) -> None:
    """A power loss destroys buffers and unflushed bytes, as promised, with any part of the page on the disk."""
    world = pooled("faulty", tmp_path)
    world.open()
    world.send(count=20)
    world.store.flush()
    world.send(count=20)
    world.lose_power(seed)

    report = world.open()

    assert report.missing == [] and report.lost_flushed_bytes == 0


def test_log_end_of_another_pod_is_ignored(tmp_path: Path) -> None:
    """Buffers in the memory of a pod end with it, on the same boot of the machine, too."""
    world = pooled("faulty", tmp_path)
    world.memory_scope = "one"
    world.open()
    world.send(count=20)
    world.kill()
    world.volume.pieces.clear()
    world.memory_scope = "two"

    assert world.open().missing == []


def test_with_sync_flush_lost_buffers_lose_nothing_flushed(tmp_path: Path) -> None:
    """With SYNC_FLUSH only flushed bytes are expected, since others were not acknowledged."""
    world = make_world("faulty", tmp_path, dataclasses.replace(TINY, pool=POOL, flush=FlushSettings(is_sync=True)))
    world.open()
    world.send(count=20)
    flushed = world.store.flush()
    world.send(count=20)
    world.kill()
    world.volume.pieces.clear()

    report = world.open()

    assert (report.end, report.missing) == (flushed, [])


def test_with_sync_flush_messages_answered_before_the_flush_count_as_missing(tmp_path: Path) -> None:
    """A message that was answered before the flush must survive a kill, so its loss is reported."""
    world = make_world("faulty", tmp_path, dataclasses.replace(TINY, pool=POOL, flush=FlushSettings(is_sync=True)))
    world.open()
    world.send(count=20)
    flushed = world.store.flush()
    world.send(count=20)
    world.store.note_answered()
    answered = world.store.log.wrote
    world.send(count=20)
    world.kill()
    world.volume.pieces.clear()

    assert world.open().missing == [LostRange(flushed, answered, LossCause.TAIL)]


def test_anonymous_memory_has_no_log_end(tmp_path: Path) -> None:
    """Anonymous memory ends with the process, as the mode promises, so there is no log-end file."""
    settings = dataclasses.replace(TINY, pool=dataclasses.replace(POOL, path=""))
    world = StoreWorld(FaultyDisk(), "/data/store", settings, FaultyVolume(is_crash_safe=False))
    world.open()
    world.send(count=20)
    world.kill()

    assert world.open().missing == []
    assert not world.disk.exists(world.path("log-end"))


@pytest.mark.parametrize("point", [None, crash_points.MID_TRUNCATION])
def test_cut_is_no_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str | None) -> None:
    """A slave that cuts its log, and is killed during the cut or right after it, reports no loss."""
    world = pooled("faulty", tmp_path)
    world.open()
    world.send(count=20)
    end = world.sent[9].end

    class Killed(Exception):
        pass

    kills = []

    def end_at_point(name: str) -> None:
        if name == point:
            kills.append(name)
            raise Killed

    monkeypatch.setattr(crash_points, "hit", end_at_point)
    with suppress(Killed):
        world.store.truncate(end)
    monkeypatch.undo()
    world.kill()

    report = world.open()
    assert len(kills) == (point is not None)
    assert report.missing == [] and report.end in ((end,) if point is None else (end, world.sent[-1].end))


def test_restarted_log_is_no_loss(tmp_path: Path) -> None:
    """A slave that restarts its log empty may have less than before."""
    world = pooled("faulty", tmp_path)
    world.open()
    for _ in range(400):
        world.send()
        world.store.commit_step()
    world.store.discard_log(SIZE, world.store.identity.epochs)
    world.kill()

    report = world.open()
    assert report.missing == [] and report.end == SIZE


@pytest.mark.parametrize("data", [b"", b"\0" * PAGE_BYTES, b"x" * 100, encode_log_end(OWNER, 1 << 40)])
def test_damaged_or_foreign_log_end_is_ignored(kind: str, tmp_path: Path, data: bytes) -> None:
    """An intact store is never reported as incomplete, and its next start has a valid log-end file."""
    world = pooled(kind, tmp_path)
    world.open()
    world.send(count=20)
    world.kill()
    world.disk.write_file(world.path("log-end"), data)

    assert world.open().missing == []
    world.send(count=20)
    wrote = world.store.log.wrote
    world.kill()
    assert decode_log_end(world.disk.read_file(world.path("log-end")))[1] == wrote


def test_log_end_of_an_earlier_start_is_ignored(tmp_path: Path) -> None:
    """A page of an earlier start is ignored, since the log may have been cut later."""
    world = pooled("faulty", tmp_path)
    world.open()
    world.send(count=20)
    old = world.disk.read_file(world.path("log-end"))
    world.close()
    world.open()
    world.store.truncate(world.sent[4].end)
    world.kill()
    world.disk.write_file(world.path("log-end"), old)

    assert world.open().missing == []


def test_flipped_bit_never_raises_the_end() -> None:
    """The lesser of the two ends counts; a flipped bit of the owner makes the file unreadable."""
    data = encode_log_end(OWNER, 123_456)
    assert decode_log_end(data) == (OWNER, 123_456, {})
    for position in [*range(len(data.rstrip(b"\0")[:200])), *range(ENDS_POSITION, PAGE_BYTES)]:
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            try:
                owner, end, _ = decode_log_end(bytes(damaged))
            except ValueError:
                continue
            assert (owner, end <= 123_456) == (OWNER, True), (position, bit)


def test_head_with_flipped_bit_is_ignored() -> None:
    """Otherwise a start would take the store's own file for one of another store, and set it aside."""
    data = bytearray(encode_log_end(OWNER, 123_456))
    base, crc = 3 * SIZE, 0x12345678
    HEAD.pack_into(data, HEADS_POSITION, base, crc, base ^ crc ^ (1 << 64) - 1)
    assert decode_log_end(bytes(data)).heads == {base: crc}
    for position in range(HEADS_POSITION, HEADS_POSITION + HEAD.size):
        for bit in range(8):
            damaged = data.copy()
            damaged[position] ^= 1 << bit
            assert decode_log_end(bytes(damaged)).heads == {}, (position, bit)


def test_kill_while_both_ends_are_written_records_no_later_end() -> None:
    """The page never records more than was written before the first of the two ends changed."""
    before, after = encode_log_end(OWNER, 0x00FF), encode_log_end(OWNER, 0x0100)
    for position in range(ENDS_POSITION, PAGE_BYTES + 1):
        assert decode_log_end(after[:position] + before[position:])[1] <= 0x0100


def test_log_end_that_cannot_be_created_is_no_error(tmp_path: Path) -> None:
    """Appending does not need the page; without it only a loss is not detected. The next attempt may create it."""
    world = pooled("faulty", tmp_path)
    world.open()
    identity = world.store.identity
    world.close()
    world.disk.remove(world.path("log-end"))
    file = LogEndFile(world.disk, world.root, "boot-1/")

    for operation in ("create", "reserve"):
        world.faulty_disk.fail_next(operation, errno.ENOSPC)
        file.begin(identity, 5)
        file.set(6)
        assert file.read(identity) is None
    file.begin(identity, 7)
    file.set(8)
    found = file.read(identity)
    assert found is not None and found.end == 8


@pytest.mark.parametrize("scope", ["", "uid-of-a-pod"])
def test_offline_recovery_detects_the_lost_end_of_a_broker_in_a_pod(tmp_path: Path, scope: str) -> None:
    """The page names the scope in which it was written, so recovery without a broker needs no setting for it."""
    world = make_world("real", tmp_path)
    world.open()
    world.send(count=20)
    end, start = world.store.log.wrote, world.sent[-5].end
    identity = world.store.identity
    world.kill()
    machine = f"{SystemClock().boot_id()}/{scope}"
    page = encode_log_end(LogEndOwner(identity.uuid, identity.generation, machine), end)
    world.overwrite("log-end", 0, page)
    world.overwrite("commitlog/00000000000000000000", start, bytes(SIZE - start))

    report = offline.recover(world.root)

    assert report.missing == [LostRange(start, end, LossCause.TAIL)]
    assert "missing" in world.disk.read_file(world.path("loss.json")).decode()
    assert offline.accept_loss(world.root, "a test").missing == report.missing


def test_scope_of_an_unreadable_log_end_is_empty(tmp_path: Path) -> None:
    """A store without a page, or with a damaged one, is recovered without it."""
    disk = FaultyDisk()
    assert read_memory_scope(disk, "/store") == ""
    disk.make_directory("/store")
    disk.create("/store/log-end", PAGE_BYTES).close()
    assert read_memory_scope(disk, "/store") == ""
