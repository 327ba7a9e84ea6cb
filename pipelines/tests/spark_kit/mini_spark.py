"""What Spark does with the archive's data source, without Spark: the same objects, in the same order, in as many
processes.

Offsets are written down before a batch is planned, and again when it is done, as Spark does it; tasks go by pickle to a
process of their own. So lives can be killed in seconds that would cost a JVM each.
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

from gantry_pipelines.archive import points
from gantry_pipelines.archive.format import ArchiveFormat
from gantry_pipelines.archive.manifest import file_of
from gantry_pipelines.archive.objects import storage_of
from gantry_pipelines.archive.source import ArchiveSource
from gantry_pipelines.archive.writer import ArchiveWriter
from gantry_wire.structs import ready_structs

CONTEXT.set_forkserver_preload(["spark_kit.mini_spark", "spark_kit.toy_run"])
DEADLINE_S: Final = 300


@dataclass(frozen=True)
class Query:
    """One life of a query, to the end of what is there."""

    options: Mapping[str, str]
    checkpoint: str
    format: ArchiveFormat
    driver: str = ""
    """NAME:TIMES of the point at which the driver dies."""
    worker: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)

    def lived(self) -> int:
        """Its exit code."""
        return exit_code_of(live, self, DEADLINE_S)


def live(query: Query) -> None:
    """The driver, in its own process."""
    os.environ.update(query.environment)
    if query.driver:
        setattr(points, "reached", Killer(query.driver).reached)  # noqa: B010 - it is a function for types
    ready_structs()
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
                writer.commit("mini", number, [file_of(row) for task in tasks for row in _task(query, task)])
                done.touch()
            start, number = end, number + 1
        reader.stop()


def _task(query: Query, pickled: bytes) -> list[dict[str, Any]]:
    answers = CONTEXT.SimpleQueue()
    process: Any = CONTEXT.Process(target=_work, args=(query, pickled, answers))
    process.start()
    process.join(DEADLINE_S)
    if process.exitcode != 0:
        raise RuntimeError(f"a worker ended with {process.exitcode}")
    rows: list[dict[str, Any]] = answers.get()
    return rows


def _work(query: Query, pickled: bytes, answers: Any) -> None:
    """A worker, in its own process."""
    os.environ.update(query.environment)
    if query.worker:
        setattr(points, "reached", Killer(query.worker).reached)  # noqa: B010
    ready_structs()
    reader, partition = pickle.loads(pickled)
    answers.put([row for batch in reader.read(partition) for row in batch.to_pylist()])
