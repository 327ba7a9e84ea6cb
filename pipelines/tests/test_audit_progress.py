"""The totals that an audit reports, without Spark and without copies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from gantry_pipelines.audit import spark_tasks
from gantry_pipelines.audit.frames import rows_batch
from gantry_pipelines.audit.job import AuditJob, build_outcome
from gantry_pipelines.audit.model import Coverage, Row, Span
from gantry_pipelines.audit.result import ArchiveResult, AuditResult
from gantry_pipelines.config import config_of
from gantry_pipelines.reporting import Reporter
from gantry_spec.pipelines.kinds import AuditSpec


@dataclass(frozen=True)
class CountedTask:
    """A task that has checked a number of records, with 100 bytes each."""

    records: int

    @property
    def size_bytes(self) -> int:
        return self.records * 100

    def rows(self) -> Iterator[Row]:
        yield Coverage("broker-a", Span(0, 0), self.records, 0, 0, 0)


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A session of one core, whose tasks run in this process."""

    def run_here(_: object, tasks: Sequence[CountedTask]) -> pa.Table:
        return pa.Table.from_batches([rows_batch(task.rows()) for task in tasks])

    monkeypatch.setattr(spark_tasks, "tasks_frame", run_here)
    monkeypatch.setattr(spark_tasks, "run_audit_tasks", lambda table: table)
    monkeypatch.setattr(spark_tasks, "_collect", lambda table: table)
    return SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=1))


def test_progress_counts_messages_of_the_log_and_of_the_archive(spark: Any) -> None:
    """The unit of progress is a message and not a task; an archive's files are added to the chunks of the log."""
    reporter = Reporter("audit")
    run = spark_tasks.spark_task_runner(spark, reporter)

    assert len(list(run([CountedTask(records=1000)] * 10))) == 10
    assert (reporter.totals.rows, reporter.totals.bytes) == (10_000, 1_000_000)

    list(run([CountedTask(records=50)]))
    assert (reporter.totals.rows, reporter.totals.bytes) == (10_050, 1_005_000)


def test_outcome_of_an_audit_of_only_an_archive_has_its_messages() -> None:
    """The totals of the result are those of the archive if no log was compared."""
    document = {"nameServers": ["127.0.0.1:1"], "checks": ["archive"], "runtime": {"archive": "/archive"}}
    reporter = Reporter("audit")
    result = AuditResult(0.0, 1.0, (), ArchiveResult(files=8, rows=650, findings=(), notes=()))

    outcome = build_outcome(result, AuditJob().parse(config_of(document, AuditSpec)), reporter)

    assert (outcome.rows, outcome.apply_to(reporter.totals).rows) == (650, 650)
