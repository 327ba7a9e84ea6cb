"""The part of a read of archived topics that Spark cannot read as Parquet itself: its tasks run in Python workers.

These are the messages that only brokers have, and all archived files in an object store, since this Spark has no
connector to one: there workers read them with pyarrow. The tasks were planned before (`topics_planner`), so each
execution of a query reads the same messages. A task waits for replicas that are behind, as after a failover, and fails
if its messages were deleted. The first task of each broker checks again that the log still has the archived messages.

The tasks are the rows of a small DataFrame, on which `mapInArrow` reads them. A data source in Python would receive the
same batches, but Spark copies each row of a data source a second time, and starts processes of its own to plan it.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from gantry_pipelines.archive.fork_check import KnownMessage, check_not_forked
from gantry_pipelines.archive.storage import Storage
from pyspark_rocketmq.errors import DataLost
from pyspark_rocketmq.model import Task
from pyspark_rocketmq.planning import BYTES_TARGET
from pyspark_rocketmq.reading import read_task
from pyspark_rocketmq.schema import arrow_schema, ddl
from pyspark_rocketmq.settings import ReadSettings

ROW_NUMBER: Final = "id"
"""The column of the DataFrame that has the number of a task."""


@final
@dataclass(frozen=True, slots=True)
class FileSlice:
    """Consecutive rows of an archived file, which has one row for each offset of its range."""

    path: str
    topic: str
    first: int
    """The number of the first row that is read."""
    count: int
    """The number of rows that are read."""
    size_bytes: int
    """The size of these rows in the file, approximately."""


@final
@dataclass(frozen=True, slots=True)
class BrokerWork:
    """A task that reads from a broker."""

    task: Task
    known: tuple[KnownMessage, ...] = ()
    """Archived messages that the broker must still have, unless it has deleted them."""

    def read(self, settings: ReadSettings) -> Iterator[pa.RecordBatch]:
        """Return the rows. Raises NoReplica, Refused, DataLost, LogForked and DamagedRecord."""
        check_not_forked(self.known, self.task.replicas, settings)
        return read_task(self.task, settings)


@final
@dataclass(frozen=True, slots=True)
class FileWork:
    """A task that reads from files."""

    storage: Storage
    slices: tuple[FileSlice, ...]
    columns: tuple[str, ...]
    tags: frozenset[str] | None = None
    """Only messages with one of these tags; None for all."""

    def read(self, settings: ReadSettings) -> Iterator[pa.RecordBatch]:
        """Return the rows. Raises DataLost."""
        return read_slices(self.storage, self.slices, self.columns, self.tags, settings.batch_rows)


Work = BrokerWork | FileWork


def remainder_frame(
    spark: SparkSession, works: Sequence[Work], columns: tuple[str, ...], settings: ReadSettings
) -> DataFrame:
    """Return the rows of all tasks, each of which is a partition of the DataFrame."""
    if not works:
        return spark.createDataFrame([], ddl(columns))
    numbers = spark.range(0, len(works), 1, len(works))
    return numbers.mapInArrow(partial(read_works, works=tuple(works), settings=settings), ddl(columns))


def read_works(
    numbers: Iterable[pa.RecordBatch], works: tuple[Work, ...], settings: ReadSettings
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the tasks with these numbers; runs in the worker."""
    for batch in numbers:
        chosen: list[Any] = batch.column(ROW_NUMBER).to_pylist()
        for number in chosen:
            yield from works[number].read(settings)


def broker_works(tasks: Sequence[Task], known: Sequence[KnownMessage]) -> list[BrokerWork]:
    """Return the work of these tasks; the first of each broker checks the archived messages."""
    works: list[BrokerWork] = []
    checked: set[str] = set()
    for task in tasks:
        is_first = task.broker not in checked
        checked.add(task.broker)
        works.append(BrokerWork(task, tuple(one for one in known if is_first and one.queue.broker == task.broker)))
    return works


def file_works(
    storage: Storage, slices: Sequence[FileSlice], columns: tuple[str, ...], tags: frozenset[str] | None
) -> list[FileWork]:
    """Return the work of reading these slices."""
    return [FileWork(storage, group, columns, tags) for group in pack_slices(slices, os.cpu_count() or 1)]


def pack_slices(slices: Sequence[FileSlice], cores: int) -> list[tuple[FileSlice, ...]]:
    """Group slices into tasks of about the same size: as many as cores, or more if they would be too large."""
    total = sum(one.size_bytes for one in slices)
    target = max(1, min(BYTES_TARGET, -(-total // cores)))
    groups: list[tuple[FileSlice, ...]] = []
    filled = target
    for one in slices:
        if filled >= target:
            groups.append(())
            filled = 0
        groups[-1] += (one,)
        filled += one.size_bytes
    return groups


def read_slices(
    storage: Storage,
    slices: Iterable[FileSlice],
    columns: tuple[str, ...],
    tags: frozenset[str] | None,
    batch_rows: int,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of slices of files; only those with one of the tags, if there are any. Raises DataLost."""
    schema = arrow_schema(columns)
    stored = [name for name in columns if name != "topic"]
    wanted = stored if tags is None or "tags" in stored else [*stored, "tags"]
    for one in slices:
        with _open(storage, one) as opened, pq.ParquetFile(opened) as parquet:
            for batch in _read_rows(parquet, one, wanted or ["offset"], batch_rows):
                kept = batch
                if tags is not None:
                    kept = batch.filter(pc.is_in(batch.column("tags"), value_set=pa.array(sorted(tags), pa.string())))
                arrays: dict[str, Any] = {name: kept.column(name) for name in stored}
                arrays["topic"] = pa.repeat(pa.scalar(one.topic, pa.string()), kept.num_rows)
                cast = [arrays[field.name].cast(field.type) for field in schema]
                yield pa.RecordBatch.from_arrays(cast, schema=schema)


def _open(storage: Storage, one: FileSlice) -> pa.NativeFile:
    """Open a planned file. Raises DataLost if it has expired since."""
    try:
        return storage.open(one.path)
    except FileNotFoundError as error:
        raise DataLost(
            f"{one.path} was deleted from {storage} after the query was planned: call read_archived_topics again"
        ) from error


def _read_rows(
    parquet: pq.ParquetFile, one: FileSlice, columns: list[str], batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a slice, from the row groups that have any of them."""
    at = 0
    groups: list[int] = []
    skipped: int | None = None
    for number in range(parquet.num_row_groups):
        rows = parquet.metadata.row_group(number).num_rows
        if at + rows > one.first and at < one.first + one.count:
            groups.append(number)
            skipped = one.first - at if skipped is None else skipped
        at += rows
    left, skip = one.count, max(0, skipped or 0)
    for batch in parquet.iter_batches(batch_rows, row_groups=groups, columns=columns):
        part = batch.slice(skip, left)
        skip = max(0, skip - batch.num_rows)
        left -= part.num_rows
        if part.num_rows:
            yield part
    assert left == 0, f"expected {one.count} rows from row {one.first} on in {one.path}"
