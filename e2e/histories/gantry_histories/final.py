"""What a group holds when everything is over: the facts that a history is held against.

They are read by whoever ran the group, through brokers and from files alike. ``Stored`` is one message; a log's sums
are CRC-32 of ranges of its bytes, at the same places for every member that has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gantry_histories.events import Queue


class Stored(NamedTuple):
    """One message as it lies in a queue."""

    key: str | None
    """None if the body is not whole."""

    digest: str
    queue_offset: int
    physical_offset: int


class EpochStart(NamedTuple):
    """Where a master's reign begins in the log."""

    epoch: int
    start: int


class Piece(NamedTuple):
    """The sum of the bytes ``[start, end)`` of a log."""

    start: int
    end: int
    crc: int


@dataclass(frozen=True)
class LogSums:
    """One member's log, up to where it is confirmed."""

    member: str
    pieces: Sequence[Piece]


@dataclass(frozen=True)
class Final:
    """The end of a run."""

    queues: Mapping[Queue, Sequence[Stored]]
    """Every queue from its first offset to its end, as the last master serves it."""

    epochs: Sequence[EpochStart] = ()
    logs: Sequence[LogSums] = ()
    committed: Mapping[tuple[str, Queue], int] = field(default_factory=dict)
    """Where each consumer stands, as the last master says."""

    begin: int = 0
    """Where the log begins: what was before it has expired, and nobody misses it."""

    ends: Mapping[Queue, int] = field(default_factory=dict)
    """Each queue's next number, as the last master says. Needed of queues in which nothing is left."""

    def end(self, queue: Queue) -> int:
        """The number that the queue's next message gets."""
        messages = self.queues.get(queue, ())
        return max(self.ends.get(queue, 0), messages[-1].queue_offset + 1 if messages else 0)
