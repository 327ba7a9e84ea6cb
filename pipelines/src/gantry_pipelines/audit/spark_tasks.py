"""The tasks of an audit on Spark: a row for each chunk goes in, rows of what was found come out.

The transform is `looked`: it knows nothing of copies, and everything that a worker needs is in the row. Tasks run in
waves, so that a run can say how far it is, and end when it is asked to.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from gantry_pipelines.audit.errors import AuditError, Interrupted
from gantry_pipelines.audit.frames import ROWS_DDL, rows_batch, rows_of
from gantry_pipelines.audit.model import Row
from gantry_pipelines.audit.running import AuditTask, RunTasks, run_task

if TYPE_CHECKING:
    from gantry_pipelines.reporting import Reporter

CHUNKS_DDL: Final = "broker string, begin bigint, end bigint, task binary"
WAVE_TASKS: Final = 8
"""For each core: a task may be long, and a wave ends with its longest."""


def looked(chunks: DataFrame) -> DataFrame:
    """What is found in chunks."""
    return chunks.select("task").mapInArrow(_look, ROWS_DDL)


def _look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for row in batch.to_pylist():
            yield rows_batch(run_task(pickle.loads(row["task"])))


def chunks_frame(spark: SparkSession, tasks: list[AuditTask]) -> DataFrame:
    """Tasks as rows, one for each partition."""
    rows = [(task.chunk.broker, *task.chunk.span, pickle.dumps(task)) for task in tasks]
    return spark.createDataFrame(rows, CHUNKS_DDL).repartition(max(len(rows), 1))


def on_spark(spark: SparkSession, reporter: Reporter | None = None) -> RunTasks:
    """A way to run the tasks of `running.audit`."""

    def run(tasks: list[AuditTask]) -> Iterable[Row]:
        wave = max(spark.sparkContext.defaultParallelism, 1) * WAVE_TASKS
        done = 0
        for start in range(0, len(tasks), wave):
            if reporter is not None and reporter.stop.is_asked:
                raise Interrupted(f"{start} of {len(tasks)} chunks were looked at")
            part = tasks[start : start + wave]
            yield from rows_of(_collected(looked(chunks_frame(spark, part))))
            done += sum(task.chunk.span.length for task in part)
            if reporter is not None:
                reporter.progress(rows=start + len(part), bytes=done)

    return run


def _collected(frame: DataFrame) -> pa.Table:
    """Raises ``AuditError`` with the words of the task that raised one, and not with a stack of two languages."""
    try:
        return frame.toArrow()
    except Exception as error:
        text = next((line for line in str(error).splitlines() if "gantry_pipelines.audit.errors." in line), "")
        if not text:
            raise
        raise AuditError(text.partition("gantry_pipelines.audit.errors.")[2].partition(": ")[2]) from error
