"""The program that is killed: a stream from files into a topic, exactly once, until all files are written."""

from __future__ import annotations

import sys
from typing import Final

from pyspark.errors import StreamingQueryException

from gantry_pipelines import spark_session

FAILURES_MAX: Final = 30
"""How often a failed query is started again, as a supervisor does: its committing process was killed."""


def main(name_server: str, topic: str, source: str, checkpoint: str) -> None:
    """Run the query until all files are written.

    Two files are one batch, each a task, so a repeated batch has the same rows at the same positions. A task may be
    attempted four times.
    """
    conf = {"spark.master": "local[2,4]", "spark.driver.memory": "700m"}
    spark = spark_session("sink-kills", conf=conf)
    stream = spark.readStream.schema("body string").option("maxFilesPerTrigger", 2).parquet(source)
    writer = (
        stream.writeStream.format("rocketmq").option("nameServers", name_server).option("topic", topic)
        .option("transactional", True).option("checkpointLocation", checkpoint).trigger(availableNow=True)
    )  # fmt: skip
    for tries_left in range(FAILURES_MAX, -1, -1):
        query = writer.start()
        try:
            query.awaitTermination()
            return
        except StreamingQueryException:
            if not tries_left:
                raise


if __name__ == "__main__":
    main(*sys.argv[1:])
