"""When which byte of the log was written, as far as somebody has watched: so that bytes at risk become seconds.

    moments   t0      t1         t2     t3         the byte at `flushed` was written between t1 and t2: whatever a
    wrote     100     250        600    900        loss would take is up to now - t1 old
    flushed           `- 300

A broker that is started again, or whose log became shorter, is another log: the history begins anew.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final, final

from gantry_status import Reading

SAMPLES_MAX: Final = 12_000
"""Twenty minutes of a broker that is written to all the time. Older ones are forgotten half by half."""


@final
class WrittenHistory:
    """Pairs of (when the broker looked, how far it had written), both rising. Owned by the event loop."""

    def __init__(self) -> None:
        self._boot: object = None
        self._wrote: list[int] = []
        self._moments: list[int] = []
        self._grew_at: int | None = None

    def __repr__(self) -> str:
        return f"<WrittenHistory samples={len(self._wrote)}>"

    def see(self, reading: Reading) -> None:
        """One publication more."""
        wrote, moment = reading.status.wrote, reading.status.published_boottime_ns
        if reading.origin.boot_id != self._boot or (wrote is not None and self._wrote and wrote < self._wrote[-1]):
            self._boot, self._wrote, self._moments, self._grew_at = reading.origin.boot_id, [], [], None
        if wrote is None:
            return
        if self._wrote and self._wrote[-1] == wrote:
            # The later moment: at it, nothing newer was written yet.
            if len(self._wrote) == 1 or self._moments[-1] < moment:
                self._moments[-1] = moment
            return
        self._wrote.append(wrote)
        self._moments.append(moment)
        self._grew_at = moment
        if len(self._wrote) > SAMPLES_MAX:
            del self._wrote[: SAMPLES_MAX // 2], self._moments[: SAMPLES_MAX // 2]

    def moment_before(self, offset: int) -> int | None:
        """A moment at which the byte at ``offset`` was not written yet: the latest that is known; None without one."""
        index = bisect_right(self._wrote, offset) - 1
        return self._moments[index] if index >= 0 else None

    def still_ms(self, now_ns: int) -> int | None:
        """For how long nothing was written; None before anybody has watched."""
        return None if self._grew_at is None else max(now_ns - self._grew_at, 0) // 1_000_000

    def rate(self, window_ns: int) -> float | None:
        """Bytes a second, over about the last ``window_ns``; None before there is anything to compare."""
        if len(self._wrote) < 2:
            return None
        end = self._moments[-1]
        index = max(bisect_right(self._moments, end - window_ns) - 1, 0)
        took = end - self._moments[index]
        return (self._wrote[-1] - self._wrote[index]) * 1e9 / took if took > 0 else 0.0
