"""What a query selects, as its options say it: which queues, where it begins in them, and where it ends.

A stream asks again and again which queues exist. In offsets `-2` is the earliest message of a queue, `-1` one past its
latest. The offsets returned here are those that were asked for; the readers check whether they can still be read.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, final

from pyspark_rocketmq.catalog_port import CatalogPort
from pyspark_rocketmq.errors import InvalidOption
from pyspark_rocketmq.model import Bounds, QueueId

EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1


@final
@dataclass(frozen=True, slots=True)
class Subscription:
    """Which queues are read: topics by name, by pattern, or single queues. Exactly one of these is given."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    """A regular expression that matches a whole name; RocketMQ's own topics never do."""
    queues: tuple[QueueId, ...] = ()

    def __post_init__(self) -> None:
        given = [bool(self.topics), bool(self.pattern), bool(self.queues)]
        if sum(given) != 1:
            raise InvalidOption(
                "say what to read by one of the options subscribe (topics, with commas), subscribePattern (a regular"
                ' expression) and assign (JSON like {"orders": {"broker-a": [0, 1]}})'
            )
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise InvalidOption(f"option subscribePattern is no regular expression: {error}") from None

    def wants(self, queue: QueueId) -> bool:
        """Whether it is one of those that are read, if it exists."""
        if self.queues:
            return queue in self.queues
        if self.pattern:
            return re.fullmatch(self.pattern, queue.topic) is not None
        return queue.topic in self.topics

    def existing(self, catalog: CatalogPort) -> list[QueueId]:
        """Those that are there now, sorted. Raises InvalidOption for a topic or queue that is named and is not
        there."""
        if self.pattern:
            topics = [name for name in catalog.topics() if re.fullmatch(self.pattern, name)]
            return sorted(catalog.queues(topics)) if topics else []
        if self.topics:
            return sorted(catalog.queues(self.topics))
        there = catalog.queues(sorted({queue.topic for queue in self.queues}))
        missing = sorted(set(self.queues) - set(there))
        if missing:
            raise InvalidOption(f"option assign names {', '.join(map(str, missing))}: no broker has such a queue now")
        return sorted(self.queues)


class PlaceKind(StrEnum):
    """How a place is said."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSETS = "offsets"
    TIMES = "times"
    GROUP = "group"


class WithoutMatch(StrEnum):
    """What a moment means in a queue that has no message of then or later."""

    ERROR = "error"
    LATEST = "latest"


@final
@dataclass(frozen=True, slots=True)
class Place:
    """One place in every queue."""

    kind: PlaceKind
    option: str = ""
    """Which option said so; for errors."""
    offsets: Mapping[QueueId, int] = field(default_factory=dict)
    time_ms: int | None = None
    """One moment for all queues that `times_ms` does not name."""
    times_ms: Mapping[QueueId, int] = field(default_factory=dict)
    without_match: WithoutMatch = WithoutMatch.ERROR
    group: str = ""
    otherwise: PlaceKind = PlaceKind.EARLIEST
    """Where a group that has not begun in a queue begins: the earliest or the latest."""

    def offsets_in(self, bounds: Mapping[QueueId, Bounds], catalog: CatalogPort) -> dict[QueueId, int]:
        """This place in each of these queues. Raises InvalidOption."""
        queues = sorted(bounds)
        match self.kind:
            case PlaceKind.EARLIEST | PlaceKind.LATEST:
                return {queue: _edge(self.kind, bounds[queue]) for queue in queues}
            case PlaceKind.OFFSETS:
                return self._named(queues, bounds)
            case PlaceKind.TIMES:
                return self._at_times(queues, bounds, catalog)
            case PlaceKind.GROUP:
                known = catalog.group_offsets(self.group, queues)
                edges = {queue: _edge(self.otherwise, bounds[queue]) for queue in queues}
                return {queue: edges[queue] if (at := known[queue]) is None else at for queue in queues}

    def _named(self, queues: Sequence[QueueId], bounds: Mapping[QueueId, Bounds]) -> dict[QueueId, int]:
        self._demand_names(queues, self.offsets)
        edges = {EARLIEST_OFFSET: PlaceKind.EARLIEST, LATEST_OFFSET: PlaceKind.LATEST}
        offsets: dict[QueueId, int] = {}
        for queue in queues:
            offset = self.offsets[queue]
            offsets[queue] = _edge(edges[offset], bounds[queue]) if offset in edges else offset
            if offsets[queue] > bounds[queue].end:
                raise InvalidOption(f"option {self.option}: {queue} ends at {bounds[queue].end}, before {offset}")
        return offsets

    def _at_times(
        self, queues: Sequence[QueueId], bounds: Mapping[QueueId, Bounds], catalog: CatalogPort
    ) -> dict[QueueId, int]:
        if self.time_ms is None:
            self._demand_names(queues, self.times_ms)
        by_time: dict[int, list[QueueId]] = {}
        for queue in queues:
            time_ms = self.times_ms.get(queue, self.time_ms)
            assert time_ms is not None, "one of the two is given, and all queues are named"
            by_time.setdefault(time_ms, []).append(queue)
        offsets: dict[QueueId, int] = {}
        for time_ms, those in sorted(by_time.items()):
            offsets |= catalog.offsets_at(those, time_ms)
        late = [queue for queue in queues if offsets[queue] >= bounds[queue].end]
        if late and self.without_match is WithoutMatch.ERROR:
            raise InvalidOption(
                f"option {self.option}: {_some(late)} has no message of that time or later;"
                " startingOffsetsByTimestampStrategy=latest begins there with what comes"
            )
        return offsets

    def _demand_names(self, queues: Sequence[QueueId], named: Mapping[QueueId, int]) -> None:
        unknown, missing = sorted(set(named) - set(queues)), sorted(set(queues) - set(named))
        if unknown:
            raise InvalidOption(f"option {self.option} names {_some(unknown)}, which is not among the queues read")
        if missing:
            raise InvalidOption(
                f"option {self.option} says nothing of {_some(missing)}; all queues that are read have to be named"
                f" ({EARLIEST_OFFSET}: earliest, {LATEST_OFFSET}: latest)"
            )


def _edge(kind: PlaceKind, bounds: Bounds) -> int:
    return bounds.begin if kind is PlaceKind.EARLIEST else bounds.end


def _some(queues: Sequence[QueueId]) -> str:
    more = f" and {len(queues) - 3} more" if len(queues) > 3 else ""
    return ", ".join(map(str, queues[:3])) + more
