"""The metrics that Apache's RocketMQ exporter has too, by its names: one broker's part of them.

Three metrics of the inventory behind them are added: its age, and the topics and groups without metrics.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from gantry_admin.inventory import Inventory
from gantry_admin.inventory_cache import InventorySnapshot
from gantry_admin.sidecar import Sidecar
from gantry_status import Status
from gantry_wire.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, is_retry_or_dead_letter, retry_topic

TOPICS_MAX: Final = 200
"""How many topics have metrics of their own."""
ROWS_MAX: Final = 1_000
"""Samples of one metric that has groups as a label, at most."""
BROKER: Final = ["cluster", "broker"]
"""The labels that all metrics of this module have."""
_RATES: Final = (("putTps", "put"), ("getFoundTps", "getfound"), ("getMissTps", "getmiss"), ("getTotalTps", "gettotal"))
"""The rates in the runtime table, and their names in metrics."""
_WINDOWS: Final = ("10", "60", "600")
"""The seconds over which the broker averages each rate."""

Labels = list[str]


def rocketmq_metrics(sidecar: Sidecar, snapshot: InventorySnapshot | None) -> Iterator[Metric]:
    """Yield all metrics of this module; those of topics and groups, and the rates, are from the last inventory."""
    state, reading = sidecar.broker.link.role_report.status, sidecar.broker.reading
    assert reading is not None, "there is a page"
    broker_labels = [state.cluster if state is not None else "", reading.origin.broker_name]
    dispatched = None if state is None else state.dispatched
    yield from _runtime(reading.status, broker_labels, dispatched)
    yield _gauge("gantry_inventory_age_seconds", "Age of the inventory of topics and groups.", [], [],
               None if snapshot is None else snapshot.age_s)  # fmt: skip
    if snapshot is None:
        return
    yield from _rates(snapshot.inventory, broker_labels)
    yield from _topics(snapshot.inventory, broker_labels)
    yield from _groups(snapshot.inventory, broker_labels)


def _gauge(name: str, text: str, names: Labels, values: Labels, value: float | None) -> Metric:
    family = GaugeMetricFamily(name, text, labels=names)
    if value is not None:
        family.add_metric(values, value)
    return family


def _runtime(status: Status, broker_labels: Labels, dispatched: int | None) -> Iterator[Metric]:
    """Yield the metrics that the exporter reads from a broker's runtime table."""
    wrote, used, total = status.wrote, status.disk_used_bytes, status.disk_total_bytes
    behind = None if dispatched is None or wrote is None else max(wrote - dispatched, 0)
    unflushed = None if status.flushed is None or wrote is None else wrote - status.flushed
    for name, text, value in (
        ("commitlog_maxoffset", "End of the log.", wrote),
        ("commitlog_minoffset", "Begin of the log.", status.min_physical),
        ("dispatch_behind_bytes", "Bytes of the log not dispatched to queues yet.", behind),
        ("remain_howmanydata_toflush", "Bytes that are not flushed yet.", unflushed),
        ("remain_transientstore_buffer_numbs", "Write buffers that are free.", status.pool_buffers_free),
        ("commitlog_disk_ratio", "How full the disk is, from 0 to 1.", used / total if used and total else None),
        ("commitlogdir_capacity_free", "Bytes free on the disk.", total - used if used and total else None),
    ):
        yield _gauge(f"rocketmq_brokeruntime_{name}", text, BROKER, broker_labels, value)


def _rates(inventory: Inventory, broker_labels: Labels) -> Iterator[Metric]:
    """Yield the message rates as the broker counts them; no samples if the inventory is from disk."""
    tables = {key: inventory.runtime.get(key, "").split() for key, _ in _RATES}
    for key, name in _RATES:
        for number, window in enumerate(_WINDOWS):
            text = f"{key} over {window} seconds, by the broker's own count."
            yield _gauge(
                f"rocketmq_brokeruntime_{name}_tps{window}", text, BROKER, broker_labels, _number(tables[key], number)
            )
    yield _gauge(
        "rocketmq_broker_tps", "Messages stored a second.", BROKER, broker_labels, _number(tables["putTps"], 0)
    )
    yield _gauge("rocketmq_broker_qps", "Pulls that found something, a second.", BROKER, broker_labels,
               _number(tables["getFoundTps"], 0))  # fmt: skip


def _number(words: list[str], index: int) -> float | None:
    try:
        return float(words[index])
    except (IndexError, ValueError):
        return None


def _topics(inventory: Inventory, broker_labels: Labels) -> Iterator[Metric]:
    names = ["cluster", "broker", "topic"]
    ends = GaugeMetricFamily("rocketmq_producer_offset", "Messages ever sent to a topic.", labels=names)
    retries = GaugeMetricFamily(
        "rocketmq_topic_retry_offset", "Messages ever sent to the retry topic of a group.", labels=names
    )
    dead = GaugeMetricFamily("rocketmq_topic_dlq_offset", "Dead letters of a group.", labels=[*BROKER, "group"])
    shown = list(inventory.topics)[:TOPICS_MAX]
    for topic in shown:
        total = sum(queue.end for queue in inventory.queues[topic].values())
        if topic.startswith(DEAD_LETTER_PREFIX):
            dead.add_metric([*broker_labels, topic.removeprefix(DEAD_LETTER_PREFIX)], total)
        elif topic.startswith(RETRY_PREFIX):
            retries.add_metric([*broker_labels, topic], total)
        else:
            ends.add_metric([*broker_labels, topic], total)
    yield ends
    yield retries
    yield dead
    left_out = len(inventory.topics) - len(shown) + inventory.topics_left_out
    yield _gauge("gantry_topics_left_out", "Topics that have no metrics, because there are too many.", [], [], left_out)


def _groups(inventory: Inventory, broker_labels: Labels) -> Iterator[Metric]:
    consumed = GaugeMetricFamily("rocketmq_consumer_offset", "Messages that a group has consumed of a topic.",
                                 labels=[*BROKER, "topic", "group"])  # fmt: skip
    lags = GaugeMetricFamily("rocketmq_group_diff", "Lag of a group in messages.", labels=["group", "topic"])
    retries = GaugeMetricFamily(
        "rocketmq_group_retrydiff", "Messages that wait for a retry.", labels=["group", "topic"]
    )
    rows = left_out = 0
    for group in inventory.groups:
        for topic, offset, lag in _by_topic(inventory, group):
            if rows >= ROWS_MAX:
                left_out += 1
                continue
            rows += 1
            consumed.add_metric([*broker_labels, topic, group], offset)
            if topic == retry_topic(group):
                retries.add_metric([group, topic], lag)
            elif not is_retry_or_dead_letter(topic):
                lags.add_metric([group, topic], lag)
    yield consumed
    yield lags
    yield retries
    yield _gauge("gantry_groups_left_out", "Pairs of group and topic that have no metrics.", [], [], left_out)


def _by_topic(inventory: Inventory, group: str) -> Iterator[tuple[str, int, int]]:
    """Yield (topic, consumed, lag) of one group, summed over queues."""
    found: dict[str, tuple[int, int]] = {}
    for one in inventory.lags(group):
        consumed, lag = found.get(one.topic, (0, 0))
        found[one.topic] = (consumed + one.consumed, lag + one.lag)
    for topic, (consumed, lag) in found.items():
        yield topic, consumed, lag
