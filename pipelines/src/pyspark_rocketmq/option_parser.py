"""Parse Spark's options into values: numbers, sizes, durations, switches, JSON by topic, broker and queue.

Spark hands over text only, with names in whichever case the user wrote. Each method here takes the name too, so that an
error can say which option is wrong, its value, and what was expected.
"""

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import TypeVar, final

from gantry_store_files.queue_units import parse_queue_id
from pyspark_rocketmq.errors import InvalidOption
from pyspark_rocketmq.model import QueueId

E = TypeVar("E", bound=StrEnum)

_SIZE = re.compile(r"(\d+)\s*([kmgt]?)(i?b)?", re.IGNORECASE)
_DURATION = re.compile(r"(\d+)\s*(ms|s|m|min|h)?", re.IGNORECASE)
_SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_DURATION_UNITS_MS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000}


@final
class OptionParser:
    """The options of one query, by name in any case."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {name.lower(): str(value) for name, value in options.items()}
        self._spellings = {name.lower(): name for name in options}

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._values

    def refuse_unknown(self, known: Iterable[str]) -> None:
        """Raise InvalidOption for a name that is not known: a misspelled option would otherwise be ignored."""
        by_lower_name = {name.lower(): name for name in known}
        for name in self._values:
            if name not in by_lower_name:
                near = difflib.get_close_matches(name, list(by_lower_name), n=1, cutoff=0.6)
                hint = f"; did you mean {by_lower_name[near[0]]}?" if near else ""
                raise InvalidOption(f"unknown option {self._spellings[name]}{hint}")

    def refuse_together(self, *names: str) -> None:
        """Raise InvalidOption if more than one of these contradictory options is given."""
        given = [name for name in names if name in self]
        if len(given) > 1:
            raise InvalidOption(f"{' and '.join(given)} contradict each other: give only one of them")

    def text(self, name: str, default: str = "") -> str:
        """Return the value without surrounding spaces."""
        return self._values.get(name.lower(), default).strip()

    def name_list(self, name: str) -> tuple[str, ...]:
        """Return names that are separated by commas."""
        return tuple(word for word in (part.strip() for part in self.text(name).split(",")) if word)

    def switch(self, name: str, default: bool) -> bool:
        """Return a boolean, written `true` or `false`."""
        given_text = self.text(name, str(default)).lower()
        if given_text not in ("true", "false"):
            raise _invalid(name, given_text, "true or false")
        return given_text == "true"

    def choice(self, name: str, default: E) -> E:
        """Return the member of an enum whose value was given, in any case."""
        given_text = self.text(name, default)
        for one in type(default):
            if one.lower() == given_text.lower():
                return one
        raise _invalid(name, given_text, " or ".join(type(default)))

    def number(self, name: str, default: int, *, minimum: int = 0) -> int:
        """Return a whole number of at least `minimum`."""
        given_text = self.text(name, str(default))
        if not re.fullmatch(r"-?\d+", given_text) or int(given_text) < minimum:
            raise _invalid(name, given_text, f"a whole number, {minimum} or more")
        return int(given_text)

    def size(self, name: str, default: int, *, minimum: int = 1) -> int:
        """Return a number of bytes, written `64m`, `1GiB` or `1000`."""
        given_text = self.text(name, str(default))
        match = _SIZE.fullmatch(given_text)
        value = int(match[1]) * _SIZE_UNITS[match[2].lower()] if match else -1
        if value < minimum:
            raise _invalid(name, given_text, f"bytes, like 64m or 1g, {minimum} or more")
        return value

    def duration_ms(self, name: str, default: int, *, minimum: int = 0) -> int:
        """Return a duration, written `500ms`, `15m`, or as milliseconds."""
        given_text = self.text(name, str(default))
        match = _DURATION.fullmatch(given_text)
        value = int(match[1]) * _DURATION_UNITS_MS[(match[2] or "").lower()] if match else -1
        if value < minimum:
            raise _invalid(name, given_text, f"a duration like 500ms, 30s or 15m, {minimum} ms or more")
        return value

    def time_ms(self, name: str) -> int:
        """Return a point in time: milliseconds since 1970, or `2026-11-01T00:00:00Z`."""
        return moment_ms(name, self.text(name))

    def document(self, name: str) -> object:
        """Return a value that is written as JSON."""
        try:
            return json.loads(self.text(name))
        except ValueError as error:
            raise _invalid(name, self.text(name), f"JSON ({error})") from None

    def by_queue(self, name: str) -> dict[QueueId, object]:
        """Return JSON like `{"topic": {"broker": {"0": ...}}}` by queue."""
        shape = 'JSON like {"orders": {"broker-a": {"0": 42}}}'
        flat: dict[QueueId, object] = {}
        for topic, brokers in _object_items(name, self.document(name), shape):
            for broker, queues in _object_items(name, brokers, shape):
                for number, value in _object_items(name, queues, shape):
                    queue_id = parse_queue_id(number)
                    if queue_id is None:
                        raise _invalid(name, number, f"a queue's number; {shape}")
                    flat[QueueId(topic, broker, queue_id)] = value
        return flat

    def queue_lists(self, name: str) -> tuple[QueueId, ...]:
        """Return the queues in JSON like `{"topic": {"broker": [0, 1]}}`."""
        shape = 'JSON like {"orders": {"broker-a": [0, 1]}}'
        flat: list[QueueId] = []
        for topic, brokers in _object_items(name, self.document(name), shape):
            for broker, numbers in _object_items(name, brokers, shape):
                if not isinstance(numbers, list) or not all(type(one) is int and one >= 0 for one in numbers):
                    raise _invalid(name, json.dumps(numbers), shape)
                flat += [QueueId(topic, broker, one) for one in numbers]
        if not flat:
            raise _invalid(name, self.text(name), f"at least one queue; {shape}")
        return tuple(sorted(set(flat)))


def moment_ms(name: str, given_text: object) -> int:
    """Return a point in time as milliseconds since 1970; it is given as a number or as text."""
    text = str(given_text)
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise _invalid(name, text, "milliseconds since 1970, or a time like 2026-11-01T00:00:00Z") from None
    if moment.tzinfo is None:
        raise _invalid(name, text, "a time with a zone, like 2026-11-01T00:00:00Z")
    return round(moment.astimezone(UTC).timestamp() * 1000)


def _object_items(name: str, value: object, shape: str) -> list[tuple[str, object]]:
    if not isinstance(value, dict):
        raise _invalid(name, json.dumps(value), shape)
    return list(value.items())


def _invalid(name: str, given_text: str, wanted: str) -> InvalidOption:
    return InvalidOption(f"option {name} is {given_text!r}; it must be {wanted}")
