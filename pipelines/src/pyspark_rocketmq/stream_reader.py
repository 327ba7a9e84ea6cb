"""The streaming reader behind `spark.readStream.format("rocketmq")`: it follows its topics, batch by batch.

Spark calls one long-lived process beside the driver for offsets and tasks, and pickles another reader for the workers.
`StreamPlanner` makes the decisions; this module adapts them to Spark's interface, and commits offsets for a group.

**Progress for a consumer group** (`commitGroup`). Spark reports a batch's end to a source only when it plans the next
batch, and so never for the last one. But it calls `latestOffset(start)` before it decides whether there is a next
batch, and `start` is the end of the newest batch in its *commit log*. So that offset is committed to the group. It is
never beyond what Spark has committed. An AvailableNow query ends only after a call that returns no further batch, so in
the end all of its progress is committed. (Do not combine `commitGroup` with asynchronous progress tracking, in which
Spark itself does not know what is in its log.)
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from gantry_client import ClientError
from pyspark_rocketmq.batch_reader import (
    TaskPartition,
    locate_extents,
    plan_catalog_tasks,
    read_partition,
    split_options,
)
from pyspark_rocketmq.catalog import Catalog
from pyspark_rocketmq.catalog_port import CatalogPort
from pyspark_rocketmq.clock import Clock, SystemClock
from pyspark_rocketmq.errors import RocketMQSourceError
from pyspark_rocketmq.gaps import record_gaps
from pyspark_rocketmq.message_times import store_times_ms
from pyspark_rocketmq.model import QueueId
from pyspark_rocketmq.offsets import StreamOffset, nest
from pyspark_rocketmq.options import ReadOptions
from pyspark_rocketmq.stream_planner import AlignRanges, StreamPlanner

log = logging.getLogger(__name__)

POLL_INTERVAL_S: Final = 0.1
"""Seconds between two polls of the brokers, at least, if the first one found no batch; Spark would poll every 10 ms."""
PAUSE_TO_POLL_RATIO: Final = 9
"""A pause is this many times as long as the poll before it, but from `POLL_INTERVAL_S` to `POLL_INTERVAL_MAX_S`: so
polling takes at most a tenth of the time, or more if a poll is slow. Otherwise many queues, polled one by one, would
keep their brokers busy."""
POLL_INTERVAL_MAX_S: Final = 1.0
"""Seconds between two polls, at most, unless one poll takes longer."""

AGE_INTERVAL_S: Final = 1.0
"""Seconds between two lookups of the oldest unread messages; their age is reported with each batch."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of one streaming query.

    Only its options and columns travel to the workers; everything else is created where it is needed.
    """

    def __init__(
        self, options: ReadOptions, columns: tuple[str, ...], catalog: CatalogPort | None = None,
        *, clock: Clock | None = None, align_ranges: AlignRanges | None = None,
    ) -> None:  # fmt: skip
        """`catalog` and `clock` are for tests; for `align_ranges` see `StreamPlanner`."""
        self.options = options
        self.columns = columns
        self._clock = clock or SystemClock()
        self._align_ranges = align_ranges
        self._catalog = catalog
        self._non_waiting_catalog = catalog
        self._planner: StreamPlanner | None = None
        self._committed: dict[QueueId, int] = {}
        self._pause_until_s: float | None = None
        self._oldest: dict[QueueId, int] = {}
        self._oldest_updated_s: float | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "columns": self.columns}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        StreamReader.__init__(self, state["options"], state["columns"])

    # -- called in the driver ------------------------------------------------------------------------------------------

    @property
    def catalog(self) -> CatalogPort:
        """The catalog, connected at first use."""
        if self._catalog is None:
            self._catalog = Catalog(self.options.settings)
        return self._catalog

    @property
    def non_waiting_catalog(self) -> CatalogPort:
        """A catalog for calls that may be repeated later: it does not wait for an unavailable broker."""
        if self._non_waiting_catalog is None:
            self._non_waiting_catalog = Catalog(replace(self.options.settings, patience_ms=0))
        return self._non_waiting_catalog

    @property
    def planner(self) -> StreamPlanner:
        """The planner of the query's batches."""
        if self._planner is None:
            self._planner = StreamPlanner(self.options, self.catalog, self._clock, self._align_ranges)
        return self._planner

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset before the first batch.

        It is the same at every call; the begin of each queue is in the first batch's offset.
        """
        return StreamOffset().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the first of the limits, for Spark to show.

        `latestOffset` applies all of them, except with Trigger.Once, for which Spark requests all messages.
        """
        limits = self.options.limits
        if limits.rows_max is not None:
            return ReadMaxRows(limits.rows_max)
        if limits.bytes_max is not None:
            return ReadMaxBytes(limits.bytes_max)
        if limits.rows_min:
            return ReadMinRows(limits.rows_min)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Let the query end with the messages that are stored now."""
        self.planner.fix_target()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch; `start` itself if there is none."""
        before = StreamOffset.from_json(start)
        self._commit_group(before, self.non_waiting_catalog)
        self._throttle_polling()
        began_s = self._clock.now_s()
        is_limited = isinstance(self.getDefaultReadLimit(), ReadAllAvailable) or not isinstance(limit, ReadAllAvailable)
        after = self.planner.next_offset(before, is_limited=is_limited)
        self._pause_until_s = None
        if after is None:
            now_s = self._clock.now_s()
            pause_s = max(POLL_INTERVAL_S, PAUSE_TO_POLL_RATIO * (now_s - began_s))
            self._pause_until_s = now_s + min(POLL_INTERVAL_MAX_S, pause_s)
            if self.planner.has_target:
                self._commit_group(before, self.catalog)  # the query ends now, so there is no later attempt
        self._update_oldest(before if after is None else after)
        return start if after is None else after.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the current ends of the queues, for the progress of the query and for `lag`."""
        ends = self.planner.ends
        if not ends:
            return None
        sizes = {queue: size for queue, size in self.planner.sizes.items() if queue in ends}
        return {**StreamOffset(ends).to_json(), "sizes": nest(sizes), "oldest": nest(self._oldest)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch as partitions."""
        ranges, gaps = self.planner.ranges(StreamOffset.from_json(start), StreamOffset.from_json(end))
        record_gaps(self.options.gaps_path, gaps)
        extents = locate_extents(ranges, self.catalog)
        self.planner.update_sizes({one.range.queue: one.size for one in extents})
        split = split_options(self.options, self.columns, self.options.tags)
        return [TaskPartition(task) for task in plan_catalog_tasks(extents, self.catalog, split)]

    def commit(self, end: dict[str, Any]) -> None:
        """Commit the progress of the consumer group; Spark calls it one batch late."""
        self._commit_group(StreamOffset.from_json(end), self.non_waiting_catalog)

    def stop(self) -> None:
        """Close all connections of this object."""
        catalogs, self._catalog, self._non_waiting_catalog = (self._catalog, self._non_waiting_catalog), None, None
        for catalog in catalogs:
            if catalog is not None:
                catalog.close()

    # -- called in a worker --------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of a task."""
        return read_partition(partition, self.options.settings, self.columns)

    # -- internal ------------------------------------------------------------------------------------------------------

    def _throttle_polling(self) -> None:
        pause_s = 0.0 if self._pause_until_s is None else self._pause_until_s - self._clock.now_s()
        if pause_s > 0:
            self._clock.sleep(pause_s)

    def _update_oldest(self, offset: StreamOffset) -> None:
        """Look up the store time of the first unread message of each queue, for `lag`."""
        ends = self.planner.ends
        unread = {queue: end for queue, end in offset.ends.items() if ends.get(queue, end) > end}
        now_s = self._clock.now_s()
        if not unread:
            self._oldest = {}
        elif self._oldest_updated_s is None or now_s - self._oldest_updated_s >= AGE_INTERVAL_S:
            self._oldest = store_times_ms(unread, self.non_waiting_catalog, self.options.settings)
            self._oldest_updated_s = now_s

    def _commit_group(self, offset: StreamOffset, catalog: CatalogPort) -> None:
        """Commit the progress of the consumer group; a failure is logged, and the next call commits again."""
        group = self.options.commit_group
        changed = {queue: end for queue, end in offset.ends.items() if self._committed.get(queue) != end}
        if not group or not changed:
            return
        try:
            catalog.commit_group(group, changed)
        except (RocketMQSourceError, ClientError, OSError) as error:
            # The group's progress is for display only; the query's own is in its checkpoint.
            log.warning(
                "failed to commit group offsets; retrying with the next call",
                extra={"group": group, "error": str(error)},
            )
            return
        self._committed |= changed
