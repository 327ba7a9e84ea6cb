"""Lives of an archive without Spark: batches are planned and remembered as Spark does it, and everything else is ours.

A life is a process. It opens the archive, does the batch that was planned and not done, then new ones until the log's
end, and may kill itself with SIGKILL at a named point. `--without` takes one guard away, so that a test can show that
it would notice."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from spark_kit.toy_log import ToyLog

from gantry_pipelines.archive import lock, points
from gantry_pipelines.archive.compaction import CompactionRules, compact, expire
from gantry_pipelines.archive.format import ArchiveFormat
from gantry_pipelines.archive.grid import laid, pieces
from gantry_pipelines.archive.layout import day_end_ms
from gantry_pipelines.archive.objects import storage_of
from gantry_pipelines.archive.reading import read_manifest
from gantry_pipelines.archive.storage import Folder, Storage
from gantry_pipelines.archive.writer import ArchiveWriter
from gantry_pipelines.archive.writing import Packing, write_files
from pyspark_rocketmq.model import QueueId, QueueRange
from pyspark_rocketmq.planning import limited_rows

GRID_ROWS: Final = 100
CONTEXT: Final = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["spark_kit.toy_run"])
DEADLINE_S: Final = 120


@dataclass(frozen=True)
class Life:
    """What one process is to do."""

    root: str
    log: ToyLog
    rows_max: int | None = None
    crash_at: tuple[str, int] | None = None
    without: str = ""
    is_compacting: bool = False
    expire_days: int | None = None
    now_ms: int = 0
    destination: str = ""
    """An object store's address, where the archive is in one; the checkpoint is beside ``root`` all the same."""
    environment: Mapping[str, str] = field(default_factory=dict)
    takeover_s: float = 0.6
    """How long a start watches a dead writer's name in an object store."""

    def lived(self) -> int:
        """Live it in a process of its own; how it ended."""
        return exit_code_of(live, self)


def exit_code_of(target: Callable[[Any], None], life: object, deadline_s: float = DEADLINE_S) -> int:
    """Run a life in a process of its own; its exit code."""
    process: Any = CONTEXT.Process(target=target, args=(life,))
    process.start()
    process.join(deadline_s)
    assert process.exitcode is not None, "it came to no end"
    code: int = process.exitcode
    return code


def live(life: Life) -> None:
    """In its own process."""
    if life.crash_at is not None:
        setattr(points, "reached", _Killer(*life.crash_at).reached)  # noqa: B010 - it is a function for types
    if life.without:
        GUARDS[life.without]()
    checkpoint = Path(f"{life.root}-checkpoint")
    checkpoint.mkdir(parents=True, exist_ok=True)
    os.environ.update(life.environment)
    storage = storage_of(life.destination or life.root)
    with ArchiveWriter.open(storage, ArchiveFormat(GRID_ROWS), watched(storage, life.takeover_s)) as writer:
        number = 0
        starts = dict.fromkeys(life.log.ends, 0) | writer.manifest.ends() if not any(checkpoint.iterdir()) else {}
        while True:
            planned, done = checkpoint / f"{number}.planned", checkpoint / f"{number}.done"
            if not planned.exists():
                ends = planned_ends(starts, life.log.ends, life.rows_max)
                if ends == starts:
                    break
                planned.write_text(json.dumps([_words(starts), _words(ends)]))
            starts, ends = (_read(one) for one in json.loads(planned.read_text()))
            if not done.exists():
                _batch(life, writer, number, starts, ends)
                done.touch()
            starts, number = ends, number + 1
        if life.is_compacting:
            list(compact(writer, CompactionRules(1 << 30, 0), Packing(), life.now_ms))
        if life.expire_days is not None:
            list(expire(writer, life.expire_days, life.now_ms))


def watched(storage: Storage, takeover_s: float) -> lock.WriterLock:
    """The lock, after a short look at a dead owner's name; to hold it costs no more haste than it does in earnest."""
    usual = lock.TAKEOVER_S, lock.BEAT_S
    try:
        lock.TAKEOVER_S, lock.BEAT_S = takeover_s, takeover_s / 6  # type: ignore[misc]
        return lock.take(storage)
    finally:
        lock.TAKEOVER_S, lock.BEAT_S = usual  # type: ignore[misc]


def planned_ends(
    starts: Mapping[QueueId, int], ends: Mapping[QueueId, int], rows_max: int | None
) -> dict[QueueId, int]:
    """Where a batch ends, as the source plans it."""
    whole = [QueueRange(queue, starts.get(queue, 0), end) for queue, end in sorted(ends.items())]
    limited = whole if rows_max is None else limited_rows(whole, rows_max)
    return {one.queue: one.end for one in laid(limited, whole, GRID_ROWS)}


def _batch(
    life: Life, writer: ArchiveWriter, number: int, starts: dict[QueueId, int], ends: dict[QueueId, int]
) -> None:
    have = read_manifest(writer.storage).ends()
    ranges = [QueueRange(queue, max(begin, have.get(queue, 0)), ends[queue]) for queue, begin in starts.items()]
    cut = [piece for one in ranges for piece in pieces(one, GRID_ROWS)]
    files = list(write_files(life.log.batches(cut), cut, writer.storage, writer.format, Packing()))
    writer.commit("query", number, files)


class _Killer:
    def __init__(self, point: str, times: int) -> None:
        assert point in points.ALL
        self._point, self._left = point, times

    def reached(self, name: str) -> None:
        self._left -= name == self._point
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def lose_checkpoint(root: Path) -> None:
    """As if its volume were gone."""
    shutil.rmtree(f"{root}-checkpoint", ignore_errors=True)


def days_later_ms(day: str, days: int) -> int:
    """So many days after the end of that one."""
    return day_end_ms(day, "UTC") + days * 24 * 3_600_000


def _words(offsets: dict[QueueId, int]) -> list[list[Any]]:
    return [[queue.topic, queue.broker, queue.number, offset] for queue, offset in offsets.items()]


def _read(words: list[list[Any]]) -> dict[QueueId, int]:
    return {QueueId(topic, broker, number): offset for topic, broker, number, offset in words}


# -- guards that can be taken away -------------------------------------------------------------------------------------


def seen_at_once() -> None:
    """Workers put files under their names themselves, and no start takes away what is beyond the manifest."""

    def finish(self: Folder, local: Path, path: str) -> str:
        at = Path(self.root, path)
        at.parent.mkdir(parents=True, exist_ok=True)
        os.replace(local, at)
        return ""

    _replace(Folder, "finish", finish)
    _replace(Folder, "show", lambda _self, _staged, _path: None)
    _replace(ArchiveWriter, "_remove_strays", lambda _self: None)


def left_staged() -> None:
    """A start does not give staged files their names."""
    _replace(ArchiveWriter, "_show_staged", lambda _self: None)


def left_half_exchanged() -> None:
    """A start does not finish exchanges."""
    _replace(ArchiveWriter, "_finish_exchanges", lambda _self: None)


def exchanged_in_steps() -> None:
    """A compacted day takes the place of the old one file by file."""

    def exchange(self: Folder, one: str, other: str) -> None:
        source, target = Path(self.root, one), Path(self.root, other)
        if not source.exists() or not any(source.iterdir()):
            return
        old = [path for path in target.iterdir() if not (source / path.name).exists()]
        for path in source.iterdir():
            os.replace(path, target / path.name)
        points.reached(points.AFTER_MERGE)
        for path in old:
            path.unlink()

    _replace(Folder, "exchange", exchange)


def _replace(owner: type, name: str, value: object) -> None:
    assert hasattr(owner, name), f"{owner!r} has no {name} that could be replaced"
    setattr(owner, name, value)


GUARDS: Final = {
    "staging": seen_at_once,
    "showing": left_staged,
    "finishing": left_half_exchanged,
    "exchange": exchanged_in_steps,
}
