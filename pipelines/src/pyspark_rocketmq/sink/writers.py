"""The writers that Spark calls. Spark creates one in the driver; its copies write and commit.

write()    in a task; the driver gets nothing but its return value
commit()   in the driver, when all tasks have succeeded; for a stream with the number of the batch
abort()    in the driver, when a task has failed, or when commit() has raised
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterator, Sequence
from typing import Final, final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from gantry_wire.structs import make_structs_ready
from pyspark_rocketmq.errors import InvalidOption
from pyspark_rocketmq.sink.columns import Columns
from pyspark_rocketmq.sink.driver import Driver
from pyspark_rocketmq.sink.options import SinkOptions
from pyspark_rocketmq.sink.tasks import TaskResult, run_task, task_identity

log = logging.getLogger(__name__)
ONE_BATCH: Final = 0
"""The batch number of a write that is not a stream, and has only one batch."""

Messages = Sequence[WriterCommitMessage | None]
"""The results of tasks; None for a task that has failed."""


@final
class BatchWriter(DataSourceArrowWriter):
    """`df.write.format("rocketmq")`: at least once, or exactly once with the option transactional.

    With the option queryId this also holds if the whole write is repeated, for example by another process.
    """

    def __init__(self, options: SinkOptions, columns: Columns) -> None:
        self._options = options
        self._columns = columns
        self._query = options.query or f"write-{secrets.token_hex(8)}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        """Send the rows of a task."""
        return run_task(iterator, self._options, self._columns, self._query, ONE_BATCH, task_identity())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the write in the driver."""
        _commit(self._options, messages, ONE_BATCH, is_new_query=self._options.query is None)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Roll back the write in the driver."""
        _abort(self._options, messages, ONE_BATCH, is_new_query=self._options.query is None)


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer behind `df.writeStream.format("rocketmq")` in Spark."""

    def __init__(self, options: SinkOptions, columns: Columns) -> None:
        self._options = options
        self._columns = columns
        self._fallback_query = f"write-{secrets.token_hex(8)}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        """Send the rows of a task."""
        task = task_identity()
        query, batch = task.query or self._options.query, task.batch
        if (query is None or batch is None) and self._options.is_transactional:
            missing = "query" if query is None else "batch"
            raise InvalidOption(
                f"transactional=true: this Spark does not give tasks the id of their {missing}"
                + ("; name the query with option queryId, another name for another checkpoint" if query is None else "")
            )
        return run_task(
            iterator, self._options, self._columns, query or self._fallback_query, -1 if batch is None else batch, task
        )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit a batch in the driver."""
        _commit(self._options, messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Roll back a batch in the driver."""
        _abort(self._options, messages, batchId)


def _commit(options: SinkOptions, messages: Messages, batch: int, *, is_new_query: bool = False) -> None:
    done = _task_results(messages)
    unsure = sum(one.unsure for one in done)
    if unsure:
        log.warning("messages stored without full flush or replication", extra={"count": unsure})
    if not options.is_transactional or not done:
        return
    asyncio.run(_make_driver(options, done, batch, is_new_query).commit(done))


def _abort(options: SinkOptions, messages: Messages, batch: int, *, is_new_query: bool = False) -> None:
    done = _task_results(messages)
    if options.is_transactional and done:
        asyncio.run(
            _make_driver(options, done, batch, is_new_query).abort(done, is_full_batch=len(done) == len(messages))
        )


def _make_driver(options: SinkOptions, done: Sequence[TaskResult], batch: int, is_new_query: bool) -> Driver:
    make_structs_ready()
    first = done[0]
    assert all((one.query, one.batch) == (first.query, batch) for one in done), "all tasks are of one batch"
    return Driver(options, first.query, batch, first.identity.run, is_new_query=is_new_query)


def _task_results(messages: Messages) -> list[TaskResult]:
    return [message for message in messages if isinstance(message, TaskResult)]
