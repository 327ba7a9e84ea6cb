"""Decode JSON bodies: each column is a field of the object, checked against the column's type.

    {"order": 7, "amount": 12.50, "placed": "2026-11-22T12:00:00Z", "lines": [{"sku": "a"}]}

A field that is missing or null is null; fields without a column are ignored. A value of another type makes the body
undecodable. Numbers are exact: `decimal` takes them from their digits, and a number out of range is refused.
"""

import datetime
import decimal
from collections.abc import Sequence
from typing import Annotated, Any, Final, TypedDict, final

import msgspec
import pyarrow as pa

from gantry_pipelines.archive.schemas.bodies import InvalidSchema, UndecodableBody, error_text
from gantry_pipelines.archive.schemas.column_types import DeclaredColumn, InvalidType, parse_type, type_text
from gantry_spec.pipelines.parts import SchemaColumn

_INT: Final = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
_BIGINT: Final = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_SIMPLE: Final[dict[str, Any]] = {
    "boolean": bool,
    "int": _INT,
    "bigint": _BIGINT,
    "float": float,
    "double": float,
    "string": str,
    "binary": bytes,
    "date": datetime.date,
    "timestamp": datetime.datetime,
}
"""Python's types, as msgspec checks them, by the text of a type."""


@final
class JsonBodies:
    """Decodes bodies that are JSON objects."""

    def __init__(self, columns: Sequence[SchemaColumn]) -> None:
        """Parse the types of the columns. Raises InvalidSchema."""
        self._fields: Final = tuple(column.field or column.name for column in columns)
        self._columns: Final = tuple(_declared(column) for column in columns)
        types = {field: _python_type(one.arrow) for field, one in zip(self._fields, self._columns, strict=True)}
        if len(types) < len(self._fields):
            twice = next(name for name in self._fields if self._fields.count(name) > 1)
            raise InvalidSchema(f"two columns have the field {twice!r}")
        self._decoder: Final[Any] = msgspec.json.Decoder(_object_type(types))

    @property
    def columns(self) -> tuple[DeclaredColumn, ...]:
        """The columns that the schema declares, in their order."""
        return self._columns

    def decode(self, body: bytes) -> tuple[Any, ...]:
        """Return the value of each column. Raises UndecodableBody."""
        try:
            found = self._decoder.decode(body)
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError, ArithmeticError) as error:
            raise UndecodableBody(error_text(error)) from error
        return tuple(found.get(field) for field in self._fields)


def _declared(column: SchemaColumn) -> DeclaredColumn:
    if not column.type:
        raise InvalidSchema(f"column {column.name!r} has no type, which JSON needs")
    try:
        return DeclaredColumn(column.name, type_text(parse_type(column.type)))
    except InvalidType as error:
        raise InvalidSchema(f"column {column.name!r}: {error}") from error


def _python_type(data_type: pa.DataType) -> Any:
    """Return the type as which msgspec decodes a column, without null."""
    found: Any = data_type
    if pa.types.is_decimal128(found):
        return decimal.Decimal
    if pa.types.is_list(found):
        return list[_python_type(found.value_type) | None]  # type: ignore[misc]
    if pa.types.is_map(found):
        return dict[_python_type(found.key_type), _python_type(found.item_type) | None]  # type: ignore[misc]
    if pa.types.is_struct(found):
        return _object_type({field.name: _python_type(field.type) for field in found})
    return _SIMPLE[type_text(found)]


def _object_type(types: dict[str, Any]) -> Any:
    """Return a type of objects with these optional fields, whose values may be null; others are ignored."""
    create: Any = TypedDict
    return create("Body", {name: one | None for name, one in types.items()}, total=False)
