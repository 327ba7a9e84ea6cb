"""Row D4 of the fault catalogue: the n-th fdatasync or the n-th write of the log fails with EIO while a broker serves.

A failed fsync is final. Messages in its range are not acknowledged in modes that promise a flush, `flushed` does not
move, the process ends with a non-zero code, and the next start does not trust the page cache for that range. A
twin is the same test with a broker that ignores the error.
"""

from pathlib import Path

import pytest
from crash.history import Outcome
from faults.modes import MODES, Medium, Mode
from faults.scene import QUICK_FLUSH, Scene
from faults.strace import injected

pytestmark = pytest.mark.needs_strace


QUICK_MODES = (Mode(False, Medium.TMPFS), Mode(True, Medium.OFF), Mode(True, Medium.TMPFS))
MODES_SOME_SLOW = [mode if mode in QUICK_MODES else pytest.param(mode, marks=pytest.mark.slow) for mode in MODES]


def scene_in(mode: Mode, directory: Path, buffers: Path) -> Scene:
    return Scene(directory, settings=mode.settings(buffers) | QUICK_FLUSH)


async def fail_one(scene: Scene, calls: str, fault: str, trace: Path) -> int:
    """Let one call of a loaded broker fail, wait until it has ended by itself, and return its exit code."""
    await scene.start()
    async with scene.load():
        await scene.wait_acked(50)
        async with injected(scene.broker.pid, calls, fault, trace) as injection:
            code = await scene.wait_ended()
            assert injection.hits() != [], "no call failed"
    return code


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize("mode", MODES_SOME_SLOW, ids=str)
@pytest.mark.parametrize(
    "number",
    [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3, 7, 20))],
    ids=lambda number: f"number{number}",
)
async def test_failed_fsync_ends_the_broker(mode: Mode, number: int, tmp_path: Path, buffers: Path) -> None:
    """D4: after the n-th fdatasync has failed the process exits non-zero; the next start loses what the mode allows."""
    async with scene_in(mode, tmp_path, buffers) as scene:
        code = await fail_one(scene, "fdatasync", f"error=EIO:when={number}", tmp_path / "trace")
        flushed = scene.checkpoint_flushed

        assert code == 1
        assert "a flush failed" in scene.log and "Input/output error" in scene.log
        assert (scene.store / "abort").exists()
        durable = int((scene.store / "flush-failed").read_bytes().split()[0])
        assert flushed <= durable, "the checkpoint covers what was never synced"
        if mode.is_sync:
            acked = [sent.physical_offset for sent in scene.history.sent.values() if sent.outcome is Outcome.ACKED]
            assert max(acked) < durable, "acknowledged beyond the last good flush"

        await scene.start()
        lost = await scene.lost_messages()
        assert lost == [] or mode.may_lose_tail
        await scene.send_once(50)
        await scene.broker.stop()
        await scene.start()
        assert await scene.lost_messages() == []


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("number", [1, 2, 5, 40], ids=lambda number: f"number{number}")
async def test_a_failed_write_of_the_log_ends_acknowledgements(
    mode: Mode, number: int, tmp_path: Path, buffers: Path
) -> None:
    """D4: after the n-th pwrite has failed nothing more is acknowledged, and no more is lost than the mode allows."""
    async with scene_in(mode, tmp_path, buffers) as scene:
        await scene.start()
        async with scene.load():
            await scene.wait_acked(50)
            async with injected(
                scene.broker.pid, "pwrite64", f"error=EIO:when={number}", tmp_path / "trace"
            ) as injection:
                # A broker that strace slows down may refuse sends as busy before the call comes.
                await scene.wait_until(lambda: scene.has_ended or "Input/output error" in scene.log, "failed write")
                await scene.wait_until_refused_or_ended()
                assert injection.hits() != [], "no call failed"
        await scene.wait_until(lambda: "Input/output error" in scene.log, "the reason in the log")
        acked = scene.history.count(Outcome.ACKED)
        async with scene.load():
            await scene.wait_until_refused_or_ended()
        assert scene.history.count(Outcome.ACKED) == acked, "acknowledged after a refusal that is for good"
        assert await scene.broker.stop() in (0, 1)

        await scene.start()
        lost = await scene.lost_messages()
        assert lost == [] or mode.may_lose_tail


async def test_failed_write_of_the_log_is_reported(tmp_path: Path, buffers: Path) -> None:
    """D4: the reason why a log becomes read-only is in the broker's log."""
    async with scene_in(Mode(False, Medium.OFF), tmp_path, buffers) as scene:
        await scene.start()
        async with scene.load(), injected(scene.broker.pid, "pwrite64", "error=EIO:when=1", tmp_path / "trace"):
            await scene.wait_until_refused()

        await scene.wait_until(lambda: "Input/output error" in scene.log, "the reason in the log")


@pytest.mark.slow
async def test_ignored_fsync_error_is_detected(tmp_path: Path, buffers: Path) -> None:
    """D4's twin: a broker that takes a failed sync for a good one continues to acknowledge, and does not end."""
    async with scene_in(Mode(False, Medium.OFF), tmp_path, buffers) as scene:
        scene.set_broker_options("--without", "sync-errors")
        await scene.start()
        async with scene.load():
            await scene.wait_acked(50)
            async with injected(scene.broker.pid, "fdatasync", "error=EIO:when=1+", tmp_path / "trace") as injection:
                await scene.wait_until(lambda: len(injection.hits()) > 3, "failed syncs")
                await scene.wait_acked(200)
        assert scene.broker.is_running
