"""D11, write buffers: what another store left, what an earlier start left, and what the log has left behind.

A buffer is believed only when it says that it is of this store and of the start before this one, and when its bytes
continue the log. Everything else is set aside under a name, with the reason, and never becomes a message.
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
from gantry_broker.store.replay import Expected, FoundBuffer
from gantry_broker.store.settings import PoolSettings
from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.faulty_volume import FaultyVolume
from gantry_testing.store_world import TINY, StoreWorld

TMPFS = Mode(False, Medium.TMPFS)


def settings(buffers: Path) -> dict[str, str]:
    return TMPFS.settings(buffers) | NO_COMMIT


def set_aside(scene: Scene) -> list[str]:
    """Why buffers were set aside, as the notes beside them say."""
    return [json.loads(path.read_bytes())["reason"] for path in sorted((scene.store / "set-aside").glob("*.json"))]


@pytest.mark.verify
async def test_the_buffers_of_another_store_never_become_messages(tmp_path: Path, buffers: Path) -> None:
    """D11: a store that is given somebody else's directory sets the buffers aside, and has its own messages only."""
    (tmp_path / "other").mkdir()
    async with (
        Scene(tmp_path, settings=settings(buffers)) as owner,
        Scene(tmp_path / "other", settings=settings(buffers), seed=2) as other,
    ):
        await kill_under_load(owner)
        assert len(owner.judge_files()) > 0, "the buffers hold nothing that matters"

        await kill_under_load(other)

        assert [reason for reason in set_aside(other) if "another store" in reason] != []
        assert "does not belong into this log" in other.log
        await other.start()
        assert await other.judge() == [], "its own buffers are its own"


@pytest.mark.verify
async def test_the_buffers_of_an_earlier_start_never_come_back(tmp_path: Path, buffers: Path) -> None:
    """D11: a tail that was lost with its buffers, and overwritten since, does not rise when they are found again."""
    async with Scene(tmp_path, settings=settings(buffers)) as scene:
        await kill_under_load(scene)
        copy(buffers, tmp_path / "outdated")
        lose_buffers(buffers)
        scene.set(memoryScope="another pod")  # buffers are gone with the old one's memory
        await scene.start()
        assert len(await scene.judge()) > 0, "nothing was lost, so nothing can come back"
        await scene.send_once(100)
        assert await scene.broker.stop() == 0
        before = scene.log_digests()
        copy(tmp_path / "outdated", buffers)

        await scene.start()

        assert await scene.judge() == []
        assert scene.log_digests() == before
        assert [reason for reason in set_aside(scene) if "written by start" in reason] != []
        await kill_under_load_again(scene)


async def kill_under_load_again(scene: Scene) -> None:
    """The pool works after what it has met."""
    await scene.send_once(100)
    await scene.broker.kill()
    await scene.start()
    assert await scene.judge() == []


async def test_buffers_that_were_replayed_are_no_news(tmp_path: Path, buffers: Path) -> None:
    """D11: found once more after their replay, they change no byte and are not set aside: the log has them."""
    async with Scene(tmp_path, settings=settings(buffers)) as scene:
        await kill_under_load(scene)
        copy(buffers, tmp_path / "outdated")
        await scene.start()
        assert await scene.judge() == []
        assert await scene.broker.stop() == 0
        before = scene.log_digests()
        copy(tmp_path / "outdated", buffers)

        await scene.start()

        assert "replayed" not in scene.log and set_aside(scene) == []
        assert scene.log_digests() == before
        assert await scene.judge() == []
        assert scene.history.count(Outcome.ACKED) >= 200


def harm_files(buffers: Path, harm: str) -> None:
    """Do it to every buffer."""
    for path in buffers.rglob("buffer-*"):
        data = path.read_bytes()
        if harm == "garbled":
            data = bytes(byte ^ 0x5A for byte in data)
        elif harm == "cut":
            data = data[: len(data) // 2]
        else:
            data = bytes(range(256)) * 16 + data[4096:]
        path.write_bytes(data)


@pytest.mark.verify
@pytest.mark.parametrize("harm", ["garbled", "cut", "headers"])
async def test_damaged_buffers_do_not_stop_a_start(harm: str, tmp_path: Path, buffers: Path) -> None:
    """D11: bytes that are no buffer are none; the log keeps what it had, and what is gone is reported."""
    async with Scene(tmp_path, settings=settings(buffers)) as scene:
        await kill_under_load(scene)
        safe = len(scene.judge_files())
        harm_files(buffers, harm)

        await scene.start()

        assert len(await scene.judge()) == safe, "what was only in them is gone, and nothing else"
        assert "durable log data is missing" in scene.log
        await scene.broker.kill()
        assert [lost.cause for lost in offline.accept_loss(str(scene.store), "a test", None, None).missing] != []
        await scene.start()
        await scene.send_once(100)  # behind the numbers of what is lost


def pooled(disk: FaultyDisk, root: str, volume: FaultyVolume) -> StoreWorld:
    pool = PoolSettings(is_enabled=True, buffers_count=3, path="/pool")
    return StoreWorld(disk, root, replace(TINY, pool=pool), volume)


@pytest.mark.parametrize("is_asked", [True, False], ids=["asked", "not asked, the twin"])
def test_only_the_question_whose_it_is_keeps_a_foreign_buffer_out(
    is_asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D11: a new log is empty, so that any buffer from offset 0 on fits; without the check one becomes that log."""
    owner = pooled(FaultyDisk(), "/data/owner", FaultyVolume())
    owner.open()
    owner.send(count=5)
    owner.kill()
    other = pooled(FaultyDisk(), "/data/other", owner.volume)
    if not is_asked:
        monkeypatch.setattr(replay, "_contradiction", lambda buffer, expected: None)

    report = other.open()

    assert (report.replayed_records, len(other.bodies())) == ((0, 0) if is_asked else (5, 5))


@pytest.mark.parametrize("begin", [16 * 1024, 0], ids=["deleted", "kept, the twin"])
def test_a_buffer_of_deleted_files_is_passed_over(begin: int) -> None:
    """D11: what lies before the log's first file was committed and deleted; it is not even set aside."""
    world = StoreWorld(FaultyDisk(), "/data/store")
    world.open()
    world.send(count=10)
    size = world.settings.mapped_file_size_commit_log
    view = memoryview(b"".join(world.records.values()).ljust(size, b"\0"))
    buffer = FoundBuffer("old", "store", 3, 0, 0, 0, size, view)
    expected = Expected("store", 3, 0, size, is_clean=False)

    plan = replay.plan_replay(40_000, [buffer], expected, lambda offset, length: None, begin=begin)

    assert (plan.steps, plan.end) == ([], 40_000)
    assert [aside.buffer for aside in plan.set_aside] == ([] if begin else [buffer])
