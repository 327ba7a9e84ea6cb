"""The data source: `format("rocketmq")` for reading and writing, in batches and in streams.

Spark finds it by itself: a module on the path whose name begins with `pyspark_` and that has a `DefaultSource`. So
nothing has to be registered, on the driver or on workers.
"""

from collections.abc import Mapping
from typing import Any, Final, final

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from pyspark_rocketmq.batch_reader import BatchReader, PushingBatchReader
from pyspark_rocketmq.errors import InvalidOption
from pyspark_rocketmq.option_words import OptionWords
from pyspark_rocketmq.options import read_columns, read_options
from pyspark_rocketmq.schema import TYPES, ddl
from pyspark_rocketmq.sink import make_stream_writer, make_writer
from pyspark_rocketmq.stream_reader import StreamReader

_TYPE_OF: Final[dict[str, DataType]] = {
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "map<string,string>": MapType(StringType(), StringType()),
    "binary": BinaryType(),
}
"""Spark's own parser of types needs a session, and there is none where readers are made."""


@final
class DefaultSource(DataSource):
    """RocketMQ's topics."""

    @classmethod
    def name(cls) -> str:
        """For `format`."""
        return "rocketmq"

    def schema(self) -> str:
        """All columns, or those of the option `columns`."""
        return ddl(read_columns(OptionWords(self.options).words("columns")))

    def reader(self, schema: StructType) -> BatchReader:
        """For `spark.read`."""
        options = read_options(self.options, is_stream=False)
        kind = PushingBatchReader if options.is_pushdown_wanted else BatchReader
        return kind(options, columns_of(schema, self.options))

    def streamReader(self, schema: StructType) -> StreamReader:
        """For `spark.readStream`."""
        return StreamReader(read_options(self.options, is_stream=True), columns_of(schema, self.options))

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        """For `df.write`."""
        return make_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        """For `df.writeStream`."""
        return make_stream_writer(self.options, schema, overwrite)


def columns_of(schema: StructType, options: Mapping[str, str]) -> tuple[str, ...]:
    """The columns that Spark wants: those of the option, or of the user's own schema, which has to have their types."""
    names = tuple(field.name for field in schema.fields)
    words = OptionWords(options)
    if "columns" in words and read_columns(words.words("columns")) != names:
        raise InvalidOption("option columns and the schema of the query name different columns: give one of them")
    for field in schema.fields:
        if field.name not in TYPES:
            read_columns((field.name,))
            raise InvalidOption(f"a column is written {field.name} in the schema; its name is another")
        wanted = _TYPE_OF[TYPES[field.name]]
        if field.dataType != wanted:
            said = field.dataType.simpleString()
            raise InvalidOption(f"column {field.name} is {wanted.simpleString()}, and the schema says {said}")
        if not field.nullable:
            raise InvalidOption(f"column {field.name} is nullable for Spark, and the schema says NOT NULL")
    return names
