"""What is counted: functions from a DataFrame of messages, or of counts, to another one.

The first three read messages (only columns without body and properties, but for keys) and can run in a stream. The
others make of counts what people read, and need all rows of a window at once.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

COUNT_COLUMNS: Final = ("topic", "broker", "queue", "bornTime", "storeTime", "size", "bodySize")
KEY_COLUMNS: Final = ("topic", "storeTime", "size", "keys")
PERCENTILE_ACCURACY: Final = 10_000
"""Of `percentile_approx`: the rank is wrong by 1/10,000 at most."""


def queue_counts(messages: DataFrame, window_ms: int) -> DataFrame:
    """Messages and bytes of each queue and window."""
    grouped = messages.groupBy(_window(window_ms), "topic", "broker", "queue").agg(
        F.count("*").alias("messages"), F.sum("size").alias("bytes"), F.sum("bodySize").alias("bodyBytes")
    )
    return grouped.select(*_bounds(), "topic", "broker", "queue", "messages", "bytes", "bodyBytes")


def latencies(messages: DataFrame, window_ms: int) -> DataFrame:
    """From a message's birth at its producer to its place in the log, in milliseconds, by topic and window.

    Both clocks are in it: of a message that was stored before it was born only that is counted (`clockSkewed`).
    """
    waited = (F.unix_micros("storeTime") - F.unix_micros("bornTime")) / 1000.0
    rows = messages.withColumn("waited", F.when(waited >= 0, waited))
    shares = [0.5, 0.95, 0.99]
    quantiles = F.percentile_approx("waited", shares, PERCENTILE_ACCURACY)
    grouped = rows.groupBy(_window(window_ms), "topic").agg(
        F.count("*").alias("messages"),
        quantiles.alias("quantiles"),
        F.max("waited").alias("maxMs"),
        (F.count("*") - F.count("waited")).alias("clockSkewed"),
    )
    named = [F.col("quantiles")[at].alias(name) for at, name in enumerate(("p50Ms", "p95Ms", "p99Ms"))]
    return grouped.select(*_bounds(), "topic", "messages", *named, "maxMs", "clockSkewed")


def key_counts(messages: DataFrame, window_ms: int) -> DataFrame:
    """Messages and bytes by key. A message with several keys counts for each, and with the same one twice once."""
    rows = messages.where(F.length("keys") > 0)
    words = F.array_remove(F.array_distinct(F.split("keys", " ")), "")
    rows = rows.select("storeTime", "topic", "size", F.explode(words).alias("key"))
    grouped = rows.groupBy(_window(window_ms), "topic", "key").agg(
        F.count("*").alias("messages"), F.sum("size").alias("bytes")
    )
    return grouped.select(*_bounds(), "topic", "key", "messages", "bytes")


def throughput(counts: DataFrame) -> DataFrame:
    """Rates of each topic on each broker, out of `queue_counts`."""
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
    """Each queue's share of its topic, and how many times its even share that is, out of `queue_counts`.

    1.0 is a queue that has what each would have if all queues with messages had the same.
    """
    whole = Window.partitionBy("windowBegin", "topic")
    share = F.col("messages") / F.sum("messages").over(whole)
    order = whole.orderBy(F.desc("messages"), "broker", "queue")
    return counts.select(
        "windowBegin", "windowEnd", "topic", "broker", "queue", "messages", "bytes", share.alias("share"),
        (share * F.count("*").over(whole)).alias("timesEven"), F.row_number().over(order).alias("rank"),
    )  # fmt: skip


def hot_keys(counts: DataFrame, keys_max: int) -> DataFrame:
    """The keys with most messages of each window and topic, out of `key_counts`; ties by name."""
    order = Window.partitionBy("windowBegin", "topic").orderBy(F.desc("messages"), "key")
    ranked = counts.withColumn("rank", F.row_number().over(order))
    return ranked.where(F.col("rank") <= keys_max).select(
        "windowBegin", "windowEnd", "topic", "key", "messages", "bytes", "rank"
    )


def consumer_lag(samples: DataFrame) -> DataFrame:
    """How far a group was behind in each queue when it was asked. One that has not begun has everything before it."""
    begun = F.greatest(F.coalesce("committed", "begin"), F.col("begin"))
    return samples.select(
        "sampledAt", "group", "topic", "broker", "queue", "committed", "end",
        F.greatest(F.col("end") - begun, F.lit(0)).alias("lagMessages"), "lagSeconds",
    )  # fmt: skip


def closed(messages: DataFrame, begin_ms: int, end_ms: int) -> DataFrame:
    """The messages that were stored in `[begin, end)`."""
    time = F.unix_millis("storeTime")
    return messages.where((time >= begin_ms) & (time < end_ms))


def _window(window_ms: int) -> Column:
    return F.window("storeTime", f"{window_ms} milliseconds")


def _bounds() -> tuple[Column, Column]:
    return F.col("window.start").alias("windowBegin"), F.col("window.end").alias("windowEnd")
