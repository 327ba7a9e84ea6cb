"""`format("rocketmq")` in a real Spark, with real brokers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from spark_kit.processes import Group
from spark_kit.topics import places, send_to_new_topic

from gantry_client.sync import PullConsumer
from pyspark_rocketmq.lag import query_lag

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.needs_spark

DEADLINE_S: Final = 120


def batch(spark: SparkSession, brokers: Group, **options: str) -> DataFrameReader:
    return spark.read.format("rocketmq").options(nameServers=brokers.name_server, **options)


def test_batch_returns_all_acknowledged_messages(spark: SparkSession, brokers: Group) -> None:
    """Every message that a broker acknowledged is returned once, with its position and its content."""
    sent = send_to_new_topic(brokers, "whole", 500, tags=("red", "blue"))

    rows = batch(spark, brokers, subscribe="whole").load().collect()

    assert sorted((row.queue, row.offset, bytes(row.body), row.tags, row.keys) for row in rows) == sorted(
        (one.queue, one.offset, one.body, one.tags, one.key) for one in sent
    )
    assert {(row.topic, row.broker) for row in rows} == {("whole", "broker-a")}


@pytest.fixture
def queries(spark: SparkSession) -> Iterator[None]:
    """Stop all queries after a test."""
    yield
    for query in spark.streams.active:
        query.stop()


class Stream:
    """A streaming query into Parquet, with its checkpoint, that can be run repeatedly."""

    def __init__(self, spark: SparkSession, brokers: Group, folder: Path, **options: str) -> None:
        self.spark = spark
        self.folder = folder
        self.options = {"nameServers": brokers.name_server, "startingOffsets": "earliest", **options}

    def start(self, **trigger: Any) -> StreamingQuery:
        frame = self.spark.readStream.format("rocketmq").options(**self.options).load()
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(self.folder / "checkpoint"))
        return writer.trigger(**trigger).start(str(self.folder / "rows"))

    def run(self) -> StreamingQuery:
        """Read all available messages, then end."""
        query = self.start(availableNow=True)
        assert query.awaitTermination(DEADLINE_S), "the query did not end"
        return query

    def places(self) -> list[tuple[int, int]]:
        """Return queue and offset of every row that was written."""
        rows = self.spark.read.parquet(str(self.folder / "rows")).select("queue", "offset").collect()
        return sorted((row.queue, row.offset) for row in rows)

    def batch_counts(self, query: StreamingQuery) -> list[int]:
        return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]


@pytest.mark.verify
def test_only_requested_columns_are_read(spark: SparkSession, brokers: Group) -> None:
    """By option, or by a schema of the user's own, which must have the source's types."""
    send_to_new_topic(brokers, "columns", 20)

    by_option = batch(spark, brokers, subscribe="columns", columns="offset,body").load()
    by_schema = batch(spark, brokers, subscribe="columns").schema("body binary, queue int").load()

    assert by_option.columns == ["offset", "body"] and by_option.count() == 20
    assert by_schema.columns == ["body", "queue"] and len(by_schema.collect()) == 20
    with pytest.raises(Exception, match="column queue is int, but the schema declares bigint"):
        batch(spark, brokers, subscribe="columns").schema("queue bigint").load().collect()


def test_misspelled_option_ends_the_query_with_its_name(spark: SparkSession, brokers: Group) -> None:
    """The text of the error is visible through Spark."""
    with pytest.raises(Exception, match="unknown option subscribes; did you mean subscribe"):
        batch(spark, brokers, subscribes="x").load().collect()


@pytest.mark.verify
def test_pushed_filters_do_not_change_the_result(spark: SparkSession, brokers: Group) -> None:
    """With pushdown=true a query reads less and returns the same."""
    send_to_new_topic(brokers, "filtered", 200, tags=("red", "blue"))
    plain = batch(spark, brokers, subscribe="filtered").load()
    pushed = batch(spark, brokers, subscribe="filtered", pushdown="true").load()

    for condition in (
        "queue = 2 and offset >= 10 and offset < 20",
        "queue in (0, 3) and topic = 'filtered' and tags = 'blue' and offset in (3, 9) and body is not null",
        "storeTime > timestamp '2020-01-01' and storeTime < timestamp '2100-01-01'",
        "storeTime < timestamp '2020-01-01'",
    ):
        expected, found = plain.where(condition), pushed.where(condition)
        assert sorted(found.select("queue", "offset").collect()) == sorted(expected.select("queue", "offset").collect())
    plan = pushed.where("queue = 2 and offset >= 10")._jdf.queryExecution().executedPlan().toString()
    assert "Filter (" not in plan, plan


def test_tags_are_filtered_at_the_source(spark: SparkSession, brokers: Group) -> None:
    """The option `tags` reads only messages with one of these tags."""
    sent = send_to_new_topic(brokers, "tagged", 60, tags=("red", "blue", "green"))

    rows = batch(spark, brokers, subscribe="tagged", tags="red,green").load().select("queue", "offset").collect()

    assert sorted(map(tuple, rows)) == places([one for one in sent if one.tags != "blue"])


@pytest.mark.verify
def test_stream_reads_all_and_continues_from_its_checkpoint(
    spark: SparkSession, brokers: Group, tmp_path: Path, queries: None
) -> None:
    """Each message is read once over several runs, though the second run splits its tasks differently.

    The consumer group's lag is 0 after each run, as any tool of RocketMQ shows it.
    """
    stream = Stream(spark, brokers, tmp_path, subscribe="stream", commitGroup="billing", maxRowsPerTrigger="70")
    sent = send_to_new_topic(brokers, "stream", 200)
    query = stream.run()
    assert stream.places() == places(sent)
    assert stream.batch_counts(query) == [70, 70, 60]
    assert offsets_and_ends(brokers, "billing", "stream") == dict.fromkeys(range(4), (50, 50))

    sent += brokers.send(100, topic="stream")
    stream.options |= {"maxRowsPerTrigger": "1000", "minPartitions": "5", "transport": "pull"}
    stream.run()
    assert stream.places() == places(sent)
    assert offsets_and_ends(brokers, "billing", "stream") == dict.fromkeys(range(4), (75, 75))

    stream.run()
    assert stream.places() == places(sent)


@pytest.mark.verify
def test_lag_of_a_query_is_reported(spark: SparkSession, brokers: Group, tmp_path: Path, queries: None) -> None:
    """After each batch: unread messages, bytes and seconds, by queue."""
    send_to_new_topic(brokers, "lagging", 100)
    query = Stream(spark, brokers, tmp_path, subscribe="lagging", maxRowsPerTrigger="60").run()

    first = next(one for one in query.recentProgress if one["numInputRows"] == 60)
    lags = query_lag(json.loads(first.json))
    assert [one.rows for one in lags] == [10, 10, 10, 10]
    assert all(200 * 10 < one.bytes < 1000 * 10 for one in lags)
    assert all(0 < one.seconds < 3600 for one in lags)
    assert all(one.rows == one.seconds == 0 for one in query_lag(json.loads(query.recentProgress[-1].json)))


def offsets_and_ends(brokers: Group, group: str, topic: str) -> dict[int, tuple[int, int]]:
    """Return the group's offset and the end of each queue; `gantry group lag` shows their difference."""
    with PullConsumer(brokers.name_server, group) as consumer:
        return {
            queue.queue_id: (consumer.committed(queue) or 0, consumer.max_offset(queue))
            for queue in consumer.queues(topic)
            if consumer.max_offset(queue)
        }
