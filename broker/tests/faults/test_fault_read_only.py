"""Row D8 of the fault catalogue: the file system becomes read-only while the broker serves, or before its start."""

from pathlib import Path

import pytest
from crash.history import Outcome
from faults.loop_disk import LoopDisk
from faults.modes import MODES, Medium, Mode
from faults.power import turn_read_only
from faults.scene import QUICK_FLUSH, Scene

pytestmark = [pytest.mark.needs_root, pytest.mark.needs_loop]


def scene_in(mode: Mode, disk: LoopDisk, directory: Path, buffers: Path) -> Scene:
    return Scene(directory, store=disk.path / "store", settings=mode.settings(buffers) | QUICK_FLUSH)


QUICK_MODES = (Mode(False, Medium.TMPFS), Mode(True, Medium.OFF))


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize(
    "mode", [mode if mode in QUICK_MODES else pytest.param(mode, marks=pytest.mark.slow) for mode in MODES], ids=str
)
async def test_a_disk_that_turns_read_only_ends_acknowledgements(
    mode: Mode, disk: LoopDisk, tmp_path: Path, buffers: Path
) -> None:
    """D8: the process then ends with a reason and a non-zero code, and nothing flushed is lost."""
    async with scene_in(mode, disk, tmp_path, buffers) as scene:
        await scene.start()
        async with scene.load():
            await scene.wait_acked(100)
            await turn_read_only(scene, disk)
            code = await scene.wait_ended()
        durable = scene.checkpoint_flushed

        assert code == 1
        assert "Read-only file system" in scene.log
        disk.restore()
        await scene.start()
        lost = await scene.lost_messages()
        assert all(sent.physical_offset >= durable for sent in lost)
        assert lost == [] or not mode.is_sync


@pytest.mark.verify
async def test_a_store_on_a_read_only_disk_does_not_start(disk: LoopDisk, tmp_path: Path, buffers: Path) -> None:
    """D8: a start on a read-only disk refuses with the reason, changes nothing, and works when the disk does."""
    async with scene_in(Mode(False, Medium.OFF), disk, tmp_path, buffers) as scene:
        await scene.start()
        await scene.send_once(100)
        await scene.broker.stop()
        disk.remount_read_only()

        refusal = await scene.start_is_refused()

        assert "Read-only file system" in refusal
        disk.restore()
        await scene.start()
        assert await scene.lost_messages() == []
        assert scene.history.count(Outcome.ACKED) >= 100
