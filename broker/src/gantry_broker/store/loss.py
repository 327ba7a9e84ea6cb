"""Which bytes of the log are missing: what sealed files vouch for, compared with what the log has. Pure, and one file.

    vouched    [begin ................................................ end)    by the files below, each with a CRC
    log               [min_physical ....) (a hole) [............ end)
    missing    [ head )                 [  middle )               [ tail )

Every file that is replaced whole, durably, after the log itself was synced vouches for the log as it was then:

    begin   the checkpoint's second seal, written before the name of a log file is taken away
    end     the recovery point's `through`, the checkpoint's `flushed`, the `log_end` of `store.json`; on the same run
            of the machine `log-end`, too: it needs no sync, since a kill takes nothing from the page cache
    both    `loss.json`, which keeps a loss until it is made good or accepted: a start overwrites the other three

A log that has less has lost it, however that came about: deleted or emptied files, an older copy of a volume, another
volume. Nothing of ours cuts the log without first having these files vouch for less, so retention, a slave's cut and a
log that begins anew are never taken for a loss. A checkpoint that RocketMQ has written since vouches for nothing.

    <root>/loss.json      a sealed document: what is missing, what was accepted, and where queues ended

A *filler* is a log file that stands for one that is lost, so that the log has no gap and every reader steps over it:

    | blank record: size of the whole file 4, magic 4 | mark 8 | state 1 | zeros ...... |

A file of ours or of RocketMQ's never begins with a blank record, since every record fits into an empty file. Readers of
both go from a blank record to the next file, whatever follows it. The mark tells people and programs what it is, and
the state whether an operator has accepted the loss. It is copied to slaves like any other bytes, so that a replica of
a log with an accepted hole has the same accepted hole.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple, final

import msgspec

from gantry_broker.ports.disk import Disk
from gantry_broker.store.checkpoint import CheckpointFacts
from gantry_broker.store.identity import StoreIdentity
from gantry_broker.store.recovery_point import RecoveryPoint
from gantry_broker.store.sealed_file import read_sealed, write_sealed
from gantry_wire.message import BLANK_MAGIC, BLANK_RECORD

log = logging.getLogger(__name__)

ACCEPTED_KEPT_MAX: Final = 100
"""Acceptances that are kept, newest last. Each is one decision of a person."""

FILLER_MARK: Final = b"GANTRYLO"
_MISSING: Final = b"m"
_ACCEPTED: Final = b"a"
FILLER_HEAD_BYTES: Final = BLANK_RECORD.size + len(FILLER_MARK) + 1


class LossCause(StrEnum):
    """Where in the log the missing range lies."""

    ALL = "all"
    HEAD = "head"
    MIDDLE = "middle"
    TAIL = "tail"


class LostRange(msgspec.Struct, frozen=True):
    """Bytes ``[start, end)`` that the log had, and has no more."""

    start: int
    end: int
    cause: LossCause

    @property
    def bytes_count(self) -> int:
        return self.end - self.start

    @property
    def is_at_end(self) -> bool:
        """Whether the log ends before it, so that appending would use its offsets again."""
        return self.cause in (LossCause.ALL, LossCause.TAIL)

    def __str__(self) -> str:
        return f"[{self.start}, {self.end})"


class AcceptedLoss(msgspec.Struct, frozen=True):
    """A missing range that an operator has accepted."""

    start: int
    end: int
    cause: LossCause
    accepted_ms: int
    by: str = ""
    """The command or the account."""


class LossRecord(msgspec.Struct, frozen=True):
    """What the file says."""

    missing: list[LostRange] = []
    accepted: list[AcceptedLoss] = []
    queues: dict[str, dict[str, int]] = {}
    """Topic, queue id, end of the queue before the loss: no queue goes on below it."""

    def is_accepted(self, lost: LostRange) -> bool:
        """Whether this very range, or one around it, was accepted."""
        return any(one.start <= lost.start and lost.end <= one.end for one in self.accepted)


class Vouched(NamedTuple):
    """The range of the log that sealed files vouch for."""

    begin: int | None
    """None where no file says it."""

    end: int


def vouched_range(
    point: RecoveryPoint | None,
    checkpoint: CheckpointFacts,
    identity: StoreIdentity | None,
    record: LossRecord,
    *,
    written: int = 0,
) -> Vouched:
    """What the log must have, as far as the small files of the store know.

    ``written`` is up to where this run of the machine has written it. What write buffers hold belongs to that, so only
    a start that has replayed them may ask for it.
    """
    ends = [checkpoint.flushed, written, *(lost.end for lost in record.missing)]
    if point is not None:
        ends.append(point.through)
    if identity is not None:
        ends.append(identity.log_end)
    begins = [lost.start for lost in record.missing if lost.cause in (LossCause.ALL, LossCause.HEAD)]
    if checkpoint.begin is not None:
        begins.append(checkpoint.begin)
    return Vouched(min(begins, default=None), max(ends))


def find_missing(
    vouched: Vouched, *, begin: int, end: int, holes: Sequence[tuple[int, int]] = (), record: LossRecord | None = None
) -> list[LostRange]:
    """The missing ranges of a log that is ``[begin, end)`` with ``holes`` in it, but for those that were accepted."""
    first = begin if vouched.begin is None else vouched.begin
    missing: list[LostRange] = []
    if first < begin < end:
        missing.append(LostRange(first, begin, LossCause.HEAD))
    missing += [LostRange(start, stop, LossCause.MIDDLE) for start, stop in holes]
    # Where a log without a byte begins says nothing: its first file was made by the start that found none.
    if end <= begin and vouched.end > first:
        missing.append(LostRange(first, vouched.end, LossCause.ALL))
    elif begin < end < vouched.end:
        missing.append(LostRange(end, vouched.end, LossCause.TAIL))
    accepted = record or LossRecord()
    # A range at the end counts until appending has gone beyond it: its acceptance may have been cut off half way.
    return [lost for lost in missing if lost.is_at_end or not accepted.is_accepted(lost)]


def missing_bytes(missing: Sequence[LostRange]) -> int:
    """How many bytes are missing."""
    return sum(lost.bytes_count for lost in missing)


def describe_missing(missing: Sequence[LostRange]) -> str:
    """The ranges in a line for people."""
    ranges = ", ".join(f"{lost} ({lost.cause.value})" for lost in missing[:8])
    more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
    return f"{missing_bytes(missing)} bytes of the log are missing: {ranges}{more}"


@final
class LossFile:
    """Owned by whoever holds the store's lock. Reading and writing wait for the disk."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk: Final = disk
        self.path: Final = f"{root}/loss.json"

    def read(self) -> LossRecord:
        """The record; an empty one if nothing was ever lost. One that cannot be read is logged and set aside."""
        try:
            return read_sealed(self._disk, self.path, LossRecord) or LossRecord()
        except ValueError as exc:
            log.error(
                "loss.json is damaged: a loss that was not accepted yet, or its acceptance, may be forgotten",
                extra={"path": self.path, "reason": str(exc)},
            )
            return LossRecord()

    def write(self, record: LossRecord) -> None:
        """Durable when this returns. Raises OSError; then the old one is still there."""
        if record == LossRecord():
            if self._disk.exists(self.path):
                self._disk.remove(self.path)
                self._disk.sync_directory(self.path.rpartition("/")[0])
            return
        write_sealed(self._disk, self.path, record)


def filler_head(file_size: int, *, is_accepted: bool) -> bytes:
    """The first bytes of a filler; the others are zero."""
    return BLANK_RECORD.pack(file_size, BLANK_MAGIC) + FILLER_MARK + (_ACCEPTED if is_accepted else _MISSING)


def is_filler(head: bytes | memoryview, file_size: int) -> bool:
    """Whether a log file that begins with ``head`` is a filler."""
    return bytes(head[: FILLER_HEAD_BYTES - 1]) == filler_head(file_size, is_accepted=True)[:-1]


def is_zero(data: bytes | memoryview) -> bool:
    """Whether there is nothing but zeros, as behind the head of a filler."""
    return not any(data) if len(data) < 64 else bytes(data).count(0) == len(data)


def is_accepted_filler(head: bytes | memoryview, file_size: int) -> bool:
    """Whether it is one for a loss that was accepted."""
    return bytes(head[:FILLER_HEAD_BYTES]) == filler_head(file_size, is_accepted=True)
