"""Archive runs without Spark: batches are planned and recorded as by Spark, everything else is the shipped code.

A `ToyRun` is one process. It opens the archive, completes the batch that was planned and not done, then new batches up
to the end of the log, and may kill itself with SIGKILL at a crash point. `removed_guard` removes one guard, so that a
test can show that its absence is detected."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from spark_kit.toy_log import ToyLog

from gantry_pipelines.archive import crash_points
from gantry_pipelines.archive import lock as writer_lock
from gantry_pipelines.archive.compaction import CompactionRules, compact, expire
from gantry_pipelines.archive.file_writing import Packing, write_files
from gantry_pipelines.archive.format import ArchiveFormat
from gantry_pipelines.archive.grid import align_to_grid, split_on_grid
from gantry_pipelines.archive.layout import day_end_ms
from gantry_pipelines.archive.lock import WriterLock
from gantry_pipelines.archive.manifest_reader import read_manifest
from gantry_pipelines.archive.object_storage import storage_of
from gantry_pipelines.archive.schemas.topic_schemas import TopicSchemas
from gantry_pipelines.archive.settings import TableParameters
from gantry_pipelines.archive.storage import Folder, Storage
from gantry_pipelines.archive.tables import publication
from gantry_pipelines.archive.tables.links import TableLinks
from gantry_pipelines.archive.tables.model import TableRoot
from gantry_pipelines.archive.tables.publication import TablePublisher
from gantry_pipelines.archive.writer import ArchiveWriter
from gantry_spec.pipelines.parts import PartitionUnit
from pyspark_rocketmq.model import QueueId, QueueRange
from pyspark_rocketmq.planning import limit_rows

GRID_ROWS: Final = 100
NO_TABLES: Final = TableParameters()
CONTEXT: Final = multiprocessing.get_context("forkserver")
TABLES: Final = "gantry_pipelines.archive.tables"
CONTEXT.set_forkserver_preload(
    ["spark_kit.toy_run", f"{TABLES}.iceberg", f"{TABLES}.delta"]
)  # those that can be imported
DEADLINE_S: Final = 120


@dataclass(frozen=True)
class ToyRun:
    """The work of one process: an archive run over a toy log, and how it ends."""

    root: str
    log: ToyLog
    rows_max: int | None = None
    """The maximum number of rows of a batch; None: no limit."""
    crash_at: tuple[str, int] | None = None
    """The crash point at whose n-th hit the process kills itself, and n."""
    removed_guard: str = ""
    """A key of `GUARDS`; empty: nothing is removed."""
    is_compacting: bool = False
    """Whether the days that are over are compacted after the batches."""
    expire_days: int | None = None
    """The age in days from which days are deleted; None: none are."""
    now_ms: int = 0
    """The time for compaction and expiry, in milliseconds since 1970."""
    tables: TableParameters = NO_TABLES
    """The tables to which each change of the manifest is published."""
    kill_after_s: float = 0.0
    """When the process is killed by SIGALRM, in seconds after the archive was opened; 0: not by time."""
    destination: str = ""
    """Address of the archive in an object store; empty: the archive is in `root`. The checkpoint is beside `root`."""
    environment: Mapping[str, str] = field(default_factory=dict)
    schemas: TopicSchemas = field(default_factory=TopicSchemas)
    """The declared schemas of topics."""
    partition_by: PartitionUnit = PartitionUnit.DAY
    takeover_s: float = 0.6
    """Lock timeout of a start in an object store, in seconds."""

    def run_process(self, deadline_s: float = DEADLINE_S) -> int:
        """Run in a process of its own, and return the exit code."""
        return exit_code_of(run_toy, self, deadline_s)


def exit_code_of(target: Callable[[Any], None], toy_run: object, deadline_s: float = DEADLINE_S) -> int:
    """Run a function in a process of its own, and return the exit code."""
    process: Any = CONTEXT.Process(target=target, args=(toy_run,))
    process.start()
    process.join(deadline_s)
    assert process.exitcode is not None, "the process did not end"
    code: int = process.exitcode
    return code


def run_toy(toy_run: ToyRun) -> None:
    """Do the work of a toy run, in its own process."""
    if toy_run.crash_at is not None:
        setattr(crash_points, "hit", _Killer(*toy_run.crash_at).hit)  # noqa: B010 - it is a function for types
    if toy_run.removed_guard:
        GUARDS[toy_run.removed_guard]()
    checkpoint = Path(f"{toy_run.root}-checkpoint")
    checkpoint.mkdir(parents=True, exist_ok=True)
    os.environ.update(toy_run.environment)
    storage = storage_of(toy_run.destination or toy_run.root)
    lock, declared = acquire_lock(storage, toy_run.takeover_s), toy_run.schemas
    archive_format = ArchiveFormat(GRID_ROWS, partition_by=toy_run.partition_by)
    with ArchiveWriter.open(storage, archive_format, lock, declared) as writer:
        if toy_run.kill_after_s:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the kernel ends the process at once, as with SIGKILL
            signal.setitimer(signal.ITIMER_REAL, toy_run.kill_after_s)
        tables = TablePublisher(writer, toy_run.tables)
        list(tables.publish())
        writer.delete_replaced(tables.may_name)
        number = 0
        starts = dict.fromkeys(toy_run.log.ends, 0) | writer.manifest.ends() if not any(checkpoint.iterdir()) else {}
        while True:
            planned, done = checkpoint / f"{number}.planned", checkpoint / f"{number}.done"
            if not planned.exists():
                ends = planned_ends(starts, toy_run.log.ends, toy_run.rows_max)
                if ends == starts:
                    break
                planned.write_text(json.dumps([_to_json(starts), _to_json(ends)]))
            starts, ends = (_from_json(one) for one in json.loads(planned.read_text()))
            if not done.exists():
                _batch(toy_run, writer, number, starts, ends)
                list(tables.publish())
                done.touch()
            starts, number = ends, number + 1
        if toy_run.is_compacting:
            for _ in compact(writer, CompactionRules(1 << 30, 0), Packing(), toy_run.now_ms):
                list(tables.publish())
        if toy_run.expire_days is not None:
            list(expire(writer, toy_run.expire_days, toy_run.now_ms))
            list(tables.publish())
            writer.delete_replaced(tables.may_name)
        tables.sweep(int(time.time() * 1000))


def acquire_lock(storage: Storage, takeover_s: float) -> WriterLock:
    """Take the writer lock with a short takeover timeout; it is then renewed at the usual interval."""
    usual = writer_lock.TAKEOVER_S, writer_lock.HEARTBEAT_INTERVAL_S
    try:
        writer_lock.TAKEOVER_S, writer_lock.HEARTBEAT_INTERVAL_S = takeover_s, takeover_s / 6  # type: ignore[misc]
        return writer_lock.acquire_writer_lock(storage)
    finally:
        writer_lock.TAKEOVER_S, writer_lock.HEARTBEAT_INTERVAL_S = usual  # type: ignore[misc]


def planned_ends(
    starts: Mapping[QueueId, int], ends: Mapping[QueueId, int], rows_max: int | None
) -> dict[QueueId, int]:
    """Return the end of a batch as the source plans it."""
    all_ranges = [QueueRange(queue, starts.get(queue, 0), end) for queue, end in sorted(ends.items())]
    limited = all_ranges if rows_max is None else limit_rows(all_ranges, rows_max)
    return {one.queue: one.end for one in align_to_grid(limited, all_ranges, GRID_ROWS)}


def _batch(
    toy_run: ToyRun, writer: ArchiveWriter, number: int, starts: dict[QueueId, int], ends: dict[QueueId, int]
) -> None:
    have = read_manifest(writer.storage).ends()
    ranges = [QueueRange(queue, max(begin, have.get(queue, 0)), ends[queue]) for queue, begin in starts.items()]
    cut = [piece for one in ranges for piece in split_on_grid(one, GRID_ROWS)]
    files = write_files(toy_run.log.batches(cut), cut, writer.storage, writer.format, Packing(), toy_run.schemas)
    writer.commit("query", number, list(files))


class _Killer:
    def __init__(self, point: str, times: int) -> None:
        assert point in crash_points.ALL
        self._point, self._left = point, times

    def hit(self, name: str) -> None:
        self._left -= name == self._point
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def lose_checkpoint(root: Path) -> None:
    """Delete the checkpoint, as if its volume were lost."""
    shutil.rmtree(f"{root}-checkpoint", ignore_errors=True)


def days_later_ms(day: str, days: int) -> int:
    """Return the time so many days after the end of a day, in milliseconds."""
    return day_end_ms(day, "UTC") + days * 24 * 3_600_000


def _to_json(offsets: dict[QueueId, int]) -> list[list[Any]]:
    return [[queue.topic, queue.broker, queue.number, offset] for queue, offset in offsets.items()]


def _from_json(words: list[list[Any]]) -> dict[QueueId, int]:
    return {QueueId(topic, broker, number): offset for topic, broker, number, offset in words}


# -- guards that can be removed ----------------------------------------------------------------------------------------


def without_staging() -> None:
    """Workers write files under their final names, and a start removes no file after the end of the manifest."""

    def finish(self: Folder, local: Path, path: str) -> str:
        at = Path(self.root, path)
        at.parent.mkdir(parents=True, exist_ok=True)
        os.replace(local, at)
        return ""

    _replace(Folder, "finish", finish)
    _replace(Folder, "publish", lambda _self, _staged, _path: None)
    _replace(ArchiveWriter, "_remove_strays", lambda _self, _visible: None)


def without_publishing() -> None:
    """A start does not publish staged files."""
    _replace(ArchiveWriter, "_publish_staged", lambda _self, _visible: None)


def without_completing() -> None:
    """A start does not complete exchanges of folders."""
    _replace(ArchiveWriter, "_finish_exchanges", lambda _self: None)


def without_atomic_exchange() -> None:
    """A compacted day replaces the old one file by file."""

    def exchange(self: Folder, one: str, other: str) -> None:
        source, target = Path(self.root, one), Path(self.root, other)
        if not source.exists() or not any(source.iterdir()):
            return
        old = [path for path in target.iterdir() if not (source / path.name).exists()]
        for path in source.iterdir():
            os.replace(path, target / path.name)
        crash_points.hit(crash_points.AFTER_MERGE)
        for path in old:
            path.unlink()

    _replace(Folder, "exchange", exchange)


def _replace(owner: type, name: str, value: object) -> None:
    assert hasattr(owner, name), f"{owner!r} has no {name} that could be replaced"
    setattr(owner, name, value)


def without_links() -> None:
    """Tables name the files in `data`."""
    _replace(TableLinks, "make", lambda *_: None)
    setattr(  # noqa: B010 - it is a function for types
        publication, "root_of", lambda storage, topic, _archive: TableRoot(topic, f"{storage}/data/topic={topic}")
    )


def without_difference() -> None:
    """A publisher does not read the tables, and adds everything that it has not published itself."""

    def difference(known: Any, wanted: Any, properties: Any, usual: Any = publication.difference) -> Any:
        return usual(frozenset(), wanted, properties)

    setattr(publication, "difference", difference)  # noqa: B010 - it is a function for types


def without_order_of_expiry() -> None:
    """A file of an expired range is deleted when the manifest has no more of it, before the tables are published."""
    _replace(TablePublisher, "may_name", lambda _self, _file: False)
    usual = ArchiveWriter._recover

    def recover(self: ArchiveWriter) -> None:
        usual(self)
        self.delete_replaced()

    _replace(ArchiveWriter, "_recover", recover)


GUARDS: Final = {
    # The functions that remove a guard, by its name.
    "staging": without_staging,
    "publishing": without_publishing,
    "completing": without_completing,
    "exchange": without_atomic_exchange,
    "links": without_links,
    "difference": without_difference,
    "expiry": without_order_of_expiry,
}
