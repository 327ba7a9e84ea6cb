"""The final contents of a group, against which a history is checked.

The test that ran the group reads them through brokers or from files. ``Stored`` is one message. The sums of a log are
CRC-32 values of ranges of its bytes; the ranges are the same for all members.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gantry_histories.events import Queue


class Stored(NamedTuple):
    """One message as it is stored in a queue."""

    key: str | None
    """The key of the message, or None if the body is corrupt."""

    digest: str
    queue_offset: int
    physical_offset: int


class EpochStart(NamedTuple):
    """The offset in the log at which a master's term begins."""

    epoch: int
    start: int


class Piece(NamedTuple):
    """The CRC-32 of the bytes ``[start, end)`` of a log."""

    start: int
    end: int
    crc: int


@dataclass(frozen=True)
class LogSums:
    """The sums of one member's log, up to its confirmed position."""

    member: str
    pieces: Sequence[Piece]


@dataclass(frozen=True)
class Final:
    """The state of a group after a run."""

    queues: Mapping[Queue, Sequence[Stored]]
    """Every queue from its first offset to its end, as the last master serves it."""

    epochs: Sequence[EpochStart] = ()
    """The epochs of the last master's log."""

    logs: Sequence[LogSums] = ()
    """The checksums of the logs of all members; empty if the logs were not read."""

    committed: Mapping[tuple[str, Queue], int] = field(default_factory=dict)
    """The committed offset of each consumer at the last master, before the reading of this final state."""

    begin: int = 0
    """The first offset of the log. Messages before it have expired and are not reported as missing."""

    ends: Mapping[Queue, int] = field(default_factory=dict)
    """The next offset of each queue at the last master. It is needed for queues whose messages have all expired."""

    def end(self, queue: Queue) -> int:
        """Return the offset of the queue's next message."""
        messages = self.queues.get(queue, ())
        return max(self.ends.get(queue, 0), messages[-1].queue_offset + 1 if messages else 0)
