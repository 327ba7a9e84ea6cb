"""The archive job, as `gantry pipeline archive` runs it, in the benchmark's session, and a count of its rows."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow.dataset as datasets

from gantry_bench.spark_group import TOPIC, Group
from gantry_pipelines.archive.job import ArchiveJob
from gantry_pipelines.config import config_of
from gantry_pipelines.reporting import Output, Reporter
from gantry_spec.pipelines.kinds import ArchiveSpec


def archive(source: Group, target: Path) -> int:
    """Archive the topic from the slave's files; return the number of rows that the job reports."""
    document = {
        "topics": {"include": [TOPIC]},
        "transport": "file",
        "runtime": {
            "nameServers": [source.name_server],
            "directories": {source.broker: str(source.slave_store)},
            "destination": str(target),
            "once": True,
        },
    }
    job, reporter = ArchiveJob(), Reporter("archive", output=Output(lines=io.StringIO(), result=io.StringIO()))
    with reporter.stop.handle_signals():
        return job.run(job.parse(config_of(document, ArchiveSpec)), reporter).rows


def count_archived_rows(target: Path) -> int:
    """Count the rows by a plain listing of the folder, as every reader of Parquet does."""
    return int(datasets.dataset(sorted(str(path) for path in target.rglob("*.parquet"))).count_rows())
