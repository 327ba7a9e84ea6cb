"""`spark.read.format("rocketmq")`: what is there, once, cut into tasks."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from pyspark_rocketmq.catalog import Catalog
from pyspark_rocketmq.catalog_port import CatalogPort
from pyspark_rocketmq.clock import SystemClock
from pyspark_rocketmq.footing import Looker
from pyspark_rocketmq.gaps import record_gaps
from pyspark_rocketmq.model import QueueId, QueueRange, Task
from pyspark_rocketmq.options import ReadOptions
from pyspark_rocketmq.planning import BYTES_TARGET, BYTES_TARGET_HEADERS, Cut, Extent, plan
from pyspark_rocketmq.pushdown import Narrowing, narrow
from pyspark_rocketmq.reading import read_task
from pyspark_rocketmq.schema import HEADER_COLUMNS, arrow_schema
from pyspark_rocketmq.settings import ReadSettings


@final
class TaskPartition(InputPartition):
    """One task, as Spark carries it to a worker."""

    def __init__(self, task: Task | None) -> None:
        super().__init__(task)
        self.task = task


def read_partition(
    partition: InputPartition, settings: ReadSettings, columns: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """In the worker: the rows of a task. A partition without one, which Spark makes of an empty read, has none."""
    task = partition.task if isinstance(partition, TaskPartition) else None
    if task is None:
        return iter([pa.RecordBatch.from_pylist([], schema=arrow_schema(columns))])
    return read_task(task, settings)


def cut_of(options: ReadOptions, columns: tuple[str, ...], tags: frozenset[str] | None) -> Cut:
    """How the options want a read to be cut."""
    is_light = tags is None and set(columns) <= set(HEADER_COLUMNS)
    return Cut(
        columns=columns,
        transport=options.settings.transport,
        tags=tags,
        bytes_target=options.bytes_target or (BYTES_TARGET_HEADERS if is_light else BYTES_TARGET),
        partitions_min=options.partitions_min,
        cores=os.cpu_count() or 1,
    )


def extents_of(ranges: Sequence[QueueRange], catalog: CatalogPort) -> list[Extent]:
    """Where their bytes lie; two questions for each queue, all queues at once."""
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


def tasks_of(extents: Sequence[Extent], catalog: CatalogPort, cut: Cut) -> list[Task]:
    """These extents as tasks."""
    brokers = sorted({one.range.queue.broker for one in extents})
    return plan(extents, {broker: catalog.replicas(broker) for broker in brokers}, cut)


@dataclass
class BatchReader(DataSourceReader):
    """A read from one place to another. It travels to the workers, so it holds plain values and no connection."""

    options: ReadOptions
    columns: tuple[str, ...]
    narrowing: Narrowing = field(default_factory=Narrowing)

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks. Raises InvalidOption, NoReplica and DataLost."""
        with Catalog(self.options.settings) as catalog:
            return [TaskPartition(task) for task in self.tasks(catalog)]

    def tasks(self, catalog: CatalogPort) -> list[Task]:
        """The same, with whoever knows the brokers."""
        tags = self.options.tags
        if self.narrowing.tags is not None:
            tags = self.narrowing.tags if tags is None else tags & self.narrowing.tags
        if tags == frozenset():
            return []
        return tasks_of(extents_of(self.ranges(catalog), catalog), catalog, cut_of(self.options, self.columns, tags))

    def ranges(self, catalog: CatalogPort) -> list[QueueRange]:
        """What is read of each queue."""
        queues = [one for one in self.options.subscription.existing(catalog) if self.narrowing.wants(one)]
        if not queues:
            return []
        bounds = catalog.bounds(queues)
        ends = self.options.end.offsets_in(bounds, catalog)
        begins = self.options.start.offsets_in(bounds, catalog)
        ranges: list[QueueRange] = []
        for queue in queues:
            begin, end = self.narrowing.clamp(begins[queue], max(begins[queue], ends[queue]))
            ranges.append(QueueRange(queue, begin, end))
        ranges = self._by_time([one for one in ranges if one.count], catalog)
        looker = Looker(catalog, SystemClock(), patience_ms=0, is_loss_fatal=self.options.is_loss_fatal)
        gaps = looker.expired({one.queue: one.begin for one in ranges}, bounds)
        record_gaps(self.options.gaps_path, gaps)
        passed = {gap.queue: gap.end for gap in gaps}
        ranges = [QueueRange(one.queue, passed.get(one.queue, one.begin), one.end) for one in ranges]
        return [one for one in ranges if one.count > 0]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In the worker: its rows."""
        return read_partition(partition, self.options.settings, self.columns)

    def _by_time(self, ranges: Sequence[QueueRange], catalog: CatalogPort) -> list[QueueRange]:
        queues = [one.queue for one in ranges]
        lows: dict[QueueId, int] = {}
        highs: dict[QueueId, int] = {}
        if self.narrowing.time_min_ms is not None and queues:
            lows = catalog.offsets_at(queues, self.narrowing.time_min_ms)
        if self.narrowing.time_end_ms is not None and queues:
            highs = catalog.offsets_at(queues, self.narrowing.time_end_ms)
        narrowed: list[QueueRange] = []
        for one in ranges:
            begin = max(one.begin, lows.get(one.queue, one.begin))
            end = min(one.end, highs.get(one.queue, one.end))
            if begin < end:
                narrowed.append(QueueRange(one.queue, begin, end))
        return narrowed


@final
class PushingBatchReader(BatchReader):
    """One that takes filters: a class of its own, because Spark refuses any that could where its setting is off."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Narrow the read, and give back what Spark still has to look at."""
        self.narrowing, rest = narrow(filters)
        return rest
