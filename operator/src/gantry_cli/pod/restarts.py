"""When a server in a container is started again after it died: at once, and only after several deaths more slowly.

    died for the 1st to 5th time within a minute   -> at once
             6th, 7th, ...                         -> after 1, 2, 4, 8, at most 16 s
    lived for less than a minute 12 times in a row -> no more: the container ends, and kubelet backs off in its way

Kubelet would wait 15 s from the second crash on, and longer each time, though the broker had been well in between. A
broker that finds its write buffers again loses nothing by a crash, so the wait would be the only damage. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, final

WINDOW_S: Final = 60.0
AT_ONCE_MAX: Final = 5
DELAY_S_MAX: Final = 16.0
SHORT_LIVES_MAX: Final = 12


@final
@dataclass(slots=True)
class Restarts:
    """The recent deaths of one server."""

    _deaths: list[float] = field(default_factory=list)
    _short_lives: int = 0

    @property
    def recent(self) -> int:
        """Deaths that still count."""
        return len(self._deaths)

    def delay_after_death(self, started: float, now: float) -> float | None:
        """It was started at ``started`` and died at ``now``: how long to wait, or None to give up."""
        self._short_lives = self._short_lives + 1 if now - started < WINDOW_S else 0
        self._deaths = [death for death in self._deaths if now - death < WINDOW_S] + [now]
        if self._short_lives >= SHORT_LIVES_MAX:
            return None
        if self.recent <= AT_ONCE_MAX:
            return 0.0
        return float(min(2 ** (self.recent - AT_ONCE_MAX - 1), DELAY_S_MAX))
