"""What time it is for the purpose of deleting: **a wall clock that jumps is believed after an hour**.

Ages are differences between the wall clock and store times. A clock set hours ahead, by a mistake or for a moment,
would expire everything at once, and no undoing it brings the messages back. So time is carried on from what was
believed before, by the monotonic clock; small differences are followed; a large one must stand still for an hour
first. A start counts as a jump from the newest message's store time: after days of standstill consumers get that
hour, too. A wall clock behind what is believed counts at once, since deleting late harms nobody.
"""

from __future__ import annotations

from typing import Final, final

TOLERANCE_MS: Final = 60_000
SETTLE_MS: Final = 3_600_000


@final
class RetentionClock:
    """Owned by whoever plans. Pure: it is told what both clocks say."""

    def __init__(self, *, wall_ms: int, monotonic_ms: int, newest_ms: int) -> None:
        self._believed_ms = min(wall_ms, newest_ms) if newest_ms > 0 else wall_ms
        self._seen_ms = monotonic_ms
        self._difference_ms: int | None = None
        self._differs_since_ms = monotonic_ms

    def __repr__(self) -> str:
        return f"<RetentionClock believed={self._believed_ms} doubted={self._difference_ms}>"

    @property
    def is_doubtful(self) -> bool:
        """Whether the wall clock says something that is not believed yet."""
        return self._difference_ms is not None

    def observe(self, *, wall_ms: int, monotonic_ms: int) -> int:
        """Look at both clocks, every few seconds or minutes, and get the time to compare with."""
        believed = self._believed_ms + monotonic_ms - self._seen_ms
        difference = wall_ms - believed
        if abs(difference) <= TOLERANCE_MS:
            believed, self._difference_ms = wall_ms, None
        elif self._difference_ms is None or abs(difference - self._difference_ms) > TOLERANCE_MS:
            self._difference_ms, self._differs_since_ms = difference, monotonic_ms
        elif monotonic_ms - self._differs_since_ms >= SETTLE_MS:
            believed, self._difference_ms = wall_ms, None
        self._believed_ms, self._seen_ms = believed, monotonic_ms
        return min(believed, wall_ms)
