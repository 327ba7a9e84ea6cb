"""The loss of a node's power while its broker works: everything stops at one moment, and memory is gone.

    stop the process (SIGSTOP) -> cut the disk -> end the process (SIGKILL) -> drop the buffers -> the power is back

The process is stopped first, so that nothing is acknowledged which no machine without power could acknowledge.
"""

import os
import signal
from pathlib import Path

from faults.loop_disk import LoopDisk
from faults.modes import lose_buffers
from faults.scene import Scene


async def lose_power(scene: Scene, disk: LoopDisk, buffers: Path | None = None) -> None:
    """Do it. The broker is not running afterwards, and the disk is mounted again with what it had."""
    os.kill(scene.broker.pid, signal.SIGSTOP)
    disk.cut_power()
    await scene.broker.kill()
    if buffers is not None:
        lose_buffers(buffers)
    disk.restore()
