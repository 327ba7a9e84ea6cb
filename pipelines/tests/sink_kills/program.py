"""The program that is killed: a stream from files into a topic, exactly once, until there is nothing more to read."""

from __future__ import annotations

import sys

from gantry_pipelines import spark_session


def main(name_server: str, topic: str, source: str, checkpoint: str) -> None:
    """One file is one batch of two tasks; a task may be tried four times."""
    conf = {"spark.master": "local[2,4]", "spark.driver.memory": "700m", "spark.sql.shuffle.partitions": "2"}
    spark = spark_session("sink-kills", conf=conf)
    stream = (
        spark.readStream.schema("body string, number int").option("maxFilesPerTrigger", 1).parquet(source)
        .repartitionByRange(2, "number").sortWithinPartitions("number").select("body")
    )  # fmt: skip
    writer = (
        stream.writeStream.format("rocketmq").option("nameServers", name_server).option("topic", topic)
        .option("transactional", True).option("checkpointLocation", checkpoint).trigger(availableNow=True)
    )  # fmt: skip
    query = writer.start()
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
