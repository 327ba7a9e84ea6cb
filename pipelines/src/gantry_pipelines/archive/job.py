"""`gantry pipeline archive`: one writer with one streaming query, and the compaction and expiry of closed days.

    lock, recover -> query (plan, workers write, commit to the manifest, Spark commits) -> compact, expire -> unlock

The query's checkpoint has the ranges of a batch before anything is written. Only this process adds the files of a batch
to the manifest, in `foreachBatch`. After a stop request the run ends with its current batch or, if that takes longer
than `STOP_GRACE_S`, at once; the next run repeats the interrupted batch.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final, final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from gantry_pipelines.archive.compaction import compact, expire
from gantry_pipelines.archive.errors import ArchiveError, CannotCompact
from gantry_pipelines.archive.job_errors import extract_known_error, map_archive_errors, to_job_error
from gantry_pipelines.archive.manifest import ArchivedFile, RangeKind, file_of
from gantry_pipelines.archive.object_storage import storage_of
from gantry_pipelines.archive.settings import ArchiveParameters, parse_run_parameters
from gantry_pipelines.archive.source import ArchiveSource, sort_file_rows
from gantry_pipelines.archive.tables.reported_publication import (
    LAST_PUBLICATION_S_MAX,
    ReportedPublication,
)
from gantry_pipelines.archive.writer import ArchiveWriter
from gantry_pipelines.config import PipelineConfig
from gantry_pipelines.errors import JobError
from gantry_pipelines.job import Job
from gantry_pipelines.outcome import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, Outcome, QueueProgress
from gantry_pipelines.reporting import Reporter
from gantry_pipelines.session import NoJava, spark_session
from gantry_spec.pipelines.kinds import ArchiveSpec
from pyspark_rocketmq.model import QueueId
from pyspark_rocketmq.offsets import StreamOffset

log = logging.getLogger(__name__)

MAINTENANCE_INTERVAL_S: Final = 600.0
"""How often a continuous run checks for days to compact or to delete, after a batch. It compacts one day or, if none is
due, deletes all expired days."""

STOP_GRACE_S: Final = 20.0
"""How long a run may continue its batch after a stop request; shorter than Kubernetes' termination grace period."""

STARTS_MAX: Final = 10
"""How often a query is started that fails because of a slow start."""

SLOW_START: Final = "Python worker failed to connect back"
"""Error of a Python process of Spark that did not start within ten seconds, a limit without a setting: on a busy
machine a query may fail with it before it has done anything, and can be started again."""


@final
class ArchiveJob(Job[ArchiveSpec, ArchiveParameters]):
    """The job that writes topics to Parquet, each message exactly once."""

    name = "archive"
    spec_type = ArchiveSpec

    def parse(self, config: PipelineConfig[ArchiveSpec]) -> ArchiveParameters:
        """Return the run's parameters. Raises ConfigError."""
        return parse_run_parameters(config)

    def run(self, settings: ArchiveParameters, reporter: Reporter) -> Outcome:
        """Archive the present messages, or continuously until a stop is requested."""
        with ExitStack() as stack:
            with map_archive_errors(settings.destination):
                storage, declared = storage_of(settings.destination), settings.schemas
                writer = stack.enter_context(ArchiveWriter.open(storage, settings.format, declared=declared))
            try:
                return ArchiveRun(settings, writer, reporter).run()
            except ArchiveError as error:  # errors of Spark, such as a lost JVM, are not converted
                raise to_job_error(error) from error


class ArchiveRun:
    """One run of the archive job.

    The query's thread calls `_commit_batch`, and the thread that requests a stop calls `_stop`; all else runs in the
    main thread. `_commit_batch` and the main thread never run at the same time, except for the totals that go to the
    reporter, and the tables, which have a lock.
    """

    source: type[ArchiveSource] = ArchiveSource
    """The data source that workers run; tests replace it with one that crashes."""

    def __init__(self, settings: ArchiveParameters, writer: ArchiveWriter, reporter: Reporter) -> None:
        self._settings: Final = settings
        self._writer: Final = writer
        self._reporter: Final = reporter
        self._new_files: list[ArchivedFile] = []
        self._latest: dict[QueueId, int] = {}
        self._failure: Exception | None = None
        self._query: StreamingQuery | None = None
        self._query_started: Final = threading.Event()
        self._batch_committed: Final = threading.Event()
        self._last_maintenance_s = time.monotonic()
        self._can_compact = True
        self._tables: Final = ReportedPublication(writer, settings.tables, reporter)

    def run(self) -> Outcome:
        """Run the query to its end, then compact and expire."""
        settings, reporter = self._settings, self._reporter
        if self._writer.missing:
            reporter.warn("FilesMissing", f"{len(self._writer.missing)} archive files are missing")
        with map_archive_errors(settings.destination):
            self._tables.delete_expired_files()
        try:
            session = spark_session("gantry-archive", cores=settings.cores, conf=settings.spark_conf)
        except NoJava as error:
            raise JobError(str(error), reason="NoJava") from error
        reporter.stop.install_handlers()
        session.dataSource.register(self.source)
        for attempt in range(1, STARTS_MAX + 1):
            query = self._start_query(session)
            if self._wait_for_end(query, is_last=attempt == STARTS_MAX):
                break
            reporter.warn("SlowStart", "Spark's Python process took more than ten seconds to start; retrying")
            reporter.stop.wait(attempt)
        if not reporter.stop.is_requested:
            self._publish_tables(LAST_PUBLICATION_S_MAX)
            self._run_maintenance(limit=None)
        self._publish_tables(STOP_GRACE_S if reporter.stop.is_requested else LAST_PUBLICATION_S_MAX)
        return self._build_outcome(query)

    def _start_query(self, session: SparkSession) -> StreamingQuery:
        settings = self._settings
        frame = session.readStream.format(self.source.name()).options(**settings.options).load()
        stream = frame.writeStream.foreachBatch(self._commit_batch).option("checkpointLocation", settings.checkpoint)
        if settings.is_continuous:
            stream = stream.trigger(processingTime=f"{max(1, settings.trigger_ms)} milliseconds")
        else:
            stream = stream.trigger(availableNow=True)
        self._query_started.clear()
        self._query = stream.queryName("archive").start()
        self._query_started.set()
        self._reporter.stop.on_stop(self._stop)
        return self._query

    def _stop(self) -> None:
        """Stop the query, after its current batch if that ends within `STOP_GRACE_S`."""
        query = self._query
        assert query is not None, "expected the callback to be registered after the query has started"
        if query.isActive and query.status["isTriggerActive"]:
            self._batch_committed.wait(STOP_GRACE_S)
        query.stop()

    def _wait_for_end(self, query: StreamingQuery, *, is_last: bool) -> bool:
        """Wait until the query ends; return False if it must be started again.

        Raises the error of a failed commit, also after a stop request, and the query's error, unless a stop was
        requested: stopping a query makes it fail, too.
        """
        try:
            while not query.awaitTermination(1):
                self._reporter.mark_alive()
                with map_archive_errors(self._settings.destination):
                    self._tables.publish_rest()
        except PySparkException as error:
            if self._failure is None and self._reporter.stop.is_requested:
                return True
            if self._failure is None and SLOW_START in str(error) and not is_last:
                return False
            failure = self._failure or extract_known_error(error)
            if failure is not None:
                raise failure from error
            raise
        if self._failure is not None:  # a query that is being stopped may end without an error
            raise self._failure
        return True

    def _commit_batch(self, frame: DataFrame, batch_id: int) -> None:
        """Let the workers write the files of a batch, and add them to the archive; called in the query's thread."""
        self._query_started.wait()
        assert self._query is not None, "expected the event to be set after the query"
        files = [file_of(row.asDict()) for row in sort_file_rows(frame).collect()]
        try:
            with map_archive_errors(self._settings.destination):
                self._new_files += self._writer.commit(str(self._query.id), batch_id, files)
                self._tables.publish_batch()
            self._report_progress(batch_id)
            if self._settings.is_continuous and time.monotonic() - self._last_maintenance_s >= MAINTENANCE_INTERVAL_S:
                self._run_maintenance(limit=1)
        except Exception as error:
            self._failure = error
            raise
        finally:
            if self._reporter.stop.is_requested:
                self._batch_committed.set()

    def _run_maintenance(self, limit: int | None) -> None:
        """Compact closed days, then delete expired ones; return after `limit` compactions, without deleting."""
        with map_archive_errors(self._settings.destination):
            self._compact_and_expire(limit)
            self._tables.sweep()
        self._last_maintenance_s = time.monotonic()

    def _compact_and_expire(self, limit: int | None) -> None:
        now_ms = int(time.time() * 1000)
        done = 0
        if self._can_compact and self._writer.storage.is_folder:
            try:
                for merged in compact(self._writer, self._settings.rules, self._settings.packing, now_ms):
                    self._reporter.report_step(str(merged))
                    self._tables.publish()
                    done += 1
                    if limit is not None and done >= limit:
                        return
            except CannotCompact as error:
                self._can_compact = False
                self._reporter.warn("CannotCompact", str(error))
        if self._settings.retention_days:
            for topic, partition, count in expire(self._writer, self._settings.retention_days, now_ms):
                self._reporter.report_step(f"{topic} {partition}: {count} files have expired")
        self._tables.delete_expired_files()

    def _publish_tables(self, seconds_max: float) -> None:
        with map_archive_errors(self._settings.destination):
            self._tables.publish(seconds_max)

    # -- reports -------------------------------------------------------------------------------------------------------

    def _report_progress(self, batch_id: int) -> None:
        self._reporter.report_progress(
            **self._totals(), batch=batch_id, checkpoint=self._settings.checkpoint, queues=self._queues()
        )

    def _totals(self) -> dict[str, int]:
        """Return the totals that this run has added."""
        data = [file for file in self._new_files if file.kind is RangeKind.DATA]
        return {
            "rows": sum(file.rows for file in data),
            "bytes": sum(file.size_bytes for file in data),
            "files": len(data),
            "rows_lost": sum(file.range.count for file in self._new_files if file.kind is RangeKind.LOST),
        }

    def _queues(self) -> tuple[QueueProgress, ...]:
        if self._query is not None and self._query.lastProgress is not None:
            self._latest |= latest_offsets_of(self._query.lastProgress)
        ends = self._writer.manifest.ends()
        return tuple(
            QueueProgress(queue.topic, queue.broker, queue.number, end, max(end, self._latest.get(queue, end)))
            for queue, end in sorted(ends.items())
        )

    def _build_outcome(self, query: StreamingQuery) -> Outcome:
        """Return the outcome of the run, with the facts about the archive."""
        queues, totals, manifest = self._queues(), self._totals(), self._writer.manifest
        ends, everything = manifest.ends(), manifest.data()
        latest = {QueueId(one.topic, one.broker, one.queue): one.latest for one in queues} | self._latest
        facts = {
            "queryId": str(query.id),
            "rowsTotal": sum(file.rows for file in everything),
            "bytesTotal": sum(file.size_bytes for file in everything),
            "filesTotal": len(everything),
            "undecodedTotal": sum(file.undecoded for file in everything),
            "missingFiles": len(self._writer.missing),
            "expiredFiles": len(manifest.expired_files()),
        }
        lags = [max(0, end - ends.get(queue, 0)) for queue, end in latest.items()]
        is_stopped = self._reporter.stop.is_requested and not self._settings.is_continuous
        exit_code, reason = (EXIT_INTERRUPTED, "Interrupted") if is_stopped else (EXIT_DONE, "Done")
        if self._tables.failure and not is_stopped:
            exit_code, reason = EXIT_FAILED, "TablesBehind"
        return Outcome(
            exit_code,
            reason,
            "\n".join([build_summary(totals, facts, lags), *self._tables.summary()]),
            **totals,
            checkpoint=self._settings.checkpoint,
            queues=queues,
            facts=facts,
        )


def build_summary(totals: Mapping[str, int], facts: Mapping[str, Any], lags: Sequence[int]) -> str:
    """Return a summary for people: what a run has added, what the archive has, and its lag."""
    lines = [
        f"archived {totals['rows']} messages in {totals['files']} files, {totals['bytes']} bytes",
        f"the archive has {facts['rowsTotal']} messages in {facts['filesTotal']} files, {facts['bytesTotal']} bytes",
    ]
    if totals["rows_lost"]:
        lost = totals["rows_lost"]
        lines.append(
            f"{lost} messages were deleted before they could be archived; the manifest has their ranges as lost"
        )
    if facts["undecodedTotal"]:
        lines.append(
            f"{facts['undecodedTotal']} bodies do not have their declared schema;"
            " the column decodeError has the reasons"
        )
    if facts["missingFiles"]:
        lines.append(f"{facts['missingFiles']} archive files are missing: run gantry pipeline verify")
    behind = sum(1 for lag in lags if lag)
    if facts["expiredFiles"]:
        lines.append(f"{facts['expiredFiles']} expired files are not deleted before the tables are published")
    lines.append(f"lag: {sum(lags)} messages, in {behind} of {len(lags)} queues" if behind else "lag: 0 messages")
    return "\n".join(lines)


def latest_offsets_of(progress: Any) -> Mapping[QueueId, int]:
    """Return the ends of all queues from a query's progress."""
    for source in progress["sources"]:
        offset = source["latestOffset"]
        offset = json.loads(offset) if isinstance(offset, str) else offset
        if isinstance(offset, dict):  # null before the source's first latestOffset
            return StreamOffset.from_json(offset).ends
    return {}
