"""Measure how far streaming queries lag behind their topics, by queue, in messages, bytes and seconds, for Prometheus.

```python
from pyspark_rocketmq.lag import LagListener

LagListener.serve(spark, port=9095)
```

After each batch Spark reports to a listener where the batch ended and where the queues ended then. The difference is
the lag in messages; bytes are estimated from the size of a typical message; seconds are the age of the oldest unread
message. When a query terminates, the series of its lag are removed, since a number that no longer changes is
misleading; the counter of skipped messages stays.
"""

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, start_http_server
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from pyspark_rocketmq.errors import RocketMQSourceError
from pyspark_rocketmq.model import QueueId
from pyspark_rocketmq.offsets import StreamOffset, flatten

log = logging.getLogger(__name__)

LABELS: Final = ("query", "topic", "broker", "queue")
"""The labels of the gauges: the query's name and the queue."""


@final
@dataclass(frozen=True, slots=True)
class QueueLag:
    """The unread part of one queue."""

    queue: QueueId
    rows: int
    """The number of unread messages."""

    bytes: int
    """Their size, estimated from the size of a typical message."""

    seconds: float
    """The age of the oldest unread message."""


@final
@dataclass(frozen=True, slots=True)
class SourceLag:
    """The lag that one source of a query reported after a batch."""

    queues: tuple[QueueLag, ...]
    gap_rows: Mapping[str, int]
    """Messages that the batch skipped, by the kind of their gap."""


def _parse_json(value: object) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def source_lag(start: object, end: object, latest: object, now_ms: int) -> SourceLag | None:
    """Return the lag from a source's start, end and latest offset, each JSON text or parsed; None for other sources.

    A batch may have no new messages of this source: a source without any returns its start as the end. The gaps in
    that offset belong to an earlier batch.
    """
    try:
        read, latest_document = _parse_json(end), _parse_json(latest)
        offset = StreamOffset.from_json(read)
        ends = flatten(latest_document["o"])
    except (ValueError, TypeError, KeyError, AttributeError, RocketMQSourceError):
        return None
    sizes, oldest = flatten(latest_document.get("sizes", {})), flatten(latest_document.get("oldest", {}))
    queues: list[QueueLag] = []
    for queue, at in sorted(offset.ends.items()):
        rows = max(0, ends.get(queue, at) - at)
        age_s = max(0.0, (now_ms - oldest[queue]) / 1000) if rows and queue in oldest else 0.0
        queues.append(QueueLag(queue, rows, rows * sizes.get(queue, 0), age_s))
    gap_rows: dict[str, int] = {}
    for gap in offset.gaps if _parse_json(start) != read else ():
        gap_rows[str(gap.kind)] = gap_rows.get(str(gap.kind), 0) + gap.count
    return SourceLag(tuple(queues), gap_rows)


class LagListener(StreamingQueryListener):
    """Updates the gauges after each batch. Spark calls it from one thread."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._rows = Gauge("rocketmq_source_lag_rows", "Unread messages of a queue.", LABELS, registry=registry)
        self._bytes = Gauge(
            "rocketmq_source_lag_bytes", "Unread bytes of a queue, estimated.", LABELS, registry=registry
        )
        self._seconds = Gauge(
            "rocketmq_source_lag_seconds", "Age of the oldest unread message of a queue.", LABELS, registry=registry
        )
        self._gaps = Counter(
            "rocketmq_source_gap_rows", "Messages skipped because they were gone.", ("query", "kind"),
            registry=registry,
        )  # fmt: skip
        self._names: dict[str, str] = {}
        self._series: dict[str, set[tuple[str, ...]]] = {}
        self._counted: dict[str, int] = {}

    @classmethod
    def serve(cls, spark: SparkSession, *, port: int, address: str = "127.0.0.1") -> "LagListener":
        """Add a listener to this session's queries, and start an endpoint for Prometheus."""
        listener = cls()
        start_http_server(port, addr=address)
        spark.streams.addListener(listener)
        return listener

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Remember the query's name, or its id if it has none."""
        self._names[str(event.runId)] = event.name or str(event.id)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Update the metrics; Spark calls it after each batch, and at times without one."""
        progress = event.progress
        run = str(progress.runId)
        self._names.setdefault(run, progress.name or str(progress.id))
        for number, source in enumerate(progress.sources):
            now_ms = time.time_ns() // 1_000_000
            found = source_lag(source.startOffset, source.endOffset, source.latestOffset, now_ms)
            if found is not None:
                self.update_metrics(run, found, f"{run}/{number}", progress.batchId)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing: an idle query has no new progress."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Remove the series of the query's lag."""
        run = str(event.runId)
        for labels in self._series.pop(run, set()):
            for gauge in (self._rows, self._bytes, self._seconds):
                gauge.remove(*labels)
        self._names.pop(run, None)
        self._counted = {key: batch for key, batch in self._counted.items() if not key.startswith(f"{run}/")}

    def update_metrics(self, run: str, found: SourceLag, source: str, batch: int) -> None:
        """Update the metrics of one source. The gaps of a batch that is reported twice are counted once."""
        name = self._names.get(run, run)
        for one in found.queues:
            labels = (name, one.queue.topic, one.queue.broker, str(one.queue.number))
            self._series.setdefault(run, set()).add(labels)
            self._rows.labels(*labels).set(one.rows)
            self._bytes.labels(*labels).set(one.bytes)
            self._seconds.labels(*labels).set(one.seconds)
        if self._counted.get(source) == batch:
            return
        self._counted[source] = batch
        for kind, rows in found.gap_rows.items():
            self._gaps.labels(name, kind).inc(rows)
            log.warning("skipped missing messages", extra={"query": name, "kind": kind, "rows": rows})


def query_lag(progress: Mapping[str, Any]) -> list[QueueLag]:
    """Return the lag in a query's `lastProgress`, for programs that print it."""
    found: list[QueueLag] = []
    now_ms = time.time_ns() // 1_000_000
    for source in progress.get("sources", ()):
        lag = source_lag(source.get("startOffset"), source.get("endOffset"), source.get("latestOffset"), now_ms)
        found += lag.queues if lag is not None else ()
    return found
