"""Check listings of an archive: the names after each run, and all rows again and again during a compaction and kills.

A reader first lists names, and opens the files later. A file that was deleted in between is no finding: the reader gets
"file not found", and lists again. A complete listing shows no row twice at any time, and every row if all are
archived."""

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


def name_faults(root: Path) -> list[str]:
    """Return the faults in the names of a listing: ranges that are archived twice, and foreign files."""
    places = {path: place_of(path) for path in Folder(str(root)).paths() if is_data(path)}
    foreign = [f"{path} is not a file name of an archive" for path, place in places.items() if place is None]
    ranges = [place.range for place in places.values() if place is not None]
    return foreign + [fault for fault in tiling_faults(ranges) if "twice" in fault]


def count_by_pyarrow(root: Path) -> int | None:
    """Count the rows of one listing with pyarrow; None if a file was deleted in between."""
    try:
        dataset: Any = ds.dataset(str(root / "data"), format="parquet", partitioning="hive")
        return int(dataset.count_rows())
    except (FileNotFoundError, pa.ArrowInvalid) as error:
        if isinstance(error, FileNotFoundError) or "No such file" in str(error):
            return None
        raise


def count_by_duckdb(root: Path) -> int | None:
    """Count the rows of one listing with DuckDB; negative if there are duplicates, None if a file was deleted."""
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
class ListingWatcher:
    """Lists an archive repeatedly in threads, inside of a `with` block.

    The threads write its fields, which are read after they have ended.
    """

    def __init__(self, root: Path, rows: int) -> None:
        self._root: Final = root
        self._rows: Final = rows
        self._is_over: Final = threading.Event()
        self._threads: Final = [
            threading.Thread(target=self._watch, args=(count,)) for count in (count_by_pyarrow, count_by_duckdb)
        ]
        self.listings = 0
        """The number of complete listings with the expected rows."""

        self.listed_again = 0
        """The number of listings in which a file was deleted before it was read."""

        self.findings: list[str] = []

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _watch(self, count_rows: Any) -> None:
        while True:
            is_last = self._is_over.is_set()
            try:
                rows = count_rows(self._root)
            except Exception as error:  # noqa: BLE001 - any error is a finding
                self.findings.append(f"{count_rows.__name__}: {error!r}")
                return
            if rows is None:
                self.listed_again += 1
            elif rows != self._rows:
                self.findings.append(f"{count_rows.__name__} found {rows} rows, expected {self._rows}")
            else:
                self.listings += 1
            if is_last:
                return
