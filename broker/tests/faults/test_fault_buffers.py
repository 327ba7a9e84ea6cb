"""Row D11 of the fault catalogue: write buffers of another store, of an earlier start, and of deleted log files.

A buffer is replayed only if its header names this store, the previous start and the present epoch, and its bytes
continue the log. No other buffer becomes messages. It is set aside, with the reason, if it has valid records that the
log lacks. A twin is the same test without one of these checks: it must find the damage.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from crash.history import Outcome
from faults.modes import Medium, Mode, lose_buffers
from faults.scene import Scene
from faults.test_fault_kill import NO_COMMIT, copy, kill_under_load

from gantry_broker.store import offline, replay
from gantry_broker.store.replay import ExpectedHeader, FoundBuffer
from gantry_broker.store.settings import PoolSettings
from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.faulty_volume import FaultyVolume
from gantry_testing.store_world import TINY, StoreWorld

TMPFS = Mode(False, Medium.TMPFS)


def settings(buffers: Path) -> dict[str, str]:
    return TMPFS.settings(buffers) | NO_COMMIT


def set_aside(scene: Scene) -> list[str]:
    """Return the reasons in the notes of buffers that were set aside."""
    return [json.loads(path.read_bytes())["reason"] for path in sorted((scene.store / "set-aside").glob("*.json"))]


@pytest.mark.verify
async def test_the_buffers_of_another_store_never_become_messages(tmp_path: Path, buffers: Path) -> None:
    """D11: a store with another store's buffer directory sets the buffers aside, and serves its own messages only."""
    (tmp_path / "other").mkdir()
    async with (
        Scene(tmp_path, settings=settings(buffers)) as owner,
        Scene(tmp_path / "other", settings=settings(buffers), seed=2) as other,
    ):
        await kill_under_load(owner)
        assert len(owner.lost_in_files()) > 0, "the buffers hold nothing that matters"

        await kill_under_load(other)

        assert [reason for reason in set_aside(other) if "another store" in reason] != []
        assert "does not belong to this log" in other.log
        await other.start()
        assert await other.lost_messages() == [], "messages in its own buffers are lost"


@pytest.mark.verify
async def test_the_buffers_of_an_earlier_start_never_come_back(tmp_path: Path, buffers: Path) -> None:
    """D11: a tail that was lost with its buffers, and overwritten since, does not reappear with old buffers."""
    async with Scene(tmp_path, settings=settings(buffers)) as scene:
        await kill_under_load(scene)
        copy(buffers, tmp_path / "outdated")
        lose_buffers(buffers)
        scene.change_settings(memoryScope="another pod")  # The buffers are lost with the memory of the old machine.
        await scene.start()
        assert len(await scene.lost_messages()) > 0, "nothing was lost, so nothing can come back"
        await scene.send_once(100)
        assert await scene.broker.stop() == 0
        before = scene.log_digests()
        copy(tmp_path / "outdated", buffers)

        await scene.start()

        assert await scene.lost_messages() == []
        assert scene.log_digests() == before
        assert [reason for reason in set_aside(scene) if "of generation" in reason] != []
        await check_pool_still_works(scene)


async def check_pool_still_works(scene: Scene) -> None:
    """Check that messages survive another kill with the same buffers."""
    await scene.send_once(100)
    await scene.broker.kill()
    await scene.start()
    assert await scene.lost_messages() == []


async def test_buffers_that_reappear_after_the_replay_are_ignored(tmp_path: Path, buffers: Path) -> None:
    """D11: buffers that reappear after their replay change no byte and are not set aside: the log has them."""
    async with Scene(tmp_path, settings=settings(buffers)) as scene:
        await kill_under_load(scene)
        copy(buffers, tmp_path / "outdated")
        await scene.start()
        assert await scene.lost_messages() == []
        assert await scene.broker.stop() == 0
        before = scene.log_digests()
        copy(tmp_path / "outdated", buffers)

        await scene.start()

        assert "replayed" not in scene.log and set_aside(scene) == []
        assert scene.log_digests() == before
        assert await scene.lost_messages() == []
        assert scene.history.count(Outcome.ACKED) >= 200


def damage_buffers(buffers: Path, damage: str) -> None:
    """Damage every buffer in one way."""
    for path in buffers.rglob("buffer-*"):
        data = path.read_bytes()
        if damage == "garbled":
            data = bytes(byte ^ 0x5A for byte in data)
        elif damage == "cut":
            data = data[: len(data) // 2]
        else:
            data = bytes(range(256)) * 16 + data[4096:]
        path.write_bytes(data)


@pytest.mark.verify
@pytest.mark.parametrize("damage", ["garbled", "cut", "headers"])
async def test_damaged_buffers_do_not_stop_a_start(damage: str, tmp_path: Path, buffers: Path) -> None:
    """D11: invalid buffers are ignored; the log keeps its records, and the loss is reported."""
    async with Scene(tmp_path, settings=settings(buffers)) as scene:
        await kill_under_load(scene)
        only_in_buffers = len(scene.lost_in_files())
        damage_buffers(buffers, damage)

        await scene.start()

        assert len(await scene.lost_messages()) == only_in_buffers, "expected the loss of what only the buffers had"
        assert "durable log data is missing" in scene.log
        await scene.broker.kill()
        assert [lost.cause for lost in offline.accept_loss(str(scene.store), "a test", None, None).missing] != []
        await scene.start()
        await scene.send_once(100)  # They get queue offsets after those of the lost messages.


def pooled(disk: FaultyDisk, root: str, volume: FaultyVolume) -> StoreWorld:
    pool = PoolSettings(is_enabled=True, buffers_count=3, path="/pool")
    return StoreWorld(disk, root, replace(TINY, pool=pool), volume)


@pytest.mark.parametrize("is_asked", [True, False], ids=["asked", "not asked, the twin"])
def test_only_the_owner_check_keeps_a_foreign_buffer_out(is_asked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """D11: a new log is empty, so that any buffer from offset 0 on fits; without the check one becomes that log."""
    owner = pooled(FaultyDisk(), "/data/owner", FaultyVolume())
    owner.open()
    owner.send(count=5)
    owner.kill()
    other = pooled(FaultyDisk(), "/data/other", owner.volume)
    if not is_asked:
        monkeypatch.setattr(replay, "_rejection_reason", lambda buffer, expected: None)

    report = other.open()

    assert (report.replayed_records, len(other.bodies())) == ((0, 0) if is_asked else (5, 5))


@pytest.mark.parametrize("begin", [16 * 1024, 0], ids=["deleted", "kept, the twin"])
def test_buffer_of_deleted_files_is_ignored(begin: int) -> None:
    """D11: records before the log's first file were committed and deleted; the buffer is not even set aside."""
    world = StoreWorld(FaultyDisk(), "/data/store")
    world.open()
    world.send(count=10)
    size = world.settings.mapped_file_size_commit_log
    view = memoryview(b"".join(world.records.values()).ljust(size, b"\0"))
    buffer = FoundBuffer("old", "store", 3, 0, 0, 0, size, view)
    expected = ExpectedHeader("store", 3, 0, size, is_clean=False)

    plan = replay.plan_replay(40_000, [buffer], expected, lambda offset, length: None, begin=begin)

    assert (plan.steps, plan.end) == ([], 40_000)
    assert [aside.buffer for aside in plan.set_aside] == ([] if begin else [buffer])
