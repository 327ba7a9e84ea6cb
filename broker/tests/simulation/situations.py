"""Counts of the situations that occurred in the histories of a run, which proves nothing about others.

In the names, ``died at`` is followed by a crash point of the store; ``cut`` and ``set aside`` are results of a
recovery: a torn tail of the log was truncated, or a write buffer that does not continue the log was put elsewhere.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

SITUATIONS: Final[Counter[str]] = Counter()
"""The counts of this process."""

REQUIRED_SITUATIONS: Final = (  # situations that must occur in a long run
    "mode: async, none", "mode: async, crash-safe", "mode: async, moved", "mode: async, anonymous",
    "mode: sync, none", "mode: sync, crash-safe", "mode: sync, moved", "mode: sync, anonymous",
    "mode changed at a reopen",
    "fault: kill", "fault: kill_copying", "fault: kill_buffers_gone", "fault: kill_cold", "fault: power",
    "fault: power_torn", "fault: power_hole",
    "died at after-append", "died at mid-roll", "died at mid-commit", "died at mid-return", "died at after-sync",
    "died at mid-point", "died at mid-checkpoint", "died at mid-replay", "died at after-replay",
    "died at mid-truncation", "died at mid-recovery",
    "died in recovery", "died in append", "died in commit or flush", "died in a clean stop", "died in the removal",
    "converged after a crash in recovery", "recovered twice",
    "failed: create", "failed: write", "failed: sync", "failed: sync_directory", "failed: zero", "failed: reserve",
    "short write", "disk full", "a send was refused and space came back", "pool exhausted and drained",
    "a flush failed", "the log failed", "an open failed", "committed while a sync ran",
    "rolled", "replayed", "replayed over a roll", "cut", "refilled after a cut", "a refilled cut met another crash",
    "set aside", "stale buffers put back", "foreign buffers put back", "the head was removed",
    "queues removed", "index removed", "checkpoint removed", "point removed", "identity removed",
    "started at a recovery point", "read the whole log", "clean stop", "lost what was not promised",
    "hidden at an opening", "slaves' acks", "slaves not waited for", "died becoming a master", "died in the showing",
)  # fmt: skip


def count_situation(what: str, count: int = 1) -> None:
    """Count a situation that has occurred."""
    if count:
        SITUATIONS[what] += count


def missing_situations(counts: Counter[str]) -> list[str]:
    """Return the needed situations that a run has not met."""
    return [what for what in REQUIRED_SITUATIONS if not counts[what]]
