"""Write the tables of the analytics by streaming queries: one for each kind of count, which writes closed windows.

Each query holds a window back until the watermark has passed its end, and emits it once and completely, since all
groups of a window close in the same batch. So columns that need a whole window (ranks, shares) are computed there. A
repeated batch emits the same windows, which replace themselves. After `availableNow` the newest windows stay in the
checkpoint until newer messages arrive; a batch run does not have this delay.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from gantry_pipelines.analytics import transforms
from gantry_pipelines.analytics.tables import TABLES, Tables, total
from gantry_pipelines.config import PipelineConfig
from gantry_pipelines.errors import JobError
from gantry_pipelines.outcome import Outcome
from gantry_spec.pipelines.kinds import AnalyticsSpec

if TYPE_CHECKING:
    from gantry_pipelines.reporting import Reporter

POLL_SECONDS: Final = 1
"""The time between two checks whether a query has ended."""

STARTUP_POLL_SECONDS: Final = 0.2
"""The time between two checks whether a query has started."""

TableBuilders = Mapping[str, Callable[[DataFrame], DataFrame]]
"""The function that computes a table from a query's windows, by table name."""


def build_queries(
    messages: DataFrame, config: PipelineConfig[AnalyticsSpec]
) -> dict[str, tuple[DataFrame, TableBuilders]]:
    """Return by name the DataFrame of each query, and the tables that are built from its closed windows."""
    window_ms = int(config.spec.window)
    timed = messages.withWatermark("storeTime", f"{int(config.spec.watermark)} milliseconds")
    found: dict[str, tuple[DataFrame, TableBuilders]] = {
        "queues": (
            transforms.queue_counts(timed, window_ms),
            {"throughput": transforms.throughput, "hot_queues": transforms.hot_queues},
        ),
        "latency": (transforms.latencies(timed, window_ms), {"latency": lambda frame: frame}),
    }
    if config.spec.hot_keys:
        builders: TableBuilders = {"hot_keys": lambda frame: transforms.hot_keys(frame, config.spec.hot_keys)}
        found["keys"] = (transforms.key_counts(timed, window_ms), builders)
    return found


def run_stream(
    messages: DataFrame,
    tables: Tables,
    config: PipelineConfig[AnalyticsSpec],
    reporter: Reporter,
    *,
    is_available_now: bool = False,
) -> Outcome:
    """Count until a stop is requested; with `is_available_now` until the present messages are counted."""
    root = Path(config.runtime.checkpoint or f"{config.runtime.destination}/_checkpoint")
    writer = _WindowWriter(tables, reporter)
    running: list[StreamingQuery] = []
    for name, (frame, builders) in build_queries(messages, config).items():
        stream = frame.writeStream.outputMode("append").queryName(f"analytics_{name}")
        stream = stream.option("checkpointLocation", str(root / name)).foreachBatch(
            writer.batch_function(name, builders)
        )
        if is_available_now:
            stream = stream.trigger(availableNow=True)
        else:
            stream = stream.trigger(processingTime=f"{int(config.spec.trigger)} milliseconds")
        running.append(stream.start())
        _wait_until_initialized(running[-1], reporter)
    reporter.stop.on_stop(lambda: _stop(running))
    try:
        wait_for_end(running, reporter)
    finally:
        _stop(running)
    if writer.failure is not None:  # a query that is being stopped may end without an error
        raise JobError(f"a window could not be written: {writer.failure}", reason="QueryFailed") from writer.failure
    return Outcome(text=f"{writer.rows} messages in closed windows", rows=writer.rows, files=writer.files)


def wait_for_end(running: Sequence[StreamingQuery], reporter: Reporter) -> None:
    """Wait until all queries have ended. Raises ``JobError`` for the first one that fails.

    After a stop request no query counts as failed, since stopping a query makes it fail, too.
    """
    while True:
        is_active = any(query.isActive for query in running)
        for query in running:
            with suppress(PySparkException):  # awaitTermination raises the error that exception() returns
                query.awaitTermination(POLL_SECONDS)
            problem = query.exception()
            if problem is not None and not reporter.stop.is_requested:
                text = (str(problem).splitlines() or [type(problem).__name__])[0][:500]
                raise JobError(f"query {query.name} failed: {text}", reason="QueryFailed") from problem
        if not is_active:
            return
        reporter.mark_alive()


def _wait_until_initialized(query: StreamingQuery, reporter: Reporter) -> None:
    """Wait until a query is initialized.

    Spark fails a query whose Python process does not start within ten seconds, so queries are started one by one.
    """
    while query.isActive and query.status["message"].startswith("Initializing"):
        if reporter.stop.wait(STARTUP_POLL_SECONDS):
            return


def _stop(running: Sequence[StreamingQuery]) -> None:
    for query in running:
        query.stop()


class _WindowWriter:
    """Writes the closed windows of all queries, one batch at a time, because the tables have one writer."""

    def __init__(self, tables: Tables, reporter: Reporter) -> None:
        self.rows = 0
        self.files = 0
        self.failure: Exception | None = None
        """The error of a window that could not be written."""

        self._tables = tables
        self._reporter = reporter
        self._lock = threading.Lock()

    def batch_function(self, name: str, builders: TableBuilders) -> Callable[[DataFrame, int], None]:
        """Return the function of a query for `foreachBatch`."""

        def write(frame: DataFrame, batch_id: int) -> None:
            frame.persist()
            try:
                found: dict[str, pa.Table] = {
                    table: make(frame).toArrow().cast(TABLES[table].schema) for table, make in builders.items()
                }
            finally:
                frame.unpersist()
            found = {table: rows for table, rows in found.items() if len(rows)}
            if not found:
                return
            with self._lock:
                try:
                    self.files += self._tables.write(f"{name}-{batch_id}", found, self._tables.progress())
                except Exception as error:
                    self.failure = error
                    raise
                self.rows += total(found, "messages")
                self._reporter.report_progress(rows=self.rows, files=self.files, batch=batch_id)

        return write
