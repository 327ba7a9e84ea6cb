"""`gantry pipeline analytics`: write the closed windows that are not written yet, sample lags, create the report.

With a schedule, or `--once`, a run reads the messages of those windows in one batch, and ends. Without one a stream
counts continuously: it holds a window back until its watermark has passed, keeps unwritten windows in its checkpoint,
and writes each window once.

    [ written ....... ][ this run: closed windows ...... ][ open ... now ]
                       from                              to = now - watermark, at a window's edge
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from gantry_pipelines.analytics import transforms
from gantry_pipelines.analytics.report import write_report
from gantry_pipelines.analytics.streaming import run_stream
from gantry_pipelines.analytics.tables import TABLES, Tables, total
from gantry_pipelines.config import PipelineConfig
from gantry_pipelines.engine import spark_conf
from gantry_pipelines.errors import ConfigError, JobError
from gantry_pipelines.job import Job
from gantry_pipelines.outcome import EXIT_ABSENT, EXIT_INTERRUPTED, EXIT_UNKNOWN, Outcome
from gantry_pipelines.source_options import (
    connection_options,
    read_settings,
    select_topics,
    start_ms,
    start_options,
    topics_pattern,
)
from gantry_spec.pipelines.kinds import AnalyticsSpec
from gantry_spec.pipelines.parts import OnDataLoss
from pyspark_rocketmq.catalog import Catalog
from pyspark_rocketmq.message_times import store_times_ms
from pyspark_rocketmq.model import QueueId
from pyspark_rocketmq.settings import ReadSettings

if TYPE_CHECKING:
    from gantry_pipelines.reporting import Reporter

FindStoreTimes = Callable[[Mapping[QueueId, int]], dict[QueueId, int]]
"""Returns the store times of messages, without those of brokers that do not answer at once."""

WRITTEN_TO: Final = "writtenTo"
"""The key in the progress with the end of the written windows."""
PAUSE_SECONDS: Final = 1.0
"""The time between two attempts to read the oldest message."""
WINDOWS_AT_ONCE_MAX: Final = 100_000
"""Windows that one run writes at most; the next run writes the following ones."""
SAMPLES_DDL: Final = (
    "sampledAt timestamp, `group` string, topic string, broker string, queue int, committed bigint, begin bigint, "
    "end bigint, lagSeconds double"
)
"""The columns of lag samples, as Spark's DDL."""


@final
class WindowRange(NamedTuple):
    """A range of windows: `[begin, end)` in milliseconds since 1970, at window boundaries."""

    begin: int
    end: int

    @property
    def is_empty(self) -> bool:
        """Whether the range has no window."""
        return self.begin >= self.end


@final
@dataclass(frozen=True, slots=True)
class AnalyticsParameters:
    """The parameters of one run."""

    config: PipelineConfig[AnalyticsSpec]
    read_settings: ReadSettings
    options: tuple[tuple[str, str], ...]
    """The options of the Spark source."""

    destination: Path
    spark_conf: tuple[tuple[str, str], ...]


@final
class AnalyticsJob(Job[AnalyticsSpec, AnalyticsParameters]):
    """The job that writes the statistics of topics. Tests pass `session` and `now_ms`."""

    name = "analytics"
    spec_type = AnalyticsSpec

    def __init__(
        self, session: Callable[[AnalyticsParameters], SparkSession] | None = None,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:  # fmt: skip
        self._session = session if session is not None else _create_session
        self._now_ms = now_ms

    def parse(self, config: PipelineConfig[AnalyticsSpec]) -> AnalyticsParameters:
        """Return the run's parameters. Raises ``ConfigError``."""
        problems: list[str] = []
        if not config.runtime.destination:
            problems.append("runtime.destination: missing; set it to the folder of the tables")
        if config.spec.window < 1000:
            problems.append("window: must be at least 1s")
        if config.spec.start.startswith("group:"):
            problems.append("start: expected earliest, latest or a time; group offsets are not supported for windows")
        if problems:
            raise ConfigError(problems)
        start_options(config.spec.start)  # raises for an invalid time
        topics_pattern(config.spec.topics)  # raises for an invalid pattern
        options = connection_options(config)
        options["failOnDataLoss"] = str(config.spec.on_data_loss is OnDataLoss.FAIL).lower()
        return AnalyticsParameters(
            config, read_settings(config), tuple(options.items()), Path(config.runtime.destination),
            tuple(spark_conf(config).items()),
        )  # fmt: skip

    def run(self, settings: AnalyticsParameters, reporter: Reporter) -> Outcome:
        """Write all closed windows, or count until a stop is requested; then create the report."""
        config = settings.config
        non_waiting_settings = replace(settings.read_settings, patience_ms=0)
        with (
            Tables(settings.destination) as tables,
            Catalog(settings.read_settings) as catalog,
            Catalog(non_waiting_settings) as non_waiting_catalog,
        ):

            def find_store_times(offsets: Mapping[QueueId, int]) -> dict[QueueId, int]:
                return store_times_ms(offsets, non_waiting_catalog, settings.read_settings)

            topics = select_topics(catalog.topics(), config.spec.topics)
            if not topics:
                raise JobError(
                    "no topic matches topics.include", remedy="correct topics.include or topics.exclude",
                    reason="NoTopic", exit_code=EXIT_ABSENT,
                )  # fmt: skip
            spark = self._session(settings)
            reporter.stop.install_handlers()
            run = _AnalyticsRun(spark, settings, tables, topics, reporter)
            run.sample_lags(catalog, find_store_times, self._now_ms())
            if config.is_continuous:
                outcome = run_stream(run.open_stream(), tables, config, reporter)
            else:
                outcome = run.write_closed_windows(catalog, find_store_times, self._now_ms())
            write_report(tables, settings.destination / "report.html", self._now_ms())
            return outcome


@final
class _AnalyticsRun:
    """One run of the analytics job."""

    def __init__(
        self,
        spark: SparkSession,
        parameters: AnalyticsParameters,
        tables: Tables,
        topics: list[str],
        reporter: Reporter,
    ) -> None:
        self._spark = spark
        self._parameters = parameters
        self._tables = tables
        self._topics = topics
        self._reporter = reporter

    def sample_lags(self, catalog: Catalog, find_store_times: FindStoreTimes, now_ms: int) -> None:
        """Add a lag sample for each queue of each configured consumer group."""
        groups = self._parameters.config.spec.consumer_groups
        if not groups:
            return
        samples = lag_samples(catalog, find_store_times, groups, catalog.queues(self._topics), now_ms)
        frame = self._spark.createDataFrame(samples, SAMPLES_DDL)
        lags = transforms.consumer_lag(frame).toArrow()
        self._tables.write(f"lag-{now_ms}", {"consumer_lag": lags}, self._tables.progress())
        self._reporter.report_step("sampled consumer lag", groups=len(groups), queues=len(samples))

    def open_stream(self) -> DataFrame:
        """Return a stream of all messages from the configured start on."""
        config = self._parameters.config
        reader = self._spark.readStream.format("rocketmq").options(**dict(self._parameters.options))
        columns = [*transforms.COUNT_COLUMNS, *(["keys"] if config.spec.hot_keys else [])]
        reader = reader.option("subscribe", ",".join(self._topics)).option("columns", ",".join(columns))
        reader = reader.option("maxRowsPerTrigger", str(config.spec.limits.max_rows_per_trigger))
        return reader.options(**start_options(config.spec.start)).load()

    def write_closed_windows(self, catalog: Catalog, find_store_times: FindStoreTimes, now_ms: int) -> Outcome:
        """Read the messages of the closed windows, and write these windows."""
        config = self._parameters.config
        written_to = begin = self._tables.progress().get(WRITTEN_TO)
        if begin is None:
            begin = _start_ms(config.spec.start, now_ms) or self._oldest_ms(catalog, find_store_times, now_ms)
        if begin is None:
            return _interrupted_outcome()
        windows = closed_windows(int(begin), now_ms, int(config.spec.window), int(config.spec.watermark))
        if windows.is_empty:
            if written_to is None and config.spec.start == "latest":
                # `latest` is the time of the first run: without it each run would begin at its own time.
                self._tables.write("start", {}, {WRITTEN_TO: windows.begin})
            return Outcome(text="no window has closed since the last run")
        self._reporter.report_step("counting messages", begin=windows.begin, end=windows.end, topics=len(self._topics))
        found = self._count_windows(windows)
        if self._reporter.stop.is_requested:
            return _interrupted_outcome()
        files = self._tables.write(f"windows-{windows.begin}-{windows.end}", found, {WRITTEN_TO: windows.end}, windows)
        rows = total(found, "messages")
        size = total(found, "bytes")
        self._reporter.report_progress(rows=rows, bytes=size, files=files)
        count = (windows.end - windows.begin) // int(config.spec.window)
        return Outcome(text=f"{count} windows with {rows} messages", rows=rows, bytes=size, files=files)

    def _count_windows(self, windows: WindowRange) -> dict[str, pa.Table]:
        config = self._parameters.config
        window_ms = int(config.spec.window)
        messages = transforms.stored_between(self._read_messages(windows, transforms.COUNT_COLUMNS), *windows).persist()
        try:
            counts = transforms.queue_counts(messages, window_ms).persist()
            found = {
                "throughput": transforms.throughput(counts).toArrow(),
                "hot_queues": transforms.hot_queues(counts).toArrow(),
                "latency": transforms.latencies(messages, window_ms).toArrow(),
            }
            counts.unpersist()
        finally:
            messages.unpersist()
        if config.spec.hot_keys:
            keyed = transforms.stored_between(self._read_messages(windows, transforms.KEY_COLUMNS), *windows)
            keys = transforms.key_counts(keyed, window_ms)
            found["hot_keys"] = transforms.hot_keys(keys, config.spec.hot_keys).toArrow()
        return {name: table.cast(TABLES[name].schema) for name, table in found.items()}

    def _read_messages(self, windows: WindowRange, columns: tuple[str, ...]) -> DataFrame:
        reader = self._spark.read.format("rocketmq").options(**dict(self._parameters.options))
        return reader.options(
            subscribe=",".join(self._topics), columns=",".join(columns), startingTimestamp=str(windows.begin),
            startingOffsetsByTimestampStrategy="latest", endingTimestamp=str(windows.end),
        ).load()  # fmt: skip

    def _oldest_ms(self, catalog: Catalog, find_store_times: FindStoreTimes, now_ms: int) -> int | None:
        """Return the store time of the oldest message; None if a stop was requested while it could not be read.

        An unavailable broker fails the run instead of being skipped.
        """
        bounds = catalog.bounds(catalog.queues(self._topics))
        first = {queue: one.begin for queue, one in bounds.items() if one.begin < one.end}
        deadline = time.monotonic() + self._parameters.read_settings.patience_ms / 1000
        while True:
            known = find_store_times(first)
            if known.keys() == first.keys():
                return min(known.values(), default=now_ms)
            if self._reporter.stop.is_requested:
                return None
            if time.monotonic() >= deadline:
                unreadable = ", ".join(sorted(str(queue) for queue in first.keys() - known.keys())[:5])
                raise JobError(
                    f"cannot read the store time of the oldest messages of {unreadable}",
                    remedy="check that their brokers are available, or set `start` to a time",
                    reason="NoReplica", exit_code=EXIT_UNKNOWN,
                )  # fmt: skip
            self._reporter.mark_alive()
            self._reporter.stop.wait(PAUSE_SECONDS)


def _interrupted_outcome() -> Outcome:
    """Return the outcome of a run that was asked to stop before it wrote anything."""
    return Outcome(EXIT_INTERRUPTED, "Interrupted", "interrupted; nothing was written")


def closed_windows(begin_ms: int, now_ms: int, window_ms: int, watermark_ms: int) -> WindowRange:
    """Return the windows from `begin` on that are closed at `now`, at most `WINDOWS_AT_ONCE_MAX`."""
    begin = begin_ms // window_ms * window_ms
    end = (now_ms - watermark_ms) // window_ms * window_ms
    return WindowRange(begin, max(begin, min(end, begin + WINDOWS_AT_ONCE_MAX * window_ms)))


def lag_samples(
    catalog: Catalog, find_store_times: FindStoreTimes, groups: Sequence[str], queues: Sequence[QueueId], now_ms: int
) -> list[tuple[Any, ...]]:
    """Return a row for each group and each queue of the topics in which the group has committed an offset."""
    bounds = catalog.bounds(queues) if groups and queues else {}
    moment = datetime.fromtimestamp(now_ms / 1000, UTC)
    rows: list[tuple[Any, ...]] = []
    for group in groups:
        committed = catalog.group_offsets(group, queues)
        queues_with_offset = {queue for queue, offset in committed.items() if offset is not None}
        topics = {queue.topic for queue in queues_with_offset}
        start_offsets = {
            queue: max(committed[queue] or 0, bounds[queue].begin)
            for queue in queues if queue.topic in topics
        }  # fmt: skip
        behind = {queue: offset for queue, offset in start_offsets.items() if offset < bounds[queue].end}
        ages = find_store_times(behind) if behind else {}
        for queue in sorted(start_offsets):
            age = ages.get(queue)
            seconds = 0.0 if queue not in behind else (None if age is None else max(now_ms - age, 0) / 1000)
            rows.append(
                (moment, group, queue.topic, queue.broker, queue.number, committed[queue], bounds[queue].begin,
                 bounds[queue].end, seconds)
            )  # fmt: skip
    return rows


def _start_ms(start: str, now_ms: int) -> int:
    """Return the start time in milliseconds; 0 stands for the time of the oldest message."""
    edges = {"earliest": 0, "latest": now_ms}
    return edges[start] if start in edges else start_ms(start)


def _create_session(parameters: AnalyticsParameters) -> SparkSession:
    from gantry_pipelines.session import spark_session

    cores = parameters.config.spec.engine.cores or None
    return spark_session("gantry-analytics", cores=cores, conf=dict(parameters.spark_conf))
