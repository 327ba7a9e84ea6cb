"""Time, as a port.

Three clocks that are never mixed. The wall clock stamps records and file names: it may jump, so nothing is ever waited
for with it. The monotonic clock measures deadlines: it means nothing outside this process, so it is never stored. The
boot clock measures ages: it counts suspended time, and with the boot's id it means the same to every process until the
machine boots again.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol, final


class Clock(Protocol):
    """What time it is. Any thread may ask."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970. May go backward."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds since an unknown moment. Never goes backward."""
        ...

    def boot_ms(self) -> int:
        """Milliseconds since the machine booted, suspended time included. Never goes backward within a boot."""
        ...

    def boot_id(self) -> str:
        """Which boot ``boot_ms`` counts from; empty when the machine does not say."""
        ...


@final
class SystemClock:
    """The machine's clocks."""

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
