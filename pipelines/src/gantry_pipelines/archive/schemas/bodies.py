"""What decodes the bodies of a topic: its columns, and the values of one body."""

from typing import Any, Final, Protocol

import pyarrow as pa

from gantry_pipelines.archive.schemas.column_types import DeclaredColumn, InvalidType, narrow_type, type_text
from gantry_spec.pipelines.parts import SchemaColumn

ERROR_CHARS_MAX: Final = 200
"""The length to which the text of an error is cut."""


class InvalidSchema(ValueError):
    """The declared schema cannot be used; the message names the column or the field."""


class UndecodableBody(ValueError):
    """The body does not have the declared schema."""


class BodyDecoder(Protocol):
    """Decodes bodies of one schema. Created in the process that uses it."""

    @property
    def columns(self) -> tuple[DeclaredColumn, ...]:
        """The columns that the schema declares, in their order."""

    def decode(self, body: bytes) -> tuple[Any, ...]:
        """Return the value of each column, as Arrow converts it. Raises UndecodableBody."""


def declare_column(column: SchemaColumn, found: pa.DataType) -> DeclaredColumn:
    """Return a column whose type a schema has, without fields of structs that the declaration leaves out.

    Raises InvalidSchema.
    """
    try:
        return DeclaredColumn(column.name, type_text(narrow_type(column.type, found) if column.type else found))
    except InvalidType as error:
        raise InvalidSchema(f"column {column.name!r}: {error}") from error


def error_text(error: BaseException) -> str:
    """Return the text of an error as one line of limited length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= ERROR_CHARS_MAX else f"{text[:ERROR_CHARS_MAX]}..."
