"""Fingerprints of messages, and a migration check between two Gantry clusters."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from admin_scene import wait_for
from spark_kit.processes import Group, group

from gantry_pipelines.config import PipelineConfig, RuntimeConfig
from gantry_pipelines.migrate_check.job import MigrateCheckJob, MigrateCheckSpec, SourceCluster
from gantry_pipelines.outcome import Outcome
from gantry_pipelines.reporting import Reporter
from gantry_pipelines.stop_request import StopRequest
from gantry_spec.pipelines.parts import Topics
from pyspark_rocketmq.catalog import Catalog
from pyspark_rocketmq.model import Bounds, QueueId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.needs_spark


Row = tuple[int, int, bytes, dict[str, str]]
"""The queue and offset of a message, its body, and the sender's properties."""


def messages(spark: SparkSession, *rows: Row) -> DataFrame:
    from gantry_pipelines.migrate_check.fingerprints import READ_COLUMNS
    from pyspark_rocketmq.schema import ddl

    made = [("orders", "old", queue, offset, "red", None, 0, own, body) for queue, offset, body, own in rows]
    return spark.createDataFrame(made, ddl(READ_COLUMNS))


@pytest.mark.verify
def test_fingerprints_ignore_order_and_broker_properties_only(spark: SparkSession) -> None:
    """Equal messages have equal fingerprints; another byte, property, or a message twice for another changes them."""
    from pyspark.testing import assertDataFrameEqual

    from gantry_pipelines.migrate_check.fingerprints import compute_fingerprints, find_differences

    source = messages(spark, (0, 1, b"one", {"a": "1", "b": "2"}), (0, 2, b"two", {}), (1, 0, b"three", {}))
    moved = messages(
        spark,
        (1, 0, b"three", {"CLUSTER": "new"}),
        (0, 2, b"two", {}),
        (0, 1, b"one", {"b": "2", "a": "1", "WAIT": "x"}),
    )
    altered = messages(spark, (0, 1, b"one", {"a": "1", "b": "3"}), (0, 2, b"two", {}), (1, 0, b"Three", {}))
    doubled = messages(spark, (0, 1, b"two", {}), (0, 2, b"two", {}), (1, 0, b"three", {}))

    left = compute_fingerprints(source, {("orders", "old"): "new"})

    def found(target: DataFrame) -> DataFrame:
        return find_differences(left, compute_fingerprints(target, {("orders", "old"): "new"}))

    schema = found(moved).schema
    assertDataFrameEqual(found(moved), spark.createDataFrame([], schema))
    rows = [("orders", "new", 0, 0, 2, 2), ("orders", "new", 1, 0, 1, 1)]
    assertDataFrameEqual(found(altered), spark.createDataFrame(rows, schema))
    assertDataFrameEqual(found(doubled), spark.createDataFrame(rows[:1], schema))
    whole = find_differences(
        compute_fingerprints(source, {}, frozenset({"orders"})),
        compute_fingerprints(altered, {}, frozenset({"orders"})),
    )
    assertDataFrameEqual(whole, spark.createDataFrame([("orders", "*", -1, -1, 3, 3)], schema))


@pytest.mark.verify
def test_broker_may_have_another_partner_in_each_topic(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers are paired by topic: the contents of a topic are compared with those of its own partner."""
    from gantry_pipelines.migrate_check import job
    from gantry_pipelines.migrate_check.facts import ClusterFacts, match_queues
    from gantry_pipelines.migrate_check.fingerprints import READ_COLUMNS
    from pyspark_rocketmq.schema import ddl

    def facts(**brokers: str) -> ClusterFacts:
        return ClusterFacts({QueueId(topic, broker, 0): Bounds(0, 1) for topic, broker in brokers.items()})

    def read(_: object, __: object, ranges: dict[QueueId, tuple[int, int]]) -> DataFrame:
        rows: list[tuple[Any, ...]] = [
            (one.topic, one.broker, one.number, 0, "red", None, 0, {}, one.topic.encode()) for one in ranges
        ]
        return spark.createDataFrame(rows, ddl(READ_COLUMNS))

    monkeypatch.setattr(job, "_read", read)
    source, target = facts(mail="old", orders="old"), facts(mail="first", orders="second")
    matches = [match_queues(topic, source, target) for topic in ("mail", "orders")]
    config = PipelineConfig(MigrateCheckSpec(source=SourceCluster(["127.0.0.1:1"])), RuntimeConfig(["127.0.0.1:1"]))
    check = MigrateCheckJob(session=lambda _: spark)

    assert check._compare_contents(check.parse(config), matches, source, target, StopRequest()) == (2, [])


@pytest.mark.verify
def test_new_messages_after_the_switch_are_no_difference_of_a_whole_topic(spark: SparkSession) -> None:
    """After the switch a whole topic differs only by messages of the source that the target lacks or has changed.

    Before the switch an additional message of the target is a difference, too.
    """
    from pyspark.testing import assertDataFrameEqual

    from gantry_pipelines.migrate_check.fingerprints import compute_fingerprints, find_differences

    whole = frozenset({"orders"})
    sent: list[Row] = [(0, 1, b"one", {}), (0, 2, b"two", {}), (1, 0, b"two", {})]
    new: list[Row] = [(0, 3, b"new", {}), (1, 1, b"one", {})]
    left = compute_fingerprints(messages(spark, *sent), {}, whole, is_over=True)

    def found(*rows: Row) -> DataFrame:
        right = compute_fingerprints(messages(spark, *rows), {}, whole, is_over=True)
        return find_differences(left, right, is_over=True)

    schema = found(*sent).schema
    before = [compute_fingerprints(messages(spark, *rows), {}, whole) for rows in (sent, [*new, *sent])]
    more = spark.createDataFrame([("orders", "*", -1, -1, 3, 5)], schema)
    assertDataFrameEqual(find_differences(*before), more)
    assertDataFrameEqual(found(*new, *sent), spark.createDataFrame([], schema))
    lacking_one = found(*new, *sent[:2])
    assertDataFrameEqual(lacking_one, spark.createDataFrame([("orders", "*", -1, -1, 2, 1)], schema))
    all_changed = found(*new, (0, 1, b"ONE", {}), (0, 2, b"TWO", {}), (1, 0, b"TWO", {}))
    assertDataFrameEqual(all_changed, spark.createDataFrame([("orders", "*", -1, -1, 2, 0)], schema))


@pytest.mark.verify
def test_stop_request_cancels_the_comparison(spark: SparkSession) -> None:
    """A comparison that would take hours ends soon after a stop request, without a result; others are collected."""
    from gantry_pipelines.migrate_check.job import collect_unless_stopped

    stop, tracker = StopRequest(), spark.sparkContext.statusTracker()
    assert collect_unless_stopped(spark.range(2), stop) == [{"id": 0}, {"id": 1}]
    endless = spark.range(1 << 60).selectExpr("max(id * id % 7)")

    def request_when_running() -> None:
        wait_for(lambda: bool(tracker.getActiveJobsIds()), "a job is running", 120)
        stop.request()

    requesting = threading.Thread(target=request_when_running)
    requesting.start()
    assert collect_unless_stopped(endless, stop) is None
    requesting.join()
    assert not tracker.getActiveJobsIds()


@pytest.mark.verify
def test_stopped_check_does_not_compare_contents(brokers: Group, tmp_path: Path) -> None:
    """A check that is stopped before it compares contents creates no session and writes no result."""
    brokers.send(4, topic="stopped")
    topics = Topics(include=["stopped"], exclude=[])
    spec = MigrateCheckSpec(source=SourceCluster(name_servers=[brokers.name_server]), topics=topics)
    runtime = RuntimeConfig(name_servers=[brokers.name_server], destination=str(tmp_path / "result"))
    stop = StopRequest()
    stop.request()

    job = MigrateCheckJob(lambda _: pytest.fail("a session was created"))
    outcome = job.run(job.parse(PipelineConfig(spec, runtime)), Reporter("migrate-check", stop))

    assert (outcome.exit_code, outcome.reason) == (130, "Interrupted")
    assert not (tmp_path / "result").exists()


def run_check(spark: SparkSession, source: Group, target: Group, folder: Path, **more: Any) -> Outcome:
    runtime = RuntimeConfig(
        name_servers=[target.name_server], sidecars=list(target.sidecar_urls), destination=str(folder)
    )
    topics = Topics(include=["moved"], exclude=[])
    spec = MigrateCheckSpec(source=SourceCluster(name_servers=[source.name_server]), topics=topics, **more)
    job = MigrateCheckJob(lambda _: spark)
    return job.run(job.parse(PipelineConfig(spec, runtime)), Reporter("migrate-check"))


@pytest.mark.verify
def test_differences_between_two_clusters_are_reported(spark: SparkSession, brokers: Group, tmp_path: Path) -> None:
    """Equal clusters exit with 0; other contents, a group that is behind, and fewer messages exit with 1."""
    with group(tmp_path / "other", slaves=0, with_sidecars=False) as other:
        for one in (brokers, other):
            one.sent.clear()
            one.send(120, topic="moved")
            with Catalog(one.settings()) as catalog:
                catalog.commit_group("movers", dict.fromkeys(catalog.queues(["moved"]), 20))
        same = run_check(spark, other, brokers, tmp_path / "same", consumer_groups=["movers"])
        other.send(4, topic="moved")
        brokers.send(4, topic="moved", bytes_each=300)
        with Catalog(other.settings()) as catalog:
            catalog.commit_group("movers", dict.fromkeys(catalog.queues(["moved"]), 25))
        differs = run_check(spark, other, brokers, tmp_path / "differs", consumer_groups=["movers"])
        other.send(4, topic="moved")
        fewer = run_check(spark, other, brokers, tmp_path / "fewer", consumer_groups=["movers"])

    assert (same.exit_code, same.rows) == (0, 120), same.facts
    assert (differs.exit_code, fewer.exit_code) == (1, 1)
    assert differs.facts["byKind"] == {"content": 4, "group-behind": 4}
    assert fewer.facts["byKind"] == {"content": 4, "fewer-messages": 4, "group-behind": 4}
    assert "DIFFERS content: moved/broker-a/0" in (tmp_path / "differs" / "migrate-check.txt").read_text()
