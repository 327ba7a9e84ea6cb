"""Conversion between JSON bodies and documents, in Java's dialect."""

from typing import Any, TypeVar

import msgspec

from gantry_wire.commands.fields import FieldError
from gantry_wire.fastjson import ObjectKey, dumps, loads

D = TypeVar("D", bound=msgspec.Struct)


def read_document(data: bytes, kind: type[D]) -> D:
    """Return the document in the body of a request or reply. Raises FieldError for an invalid body."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return msgspec.convert(loads(data), kind, strict=False)
    except (ValueError, RecursionError) as error:
        raise FieldError(f"the body is not a valid {kind.__name__}: {error}") from error


def write_document(document: msgspec.Struct) -> bytes:
    """Return the document as JSON without nulls.

    Numeric keys are quoted, which Java reads. A key that is an object is written as an object (see `fastjson`).
    """
    try:
        raw = msgspec.to_builtins(document, str_keys=True)
    except TypeError:  # object keys, which msgspec cannot write
        return dumps(_plain(document))
    return msgspec.json.encode(_without_nulls(raw))


def _plain(value: Any) -> Any:
    """Return `value` in JSON's types, except for `ObjectKey`."""
    if isinstance(value, msgspec.Struct):
        fields = ((info.encode_name, getattr(value, info.name)) for info in msgspec.structs.fields(value))
        return {name: _plain(item) for name, item in fields if item is not None}
    if isinstance(value, dict):
        return {_plain_key(key): _plain(item) for key, item in value.items() if item is not None}
    return [_plain(item) for item in value] if isinstance(value, list | tuple | set) else value


def _plain_key(key: Any) -> str | ObjectKey:
    return ObjectKey(_plain(key)) if isinstance(key, msgspec.Struct) else str(key)


def _without_nulls(value: object) -> object:
    if isinstance(value, dict):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
