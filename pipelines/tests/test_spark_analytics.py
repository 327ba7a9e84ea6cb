"""Rates, latencies, hot queues and keys, lags: each transform on a few rows, then complete runs with brokers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from spark_kit.processes import Group

from gantry_pipelines.analytics.tables import TABLES, Tables
from gantry_pipelines.config import PipelineConfig, RuntimeConfig
from gantry_pipelines.reporting import Reporter
from gantry_spec.manifest.quantities import Duration
from gantry_spec.pipelines.kinds import AnalyticsSpec
from gantry_spec.pipelines.parts import Topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.verify, pytest.mark.needs_spark]

NOON = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
MINUTE = 60_000
MESSAGES_DDL = (
    "topic string, broker string, queue int, keys string, bornTime timestamp, storeTime timestamp, size int, "
    "bodySize int"
)


def after_noon(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def message(
    seconds: float, waited_ms: float = 1, *, topic: str = "orders", queue: int = 0, keys: str = ""
) -> tuple[Any, ...]:
    born = after_noon(seconds) - timedelta(milliseconds=waited_ms)
    return topic, "broker-a", queue, keys, born, after_noon(seconds), 200, 100


def messages(spark: SparkSession, *rows: tuple[Any, ...]) -> DataFrame:
    return spark.createDataFrame(list(rows), MESSAGES_DDL)


def test_messages_and_bytes_are_counted_by_queue_and_window(spark: SparkSession) -> None:
    """A message counts in the window of its store time; the end of a window is exclusive."""
    from pyspark.testing import assertDataFrameEqual

    from gantry_pipelines.analytics.transforms import queue_counts, throughput

    counts = queue_counts(messages(spark, message(0), message(59.999), message(60), message(10, queue=1)), MINUTE)

    expected = [
        (after_noon(0), after_noon(60), "orders", "broker-a", 0, 2, 400, 200),
        (after_noon(0), after_noon(60), "orders", "broker-a", 1, 1, 200, 100),
        (after_noon(60), after_noon(120), "orders", "broker-a", 0, 1, 200, 100),
    ]
    names = ["windowBegin", "windowEnd", "topic", "broker", "queue", "messages", "bytes", "bodyBytes"]
    assertDataFrameEqual(counts, spark.createDataFrame(expected, counts.schema))
    assert counts.columns == names
    rates = throughput(counts)
    rows = [
        (after_noon(0), after_noon(60), "orders", "broker-a", 3, 600, 300, 0.05, 10.0),
        (after_noon(60), after_noon(120), "orders", "broker-a", 1, 200, 100, 1 / 60, 200 / 60),
    ]
    assertDataFrameEqual(rates, spark.createDataFrame(rows, rates.schema))


def test_latencies_have_percentiles_and_clock_skew_is_counted(spark: SparkSession) -> None:
    """Of 1 to 100 ms the median is 50, p95 95 and p99 99; a store time before the born time has no latency."""
    from pyspark.testing import assertDataFrameEqual

    from gantry_pipelines.analytics.transforms import latencies

    rows = [message(1, waited) for waited in range(1, 101)] + [message(2, -5_000)]
    found = latencies(messages(spark, *rows), MINUTE)

    expected = [(after_noon(0), after_noon(60), "orders", 101, 50.0, 95.0, 99.0, 100.0, 1)]
    assertDataFrameEqual(found, spark.createDataFrame(expected, found.schema))


def test_hot_queues_are_ranked_by_their_share(spark: SparkSession) -> None:
    """A queue with three of four messages has 1.5 times the even share of two queues."""
    from pyspark.testing import assertDataFrameEqual

    from gantry_pipelines.analytics.transforms import hot_queues, queue_counts

    rows = [message(1), message(2), message(3), message(4, queue=1)]
    found = hot_queues(queue_counts(messages(spark, *rows), MINUTE))

    expected = [
        (after_noon(0), after_noon(60), "orders", "broker-a", 0, 3, 600, 0.75, 1.5, 1),
        (after_noon(0), after_noon(60), "orders", "broker-a", 1, 1, 200, 0.25, 0.5, 2),
    ]
    assertDataFrameEqual(found, spark.createDataFrame(expected, found.schema))


def test_hot_keys_count_a_message_once_for_each_of_its_keys(spark: SparkSession) -> None:
    """Keys are separated by spaces; a repeated key counts once; ties are sorted by name; messages may have no keys."""
    from pyspark.testing import assertDataFrameEqual

    from gantry_pipelines.analytics.transforms import hot_keys, key_counts

    rows = [message(1, keys="a b"), message(2, keys="a  a"), message(3, keys="c"), message(4), message(5, keys="b")]
    found = hot_keys(key_counts(messages(spark, *rows), MINUTE), 2)

    expected = [
        (after_noon(0), after_noon(60), "orders", "a", 2, 400, 1),
        (after_noon(0), after_noon(60), "orders", "b", 2, 400, 2),
    ]
    assertDataFrameEqual(found, spark.createDataFrame(expected, found.schema))


def test_group_without_offset_lags_by_all_messages(spark: SparkSession) -> None:
    """Lag is counted from the group's offset, but not from before the queue's begin, and is never negative."""
    from pyspark.testing import assertDataFrameEqual

    from gantry_pipelines.analytics.job import SAMPLES_DDL
    from gantry_pipelines.analytics.transforms import consumer_lag

    samples = [
        (NOON, "g", "orders", "broker-a", 0, None, 10, 25, 3.5),
        (NOON, "g", "orders", "broker-a", 1, 20, 10, 25, 1.0),
        (NOON, "g", "orders", "broker-a", 2, 5, 10, 25, None),
        (NOON, "g", "orders", "broker-a", 3, 26, 10, 25, 0.0),
    ]
    found = consumer_lag(spark.createDataFrame(samples, SAMPLES_DDL))

    expected = [
        (NOON, "g", "orders", "broker-a", 0, None, 25, 15, 3.5),
        (NOON, "g", "orders", "broker-a", 1, 20, 25, 5, 1.0),
        (NOON, "g", "orders", "broker-a", 2, 5, 25, 15, None),
        (NOON, "g", "orders", "broker-a", 3, 26, 25, 0, 0.0),
    ]
    assertDataFrameEqual(found, spark.createDataFrame(expected, found.schema))


def test_only_messages_stored_in_the_range_are_read(spark: SparkSession) -> None:
    """The range of store times is half-open."""
    from gantry_pipelines.analytics.transforms import stored_between

    begin = int(NOON.timestamp() * 1000)
    rows = messages(spark, message(-0.001), message(0), message(59.999), message(60))
    found = stored_between(rows, begin, begin + MINUTE)

    assert sorted(row["storeTime"].replace(tzinfo=None) for row in found.collect()) != []
    assert found.count() == 2


# -- runs --------------------------------------------------------------------------------------------------------------


def config_of(brokers: Group, folder: Path, topic: str, **more: Any) -> PipelineConfig[AnalyticsSpec]:
    runtime = RuntimeConfig(
        name_servers=[brokers.name_server], sidecars=list(brokers.sidecar_urls), destination=str(folder), once=True
    )
    given: dict[str, Any] = {"window": Duration(1_000), "watermark": Duration(0)}
    return PipelineConfig(AnalyticsSpec(topics=Topics(include=[topic], exclude=[]), **(given | more)), runtime)


def written_to(tables: Tables) -> int:
    return int(tables.progress()["writtenTo"])


def test_run_writes_closed_windows_and_the_next_one_continues_after_them(
    spark: SparkSession, brokers: Group, tmp_path: Path
) -> None:
    """Every message is in one window; a repeated run duplicates nothing; lag samples are added; a report is written."""
    import time

    from gantry_pipelines.analytics.job import AnalyticsJob
    from gantry_pipelines.source_options import read_settings
    from pyspark_rocketmq.catalog import Catalog

    brokers.send(300, topic="counted", tags=("red", "blue"))
    config = config_of(brokers, tmp_path, "counted", consumer_groups=["readers"])
    with Catalog(read_settings(config)) as catalog:
        catalog.commit_group("readers", dict.fromkeys(catalog.queues(["counted"]), 10))
    now_ms = int(time.time() * 1000) + 2_000
    job = AnalyticsJob(lambda _: spark, lambda: now_ms)

    first = job.run(job.parse(config), Reporter("analytics"))
    again = job.run(job.parse(config), Reporter("analytics"))
    tables = Tables(tmp_path)
    reset = tables.progress()
    with tables:  # as if the first run's progress had been lost: the same windows are written again
        tables.write("forget", {}, {})
    replayed = job.run(job.parse(config), Reporter("analytics"))

    assert (first.exit_code, first.rows) == (0, 300)
    assert (again.rows, replayed.rows) == (0, 300)
    assert written_to(tables) == reset["writtenTo"]
    rates = tables.read(TABLES["throughput"]).to_pylist()
    assert sum(row["messages"] for row in rates) == 300
    assert len({(row["windowBegin"], row["topic"]) for row in rates}) == len(rates)
    keys = tables.read(TABLES["hot_keys"]).to_pylist()
    assert {row["topic"] for row in keys} == {"counted"}
    assert all(row["rank"] <= 20 for row in keys)
    lags = tables.read(TABLES["consumer_lag"]).to_pylist()
    assert {row["lagMessages"] for row in lags} == {65}
    assert all(row["lagSeconds"] > 0 for row in lags)
    assert "Topic usage" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_stream_writes_the_windows_that_its_watermark_has_closed(
    spark: SparkSession, brokers: Group, tmp_path: Path
) -> None:
    """A stream writes the same rows as a batch; the newest windows are written when newer messages arrive."""
    import time

    from gantry_pipelines.analytics.job import AnalyticsJob, _AnalyticsRun
    from gantry_pipelines.analytics.streaming import run_stream

    job = AnalyticsJob(lambda _: spark)
    brokers.send(200, topic="streamed")
    time.sleep(1.1)  # the next message is in another window
    brokers.send(50, topic="streamed")
    streamed, batch = config_of(brokers, tmp_path / "s", "streamed"), config_of(brokers, tmp_path / "b", "streamed")

    with Tables(tmp_path / "s") as tables:
        run = _AnalyticsRun(spark, job.parse(streamed), tables, ["streamed"], Reporter("analytics"))
        run_stream(run.open_stream(), tables, streamed, Reporter("analytics"), is_available_now=True)
        early = tables.read(TABLES["throughput"]).to_pylist()
        time.sleep(1.1)
        brokers.send(1, topic="streamed")
        run_stream(run.open_stream(), tables, streamed, Reporter("analytics"), is_available_now=True)
    later_job = AnalyticsJob(lambda _: spark, lambda: int(time.time() * 1000) + 2_000)
    later_job.run(later_job.parse(batch), Reporter("analytics"))

    written, expected = Tables(tmp_path / "s"), Tables(tmp_path / "b")
    assert 0 < sum(row["messages"] for row in early) < 250, "expected all messages but those of the newest window"
    for name in ("throughput", "latency", "hot_queues", "hot_keys"):
        rows = written.read(TABLES[name]).to_pylist()
        assert rows == expected.read(TABLES[name]).to_pylist()[: len(rows)], name
        assert len(rows) >= 1
