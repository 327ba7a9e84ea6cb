"""Sums of hashes of messages: the same for the same messages in whatever order, and of whatever size.

A message counts with what its sender has given it: body, tags, keys, flag, and properties of its own. What brokers and
clients write into properties on the way (times, regions, checksums, message ids) is left out. Two sums of halves of a
64-bit hash are kept, and an exclusive or: a message that is missing, doubled or altered changes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from gantry_pipelines.migrate_check.facts import WHOLE
from pyspark_rocketmq.schema import SYSTEM_PROPERTIES

SLICE: Final = 10_000
"""Offsets that have one fingerprint: what differs is named no more exactly than this."""
READ_COLUMNS: Final = ("topic", "broker", "queue", "offset", "tags", "keys", "flag", "properties", "body")
LEFT_OUT: Final = SYSTEM_PROPERTIES | {"MSG_TYPE", "PUSH_REPLY_TIME", "DUP_INFO", "INNER_NUM", "INNER_BASE"}
"""Properties that say nothing of what a sender has sent."""
KEY: Final = ("topic", "broker", "queue", "slice")
_LOW: Final = 0xFFFFFFFF


def fingerprints(messages: DataFrame, names: Mapping[str, str], whole: frozenset[str] = frozenset()) -> DataFrame:
    """By topic, broker, queue and slice: how many messages, and their sums.

    `names`: what a broker is called on our side. Topics in `whole` have one fingerprint each.
    """
    is_whole = F.col("topic").isin(list(whole)) if whole else F.lit(False)
    rows = messages.select(
        "topic",
        F.when(is_whole, F.lit(WHOLE)).otherwise(_renamed(names)).alias("broker"),
        F.when(is_whole, F.lit(-1)).otherwise(F.col("queue")).alias("queue"),
        F.when(is_whole, F.lit(-1)).otherwise(F.floor(F.col("offset") / SLICE) * SLICE).cast("bigint").alias("slice"),
        F.xxhash64(*_content()).alias("hash"),
    )
    low = F.col("hash").bitwiseAND(F.lit(_LOW))
    high = F.shiftrightunsigned("hash", 32)
    return rows.groupBy(*KEY).agg(
        F.count("*").alias("messages"), F.sum(low).alias("low"), F.sum(high).alias("high"),
        F.bit_xor("hash").alias("xor"),
    )  # fmt: skip


def differences(theirs: DataFrame, ours: DataFrame) -> DataFrame:
    """The places whose fingerprints differ, with how many messages each side has there."""
    left, right = theirs.alias("theirs"), ours.alias("ours")
    same = [F.col(f"theirs.{name}").eqNullSafe(F.col(f"ours.{name}")) for name in KEY]
    joined = left.join(right, same, "full_outer")
    sums = ("messages", "low", "high", "xor")
    equal = F.lit(True)
    for name in sums:
        equal = equal & F.col(f"theirs.{name}").eqNullSafe(F.col(f"ours.{name}"))
    return joined.where(~equal).select(
        *(F.coalesce(F.col(f"theirs.{name}"), F.col(f"ours.{name}")).alias(name) for name in KEY),
        F.coalesce(F.col("theirs.messages"), F.lit(0)).alias("theirs"),
        F.coalesce(F.col("ours.messages"), F.lit(0)).alias("ours"),
    )


def _renamed(names: Mapping[str, str]) -> Column:
    column = F.col("broker")
    for theirs, ours in names.items():
        column = F.when(F.col("broker") == theirs, F.lit(ours)).otherwise(column)
    return column


def _content() -> list[Column]:
    own = F.map_filter("properties", lambda name, _: ~name.isin(*sorted(LEFT_OUT)))
    pairs = F.array_sort(F.map_entries(own))
    return [F.col("body"), F.col("tags"), F.col("keys"), F.col("flag"), F.to_json(pairs)]
