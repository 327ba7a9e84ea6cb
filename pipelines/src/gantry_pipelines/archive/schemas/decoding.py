"""Decode the bodies of a batch into columns. A body that cannot be decoded gives nulls and the text of the error.

    body                      decodeError                                     amount
    {"amount": 12}            null                                            12
    {"amount": "a dozen"}     Expected `int`, got `str` - at `$.amount`       null
    null                      the archive has no body                         null

No body fails a task: the archive keeps its bytes in the column `body`, and the message can be decoded later.
"""

from collections.abc import Sequence
from typing import Any, Final, final

import pyarrow as pa

from gantry_pipelines.archive.schemas.bodies import BodyDecoder, UndecodableBody, error_text
from gantry_pipelines.archive.schemas.column_types import DeclaredColumn, arrow_fields

ERROR_COLUMN: Final = "decodeError"
"""The column that has the reason why a body could not be decoded; null if it was decoded."""

NO_BODY: Final = "the body is missing: the broker's bytes could not be decompressed"

_CONVERSION_ERRORS: Final = (pa.ArrowException, ValueError, TypeError, OverflowError, ArithmeticError)
"""What Arrow raises for a value that a column cannot have."""

Row = tuple[Any, ...]


@final
class RowDecoder:
    """Extends batches of one topic by its declared columns."""

    def __init__(self, decoder: BodyDecoder) -> None:
        self._decoder: Final = decoder
        self.columns: Final = (DeclaredColumn(ERROR_COLUMN, "string"), *decoder.columns)
        """All columns that are added to a batch, in their order."""
        self._fields: Final = arrow_fields(self.columns)

    def extend(self, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, int]:
        """Return the rows with the declared columns, and the number of bodies that could not be decoded."""
        errors: list[str | None] = []
        values: list[Row | None] = []
        bodies: list[Any] = rows.column("body").to_pylist()
        for body in bodies:
            value, error = self._decode(body)
            values.append(value)
            errors.append(error)
        arrays = self._arrays(values, errors)
        added = [pa.array(errors, pa.string()), *arrays]
        schema = pa.schema([*rows.schema, *self._fields])
        extended = pa.RecordBatch.from_arrays([*rows.columns, *added], schema=schema)
        return extended, len(errors) - errors.count(None)

    def _decode(self, body: bytes | None) -> tuple[Row | None, str | None]:
        if body is None:
            return None, NO_BODY
        try:
            return self._decoder.decode(body), None
        except UndecodableBody as error:
            return None, str(error)

    def _arrays(self, values: list[Row | None], errors: list[str | None]) -> list[Any]:
        """Convert values to arrays; a row with a value that its column cannot have becomes nulls and an error."""
        try:
            return [self._array(values, index) for index in range(len(self._decoder.columns))]
        except _CONVERSION_ERRORS:
            for number, row in enumerate(values):
                error = self._conversion_error(row)
                if error is not None:
                    values[number], errors[number] = None, error
        return [self._array(values, index) for index in range(len(self._decoder.columns))]

    def _array(self, values: Sequence[Row | None], index: int) -> Any:
        column: Any = pa.array([None if row is None else row[index] for row in values], self._fields[index + 1].type)
        return column

    def _conversion_error(self, row: Row | None) -> str | None:
        """Return why a row cannot be converted; None if it can."""
        for index, column in enumerate(self._decoder.columns if row is not None else ()):
            try:
                self._array([row], index)
            except _CONVERSION_ERRORS as error:
                return f"column {column.name}: {error_text(error)}"
        return None
