"""The part of a read of archived topics that Spark cannot read as Parquet itself, as a Spark data source.

These are the messages that only brokers have, and all archived files in an object store, since this Spark has no
connector to one: there workers read them with pyarrow. What is read was planned before (`archived_topics`), so each
execution of a query reads the same messages. Before each one the brokers are checked again: a replica that is behind,
as after a failover, is waited for, and messages that were deleted or replaced since the plan are an error.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, Filter, InputPartition
from pyspark.sql.types import StructType

from gantry_pipelines.archive.fork_check import KnownMessage, check_not_forked
from gantry_pipelines.archive.object_storage import storage_of
from gantry_pipelines.archive.planning import split_into_rounds
from gantry_pipelines.archive.storage import Storage
from pyspark_rocketmq.batch_reader import (
    BatchReader,
    locate_extents,
    plan_catalog_tasks,
    read_partition,
    split_options,
)
from pyspark_rocketmq.catalog_port import CatalogPort
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.errors import DataLost
from pyspark_rocketmq.gaps import GapKind, record_gaps
from pyspark_rocketmq.model import QueueId, QueueRange, Task
from pyspark_rocketmq.options import read_options
from pyspark_rocketmq.planning import BYTES_TARGET
from pyspark_rocketmq.position_check import PositionChecker
from pyspark_rocketmq.pushdown import push_filters
from pyspark_rocketmq.schema import arrow_schema, ddl

NAME: Final = "gantry-archive-remainder"
"""The name of the data source for `format`."""

PLAN_OPTION: Final = "archive.plan"
"""The option with the plan, as JSON; the other options are those of `rocketmq`."""


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
class RemainderPlan:
    """The ranges of brokers and the rows of files that the source reads, and what it checks before."""

    destination: str
    """The archive's folder or address."""
    ranges: tuple[QueueRange, ...] = ()
    """What is read from brokers; a queue may have several ranges."""
    known: tuple[KnownMessage, ...] = ()
    """Archived messages that the brokers must still have, unless they have deleted them."""
    slices: tuple[FileSlice, ...] = ()
    """What is read from files."""

    def to_json(self) -> str:
        """Return the plan as the text of an option."""
        return json.dumps(
            {
                "destination": self.destination,
                "ranges": [[one.queue.topic, one.queue.broker, one.queue.number, one.begin, one.end]
                           for one in self.ranges],
                "known": [one.to_json() for one in self.known],
                "slices": [[one.path, one.topic, one.first, one.count, one.size_bytes] for one in self.slices],
            },
            separators=(",", ":"),
        )  # fmt: skip

    @classmethod
    def from_json(cls, text: str) -> "RemainderPlan":
        """Parse the text of the option."""
        document = json.loads(text)
        return cls(
            document["destination"],
            tuple(QueueRange(QueueId(*one[:3]), *one[3:]) for one in document["ranges"]),
            tuple(KnownMessage.from_json(one) for one in document["known"]),
            tuple(FileSlice(*one) for one in document["slices"]),
        )


@final
class RemainderSource(DataSource):
    """The data source: `spark.dataSource.register(RemainderSource)`, then `read.format(NAME)`."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return NAME

    def schema(self) -> str:
        """Return the columns of the option `columns`, or all, as DDL."""
        return ddl(read_options(_source_options(self.options), is_stream=False).columns)

    def reader(self, schema: StructType) -> "RemainderReader":
        """Return the reader for `spark.read`."""
        options = read_options(_source_options(self.options), is_stream=False)
        kind = PushingRemainderReader if options.is_pushdown_wanted else RemainderReader
        return kind(options, options.columns, plan=RemainderPlan.from_json(self.options[PLAN_OPTION]))


@final
class SlicesPartition(InputPartition):
    """The slices of files that one task reads."""

    def __init__(self, slices: tuple[FileSlice, ...]) -> None:
        super().__init__(slices)
        self.slices = slices


@dataclass
class RemainderReader(BatchReader):
    """Reads the planned ranges from brokers, and the planned slices of files."""

    plan: RemainderPlan = field(default_factory=lambda: RemainderPlan(""))

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks as partitions. Raises NoReplica, Refused, DataLost, LogForked and DamagedRecord."""
        from_brokers = super().partitions() if self.plan.ranges else []
        return [
            *from_brokers,
            *(SlicesPartition(group) for group in pack_slices(self.plan.slices, os.cpu_count() or 1)),
        ]

    def tasks(self, catalog: CatalogPort) -> list[Task]:
        """Return the tasks that read from brokers, after a check that they still have what was planned."""
        tags = self.wanted_tags()
        if tags == frozenset():
            return []
        ranges = self.ranges(catalog)
        extents = [extent for some in split_into_rounds(ranges) for extent in locate_extents(some, catalog)]
        return plan_catalog_tasks(extents, catalog, split_options(self.options, self.columns, tags))

    def ranges(self, catalog: CatalogPort) -> list[QueueRange]:
        """Return the planned ranges without what the filters of the query exclude. Raises DataLost and LogForked."""
        settings = self.options.settings
        checker = PositionChecker(
            catalog, SystemClock(), patience_ms=settings.patience_ms, is_loss_fatal=self.options.is_loss_fatal
        )
        gaps = checker.recheck_planned(self.plan.ranges, {}).gaps
        check_not_forked(self.plan.known, catalog, settings)
        record_gaps(self.options.gaps_path, gaps)
        found: list[QueueRange] = []
        for one in self.plan.ranges:
            if not self.pushed.matches(one.queue):
                continue
            begin, end = self.pushed.clamp(one.begin, one.end)
            for gap in gaps:
                if gap.queue == one.queue and gap.kind is GapKind.EXPIRED and gap.begin == one.begin:
                    begin = max(begin, gap.end)
                elif gap.queue == one.queue and gap.kind is not GapKind.EXPIRED and gap.end == one.end:
                    end = min(end, gap.begin)
            found.append(QueueRange(one.queue, begin, max(begin, end)))
        return self._narrow_by_time([one for one in found if one.count], catalog)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of a partition; runs in the worker."""
        if not isinstance(partition, SlicesPartition):
            return read_partition(partition, self.options.settings, self.columns)
        storage = storage_of(self.plan.destination)
        return read_slices(storage, partition.slices, self.columns, self.options.tags, self.options.settings.batch_rows)


@final
class PushingRemainderReader(RemainderReader):
    """A reader that accepts pushed filters; Spark refuses one while its setting is off."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Narrow the reads from brokers; Spark applies every filter again, because files are not narrowed."""
        given = list(filters)
        self.pushed, _ = push_filters(given)
        return given


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
    """Yield the rows of slices of files; only those with one of the tags, if there are any."""
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
                yield pa.RecordBatch.from_arrays(
                    [arrays[field.name].cast(field.type) for field in schema], schema=schema
                )


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


def _source_options(options: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in options.items() if name.lower() != PLAN_OPTION}
