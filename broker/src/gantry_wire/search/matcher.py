"""The conditions of a search, and their test on one message.

All given conditions must hold. A message is tested by its cheapest parts first: store time, tag, key and id, then SQL92
on its properties, then its body, which is decompressed only for conditions on it and within a limit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, final

import msgspec

from gantry_wire import properties as names
from gantry_wire.compress import inflate_body
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.filters import TagFilter, parse_tag_filter
from gantry_wire.limits import MESSAGE_BYTES_MAX, PROPERTIES_BYTES_MAX
from gantry_wire.message import StoredMessage, parse_offset_message_id
from gantry_wire.names import SCHEDULE_TOPIC
from gantry_wire.search.errors import SearchFault
from gantry_wire.search.json_path import JsonCondition, decode_json, parse_json_condition
from gantry_wire.search.needles import Needle, ascii_needle, select_needle
from gantry_wire.sql92 import ExpressionFault, SqlFilter, parse_sql_filter
from gantry_wire.sql92.filter import required_texts

TEXT_CHARACTERS_MAX: Final = 1_024
"""The longest text that is searched in bodies."""

JSON_CONDITIONS_MAX: Final = 8
"""The most JSON conditions of one search, since each is evaluated for every candidate."""

INFLATED_BYTES_MAX: Final = 4 * MESSAGE_BYTES_MAX
"""How much of a compressed body is decompressed to test it: four times the largest body that RocketMQ accepts by
default, which bounds the memory of a search. A longer body counts as unreadable."""

REPLACEMENT: Final = "\ufffd"
"""The character in place of bytes that are not UTF-8; the stored bytes of a text with it are unknown."""


class SearchCriteria(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What to search. Conditions that are None, and empty ones, match every message."""

    from_ms: int | None = None
    """Messages that were stored at this time or later."""

    to_ms: int | None = None
    """Messages that were stored before this time."""

    tag: str | None = None
    """A tag, or several that are separated by `||`."""

    key: str | None = None
    """One of the message's keys, completely."""

    id: str | None = None
    """The sender's message id, or the broker's."""

    sql: str | None = None
    """A SQL92 filter on properties."""

    text: str | None = None
    """A part of the body."""

    ignores_case: bool = False
    """Whether `text` matches in any case. A letter matches its upper and its lower case; accents count."""

    json_paths: tuple[str, ...] = ()
    """Conditions on a body in JSON (`json_path`)."""


@final
class MessageMatcher:
    """The conditions of one search. It is immutable, except for the count of unreadable bodies."""

    def __init__(self, criteria: SearchCriteria) -> None:
        """Parse all conditions. Raises ``SearchFault`` with the first fault."""
        self.criteria: Final = criteria
        self.unreadable = 0
        """Bodies that could not be decompressed within the limit, and so were not tested."""

        self._tags: Final[TagFilter] = _parse_tags(criteria.tag)
        self._sql: Final[SqlFilter | None] = None if criteria.sql is None else _parse_sql(criteria.sql)
        self._json: Final[tuple[JsonCondition, ...]] = _parse_json(criteria.json_paths)
        _check_times(criteria)
        _check_texts(criteria)
        self._text: Final = None if criteria.text is None else criteria.text.encode()
        is_folded = criteria.text is not None and criteria.ignores_case
        self._pattern: Final = re.compile(_any_case(criteria.text or "")) if is_folded else None
        self.needle: Final[Needle | None] = select_needle(self._needles())
        """Bytes that the records of all matches contain, as far as they are not opaque."""

        self.named_offset: Final[int | None] = _named_offset(criteria.id)
        """The offset in the log that the wanted id names if it is a broker's; that record may match without the needle.
        """

    def __repr__(self) -> str:
        return f"<MessageMatcher {msgspec.to_builtins(self.criteria)}>"

    @property
    def needs_body(self) -> bool:
        """Whether a condition is on the body."""
        return self._text is not None or bool(self._json)

    @property
    def needs_record(self) -> bool:
        """Whether any condition needs more than a queue unit."""
        return self.needs_body or self.criteria != SearchCriteria()

    def unit_codes(self, topic: str) -> frozenset[int]:
        """Return the codes that the queue units of matching messages of a topic have; empty if any code may match.

        The units of delayed messages have the time of their delivery in place of the code of a tag.
        """
        return frozenset() if topic == SCHEDULE_TOPIC else self._tags.codes

    def accepts(self, message: StoredMessage) -> bool:
        """Return whether a stored message meets all conditions."""
        return self.matches(
            message.properties, message.store_timestamp_ms, lambda: message.offset_message_id,
            lambda: self._inflate(message),
        )  # fmt: skip

    def matches(
        self, properties: Mapping[str, str], store_time_ms: int, offset_message_id: Callable[[], str],
        body: Callable[[], bytes | None],
    ) -> bool:  # fmt: skip
        """Return whether a message with these parts meets all conditions.

        ``body`` returns the decompressed body, or None if it is unreadable; then no condition on it is met.
        """
        wanted = self.criteria
        if wanted.from_ms is not None and store_time_ms < wanted.from_ms:
            return False
        if wanted.to_ms is not None and store_time_ms >= wanted.to_ms:
            return False
        if not self._tags.accepts_tags(properties.get(names.TAGS)):
            return False
        if wanted.key is not None and wanted.key not in names.split_keys(properties.get(names.KEYS, "")):
            return False
        if wanted.id is not None and not self._has_id(wanted.id, properties, offset_message_id):
            return False
        if self._sql is not None and not self._sql.accepts({name: text for name, text in properties.items() if text}):
            return False
        return not self.needs_body or self._accepts_body(body())

    def _accepts_body(self, body: bytes | None) -> bool:
        if body is None:
            return False
        if self._pattern is not None:
            if self._pattern.search(body) is None:
                return False
        elif self._text is not None and self._text not in body:
            return False
        if not self._json:
            return True
        document = decode_json(body)
        return all(condition.accepts(document) for condition in self._json)

    @staticmethod
    def _has_id(wanted: str, properties: Mapping[str, str], offset_message_id: Callable[[], str]) -> bool:
        return properties.get(names.UNIQUE_KEY) == wanted or offset_message_id() == wanted.upper()

    def _inflate(self, message: StoredMessage) -> bytes | None:
        try:
            return inflate_body(message.body, message.sys_flag, INFLATED_BYTES_MAX)
        except RemoteProtocolError:
            self.unreadable += 1
            return None

    def _needles(self) -> list[Needle]:
        criteria = self.criteria
        found = [condition.needle() for condition in self._json]
        if criteria.text is not None:
            found.append(ascii_needle(criteria.text) if criteria.ignores_case else Needle(criteria.text.encode()))
        found += [Needle(text.encode()) for text in (criteria.key, criteria.id) if text is not None]
        if self._sql is not None:
            found += [Needle(f"{name}{names.KEY_END}{text}".encode()) for name, text in required_texts(self._sql)]
        return [one for one in found if one is not None]


def _parse_tags(expression: str | None) -> TagFilter:
    try:
        return parse_tag_filter(expression)
    except ValueError as error:
        raise SearchFault(f"tag: {error}") from error


def _parse_sql(expression: str) -> SqlFilter:
    try:
        parsed = parse_sql_filter(expression)
    except ExpressionFault as error:
        raise SearchFault(f"SQL filter: {error}") from error
    if parsed.ignored.strip():
        at = len(expression) - len(parsed.ignored)
        raise SearchFault(f"SQL filter, position {at + 1}: expected the end; found {parsed.ignored[:16]!r}")
    return parsed


def _parse_json(texts: tuple[str, ...]) -> tuple[JsonCondition, ...]:
    if len(texts) > JSON_CONDITIONS_MAX:
        raise SearchFault(f"{len(texts)} JSON paths: at most {JSON_CONDITIONS_MAX} are allowed")
    return tuple(map(parse_json_condition, texts))


def _named_offset(text: str | None) -> int | None:
    try:
        return None if text is None else parse_offset_message_id(text)[2]
    except RemoteProtocolError:
        return None


def _check_times(criteria: SearchCriteria) -> None:
    if criteria.from_ms is not None and criteria.to_ms is not None and criteria.from_ms >= criteria.to_ms:
        raise SearchFault("the time range is empty: its end must be after its beginning")


def _check_texts(criteria: SearchCriteria) -> None:
    for name, text, limit in (
        ("text", criteria.text, TEXT_CHARACTERS_MAX),
        ("key", criteria.key, PROPERTIES_BYTES_MAX),
        ("id", criteria.id, PROPERTIES_BYTES_MAX),
    ):
        if text is None:
            continue
        if not 0 < len(text) <= limit:
            raise SearchFault(f"{name}: expected 1 to {limit} characters, but it has {len(text)}")
        if REPLACEMENT in text or any("\ud800" <= one <= "\udfff" for one in text):
            raise SearchFault(f"{name}: the text contains a character that stands for bytes that are not UTF-8")
    if criteria.key is not None and names.KEY_SEPARATOR in criteria.key:
        raise SearchFault(f"key {criteria.key[:64]!r}: a key has no spaces; search one key")
    if criteria.ignores_case and criteria.text is None:
        raise SearchFault("ignoring case needs a text to search")


def _any_case(text: str) -> bytes:
    """Return the pattern of the UTF-8 text in any case: each letter, its upper and its lower case."""
    parts: list[bytes] = []
    for one in text:
        forms = dict.fromkeys((one, one.lower(), one.upper()))
        if one.isascii():
            forms = dict.fromkeys(form for form in forms if form.isascii())
        parts.append(b"(?:" + b"|".join(re.escape(form.encode()) for form in forms) + b")")
    return b"".join(parts)
