"""What a cluster says of its topics and groups, and how the queues of two clusters belong together.

Brokers correspond by name; where names differ but each side has as many, in order of their names. Queues correspond
when each broker of a pair has the same numbers of a topic. Where they do not, only the whole topic can be compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, final

from pyspark_rocketmq.catalog import Catalog
from pyspark_rocketmq.model import Bounds, QueueId

WHOLE: Final = "*"
"""As a broker: the topic as a whole."""


@final
@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """One cluster, at one moment."""

    bounds: Mapping[QueueId, Bounds]
    groups: Mapping[str, Mapping[QueueId, int]] = field(default_factory=dict)
    """Committed offsets; queues that a group has not begun are not there."""

    @property
    def topics(self) -> dict[str, dict[str, list[int]]]:
        """Topic, broker, numbers of its queues."""
        found: dict[str, dict[str, list[int]]] = {}
        for queue in sorted(self.bounds):
            found.setdefault(queue.topic, {}).setdefault(queue.broker, []).append(queue.number)
        return found

    def messages(self, topic: str) -> int:
        """How many there are."""
        return sum(one.end - one.begin for queue, one in self.bounds.items() if queue.topic == topic)


class Pair(NamedTuple):
    """A queue of theirs, the one of ours that it became, and what both have: `[begin, end)`."""

    theirs: QueueId
    ours: QueueId
    begin: int
    end: int


@final
@dataclass(frozen=True, slots=True)
class Match:
    """How one topic is compared: queue by queue, or as a whole (`pairs` is empty)."""

    topic: str
    pairs: tuple[Pair, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether queues do not correspond."""
        return not self.pairs


def ask(catalog: Catalog, topics: Iterable[str], groups: Iterable[str]) -> ClusterFacts:
    """Bounds of all queues of these topics, and offsets of these groups."""
    queues = catalog.queues(sorted(topics))
    found: dict[str, dict[QueueId, int]] = {}
    for group in sorted(groups):
        offsets = catalog.group_offsets(group, queues)
        found[group] = {queue: offset for queue, offset in offsets.items() if offset is not None}
    return ClusterFacts(catalog.bounds(queues), found)


def match(topic: str, theirs: ClusterFacts, ours: ClusterFacts) -> Match:
    """How a topic that both have is compared."""
    left, right = theirs.topics.get(topic, {}), ours.topics.get(topic, {})
    names = _brokers(left, right)
    if names is None or any(left[name] != right[other] for name, other in names.items()):
        return Match(topic)
    pairs: list[Pair] = []
    for name, other in names.items():
        for number in left[name]:
            one, two = QueueId(topic, name, number), QueueId(topic, other, number)
            begin = max(theirs.bounds[one].begin, ours.bounds[two].begin)
            end = min(theirs.bounds[one].end, ours.bounds[two].end)
            pairs.append(Pair(one, two, begin, max(begin, end)))
    return Match(topic, tuple(pairs))


def _brokers(left: Mapping[str, object], right: Mapping[str, object]) -> dict[str, str] | None:
    """Theirs to ours; None where one side has more."""
    if left.keys() == right.keys():
        return {name: name for name in left}
    if len(left) == len(right) and not left.keys() & right.keys():
        return dict(zip(sorted(left), sorted(right), strict=True))
    return None
