"""Listings of an archive while it is written, killed, and compacted.

A listing is what a reader does: names first, files later. A file that has gone between the two is no finding, it is
what a reader is told; it lists again. What a whole listing shows is: no row twice, at any time; every row, where all
are there."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Final, Self, final

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from gantry_pipelines.archive.layout import is_data, place_of
from gantry_pipelines.archive.manifest import tiling_faults
from gantry_pipelines.archive.storage import Folder


def names_faults(root: Path) -> list[str]:
    """What the names of a listing say: ranges that are there twice, and files that are not ours."""
    places = {path: place_of(path) for path in Folder(str(root)).paths() if is_data(path)}
    strange = [f"{path} is no name of an archive" for path, place in places.items() if place is None]
    ranges = [place.range for place in places.values() if place is not None]
    return strange + [fault for fault in tiling_faults(ranges) if "twice" in fault]


def count_by_pyarrow(root: Path) -> int | None:
    """Rows of one listing; None when a file had gone."""
    try:
        dataset: Any = ds.dataset(str(root / "data"), format="parquet", partitioning="hive")
        return int(dataset.count_rows())
    except (FileNotFoundError, pa.ArrowInvalid) as error:
        if isinstance(error, FileNotFoundError) or "No such file" in str(error):
            return None
        raise


def count_by_duckdb(root: Path) -> int | None:
    """The same; rows that are there twice count once, and are told apart by the sum."""
    connection = duckdb.connect()
    try:
        connection.execute("SET threads=1")
        query = f"SELECT count(*), count(DISTINCT (queue, \"offset\")) FROM read_parquet('{root}/data/**/*.parquet')"
        rows, different = connection.execute(query).fetchall()[0]
    except duckdb.IOException as error:
        if "No such file" in str(error) or "No files found" in str(error):
            return None
        raise
    finally:
        connection.close()
    return int(rows) if rows == different else -int(rows)


@final
class Watcher:
    """Lists again and again in threads of its own; `with` it. Its fields are written by them and read when they
    ended."""

    def __init__(self, root: Path, rows: int) -> None:
        self._root: Final = root
        self._rows: Final = rows
        self._is_over: Final = threading.Event()
        self._threads: Final = [
            threading.Thread(target=self._watch, args=(look,)) for look in (count_by_pyarrow, count_by_duckdb)
        ]
        self.listings = 0
        self.listed_again = 0
        self.findings: list[str] = []

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _watch(self, look: Any) -> None:
        while True:
            is_last = self._is_over.is_set()
            try:
                rows = look(self._root)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
                self.findings.append(f"{look.__name__}: {error!r}")
                return
            if rows is None:
                self.listed_again += 1
            elif rows != self._rows:
                self.findings.append(f"{look.__name__} saw {rows} rows of {self._rows}")
            else:
                self.listings += 1
            if is_last:
                return
