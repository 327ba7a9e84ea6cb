"""The sink: rows of a DataFrame as messages, for `df.write` and `df.writeStream` with `format("rocketmq")`.

Messages are delivered at least once, in batches, unless `transactional=true`: then exactly once, by half messages and
one marker for each batch (`batch_commit`). The three phases of a write are described in `writers`.

    columns -> rows -> packing -> batches                        at least once
                              `-> half_messages -> driver        exactly once
                                                   |- batch_decider, markers, marker_queue   which attempt is the batch
                                                   `- transaction_ender                      its messages are delivered
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark_rocketmq.errors import InvalidOption
from pyspark_rocketmq.sink.columns import Columns, check_columns
from pyspark_rocketmq.sink.options import SinkOptions, parse
from pyspark_rocketmq.sink.writers import BatchWriter, StreamWriter

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["BatchWriter", "StreamWriter", "make_stream_writer", "make_writer", "parse_write"]


def make_writer(options: Mapping[str, str], schema: "StructType", overwrite: bool) -> BatchWriter:
    """Return the writer for `df.write`. Raises InvalidOption."""
    if overwrite:
        raise InvalidOption('a topic cannot be overwritten: mode("append") is the only one')
    return BatchWriter(*parse_write(options, schema))


def make_stream_writer(options: Mapping[str, str], schema: "StructType", overwrite: bool) -> StreamWriter:
    """Return the writer for `df.writeStream`. Raises InvalidOption."""
    if overwrite:
        raise InvalidOption('a topic cannot be overwritten: outputMode("append") is the only one')
    return StreamWriter(*parse_write(options, schema))


def parse_write(options: Mapping[str, str], schema: "StructType") -> tuple[SinkOptions, Columns]:
    """Parse the options and check the columns of a write. Raises InvalidOption."""
    parsed = parse(options)
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    columns = check_columns(types, has_topic=parsed.topic is not None, is_transactional=parsed.is_transactional)
    return parsed, columns
