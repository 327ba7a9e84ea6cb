"""What the operator writes back into a pipeline: how the last run ended, how far it is, and whether all is well."""

from __future__ import annotations

from typing import final

import msgspec

from gantry_spec.manifest.status import Condition, StatusPart


@final
class LastRun(StatusPart, frozen=True):
    """The run that is under way, or else the one that ended last."""

    start: str = ""
    """When it began."""

    end: str = ""
    """When it ended; empty: it has not."""

    rows: int = 0
    """Messages that it read."""

    bytes: int = 0
    """Bytes that it read or wrote, as its job counts them."""

    files: int = 0
    """Files that it wrote."""

    rows_lost: int = 0
    """Messages that were gone before it came."""

    exit_code: int = 0
    """0: done. docs/exit-codes.md has the others."""

    reason: str = ""
    """How it ended, in one word."""

    message: str = ""
    """How it ended, in a sentence."""

    facts: dict[str, str] = msgspec.field(default_factory=dict)
    """More of its job's own: counts of findings, the path of a report."""


@final
class Lag(StatusPart, frozen=True):
    """How far it is behind."""

    rows: int = 0
    """Messages that were there and not read."""

    seconds: int = 0
    """How old the oldest of them was, as far as is known."""


@final
class QueueStatus(StatusPart, frozen=True):
    """How far one queue is read."""

    topic: str
    """Of which topic."""

    broker: str
    """On which broker."""

    queue: int
    """Its number."""

    done: int = 0
    """The offset up to which it is read."""

    latest: int = 0
    """The offset up to which it was there."""

    lag_seconds: int = 0
    """How old the oldest message is that is not read, as far as is known."""


@final
class PipelineStatus(StatusPart, frozen=True):
    """What was seen last."""

    observed_generation: int = 0
    """Of the spec that was looked at."""

    phase: str = ""
    """In one word, for people."""

    last_run: LastRun = LastRun()
    """The run that is under way, or else the one that ended last."""

    lag: Lag = Lag()
    """How far it is behind."""

    queues_total: int = 0
    """How many queues it reads."""

    queues: list[QueueStatus] = msgspec.field(default_factory=list)
    """Those that are farthest behind, 50 at most."""

    checkpoint: str = ""
    """Where its checkpoint is, as its pods see it."""

    conditions: list[Condition] = msgspec.field(default_factory=list)
    """What is so or not: `Ready`, `Progressing`, `DataLoss`, `Degraded`."""
