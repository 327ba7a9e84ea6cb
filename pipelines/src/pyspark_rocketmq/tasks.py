"""From ranges of queues to tasks: the few questions about bytes that planning needs answered."""

from collections.abc import Sequence

from pyspark_rocketmq.catalog_port import CatalogPort
from pyspark_rocketmq.model import QueueRange, Task
from pyspark_rocketmq.planning import Cut, Extent, plan


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
