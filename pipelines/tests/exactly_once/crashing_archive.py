"""An archive job that kills itself, or its workers, with SIGKILL at a crash point. A program, not a module to import.

    python -m exactly_once.crashing_archive --conf FILE [--driver NAME:TIMES] [--worker NAME:TIMES] [--task-bytes N]
        [--merge-at MS] [--merge-only] [--now MS] [--takeover SECONDS]

It runs the shipped job, in which only `crash_points.hit` is replaced by a function that counts and kills. A line in
the file that `GANTRY_KILLS` names records the kill, so that a crash by another cause is not mistaken for it.
`--merge-at` sets the time for compaction, so that a day that is not over counts as closed; `--now` sets it for the job
itself, and for its expiry. `--takeover` shortens the time for which a start in an object store waits for a dead writer.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType
from spark_kit.toy_run import acquire_lock

from gantry_pipelines.archive import crash_points
from gantry_pipelines.archive import job as archive_job
from gantry_pipelines.archive import writer as archive_writer
from gantry_pipelines.archive.compaction import compact
from gantry_pipelines.archive.job import ArchiveJob, ArchiveRun
from gantry_pipelines.archive.object_storage import storage_of
from gantry_pipelines.archive.settings import ArchiveParameters
from gantry_pipelines.archive.source import ArchiveReader, ArchiveSource
from gantry_pipelines.archive.writer import ArchiveWriter
from gantry_pipelines.config import read_config
from gantry_pipelines.reporting import Reporter
from gantry_spec.pipelines.kinds import ArchiveSpec

KILLS: Final = "GANTRY_KILLS"
"""The variable of the environment with the file to which a process writes before it kills itself."""

WORKER: Final = "GANTRY_WORKER_CRASH"
"""The variable of the environment with the crash point of the workers, as NAME:TIMES."""


class Killer:
    """Counts the hits of one crash point, and kills this process at the n-th. `crash_at` is NAME:TIMES."""

    def __init__(self, crash_at: str) -> None:
        self._point, _, times = crash_at.partition(":")
        self._left = int(times or 1)
        self._lock = threading.Lock()
        assert self._point in crash_points.ALL, f"{crash_at} is not a crash point"

    def hit(self, name: str) -> None:
        """Replace `crash_points.hit`: kill this process at the configured hit."""
        if name != self._point:
            return
        with self._lock:
            self._left -= 1
            if self._left == 0:
                with Path(os.environ[KILLS]).open("a") as file:
                    file.write(f"{self._point}\n")
                os.kill(os.getpid(), signal.SIGKILL)


class CrashingReader(ArchiveReader):
    """A reader whose workers are killed at a crash point."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read as shipped, with the crash point of the environment."""
        crash_at = os.environ.get(WORKER)
        if crash_at:
            setattr(crash_points, "hit", Killer(crash_at).hit)  # noqa: B010 - it is a function for types
        return super().read(partition)


class CrashingSource(ArchiveSource):
    """The archive's data source with the crashing reader."""

    def streamReader(self, schema: StructType) -> ArchiveReader:
        """Create the crashing reader for `spark.readStream`."""
        return CrashingReader(**super().streamReader(schema).__getstate__())


def main() -> int:
    """Run the archive job, or only a compaction, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--conf", required=True)
    parser.add_argument("--driver")
    parser.add_argument("--worker")
    parser.add_argument("--task-bytes", type=int)
    parser.add_argument("--merge-at", type=int)
    parser.add_argument("--merge-only", action="store_true")
    parser.add_argument("--now", type=int)
    parser.add_argument("--takeover", type=float)
    given = parser.parse_args()
    if given.driver:
        setattr(crash_points, "hit", Killer(given.driver).hit)  # noqa: B010
    if given.worker:
        os.environ[WORKER] = given.worker
    if given.now:
        setattr(archive_job, "time", SimpleNamespace(time=lambda: given.now / 1000, monotonic=time.monotonic))  # noqa: B010
    if given.takeover:
        setattr(archive_writer, "acquire_writer_lock", partial(acquire_lock, takeover_s=given.takeover))  # noqa: B010
    ArchiveRun.source = CrashingSource
    job, reporter = ArchiveJob(), Reporter("archive")
    settings = job.parse(read_config(Path(given.conf).read_bytes(), ArchiveSpec, "TopicArchive"))
    if given.merge_only:
        return merge(settings, given.merge_at)
    if given.task_bytes:
        options: dict[str, Any] = {**settings.options, "archive.taskBytes": str(given.task_bytes)}
        settings = dataclasses.replace(settings, options=options)
    with reporter.stop.handle_signals():
        outcome = reporter.finish(job.run(settings, reporter))
    return outcome.exit_code


def merge(settings: ArchiveParameters, now_ms: int) -> int:
    """Run a compaction as the job does it."""
    with ArchiveWriter.open(storage_of(settings.destination)) as writer:
        for merged in compact(writer, settings.rules, settings.packing, now_ms):
            print(merged, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
