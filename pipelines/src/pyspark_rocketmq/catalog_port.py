"""The port through which the driver's side queries brokers. `Catalog` implements it; tests have one without brokers.

Every method may block, and waits a while for a broker whose master is about to change. Errors it raises then are final.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from pyspark_rocketmq.model import Bounds, LogState, QueueId, Replica


class OffsetLookup(Protocol):
    """Offsets by time, and those of consumer groups."""

    def offsets_at(self, queues: Sequence[QueueId], timestamp_ms: int) -> dict[QueueId, int]:
        """Return for each queue its first message stored at that time or later, or its end if there is none."""
        ...

    def group_offsets(self, group: str, queues: Sequence[QueueId]) -> dict[QueueId, int | None]:
        """Return the committed offsets of a consumer group; None where it has none."""
        ...


class CatalogPort(OffsetLookup, Protocol):
    """The brokers, as the driver sees them."""

    def topics(self) -> list[str]:
        """Return the topics of applications: without RocketMQ's own, retries and dead letters."""
        ...

    def queues(self, topics: Sequence[str]) -> list[QueueId]:
        """Return all queues of these topics, sorted."""
        ...

    def bounds(self, queues: Sequence[QueueId]) -> dict[QueueId, Bounds]:
        """Return the readable range of each queue."""
        ...

    def commit_group(self, group: str, offsets: Mapping[QueueId, int]) -> None:
        """Commit offsets for a consumer group."""
        ...

    def logs(self, brokers: Collection[str]) -> dict[str, LogState]:
        """Return how far each broker's log can be read, and its epochs where they are known."""
        ...

    def physical(self, offsets: Mapping[QueueId, int]) -> dict[QueueId, tuple[int, int]]:
        """Return the physical offset and the size of the message at each offset."""
        ...

    def replicas(self, broker: str) -> tuple[Replica, ...]:
        """Return the replicas of a broker's log, in the order in which they are tried."""
        ...

    def close(self) -> None:
        """Close all connections of this object."""
        ...
