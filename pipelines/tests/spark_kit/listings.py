"""Read an archive by listing its folder, with pyarrow and DuckDB, without its manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

COLUMNS: Final = ("topic", "broker", "queue", "offset", "body")

RowCounts = Counter[tuple[str, str, int, int, bytes]]
"""Number of occurrences of each row."""


def by_pyarrow(root: Path) -> RowCounts:
    """Read the folder with pyarrow."""
    (root / "data").mkdir(parents=True, exist_ok=True)
    partitions = ds.partitioning(pa.schema([("topic", pa.string()), ("day", pa.string())]), flavor="hive")
    dataset: Any = ds.dataset(str(root / "data"), format="parquet", partitioning=partitions)
    if not dataset.files:
        return Counter()
    return _counted(dataset.to_table(columns=list(COLUMNS)))


def by_duckdb(root: Path) -> RowCounts:
    """Read the folder with DuckDB."""
    pattern = f"{root}/data/**/*.parquet"
    connection = duckdb.connect()
    try:
        if not connection.execute("SELECT count(*) FROM glob(?)", [pattern]).fetchall()[0][0]:
            return Counter()
        connection.execute("SET threads=1")
        rows = connection.execute(
            f'SELECT {", ".join(COLUMNS[:3])}, "offset", body '
            "FROM read_parquet(?, hive_partitioning=true, hive_types={'topic': VARCHAR})",
            [pattern],
        ).fetchall()
    finally:
        connection.close()
    return Counter(rows)


READERS: Final[dict[str, Callable[[Path], RowCounts]]] = {"pyarrow": by_pyarrow, "duckdb": by_duckdb}


def _counted(table: pa.Table) -> RowCounts:
    columns = [table.column(name).to_pylist() for name in COLUMNS]
    return Counter(zip(*columns, strict=True))
