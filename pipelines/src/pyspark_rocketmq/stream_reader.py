"""`spark.readStream.format("rocketmq")`: a query that follows its topics, batch by batch.

Spark asks one long-lived process beside the driver for offsets and tasks, and pickles another reader for the workers.
It is told here only what `Follower` decides.

**Progress for a consumer group** (`commitGroup`). Spark tells a source of a batch's end only when it plans the next
one, and so never of the last. But it asks `latestOffset(start)` before it decides whether there is a next one, and
`start` is the end of the newest batch in its *commit log*. So that is what is committed to the group: never more than
Spark has committed, and, since an AvailableNow query ends only after it has asked and heard that nothing is left, all
of it in the end. (With asynchronous progress tracking Spark itself does not know what is in its log; do not use
both.)
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
from pyspark_rocketmq.ages import stored_ms
from pyspark_rocketmq.batch_reader import TaskPartition, cut_of, extents_of, read_partition, tasks_of
from pyspark_rocketmq.catalog import Catalog
from pyspark_rocketmq.catalog_port import CatalogPort
from pyspark_rocketmq.clock import Clock, SystemClock
from pyspark_rocketmq.errors import RocketMQSourceError
from pyspark_rocketmq.follower import Follower, Lay
from pyspark_rocketmq.gaps import record_gaps
from pyspark_rocketmq.model import QueueId
from pyspark_rocketmq.offsets import StreamOffset, tree
from pyspark_rocketmq.options import ReadOptions

log = logging.getLogger(__name__)

POLL_INTERVAL_S: Final = 0.1
"""Spark asks every 10 ms when it has nothing to do; brokers are asked this often at most."""
POLL_SHARE: Final = 9
"""And no more than a tenth of the time: many queues, asked one by one, would keep their brokers busy with nothing."""
POLL_INTERVAL_MAX_S: Final = 1.0

AGE_INTERVAL_S: Final = 1.0
"""How often the oldest unread messages are looked at; their age is told with each batch."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming query's reader. What travels to workers is its options; the rest is made where it is needed."""

    def __init__(
        self, options: ReadOptions, columns: tuple[str, ...], catalog: CatalogPort | None = None,
        *, clock: Clock | None = None, lay: Lay | None = None,
    ) -> None:  # fmt: skip
        """`catalog` and `clock` are for tests; `lay`: see `Follower`."""
        self.options = options
        self.columns = columns
        self._clock = clock or SystemClock()
        self._lay = lay
        self._catalog = catalog
        self._non_waiting_catalog = catalog
        self._follower: Follower | None = None
        self._committed: dict[QueueId, int] = {}
        self._rest_until_s: float | None = None
        self._oldest: dict[QueueId, int] = {}
        self._oldest_at_s: float | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "columns": self.columns}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        StreamReader.__init__(self, state["options"], state["columns"])

    # -- the driver's side ---------------------------------------------------------------------------------------------

    @property
    def catalog(self) -> CatalogPort:
        """The brokers, connected when first asked for."""
        if self._catalog is None:
            self._catalog = Catalog(self.options.settings)
        return self._catalog

    @property
    def non_waiting_catalog(self) -> CatalogPort:
        """The same brokers, for calls that may be repeated later: it does not wait for a broker that is away."""
        if self._non_waiting_catalog is None:
            self._non_waiting_catalog = Catalog(replace(self.options.settings, patience_ms=0))
        return self._non_waiting_catalog

    @property
    def follower(self) -> Follower:
        """Where the query stands."""
        if self._follower is None:
            self._follower = Follower(self.options, self.catalog, self._clock, self._lay)
        return self._follower

    def initialOffset(self) -> dict[str, Any]:
        """Nothing was read yet. The same whenever it is asked; where queues begin is in the first batch's offset."""
        return StreamOffset().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """The first of the limits, for Spark to show; all of them together are kept in `latestOffset`."""
        limits = self.options.limits
        if limits.rows_max is not None:
            return ReadMaxRows(limits.rows_max)
        if limits.bytes_max is not None:
            return ReadMaxBytes(limits.bytes_max)
        if limits.rows_min:
            return ReadMinRows(limits.rows_min)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """The query ends with what is there now."""
        self.follower.fix_target()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch; `start` itself when there is none."""
        before = StreamOffset.from_json(start)
        self._commit_group(before, self.non_waiting_catalog)
        self._throttle_polling()
        began_s = self._clock.now_s()
        is_limited = isinstance(self.getDefaultReadLimit(), ReadAllAvailable) or not isinstance(limit, ReadAllAvailable)
        after = self.follower.next_offset(before, is_limited=is_limited)
        self._rest_until_s = None
        if after is None:
            now_s = self._clock.now_s()
            self._rest_until_s = now_s + min(POLL_INTERVAL_MAX_S, max(POLL_INTERVAL_S, POLL_SHARE * (now_s - began_s)))
            if self.follower.has_target:
                self._commit_group(before, self.catalog)  # the query ends now, and nobody would try again
        self._look_at_oldest(before if after is None else after)
        return start if after is None else after.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Where queues end now, for the progress of the query and for `lag`."""
        ends = self.follower.ends
        if not ends:
            return None
        sizes = {queue: size for queue, size in self.follower.sizes.items() if queue in ends}
        return {**StreamOffset(ends).to_json(), "sizes": tree(sizes), "oldest": tree(self._oldest)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a batch."""
        ranges, gaps = self.follower.ranges(StreamOffset.from_json(start), StreamOffset.from_json(end))
        record_gaps(self.options.gaps_path, gaps)
        extents = extents_of(ranges, self.catalog)
        self.follower.update_sizes({one.range.queue: one.size for one in extents})
        cut = cut_of(self.options, self.columns, self.options.tags)
        return [TaskPartition(task) for task in tasks_of(extents, self.catalog, cut)]

    def commit(self, end: dict[str, Any]) -> None:
        """Spark has committed this batch; it says so one batch late."""
        self._commit_group(StreamOffset.from_json(end), self.non_waiting_catalog)

    def stop(self) -> None:
        """End all connections."""
        catalogs, self._catalog, self._non_waiting_catalog = (self._catalog, self._non_waiting_catalog), None, None
        for catalog in catalogs:
            if catalog is not None:
                catalog.close()

    # -- the worker's side ---------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""
        return read_partition(partition, self.options.settings, self.columns)

    # -- below ---------------------------------------------------------------------------------------------------------

    def _throttle_polling(self) -> None:
        rest_s = 0.0 if self._rest_until_s is None else self._rest_until_s - self._clock.now_s()
        if rest_s > 0:
            self._clock.sleep(rest_s)

    def _look_at_oldest(self, reached: StreamOffset) -> None:
        """When the first message of each queue that this batch leaves unread was stored; for `lag`."""
        ends = self.follower.ends
        unread = {queue: end for queue, end in reached.ends.items() if ends.get(queue, end) > end}
        now_s = self._clock.now_s()
        if not unread:
            self._oldest = {}
        elif self._oldest_at_s is None or now_s - self._oldest_at_s >= AGE_INTERVAL_S:
            self._oldest = stored_ms(unread, self.catalog, self.options.settings)
            self._oldest_at_s = now_s

    def _commit_group(self, reached: StreamOffset, catalog: CatalogPort) -> None:
        """Tell the group. Slaves are read while there is no master to be told: that is no reason to wait."""
        group = self.options.commit_group
        news = {queue: end for queue, end in reached.ends.items() if self._committed.get(queue) != end}
        if not group or not news:
            return
        try:
            catalog.commit_group(group, news)
        except (RocketMQSourceError, ClientError, OSError) as error:
            # The group's progress is for people to look at; the query's own is in its checkpoint.
            log.warning("progress was not committed", extra={"group": group, "error": str(error)})
            return
        self._committed |= news
