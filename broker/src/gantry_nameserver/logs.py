"""Log lines as facts with keys: time, level, where, what, and the `extra` of the call as `key=value`."""

import logging
from typing import Final

from gantry_remoting.audit import always_log

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class FactFormatter(logging.Formatter):
    """`2025-01-31 12:00:00,000 INFO gantry_nameserver.routes broker registered broker=a address=...`"""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        facts = " ".join(f"{key}={value}" for key, value in vars(record).items() if key not in _STANDARD)
        line = super().formatMessage(record)
        return f"{line} {facts}" if facts else line


def log_to_stderr(level: str) -> None:
    """Send all logs of `level` and above to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(FactFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    always_log()
