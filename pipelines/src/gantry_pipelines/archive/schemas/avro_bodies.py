"""Decode Avro bodies: values of one record schema in Avro's binary encoding, without a header.

    null, boolean, int, long, float, double, bytes, string   the columns' types of the same meaning
    enum, fixed, array, map, record                          string, binary, array, map, struct
    ["null", T]                                              T, since each column may be null
    date, timestamp-millis, timestamp-micros, decimal        date, timestamp, decimal(P,S)

Other logical types have the type that they are stored as. A union of several types, and a record that contains itself,
have no column: leave their fields out with `columns`. A value must end where the body ends. A body that does not have
the schema is decoded by the first earlier schema that it has.
"""

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, final

import fastavro
import pyarrow as pa
from fastavro.schema import SchemaParseException, UnknownType

from gantry_pipelines.archive.schemas.bodies import InvalidSchema, UndecodableBody, declare_column, error_text
from gantry_pipelines.archive.schemas.column_types import DeclaredColumn
from gantry_spec.pipelines.parts import SchemaColumn

_PRIMITIVES: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}

_TIMESTAMPS: Final = ("timestamp-millis", "timestamp-micros")
_KEPT_LOGICAL_TYPES: Final = ("date", "decimal", *_TIMESTAMPS)
"""The logical types that have a column type; others are decoded as they are stored."""

_DECIMAL_DIGITS_MAX: Final = 38

_DECODING_ERRORS: Final = (
    EOFError, ValueError, TypeError, LookupError, OverflowError, ArithmeticError, StopIteration, RecursionError,
    MemoryError,
)  # fmt: skip
"""What fastavro raises for bytes that are not a value of the schema."""


@final
class AvroBodies:
    """Decodes bodies of one record schema, or of earlier ones."""

    def __init__(self, schemas: Sequence[str], columns: Sequence[SchemaColumn], skip_bytes: int = 0) -> None:
        """Parse the schemas, the newest first, and find the columns in the newest one. Raises InvalidSchema."""
        self._schemas: Final = tuple(_parse_record(schema) for schema in schemas)
        types = _Types(self._schemas[0])
        fields = [field["name"] for field in self._schemas[0]["fields"]]
        chosen = columns or [SchemaColumn(name=name) for name in fields]
        self._fields: Final = tuple(column.field or column.name for column in chosen)
        unknown = [name for name in self._fields if name not in fields]
        if unknown:
            raise InvalidSchema(f"the Avro schema has no field {unknown[0]!r}; it has {', '.join(fields)}")
        self._columns: Final = tuple(
            declare_column(column, types.field_type(name)) for column, name in zip(chosen, self._fields, strict=True)
        )
        self._skip_bytes: Final = skip_bytes

    @property
    def columns(self) -> tuple[DeclaredColumn, ...]:
        """The columns that the schema declares, in their order."""
        return self._columns

    def decode(self, body: bytes) -> tuple[Any, ...]:
        """Return the value of each column. Raises UndecodableBody."""
        if len(body) < self._skip_bytes:
            raise UndecodableBody(f"the body has {len(body)} bytes, fewer than skipBytes {self._skip_bytes}")
        first: UndecodableBody | None = None
        for schema in self._schemas:
            try:
                found = self._decode_by(schema, body)
                return tuple(found.get(name) for name in self._fields)
            except UndecodableBody as error:
                first = first or error
        assert first is not None, "expected at least one schema"
        raise first

    def _decode_by(self, schema: Any, body: bytes) -> Mapping[str, Any]:
        """Decode a body by one of the schemas. Raises UndecodableBody."""
        stream = io.BytesIO(body)
        stream.seek(self._skip_bytes)
        try:
            found: Any = fastavro.schemaless_reader(stream, schema, None)
        except _DECODING_ERRORS as error:
            text = "the body ends within a value" if isinstance(error, EOFError) else error_text(error)
            raise UndecodableBody(f"not a value of the Avro schema: {text}") from error
        left = len(body) - stream.tell()
        if left:
            raise UndecodableBody(f"not a value of the Avro schema: it ends {left} bytes before the body")
        return dict(found)


def _parse_record(schema: str) -> Any:
    """Parse the schema of a record. Raises InvalidSchema."""
    try:
        document = json.loads(schema)
    except ValueError as error:
        raise InvalidSchema(f"the Avro schema is not JSON: {error}") from error
    try:
        parsed: Any = fastavro.parse_schema(_without_other_logical_types(document), named_schemas={})
    except (SchemaParseException, UnknownType, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidSchema(f"the Avro schema is invalid: {error_text(error)}") from error
    if not isinstance(parsed, dict) or parsed.get("type") not in ("record", "error"):
        raise InvalidSchema("the Avro schema is not that of a record")
    return parsed


@final
class _Types:
    """Converts the types of a parsed schema to Arrow's."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        self._named: Final[dict[str, Any]] = {}
        """The named types, which a schema defines where it uses them first."""
        self._record: Final = record
        self._collect(record)

    def field_type(self, name: str) -> pa.DataType:
        """Return Arrow's type of a field of the record. Raises InvalidSchema."""
        [schema] = [field["type"] for field in self._record["fields"] if field["name"] == name]
        return self._arrow_type(schema, name, (self._record["name"],))

    def _collect(self, schema: Any) -> None:
        """Find the named types of a schema."""
        if isinstance(schema, list):
            for one in schema:
                self._collect(one)
        elif isinstance(schema, Mapping):
            if "name" in schema and schema["type"] in ("record", "error", "enum", "fixed"):
                self._named[schema["name"]] = schema
            for part in (schema.get("items"), schema.get("values"), schema["type"]):
                self._collect(part)
            for field in schema.get("fields", ()):
                self._collect(field["type"])

    def _arrow_type(self, schema: Any, field: str, inside: tuple[str, ...]) -> pa.DataType:
        """Return Arrow's type of a part of a field. Raises InvalidSchema, which names the field."""
        if isinstance(schema, list):
            others = [one for one in schema if one != "null"]
            if len(others) != 1:
                raise InvalidSchema(f"the field {field!r} is a union of {len(others)} types: leave it out with columns")
            return self._arrow_type(others[0], field, inside)
        if isinstance(schema, str) and schema in self._named:
            schema = self._named[schema]
        kind = schema["type"] if isinstance(schema, Mapping) else schema
        if isinstance(kind, (list, Mapping)):
            return self._arrow_type(kind, field, inside)
        if isinstance(schema, Mapping) and schema.get("logicalType") in _KEPT_LOGICAL_TYPES:
            return _logical_type(schema)
        if kind in _PRIMITIVES:
            return _PRIMITIVES[kind]
        if kind == "null" or not isinstance(schema, Mapping):
            raise InvalidSchema(f"the field {field!r} has the type {kind!r}, for which there is no column")
        if kind == "array":
            return pa.list_(self._arrow_type(schema["items"], field, inside))
        if kind == "map":
            return pa.map_(pa.string(), self._arrow_type(schema["values"], field, inside))
        if kind in ("enum", "fixed"):
            return pa.string() if kind == "enum" else pa.binary()
        return self._struct(schema, field, inside)

    def _struct(self, schema: Mapping[str, Any], field: str, inside: tuple[str, ...]) -> pa.DataType:
        if schema["name"] in inside:
            raise InvalidSchema(f"the field {field!r} has a record that contains itself: leave it out with columns")
        if not schema["fields"]:
            raise InvalidSchema(f"the field {field!r} has a record without fields: leave it out with columns")
        deeper = (*inside, schema["name"])
        return pa.struct([(one["name"], self._arrow_type(one["type"], field, deeper)) for one in schema["fields"]])


def _logical_type(schema: Mapping[str, Any]) -> pa.DataType:
    if schema["logicalType"] == "decimal":
        return pa.decimal128(int(schema["precision"]), int(schema.get("scale", 0)))
    return pa.date32() if schema["logicalType"] == "date" else pa.timestamp("us", tz="UTC")


def _without_other_logical_types(schema: Any) -> Any:
    """Return a schema document without the logical types that no column type has."""
    if isinstance(schema, list):
        return [_without_other_logical_types(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    is_kept = (
        schema.get("logicalType") in _KEPT_LOGICAL_TYPES and int(schema.get("precision", 1)) <= _DECIMAL_DIGITS_MAX
    )
    names = [name for name in schema if name != "logicalType" or is_kept]
    return {name: _without_other_logical_types(schema[name]) for name in names}
