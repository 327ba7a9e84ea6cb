"""Time, as a port.

Three clocks that are never mixed. The wall clock stamps records and file names: it may jump, so a wait uses it only if
its start is the stamp of a record, as for delayed messages and checks of transactions. The monotonic clock measures
deadlines: it has no meaning outside this process, so it is never stored. The boot clock measures ages: it includes
suspended time, and together with the boot id it is valid for every process until the machine boots again.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol, final


class Clock(Protocol):
    """The three clocks of a machine. Any thread may use it."""

    def wall_ms(self) -> int:
        """Return milliseconds since 1970. May go backward."""
        ...

    def monotonic_ms(self) -> int:
        """Return milliseconds since an unknown moment. Never goes backward."""
        ...

    def boot_ms(self) -> int:
        """Return milliseconds since the machine booted, including suspended time. Never goes backward within a boot."""
        ...

    def boot_id(self) -> str:
        """Return the id of the boot that ``boot_ms`` counts from; empty if the machine reports none."""
        ...


@final
class SystemClock:
    """The real clocks of this machine."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def boot_ms(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

    def boot_id(self) -> str:
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        except OSError:
            return ""
