"""Conversion between a header's map and typed values.

A request type is a struct whose attributes have RocketMQ's names as aliases. `read` converts strings to numbers and
booleans in one native pass, ignores unknown fields (newer clients send more), and names the field that is missing or
wrong. `write` is the reverse and omits absent optional fields.
"""

from typing import Annotated, Any, Self, final

import msgspec

Int32 = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
"""A number that fits Java's int."""
Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""A number that fits Java's long."""


@final
class FieldError(ValueError):
    """A header or body lacks a field or has a wrong one. A server should answer a request with code 1 and this text."""


class Fields(msgspec.Struct, kw_only=True, gc=False, omit_defaults=True, rename="camel"):
    """The base of every typed request header and reply header."""

    @classmethod
    def read(cls, ext: dict[str, str]) -> Self:
        """Return the typed value of a header's map. Raises FieldError."""
        try:
            return msgspec.convert(ext, cls, strict=False)
        except msgspec.ValidationError as error:
            raise FieldError(f"the custom field is wrong or missing: {error}") from error

    def write(self) -> dict[str, str]:
        """Return this value as a header's map."""
        ext: dict[str, str] = {}
        for name, value in zip(self.__struct_encode_fields__, msgspec.structs.astuple(self), strict=True):
            if type(value) is str:  # the usual cases, without a call
                ext[name] = value
            elif type(value) is int:
                ext[name] = str(value)
            elif value is not None:
                ext[name] = _text(value)
        return ext


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
