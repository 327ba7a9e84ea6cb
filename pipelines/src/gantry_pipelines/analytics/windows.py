"""Which windows a run writes. Pure.

[ written ....... ][ this run: closed windows ...... ][ open ... now ]
                   from                              to = now - watermark, at a window's edge
"""

from __future__ import annotations

from typing import NamedTuple, final

WINDOWS_AT_ONCE_MAX = 100_000
"""Of one run; what is older than that is written by the next one."""


@final
class Range(NamedTuple):
    """`[begin, end)` in milliseconds since 1970, at edges of windows."""

    begin: int
    end: int

    @property
    def is_empty(self) -> bool:
        """Whether there is no window in it."""
        return self.begin >= self.end


def closed_range(begin_ms: int, now_ms: int, window_ms: int, watermark_ms: int) -> Range:
    """The windows from `begin` on that nothing can come into any more."""
    begin = begin_ms // window_ms * window_ms
    end = (now_ms - watermark_ms) // window_ms * window_ms
    return Range(begin, max(begin, min(end, begin + WINDOWS_AT_ONCE_MAX * window_ms)))
