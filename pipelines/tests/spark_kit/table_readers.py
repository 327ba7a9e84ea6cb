"""Read the tables of an archive as their users do: with pyiceberg, deltalake, and DuckDB over deltalake's dataset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final

import duckdb
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import StaticTable
from spark_kit.listings import COLUMNS, RowCounts

from gantry_pipelines.archive.tables.delta import storage_options
from gantry_pipelines.archive.tables.model import TableRoot


def by_iceberg(root: TableRoot) -> RowCounts:
    """Read the newest snapshot with pyiceberg, without a catalog."""
    if "://" in root.address:
        properties = {"s3.endpoint": f"{root.options['scheme']}://{root.options['endpoint_override']}"}
        io = PyArrowFileIO({**properties, "s3.region": root.options["region"]})
    else:
        io = PyArrowFileIO()
    metadata = f"{root.address}/_iceberg/metadata"
    hint = io.new_input(f"{metadata}/version-hint.text")
    if not hint.exists():
        return Counter()
    with hint.open() as file:
        location = f"{metadata}/v{file.read().decode()}.metadata.json"
    table = StaticTable.from_metadata(location, io.properties)
    return counted(root.topic, [table.scan(selected_fields=COLUMNS[1:]).to_arrow()])


def by_deltalake(root: TableRoot) -> RowCounts:
    """Read the newest version with deltalake."""
    table = _delta_table(root)
    return Counter() if table is None else counted(root.topic, [table.to_pyarrow_table(columns=list(COLUMNS[1:]))])


def by_duckdb(root: TableRoot) -> RowCounts:
    """Query deltalake's dataset of the newest version with DuckDB."""
    table = _delta_table(root)
    if table is None:
        return Counter()
    messages = table.to_pyarrow_dataset()
    with duckdb.connect() as connection:
        connection.register("messages", messages)
        rows = connection.execute('SELECT broker, queue, "offset", body FROM messages').fetchall()
    return Counter((root.topic, *row) for row in rows)


def _delta_table(root: TableRoot) -> DeltaTable | None:
    try:
        return DeltaTable(root.address, storage_options=storage_options(root))
    except TableNotFoundError:
        return None


TABLE_READERS: Final[dict[str, Callable[[TableRoot], RowCounts]]] = {
    "pyiceberg": by_iceberg,
    "deltalake": by_deltalake,
    "duckdb over delta": by_duckdb,
}


def counted(topic: str, tables: Iterable[pa.Table]) -> RowCounts:
    """Count the rows of a topic's tables."""
    found: RowCounts = Counter()
    for table in tables:
        columns: list[list[Any]] = [table.column(name).to_pylist() for name in COLUMNS[1:]]
        found.update((topic, *row) for row in zip(*columns, strict=True))
    return found
