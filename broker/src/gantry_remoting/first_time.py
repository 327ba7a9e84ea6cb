"""Log lines about what peers do again and again: one for each kind and peer, in bounded memory and at a bounded rate.

A client that asks what its server does not do asks it every few seconds, for as long as it runs. The first time is
worth a line; the rest is worth a counter. Whoever invents kinds to fill the log gets LINES_PER_MINUTE_MAX of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Final, final

KEYS_MAX: Final = 1024
"""Remembered; one more, and the oldest is forgotten, so that it may leave a line again."""
LINES_PER_MINUTE_MAX: Final = 32
MINUTE_S: Final = 60.0


@final
class FirstTime:
    """Says whether something is logged. Owned by the event loop."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock: Final = clock
        self._keys: Final[dict[Hashable, None]] = {}
        self._minute = -1
        self._lines = 0

    def __repr__(self) -> str:
        return f"<FirstTime keys={len(self._keys)}>"

    def is_new(self, key: Hashable) -> bool:
        """Whether ``key`` has not been logged yet and a line is left in this minute; then it counts as logged."""
        if key in self._keys:
            return False
        minute = int(self._clock() // MINUTE_S)
        if minute != self._minute:
            self._minute, self._lines = minute, 0
        if self._lines >= LINES_PER_MINUTE_MAX:
            return False
        self._lines += 1
        if len(self._keys) >= KEYS_MAX:
            del self._keys[next(iter(self._keys))]
        self._keys[key] = None
        return True
