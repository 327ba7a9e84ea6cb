"""Look up when single messages were stored: the age of the oldest unread message.

This is for display only, and not part of a read. A broker that does not answer is skipped after one attempt, and an
unknown age is left out.
"""

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa

from pyspark_rocketmq.catalog_port import CatalogPort
from pyspark_rocketmq.errors import RocketMQSourceError
from pyspark_rocketmq.model import QueueId, QueueRange, Task
from pyspark_rocketmq.reading import read_task
from pyspark_rocketmq.settings import ReadSettings


def store_times_ms(offsets: Mapping[QueueId, int], catalog: CatalogPort, settings: ReadSettings) -> dict[QueueId, int]:
    """Return the store time of the message at each of these offsets.

    Messages of unavailable brokers are left out, and so are those whose stored time is outside of the years 1 to 9999.
    ``catalog`` must not repeat a request to an unavailable broker, either.
    """
    non_waiting = replace(settings, patience_ms=0, is_body_verified=False)
    found: dict[QueueId, int] = {}
    for broker in sorted({queue.broker for queue in offsets}):
        try:
            found |= _read_store_times(broker, offsets, catalog, non_waiting)
        except RocketMQSourceError:
            continue
    return found


def _read_store_times(
    broker: str, offsets: Mapping[QueueId, int], catalog: CatalogPort, settings: ReadSettings
) -> dict[QueueId, int]:
    wanted = sorted(queue for queue in offsets if queue.broker == broker)
    task = Task(
        broker=broker,
        replicas=catalog.replicas(broker),
        transport=settings.transport,
        ranges=tuple(QueueRange(queue, offsets[queue], offsets[queue] + 1) for queue in wanted),
        columns=("topic", "queue", "storeTime"),
    )
    found: dict[QueueId, int] = {}
    for batch in read_task(task, settings):
        times = batch.column("storeTime").cast(pa.int64()).to_pylist()
        topics, numbers = batch.column("topic").to_pylist(), batch.column("queue").to_pylist()
        for topic, number, time_us in zip(topics, numbers, times, strict=True):
            assert topic is not None and number is not None, "every row has a topic and a queue"
            if time_us is not None:
                found[QueueId(topic, broker, number)] = time_us // 1000
    return found
