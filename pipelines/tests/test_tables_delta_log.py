"""The log of a Delta table: old versions expire, a kill leaves it whole, and an object store needs no other lock."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from spark_kit.object_store import KEYS, ObjectStore
from spark_kit.toy_log import NOON_US

from gantry_pipelines.archive.layout import Place
from gantry_pipelines.archive.tables.model import TableFile, TableRoot, TableShape, TableUnavailable
from pyspark_rocketmq.model import QueueRange

pytest.importorskip("deltalake")

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from spark_kit.delta_files import QUEUE, Files, change, files_at, read_rows, rows_of

from gantry_pipelines.archive.tables import delta
from gantry_pipelines.archive.tables.delta import open_delta, storage_options


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return files_at(str(tmp_path / "archive"))


# -- metadata ----------------------------------------------------------------------------------------------------------


def log_names(files: Files) -> list[str]:
    return sorted(os.listdir(files.folder / "_delta_log"))


def test_expiry_deletes_metadata_of_old_versions_and_no_data(files: Files) -> None:
    """Versions that were the newest at or after the time stay readable; the others are gone."""
    table = open_delta(files.root, TableShape())
    for one in files.files[:3]:
        table.commit(change([one]))
    middle_ms = DeltaTable(files.root.address).history(1)[0]["timestamp"] + 1
    table.expire(middle_ms)
    table.commit(change([files.files[3]], files.files[:1], {"gantry.ends": "last"}))
    table.expire(middle_ms)

    assert log_names(files)[0] == f"{3:020d}.checkpoint.parquet"
    assert read_rows(files.root, version=3) == rows_of(0, 240)
    assert read_rows(files.root) == rows_of(100, 250)
    with pytest.raises(Exception, match=r"(?i)version|log"):
        DeltaTable(files.root.address, version=2)
    table.expire(time.time_ns() // 1_000_000 + 1000)
    assert log_names(files) == [f"{4:020d}.checkpoint.parquet", f"{4:020d}.json", "_last_checkpoint"]
    again = open_delta(files.root, TableShape())
    assert again.paths() == {one.path for one in files.files[1:]}
    assert dict(again.properties()) == {"gantry.ends": "last"}
    assert all((files.folder / one.path).exists() for one in files.files)
    (files.folder / files.files[0].path).unlink()
    assert read_rows(files.root) == rows_of(100, 250)


def test_expiry_keeps_recent_versions(files: Files) -> None:
    """A time before all versions deletes nothing, and makes no checkpoint."""
    table = open_delta(files.root, TableShape())
    table.commit(change(files.files))
    before = log_names(files)
    table.expire(0)

    assert log_names(files) == before == [f"{0:020d}.json", f"{1:020d}.json"]


def test_expiry_continues_after_the_cleanup_of_another_program(files: Files) -> None:
    """A checkpoint whose version file was deleted is old, and what is before it is deleted."""
    table = open_delta(files.root, TableShape())
    table.commit(change(files.files[:1]))
    DeltaTable(files.root.address).create_checkpoint()
    table.commit(change(files.files[1:2]))
    (files.folder / "_delta_log" / f"{1:020d}.json").unlink()
    open_delta(files.root, TableShape()).expire(1)

    assert log_names(files) == [f"{1:020d}.checkpoint.parquet", f"{2:020d}.json", "_last_checkpoint"]
    assert read_rows(files.root) == rows_of(0, 200)


def test_checkpoints_are_made_at_the_interval(files: Files) -> None:
    """Readers open one checkpoint and few versions; the files of versions before it stay until they expire."""
    table = open_delta(files.root, TableShape())
    for number in range(delta.CHECKPOINT_INTERVAL + 1):
        table.commit(change(files.files) if number % 2 == 0 else change([], files.files))

    names = log_names(files)
    assert [name for name in names if "checkpoint" in name][1:] == ["_last_checkpoint"]
    assert names[0] == f"{0:020d}.json"
    assert read_rows(files.root) == []
    assert read_rows(files.root, version=1) == rows_of(0, 250)


def test_table_of_many_files_is_read_at_once(files: Files) -> None:
    """The paths of thousands of files are read from the log, and none of the files."""
    table = open_delta(files.root, TableShape())
    places = [
        TableFile(Place(QueueRange(QUEUE, number, number + 1), "2026-11-22"), 1, 100, NOON_US, NOON_US)
        for number in range(5000)
    ]
    table.commit(change(places))

    assert len(open_delta(files.root, TableShape()).paths()) == 5000


# -- kills -------------------------------------------------------------------------------------------------------------


def commit_forever(root: TableRoot, files: list[TableFile], ready: Any) -> None:
    """Bring the table to the state of the next turn, as a publication does, until the process is killed."""
    table = open_delta(root, TableShape())
    turn = int(table.properties().get("gantry.turn", "0"))
    while True:
        turn += 1
        wanted = {file.path: file for index, file in enumerate(files) if (turn >> index) & 1}
        known = table.paths()
        add = [file for path, file in wanted.items() if path not in known]
        removed = [file for file in files if file.path in known - wanted.keys()]
        table.commit(change(add, removed, {"gantry.turn": str(turn)}))
        if turn % 7 == 0:
            table.expire(time.time_ns() // 1_000_000 - 50)
        ready.set()


@pytest.mark.verify
def test_table_is_whole_after_a_kill_at_any_moment(tmp_path: Path) -> None:
    """After each of twenty kills the newest version has the files of its turn, and the next process continues there."""
    files = files_at(str(tmp_path / "archive"))
    context: Any = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["gantry_pipelines.archive.tables.delta", "pyarrow.dataset"])
    chance = random.Random(7)
    turns = []
    for _ in range(20):
        ready = context.Event()
        process = context.Process(target=commit_forever, args=(files.root, files.files, ready))
        process.start()
        assert ready.wait(60)
        time.sleep(chance.uniform(0, 0.2))
        process.kill()
        process.join()
        table = open_delta(files.root, TableShape())
        turn = int(table.properties()["gantry.turn"])
        expected = [file for index, file in enumerate(files.files) if (turn >> index) & 1]
        assert table.paths() == {file.path for file in expected}
        offsets = [row["offset"] for row in read_rows(files.root)]
        assert offsets == [n for one in expected for n in range(one.place.range.begin, one.place.range.end)]
        turns.append(turn)

    assert turns == sorted(turns) and turns[-1] >= 20


@pytest.mark.parametrize("left", ["folder", "temporary file"])
def test_creation_that_was_killed_is_completed(files: Files, left: str) -> None:
    """An empty log, or one with the file of an interrupted write, becomes version 0."""
    (files.folder / "_delta_log").mkdir()
    if left == "temporary file":
        (files.folder / "_delta_log" / f"{0:020d}.json#1").write_text('{"protocol"')

    table = open_delta(files.root, TableShape())
    table.commit(change(files.files))
    assert read_rows(files.root) == rows_of(0, 250)


def test_version_in_a_folder_is_synced_before_commit_returns(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library does not sync: the version's file and its folder are synced, also that of a killed writer."""
    synced: list[str] = []
    monkeypatch.setattr(delta, "sync_file", lambda path: synced.append(path.name))
    monkeypatch.setattr(delta, "sync_folder", lambda path: synced.append(path.name))
    table = open_delta(files.root, TableShape())
    table.commit(change(files.files[:2]))
    assert [name for name in synced if name.endswith(".json")] == [f"{0:020d}.json", f"{1:020d}.json"]
    assert synced[-2:] == ["_delta_log", files.folder.name]

    synced.clear()
    open_delta(files.root, TableShape()).paths()
    assert synced == [f"{1:020d}.json", "_delta_log", files.folder.name]
    synced.clear()
    table.expire(time.time_ns() // 1_000_000 + 1000)
    assert {f"{1:020d}.checkpoint.parquet", "_last_checkpoint"} <= set(synced)


# -- object stores -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"endpoint_override": "127.0.0.1:9000", "scheme": "http", "region": "eu-west-1"},
            {"AWS_ENDPOINT_URL": "http://127.0.0.1:9000", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "eu-west-1"},
        ),
        ({"endpoint_override": "https://s3.example"}, {"AWS_ENDPOINT_URL": "https://s3.example"}),
        ({"endpoint_override": "s3.example"}, {"AWS_ENDPOINT_URL": "https://s3.example"}),
        ({"force_virtual_addressing": "true"}, {"AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true"}),
        ({}, {}),
    ],
    ids=["http", "https", "host", "virtual", "none"],
)
def test_options_of_the_destination_are_those_of_the_store(options: dict[str, str], expected: dict[str, str]) -> None:
    """The query of a destination means the same to both clients; a folder has no options."""
    found = storage_options(TableRoot("orders", "s3://bucket/x", options))
    assert {key: value for key, value in found.items() if key.startswith("AWS_")} == expected
    assert storage_options(TableRoot("orders", "/data/x", options)) == {}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    store = ObjectStore(tmp_path_factory.mktemp("objects") / "buckets")
    store.start()
    try:
        yield store
    finally:
        store.kill()


@pytest.fixture
def stored(server: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    return files_at(server.address(tmp_path.name))


@pytest.mark.needs_object_store
def test_table_in_an_object_store_is_committed_expired_and_dropped(
    server: ObjectStore, stored: Files, tmp_path: Path
) -> None:
    """The log is written with conditional PUTs, beside the objects, and deleted without them."""
    table = open_delta(stored.root, TableShape())
    table.commit(change(stored.files[:2]))
    table.commit(change(stored.files[2:], stored.files[:1]))
    again = open_delta(stored.root, TableShape())

    assert again.paths() == {one.path for one in stored.files[1:]}
    assert read_rows(stored.root) == rows_of(100, 250)
    assert read_rows(stored.root, version=1) == rows_of(0, 200)
    again.expire(time.time_ns() // 1_000_000 + 1000)
    log = {name for name in server.files(tmp_path.name) if "_delta_log" in name}
    assert {Path(name).name for name in log} == {
        f"{2:020d}.checkpoint.parquet",
        f"{2:020d}.json",
        "_last_checkpoint",
    }
    again.drop()
    assert {name.removeprefix("data/topic=orders/") for name in server.files(tmp_path.name)} == {
        one.path for one in stored.files
    }


@pytest.mark.needs_object_store
def test_version_of_another_writer_is_not_overwritten(stored: Files) -> None:
    """Of two writers that begin at the same version one makes the next: the PUT of the other is refused."""
    one, other = open_delta(stored.root, TableShape()), open_delta(stored.root, TableShape())
    one.paths()
    other.paths()
    stale = DeltaTable(stored.root.address, storage_options=storage_options(stored.root))
    one.commit(change(stored.files[:1]))
    with pytest.raises(CommitFailedError):
        other._write(stale, delta._actions_of("orders", change(stored.files[1:]), {}, 1), {})

    assert one.paths() == {stored.files[0].path}


@pytest.mark.needs_object_store
def test_unavailable_store_is_reported_in_one_line(stored: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unavailable store is a TableUnavailable, which the next publication tries again."""
    monkeypatch.setattr(delta, "_STORE_LIMITS", {"max_retries": "1", "retry_timeout": "1s"})
    root = TableRoot("orders", stored.root.address, {**stored.root.options, "endpoint_override": "127.0.0.1:9"})

    with pytest.raises(TableUnavailable, match=r"127\.0\.0\.1:9") as error:
        open_delta(root, TableShape()).paths()
    assert "\n" not in str(error.value) and "\x1b" not in str(error.value)
