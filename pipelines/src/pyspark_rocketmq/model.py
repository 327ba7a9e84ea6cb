"""What is read: queues, ranges of them, replicas that have them, and the tasks into which a read is cut.

All of it is plain values that travel from the driver to the workers by pickle: no connection, no file, no session.
Ranges are half-open. A task says what is to be read and who has it, and never how far a worker has come: a task that
is done again, by another worker and from another replica, gives the same rows in the same order.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import final

MASTER = 0
"""The number of the broker that is written to; slaves have 1 and more."""


class TransportKind(StrEnum):
    """By which way records come here."""

    AUTO = "auto"
    """The first of these that a replica offers."""
    FILE = "file"
    """The store's directory, mapped."""
    HTTP = "http"
    """Ranges of the log from a sidecar."""
    PULL = "pull"
    """RocketMQ's own protocol; from any broker, and paid for in its event loop."""


class ReadFrom(StrEnum):
    """Which replicas of a broker may be read."""

    SLAVE = "slave"
    SLAVE_FIRST = "slaveFirst"
    MASTER = "master"


@final
@dataclass(frozen=True, slots=True, order=True)
class QueueId:
    """One queue of one topic on one broker (a master and its slaves have one name)."""

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
        """How many messages that are."""
        return self.end - self.begin


@final
@dataclass(frozen=True, slots=True)
class Bounds:
    """What of a queue can be read: `[begin, end)`, never beyond min(confirmed, committed) of the replica asked."""

    begin: int
    end: int


@final
@dataclass(frozen=True, slots=True)
class EpochStart:
    """From `begin` on the log was written in this epoch."""

    epoch: int
    begin: int


@final
@dataclass(frozen=True, slots=True)
class LogState:
    """How far a broker's log goes, and which reigns wrote it. Without epochs (Apache's master/slave) `epochs` is ()."""

    broker: str
    begin: int
    end: int
    epochs: tuple[EpochStart, ...] = ()

    @property
    def epoch(self) -> int:
        """The newest epoch; 0 where a broker has none."""
        return self.epochs[-1].epoch if self.epochs else 0


@final
@dataclass(frozen=True, slots=True)
class Replica:
    """One process that has the log of a broker, and the ways to it."""

    broker: str
    number: int
    """0: the master."""
    address: str
    """host:port of its remoting port."""
    sidecar: str | None = None
    """Base URL of its sidecar."""
    directory: str | None = None
    """Its store, where this machine sees it."""

    @property
    def is_master(self) -> bool:
        """Whether it is the one that is written to."""
        return self.number == MASTER


@final
@dataclass(frozen=True, slots=True)
class Task:
    """One piece of a read: rows of one broker, in the order (queue, offset) unless `physical` is given.

    With `physical` the bytes `[begin, end)` of the log are read once, in their own order, and of the records in them
    those that lie in `ranges`. Without, each range is read by its queue's units.
    """

    broker: str
    replicas: tuple[Replica, ...]
    """In the order in which they are to be tried; the master last, where slaves come first."""
    transport: TransportKind
    ranges: tuple[QueueRange, ...]
    columns: tuple[str, ...]
    """Names out of `schema.COLUMNS`, in the order of the rows."""
    tags: frozenset[str] | None = None
    """Only messages with one of these tags; None: all."""
    physical: tuple[int, int] | None = None
    bytes_estimated: int = 0

    @property
    def count(self) -> int:
        """How many messages lie in its ranges, before any filter."""
        return sum(one.count for one in self.ranges)
