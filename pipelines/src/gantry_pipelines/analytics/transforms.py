"""The transforms of the analytics: functions from a DataFrame of messages, counts or lag samples to another one.

`queue_counts`, `latencies` and `key_counts` read messages (without bodies, and without properties except for keys) and
can run in a stream. `throughput`, `hot_queues` and `hot_keys` compute tables from counts, and need all rows of a window
at once.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

COUNT_COLUMNS: Final = ("topic", "broker", "queue", "bornTime", "storeTime", "size", "bodySize")
"""The columns of messages that counts and latencies need."""

KEY_COLUMNS: Final = ("topic", "storeTime", "size", "keys")
"""The columns of messages that counts by key need."""

PERCENTILE_ACCURACY: Final = 10_000
"""Accuracy of `percentile_approx`: the error of the rank is at most 1/10,000."""


def queue_counts(messages: DataFrame, window_ms: int) -> DataFrame:
    """Count messages and bytes of each queue and window."""
    grouped = messages.groupBy(_window(window_ms), "topic", "broker", "queue").agg(
        F.count("*").alias("messages"), F.sum("size").alias("bytes"), F.sum("bodySize").alias("bodyBytes")
    )
    return grouped.select(*_bounds(), "topic", "broker", "queue", "messages", "bytes", "bodyBytes")


def latencies(messages: DataFrame, window_ms: int) -> DataFrame:
    """Return percentiles of the time from born time to store time in milliseconds, by topic and window.

    It depends on two clocks: a message whose store time is before its born time has no latency, and counts only in
    `messages` and `clockSkewed`. So does a message whose born time is invalid (null).
    """
    latency = (F.unix_micros("storeTime") - F.unix_micros("bornTime")) / 1000.0
    rows = messages.withColumn("latency", F.when(latency >= 0, latency))
    shares = [0.5, 0.95, 0.99]
    quantiles = F.percentile_approx("latency", shares, PERCENTILE_ACCURACY)
    grouped = rows.groupBy(_window(window_ms), "topic").agg(
        F.count("*").alias("messages"),
        quantiles.alias("quantiles"),
        F.max("latency").alias("maxMs"),
        (F.count("*") - F.count("latency")).alias("clockSkewed"),
    )
    named = [F.col("quantiles")[at].alias(name) for at, name in enumerate(("p50Ms", "p95Ms", "p99Ms"))]
    return grouped.select(*_bounds(), "topic", "messages", *named, "maxMs", "clockSkewed")


def key_counts(messages: DataFrame, window_ms: int) -> DataFrame:
    """Count messages and bytes by key. A message counts once for each of its distinct keys."""
    rows = messages.where(F.length("keys") > 0)
    words = F.array_remove(F.array_distinct(F.split("keys", " ")), "")
    rows = rows.select("storeTime", "topic", "size", F.explode(words).alias("key"))
    grouped = rows.groupBy(_window(window_ms), "topic", "key").agg(
        F.count("*").alias("messages"), F.sum("size").alias("bytes")
    )
    return grouped.select(*_bounds(), "topic", "key", "messages", "bytes")


def throughput(counts: DataFrame) -> DataFrame:
    """Return the rates of each topic on each broker, from `queue_counts`."""
    seconds = (F.unix_micros("windowEnd") - F.unix_micros("windowBegin")) / 1_000_000.0
    keys = ("windowBegin", "windowEnd", "topic", "broker")
    grouped = counts.groupBy(*keys).agg(
        F.sum("messages").alias("messages"), F.sum("bytes").alias("bytes"), F.sum("bodyBytes").alias("bodyBytes")
    )
    return grouped.select(
        *keys, "messages", "bytes", "bodyBytes",
        (F.col("messages") / seconds).alias("messagesPerSecond"), (F.col("bytes") / seconds).alias("bytesPerSecond"),
    )  # fmt: skip


def hot_queues(counts: DataFrame) -> DataFrame:
    """Return each queue's share of its topic, and its ratio to an even share (`timesEven`), from `queue_counts`.

    The even share counts only queues with messages: `timesEven` is 1.0 if all of them have the same number.
    """
    whole = Window.partitionBy("windowBegin", "topic")
    share = F.col("messages") / F.sum("messages").over(whole)
    order = whole.orderBy(F.desc("messages"), "broker", "queue")
    return counts.select(
        "windowBegin", "windowEnd", "topic", "broker", "queue", "messages", "bytes", share.alias("share"),
        (share * F.count("*").over(whole)).alias("timesEven"), F.row_number().over(order).alias("rank"),
    )  # fmt: skip


def hot_keys(counts: DataFrame, keys_max: int) -> DataFrame:
    """Return the keys with the most messages of each window and topic, from `key_counts`; ties by name."""
    order = Window.partitionBy("windowBegin", "topic").orderBy(F.desc("messages"), "key")
    ranked = counts.withColumn("rank", F.row_number().over(order))
    return ranked.where(F.col("rank") <= keys_max).select(
        "windowBegin", "windowEnd", "topic", "key", "messages", "bytes", "rank"
    )


def consumer_lag(samples: DataFrame) -> DataFrame:
    """Return the lag of each group and queue at a sample; without a committed offset, all stored messages count."""
    start_offset = F.greatest(F.coalesce("committed", "begin"), F.col("begin"))
    return samples.select(
        "sampledAt", "group", "topic", "broker", "queue", "committed", "end",
        F.greatest(F.col("end") - start_offset, F.lit(0)).alias("lagMessages"), "lagSeconds",
    )  # fmt: skip


def stored_between(messages: DataFrame, begin_ms: int, end_ms: int) -> DataFrame:
    """Return the messages that were stored in `[begin, end)`."""
    time = F.unix_millis("storeTime")
    return messages.where((time >= begin_ms) & (time < end_ms))


def _window(window_ms: int) -> Column:
    return F.window("storeTime", f"{window_ms} milliseconds")


def _bounds() -> tuple[Column, Column]:
    return F.col("window.start").alias("windowBegin"), F.col("window.end").alias("windowEnd")
