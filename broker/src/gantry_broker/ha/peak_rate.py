"""How much a log has grown in a second lately, at most: what a master may have taken unseen is estimated by it."""

from __future__ import annotations

from collections import deque
from typing import Final, final

WINDOWS: Final = 60


@final
class PeakRate:
    """Looks at a log's end about once a second. Every second lies in two neighbouring looks, so pairs are counted."""

    def __init__(self) -> None:
        self._grown: Final[deque[int]] = deque(maxlen=WINDOWS)
        self._last: int | None = None

    def looked(self, wrote: int) -> None:
        """The log ends there now."""
        if self._last is not None:
            self._grown.append(max(0, wrote - self._last))
        self._last = wrote

    def bytes_per_s(self, wrote: int) -> int | None:
        """At least what was taken in any second since about a minute ago, where the log ends at ``wrote`` now.

        None before anybody has looked.
        """
        if self._last is None:
            return None
        grown = [*self._grown, max(0, wrote - self._last)]
        return max(one + other for one, other in zip([0, *grown], grown, strict=False))
