"""Conversion between JSON bodies and documents, in Java's dialect."""

from typing import Any, Final, TypeVar

import msgspec

from gantry_wire.commands.fields import FieldError
from gantry_wire.fastjson import ObjectKey, dumps, loads

D = TypeVar("D", bound=msgspec.Struct)
_NULL_FIELD: Final = b":null"
"""In every encoded document that has a null as the value of a field, and rarely in another one.

Most documents have none. In a table of thousands of topics, the search for this is thirty times as fast as one in all
values.
"""


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
        data = msgspec.json.encode(document)
    except TypeError:  # object keys, which msgspec cannot write
        return dumps(_plain(document))
    return data if _NULL_FIELD not in data else msgspec.json.encode(plain_document(document))


def plain_document(document: msgspec.Struct) -> dict[str, Any]:
    """Return the document in JSON's types without nulls, and with numeric keys as text."""
    raw: dict[str, Any] = msgspec.to_builtins(document, str_keys=True)
    if _NULL_FIELD not in msgspec.json.encode(raw):
        return raw
    return {name: _without_nulls(item) for name, item in raw.items() if item is not None}


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
