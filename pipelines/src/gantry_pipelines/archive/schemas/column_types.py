"""The types of declared columns: their text, which is Spark's, and Arrow's types.

    boolean, int, bigint, float, double, decimal(P,S), string, binary, date, timestamp
    array<TYPE>, map<TYPE,TYPE>, struct<NAME:TYPE,...>

A type is recorded as text in a normal form, so that two types are the same exactly if their texts are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final, final

import pyarrow as pa

SIMPLE_TYPES: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
"""The types without parameters."""

DEPTH_MAX: Final = 20
"""The greatest depth of nested types."""

_TOKEN: Final = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*|\d+|[<>(),:])")
_KEY_TYPES: Final = ("string", "int", "bigint")
"""The types of a map's keys."""


class InvalidType(ValueError):
    """The text is not a type of a column."""


@final
@dataclass(frozen=True, slots=True)
class DeclaredColumn:
    """A typed column of a topic, as the archive records it."""

    name: str
    type: str
    """The type as text, in the normal form."""

    @property
    def arrow(self) -> pa.DataType:
        """The type of the column in Arrow."""
        return parse_type(self.type)


def arrow_fields(columns: tuple[DeclaredColumn, ...]) -> list[pa.Field[Any]]:
    """Return the columns as fields of an Arrow schema."""
    return [pa.field(column.name, column.arrow) for column in columns]


def parse_type(text: str) -> pa.DataType:
    """Parse the text of a type. Raises InvalidType."""
    parser = _Parser(text)
    found = parser.read_type(0)
    if parser.next_token():
        raise InvalidType(f"{text!r} has more than one type")
    return found


def type_text(data_type: pa.DataType) -> str:
    """Return the text of a type in the normal form. Raises InvalidType for types that no column can have."""
    found: Any = data_type
    if pa.types.is_decimal128(found):
        return f"decimal({found.precision},{found.scale})"
    if pa.types.is_list(found):
        return f"array<{type_text(found.value_type)}>"
    if pa.types.is_map(found):
        return f"map<{type_text(found.key_type)},{type_text(found.item_type)}>"
    if pa.types.is_struct(found):
        return f"struct<{','.join(f'{field.name}:{type_text(field.type)}' for field in found)}>"
    for name, simple in SIMPLE_TYPES.items():
        if found == simple:
            return name
    raise InvalidType(f"{found} is not a type of a column")


def narrow_type(text: str, whole: pa.DataType) -> pa.DataType:
    """Return the type of a text, which must be a given type without some fields of its structs. Raises InvalidType."""
    narrow = parse_type(text)
    if not _is_part(narrow, whole):
        raise InvalidType(f"{type_text(narrow)} is not a part of {type_text(whole)}")
    return narrow


def _is_part(narrow: Any, whole: Any) -> bool:
    if pa.types.is_list(narrow) and pa.types.is_list(whole):
        return _is_part(narrow.value_type, whole.value_type)
    if pa.types.is_map(narrow) and pa.types.is_map(whole):
        return bool(narrow.key_type == whole.key_type and _is_part(narrow.item_type, whole.item_type))
    if pa.types.is_struct(narrow) and pa.types.is_struct(whole):
        types = {field.name: field.type for field in whole}
        return all(field.name in types and _is_part(field.type, types[field.name]) for field in narrow)
    return bool(narrow == whole)


@final
class _Parser:
    """Reads the text of a type from left to right."""

    def __init__(self, text: str) -> None:
        self._text: Final = text
        self._at = 0

    def read_type(self, depth: int) -> pa.DataType:
        if depth > DEPTH_MAX:
            raise InvalidType(f"{self._text!r} is nested more than {DEPTH_MAX} times")
        name = self._take().lower()
        if name in SIMPLE_TYPES:
            return SIMPLE_TYPES[name]
        if name == "decimal":
            return self._read_decimal()
        if name == "array":
            self._expect("<")
            item = self.read_type(depth + 1)
            self._expect(">")
            return pa.list_(item)
        if name == "map":
            return self._read_map(depth)
        if name == "struct":
            return self._read_struct(depth)
        known = ", ".join((*SIMPLE_TYPES, "decimal(P,S)", "array<T>", "map<K,V>", "struct<NAME:T>"))
        raise InvalidType(f"unknown type {name!r} in {self._text!r}; known types are {known}")

    def next_token(self) -> str:
        match = _TOKEN.match(self._text, self._at)
        if match is not None:
            return match[1]
        return self._text[self._at :].strip()

    def _read_decimal(self) -> pa.DataType:
        self._expect("(")
        precision = self._take()
        self._expect(",")
        scale = self._take()
        self._expect(")")
        if not precision.isdigit() or not scale.isdigit() or not int(scale) <= int(precision) <= 38 or precision == "0":
            raise InvalidType(f"{self._text!r}: a decimal has 1 to 38 digits, of which SCALE are after the point")
        return pa.decimal128(int(precision), int(scale))

    def _read_map(self, depth: int) -> pa.DataType:
        self._expect("<")
        key = self.read_type(depth + 1)
        self._expect(",")
        value = self.read_type(depth + 1)
        self._expect(">")
        if type_text(key) not in _KEY_TYPES:
            raise InvalidType(f"{self._text!r}: the keys of a map are string, int or bigint")
        return pa.map_(key, value)

    def _read_struct(self, depth: int) -> pa.DataType:
        self._expect("<")
        fields: list[tuple[str, pa.DataType]] = []
        while not fields or self.next_token() == ",":
            if fields:
                self._expect(",")
            name = self._take()
            self._expect(":")
            fields.append((name, self.read_type(depth + 1)))
        self._expect(">")
        names = [name.lower() for name, _ in fields]
        if len(set(names)) < len(names):
            raise InvalidType(f"{self._text!r} has two fields of one name")
        return pa.struct(fields)

    def _take(self) -> str:
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            raise InvalidType(f"{self._text!r} is not a type: it ends, or has another sign, after {self._at} signs")
        self._at = match.end()
        return match[1]

    def _expect(self, sign: str) -> None:
        at = self._at
        if self._take() != sign:
            raise InvalidType(f"{self._text!r} is not a type: expected {sign!r} after {at} signs")
