"""Run the tasks of an audit on Spark: one input row for each task, and its results as output rows.

The transform is `run_audit_tasks`; everything that a worker needs is in the row. Tasks run in waves, so that a run can
report its progress, and end after a stop request.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from gantry_pipelines.audit.errors import AuditError, Interrupted
from gantry_pipelines.audit.frames import ROWS_DDL, rows_batch, rows_of
from gantry_pipelines.audit.model import Coverage, Row
from gantry_pipelines.audit.running import AnyTask, RunTasks

if TYPE_CHECKING:
    from gantry_pipelines.reporting import Reporter

TASKS_DDL: Final = "task binary"
"""The only input column: a pickled task."""

WAVE_TASKS: Final = 8
"""Tasks of a wave for each core: tasks differ in length, and a wave ends with its longest."""


def run_audit_tasks(tasks: DataFrame) -> DataFrame:
    """Return a DataFrame with the results of the tasks in a DataFrame."""
    return tasks.select("task").mapInArrow(_run_batches, ROWS_DDL)


def _run_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for row in batch.to_pylist():
            task: AnyTask = pickle.loads(row["task"])
            yield rows_batch(task.rows())


def tasks_frame(spark: SparkSession, tasks: Sequence[AnyTask]) -> DataFrame:
    """Return a DataFrame with one row, and one partition, for each task."""
    packed = [pickle.dumps(task) for task in tasks]
    rows = spark.sparkContext.parallelize([(one,) for one in packed], max(len(packed), 1))
    return spark.createDataFrame(rows, TASKS_DDL)


def spark_task_runner(spark: SparkSession, reporter: Reporter | None = None) -> RunTasks:
    """Return a function that runs the tasks of an audit on Spark, and reports the progress of all of its calls."""
    records = size_bytes = 0

    def run(tasks: Sequence[AnyTask]) -> Iterable[Row]:
        nonlocal records, size_bytes
        wave = max(spark.sparkContext.defaultParallelism, 1) * WAVE_TASKS
        for start in range(0, len(tasks), wave):
            if reporter is not None and reporter.stop.is_requested:
                raise Interrupted(f"{start} of {len(tasks)} tasks were done")
            part = tasks[start : start + wave]
            rows = list(rows_of(_collect(run_audit_tasks(tasks_frame(spark, part)))))
            yield from rows
            records += sum(row.records for row in rows if isinstance(row, Coverage))
            size_bytes += sum(task.size_bytes for task in part)
            if reporter is not None:
                reporter.report_progress(rows=records, bytes=size_bytes)

    return run


def _collect(frame: DataFrame) -> pa.Table:
    """Collect the results. Raises ``AuditError`` with the message of a task's error, without Spark's stack traces."""
    try:
        return frame.toArrow()
    except Exception as error:
        text = next((line for line in str(error).splitlines() if "gantry_pipelines.audit.errors." in line), "")
        if not text:
            raise
        raise AuditError(text.partition("gantry_pipelines.audit.errors.")[2].partition(": ")[2]) from error
