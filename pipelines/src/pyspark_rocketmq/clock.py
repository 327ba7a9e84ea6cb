"""A clock for the deadlines of the driver's side, which tests can move."""

import time
from typing import Protocol, final


class Clock(Protocol):
    """The passing of time, for deadlines; tests advance it themselves."""

    def now_s(self) -> float:
        """Return seconds since an arbitrary moment."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait for this many seconds."""
        ...


@final
class SystemClock:
    """The monotonic clock of this machine."""

    def now_s(self) -> float:
        """Return seconds of the monotonic clock, which is never set."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Sleep; used between checks of brokers that are behind or unavailable, and between polls."""
        time.sleep(seconds)
