"""Deduplication of log lines about repeated requests: one line for each kind and peer, with bounded memory and rate.

A client that sends a request which its server does not support repeats it every few seconds for as long as it runs.
Only the first is logged. All peers together get at most LINES_PER_MINUTE_MAX lines a minute, so that a peer that
invents kinds does not fill the log.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Final, final

KEYS_MAX: Final = 1024
"""The number of remembered keys; beyond it the oldest is forgotten, and may be logged again."""
LINES_PER_MINUTE_MAX: Final = 32
"""Limit of the lines about all peers together."""
MINUTE_S: Final = 60.0


@final
class LogDeduplicator:
    """Decides whether an event is logged. Owned by the event loop."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock: Final = clock
        self._keys: Final[dict[Hashable, None]] = {}
        self._minute = -1
        self._lines = 0

    def __repr__(self) -> str:
        return f"<LogDeduplicator keys={len(self._keys)}>"

    def is_new(self, key: Hashable) -> bool:
        """Return whether ``key`` has not been logged yet and this minute's limit allows another line.

        If so, the key counts as logged.
        """
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
