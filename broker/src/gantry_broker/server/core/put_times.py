"""How long appends took, as RocketMQ's brokers tell it: how many within which time, and what 99 of 100 were within.

    this minute  [0 .. 1 ms)  [1 .. 2)  ...  [9 s .. 10 s)  [10 s ..)      counted once for each batch
    last minute  the same, which is what is told

A send's time is that of the pass it was appended in. What it waited for afterwards (the disk, slaves) is told
elsewhere: `ackWaitsMicros`.
"""

from bisect import bisect_right
from typing import Final, final

MINUTE_S: Final = 60.0

BOUNDS_MS: Final = tuple(
    bound
    for start, end, step in (
        (1, 20, 1), (20, 50, 2), (50, 100, 5), (100, 200, 10), (200, 500, 50), (500, 1_000, 100), (1_000, 11_000, 1_000)
    )
    for bound in range(start, end, step)
)  # fmt: skip
"""Where the fine classes begin, but for the first."""

CLASSES: Final = (
    ("[<=0ms]", 1), ("[0~10ms]", 10), ("[10~50ms]", 50), ("[50~100ms]", 100), ("[100~200ms]", 200),
    ("[200~500ms]", 500), ("[500ms~1s]", 1_000), ("[1~2s]", 2_000), ("[2~3s]", 3_000), ("[3~4s]", 4_000),
    ("[4~5s]", 5_000), ("[5~10s]", 10_000), ("[10s~]", 1 << 62),
)  # fmt: skip
"""RocketMQ's names for coarse classes, and where each ends."""


@final
class PutTimes:
    """Owned by the event loop."""

    def __init__(self) -> None:
        self.max_ms = 0
        """The longest since this start."""

        self._counts = [0] * (len(BOUNDS_MS) + 1)
        self._last = [0] * (len(BOUNDS_MS) + 1)
        self._began = 0.0

    def __repr__(self) -> str:
        return f"<PutTimes {sum(self._counts)} this minute, max={self.max_ms} ms>"

    def took(self, elapsed_s: float, count: int) -> None:
        """So many messages were appended in one pass."""
        if elapsed_s < 0.001:
            self._counts[0] += count
            return
        elapsed_ms = int(elapsed_s * 1000)
        self._counts[bisect_right(BOUNDS_MS, elapsed_ms)] += count
        self.max_ms = max(self.max_ms, elapsed_ms)

    def turn(self, now: float) -> None:
        """Called once a second: does another minute begin?"""
        if now - self._began >= MINUTE_S:
            self._began = now
            self._last, self._counts = self._counts, [0] * len(self._counts)

    def distribution(self) -> str:
        """Of the last whole minute, in RocketMQ's words."""
        found = [0] * len(CLASSES)
        starts = (0, *BOUNDS_MS)
        ends = [end for _, end in CLASSES]
        for start, count in zip(starts, self._last, strict=True):
            found[bisect_right(ends, start)] += count
        return "".join(f"{name}:{count} " for (name, _), count in zip(CLASSES, found, strict=True))

    def within_ms(self, share: float) -> float:
        """In which time this share of the last minute's messages was appended."""
        wanted = int(sum(self._last) * share)
        passed = 0
        starts, ends = (0, *BOUNDS_MS), (*BOUNDS_MS, BOUNDS_MS[-1])
        for start, end, count in zip(starts, ends, self._last, strict=True):
            if wanted <= passed + count:
                return start + (end - start) * (wanted - passed) / count if count else float(start)
            passed += count
        return float(BOUNDS_MS[-1])
