"""Row D7 of the fault catalogue: a file that gets no blocks is a refusal that names it, and never a SIGBUS later.

A sparse file can be mapped and written as long as the disk has space; without space the touch of a new page is no error
but a signal that ends the process. So every file is allocated before it is mapped, and errors of the allocation are
handled. A twin is the same test without one guard, here without the allocation: it must find the damage.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from faults.loop_disk import LoopDisk
from faults.scene import QUICK_FLUSH, Scene
from faults.strace import strace_command

from gantry_testing.tree import PYTHON_PATH

LEAVE_BYTES = 600 * 1024
"""Free bytes: less than a log file of the scene, enough for the small files of a start."""


@pytest.mark.verify
@pytest.mark.needs_root
@pytest.mark.needs_loop
async def test_a_start_without_room_is_a_refusal(disk: LoopDisk, tmp_path: Path) -> None:
    """D7: where no log file fits, the start fails with the file's name and no signal; with room it works."""
    async with Scene(tmp_path, store=disk.path / "store") as scene:
        ballast = disk.fill(leave_bytes=LEAVE_BYTES)

        refusal = await scene.start_is_refused()

        assert "no room for" in refusal and "commitlog/00000000000000000000" in refusal
        ballast.unlink()
        await scene.start()
        await scene.send_once(50)
        assert await scene.lost_messages() == []


@pytest.mark.verify(quick=1)
@pytest.mark.needs_strace
@pytest.mark.parametrize("error", ["ENOSPC", "EIO", pytest.param("EDQUOT", marks=pytest.mark.slow)])
async def test_a_failing_allocation_is_a_refusal(error: str, tmp_path: Path) -> None:
    """D7: for any allocation error the start reports it and leaves no incomplete file behind."""
    async with Scene(tmp_path) as scene:
        scene.set_broker_command(strace_command(tmp_path / "trace", "fallocate", f"error={error}", "-D"))

        refusal = await scene.start_is_refused()

        assert "no room for" in refusal
        assert list((scene.store / "commitlog").iterdir()) == []
        scene.set_broker_options()
        await scene.start()
        await scene.send_once(20)


@pytest.mark.slow
@pytest.mark.needs_strace
async def test_file_system_without_fallocate_still_reserves_blocks(tmp_path: Path) -> None:
    """D7: if the file system does not support fallocate, the blocks are written one by one, and the file is as safe."""
    async with Scene(tmp_path, settings=QUICK_FLUSH) as scene:
        scene.set_broker_command(strace_command(tmp_path / "trace", "fallocate", "error=EOPNOTSUPP", "-D"))
        await scene.start()
        file = scene.store / "commitlog" / "00000000000000000000"

        assert file.stat().st_blocks * 512 >= file.stat().st_size
        await scene.send_once(50)
        await scene.broker.kill()
        await scene.start()
        assert await scene.lost_messages() == []


TOUCH = """
import sys
from gantry_broker.ports.real_disk import RealDisk

path, size, reserve = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
view = RealDisk().create(path, size, reserve=reserve).view
for position in range(0, size, 4096):
    view[position] = 1
"""


@pytest.mark.needs_root
@pytest.mark.needs_loop
@pytest.mark.parametrize(
    ("is_reserved", "code"), [(True, 1), (False, -signal.SIGBUS)], ids=["reserved", "sparse, the twin"]
)
def test_only_allocation_turns_a_full_disk_into_an_error(disk: LoopDisk, is_reserved: bool, code: int) -> None:
    """D7: on a full disk the port's file with blocks is an error at once, the sparse one ends its process."""
    size = 1 << 20
    disk.fill(leave_bytes=0)
    path = str(disk.path / "new")

    result = subprocess.run(
        [sys.executable, "-c", TOUCH, path, str(size), str(size if is_reserved else 0)],
        env=os.environ | {"PYTHONPATH": PYTHON_PATH}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert result.returncode == code, result.stderr
    assert not is_reserved or "No space left on device" in result.stderr
