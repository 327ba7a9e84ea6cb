"""A computed log: any row of any queue can be computed without a broker, so that tests can compare all of them.

Rows have the columns of `pyspark_rocketmq.schema`; those of several queues are mixed as in a log. Store times begin at
`first_us` with one row each `step_us`; `clock_back` sets the clock back for some rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from pyspark_rocketmq.model import QueueId, QueueRange
from pyspark_rocketmq.schema import COLUMNS, arrow_schema

NOON_US: Final = 1_795_348_800_000_000
"""The time 2026-11-22T12:00:00Z in microseconds since 1970."""

HOUR_US: Final = 3_600_000_000


@dataclass(frozen=True)
class ToyLog:
    """The queues of a log, with their ends, and their store times."""

    ends: Mapping[QueueId, int]
    first_us: int = NOON_US
    step_us: int = 1000
    clock_back: Mapping[int, int] = field(default_factory=dict)
    """By offset: how many microseconds the clock was set back for that row."""

    def row(self, queue: QueueId, offset: int) -> dict[str, Any]:
        """Return the row of one message."""
        store_us = self.first_us + offset * self.step_us - self.clock_back.get(offset, 0)
        body = body_of(queue, offset)
        return {
            "topic": queue.topic,
            "broker": queue.broker,
            "queue": queue.number,
            "offset": offset,
            "tags": f"tag-{offset % 3}",
            "keys": f"key-{offset}",
            "messageId": f"{queue}-{offset}",
            "bornTime": store_us - 5000,
            "storeTime": store_us,
            "bornHost": "10.0.0.1:5555",
            "storeHost": "10.0.0.2:10911",
            "flag": 0,
            "sysFlag": 0,
            "reconsumeTimes": 0,
            "physicalOffset": offset * 500 + queue.number,
            "size": 500,
            "bodySize": len(body),
            "properties": [("KEYS", f"key-{offset}"), ("TAGS", f"tag-{offset % 3}")],
            "body": body,
        }

    def batches(
        self, ranges: Sequence[QueueRange], columns: tuple[str, ...] = COLUMNS, batch_rows: int = 100
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of these ranges, one of each queue in turn, as producers send to queues in turn."""
        queues: dict[QueueId, list[int]] = {}
        for one in sorted(ranges):
            queues.setdefault(one.queue, []).extend(range(one.begin, one.end))
        rows: list[dict[str, Any]] = []
        for turn in range(max(map(len, queues.values()), default=0)):
            for queue, offsets in queues.items():
                if turn < len(offsets):
                    rows.append(self.row(queue, offsets[turn]))
                if len(rows) == batch_rows:
                    yield as_batch(rows, columns)
                    rows = []
        if rows:
            yield as_batch(rows, columns)


def body_of(queue: QueueId, offset: int) -> bytes:
    """Return the body of a message, unique for each message."""
    return f"{queue} says {offset}".encode() * 3


def as_batch(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> pa.RecordBatch:
    """Convert rows to an Arrow batch."""
    return pa.RecordBatch.from_pylist(rows, schema=arrow_schema()).select(list(columns))
