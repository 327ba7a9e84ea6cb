"""The archive as a data source of Spark's: reading a batch writes its files, and gives one row for each of them.

Offsets, limits, forks, lost messages and replicas are those of `pyspark_rocketmq`; of its reader only two steps are
others. Ends of batches are laid on the grid, and tasks have whole pieces. Workers write Parquet themselves, so bodies
never cross to the JVM: that is most of what an archive costs otherwise.

A checkpoint that is new begins where the manifest ends, queue by queue, so losing it loses nothing. Offsets carry the
archive's identity, and one of another archive is refused.
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
from gantry_pipelines.archive.format import ArchiveFormat, read_format
from gantry_pipelines.archive.grid import laid
from gantry_pipelines.archive.manifest import ArchivedFile, document_of
from gantry_pipelines.archive.objects import storage_of
from gantry_pipelines.archive.planning import BYTES_TARGET, lost_ranges, pieces_to_write, rounds, tasks
from gantry_pipelines.archive.reading import ManifestReader
from gantry_pipelines.archive.storage import Storage
from gantry_pipelines.archive.writing import READ_ALSO, Packing, write_files
from pyspark_rocketmq.batch_reader import extents_of
from pyspark_rocketmq.model import Task
from pyspark_rocketmq.offsets import StreamOffset
from pyspark_rocketmq.options import ReadOptions, read_options
from pyspark_rocketmq.planning import Cut
from pyspark_rocketmq.reading import read_task
from pyspark_rocketmq.schema import ARROW_OF
from pyspark_rocketmq.stream_reader import StreamReader

NAME: Final = "gantry-archive"
IDENTITY: Final = "archive"
"""In offsets."""

OWN_OPTIONS: Final = (
    "archive.destination",
    "archive.compression",
    "archive.level",
    "archive.cores",
    "archive.taskBytes",
)

FILE_TYPES: Final = {
    "topic": "string",
    "broker": "string",
    "queue": "int",
    "begin": "bigint",
    "end": "bigint",
    "day": "string",
    "rows": "bigint",
    "bytes": "bigint",
    "checksum": "string",
    "firstTimeUs": "bigint",
    "lastTimeUs": "bigint",
    "kind": "string",
    "staged": "string",
}
"""Columns of the frame that the source gives: one row for each file that a worker wrote, and no message."""
FILE_SCHEMA: Final = ", ".join(f"`{name}` {kind}" for name, kind in FILE_TYPES.items())
FILE_ARROW: Final = pa.schema([pa.field(name, ARROW_OF[kind]) for name, kind in FILE_TYPES.items()])


class ArchiveSource(DataSource):
    """`spark.dataSource.register(ArchiveSource)`, then `readStream.format("gantry-archive")`; options as of
    `rocketmq`."""

    @classmethod
    def name(cls) -> str:
        """For `format`."""
        return NAME

    def schema(self) -> str:
        """One row for each file."""
        return FILE_SCHEMA

    def streamReader(self, schema: StructType) -> "ArchiveReader":
        """For `spark.readStream`."""
        own = {name: self.options.get(name, "") for name in OWN_OPTIONS}
        others = {name: value for name, value in self.options.items() if not name.lower().startswith("archive.")}
        level = int(own["archive.level"]) if own["archive.level"] else None
        packing = Packing(own["archive.compression"] or "zstd", level)
        cores = int(own["archive.cores"] or os.cpu_count() or 1)
        options = read_options(others, is_stream=True)
        task_bytes = int(own["archive.taskBytes"] or BYTES_TARGET)
        storage = storage_of(own["archive.destination"])
        return ArchiveReader(options, storage, packing, Slots(cores, task_bytes), read_format(storage))


@final
@dataclass(frozen=True, slots=True)
class Slots:
    """What tasks are cut for."""

    cores: int = 1
    task_bytes: int = BYTES_TARGET


@final
class ArchivePartition(InputPartition):
    """What one task writes, or what one says of messages that are gone."""

    def __init__(self, task: Task | None, lost: tuple[ArchivedFile, ...] = ()) -> None:
        super().__init__(task)
        self.task = task
        self.lost = lost


class ArchiveReader(StreamReader):
    """One archiving query. What travels to workers is settings; the rest is made where it is needed."""

    def __init__(
        self, options: ReadOptions, storage: Storage, packing: Packing, slots: Slots, an_format: ArchiveFormat
    ) -> None:
        """`an_format` binds the archive; its writer has settled it before the query began."""
        super().__init__(options, (READ_ALSO, *an_format.columns), lay=partial(laid, grid_rows=an_format.grid_rows))
        self._state = {
            "options": options, "storage": storage, "packing": packing, "slots": slots, "an_format": an_format
        }  # fmt: skip
        self._storage = storage
        self._packing = packing
        self._slots = slots
        self._format = an_format
        self._manifest = ManifestReader(storage)

    def __getstate__(self) -> dict[str, Any]:
        return self._state

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        ArchiveReader.__init__(self, **state)

    # -- the driver's side ---------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """Nothing was archived by this query yet."""
        return {**super().initialOffset(), IDENTITY: self._format.identity}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch; of a new checkpoint, behind what is archived."""
        self._check(start)
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
        """Tasks that write what is not there yet."""
        self._check(end)
        ranges, gaps = self.follower.ranges(StreamOffset.from_json(start), StreamOffset.from_json(end))
        archived = self._manifest.read().ends()
        lost = lost_ranges(gaps, archived)
        archived |= {file.range.queue: file.range.end for file in lost}
        pieces = pieces_to_write(ranges, archived, self._format.grid_rows)
        catalog = self.catalog
        extents = [extent for some in rounds(pieces) for extent in extents_of(some, catalog)]
        replicas = {broker: catalog.replicas(broker) for broker in sorted({one.queue.broker for one in pieces})}
        found = [ArchivePartition(task) for task in tasks(extents, replicas, self._cut())]
        return [*found, ArchivePartition(None, tuple(lost))] if lost or not found else found

    # -- the worker's side ---------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Write the files of a task; a row for each as it is done."""
        assert isinstance(partition, ArchivePartition), "Spark hands over what it was given"
        yield as_batch(partition.lost)
        if partition.task is not None:
            batches = read_task(partition.task, self.options.settings)
            files = write_files(batches, partition.task.ranges, self._storage, self._format, self._packing)
            yield from (as_batch([file]) for file in files)

    # -- below ---------------------------------------------------------------------------------------------------------

    def _check(self, offset: Mapping[str, Any]) -> None:
        found = offset.get(IDENTITY)
        if found != self._format.identity:
            raise OtherArchive(
                f"the checkpoint is that of archive {found}, and {self._storage} has {self._format.identity}:"
                " use another checkpoint; a new one goes on where the archive ends"
            )

    def _cut(self) -> Cut:
        return Cut(
            columns=self.columns,
            transport=self.options.settings.transport,
            bytes_target=self._slots.task_bytes,
            partitions_min=self.options.partitions_min,
            cores=self._slots.cores,
        )


def transform(files: DataFrame) -> DataFrame:
    """One row for each file, those of a task by queue and offset.

    Nothing here may need a second look at the rows (a global sort samples them first): each look writes the files
    again."""
    return files.select(*FILE_TYPES).sortWithinPartitions("topic", "broker", "queue", "begin")


def as_batch(files: Iterable[ArchivedFile]) -> pa.RecordBatch:
    """Files as Spark takes them."""
    return pa.RecordBatch.from_pylist([document_of(file) for file in files], schema=FILE_ARROW)
