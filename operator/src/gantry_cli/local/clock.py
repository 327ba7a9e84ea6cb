"""The one clock of a local group: the machine's boot-time clock, which goes on while the machine sleeps."""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path


def now_ms() -> int:
    """Brokers use the same one for grants and Leases, so that moments can be compared."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


@cache
def machine_boot() -> str:
    """Another one after each boot, when the clock begins anew."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
