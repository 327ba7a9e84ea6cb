"""A master compares a slave's log with its own before the slave may follow. Damage on one side is no other history.

    checksums of pieces, from the end of both logs back    equal -> the logs are the same
        -> the slave's records at a difference             good and different -> another history
                                                           damaged, or none -> damage: continue after it

Another history differs up to the end. So the slave's damage is passed over only if something after it is the same: the
record there, or a piece that begins with a record. Damage is repaired when the stream is up, on whichever side it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, final

from gantry_broker.ha.frames import RangeRequest, SumsRequest
from gantry_broker.ha.history import PIECE_BYTES_MIN, SEARCH_BYTES, ReadableLog, find_fork
from gantry_wire.message import BLANK_MAGIC, INT, MAGIC_POSITION

DIFFERENCES_MAX: Final = 64
"""Differing places that one comparison examines. More means another log, or a disk beyond repair."""


class ComparedLog(ReadableLog, Protocol):
    """A master's log, as a comparison reads it. Used by the loop's thread."""

    def find_record_start(self, offset: int) -> int:
        """Return the start of the record that contains ``offset``, or the end of the record before a damaged one."""
        ...

    def end_of_damage(self, offset: int) -> int:
        """Return where the log is good again after the damage at ``offset``."""
        ...


class Fork(NamedTuple):
    """The slave has another history, from about this offset on."""

    offset: int


Step = SumsRequest | RangeRequest | Fork | None
"""What the comparison needs next, or its result; None if the logs are the same but for damage."""


@final
class LogComparison:
    """One comparison of ``[begin, end)`` with one slave. Owned by the loop."""

    def __init__(self, log: ComparedLog, begin: int, end: int, *, file_bytes: int, gives_ranges: bool) -> None:
        """``gives_ranges``: whether the slave can be asked for its records. Without them each difference is a fork."""
        self._log: Final = log
        self._end: Final = end
        self._file_bytes: Final = file_bytes
        self._gives_ranges: Final = gives_ranges
        self._search = find_fork(log.read, begin, end)
        self._resumed_at = begin
        self._difference = (0, 0, b"")
        """Range where the logs differ: begin, end, and this log's good records there."""

        self._differences = 0
        self._skip_bytes = 0
        """Bytes of the slave's damage that are skipped at a time; doubles while the damage continues."""

        self._is_skip_unproved = False
        """Whether bytes were skipped and nothing after them has shown that they were only damaged."""

    def __repr__(self) -> str:
        return f"<LogComparison to {self._end} differences={self._differences}>"

    def begin(self) -> Step:
        """Begin the comparison, before its end or after a difference."""
        return self._advance(None)

    def take_sums(self, sums: Sequence[int]) -> Step:
        """Continue with the checksums that were requested."""
        return self._advance(sums)

    def _advance(self, sums: Sequence[int] | None) -> Step:
        try:
            query = next(self._search) if sums is None else self._search.send(sums)
        except StopIteration as end:
            return None if end.value is None else self._examine(end.value)
        return SumsRequest(start=query[0], end=query[1], piece_bytes=query[2])

    def _examine(self, offset: int) -> Step:
        """Request the slave's records at ``offset``, to distinguish two histories from damage."""
        if not self._gives_ranges or self._differences == DIFFERENCES_MAX:
            return Fork(offset)
        self._differences += 1
        self._is_skip_unproved = self._is_skip_unproved and not self._has_same_record(offset)
        end = min(offset + PIECE_BYTES_MIN, self._end, offset - offset % self._file_bytes + self._file_bytes)
        begin = max(self._log.find_record_start(offset), self._log.history.begin)
        self._difference = begin, end, self._log.read_verified_through(begin, end)
        return RangeRequest(start=begin, end=end)

    def _has_same_record(self, offset: int) -> bool:
        """Return whether both logs have the same record between the end of the last skip and ``offset``."""
        begin, size = self._resumed_at, offset - self._resumed_at
        if size <= 0 or begin < self._end - SEARCH_BYTES:
            return False
        record = self._log.read_verified(begin, size)
        return 0 < len(record) <= size and INT.unpack_from(record, MAGIC_POSITION)[0] != BLANK_MAGIC

    def take_records(self, theirs: bytes) -> Step:
        """Compare the slave's good records: different ones are another history, missing ones are damaged.

        After damage, the comparison of the rest continues. Long damage of the slave, such as a whole file, is skipped
        in growing steps.
        """
        begin, end, ours = self._difference
        common = min(len(ours), len(theirs))
        if ours[:common] != theirs[:common]:
            return Fork(begin)
        resume = end
        if begin + len(ours) < end and len(ours) <= common:
            resume = self._log.end_of_damage(begin + common)
        elif begin + common < end:
            resume = begin + common + INT.unpack_from(ours, common)[0]
            is_isolated = common > 0 or begin != self._resumed_at
            self._skip_bytes = 0 if is_isolated else max(PIECE_BYTES_MIN, 2 * self._skip_bytes)
            self._is_skip_unproved &= not common
            far = self._log.find_record_start(min(resume + self._skip_bytes, self._end - PIECE_BYTES_MIN))
            if self._skip_bytes and far > resume:
                resume, self._is_skip_unproved = far, True
        if self._is_skip_unproved and resume >= self._end:
            return Fork(begin)
        self._search, self._resumed_at = find_fork(self._log.read, resume, self._end), resume
        return self.begin()
