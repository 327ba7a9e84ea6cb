"""Brokers in memory for the driver's side of the source: logs, queues, epochs, deletions, forks.

A broker's log is a list of records of any queues; a fork truncates it, and another epoch continues. A test changes
them with `add_queue`, `append`, `expire`, `begin_epoch` and `fork`; a broker's `hidden` makes a replica lag.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, final

from pyspark_rocketmq.errors import InvalidOption
from pyspark_rocketmq.model import Bounds, EpochStart, LogState, QueueId, Replica


@final
@dataclass(frozen=True, slots=True)
class FakeRecord:
    """One message without its content."""

    queue: QueueId
    offset: int
    physical: int
    size: int
    stored_ms: int
    epoch: int


@final
@dataclass
class FakeBroker:
    """One log and its queues."""

    name: str
    has_epochs: bool = True
    records: list[FakeRecord] = field(default_factory=list)
    queues: dict[QueueId, list[FakeRecord]] = field(default_factory=dict)
    begins: dict[QueueId, int] = field(default_factory=dict)
    """The first offset of each queue that has not expired; 0 for a queue that is not in it."""

    epochs: list[EpochStart] = field(default_factory=lambda: [EpochStart(1, 0)])
    hidden: dict[QueueId, int] = field(default_factory=dict)
    """The end of a queue as a replica shows it that is behind."""

    @property
    def end(self) -> int:
        return self.records[-1].physical + self.records[-1].size if self.records else 0


@final
class FakeCatalog:
    """A `CatalogPort` on brokers in memory."""

    def __init__(self) -> None:
        self.brokers: Final[dict[str, FakeBroker]] = {}
        self.groups: Final[dict[str, dict[QueueId, int]]] = {}
        self.is_closed = False
        self.calls: Final[list[str]] = []

    # -- actions of a test ---------------------------------------------------------------------------------------------

    def add_queue(self, topic: str, broker: str, number: int, *, has_epochs: bool = True) -> QueueId:
        queue = QueueId(topic, broker, number)
        self.brokers.setdefault(broker, FakeBroker(broker, has_epochs)).queues[queue] = []
        return queue

    def append(self, queue: QueueId, count: int = 1, *, size: int = 100, stored_ms: int = 0) -> None:
        broker = self.brokers[queue.broker]
        for _ in range(count):
            offset = len(broker.queues[queue])
            record = FakeRecord(queue, offset, broker.end, size, stored_ms, broker.epochs[-1].epoch)
            broker.records.append(record)
            broker.queues[queue].append(record)

    def expire(self, queue: QueueId, begin: int) -> None:
        self.brokers[queue.broker].begins[queue] = begin

    def begin_epoch(self, broker: str) -> None:
        """Begin a newer epoch that has the whole log."""
        one = self.brokers[broker]
        one.epochs.append(EpochStart(one.epochs[-1].epoch + 1, one.end))

    def fork(self, broker: str, kept: int) -> None:
        """Begin a newer epoch that has only the first `kept` records of the log."""
        one = self.brokers[broker]
        gone = one.records[kept:]
        del one.records[kept:]
        for record in gone:
            one.queues[record.queue].remove(record)
        one.epochs.append(EpochStart(one.epochs[-1].epoch + 1, one.end))

    # -- methods of the port -------------------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        self.calls.append("topics")
        return sorted({queue.topic for broker in self.brokers.values() for queue in broker.queues})

    def queues(self, topics: Sequence[str]) -> list[QueueId]:
        self.calls.append("queues")
        found = [queue for one in self.brokers.values() for queue in one.queues if queue.topic in topics]
        missing = set(topics) - {queue.topic for queue in found}
        if missing:
            raise InvalidOption(f"no broker serves {', '.join(sorted(missing))}")
        return sorted(found)

    def bounds(self, queues: Sequence[QueueId]) -> dict[QueueId, Bounds]:
        self.calls.append("bounds")
        found: dict[QueueId, Bounds] = {}
        for queue in queues:
            broker = self.brokers[queue.broker]
            end = broker.hidden.get(queue, len(broker.queues[queue]))
            found[queue] = Bounds(broker.begins.get(queue, 0), end)
        return found

    def offsets_at(self, queues: Sequence[QueueId], timestamp_ms: int) -> dict[QueueId, int]:
        return {
            queue: next(
                (one.offset for one in self._records(queue) if one.stored_ms >= timestamp_ms),
                len(self._records(queue)),
            )
            for queue in queues
        }

    def group_offsets(self, group: str, queues: Sequence[QueueId]) -> dict[QueueId, int | None]:
        return {queue: self.groups.get(group, {}).get(queue) for queue in queues}

    def commit_group(self, group: str, offsets: Mapping[QueueId, int]) -> None:
        self.groups.setdefault(group, {}).update(offsets)

    def logs(self, brokers: Collection[str]) -> dict[str, LogState]:
        return {
            name: LogState(name, 0, one.end, tuple(one.epochs) if one.has_epochs else ())
            for name, one in self.brokers.items()
            if name in brokers
        }

    def physical(self, offsets: Mapping[QueueId, int]) -> dict[QueueId, tuple[int, int]]:
        self.calls.append("physical")
        found: dict[QueueId, tuple[int, int]] = {}
        for queue, offset in offsets.items():
            assert self.brokers[queue.broker].begins.get(queue, 0) <= offset, f"{queue} at {offset} is gone"
            record = self._records(queue)[offset]
            found[queue] = (record.physical, record.size)
        return found

    def replicas(self, broker: str) -> tuple[Replica, ...]:
        return (Replica(broker, 1, "127.0.0.1:1"), Replica(broker, 0, "127.0.0.1:2"))

    def close(self) -> None:
        self.is_closed = True

    def _records(self, queue: QueueId) -> list[FakeRecord]:
        return self.brokers[queue.broker].queues[queue]


@final
class FakeClock:
    """A clock that sleeps without waiting, and runs actions of the test meanwhile."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []
        self.at: dict[int, object] = {}
        """Actions by the number of the sleep after which they run, from 1."""

    def now_s(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        action = self.at.get(len(self.slept))
        if callable(action):
            action()
