"""The values of a read: queues, ranges of them, replicas that have them, and the tasks into which a read is split.

All of them are plain values that travel from the driver to the workers by pickle: no connection, no file, no session.
Ranges are half-open. A task says which messages to read and which replicas have them, but never how far a worker has
come: a task that is repeated, by another worker and from another replica, gives the same rows in the same order.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import final

MASTER = 0
"""The broker id of the master; slaves have 1 and more."""


class TransportKind(StrEnum):
    """The transport by which records are read."""

    AUTO = "auto"
    """Each replica by the first of the others that it offers, and by the next one if that fails on all replicas."""
    FILE = "file"
    """The store's directory, mapped into memory."""
    HTTP = "http"
    """Ranges of the log from a sidecar."""
    PULL = "pull"
    """RocketMQ's own protocol; works with any broker, at the cost of its event loop."""


class ReadFrom(StrEnum):
    """Which replicas of a broker may be read."""

    SLAVE = "slave"
    SLAVE_FIRST = "slaveFirst"
    """Slaves first, and the master if no slave answers."""

    MASTER = "master"


@final
@dataclass(frozen=True, slots=True, order=True)
class QueueId:
    """One queue of one topic on one broker (a master and its slaves share one name)."""

    topic: str
    broker: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.broker}/{self.number}"


@final
@dataclass(frozen=True, slots=True, order=True)
class QueueRange:
    """The messages `[begin, end)` of a queue, by queue offset."""

    queue: QueueId
    begin: int
    end: int

    def __str__(self) -> str:
        return f"{self.queue}[{self.begin}, {self.end})"

    @property
    def count(self) -> int:
        """The number of messages in the range."""
        return self.end - self.begin


@final
@dataclass(frozen=True, slots=True)
class Bounds:
    """The readable range of a queue: `[begin, end)`; for its limits see `replica_view`."""

    begin: int
    end: int


@final
@dataclass(frozen=True, slots=True)
class EpochStart:
    """The first byte of the log that was written in an epoch."""

    epoch: int
    begin: int


@final
@dataclass(frozen=True, slots=True)
class LogState:
    """The readable range of a broker's log, and its epochs: () for Apache's master and slave, and by pulls.

    By pulls `end` is the end of the log that the broker reports, which may be beyond what is confirmed.
    """

    broker: str
    begin: int
    end: int
    epochs: tuple[EpochStart, ...] = ()

    @property
    def epoch(self) -> int:
        """The newest epoch; 0 if the broker has none."""
        return self.epochs[-1].epoch if self.epochs else 0


@final
@dataclass(frozen=True, slots=True)
class Replica:
    """One process that has the log of a broker, and the transports to it."""

    broker: str
    number: int
    """The broker id; 0 is the master."""
    address: str
    """host:port of its remoting port."""
    sidecar: str | None = None
    """Base URL of its sidecar; None without one."""
    directory: str | None = None
    """Its store directory, if it is mounted on this machine."""

    @property
    def is_master(self) -> bool:
        """Whether it is the master."""
        return self.number == MASTER


@final
@dataclass(frozen=True, slots=True)
class Task:
    """One part of a read: rows of one broker, in the order (queue, offset) unless `physical` is given.

    With `physical` the bytes `[begin, end)` of the log are read once, in log order, and the records in them that lie in
    `ranges` are returned. Without it, each range is read by its queue units.
    """

    broker: str
    replicas: tuple[Replica, ...]
    """In the order in which they are tried; the master last, where slaves come first."""
    transport: TransportKind
    ranges: tuple[QueueRange, ...]
    columns: tuple[str, ...]
    """Names from `schema.COLUMNS`, in the order in which each row has them."""
    tags: frozenset[str] | None = None
    """Only messages with one of these tags; None for all."""
    physical: tuple[int, int] | None = None
    """The bytes of the log to read; None to read each range by its queue units."""
    bytes_estimated: int = 0
    """The planner's estimate of the bytes that it reads."""

    @property
    def count(self) -> int:
        """The number of messages in its ranges, before any filter; with `physical`, some of them are in other tasks."""
        return sum(one.count for one in self.ranges)
