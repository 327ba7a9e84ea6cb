"""Topics read from an archive and its brokers: each message once, also in failovers and compactions."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from local_group_kit import FREE_PORTS, Load
from local_group_kit import Group as LocalGroup
from pyspark.errors import PySparkException
from spark_kit.object_store import ObjectStore
from spark_kit.processes import Group, Sent
from spark_kit.toy_archive import archive_log
from spark_kit.toy_log import ToyLog

from gantry_pipelines import read_archived_topics
from gantry_pipelines.archive import archived_topics, topics_planner
from gantry_pipelines.archive.compaction import CompactionRules, compact
from gantry_pipelines.archive.file_writing import Packing, write_files
from gantry_pipelines.archive.format import ArchiveFormat
from gantry_pipelines.archive.grid import split_on_grid
from gantry_pipelines.archive.job import ArchiveJob
from gantry_pipelines.archive.layout import day_end_ms
from gantry_pipelines.archive.manifest import ArchivedFile
from gantry_pipelines.archive.manifest_reader import read_manifest
from gantry_pipelines.archive.object_storage import storage_of
from gantry_pipelines.archive.planning import split_into_rounds
from gantry_pipelines.archive.storage import Folder
from gantry_pipelines.archive.tables.links import TableLinks
from gantry_pipelines.archive.tables.publication import ManifestState
from gantry_pipelines.archive.writer import ArchiveWriter
from gantry_pipelines.config import config_of
from gantry_pipelines.reporting import Reporter
from gantry_spec.pipelines.kinds import ArchiveSpec
from pyspark_rocketmq.batch_reader import locate_extents
from pyspark_rocketmq.catalog import Catalog
from pyspark_rocketmq.errors import LogForked
from pyspark_rocketmq.model import QueueId, QueueRange
from pyspark_rocketmq.planning import SplitOptions, plan_tasks
from pyspark_rocketmq.reading import read_task
from pyspark_rocketmq.schema import COLUMNS
from pyspark_rocketmq.settings import ReadSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.needs_spark]

Row = tuple[int, int, bytes]


def archive(brokers: Group, root: Path, topic: str, **more: Any) -> int:
    """Run the archive job once for the present messages; return the number of archived rows."""
    runtime = {
        "nameServers": [brokers.name_server], "sidecars": list(brokers.sidecar_urls[:1]), "destination": str(root),
        "once": True,
    }  # fmt: skip
    document = {"topics": {"include": [topic]}, "layout": {"rowsPerFile": 1000}, "runtime": runtime} | more
    job, reporter = ArchiveJob(), Reporter("archive")
    with reporter.stop.handle_signals():
        return job.run(job.parse(config_of(document, ArchiveSpec)), reporter).rows


GRID_ROWS = 50


def archive_now(settings: ReadSettings, destination: str, topic: str) -> int:
    """Archive the present messages without Spark, in files of at most fifty rows; return their number."""
    storage = storage_of(destination)
    with (
        Catalog(settings) as catalog,
        ArchiveWriter.open(storage, ArchiveFormat(GRID_ROWS)) as writer,
    ):
        ends, bounds = writer.manifest.ends(), catalog.bounds(catalog.queues([topic]))
        ranges = [QueueRange(queue, ends.get(queue, at.begin), at.end) for queue, at in bounds.items()]
        pieces = [piece for one in ranges for piece in split_on_grid(one, GRID_ROWS)]
        files: list[ArchivedFile] = []
        for some in split_into_rounds(pieces):
            extents = locate_extents(some, catalog)
            replicas = {one.queue.broker: catalog.replicas(one.queue.broker) for one in some}
            for task in plan_tasks(extents, replicas, SplitOptions(COLUMNS)):
                assert task.physical is None or len(some) == len(task.ranges)
                rows = read_task(task, settings)
                files += write_files(rows, task.ranges, storage, writer.format, Packing())
        number = len(writer.manifest.records)
        writer.commit("query", number, sorted(files, key=lambda file: file.range))
        return sum(file.rows for file in files)


def compact_all(root: Path) -> None:
    """Compact each day of an archive, as if it were long over."""
    with ArchiveWriter.open(Folder(str(root))) as writer:
        days = {file.place.day for file in writer.manifest.data()}
        now_ms = max(day_end_ms(day, "UTC") for day in days)
        assert list(compact(writer, CompactionRules(after_ms=0), Packing(), now_ms))


def read(spark: SparkSession, brokers: Group, root: Path, topic: str, **options: object) -> DataFrame:
    """Read the topic from archive and brokers."""
    given = {"nameServers": brokers.name_server, "sidecars": ",".join(brokers.sidecar_urls[:1]), "subscribe": topic}
    return read_archived_topics(spark, str(root), **{**given, **options})


def rows_of(frame: DataFrame) -> Counter[Row]:
    """Return how often each message is in a DataFrame."""
    return Counter(
        (row.queue, row.offset, bytes(row.body)) for row in frame.select("queue", "offset", "body").collect()
    )


def rows_sent(sent: list[Sent]) -> Counter[Row]:
    """Return each sent message once."""
    return Counter((one.queue, one.offset, one.body) for one in sent)


@pytest.mark.verify
def test_archived_and_new_messages_are_read_once(spark: SparkSession, brokers: Group, tmp_path: Path) -> None:
    """All columns equal those of the source, the schema too; also after the archive has grown."""
    root = tmp_path / "an [archive] *"
    sent = brokers.send(900, topic="both")
    assert archive(brokers, root, "both") == 900
    sent += brokers.send(100, topic="both")

    frame = read(spark, brokers, root, "both")
    source = spark.read.format("rocketmq").options(
        nameServers=brokers.name_server, sidecars=brokers.sidecar_urls[0], subscribe="both"
    )
    assert frame.schema == source.load().schema
    assert rows_of(frame) == rows_sent(sent)
    by_place = {(row.queue, row.offset): row.asDict() for row in source.load().collect()}
    assert {(row.queue, row.offset): row.asDict() for row in frame.collect()} == by_place
    plan = frame._jdf.queryExecution().toString()
    assert "FileScan parquet" in plan and "Union" in plan

    assert archive(brokers, root, "both") == 100
    assert rows_of(frame) == rows_sent(sent) == rows_of(read(spark, brokers, root, "both"))


@pytest.mark.verify
def test_options_select_archived_and_new_messages(spark: SparkSession, brokers: Group, tmp_path: Path) -> None:
    """Offsets cut files, tags select rows, columns keep their order, and filters by topic and queue find all rows."""
    sent = brokers.send(400, topic="chosen", tags=("red", "blue"))
    assert archive_now(brokers.settings(), str(tmp_path), "chosen") == 400
    sent += brokers.send(80, topic="chosen", tags=("red", "blue"))
    starts = '{"chosen": {"broker-a": {"0": 7, "1": 60, "2": -2, "3": 110}}}'
    ends = '{"chosen": {"broker-a": {"0": 105, "1": 93, "2": 100, "3": -1}}}'
    limits = {0: (7, 105), 1: (60, 93), 2: (0, 100), 3: (110, 120)}

    frame = read(spark, brokers, tmp_path, "chosen", startingOffsets=starts, endingOffsets=ends)
    wanted = [one for one in sent if limits[one.queue][0] <= one.offset < limits[one.queue][1]]
    assert rows_of(frame) == rows_sent(wanted)
    assert rows_of(frame.where("queue = 1 AND topic = 'chosen'")) == rows_sent(
        [one for one in wanted if one.queue == 1]
    )

    tagged = read(spark, brokers, tmp_path, "chosen", tags="blue", columns="offset,topic,queue,body", pushdown=True)
    assert tagged.columns == ["offset", "topic", "queue", "body"]
    assert rows_of(tagged) == rows_sent([one for one in sent if one.tags == "blue"])
    assert {row.topic for row in tagged.select("topic").distinct().collect()} == {"chosen"}
    assert rows_of(tagged.where("offset >= 90")) == rows_sent(
        [one for one in sent if one.tags == "blue" and one.offset >= 90]
    )


@pytest.mark.verify
def test_compaction_between_plan_and_read(
    spark: SparkSession, brokers: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the links of tables a planned query returns each message once. Without them it fails, and never skips rows.

    Twin: if Spark may ignore missing files, the query silently lacks the archived rows.
    """
    sent = brokers.send(400, topic="exchanged")
    assert archive_now(brokers.settings(), str(tmp_path), "exchanged") == 400
    sent += brokers.send(40, topic="exchanged")
    spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    try:
        unlinked = read(spark, brokers, tmp_path, "exchanged")
        monkeypatch.setattr(archived_topics, "REQUIRED_FILES", {})
        careless = read(spark, brokers, tmp_path, "exchanged")
        monkeypatch.undo()
        archive_folder = Folder(str(tmp_path))
        state = ManifestState.of(read_manifest(archive_folder))
        TableLinks(archive_folder).make("exchanged", state.files["exchanged"], ())
        linked = read(spark, brokers, tmp_path, "exchanged")
        compact_all(tmp_path)

        assert rows_of(linked) == rows_sent(sent)
        assert linked.schema == read(spark, brokers, tmp_path, "exchanged").schema
        with pytest.raises(Exception, match="FILE_NOT_EXIST"):
            rows_of(unlinked)
        assert rows_of(read(spark, brokers, tmp_path, "exchanged")) == rows_sent(sent)
        assert rows_of(careless) == rows_sent(sent[400:])
    finally:
        spark.conf.unset("spark.sql.files.ignoreMissingFiles")


@pytest.mark.verify
def test_archive_of_another_history_is_refused(
    spark: SparkSession, brokers: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the log has other messages at the archived offsets, the read fails, also if losses are accepted.

    Twin: without the check rows of two histories are mixed.
    """
    brokers.send(200, topic="forked")
    log = ToyLog({QueueId("forked", "broker-a", number): 40 for number in range(4)})
    archive_log(log, tmp_path)
    with pytest.raises(LogForked, match="the log has forked, or the topic was created again"):
        read(spark, brokers, tmp_path, "forked", failOnDataLoss=False)
    monkeypatch.setattr(topics_planner, "check_not_forked", lambda *_: None)
    mixed = read(spark, brokers, tmp_path, "forked")
    with pytest.raises(PySparkException, match="LogForked"):  # it is checked again before each execution
        mixed.count()
    assert read(spark, brokers, tmp_path, "forked", endingOffsets=ends_at("forked", 40)).count() == 160


def ends_at(topic: str, offset: int) -> str:
    """Return one end for four queues, as an option."""
    queues = ", ".join(f'"{number}": {offset}' for number in range(4))
    return f'{{"{topic}": {{"broker-a": {{{queues}}}}}}}'


@pytest.mark.verify
@pytest.mark.needs_object_store
def test_archive_in_an_object_store_is_read_by_workers(spark: SparkSession, brokers: Group, tmp_path: Path) -> None:
    """Without a connector of Spark the rows are the same; offsets cut files there, too."""
    sent = brokers.send(240, topic="remote")
    store = ObjectStore(tmp_path / "buckets")
    store.start()
    try:
        address = store.address("archive")
        assert archive_now(brokers.settings(), address, "remote") == 240
        sent += brokers.send(40, topic="remote")
        options = {"nameServers": brokers.name_server, "subscribe": "remote"}
        assert rows_of(read_archived_topics(spark, address, **options)) == rows_sent(sent)
        part = read_archived_topics(spark, address, **options, endingOffsets=ends_at("remote", 55))
        assert rows_of(part) == rows_sent([one for one in sent if one.offset < 55])
    finally:
        store.kill()


@pytest.mark.verify
def test_failover_during_a_read(spark: SparkSession, tmp_path: Path) -> None:
    """The master is killed while tasks read from it, and a slave is promoted: each planned message is read once."""
    group = LocalGroup(tmp_path / "group")
    root, gate, marks = tmp_path / "archive", tmp_path / "gate", tmp_path / "marks"
    marks.mkdir()
    group.up(*FREE_PORTS)
    try:
        with Load(group, "failing") as load:
            group.wait_until(load.has_more(300))
            settings = ReadSettings(name_servers=group.name_server, patience_ms=300_000)
            assert archive_now(settings, str(root), "failing") >= 100
            group.wait_until(load.has_more(300))
            acknowledged = set(load.acknowledged)
            options: dict[str, object] = {
                "nameServers": group.name_server, "subscribe": "failing", "patience": "5m", "readFrom": "master",
                "minPartitions": 8, "batchRows": 10,
            }  # fmt: skip
            time.sleep(1)  # a message can be read a moment after it is acknowledged
            frame = read_archived_topics(spark, str(root), **options)
            found: list[Counter[tuple[int, int, str]]] = []
            thread = threading.Thread(target=lambda: found.append(read_slowly(frame, str(gate), str(marks))))
            thread.start()
            group.wait_until(lambda: any(marks.iterdir()))
            ((name, epoch),) = group.masters().values()
            group.run_command("kill", name)
            group.wait_until(lambda: any(one[1] > epoch for one in group.masters().values()))
            group.wait_until(load.has_more(50))
            gate.touch()
            thread.join(300)
        [rows] = found
        after = read_archived_topics(spark, str(root), **options | {"endingOffsets": ends_of(rows)})
        assert set(rows.values()) == {1}
        assert rows == Counter((row.queue, row.offset, bytes(row.body).decode()) for row in after.collect())
        assert acknowledged <= {body for _, _, body in rows}
        assert gaps_in(rows) == []
    finally:
        gate.touch()
        group.down()


def read_slowly(frame: DataFrame, gate: str, marks: str) -> Counter[tuple[int, int, str]]:
    """Read a DataFrame whose tasks stop after their first rows until the gate is open."""

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import time

        for batch in batches:
            yield batch
            with open(f"{marks}/{os.getpid()}", "w"):
                pass
            while not os.path.exists(gate):
                time.sleep(0.05)

    schema = "queue int, offset bigint, body binary"
    rows = frame.select("queue", "offset", "body").mapInArrow(wait, schema).collect()
    return Counter((row.queue, row.offset, bytes(row.body).decode()) for row in rows)


def ends_of(rows: Counter[tuple[int, int, str]]) -> str:
    """Return the end of each queue, as an option."""
    import json

    ends = {str(queue): 1 + max(at for number, at, _ in rows if number == queue) for queue in {row[0] for row in rows}}
    return json.dumps({"failing": {"crew-0": ends}})


def gaps_in(rows: Counter[tuple[int, int, str]]) -> list[tuple[int, int]]:
    """Return the offsets that are missing below the last one of each queue."""
    offsets: dict[int, set[int]] = {}
    for queue, offset, _ in rows:
        offsets.setdefault(queue, set()).add(offset)
    return [(queue, at) for queue, found in offsets.items() for at in range(max(found)) if at not in found]
