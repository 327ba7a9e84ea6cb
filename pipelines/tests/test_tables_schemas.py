"""Typed columns in tables: all readers get the same values, columns are added to tables, and kills leave nothing half
done."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

import duckdb
import pyarrow as pa
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.table import StaticTable
from spark_kit.declared import JsonLog, json_schemas, order_of
from spark_kit.object_store import KEYS, ObjectStore
from spark_kit.table_readers import TABLE_READERS
from spark_kit.table_trial import BOTH, LATER_MS
from spark_kit.toy_log import HOUR_US
from spark_kit.toy_run import ToyRun, run_toy

from gantry_pipelines.archive import crash_points
from gantry_pipelines.archive.object_storage import storage_of
from gantry_pipelines.archive.schemas.topic_schemas import TopicSchemas
from gantry_pipelines.archive.settings import CatalogParameters, TableParameters
from gantry_pipelines.archive.storage import Folder
from gantry_pipelines.archive.tables.delta import storage_options
from gantry_pipelines.archive.tables.model import TableRoot
from gantry_pipelines.archive.tables.publication import TablePublisher, root_of
from gantry_pipelines.archive.tables.table_verification import verify_tables
from gantry_pipelines.archive.verification import verify
from gantry_pipelines.archive.writer import ArchiveWriter
from gantry_spec.pipelines.parts import CatalogKind, PartitionUnit, TableFormat
from pyspark_rocketmq.model import QueueId

QUEUE: Final = QueueId("orders", "broker-a", 0)
OTHER: Final = QueueId("bills", "broker-a", 0)
LOG: Final = JsonLog({QUEUE: 250, OTHER: 30}, step_us=HOUR_US // 20)
BEGINNING: Final = JsonLog({QUEUE: 90}, step_us=LOG.step_us)
NARROW: Final = json_schemas("orders", order="bigint")
WIDE: Final = json_schemas(
    "orders", order="bigint", amount="decimal(10,2)", note="string", lines="array<struct<sku:string,count:int>>"
)
COLUMNS: Final = ("offset", "body", "decodeError", "order", "amount", "note", "lines")
NAMED: Final = ", ".join(f'"{name}"' for name in COLUMNS)

Rows = list[dict[str, Any]]


def by_pyiceberg(root: TableRoot) -> Rows:
    table = StaticTable.from_metadata(f"{root.address}/_iceberg")
    return rows_of(table.scan(selected_fields=COLUMNS).to_arrow())


def by_deltalake(root: TableRoot) -> Rows:
    return rows_of(DeltaTable(root.address).to_pyarrow_table(columns=list(COLUMNS)))


def by_duckdb(root: TableRoot) -> Rows:
    messages = DeltaTable(root.address).to_pyarrow_dataset()
    with duckdb.connect() as connection:
        connection.register("messages", messages)
        return rows_of(connection.sql(f"SELECT {NAMED} FROM messages").to_arrow_table())


def by_duckdb_files(root: TableRoot) -> Rows:
    with duckdb.connect() as connection:
        query = f"SELECT {NAMED} FROM read_parquet(?, union_by_name=true)"
        return rows_of(connection.sql(query, params=[f"{root.address}/day=*/*.parquet"]).to_arrow_table())


READERS: Final[Mapping[str, Callable[[TableRoot], Rows]]] = {
    "pyiceberg": by_pyiceberg,
    "deltalake": by_deltalake,
    "duckdb over delta": by_duckdb,
}


def rows_of(table: pa.Table) -> Rows:
    """Return the rows of a table by offset."""
    return sorted(table.to_pylist(), key=lambda row: int(row["offset"]))


def wanted_rows(first_decoded: int, first_wide: int, end: int = 250) -> Rows:
    """Return the expected rows; columns of later schemas are null in earlier files."""
    rows: Rows = []
    for offset in range(end):
        order, is_json = order_of(offset), offset % 7 != 0
        amount = f"{offset}.25"
        has, has_wide = is_json and offset >= first_decoded, is_json and offset >= first_wide
        rows.append({
            "offset": offset, "body": LOG.row(QUEUE, offset)["body"],
            "decodeError": not is_json and offset >= first_decoded,
            "order": order["order"] if has else None, "amount": amount if has_wide else None,
            "note": order["note"] if has_wide else None, "lines": order["lines"] if has_wide else None,
        })  # fmt: skip
    return rows


def comparable(rows: Rows) -> Rows:
    """Return rows with amounts as text, and only whether there is an error.

    pyiceberg 0.12 returns a null array of structs as an empty one; no order here has an empty array.
    """
    return [
        {
            **row, "decodeError": row["decodeError"] is not None, "lines": row["lines"] or None,
            "amount": None if row["amount"] is None else str(row["amount"]),
        }
        for row in rows
    ]  # fmt: skip


def run(root: Path, log: JsonLog, schemas: TopicSchemas, **more: Any) -> int:
    """Archive and publish, in a process of its own if it is to be killed; return the exit code."""
    toy_run = replace(ToyRun(str(root), log, tables=BOTH, schemas=schemas), **more)
    if toy_run.crash_at is not None:
        return toy_run.run_process()
    run_toy(toy_run)
    return 0


def test_readers_of_tables_get_the_same_typed_columns(tmp_path: Path) -> None:
    """Files before a schema, and before a column was added, have nulls; a compaction changes nothing."""
    root = tmp_path / "archive"
    assert run(root, JsonLog({QUEUE: 40}, step_us=LOG.step_us), TopicSchemas()) == 0
    assert run(root, BEGINNING, NARROW) == 0
    assert run(root, LOG, WIDE) == 0
    table, wanted = root_of(Folder(str(root)), "orders"), wanted_rows(40, 90)

    assert {name: comparable(read(table)) for name, read in READERS.items()} == dict.fromkeys(READERS, wanted)
    assert comparable(by_duckdb_files(table)) == wanted
    assert run(root, LOG, WIDE, is_compacting=True, now_ms=LATER_MS) == 0
    assert {name: comparable(read(table)) for name, read in READERS.items()} == dict.fromkeys(READERS, wanted)
    assert verify(Folder(str(root)), is_deep=True).findings == ()
    assert verify_tables(Folder(str(root)), BOTH).findings == ()


def test_table_that_is_made_again_has_the_same_schema(tmp_path: Path) -> None:
    """Also the ids of Iceberg's columns are those of the table to which columns were added, which never change."""
    root = tmp_path / "archive"
    assert run(root, BEGINNING, NARROW) == 0
    table = root_of(Folder(str(root)), "orders")
    first = StaticTable.from_metadata(f"{table.address}/_iceberg").schema()
    assert run(root, LOG, WIDE) == 0
    evolved = StaticTable.from_metadata(f"{table.address}/_iceberg").schema()
    delta = DeltaTable(table.address).schema().to_json()

    with ArchiveWriter.open(Folder(str(root))) as writer:
        list(TablePublisher(writer, BOTH).rebuild())

    assert evolved.fields[: len(first.fields)] == first.fields
    assert [field.name for field in evolved.fields[-3:]] == ["amount", "note", "lines"]
    assert StaticTable.from_metadata(f"{table.address}/_iceberg").schema() == evolved
    assert DeltaTable(table.address).schema().to_json() == delta
    assert {name: comparable(read(table)) for name, read in READERS.items()} == dict.fromkeys(
        READERS, wanted_rows(0, 90)
    )


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize(
    ("point", "nth"),
    [
        (crash_points.AFTER_SCHEMAS, 1), (crash_points.AFTER_TABLE_COLUMNS, 1), (crash_points.AFTER_TABLE_COLUMNS, 2),
        (crash_points.BEFORE_TABLE, 1), (crash_points.AFTER_TABLE, 1), (crash_points.AFTER_RECORD, 1),
    ],
)  # fmt: skip
def test_publication_that_was_killed_after_columns_were_added_is_completed(
    tmp_path: Path, point: str, nth: int
) -> None:
    """Readers see the rows of before the kill; the next run completes columns, files and snapshots."""
    root = tmp_path / "archive"
    assert run(root, BEGINNING, NARROW) == 0
    table = root_of(Folder(str(root)), "orders")

    killed = run(root, LOG, WIDE, rows_max=100, crash_at=(point, nth))
    before = DeltaTable(table.address).to_pyarrow_table(columns=["offset", "order"]).to_pylist()
    by_iceberg = StaticTable.from_metadata(f"{table.address}/_iceberg").scan(selected_fields=("offset", "order"))
    assert killed == -signal.SIGKILL
    for rows in (before, by_iceberg.to_arrow().to_pylist()):
        assert [row["order"] for row in sorted(rows, key=lambda row: row["offset"])][:90] == [
            row["order"] for row in wanted_rows(0, 90, 90)
        ]

    assert run(root, LOG, WIDE) == 0
    assert {name: comparable(read(table)) for name, read in READERS.items()} == dict.fromkeys(
        READERS, wanted_rows(0, 90)
    )
    assert verify(Folder(str(root)), is_deep=True).findings == ()
    assert verify_tables(Folder(str(root)), BOTH).findings == ()


def test_table_in_a_catalog_gets_new_columns(tmp_path: Path) -> None:
    """The catalog assigns the ids, and a table that is made again has the same ones."""
    root, uri = tmp_path / "archive", f"sqlite:///{tmp_path}/catalog.db"
    catalog = CatalogParameters(CatalogKind.SQL, "lake", {"uri": uri})
    tables = TableParameters((TableFormat.ICEBERG,), catalog)
    assert run(root, BEGINNING, NARROW, tables=tables) == 0
    assert run(root, LOG, WIDE, tables=tables) == 0

    def read() -> tuple[Any, Rows]:
        table = load_catalog("gantry", type="sql", uri=uri).load_table("lake.orders")
        return table.schema(), comparable(rows_of(table.scan(selected_fields=COLUMNS).to_arrow()))

    schema, rows = read()
    with ArchiveWriter.open(Folder(str(root))) as writer:
        list(TablePublisher(writer, tables).rebuild())

    assert rows == wanted_rows(0, 90)
    assert read() == (schema, rows)


@pytest.mark.verify
@pytest.mark.needs_object_store
def test_tables_of_an_object_store_have_typed_columns_and_hours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There the tables name the objects of the archive, which are in folders of hours."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    server = ObjectStore(tmp_path / "buckets")
    server.start()
    try:
        address = server.address("archive")
        more = {"destination": address, "environment": KEYS, "partition_by": PartitionUnit.HOUR}
        assert run(tmp_path / "run", BEGINNING, NARROW, **more) == 0
        assert run(tmp_path / "run", LOG, WIDE, **more) == 0
        storage = storage_of(address)
        table = root_of(storage, "orders")
        delta = DeltaTable(table.address, storage_options=storage_options(table))
        rows = rows_of(delta.to_pyarrow_table(columns=list(COLUMNS)))
        counts = {name: read(table).total() for name, read in TABLE_READERS.items()}
        findings = (*verify(storage, is_deep=True).findings, *verify_tables(storage, BOTH).findings)
    finally:
        server.kill()

    assert comparable(rows) == wanted_rows(0, 90)
    assert counts == dict.fromkeys(TABLE_READERS, 250)
    assert delta.metadata().partition_columns == ["day", "hour"] and findings == ()
