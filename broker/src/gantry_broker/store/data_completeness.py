"""Record whether a broker still has everything that it has ever acknowledged, to clients or to a master.

    <root>/completeness.json      a sealed document

A process that is killed loses nothing that is in the page cache, or in buffers that outlive it. A machine that crashes
may lose it, and so may a broker that runs in another pod now: its buffers were the old pod's, and its volume may have
been mounted again without the page cache. So every start records on which boot of which machine, and in which pod, it
runs, before anything is acknowledged. After a crash the next start compares: nothing was lost if the boot and the pod
are the same, the last run was crash-safe, and all of its write buffers were found; otherwise something may have been
lost. Doubt survives clean stops, until the broker has followed a Gantry master and has everything that the master had
at that time, or becomes the master of a new epoch: then its log is the valid one.

For damage before the log's end that is not enough, since it is not copied again. So the damaged ranges that starts have
found are in the record, over any number of starts, until they are resolved (``server/roles/completeness_recorder``) or
the whole log was copied again. Only such a copy is enough if the present start has set a file aside, or follows a run
that a failed write or sync ended; and while files before the log's end are missing, unless their loss was accepted.

A recovery without a broker (``offline``) leaves a store that the next start finds clean. So it records what it has
found, too.

The record does not change what a broker does. Elections use it: a store that may have lost data has no vote.

Earlier versions named the file ``whole.json`` and its field ``is_whole``. Every write removes that file first. So one
that exists was written by an earlier version after our last write, or there is no record of ours, and it counts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final, NamedTuple, final

import msgspec

from gantry_broker.ports.disk import Disk, remove_durably
from gantry_broker.store.recovery_report import RecoveryReport
from gantry_broker.store.sealed_file import read_sealed, write_sealed
from gantry_broker.store.write_pool import PoolStatus

log = logging.getLogger(__name__)

DAMAGED_MAX: Final = 1_000
"""How many damaged ranges the record has at most. The last one contains all further ones, and what is between them."""

ByteRange = tuple[int, int]
"""A half-open range of the log."""


class CompletenessRecord(msgspec.Struct, frozen=True):
    """What one start recorded about the completeness of the store."""

    is_complete: bool | None
    """Whether no data is missing; None if that is unknown."""

    machine: str = ""
    """The boot id of the machine, and the pod, within which memory survives a process; empty if unknown."""

    is_crash_safe: bool = False
    """Whether messages that this start acknowledges survive a crash of its process."""

    buffers: int = 0
    """Number of write buffers that may hold acknowledged messages."""

    broker: str = ""
    """Cluster and name of the broker that used the store; empty from an earlier version."""

    damaged: tuple[ByteRange, ...] = ()
    """Damaged ranges of the log that starts have found and that were not resolved; empty from an earlier version."""


class FormerRecord(msgspec.Struct, frozen=True):
    """The record as earlier versions wrote it."""

    is_whole: bool | None
    """The former name of ``CompletenessRecord.is_complete``; the other fields are the same."""

    machine: str = ""
    is_crash_safe: bool = False
    buffers: int = 0
    broker: str = ""


class RecoveryFindings(NamedTuple):
    """What a recovery has found about lost or damaged data."""

    is_clean: bool
    """Whether the last run stopped cleanly."""

    is_empty: bool
    """Whether the store has never held a message."""

    is_damaged: bool
    """Whether bytes are lost, or may be, that a crash of the process alone cannot lose."""

    buffers: int = 0
    """Number of write buffers that were found."""

    is_corrupt: bool = False
    """Whether a file was set aside, or the last run ended because a write or sync failed.

    Following a master does not repair that.
    """

    has_holes: bool = False
    """Whether the log lacks its first files or files in the middle: following a master does not restore them."""

    damaged: tuple[ByteRange, ...] = ()
    """The damaged ranges of the log. Following a master does not repair them."""


def recovery_findings(report: RecoveryReport) -> RecoveryFindings:
    """Return the findings of a recovery that matter for completeness."""
    is_corrupt = bool(report.set_aside or report.had_failed_flush)
    is_damaged = is_corrupt or bool(report.damaged or report.lost_flushed_bytes or report.missing)
    has_holes = any(not lost.is_at_end for lost in report.missing)
    is_empty = report.end == 0 and not report.missing
    return RecoveryFindings(
        report.is_clean, is_empty, is_damaged, report.buffers_present, is_corrupt, has_holes, tuple(report.damaged)
    )


def join_ranges(ranges: Iterable[ByteRange], end: int) -> tuple[ByteRange, ...]:
    """Return the parts of the ranges before ``end``, in order, overlapping and adjacent ones joined.

    At most ``DAMAGED_MAX``.
    """
    joined: list[ByteRange] = []
    for start, stop in sorted((start, min(stop, end)) for start, stop in ranges if start < end):
        if joined and (start <= joined[-1][1] or len(joined) == DAMAGED_MAX):
            joined[-1] = joined[-1][0], max(stop, joined[-1][1])
        else:
            joined.append((start, stop))
    return tuple(joined)


def decide_completeness(last: CompletenessRecord | None, found: RecoveryFindings, machine: str) -> bool | None:
    """Return whether no data is missing; None if that is unknown.

    It is unknown if no start has recorded it, the store has held messages, and no loss is known.
    """
    if found.is_damaged:
        return False
    if last is None:
        return True if found.is_empty else None
    if last.is_complete is not True or found.is_clean:
        return last.is_complete
    return last.is_crash_safe and last.machine == machine != "" and last.buffers <= found.buffers


@final
class DataCompleteness:
    """The record of completeness on the disk.

    Used by one thread at a time, and only by the process that holds the store's lock. Every method waits for the disk;
    only ``is_complete`` is read at any time.
    """

    def __init__(self, disk: Disk, root: str, machine: str, *, scope: str = "", broker: str = "") -> None:
        """Create an empty record. ``machine`` is the boot id, empty where the kernel reports none.

        ``scope`` names what keeps the machine's memory alive, such as a pod; ``broker`` is the cluster and the name of
        the broker that starts, empty for a recovery without one.
        """
        self.is_complete: bool | None = None
        """Whether no data is missing; None if that is unknown."""
        self.damaged: tuple[ByteRange, ...] = ()
        """Damaged ranges that this start or an earlier one has found, and that are not resolved so far."""

        self._is_corrupt = self._has_holes = False
        self._disk: Final = disk
        self._path: Final = f"{root}/completeness.json"
        self._former_path: Final = f"{root}/whole.json"
        self._machine: Final = f"{machine}/{scope}" if machine and scope else machine
        self._record: CompletenessRecord | None = None
        self._root: Final = root
        self._broker: Final = broker
        self._is_missing = False

    def load(self) -> None:
        """Read the record of the last start. A record that cannot be read means that data is in doubt.

        Call it before this start writes: every broker writes ``completeness.json`` before ``role.json`` and
        ``retention-clock.json``. So if one of those exists without it, the record is missing.
        """
        later = (f"{self._root}/{name}" for name in ("role.json", "retention-clock.json"))
        path = self._former_path if self._disk.exists(self._former_path) else self._path
        self._is_missing = not self._disk.exists(path) and any(self._disk.exists(one) for one in later)
        try:
            if path == self._path:
                self._record = read_sealed(self._disk, path, CompletenessRecord)
            elif former := read_sealed(self._disk, path, FormerRecord):
                self._record = CompletenessRecord(*msgspec.structs.astuple(former))
        except ValueError as exc:
            log.warning(
                "data completeness is unknown; this broker has no vote until it catches up with a master",
                extra={"path": path, "reason": str(exc)},
            )
            self._record = CompletenessRecord(is_complete=None)

    @property
    def has_record(self) -> bool:
        """Whether an earlier start has recorded completeness; false for a store of RocketMQ."""
        return self._record is not None

    def record_start(self, report: RecoveryReport, pool: PoolStatus) -> None:
        """Decide and record completeness before this start acknowledges anything.

        If the record cannot be written, as on a full disk, completeness is unknown afterwards.
        """
        found = recovery_findings(report)
        self._is_corrupt, self._has_holes = found.is_corrupt, found.has_holes
        self.is_complete = decide_completeness(self._record, found, self._machine)
        last = self._record or CompletenessRecord(is_complete=None)
        self.damaged = join_ranges((*last.damaged, *found.damaged), report.end)
        broker = self._broker or last.broker
        record = CompletenessRecord(
            self.is_complete, self._machine, pool.is_crash_safe, pool.total, broker, self.damaged
        )
        self._report_other_broker()
        if self._is_missing and self.is_complete is None:
            log.warning(
                "data completeness is unknown; this broker has no vote until it catches up with a master",
                extra={"path": self._path, "reason": "it is missing"},
            )
        if self.is_complete is False:
            log.warning(
                "store may have lost acknowledged messages; it has no vote until its data is complete",
                extra={"end": report.end},
            )
        if record == self._record and not self._disk.exists(self._former_path):
            return
        try:
            self._write(record)
        except OSError as error:
            # After a clean stop the old record would count. Without a record completeness is unknown, which is safe.
            log.warning(
                "could not record data completeness; this broker has no vote until it catches up with a master",
                extra={"reason": str(error)},
            )
            for path in (self._former_path, self._path):
                if self._disk.exists(path):
                    remove_durably(self._disk, path)
            self._record = None
            self.is_complete = None

    def _report_other_broker(self) -> None:
        """Warn if another broker used the store: its volume may be mounted here by mistake."""
        last = self._record.broker if self._record is not None else ""
        if last in ("", self._broker) or not self._broker:
            return
        log.warning(
            "store was last used by another broker; its messages are served under the new name",
            extra={
                "path": self._root,
                "last": last,
                "now": self._broker,
                "remedy": "if the wrong volume is mounted, stop this broker now; if it was renamed, do nothing",
            },
        )

    def record_caught_up(
        self,
        *,
        is_copied_anew: bool = False,
        is_loss_accepted: bool = False,
        damaged: tuple[ByteRange, ...] | None = None,
    ) -> None:
        """Record that this broker's data is complete: it has caught up with its master, or it is the master.

        ``damaged`` replaces ``self.damaged``: what is not resolved now. Nothing is recorded while there is such damage,
        or if this start has found a hole, or anything else that following does not repair, unless the whole log was
        copied again since; holes do not count after their loss was accepted. Raises OSError.
        """
        if self.is_complete is True:
            return
        if damaged is not None:
            self.damaged = damaged
        is_incomplete = bool(self.damaged) or self._is_corrupt or (self._has_holes and not is_loss_accepted)
        if is_incomplete and not is_copied_anew:
            return
        last = self._record or CompletenessRecord(is_complete=None, machine=self._machine)
        self._write(msgspec.structs.replace(last, is_complete=True, damaged=()))
        self.is_complete, self.damaged = True, ()

    def _write(self, record: CompletenessRecord) -> None:
        if self._disk.exists(self._former_path):
            remove_durably(self._disk, self._former_path)
        write_sealed(self._disk, self._path, record)
        self._record = record
