"""A Delta table lists the archive's own files: readers get exactly their rows, and a version is one atomic step."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from spark_kit.toy_log import NOON_US

from gantry_pipelines.archive.format import ALL_COLUMNS
from gantry_pipelines.archive.object_storage import storage_of
from gantry_pipelines.archive.tables.model import (
    EscapedAddress,
    ForeignFiles,
    OtherTable,
    TableRoot,
    TableShape,
    TableUnavailable,
)
from pyspark_rocketmq.model import QueueId, QueueRange

pytest.importorskip("deltalake")

from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.transaction import AddAction
from spark_kit.delta_files import LOG, PROPERTIES, QUEUE, Files, change, files_at, read_rows, rows_of, write_ranges

from gantry_pipelines.archive.tables.delta import open_delta

HOURS = pa.timestamp("us", "UTC")


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return files_at(str(tmp_path / "archive"))


def actions_of(root: TableRoot, version: int) -> list[dict[str, Any]]:
    """Return the lines of a version's file."""
    text = Path(root.address, "_delta_log", f"{version:020d}.json").read_text()
    return [json.loads(line) for line in text.splitlines()]


def named(actions: list[dict[str, Any]], kind: str) -> list[Any]:
    return [one[kind] for one in actions if kind in one]


# -- reading -----------------------------------------------------------------------------------------------------------


def test_readers_get_the_rows_of_the_files_with_their_days(files: Files) -> None:
    """pyarrow, DataFusion and DuckDB read every row once, with the day, which is not in the files."""
    import duckdb

    before = {path: path.read_bytes() for path in files.folder.rglob("*.parquet")}
    table = open_delta(files.root, TableShape())
    table.commit(change(files.files))

    assert read_rows(files.root) == rows_of(0, 250)
    scanned: Any = pa.table(DeltaTable(files.root.address).scan())
    assert sorted(scanned.column("offset").to_pylist()) == list(range(250))
    with duckdb.connect() as connection:
        connection.register("rows", DeltaTable(files.root.address).to_pyarrow_dataset())
        by_day = connection.execute(
            'SELECT day, count(*), min("offset"), max(octet_length(body)) FROM rows GROUP BY 1 ORDER BY 1'
        ).fetchall()
        keys = connection.execute("SELECT properties['KEYS'] FROM rows WHERE \"offset\" = 217").fetchall()
    length = len(LOG.row(QUEUE, 249)["body"])
    assert by_day == [(date(2026, 11, 22), 240, 0, length), (date(2026, 11, 23), 10, 240, length)]
    assert keys == [("key-217",)]
    assert {path: path.read_bytes() for path in before} == before
    assert "day" not in pq.read_schema(next(iter(before))).names


def test_filter_by_store_time_or_day_opens_only_matching_files(files: Files) -> None:
    """The statistics are those of the rows, so readers skip files; rows at the limits are found."""
    open_delta(files.root, TableShape()).commit(change(files.files))
    rows = DeltaTable(files.root.address).to_pyarrow_dataset()

    def opened(condition: ds.Expression) -> int:
        return len(list(rows.get_fragments(condition)))

    time_us = ds.field("storeTime")
    first = [pa.scalar(NOON_US + offset * LOG.step_us, HOURS) for offset in range(250)]
    assert len(list(rows.get_fragments())) == 4
    assert opened(time_us == first[0]) == 1 and opened(time_us == first[99]) == 1
    # The library rounds the largest time of a file up to milliseconds.
    after = pa.scalar(NOON_US + 99 * LOG.step_us + 1000, HOURS)
    assert opened((time_us > after) & (time_us < first[100])) == 0
    assert opened(time_us >= first[199]) == 3
    assert [opened(ds.field("offset") == offset) for offset in (0, 99, 100, 239, 240, 249)] == [1] * 6
    assert opened(ds.field("offset") == 250) == 0
    assert opened(ds.field("day") == pa.scalar(date(2026, 11, 23))) == 1
    assert rows.to_table(filter=time_us == first[99]).column("offset").to_pylist() == [99]


def test_table_needs_the_oldest_protocol_and_has_times_in_utc(files: Files) -> None:
    """No table feature is needed: `timestamp` has a time zone, which `timestamp_ntz` has not."""
    open_delta(files.root, TableShape()).commit(change(files.files))

    table = DeltaTable(files.root.address)
    protocol = table.protocol()
    types = {field["name"]: field["type"] for field in json.loads(table.schema().to_json())["fields"]}
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)
    assert not protocol.reader_features and not protocol.writer_features
    assert (types["storeTime"], types["bornTime"], types["day"]) == ("timestamp", "timestamp", "date")
    assert (types["body"], types["properties"]["type"]) == ("binary", "map")
    assert table.metadata().partition_columns == ["day"]


# -- versions ----------------------------------------------------------------------------------------------------------


def test_new_table_is_empty_and_remains_after_reopening(files: Files) -> None:
    """The first use creates version 0 without files or properties; a second open does not create another."""
    table = open_delta(files.root, TableShape())

    assert (table.paths(), dict(table.properties())) == (frozenset(), {})
    again = open_delta(files.root, TableShape())
    assert again.paths() == frozenset()
    assert DeltaTable(files.root.address).version() == 0 and read_rows(files.root) == []


def test_commit_adds_and_removes_exactly_the_named_files_in_one_version(files: Files) -> None:
    """Other files of the same day and queue stay, and a reader of the version before still reads the removed file."""
    table = open_delta(files.root, TableShape())
    table.commit(change(files.files[:2]))
    table.commit(change(files.files[2:], files.files[:1], {"gantry.ends": "second", "other": "x"}))

    assert DeltaTable(files.root.address).version() == 2
    assert table.paths() == {one.path for one in files.files[1:]}
    assert open_delta(files.root, TableShape()).paths() == table.paths()
    assert read_rows(files.root) == rows_of(100, 250)
    assert read_rows(files.root, version=1) == rows_of(0, 200)
    assert dict(table.properties()) == {"gantry.ends": "second"}
    (files.folder / files.files[0].path).unlink()
    assert read_rows(files.root) == rows_of(100, 250)


def test_version_of_a_compaction_changes_no_data(files: Files) -> None:
    """Files that replace others with the same offsets are marked, so that streams do not read messages again."""
    first, second, third, other_day = files.files
    [merged] = files.write([QueueRange(QUEUE, 0, 200)])
    table = open_delta(files.root, TableShape())
    table.commit(change(files.files[:3]))
    table.commit(change([merged, other_day], [first, second]))
    table.commit(change([], [merged]))

    compaction, expiry = actions_of(files.root, 2), actions_of(files.root, 3)
    assert {one["path"]: one["dataChange"] for one in named(compaction, "add")} == {
        merged.path: False,
        other_day.path: True,
    }
    assert [one["dataChange"] for one in named(compaction, "remove")] == [False, False]
    assert [one["dataChange"] for one in named(expiry, "remove")] == [True]
    assert {one["partitionValues"]["day"] for one in named(compaction, "remove")} == {"2026-11-22"}
    assert table.paths() == {third.path, other_day.path}


def test_replacement_by_fewer_offsets_changes_data(files: Files) -> None:
    """A replacement with a gap is no compaction, even with as many rows."""
    first, second = files.files[:2]
    parts = files.write([QueueRange(QUEUE, 0, 100), QueueRange(QUEUE, 200, 230)])
    table = open_delta(files.root, TableShape())
    table.commit(change([first, second]))
    table.commit(change([parts[1]], [second]))

    changed = named(actions_of(files.root, 2), "add") + named(actions_of(files.root, 2), "remove")
    assert [one["dataChange"] for one in changed] == [True, True]


def test_removal_of_an_unknown_file_is_refused(files: Files) -> None:
    """A caller with an outdated list of files makes no version."""
    table = open_delta(files.root, TableShape())
    table.commit(change(files.files[:1]))

    with pytest.raises(TableUnavailable, match="another writer has changed it"):
        table.commit(change(files.files[1:2], files.files[2:3]))
    assert table.paths() == {files.files[0].path}


def test_properties_are_found_behind_versions_of_others(files: Files) -> None:
    """A version without our properties, such as one of a maintenance job, does not hide them."""
    table = open_delta(files.root, TableShape())
    table.commit(change(files.files))
    other = DeltaTable(files.root.address)
    for number in range(3):
        other.alter.set_table_properties({"delta.logRetentionDuration": f"interval {number + 1} days"})
    table.paths()
    table.commit(change([], files.files[:1], {"x": "without ours"}))

    assert dict(table.properties()) == PROPERTIES == dict(open_delta(files.root, TableShape()).properties())


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("broker", ["a%2Fb", "bro ker+:é=~", "%RETRY%a", "_b#?&", "day=2026-01-01"])
def test_unusual_broker_names_are_added_read_and_removed(tmp_path: Path, broker: str) -> None:
    """The log encodes the percent signs of file names again, in all actions, also in a checkpoint."""
    queue = QueueId("orders", broker, 3)
    files = files_at(str(tmp_path / "archive"), queue)
    table = open_delta(files.root, TableShape())
    table.commit(change(files.files))
    assert table.paths() == {one.path for one in files.files}
    assert all((files.folder / path).exists() for path in table.paths())
    assert read_rows(files.root) == rows_of(0, 250, queue)
    assert pa.table(DeltaTable(files.root.address).scan()).num_rows == 250

    DeltaTable(files.root.address).create_checkpoint()
    (files.folder / "_delta_log" / f"{0:020d}.json").unlink()
    again = open_delta(files.root, TableShape())
    again.commit(change([], files.files[1:]))

    assert again.paths() == {files.files[0].path}
    assert read_rows(files.root) == rows_of(0, 100, queue)


@pytest.mark.parametrize("name", ["plain", "with space", "a|b+c&d", "é", "100%", "%RETRY%xy", "a#b"])
def test_root_with_unusual_characters_is_usable(tmp_path: Path, name: str) -> None:
    """Characters that are no percent-encoding are found again."""
    files = files_at(str(tmp_path / name))
    table = open_delta(files.root, TableShape())
    table.commit(change(files.files))

    assert open_delta(files.root, TableShape()).paths() == {one.path for one in files.files}
    assert read_rows(files.root) == rows_of(0, 250)


@pytest.mark.parametrize("topic", ["%RETRY%group", "a|b", "_x"])
def test_percent_encoded_root_is_refused(tmp_path: Path, topic: str) -> None:
    """Readers decode the root once too often, so such a table would be created and not be found. It can be dropped."""
    files = files_at(str(tmp_path / "archive"), QueueId(topic, "broker-a", 0))
    table = open_delta(files.root, TableShape())

    with pytest.raises(EscapedAddress, match="percent-encoded"):
        table.paths()
    with pytest.raises(EscapedAddress):
        table.commit(change(files.files))
    table.drop()
    assert not (files.folder / "_delta_log").exists()


# -- foreign tables ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/elsewhere/x.parquet", "s3://bucket/x.parquet", "../x.parquet", "day=2026-11-22/part-0.snappy.parquet"]
)
def test_foreign_file_is_refused(files: Files, path: str) -> None:
    """A file that is absolute, outside of the root, or not named by the archive, blocks paths and removals."""
    table = open_delta(files.root, TableShape())
    table.commit(change(files.files))
    other = DeltaTable(files.root.address)
    action = AddAction(path, 1, {"day": "2026-11-22"}, 0, True, '{"numRecords": 1}')
    other.create_write_transaction([action], "append", other.schema(), ["day"])

    for one in (table, open_delta(files.root, TableShape())):
        with pytest.raises(ForeignFiles, match=r"x\.parquet|part-0"):
            one.paths()
        with pytest.raises(TableUnavailable if one is table else ForeignFiles):
            one.commit(change([], files.files[:1]))


def test_columns_that_the_archive_has_and_the_table_lacks_are_added(tmp_path: Path) -> None:
    """Rows of older files have null in new columns, and a second open adds nothing."""
    fewer = tuple(name for name in ALL_COLUMNS if name not in ("body", "properties", "keys"))
    files = files_at(str(tmp_path / "archive"), columns=fewer)
    open_delta(files.root, TableShape(fewer)).commit(change(files.files[:2]))
    newer = write_ranges(storage_of(str(tmp_path / "archive")), "orders", [QueueRange(QUEUE, 200, 240)])
    wider = open_delta(files.root, TableShape())
    wider.commit(change(newer))

    rows = read_rows(files.root)
    assert [(row["body"], row["keys"], row["properties"]) for row in rows[:200]] == [(None, None, None)] * 200
    assert rows[200:] == rows_of(200, 240) and len(rows) == 240
    version = DeltaTable(files.root.address).version()
    assert open_delta(files.root, TableShape()).paths() == wider.paths()
    assert DeltaTable(files.root.address).version() == version
    with pytest.raises(OtherTable, match="has the column body, which the archive does not have"):
        open_delta(files.root, TableShape(tuple(name for name in ALL_COLUMNS if name != "body"))).paths()


@pytest.mark.parametrize(
    ("fields", "partitions", "text"),
    [
        ([("offset", pa.int32()), ("day", pa.date32())], ["day"], "column .*offset.*integer.*expected .*long"),
        ([pa.field("offset", pa.int64(), nullable=False), ("day", pa.date32())], ["day"], "offset.*false.*expected"),
        ([("storeTime", pa.timestamp("us")), ("day", pa.date32())], ["day"], "storeTime.*timestamp_ntz"),
        ([("offset", pa.int64()), ("day", pa.string())], ["day"], "day.*string.*expected .*date"),
        ([("offset", pa.int64()), ("day", pa.date32())], [], r"partitions \[\], expected \['day'\]"),
        ([("offset", pa.int64()), ("x", pa.int64()), ("day", pa.date32())], ["day"], "column x, which"),
    ],
    ids=["type", "not null", "time zone", "day", "partitions", "column"],
)
def test_other_table_is_refused_and_can_be_dropped(
    files: Files, fields: list[Any], partitions: list[str], text: str
) -> None:
    """Types and partitions are those of the archive; after `drop` the table is created again."""
    DeltaTable.create(files.root.address, Schema.from_arrow(pa.schema(fields)), partition_by=partitions)

    table = open_delta(files.root, TableShape())
    with pytest.raises(OtherTable, match=text):
        table.commit(change(files.files))
    table.drop()
    table.commit(change(files.files))

    assert read_rows(files.root) == rows_of(0, 250)


def test_drop_deletes_only_the_log(files: Files) -> None:
    """Data files stay; a dropped table is empty again, and dropping no table is no error."""
    table = open_delta(files.root, TableShape())
    table.drop()
    table.commit(change(files.files))
    (files.folder / "removed.json").write_text("{}")
    assert len(table.paths()) == 4
    table.drop()

    left = {path.relative_to(files.folder).as_posix() for path in files.folder.rglob("*") if path.is_file()}
    assert left == {one.path for one in files.files} | {"removed.json"}
    assert table.paths() == frozenset() and dict(table.properties()) == {}
    table.commit(change(files.files[:1]))
    assert read_rows(files.root) == rows_of(0, 100)


def test_damaged_log_is_reported_in_one_line_and_can_be_dropped(files: Files) -> None:
    """The library's error becomes a TableUnavailable that names the table and the remedy."""
    open_delta(files.root, TableShape()).commit(change(files.files))
    version = files.folder / "_delta_log" / f"{1:020d}.json"
    version.write_text(version.read_text()[:700])

    table = open_delta(files.root, TableShape())
    with pytest.raises(TableUnavailable, match="publish it again: gantry pipeline tables --set rebuild=true") as error:
        table.paths()
    assert files.root.address in str(error.value) and "\n" not in str(error.value) and len(str(error.value)) < 700
    assert error.value.__cause__ is not None
    table.drop()
    assert table.paths() == frozenset()


def test_file_in_place_of_the_root_is_unavailable(tmp_path: Path) -> None:
    """An error of the file system becomes a TableUnavailable."""
    (tmp_path / "file").write_text("")

    with pytest.raises(TableUnavailable):
        open_delta(TableRoot("orders", str(tmp_path / "file" / "x")), TableShape()).paths()


def test_change_of_another_writer_is_noticed(files: Files) -> None:
    """A commit is the difference to the state that was read: on another state it is refused, until it is read."""
    table, other = open_delta(files.root, TableShape()), open_delta(files.root, TableShape())
    table.commit(change(files.files[:1]))
    other.commit(change(files.files[1:2]))
    table.expire(0)

    for _ in range(2):
        with pytest.raises(TableUnavailable, match="another writer has changed it: it has the version 2, expected 1"):
            table.commit(change(files.files[1:3]))

    assert table.paths() == {one.path for one in files.files[:2]}
    table.commit(change(files.files[2:]))
    assert read_rows(files.root) == rows_of(0, 250)


def test_change_of_another_writer_during_a_commit_is_not_passed(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library does not commit after a version that the publisher has not read."""
    table, other = open_delta(files.root, TableShape()), open_delta(files.root, TableShape())
    table.commit(change(files.files[:1]))
    create = DeltaTable.create_write_transaction

    def create_late(self: DeltaTable, *arguments: Any, **options: Any) -> None:
        monkeypatch.setattr(DeltaTable, "create_write_transaction", create)
        other.commit(change(files.files[1:2]))
        create(self, *arguments, **options)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", create_late)
    with pytest.raises(TableUnavailable, match="another writer has changed it"):
        table.commit(change(files.files[1:3]))

    assert table.paths() == {one.path for one in files.files[:2]}


def test_foreign_append_is_not_lost(files: Files) -> None:
    """A version that another program adds between two commits is seen by the next call."""
    table = open_delta(files.root, TableShape())
    table.commit(change(files.files[:1]))
    rows = pa.table({"offset": pa.array([7], pa.int64()), "day": pa.array([date(2026, 1, 1)])})
    write_deltalake(files.root.address, rows, mode="append", schema_mode="merge")

    with pytest.raises(TableUnavailable, match="another writer has changed it"):
        table.commit(change(files.files[1:2]))
    with pytest.raises(ForeignFiles):
        table.paths()
