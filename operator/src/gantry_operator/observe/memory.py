"""The state of a group that is kept between two observations: when a state was first seen, and the newest reports.

Safety does not need it: an operator that starts without it takes the present time for the first observation of
everything, and so waits longer. All times are of the operator's own clock. Times of other machines are never compared
with it, except that of a master's last report, where a margin covers the difference of two clocks (``last_report``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from gantry_operator.observe.pods import ProcessState
from gantry_spec.lease import LeaseRecord
from gantry_spec.observed import Disk, LastReport, ObservedLease, Process, Report, last_report_after


@final
@dataclass
class MemberMemory:
    """The memory of one member."""

    report: Report | None = None
    """The newest report; None if it has never reported."""

    boot_id: str = ""
    """The uid of its pod."""

    run: str = ""
    """Identifies the run of its container (``ProcessState.run``)."""

    started_by_ms: int | None = None
    """When this pod's process was first known to run; None if it never was."""

    stopped_by_ms: int | None = None
    """When this run was first known to have ended; None while it is not."""

    disk_lost_since_ms: int | None = None
    """When its disk was first known to be lost; None while it is not."""

    disk_id: str = ""
    confirmed_ms: int = 0
    """When its pod was last read from the API server itself, and not from a cache."""

    def take_report(self, report: Report) -> None:
        """Keep a report, unless a newer one is known."""
        if self.report is None or self.report.asked_ms <= report.asked_ms:
            self.report = report

    def confirm(self, asked_ms: int) -> None:
        """Record that its pod was read from the API server itself, by a call at this time."""
        self.confirmed_ms = asked_ms

    def take_process(self, state: ProcessState, boot_id: str, now_ms: int) -> None:
        """Record the state of its process, as its pod shows it."""
        if boot_id != self.boot_id:
            self.boot_id, self.started_by_ms = boot_id, None
        if state.run != self.run:
            self.run, self.stopped_by_ms = state.run, None
        if state.process is Process.RUNNING:
            self.stopped_by_ms = None
            self.started_by_ms = now_ms if self.started_by_ms is None else self.started_by_ms
        elif state.process in (Process.STOPPED, Process.ABSENT):
            self.stopped_by_ms = now_ms if self.stopped_by_ms is None else self.stopped_by_ms
        else:
            self.stopped_by_ms = None

    def correct_process(self, process: Process) -> Process:
        """Return the state that kubelet reports, or unknown if the broker has answered since: kubelet may be late."""
        stopped_ms, report = self.stopped_by_ms, self.report
        if process is not Process.STOPPED or stopped_ms is None or report is None:
            return process
        is_late = report.boot_id == self.boot_id and report.asked_ms > stopped_ms
        return Process.UNKNOWN if is_late else process

    def take_disk(self, disk: Disk, disk_id: str, now_ms: int) -> None:
        """Record the state of its disk, as its claim shows it."""
        if disk is not Disk.LOST or disk_id != self.disk_id:
            self.disk_lost_since_ms = None
        self.disk_id = disk_id
        if disk is Disk.LOST and self.disk_lost_since_ms is None:
            self.disk_lost_since_ms = now_ms


@final
@dataclass(eq=False)
class ShardMemory:
    """The memory of one shard."""

    members: dict[int, MemberMemory] = field(default_factory=dict)
    last_report: LastReport | None = None
    """The newest report of the newest master; None if there is none."""

    empty_log_end: int | None = None
    """The end of the log of a shard that is scaled away, when it was found to be empty."""

    empty_since_ms: int = 0
    """When the shard was first found to be empty with this end."""

    _lease_state: tuple[str, LeaseRecord | None] = ("", None)
    _lease_seen_ms: int | None = None

    def member(self, number: int) -> MemberMemory:
        """Return the memory of a member; a new one if the member was never observed."""
        return self.members.setdefault(number, MemberMemory())

    def observe_lease(self, uid: str, record: LeaseRecord | None, now_ms: int) -> ObservedLease:
        """Return the observed Lease, with the time when this record was first seen."""
        if self._lease_seen_ms is None or (uid, record) != self._lease_state:
            self._lease_state, self._lease_seen_ms = (uid, record), now_ms
        return ObservedLease(record=record, seen_ms=self._lease_seen_ms)

    def take_report(self, number: int, report: Report) -> None:
        """Keep the newest report of a member; a master's is also the last report of the shard."""
        self.member(number).take_report(report)
        self.last_report = last_report_after(self.last_report, report)

    def reset_empty(self) -> None:
        """Forget that the shard was empty, because it has messages, or because that is unknown."""
        self.empty_log_end = None

    def record_empty(self, end: int, now_ms: int, quiet_ms: int) -> bool:
        """Record that the shard is empty. Return whether it was so, with the same end of the log, for ``quiet_ms``."""
        if self.empty_log_end != end:
            self.empty_log_end, self.empty_since_ms = end, now_ms
        return now_ms - self.empty_since_ms >= quiet_ms

    def take_last_report(self, kept: LastReport | None) -> None:
        """Adopt the last report that an operator has kept in the Lease, if it is newer."""
        if kept is not None and (self.last_report is None or kept.order > self.last_report.order):
            self.last_report = kept
