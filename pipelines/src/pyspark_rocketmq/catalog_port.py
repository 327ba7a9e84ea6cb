"""What the driver's side of the source asks brokers for. `Catalog` answers it; tests answer it without brokers.

Every method may block, and waits a while for a broker that is about to change its master; what it raises then is final.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from pyspark_rocketmq.model import Bounds, LogState, QueueId, Replica


class CatalogPort(Protocol):
    """The brokers, as the driver sees them."""

    def topics(self) -> list[str]:
        """All but RocketMQ's own."""
        ...

    def queues(self, topics: Sequence[str]) -> list[QueueId]:
        """All queues of these topics, sorted."""
        ...

    def bounds(self, queues: Sequence[QueueId]) -> dict[QueueId, Bounds]:
        """What of each can be read now."""
        ...

    def offsets_at(self, queues: Sequence[QueueId], timestamp_ms: int) -> dict[QueueId, int]:
        """The first message of each that was stored then or later; its end, when there is none."""
        ...

    def group_offsets(self, group: str, queues: Sequence[QueueId]) -> dict[QueueId, int | None]:
        """How far a consumer group has come."""
        ...

    def commit_group(self, group: str, offsets: Mapping[QueueId, int]) -> None:
        """Say how far it has come."""
        ...

    def logs(self, brokers: Collection[str]) -> dict[str, LogState]:
        """How far each broker's log goes, and its epochs where they can be known."""
        ...

    def physical(self, offsets: Mapping[QueueId, int]) -> dict[QueueId, tuple[int, int]]:
        """Where in the log the message at each offset lies, and its size."""
        ...

    def replicas(self, broker: str) -> tuple[Replica, ...]:
        """Who has its log, in the order in which they are to be asked."""
        ...

    def close(self) -> None:
        """End all connections."""
        ...
