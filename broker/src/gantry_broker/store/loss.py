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
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Sequence
from enum import StrEnum
from typing import Final, NamedTuple, final

import msgspec

from gantry_broker.ports.disk import Disk, remove_durably
from gantry_broker.store.checkpoint import CheckpointFacts
from gantry_broker.store.commit_log import CommitLog
from gantry_broker.store.identity import StoreIdentity
from gantry_broker.store.recovery_point import RecoveryPoint
from gantry_broker.store.sealed_file import read_sealed, write_sealed

log = logging.getLogger(__name__)

ACCEPTED_KEPT_MAX: Final = 100
"""Acceptances that are kept, newest last. Each is one decision of a person."""


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


def is_brought_back(record: LossRecord, begin: int, fillers: Container[int]) -> bool:
    """Whether files are there again that the last start missed: queues and index may have dropped theirs.

    The log begins at ``begin`` now: what lies before it has expired. ``fillers`` are where files begin that stand for
    lost ones.
    """
    return any(
        begin <= lost.start
        and (lost.cause is LossCause.HEAD or (lost.cause is LossCause.MIDDLE and lost.start not in fillers))
        for lost in record.missing
    )


def missing_bytes(missing: Sequence[LostRange]) -> int:
    """How many bytes are missing."""
    return sum(lost.bytes_count for lost in missing)


def describe_missing(missing: Sequence[LostRange]) -> str:
    """The ranges in a line for people."""
    ranges = ", ".join(f"{lost} ({lost.cause.value})" for lost in missing[:8])
    more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
    return f"{missing_bytes(missing)} bytes of the log are missing: {ranges}{more}"


@final
class LossKeeper:
    """The record of what is missing, here and on the disk. Owned by whoever holds the store's lock.

    All methods wait for the disk. ``flush`` makes everything written durable.
    """

    def __init__(self, disk: Disk, root: str, commit_log: CommitLog, flush: Callable[[], int]) -> None:
        self.path: Final = f"{root}/loss.json"
        self.record = LossRecord()
        """What is missing in the log, and what an operator has accepted as lost."""

        self._disk: Final = disk
        self._log: Final = commit_log
        self._flush: Final = flush

    def __repr__(self) -> str:
        return f"<LossKeeper missing={missing_bytes(self.record.missing)}>"

    def read(self) -> None:
        """Take the record from the disk: an empty one if nothing was ever lost, or if it cannot be read."""
        try:
            self.record = read_sealed(self._disk, self.path, LossRecord) or LossRecord()
        except ValueError as exc:
            log.error(
                "loss.json is damaged: a loss that was not accepted yet, or its acceptance, may be forgotten",
                extra={"path": self.path, "reason": str(exc)},
            )

    def write(self, record: LossRecord) -> None:
        """Make ``record`` the known loss. Durable when this returns; after an ``OSError`` the old one holds."""
        if record == self.record:
            return
        if record == LossRecord():
            remove_durably(self._disk, self.path)
        else:
            write_sealed(self._disk, self.path, record)
        self.record = record

    def record_missing(self, missing: list[LostRange], *queues: dict[str, dict[str, int]]) -> None:
        """Write down what is missing before this start overwrites what says so. Raises OSError: then there is no start.

        ``queues`` say where queues ended, each as far as it knows, and the furthest end counts. A hole that was there
        before keeps the queue ends of then: those of now are what is left.
        """
        record = self.record
        if record.missing and not missing:
            log.info("missing log data is complete again", extra={"ranges": [str(lost) for lost in record.missing]})
        ends: dict[str, dict[str, int]] = {}
        for known in (*queues, record.queues if record.missing else {}):
            for topic, of_topic in known.items():
                of_queue = ends.setdefault(topic, {})
                for queue_id, end in of_topic.items():
                    of_queue[queue_id] = max(end, of_queue.get(queue_id, 0))
        self.write(msgspec.structs.replace(record, missing=missing, queues=ends if missing else {}))

    def check_missing(self) -> bool:
        """Whether something is still missing, after bytes were fetched."""
        if self.record.missing:
            missing = [lost for lost in self.record.missing if not lost.is_at_end or lost.end > self._log.wrote]
            self._flush()
            self.record_missing(missing, {})
        return bool(self.record.missing)

    def forget_missing_end(self) -> None:
        """A master was followed, and all that it has is here. What is missing in the middle still is."""
        self.record_missing([lost for lost in self.record.missing if not lost.is_at_end], {})

    def forget_missing(self) -> None:
        """Nothing is missing any more. What was accepted stays known."""
        self.write(msgspec.structs.replace(self.record, missing=[], queues={}))
