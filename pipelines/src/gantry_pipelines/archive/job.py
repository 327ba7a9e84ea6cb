"""`gantry pipeline archive`: one writer, one query, and what belongs to it: days that are over, and those that are
too old.

    lock, tidy up -> query (plan, workers write, enter in the manifest, Spark commits) -> compact, expire -> unlock

The query is Spark's: its checkpoint says which ranges a batch has before anything is written. What a batch wrote is
entered in the manifest by this process alone, in `foreachBatch`. A run that is asked to stop
ends behind its batch, or, where that takes long, at once: what was under way is done again by the next one.
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
from gantry_pipelines.archive.exits import at_work, job_error, own_error
from gantry_pipelines.archive.manifest import ArchivedFile, Kind, file_of
from gantry_pipelines.archive.objects import storage_of
from gantry_pipelines.archive.settings import ArchiveParameters, run_settings
from gantry_pipelines.archive.source import ArchiveSource, transform
from gantry_pipelines.archive.writer import ArchiveWriter
from gantry_pipelines.config import PipelineConfig
from gantry_pipelines.errors import JobError
from gantry_pipelines.job import Job
from gantry_pipelines.outcome import EXIT_DONE, EXIT_INTERRUPTED, Outcome, QueueProgress
from gantry_pipelines.reporting import Reporter
from gantry_pipelines.session import NoJava, spark_session
from gantry_spec.pipelines.kinds import ArchiveSpec
from pyspark_rocketmq.model import QueueId
from pyspark_rocketmq.offsets import StreamOffset

log = logging.getLogger(__name__)

UPKEEP_INTERVAL_S: Final = 600.0
"""How often a continuous run looks for days to compact or to delete; one is done between two batches."""

STOP_GRACE_S: Final = 20.0
"""How long a run that is asked to stop may go on with its batch; less than Kubernetes waits before it kills."""

STARTS_MAX: Final = 10
SLOW_START: Final = "Python worker failed to connect back"
"""Spark gives its own Python process ten seconds to start, and no setting changes that: on a busy machine it fails,
with nothing done, and may be tried again."""


@final
class ArchiveJob(Job[ArchiveSpec, ArchiveParameters]):
    """Topics to Parquet, each message once."""

    name = "archive"
    spec_type = ArchiveSpec

    def parse(self, config: PipelineConfig[ArchiveSpec]) -> ArchiveParameters:
        """What the run needs."""
        return run_settings(config)

    def run(self, settings: ArchiveParameters, reporter: Reporter) -> Outcome:
        """Archive what is there, or go on until it is stopped."""
        with ExitStack() as stack:
            with at_work(settings.destination):
                writer = stack.enter_context(ArchiveWriter.open(storage_of(settings.destination), settings.format))
            try:
                return ArchiveRun(settings, writer, reporter).run()
            except ArchiveError as error:  # of the query's; a JVM that is gone is no trouble of the archive
                raise job_error(error) from error


class ArchiveRun:
    """One run. The query's thread calls `_enter`; all else is the main thread's. They never work at the same time,
    but for the totals that the reporter is told."""

    source: type[ArchiveSource] = ArchiveSource
    """What workers run; a test puts one there that kills them."""

    def __init__(self, settings: ArchiveParameters, writer: ArchiveWriter, reporter: Reporter) -> None:
        self._settings: Final = settings
        self._writer: Final = writer
        self._reporter: Final = reporter
        self._new: list[ArchivedFile] = []
        self._latest: dict[QueueId, int] = {}
        self._failure: Exception | None = None
        self._query: StreamingQuery | None = None
        self._has_query: Final = threading.Event()
        self._is_entered: Final = threading.Event()
        self._upkept_s = time.monotonic()
        self._can_compact = True

    def run(self) -> Outcome:
        """To its end."""
        settings, reporter = self._settings, self._reporter
        if self._writer.missing:
            reporter.warn("FilesMissing", f"{len(self._writer.missing)} files of the archive are missing")
        try:
            session = spark_session("gantry-archive", cores=settings.cores, conf=settings.spark_conf)
        except NoJava as error:
            raise JobError(str(error), reason="NoJava") from error
        reporter.stop.arm()
        session.dataSource.register(self.source)
        for attempt in range(1, STARTS_MAX + 1):
            query = self._started(session)
            if self._ended(query, is_last=attempt == STARTS_MAX):
                break
            reporter.warn("SlowStart", "Spark's Python process took more than ten seconds to start; once more")
            reporter.stop.wait(attempt)
        if not reporter.stop.is_asked:
            self._keep_up(limit=None)
        return self._outcome(query)

    def _started(self, session: SparkSession) -> StreamingQuery:
        settings = self._settings
        frame = session.readStream.format(self.source.name()).options(**settings.options).load()
        stream = frame.writeStream.foreachBatch(self._enter).option("checkpointLocation", settings.checkpoint)
        if settings.is_continuous:
            stream = stream.trigger(processingTime=f"{max(1, settings.trigger_ms)} milliseconds")
        else:
            stream = stream.trigger(availableNow=True)
        self._has_query.clear()
        self._query = stream.queryName("archive").start()
        self._has_query.set()
        self._reporter.stop.on_stop(self._stop)
        return self._query

    def _stop(self) -> None:
        """End the query, behind the batch that it is at, if that does not take long."""
        query = self._query
        assert query is not None, "nobody can ask before it is there"
        if query.isActive and query.status["isTriggerActive"]:
            self._is_entered.wait(STOP_GRACE_S)
        query.stop()

    def _ended(self, query: StreamingQuery, *, is_last: bool) -> bool:
        """Wait for its end; False when it has to be started again. Raises what ended it."""
        try:
            while not query.awaitTermination(1):
                self._reporter.alive()
        except PySparkException as error:
            if self._reporter.stop.is_asked:
                return True
            if self._failure is None and SLOW_START in str(error) and not is_last:
                return False
            failure = self._failure or own_error(error)
            if failure is not None:
                raise failure from error
            raise
        return True

    def _enter(self, frame: DataFrame, batch_id: int) -> None:
        """A batch was written: make it part of the archive. In the query's thread."""
        self._has_query.wait()
        assert self._query is not None, "the event says so"
        files = [file_of(row.asDict()) for row in transform(frame).collect()]
        try:
            with at_work(self._settings.destination):
                self._new += self._writer.commit(str(self._query.id), batch_id, files)
            self._tell(batch_id)
            if self._settings.is_continuous and time.monotonic() - self._upkept_s >= UPKEEP_INTERVAL_S:
                self._keep_up(limit=1)
        except Exception as error:
            self._failure = error
            raise
        finally:
            if self._reporter.stop.is_asked:
                self._is_entered.set()

    def _keep_up(self, limit: int | None) -> None:
        """Join the files of days that are over, and delete days that are too old."""
        with at_work(self._settings.destination):
            self._tidy(limit)
        self._upkept_s = time.monotonic()

    def _tidy(self, limit: int | None) -> None:
        now_ms = int(time.time() * 1000)
        done = 0
        if self._can_compact and self._writer.storage.is_folder:
            try:
                for merged in compact(self._writer, self._settings.rules, self._settings.packing, now_ms):
                    self._reporter.say(str(merged))
                    done += 1
                    if limit is not None and done >= limit:
                        return
            except CannotCompact as error:
                self._can_compact = False
                self._reporter.warn("CannotCompact", str(error))
        if self._settings.retention_days:
            for topic, day, count in expire(self._writer, self._settings.retention_days, now_ms):
                self._reporter.say(f"{topic} {day}: {count} files were too old and are deleted")

    # -- what is told --------------------------------------------------------------------------------------------------

    def _tell(self, batch_id: int) -> None:
        self._reporter.progress(
            **self._totals(), batch=batch_id, checkpoint=self._settings.checkpoint, queues=self._queues()
        )

    def _totals(self) -> dict[str, int]:
        """What this run has added."""
        data = [file for file in self._new if file.kind is Kind.DATA]
        return {
            "rows": sum(file.rows for file in data),
            "bytes": sum(file.size_bytes for file in data),
            "files": len(data),
            "rows_lost": sum(file.range.count for file in self._new if file.kind is Kind.LOST),
        }

    def _queues(self) -> tuple[QueueProgress, ...]:
        if self._query is not None and self._query.lastProgress is not None:
            self._latest |= latest_of(self._query.lastProgress)
        ends = self._writer.manifest.ends()
        return tuple(
            QueueProgress(queue.topic, queue.broker, queue.number, end, max(end, self._latest.get(queue, end)))
            for queue, end in sorted(ends.items())
        )

    def _outcome(self, query: StreamingQuery) -> Outcome:
        queues, totals, manifest = self._queues(), self._totals(), self._writer.manifest
        ends, everything = manifest.ends(), manifest.data()
        latest = {QueueId(one.topic, one.broker, one.queue): one.latest for one in queues} | self._latest
        facts = {
            "queryId": str(query.id),
            "rowsTotal": sum(file.rows for file in everything),
            "bytesTotal": sum(file.size_bytes for file in everything),
            "filesTotal": len(everything),
            "missingFiles": len(self._writer.missing),
        }
        lags = [max(0, end - ends.get(queue, 0)) for queue, end in latest.items()]
        is_stopped = self._reporter.stop.is_asked and not self._settings.is_continuous
        return Outcome(
            EXIT_INTERRUPTED if is_stopped else EXIT_DONE,
            "Interrupted" if is_stopped else "Done",
            summary_of(totals, facts, lags),
            **totals,
            checkpoint=self._settings.checkpoint,
            queues=queues,
            facts=facts,
        )


def summary_of(totals: Mapping[str, int], facts: Mapping[str, Any], lags: Sequence[int]) -> str:
    """What a run has added, what the archive has, and how many messages of how many queues it is behind, for people."""
    lines = [
        f"archived {totals['rows']} messages in {totals['files']} files, {totals['bytes']} bytes",
        f"the archive has {facts['rowsTotal']} messages in {facts['filesTotal']} files, {facts['bytesTotal']} bytes",
    ]
    if totals["rows_lost"]:
        lost = totals["rows_lost"]
        lines.append(f"{lost} messages were gone before they could be archived; their ranges are in the manifest")
    if facts["missingFiles"]:
        lines.append(f"{facts['missingFiles']} files of the archive are missing: see gantry pipeline verify")
    behind = sum(1 for lag in lags if lag)
    lines.append(f"{sum(lags)} messages behind, in {behind} of {len(lags)} queues" if behind else "nothing is behind")
    return "\n".join(lines)


def latest_of(progress: Any) -> Mapping[QueueId, int]:
    """Where queues ended when a query last looked."""
    for source in progress["sources"]:
        said = source["latestOffset"]
        said = json.loads(said) if isinstance(said, str) else said
        if isinstance(said, dict):  # null, before the source has looked
            return StreamOffset.from_json(said).ends
    return {}
