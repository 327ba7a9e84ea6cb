"""The archive job with a real Spark and real brokers: every reader sees every acknowledged message once, unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.testing import assertDataFrameEqual
from spark_kit.listings import READERS
from spark_kit.object_store import BUCKET, ObjectStore
from spark_kit.processes import Group

from gantry_pipelines.archive.job import ArchiveJob
from gantry_pipelines.archive.layout import Place
from gantry_pipelines.archive.manifest import ArchivedFile, RangeKind, document_of
from gantry_pipelines.archive.source import FILE_SCHEMA, sort_file_rows
from gantry_pipelines.archive.verify_job import VerifyJob, VerifyParameters
from gantry_pipelines.config import config_of
from gantry_pipelines.outcome import Outcome
from gantry_pipelines.reporting import Reporter
from gantry_spec.pipelines.kinds import ArchiveSpec
from pyspark_rocketmq.model import QueueId, QueueRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.needs_spark


def archive(brokers: Group, root: Path, topic: str, **more: Any) -> Outcome:
    """Run the job once, for the present messages."""
    runtime = {
        "nameServers": [brokers.name_server],
        "sidecars": list(brokers.sidecar_urls[:1]),
        "destination": str(root),
        "once": True,
    }
    document = {"topics": {"include": [topic]}, "layout": {"rowsPerFile": 1000}, "runtime": runtime} | more
    job, reporter = ArchiveJob(), Reporter("archive")
    with reporter.stop.handle_signals():
        return job.run(job.parse(config_of(document, ArchiveSpec)), reporter)


@pytest.mark.verify
def test_archive_has_the_sent_messages(spark: SparkSession, brokers: Group, tmp_path: Path) -> None:
    """Spark, pyarrow and DuckDB all see each message once in a listing; a second run adds the new messages."""
    root = tmp_path / "archive"
    sent = brokers.send(900, topic="kept")
    first = archive(brokers, root, "kept")
    sent += brokers.send(300, topic="kept")
    second = archive(brokers, root, "kept", limits={"maxRowsPerTrigger": 7}, engine={"cores": 1})
    third = archive(brokers, root, "kept")

    wanted = {("kept", "broker-a", one.queue, one.offset, one.body): 1 for one in sent}
    assert [first.rows, second.rows, third.rows] == [900, 300, 0]
    assert {name: dict(read(root)) for name, read in READERS.items()} == dict.fromkeys(READERS, wanted)
    by_spark = spark.read.parquet(str(root / "data")).select("topic", "broker", "queue", "offset", "body").collect()
    assert sorted((row[0], row[1], row[2], row[3], bytes(row[4])) for row in by_spark) == sorted(wanted)
    assert VerifyJob().run(VerifyParameters(str(root), is_deep=True), Reporter("verify")).exit_code == 0
    assert all(one.done == one.latest for one in third.queues) and len(third.queues) == 4


@pytest.mark.verify
@pytest.mark.needs_object_store
def test_archive_in_an_object_store_has_the_sent_messages(spark: SparkSession, brokers: Group, tmp_path: Path) -> None:
    """Spark's workers upload the files; a listing of the bucket has each message once, and `verify` finds no fault."""
    sent = brokers.send(400, topic="far")
    store = ObjectStore(tmp_path / "buckets")
    store.start()
    try:
        address = store.address("archive")
        runtime = {
            "nameServers": [brokers.name_server], "sidecars": list(brokers.sidecar_urls[:1]), "once": True,
            "destination": address, "checkpoint": str(tmp_path / "checkpoint"),
        }  # fmt: skip
        outcome = archive(brokers, tmp_path, "far", runtime=runtime)
        verified = VerifyJob().run(VerifyParameters(address, is_deep=True), Reporter("verify"))
        seen = {name: dict(read(store.folder / BUCKET / "archive")) for name, read in READERS.items()}
    finally:
        store.kill()

    wanted = {("far", "broker-a", one.queue, one.offset, one.body): 1 for one in sent}
    assert (outcome.rows, verified.exit_code, verified.rows) == (400, 0, 400)
    assert seen == dict.fromkeys(READERS, wanted)


def test_transform_keeps_all_files_sorted_by_offset(spark: SparkSession) -> None:
    """No file of the source is dropped or duplicated, and a task's files are sorted by offset."""
    queue = QueueId("orders", "broker-a", 0)
    files = [
        ArchivedFile(Place(QueueRange(queue, begin, begin + 10), "2026-11-22"), 10, 5, "c", kind=kind)
        for begin, kind in ((20, RangeKind.DATA), (0, RangeKind.LOST), (10, RangeKind.DATA))
    ]
    given = spark.createDataFrame([document_of(file) for file in files], FILE_SCHEMA).coalesce(1)

    found = sort_file_rows(given)

    wanted = spark.createDataFrame([document_of(files[index]) for index in (1, 2, 0)], FILE_SCHEMA)
    assertDataFrameEqual(found, wanted, checkRowOrder=True)
