"""The selection of a query: its queues, and the positions at which the read begins and ends in each of them.

A stream resolves its queues again and again. In offsets `-2` is the earliest message of a queue, `-1` one past its
latest. The offsets returned here are the requested ones; the readers check whether they can still be read.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, final

from pyspark_rocketmq.catalog_port import CatalogPort, OffsetLookup
from pyspark_rocketmq.errors import InvalidOption
from pyspark_rocketmq.model import Bounds, QueueId

EARLIEST_OFFSET: Final = -2
"""Stands for the earliest message of a queue."""

LATEST_OFFSET: Final = -1
"""Stands for the offset after the latest message of a queue."""


@final
@dataclass(frozen=True, slots=True)
class Subscription:
    """The queues that are read: topics by name, by pattern, or single queues. Exactly one of these is given."""

    topics: tuple[str, ...] = ()
    """The names of the topics, all of whose queues are read."""
    pattern: str = ""
    """A regular expression that matches a whole name; it never matches RocketMQ's own topics."""
    queues: tuple[QueueId, ...] = ()
    """Single queues; no other queue of their topics is read."""

    def __post_init__(self) -> None:
        given = [bool(self.topics), bool(self.pattern), bool(self.queues)]
        if sum(given) != 1:
            raise InvalidOption(
                "one of the options subscribe (topics, separated by commas), subscribePattern (a regular"
                ' expression) and assign (JSON like {"orders": {"broker-a": [0, 1]}}) must be given'
            )
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise InvalidOption(f"option subscribePattern is not a regular expression: {error}") from None

    def matches(self, queue: QueueId) -> bool:
        """Return whether a queue is to be read, if it exists."""
        if self.queues:
            return queue in self.queues
        if self.pattern:
            return re.fullmatch(self.pattern, queue.topic) is not None
        return queue.topic in self.topics

    def covers(self, queues: Collection[QueueId]) -> bool:
        """Return whether these queues include every queue, or one of every topic, that is given by name."""
        if self.queues:
            return set(self.queues) <= set(queues)
        return set(self.topics) <= {queue.topic for queue in queues}

    def resolve_queues(self, catalog: CatalogPort) -> list[QueueId]:
        """Return the existing queues, sorted. Raises InvalidOption if a named topic or queue is not found."""
        queues, not_found = self.find_queues(catalog)
        if not_found is not None:
            raise not_found
        return queues

    def find_queues(self, catalog: CatalogPort) -> tuple[list[QueueId], InvalidOption | None]:
        """Return the existing queues, sorted, and an error if a named topic or queue is not found.

        Each topic is looked up alone, so that a missing one does not hide the queues of the others.
        """
        if self.pattern:
            topics = [name for name in catalog.topics() if re.fullmatch(self.pattern, name)]
        else:
            topics = sorted({*self.topics, *(queue.topic for queue in self.queues)})
        found: set[QueueId] = set()
        not_found: InvalidOption | None = None
        for topic in topics:
            try:
                found.update(catalog.queues((topic,)))
            except InvalidOption as error:
                not_found = not_found or error
        if self.queues:
            missing = sorted(set(self.queues) - found)
            found.intersection_update(self.queues)
            if missing and not_found is None:
                names = ", ".join(map(str, missing))
                not_found = InvalidOption(f"option assign names {names}: no broker has such a queue")
        return sorted(found), not_found


class PositionKind(StrEnum):
    """How a position is given."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSETS = "offsets"
    TIMES = "times"
    GROUP = "group"


class UnmatchedTime(StrEnum):
    """The offset for a timestamp in a queue that has no message of that time or later."""

    ERROR = "error"
    LATEST = "latest"


@final
@dataclass(frozen=True, slots=True)
class QueuePosition:
    """A position in every queue, as an option gives it."""

    kind: PositionKind
    option: str = ""
    """The option that gave it; for errors."""
    offsets: Mapping[QueueId, int] = field(default_factory=dict)
    """The requested offset of each queue, for the kind OFFSETS."""
    time_ms: int | None = None
    """One timestamp for all queues that `times_ms` does not name."""
    times_ms: Mapping[QueueId, int] = field(default_factory=dict)
    """The timestamp of single queues, for the kind TIMES."""
    unmatched_time: UnmatchedTime = UnmatchedTime.ERROR
    """What applies to queues without a message of the timestamp or later."""
    group: str = ""
    """The consumer group, for the kind GROUP."""
    fallback: PositionKind = PositionKind.EARLIEST
    """The position in queues in which the group has no committed offset: the earliest or the latest."""

    def resolve(self, bounds: Mapping[QueueId, Bounds], catalog: OffsetLookup) -> dict[QueueId, int]:
        """Return the offset of this position in each of these queues. Raises InvalidOption."""
        queues = sorted(bounds)
        match self.kind:
            case PositionKind.EARLIEST | PositionKind.LATEST:
                return {queue: _edge(self.kind, bounds[queue]) for queue in queues}
            case PositionKind.OFFSETS:
                return self._resolve_named(queues, bounds)
            case PositionKind.TIMES:
                return self._resolve_times(queues, bounds, catalog)
            case PositionKind.GROUP:
                known = catalog.group_offsets(self.group, queues)
                edges = {queue: _edge(self.fallback, bounds[queue]) for queue in queues}
                return {queue: edges[queue] if (at := known[queue]) is None else at for queue in queues}

    def _resolve_named(self, queues: Sequence[QueueId], bounds: Mapping[QueueId, Bounds]) -> dict[QueueId, int]:
        self._require_named_queues(queues, self.offsets)
        edges = {EARLIEST_OFFSET: PositionKind.EARLIEST, LATEST_OFFSET: PositionKind.LATEST}
        offsets: dict[QueueId, int] = {}
        for queue in queues:
            offset = self.offsets[queue]
            offsets[queue] = _edge(edges[offset], bounds[queue]) if offset in edges else offset
            if offsets[queue] > bounds[queue].end:
                raise InvalidOption(
                    f"option {self.option}: offset {offset} is beyond {queue}, which ends at {bounds[queue].end}"
                )
        return offsets

    def _resolve_times(
        self, queues: Sequence[QueueId], bounds: Mapping[QueueId, Bounds], catalog: OffsetLookup
    ) -> dict[QueueId, int]:
        if self.time_ms is None:
            self._require_named_queues(queues, self.times_ms)
        by_time: dict[int, list[QueueId]] = {}
        for queue in queues:
            time_ms = self.times_ms.get(queue, self.time_ms)
            assert time_ms is not None, "one of the two is given, and all queues are named"
            by_time.setdefault(time_ms, []).append(queue)
        offsets: dict[QueueId, int] = {}
        for time_ms, those in sorted(by_time.items()):
            offsets |= catalog.offsets_at(those, time_ms)
        late = [queue for queue in queues if offsets[queue] >= bounds[queue].end]
        if late and self.unmatched_time is UnmatchedTime.ERROR:
            raise InvalidOption(
                f"option {self.option}: {_format_queues(late)} has no message of that time or later;"
                " startingOffsetsByTimestampStrategy=latest begins there with new messages"
            )
        return offsets

    def _require_named_queues(self, queues: Sequence[QueueId], named: Mapping[QueueId, int]) -> None:
        unknown, missing = sorted(set(named) - set(queues)), sorted(set(queues) - set(named))
        if unknown:
            raise InvalidOption(
                f"option {self.option} names {_format_queues(unknown)}, which is not among the queues read"
            )
        if missing:
            edges = f" ({EARLIEST_OFFSET}: earliest, {LATEST_OFFSET}: latest)"
            raise InvalidOption(
                f"option {self.option} does not name {_format_queues(missing)}; all queues that are read must be named"
                + (edges if self.kind is PositionKind.OFFSETS else "")
            )


def _edge(kind: PositionKind, bounds: Bounds) -> int:
    return bounds.begin if kind is PositionKind.EARLIEST else bounds.end


def _format_queues(queues: Sequence[QueueId]) -> str:
    more = f" and {len(queues) - 3} more" if len(queues) > 3 else ""
    return ", ".join(map(str, queues[:3])) + more
