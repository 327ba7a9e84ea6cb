"""The log format of Gantry's servers: one line for each event, with its fields as `key=value` pairs.

Field values may come from peers. Each is written so that it cannot end the line. A traceback follows its line.
"""

import logging
import sys
from typing import Final, final

from gantry_remoting.audit import enable_audit_log

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Attributes that every log record has; all others are fields of the event."""


@final
class KeyValueFormatter(logging.Formatter):
    """A formatter of lines `time level logger event key=value ...`."""

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        pairs = [f"{name}={value!r}" for name, value in vars(record).items() if name not in _STANDARD]
        head, separator, traceback = line.partition("\n")
        return " ".join([head, *pairs]) + separator + traceback


def set_up_logs(level: str) -> None:
    """Log to standard error from `level` on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(KeyValueFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    enable_audit_log()
