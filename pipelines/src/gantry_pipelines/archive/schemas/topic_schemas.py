"""The declared schemas of an archive: which topics have typed columns, and what decodes their bodies.

They are settings of a run, and are passed to workers as text. The archive records only the resulting columns of each
topic (`recorded`), since its files need no more.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, Final, final

import msgspec

from gantry_pipelines.archive.schemas.bodies import BodyDecoder, InvalidSchema
from gantry_pipelines.archive.schemas.column_types import DeclaredColumn
from gantry_pipelines.archive.schemas.decoding import ERROR_COLUMN, RowDecoder
from gantry_pipelines.archive.schemas.json_bodies import JsonBodies
from gantry_spec.pipelines.parts import BodyFormat, TopicSchema
from pyspark_rocketmq.schema import COLUMNS

PARTITION_COLUMNS: Final = ("topic", "day", "hour")
"""The columns that readers take from paths."""

RESERVED_COLUMNS: Final = frozenset(name.lower() for name in (*COLUMNS, *PARTITION_COLUMNS, ERROR_COLUMN))
"""Names that no declared column may have. Engines do not distinguish upper and lower case."""


@final
class TopicSchemas:
    """The declared schemas of all topics. Pickled to workers as text."""

    def __init__(self, schemas: Sequence[TopicSchema] = ()) -> None:
        self._schemas: Final = tuple(schemas)
        self._patterns: Final = tuple(re.compile("|".join(f"(?:{one})" for one in schema.topics)) for schema in schemas)
        self._decoders: Final[dict[int, RowDecoder]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return read_schemas_text, (self.text(),)

    @property
    def is_empty(self) -> bool:
        """Whether no topic has typed columns."""
        return all(schema.format is BodyFormat.RAW for schema in self._schemas)

    def text(self) -> str:
        """Return the schemas as text, for an option of the data source; empty without schemas."""
        return msgspec.json.encode(self._schemas).decode() if self._schemas else ""

    def check(self) -> None:
        """Raise InvalidSchema if any of the schemas cannot be used, with its position."""
        for number in range(len(self._schemas)):
            try:
                self._decoder(number)
            except InvalidSchema as error:
                raise InvalidSchema(f"schemas[{number}]: {error}") from error

    def decoder_of(self, topic: str) -> RowDecoder | None:
        """Return what decodes the bodies of a topic; None for a topic without typed columns."""
        for number, pattern in enumerate(self._patterns):
            if pattern.fullmatch(topic):
                return self._decoder(number)
        return None

    def columns_of(self, topic: str) -> tuple[DeclaredColumn, ...]:
        """Return the typed columns that are declared for a topic, with that of errors; none for other topics."""
        decoder = self.decoder_of(topic)
        return decoder.columns if decoder is not None else ()

    def _decoder(self, number: int) -> RowDecoder | None:
        schema = self._schemas[number]
        if schema.format is BodyFormat.RAW:
            if schema.columns or schema.schema:
                raise InvalidSchema("topics of the format raw have no typed columns: remove columns and schema")
            return None
        if number not in self._decoders:
            decoder = RowDecoder(open_decoder(schema))
            _check_names(decoder.columns[1:])
            self._decoders[number] = decoder
        return self._decoders[number]


@lru_cache(maxsize=8)
def read_schemas_text(text: str) -> TopicSchemas:
    """Return the schemas of a text that `TopicSchemas.text` has written."""
    return TopicSchemas(msgspec.json.decode(text, type=list[TopicSchema])) if text else TopicSchemas()


def open_decoder(schema: TopicSchema) -> BodyDecoder:
    """Return what decodes the bodies of a schema. Raises InvalidSchema."""
    if schema.format is BodyFormat.JSON:
        _check_fields(schema, needs_schema=False, needs_message=False)
        if not schema.columns:
            raise InvalidSchema("JSON has no schema of its own: list the typed columns in columns")
        return JsonBodies(schema.columns)
    if schema.format is BodyFormat.AVRO:
        _check_fields(schema, needs_schema=True, needs_message=False)
        _require_package("fastavro", "fastavro", schema.format)
        from gantry_pipelines.archive.schemas.avro_bodies import AvroBodies

        return AvroBodies((schema.schema, *schema.older_schemas), schema.columns, schema.skip_bytes)
    _check_fields(schema, needs_schema=True, needs_message=True)
    _require_package("protobuf", "google.protobuf", schema.format)
    from gantry_pipelines.archive.schemas.protobuf_bodies import ProtobufBodies

    return ProtobufBodies(schema.schema, schema.message, schema.columns, schema.skip_bytes)


def _check_fields(schema: TopicSchema, *, needs_schema: bool, needs_message: bool) -> None:
    """Raise InvalidSchema for fields that the format of a schema needs, or does not have."""
    for name, value, is_needed in (
        ("schema", schema.schema, needs_schema),
        ("message", schema.message, needs_message),
    ):
        if bool(value) != is_needed:
            needed = f"needs {name}" if is_needed else f"has no {name}: remove it"
            raise InvalidSchema(f"the format {schema.format} {needed}")
    if schema.skip_bytes and not needs_schema:
        raise InvalidSchema(f"the format {schema.format} has no skipBytes: remove it")
    if schema.older_schemas and schema.format is not BodyFormat.AVRO:
        raise InvalidSchema(f"the format {schema.format} has no olderSchemas: remove it")


def _check_names(columns: tuple[DeclaredColumn, ...]) -> None:
    names: set[str] = set()
    for column in columns:
        name = column.name.lower()
        if name in RESERVED_COLUMNS:
            raise InvalidSchema(
                f"column {column.name!r} has the name of a column of the archive: give it another name, and set field"
                f" to {column.name}"
            )
        if name in names:
            raise InvalidSchema(f"two columns have the name {column.name!r}; upper and lower case are the same")
        names.add(name)


def _require_package(package: str, module: str, body_format: BodyFormat) -> None:
    """Raise InvalidSchema if the package that decodes a format is not installed."""
    if any(find_spec(name) is None for name in (module.partition(".")[0], module)):
        raise InvalidSchema(
            f"the format {body_format} needs the package {package}, which is not installed:"
            " pip install 'gantry-mq[schemas]'"
        )
