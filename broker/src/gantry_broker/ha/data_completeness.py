"""Whether a broker still has all that it has ever acknowledged, to clients or to a master.

    <root>/whole.json      a sealed document

A process that is killed loses nothing of what lives in the page cache, or in buffers that outlive it; a machine that
goes down may, and so may one that is in another pod now: its buffers were the old pod's, and its volume may have been
mounted anew without what the page cache held. So every start writes down on which run of which machine, and in which
pod, it is, before anything is acknowledged, and after a crash the next one compares: the same, and nothing was lost;
another one, and something may have been. What is doubtful once stays so over clean stops, until the broker has followed
a master and has what that one had when it came, or is made the master of a new epoch: then what counts is what it has.

It does not change what a broker does. It is for elections: a store that may have forgotten has no vote.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple, final

import msgspec

from gantry_broker.ports.disk import Disk
from gantry_broker.store.recovery_report import RecoveryReport
from gantry_broker.store.sealed_file import read_sealed, write_sealed
from gantry_broker.store.write_pool import PoolStatus

log = logging.getLogger(__name__)


class CompletenessRecord(msgspec.Struct, frozen=True):
    """What one start knew."""

    is_whole: bool | None
    machine: str = ""
    """The run of the machine, by the kernel's name for it, and the scope of its memory; empty if that is not known."""

    is_crash_safe: bool = False
    """Whether what this start acknowledges survives its process."""

    buffers: int = 0
    """In how many write buffers it may be."""

    broker: str = ""
    """Cluster and name of the broker that used the store; empty from an earlier version."""


class RecoveryFindings(NamedTuple):
    """What a start has found."""

    is_clean: bool
    is_empty: bool
    """Whether nothing was ever written."""

    is_damaged: bool
    """Whether bytes are gone that a crash of the process does not take."""

    buffers: int = 0
    """How many write buffers are there."""

    is_rotten: bool = False
    """Whether some bytes in the middle are not what they were: following a master does not mend them."""

    is_hollow: bool = False
    """Whether the log lacks its head or files in the middle: following a master does not bring them back."""


def findings_of(report: RecoveryReport) -> RecoveryFindings:
    """The findings of a recovery that matter here."""
    is_rotten = bool(report.damaged or report.set_aside or report.had_failed_flush)
    is_damaged = is_rotten or bool(report.lost_flushed_bytes or report.missing)
    is_hollow = any(not lost.is_at_end for lost in report.missing)
    is_empty = report.end == 0 and not report.missing
    return RecoveryFindings(report.is_clean, is_empty, is_damaged, report.buffers_present, is_rotten, is_hollow)


def judge_completeness(last: CompletenessRecord | None, found: RecoveryFindings, machine: str) -> bool | None:
    """Whether everything is there. None if that is unknown: no start has recorded it, and no loss is known."""
    if found.is_damaged:
        return False
    if last is None:
        return True if found.is_empty else None
    if last.is_whole is not True or found.is_clean:
        return last.is_whole
    return last.is_crash_safe and last.machine == machine != "" and last.buffers <= found.buffers


@final
class DataCompleteness:
    """Owned by the holder of the store's lock. Everything but ``is_whole`` waits for the disk."""

    def __init__(self, disk: Disk, root: str, machine: str, *, scope: str = "", broker: str = "") -> None:
        """``machine`` is the run of this machine, empty where the kernel does not say; ``broker`` the cluster and the
        name that this start was given."""
        self.is_whole: bool | None = None
        self._is_rotten = self._is_hollow = False
        self._disk: Final = disk
        self._path: Final = f"{root}/whole.json"
        self._machine: Final = f"{machine}/{scope}" if machine and scope else machine
        self._record: CompletenessRecord | None = None
        self._root: Final = root
        self._broker: Final = broker
        self._is_missing = False

    def load(self) -> None:
        """What the last start knew. One that cannot be read is in doubt.

        Call it before this start writes: every broker writes ``whole.json`` first, and then the other two files.
        """
        later = (f"{self._root}/{name}" for name in ("role.json", "retention-clock.json"))
        self._is_missing = not self._disk.exists(self._path) and any(self._disk.exists(path) for path in later)
        try:
            self._record = read_sealed(self._disk, self._path, CompletenessRecord)
        except ValueError as exc:
            log.warning("data completeness is unknown", extra={"path": self._path, "reason": str(exc)})
            self._record = CompletenessRecord(is_whole=None)

    def started(self, report: RecoveryReport, pool: PoolStatus) -> None:
        """Judge this start, before it acknowledges anything. On a full disk nothing is known afterwards."""
        found = findings_of(report)
        self._is_rotten, self._is_hollow = found.is_rotten, found.is_hollow
        self.is_whole = judge_completeness(self._record, found, self._machine)
        record = CompletenessRecord(self.is_whole, self._machine, pool.is_crash_safe, pool.total, self._broker)
        self._report_other_broker()
        if self._is_missing and self.is_whole is None:
            facts = {"path": self._path, "reason": "it is missing"}
            log.warning("data completeness is unknown", extra=facts)
        if self.is_whole is False:
            log.warning("this store may lack what it has acknowledged", extra={"end": report.end})
        if record == self._record:
            return
        try:
            self._write(record)
        except OSError as error:
            # What is on the disk would be believed after a clean stop: rather nothing is known then.
            log.warning("could not record data completeness", extra={"reason": str(error)})
            if self._record is not None:
                self._disk.remove(self._path)
                self._record = None
            self.is_whole = None

    def _report_other_broker(self) -> None:
        """A volume that was mounted into the wrong broker starts like any other. So does a renamed broker."""
        last = self._record.broker if self._record is not None else ""
        if last in ("", self._broker):
            return
        log.warning(
            "this store was last used by a broker of another name; its messages are served under the new one",
            extra={
                "path": self._root,
                "last": last,
                "now": self._broker,
                "remedy": "if the wrong volume is mounted, stop this broker now; if it was renamed, do nothing",
            },
        )

    def caught_up(self, *, is_copied_anew: bool = False, is_loss_accepted: bool = False) -> None:
        """A master was followed, and all that it had is here; or this log is what others follow now. Raises OSError.

        Rot and holes stay unless the whole log was copied anew; holes count no more once an operator has accepted them.
        """
        is_torn = self._is_rotten or (self._is_hollow and not is_loss_accepted)
        if self.is_whole is True or (is_torn and not is_copied_anew):
            return
        last = self._record or CompletenessRecord(is_whole=None, machine=self._machine)
        self._write(msgspec.structs.replace(last, is_whole=True))
        self.is_whole = True

    def _write(self, record: CompletenessRecord) -> None:
        write_sealed(self._disk, self._path, record)
        self._record = record
