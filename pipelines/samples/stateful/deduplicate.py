"""Forward the first message of each key in a day to another topic, exactly once: see docs/spark-stateful.md.

    python deduplicate.py --from orders --to orders-once --checkpoint /var/lib/orders-once

A message is a duplicate if it has the keys of a forwarded message, and the broker stored both less than `WINDOW_MS`
apart. The state has one number for each key. A timer deletes it when the key's day is over.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterable, Iterator
from typing import Final

from pyspark.sql import DataFrame, Row
from pyspark.sql.functions import coalesce, concat_ws, lit, unix_millis, when
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from gantry_pipelines import spark_session

WINDOW_MS: Final = 24 * 3600 * 1000
"""How long a key is remembered after its forwarded message."""

LATENESS: Final = "2 hours"
"""How far the queues may be apart in storeTime: the state keeps a key for this long after its day."""

INPUT: Final = "topic,broker,queue,offset,storeTime,body,keys,tags,properties"
OUTPUT: Final = "body binary, keys string, tags string, properties map<string,string>"
STATE_STORE: Final = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.shuffle.partitions": "4",
}
"""transformWithState needs RocksDB. A batch stores its changes only. The first run fixes the number of partitions."""


class FirstMessages(StatefulProcessor):
    """Return the first message of each key in a day, and forget the key when the day is over."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._forwarded = handle.getValueState("forwarded", "storedMs bigint")

    def handleInputRows(self, key: tuple[str, str], rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:
        """Return the rows of a key that are no duplicates, and remember the newest of them."""
        if not key[0]:  # a message without keys has no duplicates
            yield from map(message_of, rows)
            return
        state = self._forwarded.get()
        before = state[0] if state else None
        newest = before
        for row in first_rows(rows, before):
            newest = max(newest or 0, row.storedMs)
            yield message_of(row)
        if newest is not None and newest != before:
            if before is not None:
                self._handle.deleteTimer(before + WINDOW_MS)
            self._forwarded.update((newest,))
            self._handle.registerTimer(newest + WINDOW_MS)

    def handleExpiredTimer(
        self, key: tuple[str, str], timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Row]:
        """Delete the state of a key whose day is over."""
        self._forwarded.clear()
        return iter(())


def first_rows(rows: Iterable[Row], forwarded_ms: int | None) -> Iterator[Row]:
    """Return the rows of one key that are no duplicates of another one, or of the message forwarded at that time.

    A repeated batch has the same rows in another order: sorted, they have the same result.
    """
    known = [] if forwarded_ms is None else [forwarded_ms]
    for row in sorted(rows, key=lambda row: (row.storedMs, row.topic, row.broker, row.queue, row.offset)):
        if all(abs(row.storedMs - one) >= WINDOW_MS for one in known):
            known.append(row.storedMs)
            yield row


def message_of(row: Row) -> Row:
    """Return the columns for the sink."""
    return Row(body=row.body, keys=row.keys, tags=row.tags, properties=row.properties)


def first_messages(messages: DataFrame) -> DataFrame:
    """Return the first message of each key in a day; messages without keys are all returned."""
    has_keys = coalesce("keys", lit("")) != ""
    place = concat_ws(":", "topic", "broker", "queue", "offset")
    rows = messages.withWatermark("storeTime", LATENESS).select(
        "*",
        # Spark would drop late rows that have the column of the watermark, and lose their messages.
        unix_millis("storeTime").alias("storedMs"),
        when(has_keys, messages.keys).otherwise("").alias("group"),
        when(has_keys, "").otherwise(place).alias("place"),
    )
    groups = rows.drop("storeTime").groupBy("group", "place")
    return groups.transformWithState(FirstMessages(), OUTPUT, "Append", "EventTime")


def main() -> None:
    """Run the query until it is stopped or, with --once, until it has processed the stored messages."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--name-servers", default="127.0.0.1:9876")
    parser.add_argument("--from", dest="source", required=True, metavar="TOPIC")
    parser.add_argument("--to", dest="target", required=True, metavar="TOPIC")
    parser.add_argument("--checkpoint", required=True, metavar="FOLDER")
    parser.add_argument("--once", action="store_true")
    given = parser.parse_args()

    spark = spark_session("deduplicate", conf=STATE_STORE)
    messages = (
        spark.readStream.format("rocketmq")
        .options(nameServers=given.name_servers, subscribe=given.source)
        .options(startingOffsets="earliest", columns=INPUT)
        .load()
    )
    writer = (
        first_messages(messages)
        .writeStream.format("rocketmq")
        .options(nameServers=given.name_servers, topic=given.target)
        .options(transactional="true", reservedProperties="drop", checkpointLocation=given.checkpoint)
    )
    query = (writer.trigger(availableNow=True) if given.once else writer).start()
    query.awaitTermination()


if __name__ == "__main__":
    main()
