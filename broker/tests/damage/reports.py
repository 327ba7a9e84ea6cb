"""The definition of a report: a log line, warning or worse, that names the lost or damaged data.

A message is *covered* by a line that names a byte range of the log with it, its offset, its file, its queue, or its
topic without a queue. Facts of a table are covered by a line that names the table's file. A line that reports damage
without a place covers nothing.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, final

import msgspec
from damage.expectations import Message

_STANDARD_ATTRIBUTES: Final = frozenset(vars(logging.makeLogRecord({})))
# Names of data in log lines: where a damaged or missing range starts, where it ends, and the bytes of a lost tail.
_STARTS: Final = ("offset", "start", "begin", "from", "lost_from", "missing_from", "damaged_from")
_ENDS: Final = ("end", "to", "stop", "lost_to", "missing_to", "damaged_to")
_TAIL: Final = ("cut_bytes", "lost_flushed_bytes", "lost_bytes", "missing_bytes")
_RANGE: Final = re.compile(r"\[(\d+), ?(\d+)\)")
_LOG_FILE: Final = re.compile(r"commitlog/(\d{20})")
_QUEUE_FILE: Final = re.compile(r"consumequeue/([^/\s]+)/(\d+)\b")


class Report(msgspec.Struct, frozen=True):
    """One line of a log, or the reason of a refused start."""

    level: str
    """The level of the line, such as ERROR; REFUSED for a refused start."""
    text: str
    facts: dict[str, Any] = {}
    """The data of the line, by name: what the broker gave as `extra`."""

    @property
    def line(self) -> str:
        return f"{self.level} {self.text} {self.facts}"

    def names(self, words: Iterable[str]) -> bool:
        """Return whether one of the words is in the report."""
        line = self.line
        return any(word in line for word in words)

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Return the byte ranges of the log that the report names."""
        facts = self.facts
        for start_name in _STARTS:
            for end_name in _ENDS:
                start, end = facts.get(start_name), facts.get(end_name)
                if isinstance(start, int) and isinstance(end, int) and start < end:
                    yield start, end
        end = facts.get("end")
        if isinstance(end, int) and any(facts.get(name) for name in _TAIL):
            yield end, 1 << 62
        for value in facts.values():
            if isinstance(value, list | tuple):
                for pair in value:
                    if isinstance(pair, list | tuple) and len(pair) == 2 and all(isinstance(one, int) for one in pair):
                        yield pair[0], pair[1]
        for match in _RANGE.finditer(self.line):
            yield int(match[1]), int(match[2])

    def covers(self, message: Message, *, log_file_bytes: int) -> bool:
        """Return whether the report names the place of this message: its range, offset, file, queue or topic."""
        if any(start <= message.physical_offset < end for start, end in self.ranges()):
            return True
        facts = self.facts
        if facts.get("offset") == message.physical_offset:
            return True
        queue = facts.get("queue_id", facts.get("queue"))
        if facts.get("topic") == message.topic and queue in (None, message.queue_id, str(message.queue_id)):
            return True
        line = self.line
        if any(int(base) <= message.physical_offset < int(base) + log_file_bytes for base in _LOG_FILE.findall(line)):
            return True
        return (message.topic, str(message.queue_id)) in _QUEUE_FILE.findall(line)


@final
class ReportLog(logging.Handler):
    """Keeps all warnings and errors of this process."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.reports: list[Report] = []
        self.tracebacks: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        facts = {name: to_json_value(value) for name, value in vars(record).items() if name not in _STANDARD_ATTRIBUTES}
        text = record.getMessage()
        if record.exc_info is not None and record.exc_info[1] is not None:
            error = record.exc_info[1]
            facts["exception"] = f"{type(error).__name__}: {error}"
            self.tracebacks.append(f"{text}: {facts['exception']}")
        self.reports.append(Report(record.levelname, text, facts))


def to_json_value(value: Any) -> Any:
    """Convert a value to one that JSON can hold."""
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    if isinstance(value, list | tuple | set | frozenset):
        return [to_json_value(one) for one in value]
    if isinstance(value, dict):
        return {str(name): to_json_value(one) for name, one in value.items()}
    return str(value)
