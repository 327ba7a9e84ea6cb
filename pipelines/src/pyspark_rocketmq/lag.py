"""How far streaming queries are behind their topics, by queue: in messages, bytes and seconds, for Prometheus.

```python
from pyspark_rocketmq.lag import LagListener

LagListener.serve(spark, port=9095)
```

Spark tells a listener after each batch where the batch ended and where the queues ended then. The difference is the lag
in messages; bytes are that many usual messages; seconds are the age of the oldest message that is still unread. A query
that ends takes its series with it, since a number that nobody changes any more says nothing.
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
from pyspark_rocketmq.offsets import StreamOffset, flat

log = logging.getLogger(__name__)

LABELS: Final = ("query", "topic", "broker", "queue")


@final
@dataclass(frozen=True, slots=True)
class QueueLag:
    """What of one queue is unread."""

    queue: QueueId
    rows: int
    bytes: int
    seconds: float


@final
@dataclass(frozen=True, slots=True)
class SourceLag:
    """What one source of a query says after a batch."""

    queues: tuple[QueueLag, ...]
    gap_rows: Mapping[str, int]
    """Messages that the batch passed over, by the kind of their gap."""


def lag_of(end: object, latest: object, now_ms: int) -> SourceLag | None:
    """From a source's progress, as text or as a document, as Spark has it; None when it is no source of ours."""
    try:
        read, there = (json.loads(one) if isinstance(one, str) else one for one in (end, latest))
        ours = StreamOffset.from_json(read)
        ends = flat(there["o"])
    except (ValueError, TypeError, KeyError, AttributeError, RocketMQSourceError):
        return None
    sizes, oldest = flat(there.get("sizes", {})), flat(there.get("oldest", {}))
    queues: list[QueueLag] = []
    for queue, at in sorted(ours.ends.items()):
        rows = max(0, ends.get(queue, at) - at)
        age_s = max(0.0, (now_ms - oldest[queue]) / 1000) if rows and queue in oldest else 0.0
        queues.append(QueueLag(queue, rows, rows * sizes.get(queue, 0), age_s))
    gap_rows: dict[str, int] = {}
    for gap in ours.gaps:
        gap_rows[str(gap.kind)] = gap_rows.get(str(gap.kind), 0) + gap.count
    return SourceLag(tuple(queues), gap_rows)


class LagListener(StreamingQueryListener):
    """Keeps the gauges. Spark calls it from one thread."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._rows = Gauge("rocketmq_source_lag_rows", "Unread messages of a queue.", LABELS, registry=registry)
        self._bytes = Gauge("rocketmq_source_lag_bytes", "Unread bytes of a queue, about.", LABELS, registry=registry)
        self._seconds = Gauge(
            "rocketmq_source_lag_seconds", "Age of the oldest unread message of a queue.", LABELS, registry=registry
        )
        self._gaps = Counter(
            "rocketmq_source_gap_rows", "Messages passed over because they were gone.", ("query", "kind"),
            registry=registry,
        )  # fmt: skip
        self._names: dict[str, str] = {}
        self._series: dict[str, set[tuple[str, ...]]] = {}
        self._counted: dict[str, int] = {}

    @classmethod
    def serve(cls, spark: SparkSession, *, port: int, address: str = "127.0.0.1") -> "LagListener":
        """One that hears this session's queries, and an endpoint for Prometheus to read it."""
        listener = cls()
        start_http_server(port, addr=address)
        spark.streams.addListener(listener)
        return listener

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Queries are known by their name, or by their id."""
        self._names[str(event.runId)] = event.name or str(event.id)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """After a batch, and now and then without one."""
        progress = event.progress
        run = str(progress.runId)
        self._names.setdefault(run, progress.name or str(progress.id))
        for number, source in enumerate(progress.sources):
            found = lag_of(source.endOffset, source.latestOffset, time.time_ns() // 1_000_000)
            if found is not None:
                self.tell(run, found, f"{run}/{number}", progress.batchId)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing was there to be read."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Its series end, too."""
        run = str(event.runId)
        for labels in self._series.pop(run, set()):
            for gauge in (self._rows, self._bytes, self._seconds):
                gauge.remove(*labels)
        self._names.pop(run, None)
        self._counted = {key: batch for key, batch in self._counted.items() if not key.startswith(f"{run}/")}

    def tell(self, run: str, found: SourceLag, source: str, batch: int) -> None:
        """Show it. A batch that is reported twice is counted once."""
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
            log.warning("messages passed over", extra={"query": name, "kind": kind, "rows": rows})


def tell_lag(progress: Mapping[str, Any]) -> list[QueueLag]:
    """The same of a query's `lastProgress`, for programs that want to print it."""
    found: list[QueueLag] = []
    for source in progress.get("sources", ()):
        lag = lag_of(source.get("endOffset"), source.get("latestOffset"), time.time_ns() // 1_000_000)
        found += lag.queues if lag is not None else ()
    return found
