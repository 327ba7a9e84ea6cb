"""What is remembered of a group between two observations: when things were first seen, and the newest reports.

Nothing in here is needed for safety: an operator that starts without it has seen everything just now, and so waits
longer. Times are of our own clock; no time of another machine is ever compared with it, except that of a master's last
word, where a margin stands for the difference of two clocks (``last_word``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from gantry_operator.observe.pods import Life
from gantry_spec.lease import LeaseRecord
from gantry_spec.observed import Disk, LastWord, ObservedLease, Process, Report, last_word_after


@final
@dataclass
class MemberMemory:
    """Of one member."""

    report: Report | None = None
    boot_id: str = ""
    run: str = ""
    started_by_ms: int | None = None
    stopped_by_ms: int | None = None
    disk_lost_since_ms: int | None = None
    disk_id: str = ""
    confirmed_ms: int = 0
    """When the API server itself, and not a cache, was last asked for its pod."""

    def take_report(self, report: Report) -> None:
        """Keep it, unless a newer one is known."""
        if self.report is None or self.report.asked_ms <= report.asked_ms:
            self.report = report

    def confirm(self, asked_ms: int) -> None:
        """The API server itself was asked then."""
        self.confirmed_ms = asked_ms

    def take_process(self, life: Life, boot_id: str, now_ms: int) -> None:
        """Take over what its pod shows of its process."""
        if boot_id != self.boot_id:
            self.boot_id, self.started_by_ms = boot_id, None
        if life.run != self.run:
            self.run, self.stopped_by_ms = life.run, None
        if life.process is Process.RUNNING:
            self.stopped_by_ms = None
            self.started_by_ms = now_ms if self.started_by_ms is None else self.started_by_ms
        elif life.process in (Process.STOPPED, Process.ABSENT):
            self.stopped_by_ms = now_ms if self.stopped_by_ms is None else self.stopped_by_ms
        else:
            self.stopped_by_ms = None

    def believed(self, process: Process) -> Process:
        """The state that kubelet reports, or unknown if the broker has answered since then: kubelet is late."""
        stopped_ms, report = self.stopped_by_ms, self.report
        if process is not Process.STOPPED or stopped_ms is None or report is None:
            return process
        is_late = report.boot_id == self.boot_id and report.asked_ms > stopped_ms
        return Process.UNKNOWN if is_late else process

    def take_disk(self, disk: Disk, disk_id: str, now_ms: int) -> None:
        """Take over what its claim shows of its disk."""
        if disk is not Disk.LOST or disk_id != self.disk_id:
            self.disk_lost_since_ms = None
        self.disk_id = disk_id
        if disk is Disk.LOST and self.disk_lost_since_ms is None:
            self.disk_lost_since_ms = now_ms


@final
@dataclass(eq=False)
class ShardMemory:
    """Of one shard."""

    members: dict[int, MemberMemory] = field(default_factory=dict)
    last_word: LastWord | None = None
    empty_end: int | None = None
    """Where the log of a shard that is scaled away ended when nothing was found on it."""

    empty_since_ms: int = 0
    _seen: tuple[str, LeaseRecord | None] = ("", None)
    _seen_ms: int | None = None

    def member(self, number: int) -> MemberMemory:
        """The memory of one member; a new one if it was never seen."""
        return self.members.setdefault(number, MemberMemory())

    def lease(self, uid: str, record: LeaseRecord | None, now_ms: int) -> ObservedLease:
        """The Lease with the time when this record was first seen."""
        if self._seen_ms is None or (uid, record) != self._seen:
            self._seen, self._seen_ms = (uid, record), now_ms
        return ObservedLease(record=record, seen_ms=self._seen_ms)

    def take_report(self, number: int, report: Report) -> None:
        """Keep the newest report of a member; a master's is also its last word."""
        self.member(number).take_report(report)
        self.last_word = last_word_after(self.last_word, report)

    def reset_empty(self) -> None:
        """Forget that it was empty: it holds messages."""
        self.empty_end = None

    def is_empty(self, end: int, now_ms: int, quiet_ms: int) -> bool:
        """Whether it was empty, with the same end of the log, for so long."""
        if self.empty_end != end:
            self.empty_end, self.empty_since_ms = end, now_ms
        return now_ms - self.empty_since_ms >= quiet_ms

    def take_last_word(self, word: LastWord | None) -> None:
        """Take over a last word that an operator has kept in the Lease."""
        if word is not None and (self.last_word is None or word.order > self.last_word.order):
            self.last_word = word
