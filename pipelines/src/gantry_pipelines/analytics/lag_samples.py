"""How far consumer groups are in each queue, asked of the brokers now: samples, of which a history is made."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from pyspark_rocketmq.ages import stored_ms
from pyspark_rocketmq.catalog import Catalog
from pyspark_rocketmq.model import QueueId
from pyspark_rocketmq.settings import ReadSettings

SAMPLES_DDL: Final = (
    "sampledAt timestamp, `group` string, topic string, broker string, queue int, committed bigint, begin bigint, "
    "end bigint, lagSeconds double"
)


def lag_samples(
    catalog: Catalog, settings: ReadSettings, groups: Sequence[str], queues: Sequence[QueueId], now_ms: int
) -> list[tuple[Any, ...]]:
    """A row for each group and queue that the group has begun, or that it is behind in."""
    bounds = catalog.bounds(queues) if groups and queues else {}
    moment = datetime.fromtimestamp(now_ms / 1000, UTC)
    rows: list[tuple[Any, ...]] = []
    for group in groups:
        committed = catalog.group_offsets(group, queues)
        begun = {queue for queue, offset in committed.items() if offset is not None}
        topics = {queue.topic for queue in begun}
        wanted = {
            queue: max(committed[queue] or 0, bounds[queue].begin)
            for queue in queues if queue.topic in topics
        }  # fmt: skip
        behind = {queue: offset for queue, offset in wanted.items() if offset < bounds[queue].end}
        ages = stored_ms(behind, catalog, settings) if behind else {}
        for queue in sorted(wanted):
            age = ages.get(queue)
            seconds = 0.0 if queue not in behind else (None if age is None else max(now_ms - age, 0) / 1000)
            rows.append(
                (moment, group, queue.topic, queue.broker, queue.number, committed[queue], bounds[queue].begin,
                 bounds[queue].end, seconds)
            )  # fmt: skip
    return rows
