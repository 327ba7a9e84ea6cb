"""Time, as a port.

Two clocks that are never mixed. The wall clock stamps records and file names: it may jump, so nothing is ever waited
for with it. The monotonic clock measures deadlines: it means nothing outside this process, so it is never stored.
"""

from __future__ import annotations

import time
from typing import Protocol, final


class Clock(Protocol):
    """What time it is. Any thread may ask."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970. May go backward."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds since an unknown moment. Never goes backward."""
        ...


@final
class SystemClock:
    """The machine's clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000
