"""`format("rocketmq")` in a real Spark, against real brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from spark_kit.processes import Group

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader, SparkSession

pytestmark = pytest.mark.needs_spark


def batch(spark: SparkSession, brokers: Group, **options: str) -> DataFrameReader:
    return spark.read.format("rocketmq").options(nameServers=brokers.name_server, **options)


def test_a_batch_is_what_was_sent(spark: SparkSession, brokers: Group) -> None:
    """Every message that a broker acknowledged comes once, with its place and its content."""
    sent = brokers.send(500, topic="whole", tags=("red", "blue"))

    rows = batch(spark, brokers, subscribe="whole").load().collect()

    assert sorted((row.queue, row.offset, bytes(row.body), row.tags, row.keys) for row in rows) == sorted(
        (one.queue, one.offset, one.body, one.tags, one.key) for one in sent
    )
    assert {(row.topic, row.broker) for row in rows} == {("whole", "broker-a")}
