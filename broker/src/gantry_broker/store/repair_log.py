"""The log events about repaired consume queues: each repair is reported, but a queue at most once per interval.

A damaged disk may cause a repair per read. The first one of a queue is logged at once, and those that follow within the
interval as one event, at its end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, final

from gantry_broker.store.consume_queue import ConsumeQueue

log = logging.getLogger(__name__)

REPORT_INTERVAL_MS: Final = 60_000
"""After a repair of a queue was logged, all its repairs within this time are logged as one event, at the end."""


@dataclass(frozen=True, slots=True)
class _RepairSummary:
    """The repairs of a queue since its last log message: units rebuilt and lost, the first wrong one, the reason."""

    reported_ms: int | None = None
    rebuilt: int = 0
    lost: int = 0
    first: int = 0
    reason: str = ""

    @property
    def is_empty(self) -> bool:
        return not self.rebuilt and not self.lost

    def is_due(self, now_ms: int) -> bool:
        return self.reported_ms is None or now_ms - self.reported_ms >= REPORT_INTERVAL_MS


@final
class RepairLog:
    """Counts and logs the repairs of each queue. Owned by the loop's thread."""

    def __init__(self, monotonic_ms: Callable[[], int]) -> None:
        self._monotonic_ms: Final = monotonic_ms
        self._summaries: Final[dict[ConsumeQueue, _RepairSummary]] = {}

    def note_request(self, queue: ConsumeQueue, offset: int, reason: str) -> None:
        """Remember why a repair was requested, and at which unit, if it is the first one of the next event."""
        summary = self._summaries.setdefault(queue, _RepairSummary())
        if summary.is_empty:
            self._summaries[queue] = replace(summary, first=offset, reason=reason)

    def note_repair(self, queue: ConsumeQueue, rebuilt: int, lost: int) -> None:
        """Add a finished repair, with the number of units rebuilt and lost, and log it now if that is due."""
        summary = self._summaries.setdefault(queue, _RepairSummary())
        summary = replace(summary, rebuilt=summary.rebuilt + rebuilt, lost=summary.lost + lost)
        self._summaries[queue] = summary
        now_ms = self._monotonic_ms()
        if summary.is_due(now_ms):
            self._log(queue, summary, now_ms)

    def log_deferred(self) -> None:
        """Log what was held back and is due now."""
        now_ms = self._monotonic_ms()
        for queue, summary in list(self._summaries.items()):
            if summary.reported_ms is None or not summary.is_due(now_ms):
                continue
            if summary.is_empty:
                del self._summaries[queue]
            else:
                self._log(queue, summary, now_ms)

    def reset(self) -> None:
        """Drop everything, before the log or its queues are replaced."""
        self._summaries.clear()

    def _log(self, queue: ConsumeQueue, summary: _RepairSummary, now_ms: int) -> None:
        if not summary.is_empty:
            extra = {
                "topic": queue.topic, "queue_id": queue.queue_id, "queue_offset": summary.first,
                "units_rebuilt": summary.rebuilt, "messages_lost": summary.lost, "reason": summary.reason,
            }  # fmt: skip
            log.warning("consume queue was damaged and has been rebuilt from the commit log", extra=extra)
        self._summaries[queue] = _RepairSummary(reported_ms=now_ms)
