"""The status that the operator writes into a pipeline: the last run, the progress, and the conditions."""

from __future__ import annotations

from typing import final

import msgspec

from gantry_spec.manifest.status import Condition, StatusPart


@final
class LastRun(StatusPart, frozen=True):
    """The run in progress, or otherwise the last one that ended."""

    start: str = ""
    """The time at which the run started."""

    end: str = ""
    """The time at which the run ended. Empty: it is in progress."""

    rows: int = 0
    """The number of messages that the run read."""

    bytes: int = 0
    """The number of bytes that the run read or wrote, as its job counts them."""

    files: int = 0
    """The number of files that the run wrote."""

    rows_lost: int = 0
    """The number of messages that were deleted before the run read them."""

    exit_code: int = 0
    """The exit code of the run. 0: success. docs/exit-codes.md lists the others."""

    reason: str = ""
    """The result of the run in one word."""

    message: str = ""
    """The result of the run, for people."""

    facts: dict[str, str] = msgspec.field(default_factory=dict)
    """Additional results of the job, such as the number of findings and the path of the report."""


@final
class Lag(StatusPart, frozen=True):
    """How far the pipeline is behind."""

    rows: int = 0
    """The number of available messages that are not read yet."""

    seconds: int = -1
    """The age of the oldest of these messages in seconds; -1 if it is unknown."""


@final
class QueueStatus(StatusPart, frozen=True):
    """The progress in one queue."""

    topic: str
    """The topic of the queue."""

    broker: str
    """The name of the queue's broker."""

    queue: int
    """The number of the queue."""

    done: int = 0
    """The offset up to which the queue is read."""

    latest: int = 0
    """The end offset of the queue when it was last read."""

    lag_seconds: int = -1
    """The age of the oldest unread message in seconds; -1 if it is unknown."""


@final
class PipelineStatus(StatusPart, frozen=True):
    """The observed state of the pipeline."""

    observed_generation: int = 0
    """The generation of the spec that was observed."""

    phase: str = ""
    """A summary of the state in one word, for people."""

    last_run: LastRun = LastRun()
    """The run in progress, or otherwise the last one that ended."""

    lag: Lag = Lag()
    """How far the pipeline is behind."""

    queues_total: int = 0
    """The number of queues that the pipeline reads."""

    queues: list[QueueStatus] = msgspec.field(default_factory=list)
    """The progress of the queues that are farthest behind, 50 at most."""

    checkpoint: str = ""
    """The path of the checkpoint in the pods."""

    conditions: list[Condition] = msgspec.field(default_factory=list)
    """The conditions of the pipeline: `Ready`, `Progressing`, `DataLoss`, `Degraded`."""
