"""The source and the sink in sessions of Spark Connect, with a server process and real brokers."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

pytest.importorskip("pyspark")
from spark_kit.connect import ConnectServer, connect_server
from spark_kit.processes import Group
from spark_kit.topics import send_to_new_topic
from test_spark_sink_session import messages

from gantry_client.sync import Admin

pytestmark = [pytest.mark.verify, pytest.mark.needs_spark]

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "spark-declarative.md"

STREAMS: Final = """
import sys
from pyspark.sql import SparkSession

name_server, folder = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
options = {"nameServers": name_server, "subscribe": "connect-streams"}

def run(writer):
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(200)
    counts = [source["numInputRows"] for one in query.recentProgress for source in one["sources"]]
    return [count for count in counts if count]

for limit in ("30", "1000"):  # the second query continues from the checkpoint of the first one
    stream = spark.readStream.format("rocketmq").options(
        **options, startingOffsets="earliest", columns="queue,offset", maxRowsPerTrigger=limit
    ).load()
    files = stream.writeStream.format("parquet").option("path", folder + "/rows")
    print(*run(files.option("checkpointLocation", folder + "/rows-checkpoint")))
rows = spark.read.parquet(folder + "/rows")
print("rows", rows.count(), rows.distinct().count())

spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
print("queue 1:", spark.read.format("rocketmq").options(**options, pushdown="true").load().where("queue = 1").count())
try:
    spark.read.format("rocketmq").options(**options, tag="red").load().count()
except Exception as error:
    print("unknown option" in str(error))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    """A Connect server for the tests of this file."""
    with connect_server(tmp_path_factory.mktemp("connect")) as running:
        yield running


def test_program_of_the_page_copies_a_topic_over_connect(server: ConnectServer, brokers: Group, tmp_path: Path) -> None:
    """A batch counts all messages, and a stream writes each of them once to the sink."""
    sent = send_to_new_topic(brokers, "connect-orders", 60)
    with Admin(brokers.name_server) as admin:
        admin.wait(admin.topics.create("connect-copy", queues=2))
    [program] = re.findall(r"```python connect\.py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for shown, used in {
        "sc://localhost:15002": server.url,
        "127.0.0.1:9876": brokers.name_server,
        '"orders"': '"connect-orders"',
        "orders-copy": "connect-copy",
        "/tmp/": f"{tmp_path}/",
    }.items():
        assert shown in program
        program = program.replace(shown, used)

    assert "60 connect-orders" in server.run(sys.executable, "-c", program)

    copied = messages(brokers, "connect-copy")
    assert sorted((one.body, one.keys) for one in copied) == sorted((one.body, (one.key,)) for one in sent)


def test_streams_files_and_filters_work_over_connect(server: ConnectServer, brokers: Group, tmp_path: Path) -> None:
    """A stream continues from its checkpoint; pushed filters and errors of options work."""
    send_to_new_topic(brokers, "connect-streams", 80)

    output = server.run(sys.executable, "-c", STREAMS, brokers.name_server, str(tmp_path))

    first, second, *rest = output.splitlines()
    assert sum(map(int, first.split())) == 80 and len(first.split()) == 3
    assert (second, *rest) == ("", "rows 80 80", "queue 1: 20", "True")
