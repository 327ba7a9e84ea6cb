"""The upper bound of a source's speed: a data source that only returns the same batch repeatedly.

Its cost is Spark's cost of receiving rows from a Python worker, which every source in Python has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_rocketmq.schema import COLUMNS, ddl
from pyspark_rocketmq.source import DefaultSource

PARTITIONS: Final = 2
"""The number of cores, so that no partition waits and each task is started once."""


@final
class RowCountPartition(InputPartition):
    """A number of rows to return."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.rows = rows


@final
class RepeatedBatchReader(DataSourceReader):
    """Reads one batch of the topic as the connector's source does, and returns it until all rows were returned."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self.schema = schema
        self.rows = int(options.pop("rows"))
        self.options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition for each core."""
        return [RowCountPartition(self.rows // PARTITIONS) for _ in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of one partition."""
        assert isinstance(partition, RowCountPartition)
        reader = DefaultSource(self.options).reader(self.schema)
        batch = next(reader.read(reader.partitions()[0]))
        left = partition.rows
        while left > 0:
            yield batch.slice(0, min(left, batch.num_rows))
            left -= batch.num_rows


@final
class RepeatedBatchSource(DataSource):
    """The source `format("rocketmq_repeated")`, with the options of `rocketmq`, and `rows`."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq_repeated"

    def schema(self) -> str:
        return ddl(COLUMNS)

    def reader(self, schema: StructType) -> DataSourceReader:
        return RepeatedBatchReader(dict(self.options), schema)
