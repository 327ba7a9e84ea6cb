"""The metrics of the lag of consumer groups, by queue, and of groups that are behind.

Only the master's sidecar has them, so that sums and alerts count each shard once: a slave knows the offsets of groups
as its master last sent them.

The invariant is a bounded cardinality: of all pairs of group and queue, the ``QUEUES_MAX`` with the longest waits have
samples, and the number of the others is a metric itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from gantry_admin.consumer_lag import is_behind, lag_by_topic
from gantry_admin.inventory import Inventory
from gantry_admin.lag_monitor import LagMonitor

QUEUES_MAX: Final = 1_000
"""The most samples of each metric by queue."""
GROUP_TOPICS_MAX: Final = 1_000
"""The most samples of the metric by group and topic."""


def lag_metrics(inventory: Inventory, monitor: LagMonitor) -> Iterator[Metric]:
    """Yield the lag by queue in messages and in seconds, and which groups are behind."""
    queues = {group: monitor.times.queues(inventory, group) for group in inventory.groups}
    rows = [(group, one) for group, of_group in queues.items() for one in of_group]
    rows.sort(key=lambda row: (row[1].lag_s or 0.0, row[1].lag), reverse=True)
    names = ["group", "topic", "queue"]
    seconds = GaugeMetricFamily(
        "gantry_consumer_lag_seconds", "Age of the oldest message that a group has not consumed.", labels=names
    )
    messages = GaugeMetricFamily(
        "gantry_consumer_lag_messages", "Messages that a group has not consumed.", labels=names
    )
    for group, one in rows[:QUEUES_MAX]:
        labels = [group, one.topic, str(one.queue_id)]
        messages.add_metric(labels, one.lag)
        if one.lag_s is not None:
            seconds.add_metric(labels, one.lag_s)
    yield seconds
    yield messages
    left_out = GaugeMetricFamily(
        "gantry_consumer_lag_queues_left_out", "Pairs of group and queue without metrics of their lag."
    )
    left_out.add_metric([], max(len(rows) - QUEUES_MAX, 0))
    yield left_out
    behind = GaugeMetricFamily(
        "gantry_consumer_group_behind",
        "1 if the oldest message of a group in a topic waits for more than five minutes, and its wait grows.",
        labels=["group", "topic"],
    )
    pairs = [
        (group, topic, is_behind(one.wait_s, monitor.history.trend(group, topic)))
        for group, of_group in queues.items()
        for topic, one in lag_by_topic(of_group).items()
    ]
    pairs.sort(key=lambda pair: not pair[2])
    for group, topic, value in pairs[:GROUP_TOPICS_MAX]:
        behind.add_metric([group, topic], value)
    yield behind
