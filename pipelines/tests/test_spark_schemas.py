"""The archive job with a declared schema and a real Spark: workers decode, and Spark reads typed columns and hours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("fastavro")

from spark_kit.processes import Group

from gantry_pipelines.archive.archived_topics import read_archived_topics
from gantry_pipelines.archive.job import ArchiveJob
from gantry_pipelines.archive.manifest_reader import read_manifest
from gantry_pipelines.archive.storage import Folder
from gantry_pipelines.archive.verification import verify
from gantry_pipelines.config import config_of
from gantry_pipelines.errors import JobError
from gantry_pipelines.outcome import EXIT_CONFIG, Outcome
from gantry_pipelines.reporting import Reporter
from gantry_spec.pipelines.kinds import ArchiveSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.needs_spark


def fixed(size: int) -> dict[str, Any]:
    return {"type": "fixed", "name": f"Text{size}", "size": size}


def archive(brokers: Group, root: Path, fields: list[dict[str, Any]], **more: Any) -> Outcome:
    """Run the job once, for the present messages, with the schema of a record with these fields."""
    runtime = {
        "nameServers": [brokers.name_server], "sidecars": list(brokers.sidecar_urls[:1]), "destination": str(root),
        "once": True,
    }  # fmt: skip
    schema = json.dumps({"type": "record", "name": "Body", "fields": fields})
    document = {
        "topics": {"include": ["typed"]}, "layout": {"rowsPerFile": 1000, "partitionBy": "hour"}, "runtime": runtime,
        "schemas": [{"topics": ["typed"], "format": "avro", "schema": schema, **more}],
    }  # fmt: skip
    job, reporter = ArchiveJob(), Reporter("archive")
    with reporter.stop.handle_signals():
        return job.run(job.parse(config_of(document, ArchiveSpec)), reporter)


@pytest.mark.verify
def test_spark_reads_typed_columns_and_hours(spark: SparkSession, brokers: Group, tmp_path: Path) -> None:
    """Bodies of another length do not have the schema; a second run with one column more keeps the first.

    A read of the archive and its brokers together returns each message once, without typed columns.
    """
    root, number = tmp_path / "archive", {"name": "number", "type": fixed(8)}
    space, rest = {"name": "space", "type": fixed(1)}, {"name": "rest", "type": fixed(191)}
    chosen = [{"name": "number"}, {"name": "rest"}]
    sent = brokers.send(200, topic="typed", bytes_each=200)
    sent += brokers.send(20, topic="typed", bytes_each=100)
    first = archive(brokers, root, [number, space, rest], columns=chosen[:1])
    sent += brokers.send(100, topic="typed", bytes_each=200)
    second = archive(brokers, root, [number, space, rest], columns=chosen)
    with pytest.raises(JobError, match="the column 'rest' binary, which cannot be removed") as refused:
        archive(brokers, root, [number, space, rest], columns=chosen[:1])

    rows = spark.read.option("mergeSchema", "true").parquet(str(root / "data")).collect()
    found = {(row["queue"], row["offset"]): row for row in rows}
    assert len(found) == len(rows) == len(sent) and (first.rows, second.rows) == (220, 100)
    for index, one in enumerate(sent):
        row = found[one.queue, one.offset]
        is_typed = len(one.body) == 200
        assert bytes(row["body"]) == one.body and 0 <= row["hour"] < 24
        assert row["number"] == (one.body[:8] if is_typed else None)
        assert row["rest"] == (one.body[9:] if is_typed and index >= 220 else None)
        assert (row["decodeError"] is None) is is_typed
    assert "20 bodies do not have their declared schema" in first.text and "20 bodies" in second.text
    assert second.facts["undecodedTotal"] == 20
    assert sum(file.undecoded for file in read_manifest(Folder(str(root))).data()) == 20
    assert refused.value.exit_code == EXIT_CONFIG
    assert verify(Folder(str(root)), is_deep=True).findings == ()

    sent += brokers.send(30, topic="typed", bytes_each=200)
    both = read_archived_topics(
        spark, str(root), nameServers=brokers.name_server, sidecars=brokers.sidecar_urls[0], subscribe="typed"
    )
    bodies = both.select("queue", "offset", "body").collect()
    assert sorted((row[0], row[1], bytes(row[2])) for row in bodies) == sorted(
        (one.queue, one.offset, one.body) for one in sent
    )
