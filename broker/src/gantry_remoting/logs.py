"""Log lines of our servers: one line for each event, the event first, then its facts as `key=value` pairs.

Facts may come from peers. Each is written so that nothing in it can end the line.
"""

import logging
import sys
from typing import Final, final

from gantry_remoting.audit import always_log

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


@final
class FactFormatter(logging.Formatter):
    """`time level logger event key=value ...`"""

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        pairs = [f"{name}={value!r}" for name, value in vars(record).items() if name not in _STANDARD]
        head, separator, traceback = line.partition("\n")
        return " ".join([head, *pairs]) + separator + traceback


def set_up_logs(level: str) -> None:
    """Log to standard error from `level` on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(FactFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    always_log()
