"""Whether a broker still publishes its page, counted in looks and not in time.

A broker that stands still for a minute (stopped, or waiting for what does not come) never comes back by itself, and no
restart policy sees it, since its process lives. What is counted are our own looks, a second apart: when the whole
machine or container stood still, we did, too, and nobody is blamed for that.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, final

from gantry_status import PageReader, StatusPageError

LOOK_S: Final = 1.0


@final
class Pulse:
    """Of the broker that publishes one page."""

    def __init__(self, page: Path, looks_max: int, now: Callable[[], float] = time.monotonic) -> None:
        """Still after so many looks at the same publication; 0 for never."""
        self._page = page
        self._looks_max = looks_max
        self._now = now
        self._looked = now()
        self._seen: int | None = None
        self._looks = 0

    def is_still(self) -> bool:
        """Whether it has been for too long; said once, then counted anew."""
        if not self._looks_max or self._now() - self._looked < LOOK_S:
            return False
        self._looked = self._now()
        published = self._published()
        if published is None or published != self._seen:
            self._seen, self._looks = published, 0
            return False
        self._looks += 1
        if self._looks < self._looks_max:
            return False
        self._seen, self._looks = None, 0
        return True

    def _published(self) -> int | None:
        """When its last publication was; None without one, or after its last word."""
        with contextlib.suppress(StatusPageError), PageReader(str(self._page)) as reader:
            status = reader.read().status
            return None if status.phase.is_final else status.published_boottime_ns
        return None
