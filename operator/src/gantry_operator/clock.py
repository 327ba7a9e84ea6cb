"""Time, as a port: durations are measured by a monotonic clock, and times for other programs are wall clock times.

``now_ms`` also counts while the machine is suspended, because leases expire then, too. Its origin is arbitrary: only
differences are meaningful, and only within one process.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol, final


class Clock(Protocol):
    """A source of time: the real clocks of the machine, or a test's."""

    def now_ms(self) -> int:
        """Return the monotonic time in milliseconds, which never goes back."""

    def wall(self) -> datetime:
        """Return the wall clock time in UTC, which may jump."""


@final
class RealClock:
    """The real clocks of this machine."""

    def now_ms(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

    def wall(self) -> datetime:
        return datetime.now(UTC)


def format_time(at: datetime) -> str:
    """Format a time as Kubernetes does in conditions and events."""
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> datetime | None:
    """Parse a time of Kubernetes, including times of Leases; None for any other text."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)
