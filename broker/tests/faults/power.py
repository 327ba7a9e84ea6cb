"""A power loss of a node while its broker works: everything stops at one moment, and memory is lost.

    stop the process (SIGSTOP) -> cut the disk -> end the process (SIGKILL) -> drop the buffers -> the power is back

The process is stopped first, so that it acknowledges nothing after the power is lost. It counts as stopped when all of
its threads are stopped: a thread in the middle of an fsync stops when that has returned.
"""

import asyncio
import os
import signal
import time
from pathlib import Path
from secrets import token_hex
from typing import Final

from faults.loop_disk import LoopDisk
from faults.modes import lose_buffers
from faults.scene import Scene

STOP_TIMEOUT_S: Final = 120.0
POLL_S: Final = 0.001


async def suspend(pid: int) -> None:
    """Suspend a process by SIGSTOP, and wait until each of its threads is stopped."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while not is_suspended(pid):
        assert time.monotonic() < deadline, "it is not suspended"
        await asyncio.sleep(POLL_S)


def is_suspended(pid: int) -> bool:
    """Return whether each of its threads is stopped, by the state that `ps` shows."""
    stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(stat.rpartition(") ")[2][0] == "T" for stat in stats)


async def lose_power(scene: Scene, disk: LoopDisk, buffers: Path | None = None) -> None:
    """Lose the power and restore it. Then the broker is stopped, and the disk is mounted with its durable content."""
    await suspend(scene.broker.pid)
    disk.cut_power()
    await scene.broker.kill()
    if buffers is not None:
        lose_buffers(buffers)
    disk.restore()
    # The test machine does not reboot, so another memory scope simulates a boot without any memory of the last one.
    scene.change_settings(memoryScope=token_hex(4))


async def turn_read_only(scene: Scene, disk: LoopDisk) -> None:
    """Make the disk read-only at a moment at which the broker is in no system call.

    A sync that overlaps the moment at which ext4 becomes read-only may return 0 for bytes that are on no disk (Linux
    6.18, one in 25, without any broker): a kernel fault that no program can detect. Every later sync fails.
    """
    await suspend(scene.broker.pid)
    disk.make_read_only()
    os.kill(scene.broker.pid, signal.SIGCONT)
