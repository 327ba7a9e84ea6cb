"""The loss of a node's power while its broker works: everything stops at one moment, and memory is gone.

    stop the process (SIGSTOP) -> cut the disk -> end the process (SIGKILL) -> drop the buffers -> the power is back

The process is stopped first, so that nothing is acknowledged which no machine without power could acknowledge, and it
counts as stopped when every thread of it does: a thread in the middle of a sync stops when that has returned.
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


async def halt(pid: int) -> None:
    """Stop a process, and wait until none of its threads is on its way through the kernel."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while not is_halted(pid):
        assert time.monotonic() < deadline, "it does not stop"
        await asyncio.sleep(POLL_S)


def is_halted(pid: int) -> bool:
    """Whether each of its threads is stopped, by the letter that `ps` shows."""
    stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(stat.rpartition(") ")[2][0] == "T" for stat in stats)


async def lose_power(scene: Scene, disk: LoopDisk, buffers: Path | None = None) -> None:
    """Do it. The broker is not running afterwards, and the disk is mounted again with what it had."""
    await halt(scene.broker.pid)
    disk.cut_power()
    await scene.broker.kill()
    if buffers is not None:
        lose_buffers(buffers)
    disk.restore()
    # The machine of the test runs on: a scope of its own stands for the next run, to which no memory has come over.
    scene.set(memoryScope=token_hex(4))


async def turn_read_only(scene: Scene, disk: LoopDisk) -> None:
    """The disk turns read-only at a moment at which the broker is in no system call.

    A sync that overlaps the moment at which ext4 gives up may return 0 for bytes that are on no disk (Linux 6.18, one
    such moment in 25, with no broker at all): that is the kernel's fault and nobody can know it. Every later one fails.
    """
    await halt(scene.broker.pid)
    disk.make_read_only()
    os.kill(scene.broker.pid, signal.SIGCONT)
