"""Rows K1, K2 and K5 of the fault catalogue: kills under load, at each crash point, and repeatedly during recovery.

The short form of the kills of `make crash` (see docs/testing.md): each kind a few times, judged in the same way. A twin
is the same test without one guard: it must find the damage.
"""

import os
import shutil
import signal
from pathlib import Path

import pytest
from crash.log_walk import log_files
from faults.modes import Medium, Mode
from faults.scene import Scene

from gantry_broker.store import crash_points
from gantry_testing.crashing_broker import CRASHING

CRASHING_BROKER = ("-m", "gantry_testing.crashing_broker")
OFTEN = ("--point-interval", "100")
"""Options for recovery points and checkpoints every 100 ms, which a short load would not see otherwise."""
NO_COMMIT = {
    "commitIntervalCommitLog": "3600000",
    "commitCommitLogThoroughInterval": "3600000",
    "commitCommitLogLeastPages": "1000000",
    "flushIntervalCommitLog": "3600000",
    "flushCommitLogLeastPages": "1000000",
    "flushCommitLogThoroughInterval": "3600000",
}
"""No commit or flush by time or size, so that only a request for a free buffer writes to the log's files."""
ASYNC_TMPFS = Mode(False, Medium.TMPFS)
slow = pytest.mark.slow
KILLED_MODES = [
    ASYNC_TMPFS,
    Mode(True, Medium.OFF),
    Mode(False, Medium.ANONYMOUS),
    *(pytest.param(mode, marks=slow) for mode in (Mode(False, Medium.OFF), Mode(True, Medium.TMPFS))),
    pytest.param(Mode(True, Medium.ANONYMOUS), marks=slow),
]
# Crash points that a broker reaches under load; some of them run with --slow only.
UNDER_LOAD = [
    crash_points.AFTER_APPEND,
    *(
        pytest.param(name, marks=slow)
        for name in (crash_points.MID_ROLL, crash_points.AFTER_SYNC, crash_points.MID_CHECKPOINT)
    ),
    crash_points.MID_COMMIT,
    *(pytest.param(name, marks=slow) for name in (crash_points.MID_RETURN, crash_points.MID_POINT)),
]
IN_RECOVERY = (
    crash_points.MID_REPLAY, crash_points.AFTER_REPLAY, crash_points.MID_TRUNCATION, crash_points.MID_RECOVERY,
    crash_points.MID_POINT, crash_points.MID_CHECKPOINT,
)  # fmt: skip
"""Crash points of a recovery, in the order of a start."""


async def kill_under_load(scene: Scene, acked: int = 200) -> None:
    """Start the broker, and kill it under load after so many acknowledgements."""
    await scene.start()
    async with scene.load():
        await scene.wait_acked(acked)
        await scene.broker.kill()


async def ends_itself(scene: Scene, point: str) -> None:
    """Wait until the broker has ended, at that crash point and no other."""
    assert await scene.wait_ended() == -signal.SIGKILL
    assert f"{CRASHING}{point}:1\n" in scene.log, scene.log


@pytest.mark.verify
@pytest.mark.parametrize("mode", KILLED_MODES, ids=str)
async def test_a_kill_under_load_loses_no_more_than_the_mode_allows(mode: Mode, tmp_path: Path, buffers: Path) -> None:
    """K1: no acknowledged message is lost, except a tail with asynchronous flush over anonymous memory."""
    async with Scene(tmp_path, settings=mode.settings(buffers)) as scene:
        for _ in range(2):
            await kill_under_load(scene)
            await scene.start()
            lost = await scene.lost_messages()
            assert lost == [] or mode.may_lose_tail
            await scene.broker.kill()


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize("is_replayed", [True, False], ids=["replayed", "not replayed, the twin"])
async def test_messages_only_in_buffers_are_replayed(is_replayed: bool, tmp_path: Path, buffers: Path) -> None:
    """K1: with no commit by time, the files lack acknowledged messages, and only the replay restores them."""
    async with Scene(tmp_path, settings=ASYNC_TMPFS.settings(buffers) | NO_COMMIT) as scene:
        await kill_under_load(scene)
        assert len(scene.lost_in_files()) > 0, "nothing was in danger"
        if not is_replayed:
            scene.set_broker_program(*CRASHING_BROKER, "--without", "replay", "--")

        await scene.start()

        assert (await scene.lost_messages() == []) == is_replayed


@pytest.mark.verify
@pytest.mark.parametrize("point", UNDER_LOAD)
async def test_crash_at_each_crash_point_is_recovered(point: str, tmp_path: Path, buffers: Path) -> None:
    """K2: a crash at any crash point under load loses nothing, and recovering twice gives the same bytes."""
    async with Scene(tmp_path, settings=ASYNC_TMPFS.settings(buffers)) as scene:
        scene.set_broker_program(*CRASHING_BROKER, "--crash-at", f"{point}:1", "--armed-by-signal", *OFTEN, "--")
        await scene.start()
        async with scene.load():
            await scene.wait_acked(50)
            os.kill(scene.broker.pid, signal.SIGUSR1)
            await ends_itself(scene, point)
        scene.set_broker_options()

        await scene.start()
        assert await scene.lost_messages() == []
        first = scene.log_digests()
        await scene.broker.kill()
        await scene.start()

        assert scene.log_digests() == first
        assert await scene.lost_messages() == []


def tear_tail(store: Path) -> None:
    """Append bytes that are no record to the log, as a torn write may leave them."""
    path = next(path for path in reversed(log_files(store)) if path.read_bytes().strip(b"\0"))
    end = len(path.read_bytes().rstrip(b"\0"))
    with path.open("r+b") as file:
        file.seek(end)
        file.write(b"\x55" * min(3000, path.stat().st_size - end))


def copy(source: Path, target: Path) -> None:
    """Replace the content of `target` by that of `source`; the directory itself stays, since it may be mounted."""
    target.mkdir(exist_ok=True)
    for path in target.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.sock"))


@pytest.mark.verify
@pytest.mark.parametrize(
    ("mode", "reached"), [(ASYNC_TMPFS, IN_RECOVERY), (Mode(False, Medium.OFF), IN_RECOVERY[2:])], ids=str
)
async def test_repeatedly_interrupted_recovery_converges(
    mode: Mode, reached: tuple[str, ...], tmp_path: Path, buffers: Path
) -> None:
    """K5: killed twice at each point of its recovery, the log ends as after one complete recovery."""
    async with Scene(tmp_path, settings=mode.settings(buffers) | NO_COMMIT) as scene:
        await kill_under_load(scene)
        if mode.medium is Medium.OFF:
            tear_tail(scene.store)
        copy(scene.store, tmp_path / "kept-store")
        copy(buffers, tmp_path / "kept-buffers")
        await scene.start()
        whole = scene.log_digests()
        await scene.broker.kill()
        copy(tmp_path / "kept-store", scene.store)
        copy(tmp_path / "kept-buffers", buffers)

        for point in reached:
            for _ in range(2):
                scene.set_broker_program(*CRASHING_BROKER, "--crash-at", f"{point}:1", "--")
                await scene.launch()
                await ends_itself(scene, point)
        scene.set_broker_options()
        await scene.start()

        assert await scene.lost_messages() == []
        assert scene.log_digests() == whole


@pytest.mark.verify
async def test_a_kill_at_any_moment_of_a_start_costs_nothing(tmp_path: Path, buffers: Path) -> None:
    """K5: ten recovering starts, each killed a little later, lose no more than the first kill lost: nothing."""
    async with Scene(tmp_path, settings=ASYNC_TMPFS.settings(buffers) | NO_COMMIT) as scene:
        await kill_under_load(scene)
        for number in range(10):
            await scene.launch()
            await scene.broker.wait_logged(" starting ", scene.log_start)
            await scene.broker.ends_within(number * 0.01)
            await scene.broker.kill()

        await scene.start()

        assert await scene.lost_messages() == []
