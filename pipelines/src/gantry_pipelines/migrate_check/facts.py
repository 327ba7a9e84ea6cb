"""Topics and groups of a cluster, and the mapping of queues between two clusters.

The brokers of a topic are paired by name or, if no name is in both clusters and both have the same number of brokers,
in order of their names. Queues are paired if both brokers of each pair have the same queue numbers of a topic.
Otherwise only the whole topic can be compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, final

from pyspark_rocketmq.catalog import Catalog
from pyspark_rocketmq.model import Bounds, QueueId

WHOLE_TOPIC: Final = "*"
"""Broker name that stands for the topic as a whole."""


@final
@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """The queues and group offsets of one cluster at one moment."""

    bounds: Mapping[QueueId, Bounds]
    """The readable range of each queue."""

    groups: Mapping[str, Mapping[QueueId, int]] = field(default_factory=dict)
    """Committed offsets by group; without the queues for which a group has none."""

    @property
    def topics(self) -> dict[str, dict[str, list[int]]]:
        """Queue numbers by topic and broker."""
        found: dict[str, dict[str, list[int]]] = {}
        for queue in sorted(self.bounds):
            found.setdefault(queue.topic, {}).setdefault(queue.broker, []).append(queue.number)
        return found

    def messages(self, topic: str) -> int:
        """Return the number of messages of a topic."""
        return sum(one.end - one.begin for queue, one in self.bounds.items() if queue.topic == topic)


class QueuePair(NamedTuple):
    """A queue of the source, its counterpart in the target, and the range that both have: `[begin, end)`."""

    source: QueueId
    target: QueueId
    begin: int
    end: int


@final
@dataclass(frozen=True, slots=True)
class TopicMatch:
    """How one topic is compared: queue by queue, or as a whole (`pairs` is empty)."""

    topic: str
    pairs: tuple[QueuePair, ...] = ()
    """The queues that correspond; empty if the topic is compared as a whole."""

    @property
    def is_topic_wide(self) -> bool:
        """Whether the topic is compared as a whole, because its queues cannot be paired."""
        return not self.pairs


def read_cluster_facts(catalog: Catalog, topics: Iterable[str], groups: Iterable[str]) -> ClusterFacts:
    """Read the bounds of all queues of these topics, and the offsets of these groups."""
    queues = catalog.queues(sorted(topics))
    found: dict[str, dict[QueueId, int]] = {}
    for group in sorted(groups):
        offsets = catalog.group_offsets(group, queues)
        found[group] = {queue: offset for queue, offset in offsets.items() if offset is not None}
    return ClusterFacts(catalog.bounds(queues), found)


def match_queues(topic: str, source: ClusterFacts, target: ClusterFacts) -> TopicMatch:
    """Pair the queues of a topic that both clusters have."""
    left, right = source.topics.get(topic, {}), target.topics.get(topic, {})
    names = _pair_brokers(left, right)
    if names is None or any(left[name] != right[other] for name, other in names.items()):
        return TopicMatch(topic)
    pairs: list[QueuePair] = []
    for name, other in names.items():
        for number in left[name]:
            one, two = QueueId(topic, name, number), QueueId(topic, other, number)
            begin = max(source.bounds[one].begin, target.bounds[two].begin)
            end = min(source.bounds[one].end, target.bounds[two].end)
            pairs.append(QueuePair(one, two, begin, max(begin, end)))
    return TopicMatch(topic, tuple(pairs))


def _pair_brokers(left: Mapping[str, object], right: Mapping[str, object]) -> dict[str, str] | None:
    """Return names of target brokers by names of source brokers; None if they cannot be paired."""
    if left.keys() == right.keys():
        return {name: name for name in left}
    if len(left) == len(right) and not left.keys() & right.keys():
        return dict(zip(sorted(left), sorted(right), strict=True))
    return None
