"""Decode Protobuf bodies: messages of one type, which a descriptor set defines.

    int32, sint32, sfixed32; uint32, fixed32; int64 ...; uint64, fixed64     int; bigint; bigint; decimal(20,0)
    float, double, bool, string, bytes, an enum                              the same; the name of the enum's value
    repeated, map, a message                                                 array, map, struct
    google.protobuf.Timestamp, wrappers such as Int64Value                   timestamp, the type that is wrapped

A field that a message does not have is null if it has presence (`optional`, a message, a member of a `oneof`), and
else has its default: Protobuf does not distinguish the two. A message that contains itself has no column: leave the
field out with `columns`.
"""

import base64
import binascii
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, final

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from gantry_pipelines.archive.schemas.bodies import InvalidSchema, UndecodableBody, declare_column, error_text
from gantry_pipelines.archive.schemas.column_types import DeclaredColumn
from gantry_spec.pipelines.parts import SchemaColumn

_SCALARS: Final[dict[int, pa.DataType]] = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: pa.decimal128(20, 0),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_ENUM: pa.string(),
    FieldDescriptor.CPPTYPE_STRING: pa.string(),
}
"""Arrow's types, except of bytes and messages."""

_WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Reader = Callable[[Any], Any]
"""Converts a value of a message to one that Arrow converts."""


@final
class ProtobufBodies:
    """Decodes bodies of one message type."""

    def __init__(self, descriptor_set: str, message: str, columns: Sequence[SchemaColumn], skip_bytes: int = 0) -> None:
        """`descriptor_set` is in Base64. Raises InvalidSchema."""
        descriptor = _find_message(descriptor_set, message)
        self._message: Final[Any] = message_factory.GetMessageClass(descriptor)
        fields = {field.name: field for field in descriptor.fields}
        chosen = columns or [SchemaColumn(name=name) for name in fields]
        named = [column.field or column.name for column in chosen]
        unknown = [name for name in named if name not in fields]
        if unknown:
            raise InvalidSchema(f"{message} has no field {unknown[0]!r}; it has {', '.join(fields)}")
        self._readers: Final = tuple(_field_reader(fields[name]) for name in named)
        self._columns: Final = tuple(
            declare_column(column, _field_type(fields[name], name, (message,)))
            for column, name in zip(chosen, named, strict=True)
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
        try:
            found = self._message.FromString(body[self._skip_bytes :])
            return tuple(read(found) for read in self._readers)
        except (DecodeError, ValueError, OverflowError, RecursionError) as error:
            raise UndecodableBody(f"not a message of the Protobuf schema: {error_text(error)}") from error


def _find_message(descriptor_set: str, message: str) -> Descriptor:
    """Return the descriptor of a message in a descriptor set. Raises InvalidSchema."""
    try:
        parsed = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(descriptor_set, validate=True))
    except (binascii.Error, DecodeError, ValueError) as error:
        raise InvalidSchema(f"the schema is not a descriptor set in Base64: {error_text(error)}") from error
    pool = descriptor_pool.DescriptorPool()
    try:
        for file in parsed.file:
            pool.Add(file)
        return pool.FindMessageTypeByName(message)
    except KeyError as error:
        raise InvalidSchema(
            f"the descriptor set has no message {message!r}: write it with the package, such as shop.Order"
        ) from error
    except TypeError as error:
        raise InvalidSchema(
            f"the descriptor set is incomplete: {error_text(error)}: make it with protoc --include_imports"
        ) from error


def _field_type(field: FieldDescriptor, column: str, inside: tuple[str, ...]) -> pa.DataType:
    """Return Arrow's type of a field. Raises InvalidSchema, which names the column's field."""
    if _is_map(field):
        key, value = _message_of(field).fields_by_name["key"], _message_of(field).fields_by_name["value"]
        key_type = pa.int64() if key.cpp_type == FieldDescriptor.CPPTYPE_UINT64 else _value_type(key, column, inside)
        if pa.types.is_boolean(key_type):
            raise InvalidSchema(f"the field {column!r} has a map by boolean: leave it out with columns")
        return pa.map_(key_type, _value_type(value, column, inside))
    found = _value_type(field, column, inside)
    return pa.list_(found) if field.is_repeated else found


def _value_type(field: FieldDescriptor, column: str, inside: tuple[str, ...]) -> pa.DataType:
    """Return Arrow's type of one value of a field."""
    if field.type == FieldDescriptor.TYPE_BYTES:
        return pa.binary()
    if field.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE:
        return _SCALARS[field.cpp_type]
    name = _message_of(field).full_name
    if name == _TIMESTAMP:
        return pa.timestamp("us", tz="UTC")
    if name in _WRAPPERS:
        return _value_type(_message_of(field).fields_by_name["value"], column, inside)
    if name in inside:
        raise InvalidSchema(f"the field {column!r} has a message that contains itself: leave it out with columns")
    if not _message_of(field).fields:
        raise InvalidSchema(f"the field {column!r} has a message without fields: leave it out with columns")
    deeper = (*inside, name)
    return pa.struct([(one.name, _field_type(one, column, deeper)) for one in _message_of(field).fields])


def _message_of(field: FieldDescriptor) -> Descriptor:
    """Return the type of a field of messages."""
    assert field.message_type is not None, "expected a field of messages"
    return field.message_type


def _enum_of(field: FieldDescriptor) -> EnumDescriptor:
    """Return the type of a field of enums."""
    assert field.enum_type is not None, "expected a field of enums"
    return field.enum_type


def _is_map(field: FieldDescriptor) -> bool:
    return bool(field.is_repeated and field.message_type is not None and field.message_type.GetOptions().map_entry)


def _field_reader(field: FieldDescriptor) -> Reader:
    """Return what reads a field of a message."""
    name = field.name
    if _is_map(field):
        read_value = _value_reader(_message_of(field).fields_by_name["value"])
        return lambda message: [(key, read_value(value)) for key, value in getattr(message, name).items()]
    read = _value_reader(field)
    if field.is_repeated:
        return lambda message: [read(value) for value in getattr(message, name)]
    if field.has_presence:
        return lambda message: read(getattr(message, name)) if message.HasField(name) else None
    return lambda message: read(getattr(message, name))


def _value_reader(field: FieldDescriptor) -> Reader:
    """Return what converts one value of a field."""
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        names = {value.number: value.name for value in _enum_of(field).values}
        return lambda number: names.get(number, str(number))
    if field.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE:
        return _unchanged
    name = _message_of(field).full_name
    if name == _TIMESTAMP:
        return _read_timestamp
    if name in _WRAPPERS:
        return lambda message: message.value
    readers: dict[str, Reader] = {}

    def read_message(message: Any) -> dict[str, Any]:
        if not readers:  # made at the first use, since a message may contain itself in a field without a column
            readers.update((one.name, _field_reader(one)) for one in _message_of(field).fields)
        return {inner: read(message) for inner, read in readers.items()}

    return read_message


def _unchanged(value: Any) -> Any:
    return value


def _read_timestamp(message: Any) -> datetime:
    return _EPOCH + timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)
