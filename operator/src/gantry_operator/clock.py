"""Time, as a port: what is measured never jumps, and what is written down for others is the wall's.

``now_ms`` counts while the machine is suspended, too, since leases do. It starts anywhere; only differences mean
something, and only within one process.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol, final


class Clock(Protocol):
    """Real, or a test's."""

    def now_ms(self) -> int:
        """Never goes back."""

    def wall(self) -> datetime:
        """In UTC; may jump."""


@final
class RealClock:
    """Of this machine."""

    def now_ms(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

    def wall(self) -> datetime:
        return datetime.now(UTC)


def moment_text(at: datetime) -> str:
    """As Kubernetes writes times in conditions and events."""
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def moment_of(text: str) -> datetime | None:
    """The other way round, also for times of Leases; None for anything else."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)
