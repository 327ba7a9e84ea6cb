"""The port through which the source reads one replica; ``transport`` has its three implementations.

A view is one replica, read by one transport: its files, ranges from its sidecar, or pulls. It returns the readable
bounds of queues, and the records of a task as *pieces*: bytes, the positions of records in them, and what each of these
records must be. It decompresses nothing and validates no record; `decode` does. Files with a status page and ranges
from a sidecar are never read beyond min(confirmed, committed) of the replica, files without a page up to the last whole
record. By pulls, a queue ends where it ends for consumers, and `log` has the end that the broker reports.

Failures are of three kinds, since each has another consequence. A replica that does not answer may answer later. A
replica whose log does not reach far enough will have the range later. A replica that has deleted the range will never
have it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, final

import numpy as np
import numpy.typing as npt

from gantry_wire.hashing import tags_code
from pyspark_rocketmq.model import Bounds, LogState, QueueId, Replica, Task, TransportKind

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]


class ViewError(Exception):
    """The root of the errors that a view raises because of its replica; Spark and users never get one."""


@final
class Unreachable(ViewError):
    """The replica did not answer, or the connection broke: try another replica, and this one later."""


@final
class NotYetAvailable(ViewError):
    """The replica's log or queue does not reach far enough: another one may have the range, and this one will later."""


@final
class RangeDeleted(ViewError):
    """The replica has deleted this range."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Expected:
    """What the records of a piece must be, one entry for each."""

    queue: Numbers
    """The queue of each record, as an index into the ranges of the task."""
    offset: Numbers
    """The queue offset of each record."""
    physical: Numbers | None = None
    """The physical offset of each record; None if the transport does not know it."""
    size: Numbers | None = None
    """The size of each record; None if the transport does not know it."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Some of the records of a task, in its order, and the rest of the task after them."""

    data: Bytes
    """The bytes that contain the records; they stay valid after the view is closed."""
    starts: Numbers
    """The position of each record in `data`, ascending."""
    expected: Expected
    rest: Task
    """The part of the task that is left after this piece; filtered records count as done."""
    where: str
    """Replica and transport, for errors."""


class View(Protocol):
    """One replica, read by one transport. One thread at a time.

    Methods raise a ViewError, Refused, or DamagedRecord.
    """

    @property
    def replica(self) -> Replica: ...

    @property
    def kind(self) -> TransportKind: ...

    @property
    def needs_body_check(self) -> bool:
        """Whether the log is not known to be intact, so that the CRC of every body must be checked."""

    def log(self) -> LogState:
        """Return the readable range of its log."""

    def bounds(self, queues: tuple[QueueId, ...]) -> dict[QueueId, Bounds]:
        """Return the readable range of each queue; [0, 0) for one that has no message yet."""

    def offset_at(self, queue: QueueId, timestamp_ms: int) -> int:
        """Return the first message stored at that time or later; the queue's end if there is none."""

    def locate(self, queue: QueueId, offset: int) -> tuple[int, int]:
        """Return (physical offset, size) of one message; a filler unit has a physical offset, and size 0."""

    def pieces(self, task: Task) -> Iterator[Piece]:
        """Yield all records of a task, in its order."""

    def close(self) -> None:
        """Release the connections and open files."""


def tag_codes(task: Task) -> frozenset[int] | None:
    """Return the tags codes in queue units for the tags that a task wants; None for all tags."""
    return None if task.tags is None else frozenset(tags_code(tag) for tag in task.tags)
