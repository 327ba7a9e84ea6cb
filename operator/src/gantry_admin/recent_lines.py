"""The sidecar's own last log lines, for the bundle."""

from __future__ import annotations

import logging
from collections import deque
from typing import Final, final

LINES_MAX: Final = 1_000
CHARACTERS_MAX: Final = 2_000


@final
class RecentLines(logging.Handler):
    """Keeps what was logged last."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self._lines: Final[deque[str]] = deque(maxlen=LINES_MAX)

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(self.format(record)[:CHARACTERS_MAX])

    @property
    def text(self) -> str:
        """Line by line."""
        return "\n".join(self._lines)
