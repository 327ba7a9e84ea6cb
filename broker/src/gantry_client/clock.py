"""Time for clients: deadlines on the event loop's clock, and the wall clock for timestamps.

A deadline is created once and passed down; each wait uses the time that remains. So three retries of a three second
send end after three seconds, not after nine.
"""

import asyncio
import math
import time
from typing import final

from gantry_client.errors import InvalidMessage


def wall_ms() -> int:
    """Return the wall time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


@final
class Deadline:
    """A point in time on the clock of the running loop by which an operation must end."""

    __slots__ = ("_at", "_loop")

    def __init__(self, timeout_ms: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._at = self._loop.time() + timeout_ms / 1000

    def __repr__(self) -> str:
        return f"<Deadline in {self.remaining_ms} ms>"

    @property
    def at(self) -> float:
        """The point in time, for `asyncio.timeout_at`."""
        return self._at

    @property
    def remaining_ms(self) -> int:
        """The remaining milliseconds, rounded up so that waiting for them reaches the deadline; 0 after it."""
        return max(0, math.ceil((self._at - self._loop.time()) * 1000))

    @property
    def has_passed(self) -> bool:
        return self._loop.time() >= self._at


def deadline_after(timeout_ms: int | None, default_ms: int) -> Deadline:
    """Return the deadline of a call with this `timeout_ms`; None means `default_ms`. Raises InvalidMessage below 1."""
    if timeout_ms is None:
        return Deadline(default_ms)
    if timeout_ms < 1:
        raise InvalidMessage(f"timeout_ms: {timeout_ms}, expected at least 1, or None for the default of {default_ms}")
    return Deadline(timeout_ms)
