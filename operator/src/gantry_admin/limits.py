"""How much leaves at a time: so many callers that wait, so many readers of the log, so many bytes of it a second.

Reading costs the broker memory bandwidth, page cache and a core, and knows nothing of its load; so it is bounded here,
for both listeners together. The bucket lets a reader go into debt and then wait for it: a range is never refused for
its size, and one that waits holds one of few places, which is what keeps others from piling up behind it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, final

from gantry_admin.errors import Problem
from gantry_admin.settings import LogSettings


@final
class TokenBucket:
    """Bytes a second, with a burst. Any thread."""

    def __init__(self, rate: int, burst: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        """``rate`` 0 means: no limit."""
        self._rate: Final = rate
        self._burst: Final = burst
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._left = float(burst)
        self._at = clock()

    def __repr__(self) -> str:
        return f"<TokenBucket rate={self._rate} left={self._left:.0f}>"

    def take(self, count: int) -> float:
        """Take ``count`` bytes, and say how many seconds to wait before they may leave."""
        if self._rate <= 0:
            return 0.0
        with self._lock:
            moment = self._clock()
            self._left = min(self._left + (moment - self._at) * self._rate, self._burst) - count
            self._at = moment
            return max(-self._left / self._rate, 0.0)


@final
class Places:
    """So many callers at a time. Owned by the event loop."""

    def __init__(self, count_max: int, refusal: str, *, retry_after_s: int) -> None:
        """``refusal`` follows the number, for people: "64 callers wait already"."""
        self.taken = 0
        self._count_max: Final = count_max
        self._refusal: Final = refusal
        self._retry_after_s: Final = retry_after_s

    def __repr__(self) -> str:
        return f"<Places {self.taken} of {self._count_max}>"

    def check(self) -> None:
        """Raise ``Problem`` 429 when all are taken."""
        if self.taken >= self._count_max:
            headers = {"Retry-After": str(self._retry_after_s)}
            raise Problem(429, f"{self._count_max} {self._refusal}", headers=headers)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Take a place until the end of the block. ``check`` comes first, where a refusal can still be answered."""
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1


@final
class LogLimits:
    """The two limits together, and what has left so far. Any thread."""

    def __init__(self, settings: LogSettings) -> None:
        self.bucket: Final = TokenBucket(settings.bytes_per_second, settings.burst_bytes)
        self.bytes_sent = 0
        self.refused = 0
        self._readers_max: Final = settings.readers_max
        self._lock: Final = threading.Lock()
        self._readers = 0

    def __repr__(self) -> str:
        return f"<LogLimits readers={self._readers} of {self._readers_max}>"

    @property
    def readers(self) -> int:
        """How many read now."""
        return self._readers

    @contextmanager
    def reader(self) -> Iterator[None]:
        """A place for one range. Raises ``Problem`` 429 when there is none."""
        with self._lock:
            if self._readers >= self._readers_max:
                self.refused += 1
                text = f"{self._readers_max} ranges are being read already"
                raise Problem(429, text, headers={"Retry-After": "1"})
            self._readers += 1
        try:
            yield
        finally:
            with self._lock:
                self._readers -= 1

    def sent(self, count: int) -> None:
        """So many bytes have left."""
        with self._lock:
            self.bytes_sent += count
