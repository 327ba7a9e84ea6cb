"""The limits of the sidecar's service: concurrent waiters, event streams and readers of the log, its bytes per second.

Reading costs the broker memory bandwidth, page cache and a core, regardless of its load; so it is limited here, for
both listeners together. The token bucket lets a reader take more bytes than it has, and wait afterwards: a range is
never refused for its size, and a waiting reader holds one of few places, which keeps others from queueing up behind it.
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
    """A limit of bytes per second, with a burst. Safe to use from any thread."""

    def __init__(self, rate: int, burst: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        """``rate`` is in bytes per second; 0 means no limit."""
        self._rate: Final = rate
        self._burst: Final = burst
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._left = float(burst)
        self._at = clock()

    def __repr__(self) -> str:
        return f"<TokenBucket rate={self._rate} left={self._left:.0f}>"

    def take(self, count: int) -> float:
        """Take ``count`` bytes, and return how many seconds to wait before sending them."""
        if self._rate <= 0:
            return 0.0
        with self._lock:
            moment = self._clock()
            self._left = min(self._left + (moment - self._at) * self._rate, self._burst) - count
            self._at = moment
            return max(-self._left / self._rate, 0.0)


@final
class ConcurrencyLimit:
    """A limit on the number of callers at a time. Owned by the event loop."""

    def __init__(self, count_max: int, refusal: str, *, retry_after_s: int) -> None:
        """``refusal`` is the text after the limit in the error message, as in "64 callers are waiting already"."""
        self.in_use = 0
        self._count_max: Final = count_max
        self._refusal: Final = refusal
        self._retry_after_s: Final = retry_after_s

    def __repr__(self) -> str:
        return f"<ConcurrencyLimit {self.in_use} of {self._count_max}>"

    def check(self) -> None:
        """Raise ``Problem`` 429 if the limit is reached."""
        if self.in_use >= self._count_max:
            headers = {"Retry-After": str(self._retry_after_s)}
            raise Problem(429, f"{self._count_max} {self._refusal}", headers=headers)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Count one caller until the end of the block. Call ``check`` first, while a refusal can still be answered."""
        self.in_use += 1
        try:
            yield
        finally:
            self.in_use -= 1


@final
class LogLimits:
    """The limits of readers and of bytes per second, and the counts so far. Safe to use from any thread."""

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
        """The number of ranges that are being read now."""
        return self._readers

    @contextmanager
    def hold_reader(self) -> Iterator[None]:
        """Hold a reader's place until the end of the block. Raises ``Problem`` 429 if all are in use."""
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

    def count_sent(self, count: int) -> None:
        """Count bytes of the log that were sent."""
        with self._lock:
            self.bytes_sent += count
