"""What time it is, on the two clocks of a status page.

CLOCK_BOOTTIME is one clock for all processes of a machine and goes on while the machine sleeps, so ages are measured
with it. It begins anew with each boot, so a page names the boot it was written in. The wall clock is for people.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

_MACHINE_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class Moment(NamedTuple):
    """One moment on both clocks."""

    boottime_ns: int
    wall_ms: int


Now = Callable[[], Moment]


def now() -> Moment:
    """This moment."""
    return Moment(time.clock_gettime_ns(time.CLOCK_BOOTTIME), time.time_ns() // 1_000_000)


def machine_boot_id() -> uuid.UUID | None:
    """Which boot of the machine this is, or None where the kernel does not say."""
    try:
        return uuid.UUID(_MACHINE_BOOT_ID.read_text().strip())
    except (OSError, ValueError):
        return None
