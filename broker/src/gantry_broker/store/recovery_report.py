"""The report of a recovery: what a start found and did."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Final

from gantry_broker.store.loss import LostRange, describe_missing

log = logging.getLogger(__name__)

DAMAGE_LOGGED_MAX: Final = 100
"""How many damaged ranges are logged one by one; the report has all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    """The outcome of opening a store."""

    is_clean: bool
    """Whether the last run stopped cleanly, and no missing log file has returned since."""

    start: int
    """The offset from which the log was read."""

    end: int = 0
    """The end of the log after recovery."""

    records: int = 0
    """The number of records that were read."""

    cut_bytes: int = 0
    """The size of the torn tail: the bytes after the end, in its file, up to the last one that was not zero."""

    cut_records: int = 0
    """Number of whole records after the end, in any file, that were cut off with the torn tail.

    They were not known to be flushed; with asynchronous flush they may have been acknowledged.
    """

    damaged: list[tuple[int, int]] = field(default_factory=list)
    """Half-open ranges of damaged bytes that were skipped."""

    lost_flushed_bytes: int = 0
    """Bytes that had been flushed, or written before a kill, and are lost.

    Above 0 only if the disk reported a sync that it had not done, if it lost bytes later, or if log files or write
    buffers are gone.
    """

    missing: list[LostRange] = field(default_factory=list)
    """Ranges that sealed files have recorded and the log lacks, without those that an administrator has accepted."""

    queue_ends: dict[str, dict[str, int]] = field(default_factory=dict)
    """Ends of queues at a kill, by topic and queue id, where they are known and higher than in the recovery point."""

    queues_rebuilt: list[tuple[str, int]] = field(default_factory=list)
    """Topic and queue id of each queue that was rebuilt from the log."""

    is_index_rebuilt: bool = False
    replayed_bytes: int = 0
    """Bytes that were only in write buffers and were written to the log."""

    replayed_records: int = 0
    """Number of records in ``replayed_bytes``."""

    set_aside: list[str] = field(default_factory=list)
    """The paths of log files of other stores, and of copies of write buffers that do not belong to this log."""

    buffers_present: int = 0
    """How many write buffers earlier starts have left, empty or not."""

    had_failed_flush: bool = False
    """Whether the last run ended because a write or a sync failed."""

    unknown_topics: int = 0
    """Records whose topic cannot be the name of a directory; they are only in the log."""

    @property
    def is_lossless(self) -> bool:
        """Whether nothing was lost or set aside: the same rule as that of ``RepairPlan``, for what was done."""
        return not (self.damaged or self.lost_flushed_bytes or self.missing or self.set_aside or self.cut_records)

    def log_summary(self) -> None:
        """Log the report: damage first, then losses and a torn tail, then the rest in one line."""
        for damage_start, damage_end in self.damaged[:DAMAGE_LOGGED_MAX]:
            log.error(
                "commit log is damaged; the records around the damage are served",
                extra={"offset": damage_start, "end": damage_end, "ranges": len(self.damaged)},
            )
        if self.missing:
            log.error(
                "durable log data is missing",
                extra={
                    "ranges": [str(lost) for lost in self.missing],
                    "causes": [lost.cause.value for lost in self.missing],
                    "lost_flushed_bytes": self.lost_flushed_bytes,
                    "reason": describe_missing(self.missing),
                    "remedy": "restore the files, follow a master that has them, or run `gantry ha accept-loss`",
                },
            )
        if self.cut_bytes or self.cut_records or (self.lost_flushed_bytes and not self.missing):
            lost = {"end": self.end, "cut_bytes": self.cut_bytes, "lost_flushed_bytes": self.lost_flushed_bytes}
            lost |= {"cut_records": self.cut_records}
            log.warning("commit log had a torn tail, which was cut off", extra=lost)
        extra = {"start": self.start, "end": self.end, "records": self.records}
        if self.replayed_bytes:
            extra |= {"replayed_bytes": self.replayed_bytes, "replayed_records": self.replayed_records}
        log.info("store recovered", extra=extra)
