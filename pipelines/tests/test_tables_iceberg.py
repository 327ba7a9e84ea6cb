"""The Iceberg table of a topic: readers find the archive's rows, a change is one step, other tables are refused."""

from __future__ import annotations

import re
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

pytest.importorskip("pyiceberg")

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable
from pyiceberg.types import LongType, NestedField
from spark_kit.iceberg_files import FOLDER, Archive, change, files_for, paths_of, rows_of
from spark_kit.object_store import KEYS, ObjectStore

from gantry_pipelines.archive.format import ALL_COLUMNS, REQUIRED_COLUMNS
from gantry_pipelines.archive.settings import CatalogParameters
from gantry_pipelines.archive.tables import iceberg, iceberg_catalog
from gantry_pipelines.archive.tables.folder_catalog import HINT, DurableFileIO, FolderCatalog
from gantry_pipelines.archive.tables.iceberg import open_iceberg
from gantry_pipelines.archive.tables.iceberg_catalog import table_name_of
from gantry_pipelines.archive.tables.iceberg_schema import schema_of
from gantry_pipelines.archive.tables.model import (
    EscapedAddress,
    ForeignFiles,
    OtherTable,
    TableRoot,
    TableShape,
    TableUnavailable,
)
from gantry_spec.pipelines.parts import CatalogKind


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    """Return an archive in a folder, whose table does not exist yet."""
    return Archive(str(tmp_path / "archive"))


def sql_catalog(folder: Path, namespace: str = "lake") -> CatalogParameters:
    """Return a catalog in a database below a folder."""
    return CatalogParameters(CatalogKind.SQL, namespace, {"uri": f"sqlite:///{folder}/catalog.db"})


# -- what readers find -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", ["orders", "%RETRY%readers", "a|b"])
def test_reader_finds_the_rows_of_the_files_with_their_days(tmp_path: Path, topic: str) -> None:
    """pyiceberg reads all columns of the archive's files, nested ones too, and the day from the partitions."""
    archive = Archive(str(tmp_path / "archive"), topic)
    archive.open().commit(change(archive.files))

    assert rows_of(archive.reader()) == archive.rows((0, 48))
    assert archive.reader().format_version == 2
    assert archive.open().paths() == paths_of(archive.files)


def test_files_outside_of_a_filter_are_not_opened(archive: Archive) -> None:
    """The bounds of store times and offsets, and the days, select the files."""
    archive.open().commit(change(archive.files))
    table = archive.reader()
    by_end = {file.place.range.end: file.path for file in archive.files}
    assert sorted(by_end) == [12, 24, 36, 48]

    assert files_for(table, "storeTime >= '2026-11-23T12:00:00+00:00'") == {by_end[48], by_end[36]} - {by_end[24]}
    assert files_for(table, "storeTime < '2026-11-22T12:00:00.000001+00:00'") == {by_end[12]}
    assert files_for(table, "offset = 35") == {by_end[36]}
    assert files_for(table, "offset = 36") == {by_end[48]}
    assert files_for(table, "day = '2026-11-23'") == {by_end[24], by_end[36]}
    assert rows_of(table, "offset >= 35 and offset < 37") == archive.rows((35, 37))


def test_one_snapshot_adds_and_removes_files(archive: Archive) -> None:
    """A compaction is one snapshot; a reader that planned before it still reads the files of its plan."""
    table = archive.open()
    table.commit(change(archive.files[:2]))
    planned = archive.reader()
    tasks = list(planned.scan().plan_files())

    table.commit(change(archive.files[2:], archive.files[:1]))

    assert table.paths() == paths_of(archive.files[1:])
    assert rows_of(archive.reader()) == archive.rows((12, 48))
    assert [one.summary.operation.value for one in archive.reader().snapshots() if one.summary] == [
        "append",
        "overwrite",
    ]
    assert [len(tasks), rows_of(planned)] == [2, archive.rows((0, 24))]
    summary = archive.reader().snapshots()[-1].summary
    assert summary is not None and (summary["total-records"], summary["total-data-files"]) == ("36", "3")


def test_large_change_becomes_visible_at_once(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of many files is written to several manifests, each of few days, and is one version of the table."""
    monkeypatch.setattr(iceberg, "MANIFEST_FILES_MAX", 1)
    table = archive.open()
    table.commit(change(archive.files[:2]))
    versions = sum(name.endswith(".metadata.json") for name in archive.metadata())

    table.commit(change(archive.files[2:], archive.files[:1]))

    assert sum(name.endswith(".metadata.json") for name in archive.metadata()) == versions + 1
    assert rows_of(archive.reader()) == archive.rows((12, 48))


def test_snapshot_has_the_properties_of_the_change(archive: Archive) -> None:
    """`properties` returns those of the newest snapshot that begin with `gantry.`, also if no file changes."""
    table = archive.open()
    assert table.properties() == {}

    table.commit(change(archive.files, properties={"gantry.archive": "a1", "gantry.ends": '{"q": 1}'}))
    assert archive.open().properties() == {"gantry.archive": "a1", "gantry.ends": '{"q": 1}'}

    table.commit(change(properties={"gantry.archive": "a1", "gantry.ends": '{"q": 2}'}))
    assert archive.open().properties() == {"gantry.archive": "a1", "gantry.ends": '{"q": 2}'}
    assert archive.open().paths() == paths_of(archive.files)


def test_removing_a_file_that_the_table_lacks_changes_nothing(archive: Archive) -> None:
    """A change that does not fit the table is refused as a whole."""
    table = archive.open()
    table.commit(change(archive.files[:1]))

    with pytest.raises(TableUnavailable, match=r"has no file .* to remove"):
        table.commit(change(archive.files[1:2], archive.files[2:3]))

    assert archive.open().paths() == paths_of(archive.files[:1])


# -- other tables ------------------------------------------------------------------------------------------------------


def test_file_of_another_writer_is_refused(archive: Archive) -> None:
    """A file that was not written by the archive is named in the error."""
    table = archive.open()
    table.commit(change(archive.files[:1]))
    rows = archive.reader().scan().to_arrow()
    location = f"file://{archive.root.address}/_iceberg"
    FolderCatalog(location, DurableFileIO()).load_table(("gantry", "orders")).append(rows)

    with pytest.raises(ForeignFiles, match=r"_iceberg/data/day=2026-11-22/.*\.parquet, which is not a file"):
        table.paths()


def test_columns_that_the_table_lacks_are_added(tmp_path: Path) -> None:
    """Old files have nulls in new columns, and nested columns get ids."""
    old = Archive(str(tmp_path / "archive"), columns=REQUIRED_COLUMNS)
    old.open().commit(change(old.files[:2]))
    new = Archive(str(tmp_path / "archive"), columns=ALL_COLUMNS)
    for file in old.files[:2]:
        old.write(file.place.range)

    table = open_iceberg(new.root, TableShape(), FOLDER)
    table.commit(change(new.files[2:]))

    found = rows_of(new.reader())
    assert [{name: row[name] for name in REQUIRED_COLUMNS} for row in found[:24]] == [
        {name: row[name] for name in REQUIRED_COLUMNS} for row in old.rows((0, 24))
    ]
    assert {row["properties"] for row in found[:24]} == {None}
    assert found[24:] == new.rows((24, 48))


def test_column_that_the_archive_lacks_is_refused(archive: Archive) -> None:
    """An archive without a column of the table would make it null in new files."""
    archive.open().paths()

    with pytest.raises(OtherTable, match=r"column 'body'.* drop the table, .*: gantry pipeline tables --set rebuild"):
        open_iceberg(archive.root, TableShape(tuple(name for name in ALL_COLUMNS if name != "body")), FOLDER).paths()


def test_table_of_other_columns_or_partitions_is_refused(archive: Archive) -> None:
    """An unrelated table at the same location is refused, and is not changed. It can be dropped."""
    location = f"file://{archive.root.address}/_iceberg"
    catalog = FolderCatalog(location, DurableFileIO())
    identifier = ("gantry", "orders")
    catalog.create_table(identifier, Schema(NestedField(1, "queue", LongType())), location)
    with pytest.raises(OtherTable, match=r"has long in the column 'queue', expected int"):
        archive.open().paths()
    archive.open().drop()

    catalog.create_table(identifier, schema_of(TableShape().base_fields), location, PartitionSpec())
    with pytest.raises(OtherTable, match=r"partitioned by \[\], expected the column 'day'"):
        archive.open().paths()
    assert len(archive.metadata()) == 2


# -- names, catalogs and errors ----------------------------------------------------------------------------------------


def test_table_names_are_valid_and_readable() -> None:
    """Ordinary topics keep their names; others get names without characters that engines refuse."""
    names = {"orders": "orders", "order_events-2": "order_events-2", "%RETRY%readers": "_x0025_RETRY_x0025_readers"}
    assert {topic: table_name_of(topic) for topic in names} == names


@given(st.text(alphabet="_x0025%|-ab", min_size=1, max_size=24))
@example("_x0025_")
@example("_x0025%")
@example("_x002_x0025")
@example("__x0025__x")
def test_table_name_leads_back_to_its_topic(topic: str) -> None:
    """Two topics never have the same table."""
    name = table_name_of(topic)
    found = re.sub(r"_x([0-9a-f]{4,6})_", lambda escape: chr(int(escape[1], 16)), name)
    assert re.fullmatch(r"[A-Za-z0-9_-]+", name) and found == topic


def test_table_in_a_database(tmp_path: Path) -> None:
    """With an SQL catalog the database has the newest version; expiry and drop delete the table's metadata only."""
    archive = Archive(str(tmp_path / "archive"), "%RETRY%readers")
    catalog = sql_catalog(tmp_path)
    table = archive.open(catalog)
    table.commit(change(archive.files[:2], properties={"gantry.archive": "a1"}))
    table.commit(change(archive.files[2:], archive.files[:1], properties={"gantry.archive": "a2"}))

    again = archive.open(catalog)

    assert (again.paths(), again.properties()) == (paths_of(archive.files[1:]), {"gantry.archive": "a2"})
    assert rows_of(StaticTable.from_metadata(again._table.metadata_location)) == archive.rows((12, 48))
    manifests = {name for name in archive.metadata("_iceberg_sql") if name.endswith(".avro")}
    again.expire(int(time.time() * 1000) + 1000)
    assert {name for name in archive.metadata("_iceberg_sql") if name.endswith(".avro")} < manifests
    assert rows_of(StaticTable.from_metadata(again._table.metadata_location)) == archive.rows((12, 48))
    again.drop()
    assert archive.metadata("_iceberg_sql") == set()
    assert archive.open(catalog).paths() == frozenset()


@pytest.mark.parametrize(
    ("kind", "uri"),
    [
        (CatalogKind.SQL, "sqlite:////nowhere/catalog.db"),
        (CatalogKind.REST, "http://{address}"),
        (CatalogKind.SQL, ""),
        (CatalogKind.REST, ""),
    ],
    ids=["database", "server", "no address of a database", "no address of a server"],
)
def test_catalog_that_does_not_answer(
    archive: Archive, free_address: Callable[[], str], kind: CatalogKind, uri: str
) -> None:
    """Errors of a catalog are reported as one of ours, with the cause."""
    catalog = CatalogParameters(kind, properties={"uri": uri.format(address=free_address())} if uri else {})

    table = archive.open(catalog)

    with pytest.raises(TableUnavailable, match="Iceberg table of topic 'orders' in") as raised:
        table.paths()
    with pytest.raises(TableUnavailable):
        table.drop()

    assert raised.value.__cause__ is not None


@pytest.mark.parametrize("loss", ["metadata", "newest version", "moved archive"])
def test_table_in_a_database_without_readable_metadata_can_be_dropped(tmp_path: Path, loss: str) -> None:
    """`drop` does not load the table, and the next publication makes it again."""
    archive = Archive(str(tmp_path / "archive"))
    catalog = sql_catalog(tmp_path)
    archive.open(catalog).commit(change(archive.files))
    if loss == "metadata":
        shutil.rmtree(f"{archive.root.address}/_iceberg_sql")
    elif loss == "newest version":
        Path(archive.open(catalog)._table.metadata_location.removeprefix("file://")).write_text('{"format-version"')
    else:
        (tmp_path / "archive").rename(tmp_path / "moved")
        archive = Archive(str(tmp_path / "moved"))
    with pytest.raises(TableUnavailable, match="gantry pipeline tables --set rebuild=true"):
        archive.open(catalog).paths()

    archive.open(catalog).drop()

    assert archive.open(catalog).paths() == frozenset()
    archive.open(catalog).commit(change(archive.files))
    assert rows_of(archive.open(catalog)._table) == archive.rows((0, 48))


def test_table_of_another_archive_in_a_database_is_not_dropped(tmp_path: Path) -> None:
    """Archives that use the same namespace by mistake do not delete each other's tables."""
    catalog = sql_catalog(tmp_path)
    one, other = (Archive(str(tmp_path / name)) for name in ("one", "other"))
    one.root, other.root = replace(one.root, archive="a1"), replace(other.root, archive="a2")
    one.open(catalog).commit(change(one.files, properties={"gantry.archive": "a1"}))
    one.open(catalog)._table.append(one.open(catalog)._table.scan().to_arrow())  # the snapshot of another program

    text = r"lake\.orders belongs to the archive a1, and this archive is a2: set tables\.catalog\.namespace"
    with pytest.raises(OtherTable, match=text):
        other.open(catalog).drop()

    assert len(rows_of(one.open(catalog)._table)) == 96
    one.open(catalog).drop()
    assert other.open(catalog).paths() == frozenset()


def test_tables_of_one_archive_in_a_folder_and_a_database_are_independent(tmp_path: Path) -> None:
    """When the kind of the catalog changes, expiry and drop of one table leave the metadata of the other."""
    archive = Archive(str(tmp_path / "archive"))
    catalog = sql_catalog(tmp_path)
    archive.open().commit(change(archive.files[:1]))
    archive.open(catalog).commit(change(archive.files))
    later_ms = int(time.time() * 1000) + 1000

    again = archive.open()
    again.commit(change(archive.files[1:2]))
    again.expire(later_ms)
    assert rows_of(archive.open(catalog)._table) == archive.rows((0, 48))
    archive.open(catalog).expire(later_ms)
    assert rows_of(archive.reader()) == archive.rows((0, 24))
    archive.open().drop()
    assert rows_of(archive.open(catalog)._table) == archive.rows((0, 48))
    archive.open().commit(change(archive.files[:1]))
    archive.open(catalog).drop()
    assert rows_of(archive.reader()) == archive.rows((0, 12))


@pytest.mark.parametrize("request_at", ["start", "token"])
def test_server_that_never_answers(archive: Archive, monkeypatch: pytest.MonkeyPatch, request_at: str) -> None:
    """A catalog that accepts a connection and sends nothing is unavailable after a time, also for a token."""
    monkeypatch.setattr(iceberg_catalog, "REST_TIMEOUTS_S", (0.2, 0.2))
    with socket.create_server(("127.0.0.1", 0)) as server:
        properties = {"uri": f"http://127.0.0.1:{server.getsockname()[1]}"}
        if request_at == "token":
            properties |= {"credential": "id:secret", "oauth2-server-uri": f"{properties['uri']}/token"}
        table = archive.open(CatalogParameters(CatalogKind.REST, "lake", properties))

        for use in (table.paths, table.drop):
            with pytest.raises(TableUnavailable, match=r"ReadTimeout.*read timeout=0\.2"):
                use()


@pytest.mark.parametrize("name", ["a#b", "a?b"])
def test_address_that_pyiceberg_would_cut_is_refused(tmp_path: Path, name: str) -> None:
    """`#` and `?` would end the path, so that the metadata of another folder would be changed."""
    victim = tmp_path / "a"
    victim.mkdir()
    (victim / "metadata").mkdir()
    (victim / "v1.metadata.json").write_text("{}")
    root = TableRoot("orders", f"{tmp_path}/{name}")
    table = open_iceberg(root, TableShape(), FOLDER)

    for use in (table.paths, table.properties, lambda: table.commit(change()), lambda: table.expire(0)):
        with pytest.raises(EscapedAddress, match="has '#' or '\\?', which end the path of an address"):
            use()
    table.drop()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "metadata", "v1.metadata.json"]


def test_moved_table_in_a_folder_is_refused_and_can_be_dropped(tmp_path: Path) -> None:
    """The metadata has absolute addresses, so a table must be made again where its archive was moved to."""
    archive = Archive(str(tmp_path / "archive"))
    archive.open().commit(change(archive.files))
    (tmp_path / "archive").rename(tmp_path / "moved")
    moved = Archive(str(tmp_path / "moved"))

    with pytest.raises(OtherTable, match=r"was made at .*/archive/.*, and is now at .*/moved/.*set rebuild=true"):
        moved.open().paths()
    moved.open().drop()

    moved.open().commit(change(moved.files))
    assert rows_of(moved.reader()) == moved.rows((0, 48))


def test_damaged_metadata_is_reported(archive: Archive) -> None:
    """A version that cannot be read is an error of the table, and is not overwritten."""
    archive.open().paths()
    newest = Path(archive.root.address, "_iceberg/metadata/v9.metadata.json")
    newest.write_bytes(b'{"format-version": 2}')

    with pytest.raises(
        TableUnavailable, match=r"publish it again: gantry pipeline tables --set rebuild=true"
    ) as raised:
        archive.open().paths()

    assert "\n" not in str(raised.value) and len(str(raised.value)) < 800
    assert newest.read_bytes() == b'{"format-version": 2}'
    archive.open().drop()
    assert archive.metadata() == set() and archive.open().paths() == frozenset()


# -- an object store ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    store = ObjectStore(tmp_path_factory.mktemp("objects") / "buckets")
    store.start()
    try:
        yield store
    finally:
        store.kill()


@pytest.mark.needs_object_store
def test_table_in_an_object_store(server: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an object store a table has the same layout, and its keys come from the environment."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    archive = Archive(server.address(tmp_path.name), "%RETRY%readers")
    table = archive.open()
    table.commit(change(archive.files[:2]))
    table.commit(change(archive.files[2:], archive.files[:1], {"gantry.archive": "a1"}))

    again = archive.open()

    assert (again.paths(), again.properties()) == (paths_of(archive.files[1:]), {"gantry.archive": "a1"})
    assert rows_of(again._table) == archive.rows((12, 48))
    again.expire(int(time.time() * 1000) + 60_000)
    assert rows_of(archive.open()._table) == archive.rows((12, 48))
    folder = "data/topic=%25RETRY%25readers"
    assert f"{folder}/_iceberg/metadata/{HINT}" in server.files(tmp_path.name)
    again.drop()
    assert server.files(tmp_path.name) == {f"{folder}/{file.path}" for file in (*archive.files, *archive.late_files)}


@pytest.mark.needs_object_store
def test_object_store_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_address: Callable[[], str]
) -> None:
    """An outage is reported as an error of the table."""
    for name, value in {**KEYS, "AWS_MAX_ATTEMPTS": "1"}.items():
        monkeypatch.setenv(name, value)
    options = {"endpoint_override": free_address(), "scheme": "http", "region": "us-east-1", "connect_timeout": "0.2"}

    with pytest.raises(TableUnavailable, match="orders"):
        open_iceberg(TableRoot("orders", "s3://archives/none", options), TableShape(), FOLDER).paths()
