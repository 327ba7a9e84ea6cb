"""A driver to be killed: one streaming query into Parquet, in a process of its own.

    python driver.py OPTIONS FOLDER CORES

About once a second it prints `batch N` if a newer batch with rows is done, and `ended` at the end of the query.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gantry_pipelines import spark_session


def print_line(line: str) -> None:
    """Print a line for the test that waits for it."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(options: dict[str, str], folder: Path, cores: int) -> None:
    """Run the query until it is killed or, if the option `ends` is true, until the present messages are written."""
    ends = options.pop("ends") == "true"
    spark = spark_session("driver", cores=cores, conf={"spark.driver.memory": "1g"})
    frame = spark.readStream.format("rocketmq").options(**options).load()
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    query = (writer.trigger(availableNow=True) if ends else writer).start(str(folder / "rows"))
    last_batch = -1
    while not query.awaitTermination(1):
        last = query.lastProgress
        if last is not None and last["batchId"] > last_batch and last["numInputRows"]:
            last_batch = last["batchId"]
            print_line(f"batch {last_batch}")
    print_line("ended")
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
