"""Run the archive's data source as Spark does, without Spark: the same calls, in the same order and processes.

Offsets are recorded before a batch is planned, and again when it is done, as by Spark; each task is pickled to a
process of its own. So runs can be killed within seconds, without starting a JVM for each.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from exactly_once.crashing_archive import Killer
from spark_kit.toy_run import CONTEXT, exit_code_of

from gantry_pipelines.archive import crash_points
from gantry_pipelines.archive.format import ArchiveFormat
from gantry_pipelines.archive.manifest import file_of
from gantry_pipelines.archive.object_storage import storage_of
from gantry_pipelines.archive.source import ArchiveSource
from gantry_pipelines.archive.writer import ArchiveWriter
from gantry_wire.structs import make_structs_ready

CONTEXT.set_forkserver_preload(["spark_kit.mini_spark", "spark_kit.toy_run"])
DEADLINE_S: Final = 300


@dataclass(frozen=True)
class Query:
    """One run of a query, up to the end of the log."""

    options: Mapping[str, str]
    checkpoint: str
    format: ArchiveFormat
    driver: str = ""
    """NAME:TIMES of the crash point at which the driver is killed; empty: it is not killed."""
    worker: str = ""
    """The same for a worker."""
    environment: Mapping[str, str] = field(default_factory=dict)

    def run_process(self) -> int:
        """Run in a process of its own, and return the exit code."""
        return exit_code_of(run_driver, self, DEADLINE_S)


def run_driver(query: Query) -> None:
    """Run the driver, in its own process."""
    os.environ.update(query.environment)
    if query.driver:
        setattr(crash_points, "hit", Killer(query.driver).hit)  # noqa: B010 - it is a function for types
    make_structs_ready()
    checkpoint = Path(query.checkpoint)
    checkpoint.mkdir(parents=True, exist_ok=True)
    with ArchiveWriter.open(storage_of(query.options["archive.destination"]), query.format) as writer:
        reader = ArchiveSource(dict(query.options)).streamReader(None)  # type: ignore[arg-type]
        reader.prepareForTriggerAvailableNow()
        start, number = reader.initialOffset(), 0
        while True:
            planned, done = checkpoint / f"{number}.planned", checkpoint / f"{number}.done"
            if planned.exists():
                end = json.loads(planned.read_text())
            else:
                end = reader.latestOffset(start, reader.getDefaultReadLimit())
                if end == start:
                    break
                planned.write_text(json.dumps(end))
            if not done.exists():
                tasks = [pickle.dumps((reader, one)) for one in reader.partitions(start, end)]
                writer.commit("mini", number, [file_of(row) for task in tasks for row in _run_task(query, task)])
                done.touch()
            start, number = end, number + 1
        reader.stop()


def _run_task(query: Query, pickled: bytes) -> list[dict[str, Any]]:
    answers = CONTEXT.SimpleQueue()
    process: Any = CONTEXT.Process(target=_run_worker, args=(query, pickled, answers))
    process.start()
    process.join(DEADLINE_S)
    if process.exitcode != 0:
        raise RuntimeError(f"a worker ended with {process.exitcode}")
    rows: list[dict[str, Any]] = answers.get()
    return rows


def _run_worker(query: Query, pickled: bytes, answers: Any) -> None:
    """Run a task in a worker, in its own process."""
    os.environ.update(query.environment)
    if query.worker:
        setattr(crash_points, "hit", Killer(query.worker).hit)  # noqa: B010
    make_structs_ready()
    reader, partition = pickle.loads(pickled)
    answers.put([row for batch in reader.read(partition) for row in batch.to_pylist()])
