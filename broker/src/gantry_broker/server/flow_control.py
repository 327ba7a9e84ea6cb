"""When to say "busy": RocketMQ's codes and texts, decided by how late the event loop is.

A RocketMQ broker measures how long a request lay in its thread pool's queue. Here requests wait in the sockets while
the loop is busy. A clock tick that is overdue by more than the limit means that what is read right now has been waiting
that long: such sends are refused until the tick comes, and taken again after it. An append that itself took longer
than the page-cache limit is named as such.
"""

import asyncio
from typing import Final, final

from gantry_wire import ResponseCode

TICK_MS: Final = 10

Refusal = tuple[ResponseCode, str]


@final
class FlowControl:
    """Owned by the event loop; `refusal` is asked once per read, not per message."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, wait_ms_max: int, append_ms_max: int) -> None:
        self._loop = loop
        self.limit(wait_ms_max=wait_ms_max, append_ms_max=append_ms_max)
        self._due_at = loop.time() + TICK_MS / 1000
        self._timer: asyncio.TimerHandle | None = None
        self._slow_append_s = 0.0
        self.standing: Refusal | None = None
        """Why every send is refused, until somebody takes it back: the disk is too full."""
        self.refused_count = 0

    def limit(self, *, wait_ms_max: int, append_ms_max: int) -> None:
        """From now on this is too long."""
        self._wait_s_max = wait_ms_max / 1000
        self._append_s_max = append_ms_max / 1000

    def start(self) -> None:
        self._tick()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def appended(self, seconds: float) -> None:
        """An append took so long."""
        if seconds > self._append_s_max:
            self._slow_append_s = seconds

    def refusal(self, now: float, waiting_count: int) -> Refusal | None:
        """Why a send that is handled at loop time `now` should be refused, or None."""
        if self.standing is not None:
            self.refused_count += 1
            return self.standing
        late_s = now - self._due_at
        if late_s <= self._wait_s_max:
            return None
        self.refused_count += 1
        kind = "PCBUSY_CLEAN_QUEUE" if self._slow_append_s else "TIMEOUT_CLEAN_QUEUE"
        return (
            ResponseCode.SYSTEM_BUSY,
            f"[{kind}]broker busy, start flow control for a while, "
            f"period in queue: {late_s * 1000:.0f}ms, size of queue: {waiting_count}",
        )

    def _tick(self) -> None:
        self._slow_append_s = 0.0
        self._due_at = self._loop.time() + TICK_MS / 1000
        self._timer = self._loop.call_later(TICK_MS / 1000, self._tick)
