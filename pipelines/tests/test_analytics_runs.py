"""Scheduled runs of the analytics job, with a log in memory and without Spark."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from spark_kit.fake_catalog import FakeCatalog

from gantry_pipelines.analytics import job as analytics_job
from gantry_pipelines.analytics.job import WRITTEN_TO, AnalyticsJob, WindowRange
from gantry_pipelines.analytics.tables import TABLES, Tables
from gantry_pipelines.config import config_of
from gantry_pipelines.errors import JobError
from gantry_pipelines.outcome import EXIT_INTERRUPTED, EXIT_UNKNOWN, Outcome
from gantry_pipelines.reporting import Reporter
from gantry_spec.pipelines.kinds import AnalyticsSpec
from pyspark_rocketmq.model import QueueId
from pyspark_rocketmq.settings import ReadSettings

QUEUE = QueueId("orders", "broker-a", 0)
MINUTE_MS = 60_000
NOW_MS = 1_795_348_800_000 + 12_345
"""Not at the edge of a window."""


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> FakeCatalog:
    """The log that the job reads."""
    log = FakeCatalog()
    log.add_queue(QUEUE.topic, QUEUE.broker, QUEUE.number)

    class Catalog:
        def __init__(self, _: object) -> None:
            """Ignore the settings: there is no network."""

        def __enter__(self) -> FakeCatalog:
            return log

        def __exit__(self, *_: object) -> None:
            log.close()

    monkeypatch.setattr(analytics_job, "Catalog", Catalog)
    return log


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[WindowRange]:
    """The ranges of windows that runs have counted; they have no messages."""
    ranges: list[WindowRange] = []

    def count_windows(_: object, windows: WindowRange) -> dict[str, Any]:
        ranges.append(windows)
        return {}

    monkeypatch.setattr(analytics_job._AnalyticsRun, "_count_windows", count_windows)
    return ranges


def run(
    root: Path, start: str, now_ms: int, reporter: Reporter | None = None, session: Any = None, **more: object
) -> Outcome:
    """Run the job once at a time, with windows of a minute that close at their end."""
    document = {
        "nameServers": ["127.0.0.1:1"], "topics": {"include": ["orders"]}, "window": "60s", "watermark": "0s",
        "start": start, "schedule": "* * * * *", "runtime": {"destination": str(root)}, **more,
    }  # fmt: skip
    job = AnalyticsJob(session=lambda _: session, now_ms=lambda: now_ms)
    return job.run(job.parse(config_of(document, AnalyticsSpec)), reporter or Reporter("analytics"))


def test_scheduled_runs_from_latest_write_the_windows_after_the_first_run(
    tmp_path: Path, log: FakeCatalog, counted: list[WindowRange]
) -> None:
    """The first run has no closed window; it stores where it began, and later runs continue there."""
    begin = NOW_MS // MINUTE_MS * MINUTE_MS

    run(tmp_path, "latest", NOW_MS)
    run(tmp_path, "latest", NOW_MS + 3 * MINUTE_MS)
    run(tmp_path, "latest", NOW_MS + 4 * MINUTE_MS)

    assert counted == [(begin, begin + 3 * MINUTE_MS), (begin + 3 * MINUTE_MS, begin + 4 * MINUTE_MS)]


def test_scheduled_run_from_earliest_stores_no_start_for_an_empty_topic(
    tmp_path: Path, log: FakeCatalog, counted: list[WindowRange]
) -> None:
    """The next run begins at the oldest message, which may be older than the first run: a replica may lag."""
    run(tmp_path, "earliest", NOW_MS)

    assert counted == []
    assert WRITTEN_TO not in Tables(tmp_path).progress()


def test_stop_request_while_the_oldest_message_is_unreadable_interrupts_the_run(
    tmp_path: Path, log: FakeCatalog, counted: list[WindowRange], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped run has the exit code of an interruption, and not that of an unavailable broker."""
    reporter = Reporter("analytics")

    def read_no_times(*_: object) -> dict[QueueId, int]:
        reporter.stop.request()
        return {}

    monkeypatch.setattr(analytics_job, "store_times_ms", read_no_times)
    log.append(QUEUE)

    outcome = run(tmp_path, "earliest", NOW_MS, reporter)

    assert (outcome.exit_code, outcome.reason) == (EXIT_INTERRUPTED, "Interrupted")
    assert counted == []


class CatalogWithPatience:
    """A catalog with the patience of its settings."""

    def __init__(self, log: FakeCatalog, settings: ReadSettings) -> None:
        self.log = log
        self.patience_ms = settings.patience_ms

    def __getattr__(self, name: str) -> Any:
        return getattr(self.log, name)

    def __enter__(self) -> CatalogWithPatience:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the log as it is."""


def test_store_times_are_looked_up_without_waiting_for_a_broker(
    tmp_path: Path, counted: list[WindowRange], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unavailable broker does not delay a stop request or the other brokers; other requests have patience."""
    log = FakeCatalog()
    log.add_queue(QUEUE.topic, QUEUE.broker, QUEUE.number)
    log.append(QUEUE, 3)
    log.groups["readers"] = {QUEUE: 1}
    patience_ms: list[int] = []

    def look_up(offsets: dict[QueueId, int], catalog: CatalogWithPatience, _: ReadSettings) -> dict[QueueId, int]:
        patience_ms.append(catalog.patience_ms)
        return dict.fromkeys(offsets, NOW_MS - 5 * MINUTE_MS)

    monkeypatch.setattr(analytics_job, "Catalog", partial(CatalogWithPatience, log))
    monkeypatch.setattr(analytics_job, "store_times_ms", look_up)
    lags = SimpleNamespace(toArrow=TABLES["consumer_lag"].schema.empty_table)
    monkeypatch.setattr("gantry_pipelines.analytics.transforms.consumer_lag", lambda _: lags)
    session = SimpleNamespace(createDataFrame=lambda samples, _: samples)

    run(tmp_path, "earliest", NOW_MS, session=session, consumerGroups=["readers"])

    assert len(counted) == 1
    assert patience_ms == [0, 0]


def test_run_fails_if_the_oldest_message_stays_unreadable(
    tmp_path: Path, log: FakeCatalog, counted: list[WindowRange], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a stop request the run ends with an unknown result when its patience is over."""
    monkeypatch.setattr(analytics_job, "store_times_ms", lambda *_: {})
    monkeypatch.setattr(
        analytics_job, "read_settings", lambda _: ReadSettings(name_servers="127.0.0.1:1", patience_ms=0)
    )
    log.append(QUEUE)

    with pytest.raises(JobError, match="cannot read the store time") as caught:
        run(tmp_path, "earliest", NOW_MS)

    assert (caught.value.exit_code, caught.value.reason) == (EXIT_UNKNOWN, "NoReplica")
