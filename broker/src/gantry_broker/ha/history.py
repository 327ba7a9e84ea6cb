"""Decide whether a slave may follow, and from where: a pure comparison of two histories.

A history is a list of epochs, each with the offset where it began, and the range of the log. Two logs are the same up
to where their lists agree; a log that continues beyond that point has bytes that the other log never had.

    master   1 |----------------| 3 |-----------          slave has 2 from 500 on, the master 3 from 400 on:
    slave    1 |--------------------| 2 |---              they diverge at 400, and the slave's rest was never confirmed

If the slave's newest epoch is older than the master's, the slave truncates its log there and follows; it copies the
whole log again if the master's log begins only later. A slave that is ahead in the same epoch is different: the master
has lost something, and truncation would destroy the only copy. Such a slave is refused, with the reason, and so is one
with a newer epoch. A slave with bytes of the master's epoch, but another start offset for it, is refused, too: an epoch
has one master and one start, or no comparison is valid. An empty log is never refused: it has nothing to lose. Lists of
epochs contain no data, so the bytes of the last records before the common end are compared, too, before a slave
follows.

Two logs that ought to be the same may differ nevertheless. The place is found by bisection: the search requests the
checksums of the pieces of a range, compares them with its own, and continues in the first piece that differs, until the
piece is small enough. Usually one request is enough, because the last piece is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from gantry_broker.store.identity import Epoch
from gantry_wire.checksum import crc32

PIECES_MAX: Final = 256
"""Largest number of checksums in one reply."""

PIECE_BYTES_MIN: Final = 4_096
"""Size at which the search ends: one page of the disk."""

TAIL_BYTES: Final = 1 << 20
"""Size of the log's end that is compared first."""

SEARCH_BYTES: Final = 64 << 20
"""How far back the search goes: reading the whole log for one handshake would block the loop."""

ReadBytes = Callable[[int, int], bytes]
"""Function of (offset, count) that returns at most ``count`` bytes of the log from an offset on.

It returns fewer at the end of a memory region, such as a file, and none outside of the log.
"""

ChecksumQuery = tuple[int, int, int]
"""A requested range: start, end, and the bytes of one piece."""


class CannotFollow(Exception):
    """Following is refused, or would lose something or mix two logs. The slave tries again later."""


class History(NamedTuple):
    """The epochs and the range of a log, which is everything that a comparison needs."""

    epochs: Sequence[Epoch]
    begin: int
    """The first offset of the log."""

    end: int

    @property
    def epoch(self) -> int:
        """Newest epoch of the list, which need not have a record; 0 without a history."""
        return self.epochs[-1].epoch if self.epochs else 0


class ReadableLog(Protocol):
    """A log as both sides of a stream read it. Used by the loop's thread."""

    @property
    def history(self) -> History: ...

    @property
    def flushed(self) -> int: ...

    def read(self, offset: int, bytes_max: int) -> bytes:
        """Return raw bytes of the log: fewer at the end of a memory region, none outside of the log."""

    def read_verified(self, offset: int, bytes_max: int) -> bytes:
        """Return as many whole, verified records of one file as fit, at least one.

        Empty at the end of the log, and where the record at ``offset`` is damaged.
        """

    def read_verified_through(self, start: int, end: int) -> bytes:
        """Return good records from ``start`` until one ends at or after ``end``; fewer where one is damaged."""

    def read_verified_range(self, start: int, end: int) -> bytes:
        """Return whole, verified records of ``[start, end)`` from ``start`` on; empty where there are none."""


class Verdict(StrEnum):
    """The result of a comparison: what a slave does, or why it is refused."""

    FOLLOW = "follows from its own end"
    TRUNCATE = "truncates its log and follows"
    COPY = "is empty and copies the whole log"
    COPY_AGAIN = "ends before the master's log begins, and copies the whole log again"
    AHEAD = "has more of the same epoch than the master"
    NEWER = "has a newer epoch than the master"
    FOREIGN = "has another history than the master"


class Comparison(NamedTuple):
    """The verdict, and the offset that belongs to it.

    To follow or truncate, that is the end of what both logs have; to copy the whole log, where the master's begins. For
    a refusal it is where the logs diverge, 0 if that is unknown, and the slave's end if the slave has a newer epoch.
    """

    verdict: Verdict
    start: int

    @property
    def may_follow(self) -> bool:
        return self.verdict in (Verdict.FOLLOW, Verdict.TRUNCATE, Verdict.COPY, Verdict.COPY_AGAIN)


def refusal_text(comparison: Comparison, *, master: History, slave: History) -> str:
    """Return why a slave may not follow, with the epochs or the offset that decided it."""
    if comparison.verdict is Verdict.AHEAD:
        return f"the slave's log is ahead of the master's in epoch {slave.epoch} from offset {comparison.start}"
    if comparison.verdict is Verdict.NEWER:
        return f"the slave's log has epoch {slave.epoch}, but the newest epoch of the master's log is {master.epoch}"
    return f"the slave's log has another history than the master's from offset {comparison.start} on"


def common_end(one: History, other: History) -> int | None:
    """Return the offset up to which the two lists of epochs agree; None if they differ from the first epoch on."""
    common: int | None = None
    for index, (left, right) in enumerate(zip(one.epochs, other.epochs, strict=False)):
        if (left.epoch, left.start) != (right.epoch, right.start):
            break
        ends = _end_of(one, index), _end_of(other, index)
        common = min(ends)
        if ends[0] != ends[1]:
            break
    return common


def _end_of(history: History, index: int) -> int:
    """Return the end of the epoch at index ``index``."""
    return history.epochs[index + 1].start if index + 1 < len(history.epochs) else history.end


def compare(master: History, slave: History) -> Comparison:
    """Decide whether a slave with this history may follow, and from where."""
    if slave.end == 0:
        return Comparison(Verdict.COPY, master.begin)
    if slave.epoch > master.epoch:
        return Comparison(Verdict.NEWER, slave.end)
    common = common_end(master, slave)
    if common is None or common < slave.begin:
        return Comparison(Verdict.FOREIGN, 0)
    if common == slave.end:
        if slave.end < master.begin:
            return Comparison(Verdict.COPY_AGAIN, master.begin)
        return Comparison(Verdict.FOLLOW, slave.end)
    if slave.epoch == master.epoch:
        return Comparison(Verdict.AHEAD if common == master.end else Verdict.FOREIGN, common)
    if common < master.begin:
        return Comparison(Verdict.COPY_AGAIN, master.begin)
    return Comparison(Verdict.TRUNCATE, common)


def piece_checksums(read_own: ReadBytes, start: int, end: int, piece_bytes: int) -> list[int]:
    """Return the CRC-32 of every piece of ``[start, end)`` of this log; fewer if the log ends before."""
    sums: list[int] = []
    for piece in range(start, end, piece_bytes):
        position, stop, value = piece, min(piece + piece_bytes, end), 0
        while position < stop:
            data = read_own(position, stop - position)
            if not data:
                return sums
            value = crc32(data, value)
            position += len(data)
        sums.append(value)
    return sums


def find_fork(read_own: ReadBytes, begin: int, end: int) -> Generator[ChecksumQuery, Sequence[int], int | None]:
    """Find where two logs diverge in ``[begin, end)``; None if nowhere.

    A generator: it yields each query and receives the other side's checksums. It returns the start of a
    differing piece of at most ``PIECE_BYTES_MIN`` bytes. The search goes back at most ``SEARCH_BYTES``, so earlier
    bytes may differ, too. If the last bytes are the same, nothing else is compared: a log with the same last bytes has
    the same earlier bytes.
    """
    start = max(begin, end - TAIL_BYTES)
    if start >= end:
        return None
    answer = yield start, end, end - start
    if list(answer) == piece_checksums(read_own, start, end, end - start):
        return None
    start = max(begin, end - SEARCH_BYTES)
    while True:
        piece_bytes = max(-(-(end - start) // PIECES_MAX), PIECE_BYTES_MIN)
        answer = yield start, end, piece_bytes
        mine = piece_checksums(read_own, start, end, piece_bytes)
        index = next((at for at, pair in enumerate(zip(mine, answer, strict=False)) if pair[0] != pair[1]), None)
        if index is None:
            index = min(len(mine), len(answer))
        start, end = start + index * piece_bytes, min(end, start + (index + 1) * piece_bytes)
        if end - start <= PIECE_BYTES_MIN:
            return start
