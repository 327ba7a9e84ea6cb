"""Whether a slave may follow, and from where: a pure comparison of two histories.

A history is a list of epochs, each with the offset where it began, and where the log begins and ends now. Two logs are
the same up to where their lists agree; a log that has more behind that point has what the other never had.

    master   1 |----------------| 3 |-----------          slave has 2 from 500 on, the master 3 from 400 on:
    slave    1 |--------------------| 2 |---              they part at 400, and the slave's rest was never confirmed

A slave whose rest belongs to an epoch that the master's own list has left behind cuts it off and follows. A slave that
is simply further in the very same epoch is another matter: then it is the master that has lost something, and cutting
would throw away the only copy. It is refused, and named. So is one whose list puts the master's epoch elsewhere: an
epoch has one master and one beginning, or nothing is sure any more. Lists say nothing of the bytes; those of the last
records before the common end are compared, too, before a slave follows.

Where two logs part that ought to be the same is found by bisection with checksums of pieces. The search asks for the
sums of some pieces of a range, compares them with its own, and continues in the first piece that differs, until a piece
is small enough to name. Usually one question settles it: the last piece is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from gantry_broker.store.identity import Epoch
from gantry_wire.checksum import crc32

PIECES_MAX: Final = 256
PIECE_BYTES_MIN: Final = 4_096
TAIL_BYTES: Final = 1 << 20
SEARCH_BYTES: Final = 64 << 20
"""How far back the place is looked for: reading all of a log for one handshake would block the loop."""

OwnBytes = Callable[[int, int], bytes]
"""Up to so many bytes of the log from an offset on; fewer at the end of a file."""

Question = tuple[int, int, int]
"""Start, end, bytes of a piece."""


class CannotFollow(Exception):
    """Following is refused, or would lose something or mix two logs. Says why; the slave tries again later."""


class History(NamedTuple):
    """A log, as far as another one can be compared with it."""

    epochs: Sequence[Epoch]
    begin: int
    end: int

    @property
    def epoch(self) -> int:
        """Of the last record; 0 of an empty log without a history."""
        return self.epochs[-1].epoch if self.epochs else 0


class ReadableLog(Protocol):
    """A log as either side of a stream reads it. Used by the loop's thread."""

    @property
    def history(self) -> History: ...

    @property
    def flushed(self) -> int: ...

    def read(self, offset: int, bytes_max: int) -> bytes:
        """Raw bytes of the log, fewer at the end of a piece of memory, none where there is no log."""

    def whole_records(self, offset: int, bytes_max: int) -> bytes:
        """As many whole, verified records as fit, at least one, of those that lie in one file.

        Empty at the end of the log, and where the record at ``offset`` is damaged.
        """

    def records_through(self, start: int, end: int) -> bytes:
        """Good records from ``start`` on until one ends at or behind ``end``; fewer where one is damaged."""

    def healthy_records(self, start: int, end: int) -> bytes:
        """Whole, verified records of ``[start, end)`` from ``start`` on; empty where there are none."""


class Verdict(StrEnum):
    """What becomes of a slave."""

    FOLLOW = "follows from its own end"
    CUT = "cuts its tail and follows"
    COPY = "is empty and gets the whole log"
    RESTART = "ends where the master's log does not begin yet, and gets the whole log anew"
    AHEAD = "has more of the same epoch than the master"
    NEWER = "has seen a newer epoch than the master's"
    FOREIGN = "has another history than the master"


class Comparison(NamedTuple):
    """The verdict, and where following begins: the end of what both have."""

    verdict: Verdict
    start: int

    @property
    def may_follow(self) -> bool:
        return self.verdict in (Verdict.FOLLOW, Verdict.CUT, Verdict.COPY, Verdict.RESTART)


def common_end(one: History, other: History) -> int | None:
    """Up to where both lists say the same; None if they never do."""
    common: int | None = None
    for place, (left, right) in enumerate(zip(one.epochs, other.epochs, strict=False)):
        if (left.epoch, left.start) != (right.epoch, right.start):
            break
        ends = _end_of(one, place), _end_of(other, place)
        common = min(ends)
        if ends[0] != ends[1]:
            break
    return common


def _end_of(history: History, place: int) -> int:
    """Where the epoch at ``place`` ends."""
    return history.epochs[place + 1].start if place + 1 < len(history.epochs) else history.end


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
            return Comparison(Verdict.RESTART, master.begin)
        return Comparison(Verdict.FOLLOW, slave.end)
    if slave.epoch == master.epoch:
        return Comparison(Verdict.AHEAD if common == master.end else Verdict.FOREIGN, common)
    if common < master.begin:
        return Comparison(Verdict.RESTART, master.begin)
    return Comparison(Verdict.CUT, common)


def sums_of(own: OwnBytes, start: int, end: int, piece_bytes: int) -> list[int]:
    """The CRC-32 of every piece of ``[start, end)``; fewer if the log ends before."""
    sums: list[int] = []
    for piece in range(start, end, piece_bytes):
        position, stop, value = piece, min(piece + piece_bytes, end), 0
        while position < stop:
            data = own(position, stop - position)
            if not data:
                return sums
            value = crc32(data, value)
            position += len(data)
        sums.append(value)
    return sums


def find_fork(own: OwnBytes, begin: int, end: int) -> Generator[Question, Sequence[int], int | None]:
    """Ask (``yield``) and be answered (``send``); returns where the logs part in ``[begin, end)``, None if nowhere.

    They part there at the latest: no search goes back farther than ``SEARCH_BYTES``. Only the last bytes are compared
    if they are the same: a log that has them has all that came before.
    """
    start = max(begin, end - TAIL_BYTES)
    if start >= end:
        return None
    answer = yield start, end, end - start
    if list(answer) == sums_of(own, start, end, end - start):
        return None
    start = max(begin, end - SEARCH_BYTES)
    while True:
        piece_bytes = max(-(-(end - start) // PIECES_MAX), PIECE_BYTES_MIN)
        answer = yield start, end, piece_bytes
        mine = sums_of(own, start, end, piece_bytes)
        place = next((at for at, pair in enumerate(zip(mine, answer, strict=False)) if pair[0] != pair[1]), None)
        if place is None:
            place = min(len(mine), len(answer))
        start, end = start + place * piece_bytes, min(end, start + (place + 1) * piece_bytes)
        if end - start <= PIECE_BYTES_MIN:
            return start
