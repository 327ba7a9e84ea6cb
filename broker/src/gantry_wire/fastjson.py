"""The JSON dialect of fastjson, the library that RocketMQ's Java code uses.

fastjson does not quote numeric keys of maps (`{0:"a"}`), and it writes keys that are objects as objects
(`{{"queueId":0}:5}`). Neither is JSON. `loads` reads standard JSON fast and falls back to a parser of that dialect; an
object that is a key becomes an `ObjectKey`. `dumps` writes standard JSON, except that it writes an `ObjectKey` as an
object, which is the only form of such a key that Java reads.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, final

import msgspec

DEPTH_MAX: Final = 64
"""Limit of the levels of a document in the dialect."""
_NUMBER: Final = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?[LBSFD]?")
_BARE_KEY: Final = re.compile(r"[A-Za-z_$][\w$.-]*|-?\d+")
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_STRING: Final = re.compile(r'"((?:[^"\\]|\\.)*)"|\'((?:[^\'\\]|\\.)*)\'', re.DOTALL)
_QUOTE_OR_ESCAPE: Final = re.compile(r'\\.|"', re.DOTALL)
_LITERALS: Final = {"true": True, "false": False, "null": None, "NaN": None}


@final
class ObjectKey(Mapping[str, Any]):
    """A JSON object that is the key of a map: hashable, and compared by its content."""

    __slots__ = ("_fields", "_hash")

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = dict(fields)
        self._hash = hash(tuple(sorted((name, str(value)) for name, value in fields.items())))

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectKey) and self._fields == other._fields

    def __repr__(self) -> str:
        return f"ObjectKey({self._fields!r})"


def loads(data: bytes | str) -> Any:
    """Return the value that `data` holds. Raises ValueError for text that is neither JSON nor the dialect."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        text = data if isinstance(data, str) else data.decode("utf-8")
        return _Parser(text).document()


def dumps(value: Any) -> bytes:
    """Return `value` as JSON, with numeric keys in quotes and each `ObjectKey` as an object."""
    try:
        return msgspec.json.encode(value)
    except TypeError:  # msgspec writes no key that is an object
        return _dump_dialect(value).encode()


def _dump_dialect(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_dump_key(key)}:{_dump_dialect(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_dump_dialect(item) for item in value) + "]"
    return msgspec.json.encode(value).decode()


def _dump_key(key: Any) -> str:
    return _dump_dialect(key) if isinstance(key, ObjectKey) else msgspec.json.encode(str(key)).decode()


class _Parser:
    """A recursive-descent reader of the dialect, bounded in depth."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0

    def document(self) -> Any:
        value = self._value(0)
        self._skip_space()
        if self._position != len(self._text):
            raise self._error("text after the end of the document")
        return value

    def _error(self, what: str) -> ValueError:
        return ValueError(f"{what} at character {self._position}")

    def _skip_space(self) -> None:
        match = _SPACE.match(self._text, self._position)
        assert match is not None, "the pattern also matches the empty string"
        self._position = match.end()

    def _peek(self) -> str:
        self._skip_space()
        return self._text[self._position : self._position + 1]

    def _expect(self, character: str) -> None:
        if self._peek() != character:
            raise self._error(f"expected {character!r}")
        self._position += 1

    def _value(self, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise self._error(f"nested deeper than {DEPTH_MAX}")
        first = self._peek()
        if first == "{":
            return self._object(depth)
        if first == "[":
            return self._array(depth)
        if first in ('"', "'") and first:
            return self._string()
        for literal, value in _LITERALS.items():
            if self._text.startswith(literal, self._position):
                self._position += len(literal)
                return value
        return self._number()

    def _string(self) -> str:
        match = _STRING.match(self._text, self._position)
        if match is None:
            raise self._error("a string without an end")
        self._position = match.end()
        body = match[1] if match[1] is not None else _QUOTE_OR_ESCAPE.sub(_to_double_quotes, match[2])
        try:
            decoded: str = msgspec.json.decode(f'"{body}"', type=str)
        except msgspec.DecodeError as error:
            raise self._error("a string with a bad escape") from error
        return decoded

    def _number(self) -> int | float:
        match = _NUMBER.match(self._text, self._position)
        if match is None:
            raise self._error("expected a value")
        self._position = match.end()
        digits = match[0].rstrip("LBSFD")
        if len(digits) > 400:
            raise self._error("a number of more than 400 characters")
        return float(digits) if any(mark in digits for mark in ".eE") else int(digits)

    def _array(self, depth: int) -> list[Any]:
        self._expect("[")
        items: list[Any] = []
        while self._peek() != "]":
            items.append(self._value(depth + 1))
            if self._peek() != "]":
                self._expect(",")
        self._expect("]")
        return items

    def _object(self, depth: int) -> dict[Any, Any]:
        self._expect("{")
        fields: dict[Any, Any] = {}
        while self._peek() != "}":
            key = self._key(depth + 1)
            self._expect(":")
            fields[key] = self._value(depth + 1)
            if self._peek() != "}":
                self._expect(",")
        self._expect("}")
        return fields

    def _key(self, depth: int) -> str | ObjectKey:
        first = self._peek()
        if first == "{":
            if depth > DEPTH_MAX:
                raise self._error(f"nested deeper than {DEPTH_MAX}")
            return ObjectKey(self._object(depth))
        if first in ('"', "'") and first:
            return self._string()
        match = _BARE_KEY.match(self._text, self._position)
        if match is None:
            raise self._error("expected a key")
        self._position = match.end()
        return match[0]


def _to_double_quotes(found: re.Match[str]) -> str:
    """Return a quote or an escape of a string in single quotes as it is written between double quotes."""
    return {'"': '\\"', "\\'": "'"}.get(found[0], found[0])
