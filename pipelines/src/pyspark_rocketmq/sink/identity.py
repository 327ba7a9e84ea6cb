"""Who writes: query, batch, partition and attempt, as far as Spark says so.

`write()` has no argument that says which batch it is for. The task's local properties do, but nobody has promised that
they will: what is not there is left out, and whoever needs it says what to do instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

QUERY_PROPERTY: Final = "sql.streaming.queryId"
BATCH_PROPERTY: Final = "streaming.sql.batchId"
RUN_PROPERTY: Final = "spark.jobGroup.id"
"""The group of a streaming query's jobs is the id of its run: another one after every start."""


@final
@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """What a task knows of itself."""

    partition: int = 0
    attempt: int = 0
    query: str | None = None
    batch: int | None = None
    run: str | None = None


def task_identity() -> TaskIdentity:
    """Of the task that runs here."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return TaskIdentity()
    batch = context.getLocalProperty(BATCH_PROPERTY)
    return TaskIdentity(
        partition=context.partitionId(), attempt=context.attemptNumber(),
        query=context.getLocalProperty(QUERY_PROPERTY), batch=int(batch) if batch and batch.isdigit() else None,
        run=context.getLocalProperty(RUN_PROPERTY),
    )  # fmt: skip
