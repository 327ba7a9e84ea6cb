"""`df.write` and `df.writeStream` in a real session, with broker processes: Spark makes the expected calls."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark import cloudpickle
from spark_kit import failing_sink
from spark_kit.failing_sink import FILE_OPTION, POINT_OPTION, FailingSink
from spark_kit.processes import Group

from gantry_client import Admin, PullConsumer, ReceivedMessage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.needs_spark, pytest.mark.xdist_group("spark")]
NUMBERS = itertools.count()


def new_topic(brokers: Group) -> str:
    topic = f"written-{next(NUMBERS)}"

    async def create() -> None:
        async with Admin(brokers.name_server) as admin:
            await admin.topics.create(topic, queues=2)

    asyncio.run(create())
    return topic


def messages(brokers: Group, topic: str) -> list[ReceivedMessage]:
    """Return the messages that an ordinary consumer reads."""

    async def pull() -> list[ReceivedMessage]:
        found: list[ReceivedMessage] = []
        async with PullConsumer(brokers.name_server, "readers") as consumer:
            for queue in await consumer.queues(topic):
                offset, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
                while offset < end:
                    result = await consumer.fetch(queue, offset)
                    found += result.messages
                    offset = result.next_offset
        return found

    return asyncio.run(pull())


def rows(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(0, count, 1, 2).selectExpr(
        "cast(id as string) as body",
        "concat('k', id) as keys",
        "'red' as tags",
        "map('n', cast(id as string)) as properties",
    )


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize("is_transactional", [False, True], ids=["at-least-once", "transactional"])
def test_data_frame_is_written(spark: SparkSession, brokers: Group, is_transactional: bool) -> None:
    """Every row is a message, once while nothing fails, and has the id of its row."""
    topic = new_topic(brokers)
    writer = rows(spark, 100).write.format("rocketmq").option("nameServers", brokers.name_server)

    writer.option("topic", topic).option("transactional", is_transactional).mode("append").save()

    found = messages(brokers, topic)
    assert Counter(message.body for message in found) == Counter(b"%d" % number for number in range(100))
    assert all(message.keys == (f"k{message.body.decode()}",) and message.tags == "red" for message in found)
    assert all(message.properties["n"] == message.body.decode() for message in found)
    ids = [message.properties["SPARK_ID"].split(":") for message in found]
    assert len({tuple(parts) for parts in ids}) == 100
    assert {(parts[1], parts[2]) for parts in ids} == {("0", "0"), ("0", "1")}


def test_named_write_is_done_once(spark: SparkSession, brokers: Group) -> None:
    """A job that is run again finds that it was committed."""
    topic = new_topic(brokers)
    writer = rows(spark, 20).write.format("rocketmq").option("nameServers", brokers.name_server).option("topic", topic)
    for _ in range(2):
        writer.option("transactional", True).option("queryId", f"job-of-{topic}").option("sweep", False).mode(
            "append"
        ).save()

    assert len(messages(brokers, topic)) == 20


def test_invalid_write_is_refused_before_sending(spark: SparkSession, brokers: Group) -> None:
    """Overwriting and unknown columns are refused by name."""
    frame = spark.range(1).selectExpr("'x' as body", "1 as offset")
    writer = frame.write.format("rocketmq").option("nameServers", brokers.name_server).option("topic", "T")
    with pytest.raises(Exception, match="column offset is not part of a message"):
        writer.mode("append").save()
    with pytest.raises(Exception, match='mode\\("append"\\) is the only one'):
        frame.select("body").write.format("rocketmq").option("nameServers", brokers.name_server).mode(
            "overwrite"
        ).save()


@pytest.mark.verify
@pytest.mark.parametrize(
    "point",
    [
        "one-ended:7",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("halves-known", "marker-stored", "all-ended")),
    ],
)
def test_query_with_a_failed_commit_delivers_its_batch_once(
    spark: SparkSession, brokers: Group, tmp_path: Path, point: str
) -> None:
    """Spark aborts, and repeats the batch with the same ids when the query is started again."""
    topic, source = new_topic(brokers), str(tmp_path / "source")
    # Workers cannot import from the folder of the tests.
    cloudpickle.register_pickle_by_value(failing_sink)  # type: ignore[no-untyped-call]
    spark.dataSource.register(FailingSink)
    for part in range(2):
        rows(spark, 40).selectExpr(f"concat('{part}-', body) as body").coalesce(1).write.mode("append").parquet(source)
    stream = spark.readStream.schema("body string").option("maxFilesPerTrigger", 1).parquet(source).repartition(2)
    writer = stream.writeStream.format("failing-sink").option("nameServers", brokers.name_server)
    writer = writer.option("topic", topic).option("transactional", True).option("sweep", False)
    writer = writer.option(POINT_OPTION, point).option(FILE_OPTION, str(tmp_path / "failed"))
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    query = writer.start()
    with pytest.raises(Exception, match=f"at {point}"):
        query.awaitTermination()

    again = writer.start()
    again.awaitTermination()

    found = Counter(message.body.decode() for message in messages(brokers, topic))
    assert found == Counter(f"{part}-{number}" for part in range(2) for number in range(40))
    batches = {message.properties["SPARK_ID"].rsplit(":", 2)[0] for message in messages(brokers, topic)}
    assert batches == {f"{again.id}:0", f"{again.id}:1"}
    assert again.runId != query.runId
