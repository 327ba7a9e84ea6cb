"""What a start found and did: for its caller, its log and its tests."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Final

from gantry_broker.store.loss import LostRange, describe_missing

log = logging.getLogger(__name__)

DAMAGE_LOGGED_MAX: Final = 100
"""Damaged ranges that are named one by one; the report has all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    """What an open found and did."""

    is_clean: bool
    """Whether the last run ended well."""

    start: int
    """From where the log was read."""

    end: int = 0
    """Where the log ends."""

    records: int = 0
    """How many records were read."""

    cut_bytes: int = 0
    """Bytes behind the end that were not zero: the torn tail."""

    damaged: list[tuple[int, int]] = field(default_factory=list)
    """Half-open ranges of rot, reported and stepped over."""

    lost_flushed_bytes: int = 0
    """Bytes that had been flushed and are gone. Above 0 only if the disk lied or lost them, or files were deleted."""

    missing: list[LostRange] = field(default_factory=list)
    """Ranges that sealed files vouch for and the log lacks, but for those that an operator has accepted."""

    queue_ends: dict[str, dict[str, int]] = field(default_factory=dict)
    """Topic, queue id, end of the queue at a kill, where that is known and lies behind the recovery point's."""

    queues_rebuilt: list[tuple[str, int]] = field(default_factory=list)
    is_index_rebuilt: bool = False
    replayed_bytes: int = 0
    """Bytes that were in write buffers only, and are in the log now."""

    replayed_records: int = 0
    set_aside: list[str] = field(default_factory=list)
    """Where the content of write buffers was put that does not belong into this log."""

    buffers_present: int = 0
    """How many write buffers earlier starts have left, whatever is in them."""

    had_failed_flush: bool = False
    """Whether the last run ended because the disk did not take something."""

    unknown_topics: int = 0
    """Records of topics whose names cannot name a directory; they are in the log only."""

    def say(self) -> None:
        """Into the log: damage first, then what was lost, then the rest in a line."""
        for damage_start, damage_end in self.damaged[:DAMAGE_LOGGED_MAX]:
            log.error(
                "the log is damaged here; its neighbours are served",
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
                    "remedy": "bring the files back, follow a master that has them, or run `gantry ha accept-loss`",
                },
            )
        if self.cut_bytes or self.lost_flushed_bytes:
            lost = {"end": self.end, "cut_bytes": self.cut_bytes, "lost_flushed_bytes": self.lost_flushed_bytes}
            log.warning("the log's tail was damaged and has been cut off", extra=lost)
        facts = {"start": self.start, "end": self.end, "records": self.records}
        if self.replayed_bytes:
            facts |= {"replayed_bytes": self.replayed_bytes, "replayed_records": self.replayed_records}
        log.info("store recovered", extra=facts)
