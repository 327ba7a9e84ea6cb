"""The tables: their columns, and their files, which are Parquet by day and changed by whole runs.

    DESTINATION/throughput/day=2026-11-22/part.parquet         a table has one file for each day (UTC)
    DESTINATION/_staged/<run>/...                              what a run has written, and nobody sees
    DESTINATION/_journal.json                                  a run that is decided: names, to be moved into place
    DESTINATION/_progress.json                                 up to where windows are written

A run first writes all of its files aside, then the journal, which decides it, and then moves them. A run that dies
before the journal is there has changed nothing; one that dies behind it is finished by the next one, before that does
anything else. Each file is replaced by a rename, so a reader sees a day as it was or as it is. One writer: a lock is
held.

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
from gantry_remoting.durable_files import replace_file, sync_file, sync_folder

TIME: Final = pa.timestamp("us", tz="UTC")
_WINDOW: Final[list[tuple[str, pa.DataType]]] = [("windowBegin", TIME), ("windowEnd", TIME), ("topic", pa.string())]


@final
@dataclass(frozen=True)
class Table:
    """One table."""

    name: str
    schema: pa.Schema
    order: tuple[str, ...]
    """By which rows lie in a file."""
    is_windowed: bool = True
    """Else it has samples, which are added."""

    @property
    def time(self) -> str:
        """The column that says to which day a row belongs."""
        return "windowBegin" if self.is_windowed else "sampledAt"


def _table(name: str, columns: list[tuple[str, pa.DataType]], order: tuple[str, ...]) -> Table:
    fields = dict([*_WINDOW, *columns])
    return Table(name, pa.schema(fields), ("windowBegin", "topic", *order))


_SAMPLE: Final[dict[str, pa.DataType]] = {
    "sampledAt": TIME, "group": pa.string(), "topic": pa.string(), "broker": pa.string(), "queue": pa.int32(),
    "committed": pa.int64(), "end": pa.int64(), "lagMessages": pa.int64(), "lagSeconds": pa.float64(),
}  # fmt: skip
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
"""By name."""

STAGED: Final = "_staged"
JOURNAL: Final = "_journal.json"
PROGRESS: Final = "_progress.json"
LOCK: Final = "_lock"
PART: Final = "part.parquet"
DAY_MS: Final = 86_400_000


@final
class Tables:
    """The folder of all tables. Used by one process at a time; use it in `with` to write."""

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
            raise JobError(
                f"another run writes to {self._root}", remedy="wait for it, or name another folder", reason="Busy"
            ) from error
        self._finish()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._lock is not None, "entered"
        os.close(self._lock)
        self._lock = None

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(self, table: Table, begin_ms: int = 0, end_ms: int = 1 << 62) -> pa.Table:
        """The rows of `[begin, end)`, by time."""
        parts = [
            pq.read_table(path, schema=table.schema, partitioning=None)
            for day, path in self._days(table)
            if day < end_ms and day + DAY_MS > begin_ms
        ]
        rows = pa.concat_tables(parts) if parts else table.schema.empty_table()
        times = _times_ms(rows, table)
        kept = rows.filter(pa.array((times >= begin_ms) & (times < end_ms)))
        return kept.sort_by([(name, "ascending") for name in table.order])

    def progress(self) -> dict[str, Any]:
        """What the last run has left for the next one."""
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
        """Write a run: rows of tables by their names, and what the next run must know. How many files it changed.

        Of a table of windows everything in `replaced` goes; without it, the windows that the new rows have. Of a table
        of samples nothing goes but the samples of the same moment.
        """
        assert self._lock is not None, "write inside `with`"
        folder = self._root / STAGED / run
        shutil.rmtree(folder, ignore_errors=True)
        moves: dict[str, str] = {}
        for name, new in rows.items():
            table = TABLES[name]
            for day, part in self._merged(table, new.cast(table.schema), replaced).items():
                target = f"{name}/day={day}/{PART}"
                path = folder / target
                path.parent.mkdir(parents=True)
                pq.write_table(part, path, compression="zstd")
                sync_file(path)
                moves[f"{STAGED}/{run}/{target}"] = target
        journal = {"run": run, "moves": moves, "progress": dict(progress)}
        replace_file(self._root / JOURNAL, json.dumps(journal).encode())
        self._finish()
        return len(moves)

    def _merged(self, table: Table, new: pa.Table, replaced: tuple[int, int] | None) -> dict[str, pa.Table]:
        """By day, what its file must have: the rows that stay, and the new ones."""
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
                goes = (old_times >= replaced[0]) & (old_times < replaced[1])
            else:
                goes = np.isin(old_times, times)
            fresh = new.filter(pa.array((times >= begin) & (times < begin + DAY_MS)))
            rows = pa.concat_tables([old.filter(pa.array(~goes)), fresh])
            name = datetime.fromtimestamp(begin / 1000, UTC).strftime("%Y-%m-%d")
            found[name] = rows.sort_by([(column, "ascending") for column in table.order])
        return found

    def _finish(self) -> None:
        """Do what the journal says, if there is one, and clear up behind runs that never were decided."""
        path = self._root / JOURNAL
        if path.exists():
            journal = json.loads(path.read_bytes())
            for source, target in journal["moves"].items():
                if (self._root / source).exists():
                    (self._root / target).parent.mkdir(parents=True, exist_ok=True)
                    os.replace(self._root / source, self._root / target)
                    sync_folder((self._root / target).parent)
            replace_file(self._root / PROGRESS, json.dumps(journal["progress"]).encode())
            path.unlink()
            sync_folder(self._root)
        shutil.rmtree(self._root / STAGED, ignore_errors=True)


def total(rows: Mapping[str, pa.Table], column: str) -> int:
    """The sum of a column of `throughput`, if that is among these tables."""
    return sum(row[column] for row in rows["throughput"].to_pylist()) if "throughput" in rows else 0


def _times_ms(rows: pa.Table, table: Table) -> npt.NDArray[np.int64]:
    times = rows[table.time].cast(pa.timestamp("us")).cast(pa.int64()).to_numpy()
    return np.asarray(times, dtype=np.int64) // 1000
