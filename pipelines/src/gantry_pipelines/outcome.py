"""What a run has done, and how it ends: totals, its exit code, one word for programs, a sentence for people."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, final

EXIT_DONE: Final = 0
EXIT_FAILED: Final = 1
"""It could not be done; or, of what only looks: something is wrong."""
EXIT_CONFIG: Final = 2
EXIT_ABSENT: Final = 3
"""A topic, an archive or a group is not there."""
EXIT_UNKNOWN: Final = 4
"""Nothing can be said: nobody answered who knows."""
EXIT_DATA_LOSS: Final = 5
"""Messages are gone, or a log has forked: a person decides."""
EXIT_INTERRUPTED: Final = 130


@final
@dataclass(frozen=True, slots=True)
class QueueProgress:
    """How far one queue is read. Offsets are ends of half-open ranges."""

    topic: str
    broker: str
    queue: int
    done: int
    latest: int
    lag_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What a run has done until now."""

    rows: int = 0
    bytes: int = 0
    files: int = 0
    rows_lost: int = 0
    """Messages that were gone before they were read."""

    batch: int = -1
    """The last one that is finished; -1: none."""

    checkpoint: str = ""
    queues: tuple[QueueProgress, ...] = ()

    @property
    def rows_behind(self) -> int:
        """How many messages are there and not read yet."""
        return sum(max(0, one.latest - one.done) for one in self.queues)

    @property
    def seconds_behind(self) -> float | None:
        """How old the oldest message is that is not read yet; None: nobody knows."""
        known = [one.lag_seconds for one in self.queues if one.lag_seconds is not None]
        return max(known) if known else None


@final
@dataclass(frozen=True, slots=True)
class Outcome(Totals):
    """How a run ended; its totals are those that were not reported before."""

    exit_code: int = EXIT_DONE
    reason: str = "Done"
    """One stable word in CamelCase, for programs; the operator makes it a condition's reason."""

    text: str = ""
    """A sentence for people."""

    facts: dict[str, Any] = field(default_factory=dict)
    """More of this job's own, as JSON can say it: the path of a report, counts by kind of finding."""

    def over(self, totals: Totals) -> Totals:
        """Return these totals, with those that this outcome has put over them."""
        own = {one.name: value for one in fields(Totals) if (value := getattr(self, one.name)) != one.default}
        return replace(totals, **own)
