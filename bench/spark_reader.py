"""Reads the benchmark's topic from the slave's sidecar, repeatedly, until it is killed.

`python spark_reader.py GROUP_FOLDER READY_FILE`: the file is created when the first read has ended.
"""

from __future__ import annotations

import sys
from pathlib import Path

from gantry_bench.spark_group import Group
from gantry_bench.spark_run import drain, read_topic

from gantry_pipelines.session import spark_session


def main(folder: str, ready_file: str) -> None:
    """Read the topic repeatedly until killed."""
    spark = spark_session("bench-spark-reader", cores=1, conf={"spark.driver.memory": "1g"})
    source = Group(Path(folder))
    while True:
        drain(read_topic(spark, source, "http", readFrom="slave"))
        Path(ready_file).touch()


if __name__ == "__main__":
    main(*sys.argv[1:])
