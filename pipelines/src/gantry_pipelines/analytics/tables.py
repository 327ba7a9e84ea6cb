"""The tables: their columns, and their Parquet files by day, each of which a run replaces atomically.

    DESTINATION/throughput/day=2026-11-22/part.parquet         a table has one file for each day (UTC)
    DESTINATION/_staged/<run>/...                              files of a run that are not moved into place yet
    DESTINATION/_journal.json                                  a committed run: its files in `_staged` must be kept
    DESTINATION/_progress.json                                 the end of the written windows
    DESTINATION/_lock                                          held by the writer

A run writes all of its files to `_staged`, then the journal, which commits it, and then moves the files. A run that
crashes before the journal is written has changed nothing; one that crashes later is completed by the next run, before
it does anything else. Each file is replaced by a rename, so that a reader sees a day either before or after the run.
Until the last rename it may see other days or tables as they were before the run. There is one writer, which holds a
lock.

Times are UTC; windows are `[windowBegin, windowEnd)`.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from gantry_pipelines.errors import JobError
from gantry_remoting.durable_files import make_folders, replace_file, sync_file, sync_folder

TIME: Final = pa.timestamp("us", tz="UTC")
_WINDOW: Final[list[tuple[str, pa.DataType]]] = [("windowBegin", TIME), ("windowEnd", TIME), ("topic", pa.string())]
"""The first columns of each table of windows."""


@final
@dataclass(frozen=True)
class Table:
    """A table: its name, columns and sort order."""

    name: str
    schema: pa.Schema
    sort_columns: tuple[str, ...]
    """Columns by which the rows of a file are sorted."""
    is_windowed: bool = True
    """Whether rows belong to windows; otherwise they are samples, which are added."""

    @property
    def time_column(self) -> str:
        """The column whose time determines the day of a row."""
        return "windowBegin" if self.is_windowed else "sampledAt"


def _table(name: str, columns: list[tuple[str, pa.DataType]], sort_columns: tuple[str, ...]) -> Table:
    fields = dict([*_WINDOW, *columns])
    return Table(name, pa.schema(fields), ("windowBegin", "topic", *sort_columns))


_SAMPLE: Final[dict[str, pa.DataType]] = {
    "sampledAt": TIME, "group": pa.string(), "topic": pa.string(), "broker": pa.string(), "queue": pa.int32(),
    "committed": pa.int64(), "end": pa.int64(), "lagMessages": pa.int64(), "lagSeconds": pa.float64(),
}  # fmt: skip
"""The columns of the table of lag samples."""

_COUNTS: Final[list[tuple[str, pa.DataType]]] = [("messages", pa.int64()), ("bytes", pa.int64())]

TABLES: Final[dict[str, Table]] = {
    table.name: table
    for table in (
        _table(
            "throughput",
            [
                ("broker", pa.string()), *_COUNTS, ("bodyBytes", pa.int64()),
                ("messagesPerSecond", pa.float64()), ("bytesPerSecond", pa.float64()),
            ],
            ("broker",),
        ),
        _table(
            "latency",
            [
                ("messages", pa.int64()), ("p50Ms", pa.float64()), ("p95Ms", pa.float64()), ("p99Ms", pa.float64()),
                ("maxMs", pa.float64()), ("clockSkewed", pa.int64()),
            ],
            (),
        ),
        _table(
            "hot_queues",
            [
                ("broker", pa.string()), ("queue", pa.int32()), *_COUNTS, ("share", pa.float64()),
                ("timesEven", pa.float64()), ("rank", pa.int32()),
            ],
            ("rank",),
        ),
        _table("hot_keys", [("key", pa.string()), *_COUNTS, ("rank", pa.int32())], ("rank",)),
        Table(
            "consumer_lag",
            pa.schema(_SAMPLE),
            ("sampledAt", "group", "topic", "broker", "queue"),
            is_windowed=False,
        ),
    )
}  # fmt: skip
"""All tables, by their names."""

STAGED: Final = "_staged"
"""The folder of files that are not moved into place yet."""

JOURNAL: Final = "_journal.json"
"""The file by which a run is committed."""

PROGRESS: Final = "_progress.json"
"""The file with the end of the written windows."""

LOCK: Final = "_lock"
PART: Final = "part.parquet"
"""The name of the only file of a table's day."""

DAY_MS: Final = 86_400_000


@final
class Tables:
    """The folder of all tables. Written by one process at a time, inside of a `with` block, which holds the lock."""

    def __init__(self, root: Path) -> None:
        self._root: Final = root
        self._lock: int | None = None

    def __repr__(self) -> str:
        return f"<Tables {self._root}>"

    def __enter__(self) -> Self:
        self._root.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self._root / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            if isinstance(error, BlockingIOError):
                raise JobError(
                    f"another run writes to {self._root}", remedy="wait for it, or use another folder", reason="Busy"
                ) from error
            raise JobError(
                f"cannot lock {self._root / LOCK}: {error.strerror}", remedy="use a file system with locks",
                reason="CannotLock",
            ) from error  # fmt: skip
        self._apply_journal()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._lock is not None, "expected to be entered"
        os.close(self._lock)
        self._lock = None

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(self, table: Table, begin_ms: int = 0, end_ms: int = 1 << 62) -> pa.Table:
        """Read the rows of `[begin, end)`, sorted."""
        parts = [
            pq.read_table(path, schema=table.schema, partitioning=None)
            for day, path in self._days(table)
            if day < end_ms and day + DAY_MS > begin_ms
        ]
        rows = pa.concat_tables(parts) if parts else table.schema.empty_table()
        times = _times_ms(rows, table)
        kept = rows.filter(pa.array((times >= begin_ms) & (times < end_ms)))
        return kept.sort_by([(name, "ascending") for name in table.sort_columns])

    def progress(self) -> dict[str, Any]:
        """Read the progress that the last run has stored."""
        try:
            found: dict[str, Any] = json.loads((self._root / PROGRESS).read_bytes())
        except FileNotFoundError:
            return {}
        return found

    def _days(self, table: Table) -> list[tuple[int, Path]]:
        found: list[tuple[int, Path]] = []
        for path in sorted((self._root / table.name).glob(f"day=*/{PART}")):
            day = datetime.strptime(path.parent.name.removeprefix("day="), "%Y-%m-%d").replace(tzinfo=UTC)
            found.append((int(day.timestamp() * 1000), path))
        return found

    # -- writing -------------------------------------------------------------------------------------------------------

    def write(
        self, run: str, rows: Mapping[str, pa.Table], progress: Mapping[str, Any],
        replaced: tuple[int, int] | None = None,
    ) -> int:  # fmt: skip
        """Commit a run: new rows by table name, and the progress for the next run. Returns the number of changed files.

        In a table of windows the new rows replace all windows in `replaced`, or without it the windows that they have.
        In a table of samples they replace only samples of the same time.
        """
        assert self._lock is not None, "write inside `with`"
        folder = self._root / STAGED / run
        shutil.rmtree(folder, ignore_errors=True)
        moves: dict[str, str] = {}
        for name, new in rows.items():
            table = TABLES[name]
            for day, part in self._merge_days(table, new.cast(table.schema), replaced).items():
                target = f"{name}/day={day}/{PART}"
                path = folder / target
                make_folders(path.parent)
                pq.write_table(part, path, compression="zstd")
                sync_file(path)
                sync_folder(path.parent)
                moves[f"{STAGED}/{run}/{target}"] = target
        journal = {"run": run, "moves": moves, "progress": dict(progress)}
        replace_file(self._root / JOURNAL, json.dumps(journal).encode())
        self._apply_journal()
        return len(moves)

    def _merge_days(self, table: Table, new: pa.Table, replaced: tuple[int, int] | None) -> dict[str, pa.Table]:
        """Return the new content of each changed day's file: the rows that stay, and the new ones."""
        times = _times_ms(new, table)
        days = {int(day) for day in np.unique(times // DAY_MS)}
        if replaced is not None and table.is_windowed:
            days |= {day // DAY_MS for day, _ in self._days(table)
                     if day < replaced[1] and day + DAY_MS > replaced[0]}  # fmt: skip
        found: dict[str, pa.Table] = {}
        for day in sorted(days):
            begin = day * DAY_MS
            old = self.read(table, begin, begin + DAY_MS)
            old_times = _times_ms(old, table)
            if replaced is not None and table.is_windowed:
                is_replaced = (old_times >= replaced[0]) & (old_times < replaced[1])
            else:
                is_replaced = np.isin(old_times, times)
            fresh = new.filter(pa.array((times >= begin) & (times < begin + DAY_MS)))
            rows = pa.concat_tables([old.filter(pa.array(~is_replaced)), fresh])
            name = datetime.fromtimestamp(begin / 1000, UTC).strftime("%Y-%m-%d")
            found[name] = rows.sort_by([(column, "ascending") for column in table.sort_columns])
        return found

    def _apply_journal(self) -> None:
        """Complete the run in the journal, if there is one, and delete the files of runs that were not committed."""
        path = self._root / JOURNAL
        if path.exists():
            journal = json.loads(path.read_bytes())
            for source, target in journal["moves"].items():
                if (self._root / source).exists():
                    make_folders((self._root / target).parent)
                    os.replace(self._root / source, self._root / target)
                    sync_folder((self._root / target).parent)
            replace_file(self._root / PROGRESS, json.dumps(journal["progress"]).encode())
            path.unlink()
            sync_folder(self._root)
        shutil.rmtree(self._root / STAGED, ignore_errors=True)


def total(rows: Mapping[str, pa.Table], column: str) -> int:
    """Return the sum of a column of `throughput`; 0 if it is not among these tables."""
    return sum(row[column] for row in rows["throughput"].to_pylist()) if "throughput" in rows else 0


def _times_ms(rows: pa.Table, table: Table) -> npt.NDArray[np.int64]:
    times = rows[table.time_column].cast(pa.timestamp("us")).cast(pa.int64()).to_numpy()
    return np.asarray(times, dtype=np.int64) // 1000
