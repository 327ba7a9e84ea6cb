"""Fingerprints of messages: sums of hashes, of constant size and independent of the order of messages.

The hash of a message covers body, tags, keys, flag, and the sender's own properties. Properties that brokers and
clients add (times, regions, checksums, message ids) are left out. A fingerprint has the sums of both halves of the
64-bit hashes, and their exclusive or: a missing, duplicate or altered message changes it.

After the switch the target has more messages. Where queues correspond, the ranges of offsets leave them out. A topic
that is compared as a whole then has a fingerprint for each content, which shows what only the source has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from gantry_pipelines.migrate_check.facts import WHOLE_TOPIC
from gantry_wire.properties import MESSAGE_TYPE, PUSH_REPLY_TIME
from pyspark_rocketmq.schema import SYSTEM_PROPERTIES

SLICE: Final = 10_000
"""Number of offsets in one fingerprint, which is the precision of reported differences."""
READ_COLUMNS: Final = ("topic", "broker", "queue", "offset", "tags", "keys", "flag", "properties", "body")
"""The columns of messages that fingerprints need."""
LEFT_OUT: Final = SYSTEM_PROPERTIES | {MESSAGE_TYPE, PUSH_REPLY_TIME, "DUP_INFO", "INNER_NUM", "INNER_BASE"}
"""Properties that are not part of what the sender has sent."""
KEY: Final = ("topic", "broker", "queue", "slice")
"""The columns that identify a slice."""
_LOW: Final = 0xFFFFFFFF
"""The mask of the lower half of a hash."""


def compute_fingerprints(
    messages: DataFrame,
    names: Mapping[tuple[str, str], str],
    whole: frozenset[str] = frozenset(),
    *,
    is_over: bool = False,
) -> DataFrame:
    """Return the number of messages and their fingerprint by topic, broker, queue and slice.

    `names`: names of the target's brokers by topic and broker of the messages. Topics in `whole` have one fingerprint
    each; after the switch one for each content, whose hash is the slice.
    """
    is_topic_wide = F.col("topic").isin(list(whole)) if whole else F.lit(False)
    content = F.xxhash64(*_content_columns())
    rows = messages.select(
        "topic",
        F.when(is_topic_wide, F.lit(WHOLE_TOPIC)).otherwise(_rename_brokers(names)).alias("broker"),
        F.when(is_topic_wide, F.lit(-1)).otherwise(F.col("queue")).alias("queue"),
        F.when(is_topic_wide, content if is_over else F.lit(-1))
        .otherwise(F.floor(F.col("offset") / SLICE) * SLICE)
        .cast("bigint")
        .alias("slice"),
        content.alias("hash"),
    )
    low = F.col("hash").bitwiseAND(F.lit(_LOW))
    high = F.shiftrightunsigned("hash", 32)
    return rows.groupBy(*KEY).agg(
        F.count("*").alias("messages"), F.sum(low).alias("low"), F.sum(high).alias("high"),
        F.bit_xor("hash").alias("xor"),
    )  # fmt: skip


def find_differences(source: DataFrame, target: DataFrame, *, is_over: bool = False) -> DataFrame:
    """Return the slices whose fingerprints differ, with the number of messages of both clusters.

    After the switch the slice of a whole topic has only the contents that the source has more often than the target.
    """
    left, right = source.alias("source"), target.alias("target")
    same = [F.col(f"source.{name}").eqNullSafe(F.col(f"target.{name}")) for name in KEY]
    joined = left.join(right, same, "full_outer")
    sums = ("messages", "low", "high", "xor")
    equal = F.lit(True)
    for name in sums:
        equal = equal & F.col(f"source.{name}").eqNullSafe(F.col(f"target.{name}"))
    differing = joined.where(~equal).select(
        *(F.coalesce(F.col(f"source.{name}"), F.col(f"target.{name}")).alias(name) for name in KEY),
        F.coalesce(F.col("source.messages"), F.lit(0)).alias("source"),
        F.coalesce(F.col("target.messages"), F.lit(0)).alias("target"),
    )
    if not is_over:
        return differing
    is_topic_wide = F.col("broker") == WHOLE_TOPIC
    lacking = differing.where(~is_topic_wide | (F.col("source") > F.col("target")))
    slices = lacking.withColumn("slice", F.when(is_topic_wide, F.lit(-1)).otherwise(F.col("slice")).cast("bigint"))
    return slices.groupBy(*KEY).agg(F.sum("source").alias("source"), F.sum("target").alias("target"))


def _rename_brokers(names: Mapping[tuple[str, str], str]) -> Column:
    """Return the name of the target's broker; one condition for each pair of brokers, because topics may be many."""
    topics: dict[tuple[str, str], list[str]] = {}
    for (topic, source), target in names.items():
        topics.setdefault((source, target), []).append(topic)
    column = F.col("broker")
    for (source, target), paired in topics.items():
        is_of_pair = (F.col("broker") == source) & F.col("topic").isin(paired)
        column = F.when(is_of_pair, F.lit(target)).otherwise(column)
    return column


def _content_columns() -> list[Column]:
    own = F.map_filter("properties", lambda name, _: ~name.isin(*sorted(LEFT_OUT)))
    pairs = F.array_sort(F.map_entries(own))
    return [F.col("body"), F.col("tags"), F.col("keys"), F.col("flag"), F.to_json(pairs)]
