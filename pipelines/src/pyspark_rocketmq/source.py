"""The data source: `format("rocketmq")` for reading and writing, in batches and in streams.

Spark finds it by itself: a module on the path whose name begins with `pyspark_` and that has a `DefaultSource`. So
it needs no registration, neither on the driver nor on workers.
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
from pyspark_rocketmq.option_parser import OptionParser
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
"""Spark's types by their names. Spark's own parser of types needs a session, which readers do not have."""


@final
class DefaultSource(DataSource):
    """The topics of RocketMQ as a Spark data source."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "rocketmq"

    def schema(self) -> str:
        """Return all columns, or those of the option `columns`, as DDL."""
        return ddl(read_columns(OptionParser(self.options).name_list("columns")))

    def reader(self, schema: StructType) -> BatchReader:
        """Return the reader for `spark.read`."""
        options = read_options(self.options, is_stream=False)
        kind = PushingBatchReader if options.is_pushdown_wanted else BatchReader
        return kind(options, columns_of(schema, self.options))

    def streamReader(self, schema: StructType) -> StreamReader:
        """Return the reader for `spark.readStream`."""
        return StreamReader(read_options(self.options, is_stream=True), columns_of(schema, self.options))

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        """Return the writer for `df.write`."""
        return make_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        """Return the writer for `df.writeStream`."""
        return make_stream_writer(self.options, schema, overwrite)


def columns_of(schema: StructType, options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the columns that Spark wants: those of the option, or of the user's own schema, whose types must match."""
    names = tuple(field.name for field in schema.fields)
    parser = OptionParser(options)
    if "columns" in parser and read_columns(parser.name_list("columns")) != names:
        raise InvalidOption("option columns and the schema of the query name different columns: give only one of them")
    for field in schema.fields:
        if field.name not in TYPES:
            read_columns((field.name,))
            raise InvalidOption(f"column {field.name} of the schema must be spelled as the source names it")
        wanted = _TYPE_OF[TYPES[field.name]]
        if field.dataType != wanted:
            declared = field.dataType.simpleString()
            raise InvalidOption(f"column {field.name} is {wanted.simpleString()}, but the schema declares {declared}")
        if not field.nullable:
            raise InvalidOption(f"column {field.name} is nullable, but the schema declares it NOT NULL")
    return names
