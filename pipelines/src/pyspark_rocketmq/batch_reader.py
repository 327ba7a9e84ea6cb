"""The batch reader behind `spark.read.format("rocketmq")`: it reads what is stored now, split into tasks."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from pyspark_rocketmq.catalog import Catalog
from pyspark_rocketmq.catalog_port import CatalogPort
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.gaps import record_gaps
from pyspark_rocketmq.model import QueueId, QueueRange, Task
from pyspark_rocketmq.options import ReadOptions
from pyspark_rocketmq.planning import BYTES_TARGET, BYTES_TARGET_HEADERS, Extent, SplitOptions, plan_tasks
from pyspark_rocketmq.position_check import PositionChecker
from pyspark_rocketmq.pushdown import PushedFilters, push_filters
from pyspark_rocketmq.reading import read_task
from pyspark_rocketmq.schema import HEADER_COLUMNS, arrow_schema
from pyspark_rocketmq.settings import ReadSettings


@final
class TaskPartition(InputPartition):
    """A partition that carries one task to a Spark worker."""

    def __init__(self, task: Task | None) -> None:
        super().__init__(task)
        self.task = task


def read_partition(
    partition: InputPartition, settings: ReadSettings, columns: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """Return the rows of a partition's task; runs in the worker.

    For a read without tasks Spark creates a partition of its own, which has no rows.
    """
    task = partition.task if isinstance(partition, TaskPartition) else None
    if task is None:
        return iter([pa.RecordBatch.from_pylist([], schema=arrow_schema(columns))])
    return read_task(task, settings)


def split_options(options: ReadOptions, columns: tuple[str, ...], tags: frozenset[str] | None) -> SplitOptions:
    """Return how a read is split into tasks, according to its options."""
    is_light = tags is None and set(columns) <= set(HEADER_COLUMNS)
    return SplitOptions(
        columns=columns,
        transport=options.settings.transport,
        tags=tags,
        bytes_target=options.bytes_target or (BYTES_TARGET_HEADERS if is_light else BYTES_TARGET),
        partitions_min=options.partitions_min,
        cores=os.cpu_count() or 1,
    )


def locate_extents(ranges: Sequence[QueueRange], catalog: CatalogPort) -> list[Extent]:
    """Return where the bytes of these ranges lie in the log, by locating the first and last message of each."""
    wanted = [one for one in ranges if one.count > 0]
    if not wanted:
        return []
    firsts = catalog.physical({one.queue: one.begin for one in wanted})
    lasts = catalog.physical({one.queue: one.end - 1 for one in wanted})
    extents: list[Extent] = []
    for one in wanted:
        (begin, first_size), (last, last_size) = firsts[one.queue], lasts[one.queue]
        extents.append(Extent(one, begin, last + last_size, (first_size + last_size) // 2))
    return extents


def plan_catalog_tasks(extents: Sequence[Extent], catalog: CatalogPort, split: SplitOptions) -> list[Task]:
    """Plan tasks for these extents, with the replicas that the catalog has for their brokers."""
    brokers = sorted({one.range.queue.broker for one in extents})
    return plan_tasks(extents, {broker: catalog.replicas(broker) for broker in brokers}, split)


@dataclass
class BatchReader(DataSourceReader):
    """Reads from one position of each queue to another.

    It is pickled for the workers, so it holds plain values and no connection.
    """

    options: ReadOptions
    columns: tuple[str, ...]
    """The columns of a row, in their order."""

    pushed: PushedFilters = field(default_factory=PushedFilters)
    """The filters of the query that narrow the read."""

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks as partitions. Raises InvalidOption, NoReplica, Refused, DataLost and DamagedRecord."""
        with Catalog(self.options.settings) as catalog:
            return [TaskPartition(task) for task in self.tasks(catalog)]

    def tasks(self, catalog: CatalogPort) -> list[Task]:
        """Return the tasks of the read, planned with this catalog."""
        tags = self.options.tags
        if self.pushed.tags is not None:
            tags = self.pushed.tags if tags is None else tags & self.pushed.tags
        if tags == frozenset():
            return []
        return plan_catalog_tasks(
            locate_extents(self.ranges(catalog), catalog), catalog, split_options(self.options, self.columns, tags)
        )

    def ranges(self, catalog: CatalogPort) -> list[QueueRange]:
        """Return the range of each queue that is read."""
        queues = [one for one in self.options.subscription.resolve_queues(catalog) if self.pushed.matches(one)]
        if not queues:
            return []
        bounds = catalog.bounds(queues)
        ends = self.options.end.resolve(bounds, catalog)
        begins = self.options.start.resolve(bounds, catalog)
        ranges: list[QueueRange] = []
        for queue in queues:
            begin, end = self.pushed.clamp(begins[queue], max(begins[queue], ends[queue]))
            ranges.append(QueueRange(queue, begin, end))
        ranges = self._narrow_by_time([one for one in ranges if one.count], catalog)
        position_checker = PositionChecker(
            catalog, SystemClock(), patience_ms=0, is_loss_fatal=self.options.is_loss_fatal
        )
        gaps = position_checker.find_expired(
            {one.queue: one.begin for one in ranges}, bounds, {one.queue: one.end for one in ranges}
        )
        record_gaps(self.options.gaps_path, gaps)
        passed = {gap.queue: gap.end for gap in gaps}
        ranges = [QueueRange(one.queue, passed.get(one.queue, one.begin), one.end) for one in ranges]
        return [one for one in ranges if one.count > 0]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of a partition; runs in the worker."""
        return read_partition(partition, self.options.settings, self.columns)

    def _narrow_by_time(self, ranges: Sequence[QueueRange], catalog: CatalogPort) -> list[QueueRange]:
        """Leave out messages outside of the store times that the query's filters allow."""
        queues = [one.queue for one in ranges]
        lows: dict[QueueId, int] = {}
        highs: dict[QueueId, int] = {}
        if self.pushed.time_min_ms is not None and queues:
            lows = catalog.offsets_at(queues, self.pushed.time_min_ms)
        if self.pushed.time_end_ms is not None and queues:
            highs = catalog.offsets_at(queues, self.pushed.time_end_ms)
        narrowed: list[QueueRange] = []
        for one in ranges:
            begin = max(one.begin, lows.get(one.queue, one.begin))
            end = min(one.end, highs.get(one.queue, one.end))
            if begin < end:
                narrowed.append(QueueRange(one.queue, begin, end))
        return narrowed


@final
class PushingBatchReader(BatchReader):
    """A batch reader that accepts pushed filters.

    It is a class of its own because Spark refuses any reader with `pushFilters` while its setting is off.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Narrow the read by these filters, and return those that Spark still has to apply."""
        self.pushed, rest = push_filters(filters)
        return rest
