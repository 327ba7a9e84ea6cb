"""The same tables by a stream: a query for each kind of count, whose closed windows are written as they come.

Each query holds a window back until its watermark has passed its end, and gives it out once, whole, since a window's
groups close in the same batch. So what needs all of a window (ranks, shares) is counted there. A batch that is done
again gives the same windows, and they replace themselves. After `availableNow` the youngest windows stay in the
checkpoint until younger messages come: expected, and what a batch run is for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
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

LOOK_SECONDS: Final = 1
BEGUN_SECONDS: Final = 0.2
Made = Mapping[str, Callable[[DataFrame], DataFrame]]


def queries(messages: DataFrame, config: PipelineConfig[AnalyticsSpec]) -> dict[str, tuple[DataFrame, Made]]:
    """By name: what is counted in a stream, and the tables that are made of its closed windows."""
    window_ms = int(config.spec.window)
    timed = messages.withWatermark("storeTime", f"{int(config.spec.watermark)} milliseconds")
    found: dict[str, tuple[DataFrame, Made]] = {
        "queues": (
            transforms.queue_counts(timed, window_ms),
            {"throughput": transforms.throughput, "hot_queues": transforms.hot_queues},
        ),
        "latency": (transforms.latencies(timed, window_ms), {"latency": lambda frame: frame}),
    }
    if config.spec.hot_keys:
        made: Made = {"hot_keys": lambda frame: transforms.hot_keys(frame, config.spec.hot_keys)}
        found["keys"] = (transforms.key_counts(timed, window_ms), made)
    return found


def run_stream(
    messages: DataFrame,
    tables: Tables,
    config: PipelineConfig[AnalyticsSpec],
    reporter: Reporter,
    *,
    is_available_now: bool = False,
) -> Outcome:
    """Count until the run is asked to stop; with `is_available_now` until what is there is counted."""
    root = Path(config.here.checkpoint or f"{config.here.destination}/_checkpoint")
    writer = _Writer(tables, reporter)
    running: list[StreamingQuery] = []
    for name, (frame, made) in queries(messages, config).items():
        stream = frame.writeStream.outputMode("append").queryName(f"analytics_{name}")
        stream = stream.option("checkpointLocation", str(root / name)).foreachBatch(writer.batch(name, made))
        if is_available_now:
            stream = stream.trigger(availableNow=True)
        else:
            stream = stream.trigger(processingTime=f"{int(config.spec.trigger)} milliseconds")
        running.append(stream.start())
        _wait_begun(running[-1], reporter)
    reporter.stop.on_stop(lambda: _stop(running))
    while any(query.isActive for query in running):
        for query in running:
            query.awaitTermination(LOOK_SECONDS)
            _raise_failed(query, running)
        reporter.alive()
    for query in running:
        _raise_failed(query, running)
    return Outcome(text=f"{writer.rows} messages in closed windows", rows=writer.rows, files=writer.files)


def _raise_failed(query: StreamingQuery, running: list[StreamingQuery]) -> None:
    problem = query.exception()
    if problem is None:
        return
    _stop(running)
    raise JobError(f"the query {query.name} ended: {str(problem).splitlines()[0][:500]}", reason="QueryFailed")


def _wait_begun(query: StreamingQuery, reporter: Reporter) -> None:
    """Each query starts a Python of its own for its source, which has ten seconds to answer: one at a time."""
    while query.isActive and query.status["message"].startswith("Initializing"):
        if reporter.stop.wait(BEGUN_SECONDS):
            return


def _stop(running: list[StreamingQuery]) -> None:
    for query in running:
        query.stop()


class _Writer:
    """Writes closed windows, of one batch after the other: the tables have one writer, the queries are several."""

    def __init__(self, tables: Tables, reporter: Reporter) -> None:
        self.rows = 0
        self.files = 0
        self._tables = tables
        self._reporter = reporter
        self._lock = threading.Lock()

    def batch(self, name: str, made: Made) -> Callable[[DataFrame, int], None]:
        """For `foreachBatch`."""

        def write(frame: DataFrame, batch_id: int) -> None:
            frame.persist()
            try:
                found: dict[str, pa.Table] = {
                    table: make(frame).toArrow().cast(TABLES[table].schema) for table, make in made.items()
                }
            finally:
                frame.unpersist()
            found = {table: rows for table, rows in found.items() if len(rows)}
            if not found:
                return
            with self._lock:
                self.files += self._tables.write(f"{name}-{batch_id}", found, self._tables.progress())
                self.rows += total(found, "messages")
                self._reporter.progress(rows=self.rows, files=self.files, batch=batch_id)

        return write
