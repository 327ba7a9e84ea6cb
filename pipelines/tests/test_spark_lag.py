"""The lag of queries, as Prometheus reads it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry

from pyspark_rocketmq.gaps import Gap, GapKind
from pyspark_rocketmq.lag import LagListener, QueueLag, source_lag
from pyspark_rocketmq.model import QueueId
from pyspark_rocketmq.offsets import StreamOffset, nest

A, B = QueueId("orders", "broker-a", 0), QueueId("orders", "broker-a", 1)
END = StreamOffset({A: 40, B: 10}, gaps=(Gap(A, 3, 7, GapKind.EXPIRED), Gap(B, 0, 2, GapKind.EXPIRED))).to_json()
LATEST = {**StreamOffset({A: 100, B: 10}).to_json(), "sizes": nest({A: 300}), "oldest": nest({A: 10_000, B: 1})}


def progress(run: str = "run-1", batch: int = 4, start: object = None) -> Any:
    source = SimpleNamespace(startOffset=json.dumps(start), endOffset=json.dumps(END), latestOffset=json.dumps(LATEST))
    other = SimpleNamespace(startOffset="17", endOffset="17", latestOffset=None)
    one = SimpleNamespace(runId=run, id="id-1", name="billing", batchId=batch, sources=[other, source])
    return SimpleNamespace(progress=one)


def test_lag_is_measured_from_the_batch_to_the_end() -> None:
    """In messages, in estimated bytes, and as the age of the oldest unread message; 0 where nothing is unread."""
    lag = source_lag(None, END, json.dumps(LATEST), now_ms=15_000)

    assert lag is not None and lag.gap_rows == {"expired": 6}
    assert lag.queues == (QueueLag(A, 60, 18_000, 5.0), QueueLag(B, 0, 0, 0.0))


def test_gaps_of_an_earlier_batch_are_not_counted_again() -> None:
    """A batch without new messages of this source ends where it starts, at the end of an earlier batch with gaps."""
    registry = CollectorRegistry()
    listener = LagListener(registry)
    counted = {"query": "billing", "kind": "expired"}

    listener.onQueryProgress(progress(batch=4, start=StreamOffset({A: 3, B: 0}).to_json()))
    listener.onQueryProgress(progress(batch=5, start=END))

    assert registry.get_sample_value("rocketmq_source_gap_rows_total", counted) == 6


def test_other_sources_are_ignored() -> None:
    """A query may join RocketMQ with Kafka, files, or a rate source; their offsets are ignored."""
    assert source_lag("16", "17", "18", now_ms=0) is None
    assert source_lag(None, None, None, now_ms=0) is None
    assert source_lag({"logOffset": 2}, {"logOffset": 3}, {"logOffset": 3}, now_ms=0) is None


def test_gauges_are_removed_with_their_query() -> None:
    """A batch that is reported twice is counted once, and a query that ends takes its series with it."""
    registry = CollectorRegistry()
    listener = LagListener(registry)
    labels = {"query": "billing", "topic": "orders", "broker": "broker-a", "queue": "0"}

    for _ in range(2):
        listener.onQueryProgress(progress())
    assert registry.get_sample_value("rocketmq_source_lag_rows", labels) == 60
    assert registry.get_sample_value("rocketmq_source_lag_bytes", labels) == 18_000
    counted = {"query": "billing", "kind": "expired"}
    assert registry.get_sample_value("rocketmq_source_gap_rows_total", counted) == 6
    listener.onQueryProgress(progress(batch=5))
    assert registry.get_sample_value("rocketmq_source_gap_rows_total", counted) == 12

    ended: Any = SimpleNamespace(runId="run-1")
    listener.onQueryTerminated(ended)
    assert registry.get_sample_value("rocketmq_source_lag_rows", labels) is None
