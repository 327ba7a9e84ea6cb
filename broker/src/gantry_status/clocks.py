"""The two clocks of a status page.

CLOCK_BOOTTIME is shared by all processes of a machine and advances while the machine sleeps, so ages are measured with
it. It restarts with each boot, so a page names the boot in which it was written. The wall clock is for display.
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
    """The time since the machine's boot, by CLOCK_BOOTTIME."""

    wall_ms: int


Clock = Callable[[], Moment]
"""A function that returns the current moment."""


def now() -> Moment:
    """Return the current time on both clocks."""
    return Moment(time.clock_gettime_ns(time.CLOCK_BOOTTIME), time.time_ns() // 1_000_000)


def machine_boot_id() -> uuid.UUID | None:
    """Return the id of the machine's boot, or None where the kernel does not provide it."""
    try:
        return uuid.UUID(_MACHINE_BOOT_ID.read_text().strip())
    except (OSError, ValueError):
        return None
