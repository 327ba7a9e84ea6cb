"""How a run ends: its exit code, one word for programs, a sentence for people, and how far its queues are read."""

from __future__ import annotations

from dataclasses import dataclass, field
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


@final
@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended."""

    exit_code: int = EXIT_DONE
    reason: str = "Done"
    """One stable word in CamelCase, for programs; the operator makes it a condition's reason."""

    text: str = ""
    """A sentence for people."""

    rows: int = 0
    bytes: int = 0
    files: int = 0
    rows_lost: int = 0
    """Messages that were gone before they were read."""

    checkpoint: str = ""
    queues: tuple[QueueProgress, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    """More of this job's own, as JSON can say it: the path of a report, counts by kind of finding."""
