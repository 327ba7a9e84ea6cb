"""Log lines as JSON on standard error: one fact each, with keys. Nothing that has a secret logs it."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any, Final, final

STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "settings"}
NOISY: Final = ("kopf", "aiohttp.access", "urllib3", "kubernetes")


@final
class JsonFormatter(logging.Formatter):
    """One line for each record."""

    def format(self, record: logging.LogRecord) -> str:
        moment = self.formatTime(record, "%Y-%m-%dT%H:%M:%S")
        line: dict[str, Any] = {
            "time": f"{moment}.{int(record.msecs):03d}",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {key: value for key, value in vars(record).items() if key not in STANDARD and not key.startswith("k8s")}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def set_up(level: str) -> None:
    """For the whole process."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in NOISY:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
