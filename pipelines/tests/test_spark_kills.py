"""Messages read by a stream whose driver is killed, and while its brokers fail over. Takes minutes: `--slow`."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from local_group_kit import FREE_PORTS, Load
from local_group_kit import Group as LocalGroup
from spark_kit.processes import Group
from spark_kit.topics import places, send_to_new_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.needs_spark, pytest.mark.slow]

KIT: Final = Path(__file__).with_name("spark_kit")
DEADLINE_S: Final = 300
STARTS_MAX: Final = 20


@contextmanager
def driver(
    options: dict[str, str], folder: Path, *, cores: int = 2, ends: bool = False
) -> Iterator[subprocess.Popen[str]]:
    """Run the driver once; it and its workers are killed at the end."""
    words = [json.dumps({**options, "ends": str(ends).lower()}), str(folder), str(cores)]
    process = subprocess.Popen(
        [sys.executable, str(KIT / "driver.py"), *words], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def wait_for_batches(process: subprocess.Popen[str], batches: int) -> bool:
    """Wait for so many batches of the driver; return whether it did them. A busy machine may make Spark end earlier."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("batch "):
            batches -= 1
        if batches <= 0:
            return True
    return False


def test_killed_drivers_read_each_message_once(spark: SparkSession, brokers: Group, tmp_path: Path) -> None:
    """Driver, JVM and workers are killed with kill -9 at five random moments; a run with other settings finishes."""
    sent = send_to_new_topic(brokers, "killed", 1500)
    options = {
        "nameServers": brokers.name_server, "subscribe": "killed", "startingOffsets": "earliest",
        "maxRowsPerTrigger": "60", "commitGroup": "killed-group",
    }  # fmt: skip
    rng = random.Random(11)
    kills = 0
    for _ in range(STARTS_MAX):
        with driver(options, tmp_path) as process:
            if wait_for_batches(process, rng.randrange(1, 3)):
                time.sleep(rng.random())  # the kill happens in the middle of the next work
                os.killpg(process.pid, signal.SIGKILL)
                kills += 1
        if kills == 5:
            break
    assert kills == 5, f"only {kills} of 5 drivers ran until their kill"
    sent += brokers.send(100, topic="killed")
    last = options | {"minPartitions": "4", "maxRowsPerTrigger": "400"}
    for _ in range(STARTS_MAX):
        with driver(last, tmp_path, cores=1, ends=True) as process:
            if process.wait(DEADLINE_S) == 0:
                break
    assert process.returncode == 0

    rows = spark.read.parquet(str(tmp_path / "rows")).select("queue", "offset", "body").collect()
    assert sorted((row.queue, row.offset) for row in rows) == places(sent)
    assert Counter(bytes(row.body) for row in rows) == Counter(one.body for one in sent)


def test_stream_survives_failover_and_switchover(spark: SparkSession, tmp_path: Path) -> None:
    """A failover, then a switchover: the stream reads each acknowledged message once."""
    group = LocalGroup(tmp_path / "group")
    group.up(*FREE_PORTS)
    folder = tmp_path / "stream"
    try:
        with Load(group, "failing") as load:
            group.wait_until(load.has_more(50))
            frame = spark.readStream.format("rocketmq").options(
                nameServers=group.name_server, subscribe="failing", startingOffsets="earliest", patience="5m"
            )
            writer = frame.load().writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
            query = writer.start(str(folder / "rows"))
            group.wait_until(lambda: any(one["numInputRows"] for one in query.recentProgress), DEADLINE_S)
            ((name, epoch),) = group.masters().values()
            group.run_command("kill", name)
            group.wait_until(lambda: any(one[1] > epoch for one in group.masters().values()), DEADLINE_S)
            group.wait_until(load.has_more(100), DEADLINE_S)
            group.wait_until(group.is_healthy, DEADLINE_S)
            group.run_command("promote", "0", "--timeout", "600")
            group.wait_until(load.has_more(100), DEADLINE_S)
        acknowledged = set(load.acknowledged)
        query.processAllAvailable()
        assert query.exception() is None
        query.stop()

        rows = [bytes(row.body).decode() for row in spark.read.parquet(str(folder / "rows")).select("body").collect()]
        counts = Counter(rows)
        assert acknowledged <= set(counts)
        assert {body: count for body, count in counts.items() if count > 1 and body in acknowledged} == {}
    finally:
        for query in spark.streams.active:
            query.stop()
        group.down()
