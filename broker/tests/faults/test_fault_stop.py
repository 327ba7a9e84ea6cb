"""Row K3 of the fault catalogue: SIGTERM under load, further signals, SIGKILL while stopping, and a disk that hangs.

A stop is clean and removes the abort marker, or it is not and the next start recovers as after a crash. In either case
no acknowledged message is lost.
"""

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final, final

import pytest
from crash.processes import ServerProcess
from faults.modes import MODES, Mode, buffer_directory
from faults.scene import NO_FLUSH, Scene

from gantry_status import PageReader, Phase, Reading

HANGING: Final = Path(__file__).resolve().parent / "hanging_disk.py"
FLUSHING: Final = "stopping: flushing"
"""The log text of a stop that waits for its flush, once a second."""


@final
class StopScene:
    """A broker over a disk that hangs on demand, observed from outside."""

    def __init__(self, directory: Path, **settings: str) -> None:
        self.scene: Final = Scene(directory, settings=NO_FLUSH | settings)
        self._hang: Final = directory / "hang"
        arguments = [str(HANGING), str(self._hang), "-m", "gantry_broker", "-c", str(directory / "broker.conf")]
        self.scene.broker = ServerProcess("broker", arguments, "broker listening on", directory)

    def hang(self) -> None:
        self._hang.touch()

    def fail(self) -> None:
        self._hang.write_text("fail")

    def recover(self) -> None:
        self._hang.unlink()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal by pid, since `Popen.send_signal` may consume the exit code."""
        os.kill(self.scene.broker.pid, number)

    async def logged(self, text: str) -> None:
        await self.scene.wait_until(lambda: text in self.scene.log, f"{text!r} in the log")

    def page(self) -> Reading:
        with PageReader(str(self.scene.store / "status")) as reader:
            return reader.read()

    def has_abort_marker(self) -> bool:
        return (self.scene.store / "abort").exists()

    async def starts(self, *, is_clean: bool) -> None:
        """Start again; check whether the last stop counts as clean, and that nothing acknowledged is lost."""
        await self.scene.start()
        assert f"store opened is_clean={is_clean}" in self.scene.log, self.scene.log
        assert await self.scene.lost_messages() == []


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize("mode", MODES, ids=str)
async def test_sigterm_under_load_is_a_clean_stop(tmp_path: Path, mode: Mode) -> None:
    """K3: producers that never stop sending do not prevent a clean stop, and lose nothing by it.

    In every mode: bytes that are only in a buffer are committed and flushed, and an anonymous buffer loses nothing.
    """
    with buffer_directory() as buffers:
        await stop_under_load(Scene(tmp_path, settings=NO_FLUSH | mode.settings(buffers)))


async def stop_under_load(scene: Scene) -> None:
    """Send SIGTERM under load, and check that the next start finds a clean store."""
    async with scene:
        await scene.start()
        async with scene.load():
            await scene.wait_acked(200)

            assert await scene.broker.stop() == 0

        assert not (scene.store / "abort").exists()
        assert "Traceback" not in scene.log, scene.log
        await scene.start()
        assert "store opened is_clean=True" in scene.log
        assert await scene.lost_messages() == []


@pytest.mark.verify
async def test_more_signals_change_nothing(tmp_path: Path) -> None:
    """K3: a second SIGTERM, and a Ctrl-C, while everything is flushed: the stop is as clean as with one."""
    stop = StopScene(tmp_path)
    async with stop.scene as scene:
        await scene.start()
        await scene.send_once(100)
        stop.hang()

        stop.signal(signal.SIGTERM)
        await stop.logged(FLUSHING)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
            stop.signal(number)
        await stop.logged("waited_s=1")
        await scene.wait_until(lambda: stop.page().status.phase is Phase.STOPPING, "phase STOPPING on the status page")
        assert stop.has_abort_marker()
        stop.recover()

        assert await scene.wait_ended() == 0
        assert not stop.has_abort_marker()
        assert stop.page().status.phase is Phase.STOPPED
        await stop.starts(is_clean=True)


@pytest.mark.verify
async def test_sigkill_while_stopping_is_a_crash(tmp_path: Path) -> None:
    """K3: killed before everything was flushed, the marker stays, and the next start takes the way of a crash."""
    stop = StopScene(tmp_path)
    async with stop.scene as scene:
        await scene.start()
        await scene.send_once(100)
        stop.hang()
        stop.signal(signal.SIGTERM)
        await stop.logged(FLUSHING)
        await scene.wait_until(lambda: stop.page().status.phase is Phase.STOPPING, "phase STOPPING on the status page")

        await scene.broker.kill()

        assert stop.has_abort_marker()
        last = stop.page()
        assert (last.status.phase, last.is_writer_alive, last.is_stale()) == (Phase.STOPPING, False, True)
        stop.recover()
        await stop.starts(is_clean=False)


@pytest.mark.verify
async def test_stop_that_times_out_names_the_unflushed_bytes(tmp_path: Path) -> None:
    """K3: when `shutdownTimeout` is over the process names the bytes, leaves the marker, and ends with code 1."""
    stop = StopScene(tmp_path, shutdownTimeout="4000")
    async with stop.scene as scene:
        await scene.start()
        await scene.send_once(100)
        before = stop.page().status
        stop.hang()

        stop.signal(signal.SIGTERM)

        assert await scene.wait_ended() == 1
        assert stop.has_abort_marker()
        last = stop.page()
        assert last.status.wrote is not None and last.status.flushed is not None
        assert before.flushed == last.status.flushed < last.status.wrote, "expected no flush while the disk hung"
        unflushed = f"[{last.status.flushed}, {last.status.wrote})"
        left_bytes = last.status.wrote - last.status.flushed
        lines = [line for line in scene.log.splitlines() if FLUSHING in line]
        assert len(lines) >= 2, "not reported once a second"
        assert all(f"left_bytes={left_bytes}" in line and unflushed in line for line in lines)
        [verdict] = [
            line for line in scene.log.splitlines() if "stop is not clean: commit log not flushed in time" in line
        ]
        assert "CRITICAL" in verdict and unflushed in verdict and f"left_bytes={left_bytes}" in verdict
        assert "Traceback" not in scene.log, scene.log
        assert last.status.phase is Phase.FAILED and unflushed in last.status.last_error
        stop.recover()
        await stop.starts(is_clean=False)


@pytest.mark.verify
async def test_a_stop_whose_flush_fails_is_not_clean(tmp_path: Path) -> None:
    """K3: a disk that refuses the last flush leaves the marker and a non-zero code, and the page shows the reason."""
    stop = StopScene(tmp_path)
    async with stop.scene as scene:
        await scene.start()
        await scene.send_once(100)
        stop.fail()

        assert await scene.broker.stop() == 1

        assert stop.has_abort_marker()
        last = stop.page().status
        assert last.phase is Phase.FAILED and last.last_error != ""
        assert "stopped, but the store is not clean" in scene.log, scene.log
        stop.recover()
        await stop.starts(is_clean=False)


@pytest.mark.verify
async def test_a_signal_while_recovering_ends_the_start(tmp_path: Path) -> None:
    """K3: a stop does not wait for the end of a long recovery; the next start repeats it."""
    stop = StopScene(tmp_path)
    async with stop.scene as scene:
        await scene.start()
        await scene.send_once(100)
        await scene.broker.kill()
        stop.hang()
        start = scene.broker.log_bytes
        await scene.broker.launch()
        await scene.broker.wait_logged("starting", start)

        stop.signal(signal.SIGTERM)
        stop.recover()

        assert await scene.wait_ended() == 1
        log = scene.broker.logged_since(start)
        assert "cannot start reason='a signal arrived during recovery" in log, log
        assert "Traceback" not in log, log
        assert stop.has_abort_marker()
        assert stop.page().status.phase is Phase.FAILED
        await stop.starts(is_clean=False)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
async def test_repeated_signals_end_with_code_zero(tmp_path: Path, number: signal.Signals) -> None:
    """K3: signals until the very last moment of the process do not spoil its exit code."""
    async with Scene(tmp_path) as scene:
        await scene.start()
        await scene.send_once(20)

        with suppress(ProcessLookupError):  # The process may have exited before this test notices it.
            while scene.broker.is_running:
                os.kill(scene.broker.pid, number)
                await asyncio.sleep(0.0005)

        assert await scene.wait_ended() == 0, scene.log
        assert not (scene.store / "abort").exists()
