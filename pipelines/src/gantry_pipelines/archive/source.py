"""The archive as a Spark data source: reading a batch writes its files, and yields one row for each file.

Offsets, limits, forks, lost messages and replicas are those of `pyspark_rocketmq`; only two steps of its reader differ:
ends of batches are aligned to the `grid`, at whose lines files end, and tasks have whole pieces between these lines.
Workers write Parquet themselves, so bodies never cross to the JVM, which would be most of the cost.

A new checkpoint begins at the end of the manifest, queue by queue, so that losing the checkpoint loses nothing. Offsets
have the archive's identity, and those of another archive are refused.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from gantry_pipelines.archive.errors import OtherArchive
from gantry_pipelines.archive.file_writing import NO_SCHEMAS, TOPIC_COLUMN, Packing, write_files
from gantry_pipelines.archive.format import ArchiveFormat, read_format
from gantry_pipelines.archive.grid import align_to_grid
from gantry_pipelines.archive.manifest import ArchivedFile, document_of
from gantry_pipelines.archive.manifest_reader import ManifestReader
from gantry_pipelines.archive.object_storage import storage_of
from gantry_pipelines.archive.planning import BYTES_TARGET, lost_ranges, pieces_to_write, plan_tasks, split_into_rounds
from gantry_pipelines.archive.schemas.topic_schemas import TopicSchemas, read_schemas_text
from gantry_pipelines.archive.storage import Storage
from pyspark_rocketmq.batch_reader import locate_extents
from pyspark_rocketmq.model import Task
from pyspark_rocketmq.offsets import StreamOffset
from pyspark_rocketmq.options import ReadOptions, read_options
from pyspark_rocketmq.planning import SplitOptions
from pyspark_rocketmq.reading import read_task
from pyspark_rocketmq.schema import ARROW_OF
from pyspark_rocketmq.stream_reader import StreamReader

NAME: Final = "gantry-archive"
"""The name of the data source for `format`."""
IDENTITY: Final = "archive"
"""Key of the archive's identity in offsets."""

OWN_OPTIONS: Final = (
    "archive.destination",
    "archive.compression",
    "archive.level",
    "archive.cores",
    "archive.taskBytes",
    "archive.schemas",
)
"""The options that `rocketmq` does not have."""

FILE_TYPES: Final = {
    "topic": "string",
    "broker": "string",
    "queue": "int",
    "begin": "bigint",
    "end": "bigint",
    "day": "string",
    "hour": "string",
    "rows": "bigint",
    "bytes": "bigint",
    "checksum": "string",
    "firstTimeUs": "bigint",
    "lastTimeUs": "bigint",
    "kind": "string",
    "staged": "string",
    "undecoded": "bigint",
}
"""Columns of the source's DataFrame: one row for each file that a worker wrote and each lost range."""
FILE_SCHEMA: Final = ", ".join(f"`{name}` {kind}" for name, kind in FILE_TYPES.items())
FILE_ARROW: Final = pa.schema([pa.field(name, ARROW_OF[kind]) for name, kind in FILE_TYPES.items()])


class ArchiveSource(DataSource):
    """The data source: `spark.dataSource.register(ArchiveSource)`, then `readStream.format("gantry-archive")`.

    Its options are those of `rocketmq`, and `OWN_OPTIONS`.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return NAME

    def schema(self) -> str:
        """Return the schema of the rows, one for each file."""
        return FILE_SCHEMA

    def streamReader(self, schema: StructType) -> "ArchiveReader":
        """Create the reader for `spark.readStream`."""
        own = {name: self.options.get(name, "") for name in OWN_OPTIONS}
        others = {name: value for name, value in self.options.items() if not name.lower().startswith("archive.")}
        level = int(own["archive.level"]) if own["archive.level"] else None
        packing = Packing(own["archive.compression"] or "zstd", level)
        cores = int(own["archive.cores"] or os.cpu_count() or 1)
        options = read_options(others, is_stream=True)
        task_bytes = int(own["archive.taskBytes"] or BYTES_TARGET)
        storage = storage_of(own["archive.destination"])
        capacity, schemas = TaskCapacity(cores, task_bytes), read_schemas_text(own["archive.schemas"])
        return ArchiveReader(options, storage, packing, capacity, read_format(storage), schemas)


@final
@dataclass(frozen=True, slots=True)
class TaskCapacity:
    """The number of cores and the size for which tasks are planned."""

    cores: int = 1
    """The number of tasks that run at a time."""

    task_bytes: int = BYTES_TARGET
    """The bytes of the log in a task, approximately at most."""


@final
class ArchivePartition(InputPartition):
    """The pieces that one task writes, or ranges to record as lost."""

    def __init__(self, task: Task | None, lost: tuple[ArchivedFile, ...] = ()) -> None:
        super().__init__(task)
        self.task = task
        self.lost = lost


class ArchiveReader(StreamReader):
    """The stream reader of one archiving query. Only its settings are pickled to workers."""

    def __init__(
        self,
        options: ReadOptions,
        storage: Storage,
        packing: Packing,
        task_capacity: TaskCapacity,
        archive_format: ArchiveFormat,
        schemas: TopicSchemas = NO_SCHEMAS,
    ) -> None:
        """Create a reader; `archive_format` is the format that the writer has read or created before the query."""
        super().__init__(
            options,
            (TOPIC_COLUMN, *archive_format.columns),
            align_ranges=partial(align_to_grid, grid_rows=archive_format.grid_rows),
        )
        self._state = {
            "options": options, "storage": storage, "packing": packing, "task_capacity": task_capacity,
            "archive_format": archive_format, "schemas": schemas,
        }  # fmt: skip
        self._storage = storage
        self._packing = packing
        self._task_capacity = task_capacity
        self._format = archive_format
        self._schemas = schemas
        self._manifest = ManifestReader(storage)

    def __getstate__(self) -> dict[str, Any]:
        return self._state

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        ArchiveReader.__init__(self, **state)

    # -- the driver's side ---------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """Return the start offset of a new query, with the archive's identity."""
        return {**super().initialOffset(), IDENTITY: self._format.identity}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch; with a new checkpoint the batch begins after the archived ranges."""
        self._check_identity(start)
        before = StreamOffset.from_json(start)
        archived = {} if before.ends else self._manifest.read().ends()
        if not archived:
            after = super().latestOffset(start, limit)
            return start if after == start else {**after, IDENTITY: self._format.identity}
        resumed = StreamOffset(ends=archived).to_json()
        after = super().latestOffset(resumed, limit)
        if after == resumed:
            return start
        end = StreamOffset.from_json(after)
        begins = {queue: archived[queue] for queue in end.ends if queue in archived}
        return {**replace(end, begins={**begins, **end.begins}).to_json(), IDENTITY: self._format.identity}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan the tasks that write the ranges that are not archived yet."""
        self._check_identity(end)
        ranges, gaps = self.planner.ranges(StreamOffset.from_json(start), StreamOffset.from_json(end))
        archived = self._manifest.read().ends()
        lost = lost_ranges(gaps, archived)
        archived |= {file.range.queue: file.range.end for file in lost}
        pieces = pieces_to_write(ranges, archived, self._format.grid_rows)
        catalog = self.catalog
        extents = [extent for some in split_into_rounds(pieces) for extent in locate_extents(some, catalog)]
        replicas = {broker: catalog.replicas(broker) for broker in sorted({one.queue.broker for one in pieces})}
        found = [ArchivePartition(task) for task in plan_tasks(extents, replicas, self._split_options())]
        return [*found, ArchivePartition(None, tuple(lost))] if lost or not found else found

    # -- the worker's side ---------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Write the files of a task, and yield a row for each completed file."""
        assert isinstance(partition, ArchivePartition), "expected a partition of this reader"
        yield files_batch(partition.lost)
        if partition.task is not None:
            batches = read_task(partition.task, self.options.settings)
            ranges = partition.task.ranges
            files = write_files(batches, ranges, self._storage, self._format, self._packing, self._schemas)
            yield from (files_batch([file]) for file in files)

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _check_identity(self, offset: Mapping[str, Any]) -> None:
        found = offset.get(IDENTITY)
        if found != self._format.identity:
            raise OtherArchive(
                f"the checkpoint belongs to archive {found}, but {self._storage} is archive {self._format.identity}:"
                " use another checkpoint; a new one continues at the end of the archive"
            )

    def _split_options(self) -> SplitOptions:
        return SplitOptions(
            columns=self.columns,
            transport=self.options.settings.transport,
            bytes_target=self._task_capacity.task_bytes,
            partitions_min=self.options.partitions_min,
            cores=self._task_capacity.cores,
        )


def sort_file_rows(files: DataFrame) -> DataFrame:
    """Sort the rows of each task, one for each file, by queue and offset.

    The rows must be computed only once, because computing them writes the files. So there is no global sort, which
    would sample the rows first."""
    return files.select(*FILE_TYPES).sortWithinPartitions("topic", "broker", "queue", "begin")


def files_batch(files: Iterable[ArchivedFile]) -> pa.RecordBatch:
    """Convert files to an Arrow batch for Spark."""
    return pa.RecordBatch.from_pylist([document_of(file) for file in files], schema=FILE_ARROW)
