"""Detection of lost log data: the range that sealed files have recorded, compared with what the log has.

    recorded   [begin ................................................ end)    by the files below, each with a CRC
    log               [min_physical ....) (a hole) [............ end)
    missing    [ head )                 [  middle )               [ tail )

Each of these files but ``log-end`` is written durably after the log was synced, and so records what the log had then:

    begin   the checkpoint's `begin`, which has a checksum of its own, written before a log file is unlinked
    end     the recovery point's `through`, the checkpoint's `flushed`, the `log_end` of `store.json`; on the same boot
            of the machine `log-end`, too: it needs no sync, since a kill takes nothing from the page cache
    both    `loss.json`, which keeps a loss until it is restored or accepted: a start overwrites the other three

A log that has less has lost data, for any cause: deleted or emptied files, an older copy of a volume, another volume.
The broker never truncates or discards the log without lowering these records first, and raises the recorded start
before it deletes a file, so neither is taken for a loss. The exception is a process that ends while it deletes files of
a disk that is too full to record the start (``Checkpoint.raise_begin``). A checkpoint that RocketMQ has written since
is ignored.

    <root>/loss.json      a sealed document: missing ranges, accepted losses, and the ends of the queues before the loss

All of this is pure but for ``LossKeeper``, which owns the file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Sequence
from enum import StrEnum
from typing import Final, NamedTuple, final

import msgspec

from gantry_broker.ports.disk import Disk, remove_durably
from gantry_broker.store.checkpoint import CheckpointContent
from gantry_broker.store.commit_log import CommitLog
from gantry_broker.store.identity import StoreIdentity
from gantry_broker.store.recovery_point import RecoveryPoint
from gantry_broker.store.sealed_file import read_sealed, write_sealed

log = logging.getLogger(__name__)

ACCEPTED_KEPT_MAX: Final = 100
"""How many accepted losses are kept, the newest last. Each is one range; a decision may accept several."""


class LossCause(StrEnum):
    """Where in the log a range is missing: everywhere, at the beginning, in the middle, or at the end.

    The values, and the name ``cause`` of the field, are those of ``loss.json``.
    """

    ALL = "all"
    """The log has nothing of what was recorded."""

    HEAD = "head"
    """Its first files are missing."""

    MIDDLE = "middle"
    """Files between others are missing."""

    TAIL = "tail"
    """It ends before the recorded end."""


class LostRange(msgspec.Struct, frozen=True):
    """A range ``[start, end)`` of bytes that the log had and has lost."""

    start: int
    end: int
    cause: LossCause

    @property
    def bytes_count(self) -> int:
        return self.end - self.start

    @property
    def is_at_end(self) -> bool:
        """Return whether the log ends before this range, so that appending would reuse its offsets."""
        return self.cause in (LossCause.ALL, LossCause.TAIL)

    def __str__(self) -> str:
        return f"[{self.start}, {self.end})"


class AcceptedLoss(msgspec.Struct, frozen=True):
    """A missing range whose loss an administrator has accepted."""

    start: int
    end: int
    cause: LossCause
    accepted_ms: int
    """The wall-clock time of the decision, in milliseconds."""

    by: str = ""
    """The command or the account that accepted the loss."""


class LossRecord(msgspec.Struct, frozen=True):
    """The content of the file ``loss.json``."""

    missing: list[LostRange] = []
    accepted: list[AcceptedLoss] = []
    queues: dict[str, dict[str, int]] = {}
    """Topic, queue id, end of the queue before the loss. New messages of a queue never get offsets below it."""

    def is_accepted(self, lost: LostRange) -> bool:
        """Return whether this range, or one that contains it, was accepted."""
        return any(one.start <= lost.start and lost.end <= one.end for one in self.accepted)


class RecordedRange(NamedTuple):
    """The range of the log that the sealed files have recorded."""

    begin: int | None
    """None if no file records it."""

    end: int


def recorded_range(
    point: RecoveryPoint | None,
    checkpoint: CheckpointContent,
    identity: StoreIdentity | None,
    record: LossRecord,
    *,
    written: int = 0,
) -> RecordedRange:
    """Return the range that the log must have, according to the small files of the store.

    ``written`` is the end from the log-end file of this boot. It includes what write buffers hold, so only a start that
    has replayed them may pass it.
    """
    ends = [checkpoint.flushed, written, *(lost.end for lost in record.missing)]
    if point is not None:
        ends.append(point.through)
    if identity is not None:
        ends.append(identity.log_end)
    begins = [lost.start for lost in record.missing if lost.cause in (LossCause.ALL, LossCause.HEAD)]
    if checkpoint.begin is not None:
        begins.append(checkpoint.begin)
    return RecordedRange(min(begins, default=None), max(ends))


def find_missing(
    recorded: RecordedRange,
    *,
    begin: int,
    end: int,
    holes: Sequence[tuple[int, int]] = (),
    record: LossRecord | None = None,
) -> list[LostRange]:
    """Return the missing ranges of a log ``[begin, end)`` with ``holes``, without those that were accepted."""
    first = begin if recorded.begin is None else recorded.begin
    missing: list[LostRange] = []
    if first < begin < end:
        missing.append(LostRange(first, begin, LossCause.HEAD))
    missing += [LostRange(start, stop, LossCause.MIDDLE) for start, stop in holes]
    # The beginning of an empty log proves nothing: its first file was created by the start that found no files.
    if end <= begin and recorded.end > first:
        missing.append(LostRange(first, recorded.end, LossCause.ALL))
    elif begin < end < recorded.end:
        missing.append(LostRange(end, recorded.end, LossCause.TAIL))
    accepted = record or LossRecord()
    # A range at the end counts until appending has gone beyond it: its acceptance may have been interrupted.
    return [lost for lost in missing if lost.is_at_end or not accepted.is_accepted(lost)]


def is_missing_data_restored(record: LossRecord, begin: int, fillers: Container[int]) -> bool:
    """Return whether files that were missing at the last start exist again: queues and index may lack their messages.

    The log begins at ``begin`` now; earlier data has expired. ``fillers`` are the base offsets of files that replace
    lost ones.
    """
    return any(
        begin <= lost.start
        and (lost.cause is LossCause.HEAD or (lost.cause is LossCause.MIDDLE and lost.start not in fillers))
        for lost in record.missing
    )


def missing_bytes(missing: Sequence[LostRange]) -> int:
    """Return the total size of the missing ranges."""
    return sum(lost.bytes_count for lost in missing)


def describe_missing(missing: Sequence[LostRange]) -> str:
    """Describe the missing ranges in one line for administrators."""
    ranges = ", ".join(f"{lost} ({lost.cause.value})" for lost in missing[:8])
    more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
    return f"{missing_bytes(missing)} bytes of the log are missing: {ranges}{more}"


@final
class LossKeeper:
    """The record of missing log data, in memory and in ``loss.json``.

    Used by one thread at a time, and only by the process that holds the store's lock. All methods wait for the disk.
    ``flush`` makes everything written durable.
    """

    def __init__(self, disk: Disk, root: str, commit_log: CommitLog, flush: Callable[[], int]) -> None:
        self.path: Final = f"{root}/loss.json"
        self.record = LossRecord()
        """The missing ranges of the log, and those that an administrator has accepted as lost."""

        self._disk: Final = disk
        self._log: Final = commit_log
        self._flush: Final = flush

    def __repr__(self) -> str:
        return f"<LossKeeper missing={missing_bytes(self.record.missing)}>"

    def read(self) -> None:
        """Read the record from the disk; use an empty one if there is no file or it cannot be read."""
        try:
            self.record = read_sealed(self._disk, self.path, LossRecord) or LossRecord()
        except ValueError as exc:
            log.error(
                "loss.json is damaged and is ignored; a recorded loss, or its acceptance, may be unknown now",
                extra={"path": self.path, "reason": str(exc)},
            )

    def write(self, record: LossRecord) -> None:
        """Replace the record. Durable when this returns; after an ``OSError`` the old one is still valid."""
        if record == self.record:
            return
        if record == LossRecord():
            remove_durably(self._disk, self.path)
        else:
            write_sealed(self._disk, self.path, record)
        self.record = record

    def record_missing(self, missing: list[LostRange], *queues: dict[str, dict[str, int]]) -> None:
        """Record what is missing before this start overwrites the files that prove it.

        Raises OSError; then the store must not open. Each of ``queues`` has known ends of queues, and the furthest end
        counts. For a loss that was recorded before, the recorded queue ends are kept: the present ones may be shorter.
        """
        record = self.record
        if record.missing and not missing:
            log.info("missing log data restored", extra={"ranges": [str(lost) for lost in record.missing]})
        ends: dict[str, dict[str, int]] = {}
        for known in (*queues, record.queues if record.missing else {}):
            for topic, of_topic in known.items():
                of_queue = ends.setdefault(topic, {})
                for queue_id, end in of_topic.items():
                    of_queue[queue_id] = max(end, of_queue.get(queue_id, 0))
        self.write(msgspec.structs.replace(record, missing=missing, queues=ends if missing else {}))

    def check_missing(self) -> bool:
        """Update the record after bytes were fetched. Return whether anything is still missing."""
        if self.record.missing:
            missing = [lost for lost in self.record.missing if not lost.is_at_end or lost.end > self._log.wrote]
            self._flush()
            self.record_missing(missing, {})
        return bool(self.record.missing)

    def forget_missing_end(self) -> None:
        """Remove the missing end from the record after catching up with a master. Missing data in the middle stays."""
        self.record_missing([lost for lost in self.record.missing if not lost.is_at_end], {})

    def forget_missing(self) -> None:
        """Remove all missing ranges from the record. Accepted losses stay recorded."""
        self.write(msgspec.structs.replace(self.record, missing=[], queues={}))
