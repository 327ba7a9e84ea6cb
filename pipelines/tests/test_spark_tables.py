"""The archive job publishes tables as it archives: each reader of a table sees every message once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from spark_kit.processes import Group
from spark_kit.table_readers import TABLE_READERS

from gantry_pipelines.archive.job import ArchiveJob
from gantry_pipelines.archive.storage import Folder
from gantry_pipelines.archive.tables.publication import root_of
from gantry_pipelines.archive.tables.tables_job import TablesJob, TablesSpec
from gantry_pipelines.config import config_of
from gantry_pipelines.outcome import Outcome
from gantry_pipelines.reporting import Reporter
from gantry_spec.pipelines.kinds import ArchiveSpec

pytestmark = pytest.mark.needs_spark


def archive(brokers: Group, root: Path, topic: str, tables: dict[str, Any]) -> Outcome:
    """Run the job once, for the present messages."""
    runtime = {
        "nameServers": [brokers.name_server], "sidecars": list(brokers.sidecar_urls[:1]), "destination": str(root),
        "once": True,
    }  # fmt: skip
    document = {
        "topics": {"include": [topic]}, "layout": {"rowsPerFile": 1000}, "runtime": runtime, "tables": tables,
    }  # fmt: skip
    job, reporter = ArchiveJob(), Reporter("archive")
    with reporter.stop.handle_signals():
        return job.run(job.parse(config_of(document, ArchiveSpec)), reporter)


def publish(root: Path, **more: Any) -> Outcome:
    """Run `gantry pipeline tables` for both formats."""
    document = {"tables": {"formats": ["iceberg", "delta"]}, "runtime": {"destination": str(root)}} | more
    job = TablesJob()
    return job.run(job.parse(config_of(document, TablesSpec)), Reporter("tables"))


@pytest.mark.verify
def test_tables_have_the_sent_messages(brokers: Group, tmp_path: Path) -> None:
    """A second run adds the new messages; a catalog that does not answer is no reason to stop archiving."""
    root, both = tmp_path / "archive", {"formats": ["iceberg", "delta"]}
    nowhere = {"formats": ["iceberg"], "catalog": {"kind": "rest", "properties": {"uri": "http://127.0.0.1:1"}}}
    sent = brokers.send(300, topic="tabled")
    first = archive(brokers, root, "tabled", both)
    sent += brokers.send(100, topic="tabled")
    behind = archive(brokers, root, "tabled", nowhere)
    published, rebuilt = publish(root), publish(root, rebuild=True)

    wanted = {("tabled", "broker-a", one.queue, one.offset, one.body): 1 for one in sent}
    table = root_of(Folder(str(root)), "tabled")
    assert (first.exit_code, first.rows) == (0, 300) and "published 2 snapshots of tables" in first.text
    assert (behind.exit_code, behind.reason, behind.rows) == (1, "TablesBehind", 100)
    assert "the tables are behind the archive: Iceberg table of topic 'tabled'" in behind.text
    assert "made 2 snapshots" in published.text and "made 2 snapshots" in rebuilt.text
    assert {name: dict(read(table)) for name, read in TABLE_READERS.items()} == dict.fromkeys(TABLE_READERS, wanted)
