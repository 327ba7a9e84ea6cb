"""Words of Spark's options as values: numbers, sizes, times, switches, JSON by topic, broker and queue.

Spark hands over text only, with names in whatever case the user wrote. Each reader here takes the name, too, so that an
error says which option is wrong, what it said, and what it may say.
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
class OptionWords:
    """The options of one query, by name in any case; whatever nobody asked for can be named in the end."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {name.lower(): str(value) for name, value in options.items()}
        self._spellings = {name.lower(): name for name in options}

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._values

    def refuse_unknown(self, known: Iterable[str]) -> None:
        """A misspelled option would otherwise be an option not given."""
        by_small_letters = {name.lower(): name for name in known}
        for name in self._values:
            if name not in by_small_letters:
                near = difflib.get_close_matches(name, list(by_small_letters), n=1, cutoff=0.6)
                hint = f"; did you mean {by_small_letters[near[0]]}?" if near else ""
                raise InvalidOption(f"there is no option {self._spellings[name]}{hint}")

    def refuse_together(self, *names: str) -> None:
        """Options that say different things about one matter."""
        given = [name for name in names if name in self]
        if len(given) > 1:
            raise InvalidOption(f"{' and '.join(given)} contradict each other: give one of them")

    def text(self, name: str, default: str = "") -> str:
        """As it was written, without spaces around it."""
        return self._values.get(name.lower(), default).strip()

    def words(self, name: str) -> tuple[str, ...]:
        """Names with commas between them."""
        return tuple(word for word in (part.strip() for part in self.text(name).split(",")) if word)

    def switch(self, name: str, default: bool) -> bool:
        """`true` or `false`."""
        said = self.text(name, str(default)).lower()
        if said not in ("true", "false"):
            raise _wrong(name, said, "true or false")
        return said == "true"

    def choice(self, name: str, default: E) -> E:
        """One of the words of an enum, in any case."""
        said = self.text(name, default)
        for one in type(default):
            if one.lower() == said.lower():
                return one
        raise _wrong(name, said, " or ".join(type(default)))

    def number(self, name: str, default: int, *, minimum: int = 0) -> int:
        """A whole number."""
        said = self.text(name, str(default))
        if not re.fullmatch(r"-?\d+", said) or int(said) < minimum:
            raise _wrong(name, said, f"a whole number, {minimum} or more")
        return int(said)

    def size(self, name: str, default: int, *, minimum: int = 1) -> int:
        """Bytes: `64m`, `1GiB`, `1000`."""
        said = self.text(name, str(default))
        match = _SIZE.fullmatch(said)
        value = int(match[1]) * _SIZE_UNITS[match[2].lower()] if match else -1
        if value < minimum:
            raise _wrong(name, said, f"bytes, like 64m or 1g, {minimum} or more")
        return value

    def duration_ms(self, name: str, default: int, *, minimum: int = 0) -> int:
        """A span of time: `500ms`, `15m`, or milliseconds alone."""
        said = self.text(name, str(default))
        match = _DURATION.fullmatch(said)
        value = int(match[1]) * _DURATION_UNITS_MS[(match[2] or "").lower()] if match else -1
        if value < minimum:
            raise _wrong(name, said, "a span of time, like 500ms, 30s or 15m")
        return value

    def time_ms(self, name: str) -> int:
        """A moment: milliseconds since 1970, or `2026-11-01T00:00:00Z`."""
        return moment_ms(name, self.text(name))

    def document(self, name: str) -> object:
        """JSON."""
        try:
            return json.loads(self.text(name))
        except ValueError as error:
            raise _wrong(name, self.text(name), f"JSON ({error})") from None

    def by_queue(self, name: str) -> dict[QueueId, object]:
        """JSON as `{"topic": {"broker": {"0": ...}}}`, flat."""
        shape = 'JSON like {"orders": {"broker-a": {"0": 42}}}'
        flat: dict[QueueId, object] = {}
        for topic, brokers in _table(name, self.document(name), shape):
            for broker, queues in _table(name, brokers, shape):
                for number, value in _table(name, queues, shape):
                    queue_id = parse_queue_id(number)
                    if queue_id is None:
                        raise _wrong(name, number, f"a queue's number; {shape}")
                    flat[QueueId(topic, broker, queue_id)] = value
        return flat

    def queue_lists(self, name: str) -> tuple[QueueId, ...]:
        """JSON as `{"topic": {"broker": [0, 1]}}`, flat."""
        shape = 'JSON like {"orders": {"broker-a": [0, 1]}}'
        flat: list[QueueId] = []
        for topic, brokers in _table(name, self.document(name), shape):
            for broker, numbers in _table(name, brokers, shape):
                if not isinstance(numbers, list) or not all(type(one) is int and one >= 0 for one in numbers):
                    raise _wrong(name, json.dumps(numbers), shape)
                flat += [QueueId(topic, broker, one) for one in numbers]
        if not flat:
            raise _wrong(name, self.text(name), f"at least one queue; {shape}")
        return tuple(sorted(set(flat)))


def moment_ms(name: str, said: object) -> int:
    """A moment that somebody wrote, as a number or as text."""
    text = str(said)
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise _wrong(name, text, "milliseconds since 1970, or a moment like 2026-11-01T00:00:00Z") from None
    if moment.tzinfo is None:
        raise _wrong(name, text, "a moment with its zone: 2026-11-01T00:00:00Z")
    return round(moment.astimezone(UTC).timestamp() * 1000)


def _table(name: str, value: object, shape: str) -> list[tuple[str, object]]:
    if not isinstance(value, dict):
        raise _wrong(name, json.dumps(value), shape)
    return list(value.items())


def _wrong(name: str, said: str, wanted: str) -> InvalidOption:
    return InvalidOption(f"option {name} is {said!r}; it has to be {wanted}")
