"""An archive job that ends itself, or its workers, with SIGKILL at a named place. A program, not a module to import.

    python -m exactly_once.crashing_archive --conf FILE [--driver NAME:TIMES] [--worker NAME:TIMES] [--task-bytes N]
        [--merge-at MS] [--merge-only]

What runs is the shipped job; only `points.reached`, which does nothing there, counts and kills here. A line in
`GANTRY_KILLS` says that it was us, so that a death by anything else is not taken for one. `--merge-at` gives compaction
another time of day than the machine's: a day that is not over yet is taken for one that is.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from gantry_pipelines.archive import points
from gantry_pipelines.archive.compaction import compact
from gantry_pipelines.archive.job import ArchiveJob, ArchiveRun
from gantry_pipelines.archive.objects import storage_of
from gantry_pipelines.archive.settings import ArchiveParameters
from gantry_pipelines.archive.source import ArchiveReader, ArchiveSource
from gantry_pipelines.archive.writer import ArchiveWriter
from gantry_pipelines.config import read_config
from gantry_pipelines.reporting import Reporter
from gantry_spec.pipelines.kinds import ArchiveSpec

KILLS: Final = "GANTRY_KILLS"
WORKER: Final = "GANTRY_WORKER_CRASH"


class Killer:
    """Counts how often one place is reached, and kills this process."""

    def __init__(self, crash_at: str) -> None:
        self._point, _, times = crash_at.partition(":")
        self._left = int(times or 1)
        self._lock = threading.Lock()
        assert self._point in points.ALL, f"{crash_at} is no place to crash at"

    def reached(self, name: str) -> None:
        """Stands for `points.reached`."""
        if name != self._point:
            return
        with self._lock:
            self._left -= 1
            if self._left == 0:
                with Path(os.environ[KILLS]).open("a") as file:
                    file.write(f"{self._point}\n")
                os.kill(os.getpid(), signal.SIGKILL)


class CrashingReader(ArchiveReader):
    """A reader whose workers die."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """As shipped, but for the place where it ends."""
        crash_at = os.environ.get(WORKER)
        if crash_at:
            setattr(points, "reached", Killer(crash_at).reached)  # noqa: B010 - it is a function for types
        return super().read(partition)


class CrashingSource(ArchiveSource):
    """The archive as a data source, with that reader."""

    def streamReader(self, schema: StructType) -> ArchiveReader:
        """For `spark.readStream`."""
        return CrashingReader(**super().streamReader(schema).__getstate__())


def main() -> int:
    """One life."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--conf", required=True)
    parser.add_argument("--driver")
    parser.add_argument("--worker")
    parser.add_argument("--task-bytes", type=int)
    parser.add_argument("--merge-at", type=int)
    parser.add_argument("--merge-only", action="store_true")
    given = parser.parse_args()
    if given.driver:
        setattr(points, "reached", Killer(given.driver).reached)  # noqa: B010
    if given.worker:
        os.environ[WORKER] = given.worker
    ArchiveRun.source = CrashingSource
    job, reporter = ArchiveJob(), Reporter("archive")
    settings = job.parse(read_config(Path(given.conf).read_bytes(), ArchiveSpec, "TopicArchive"))
    if given.merge_only:
        return merge(settings, given.merge_at)
    if given.task_bytes:
        options: dict[str, Any] = {**settings.options, "archive.taskBytes": str(given.task_bytes)}
        settings = dataclasses.replace(settings, options=options)
    with reporter.stop.armed():
        outcome = reporter.finish(job.run(settings, reporter))
    return outcome.exit_code


def merge(settings: ArchiveParameters, now_ms: int) -> int:
    """A compaction, as the job does it."""
    with ArchiveWriter.open(storage_of(settings.destination)) as writer:
        for merged in compact(writer, settings.rules, settings.packing, now_ms):
            print(merged, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
