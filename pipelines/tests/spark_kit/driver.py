"""A driver to be killed: one streaming query into Parquet, in a process of its own. `python driver.py OPTIONS FOLDER`.

It says `batch N` after each batch, so that whoever kills it knows how far it has come.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gantry_pipelines import spark_session


def say(line: str) -> None:
    """To whoever waits for it."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(options: dict[str, str], folder: Path, cores: int) -> None:
    """Until it is killed, or nothing is left with `availableNow`."""
    ends = options.pop("ends") == "true"
    spark = spark_session("driver", cores=cores, conf={"spark.driver.memory": "1g"})
    frame = spark.readStream.format("rocketmq").options(**options).load()
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    query = (writer.trigger(availableNow=True) if ends else writer).start(str(folder / "rows"))
    seen = -1
    while not query.awaitTermination(1):
        last = query.lastProgress
        if last is not None and last["batchId"] > seen and last["numInputRows"]:
            seen = last["batchId"]
            say(f"batch {seen}")
    say("ended")
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
