"""JSON bodies: from bytes to a document and back, in Java's dialect."""

from typing import TypeVar

import msgspec

from gantry_wire.commands.fields import FieldError
from gantry_wire.fastjson import loads

D = TypeVar("D", bound=msgspec.Struct)


def read_document(data: bytes, kind: type[D]) -> D:
    """The document in a request's or reply's body. Raises FieldError when it is none."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return msgspec.convert(loads(data), kind, strict=False)
    except (ValueError, RecursionError) as error:
        raise FieldError(f"the body is no {kind.__name__}: {error}") from error


def write_document(document: msgspec.Struct) -> bytes:
    """The document as standard JSON; Java reads quoted numeric keys, too. Nulls are omitted."""
    raw = msgspec.to_builtins(document, str_keys=True)
    return msgspec.json.encode(_without_nulls(raw))


def _without_nulls(value: object) -> object:
    if isinstance(value, dict):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
