"""Time for deadlines of the driver's side, so that tests can move it."""

import time
from typing import Protocol, final


class Clock(Protocol):
    """Time that passes, for deadlines; tests move it themselves."""

    def now_s(self) -> float:
        """Seconds since some moment."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


@final
class SystemClock:
    """The machine's."""

    def now_s(self) -> float:
        """Seconds of a clock that nobody sets."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait; used between questions to brokers that are not there yet."""
        time.sleep(seconds)
