"""How far the copy of an old broker's log is, how fast it goes, and when it will be level."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Final, final

LOOKS: Final = 30
"""Over how many of them rates are taken."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the copy is."""

    copied: int
    total: int
    per_s: float
    closing_per_s: float
    """By how much what is missing becomes less: the old log grows meanwhile."""

    @property
    def left_s(self) -> float | None:
        return (self.total - self.copied) / self.closing_per_s if self.closing_per_s > 0 else None


@final
class Rates:
    """Rates over the last looks."""

    def __init__(self) -> None:
        self._looks: Final[deque[tuple[float, int, int]]] = deque(maxlen=LOOKS)

    def look(self, copied: int, total: int) -> Progress:
        """One more look."""
        self._looks.append((time.monotonic(), copied, total - copied))
        (first_at, first_copied, first_missing), (at, _, missing) = self._looks[0], self._looks[-1]
        elapsed = max(at - first_at, 1e-3)
        return Progress(copied, total, max(0, copied - first_copied) / elapsed, (first_missing - missing) / elapsed)
