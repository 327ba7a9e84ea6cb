"""The port through which the source reads one replica; ``transport`` has its three implementations.

A view is one replica, read in one way: its files, ranges from its sidecar, or pulls. It answers questions about queues,
and returns the records that a task wants as *pieces*: bytes, the places of records in them, and what each of these
records has to be. It unpacks nothing and judges no record; `decode` does. It never reads beyond min(confirmed,
committed) of the replica.

Failures are three, since three different things follow from them: a replica that does not answer may do so in a moment,
one that has not got so far yet will, and one that has the range no more never will again.
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
    """The root of what a view raises for its replica's sake; nobody but this package sees it."""


@final
class Unreachable(ViewError):
    """The replica did not answer, or broke off: the caller should try another one, and this one later."""


@final
class NotYet(ViewError):
    """The replica's log, or queue, does not reach so far: another may, and this one will."""


@final
class Gone(ViewError):
    """The replica has this range no more."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Expected:
    """What the records of a piece have to be, one entry for each."""

    queue: Numbers
    """Which of the task's queues, as an index into its ranges."""
    offset: Numbers
    """Queue offset."""
    physical: Numbers | None = None
    """Where it lies in the log; None where the way of reading does not know."""
    size: Numbers | None = None


@final
@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Some of the records that a task wants, in its order, and how far the task is with them."""

    data: Bytes
    """The bytes in which they lie; kept alive by whoever reads them."""
    starts: Numbers
    """Where each record begins in `data`; it rises."""
    expected: Expected
    rest: Task
    """What of the task is still to be read after this piece; filtered records are behind us, too."""
    where: str
    """For errors: replica and way."""


class View(Protocol):
    """One replica, looked at in one way. Raises a ViewError, Refused, or DamagedRecord. One thread at a time."""

    @property
    def replica(self) -> Replica: ...

    @property
    def kind(self) -> TransportKind: ...

    @property
    def is_doubtful(self) -> bool:
        """Whether nobody vouches for its log, so that every record has to prove itself."""

    def log(self) -> LogState:
        """How far its log can be read."""

    def bounds(self, queues: tuple[QueueId, ...]) -> dict[QueueId, Bounds]:
        """What of queues can be read; of a queue that has no message yet [0, 0)."""

    def offset_at(self, queue: QueueId, timestamp_ms: int) -> int:
        """The first message stored at that time or later; the queue's end if there is none."""

    def place(self, queue: QueueId, offset: int) -> tuple[int, int]:
        """(physical offset, size) of one message; of a number that stands for none its place, and 0."""

    def pieces(self, task: Task) -> Iterator[Piece]:
        """All records of a task, in its order."""

    def close(self) -> None:
        """Let go of connections and files."""


def tag_codes(task: Task) -> frozenset[int] | None:
    """What index units hold for the tags that a task wants; None for all."""
    return None if task.tags is None else frozenset(tags_code(tag) for tag in task.tags)
