"""The result of a run: totals, exit code, a reason for programs, and a sentence for people."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, final

EXIT_DONE: Final = 0
EXIT_FAILED: Final = 1
"""The job failed; for a checking job: it found differences."""
EXIT_CONFIG: Final = 2
"""The configuration is invalid, or contradicts the archive."""
EXIT_ABSENT: Final = 3
"""A topic, an archive or a group was not found."""
EXIT_UNKNOWN: Final = 4
"""The result is unknown: the required servers are unavailable."""
EXIT_DATA_LOSS: Final = 5
"""Messages were lost, or a log has forked: an administrator must decide how to continue."""
EXIT_INTERRUPTED: Final = 130
"""The run was stopped on request before it was done."""


@final
@dataclass(frozen=True, slots=True)
class QueueProgress:
    """How far one queue has been read. Offsets are ends of half-open ranges."""

    topic: str
    broker: str
    queue: int
    done: int
    """The offset up to which the queue is read."""

    latest: int
    """The end offset of the queue when it was last read."""

    lag_seconds: float | None = None
    """The age of the oldest unread message; None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """The counters of a run so far, and the offsets that it has reached."""

    rows: int = 0
    """The number of messages that were read."""

    bytes: int = 0
    """The bytes that were read or written, as the job counts them."""

    files: int = 0
    """The number of files that were written."""

    rows_lost: int = 0
    """Messages that were deleted before they could be read."""

    batch: int = -1
    """Number of the last completed batch; -1: none."""

    checkpoint: str = ""
    """The folder of Spark's checkpoint; empty without one."""

    queues: tuple[QueueProgress, ...] = ()

    @property
    def rows_behind(self) -> int:
        """The number of messages that are stored and not yet read."""
        return sum(max(0, one.latest - one.done) for one in self.queues)

    @property
    def seconds_behind(self) -> float | None:
        """The age of the oldest unread message of the queues for which it is known, in seconds; None without any."""
        known = [one.lag_seconds for one in self.queues if one.lag_seconds is not None]
        return max(known) if known else None


@final
@dataclass(frozen=True, slots=True)
class Outcome(Totals):
    """The end of a run; totals that it sets override those that were reported as progress."""

    exit_code: int = EXIT_DONE
    reason: str = "Done"
    """Stable CamelCase word for programs; the operator uses it as a condition's reason."""

    text: str = ""
    """Summary of the run for people."""

    facts: dict[str, Any] = field(default_factory=dict)
    """Further results of this job as JSON values, for example the path of a report or counts by kind of finding."""

    def apply_to(self, totals: Totals) -> Totals:
        """Return the given totals, overridden by those that this outcome sets."""
        own = {one.name: value for one in fields(Totals) if (value := getattr(self, one.name)) != one.default}
        return replace(totals, **own)
