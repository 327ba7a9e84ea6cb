"""The two times of pop consumption.

    pop time    the wall clock         in receipts and records: clients compare it with their own clocks, and discard
                                       messages whose invisible time is over by these
    deadline    the monotonic clock    in memory: when messages become visible

So a jump of the wall clock makes no message visible early or late while the broker runs, and the pop times of new
receipts follow it at once. A jump before the records are read again, at a start or a promotion, makes messages visible
early by at most the jump, or late by at most their invisible time.
"""

from __future__ import annotations

from typing import Final, final

from gantry_broker.ports import Clock


@final
class PopTimes:
    """The two times of pop consumption. Owned by the event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock: Final = clock

    def __repr__(self) -> str:
        return f"<PopTimes pop={self.pop_time_ms()} monotonic={self.monotonic_ms()}>"

    def pop_time_ms(self) -> int:
        """Return the time of a pop now: milliseconds since 1970. May go backward."""
        return self._clock.wall_ms()

    def monotonic_ms(self) -> int:
        """Return the present time on the clock of deadlines."""
        return self._clock.monotonic_ms()

    def wall_lead_ms(self) -> int:
        """Return how far the clock of pop times is ahead of that of deadlines."""
        return self._clock.wall_ms() - self._clock.monotonic_ms()

    def due_ms(self, pop_time_ms: int, invisible_ms: int) -> int:
        """Return when the messages of a pop are delivered again, on the clock of deadlines."""
        now_ms, lead_ms = self.monotonic_ms(), self.wall_lead_ms()
        return due_time(pop_time_ms, invisible_ms, now_ms=now_ms, wall_lead_ms=lead_ms)


def due_time(pop_time_ms: int, invisible_ms: int, *, now_ms: int, wall_lead_ms: int) -> int:
    """Return when messages are delivered again: when their time is over, in ``[now_ms, now_ms + invisible_ms]``.

    Pop times are of the wall clock, and deadlines of the monotonic one, which nothing sets. ``wall_lead_ms``: how far
    the wall clock is ahead of the clock of ``now_ms``.
    """
    return min(max(pop_time_ms + invisible_ms - wall_lead_ms, now_ms), now_ms + invisible_ms)
