"""Kills between any two steps of a publication. At any time each table has each row at most once, and only rows of the
log; after the next start all tables have every row once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

from spark_kit.object_store import KEYS, ObjectStore
from spark_kit.table_trial import BEGINNING, BOTH, LAST_DAY, LATER_MS, LOG, all_rows, faults_of_tables, rows_of_day
from spark_kit.toy_run import ToyRun, days_later_ms, lose_checkpoint

from gantry_pipelines.archive import crash_points
from gantry_pipelines.archive.object_storage import storage_of
from gantry_pipelines.archive.storage import Folder
from gantry_pipelines.archive.verification import verify


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize("nth", [1, 4])
@pytest.mark.parametrize("point", [crash_points.BEFORE_TABLE, crash_points.AFTER_TABLE, crash_points.MID_BATCH])
def test_publication_that_was_killed_is_completed_by_the_next_one(tmp_path: Path, point: str, nth: int) -> None:
    """The tables may differ from each other after the kill, but none has lost a row that it had."""
    root = tmp_path / "archive"

    assert ToyRun(str(root), BEGINNING, tables=BOTH).run_process() == 0
    killed = ToyRun(str(root), LOG, rows_max=70, crash_at=(point, nth), tables=BOTH).run_process()
    after_kill = faults_of_tables(Folder(str(root)), all_rows(BEGINNING))
    ended = ToyRun(str(root), LOG, rows_max=70, tables=BOTH).run_process()

    assert (killed, ended) == (-signal.SIGKILL, 0)
    assert after_kill == []
    assert faults_of_tables(Folder(str(root)), all_rows()) == []


@pytest.mark.verify
@pytest.mark.parametrize(
    "point",
    [crash_points.AFTER_MERGE, crash_points.AFTER_EXCHANGE, crash_points.BEFORE_TABLE, crash_points.AFTER_TABLE],
)
def test_compaction_that_was_killed_shows_each_row_once(tmp_path: Path, point: str) -> None:
    """Tables that still have the old files can read them: they are not deleted with the folder that was exchanged."""
    root = tmp_path / "archive"
    assert ToyRun(str(root), LOG, rows_max=150, tables=BOTH).run_process() == 0

    killed = ToyRun(
        str(root), LOG, is_compacting=True, now_ms=LATER_MS, crash_at=(point, 1), tables=BOTH
    ).run_process()  # fmt: skip
    after_kill = faults_of_tables(Folder(str(root)), all_rows())
    ended = ToyRun(str(root), LOG, is_compacting=True, now_ms=LATER_MS, tables=BOTH).run_process()

    assert (killed, ended) == (-signal.SIGKILL, 0)
    assert after_kill == []
    assert faults_of_tables(Folder(str(root)), all_rows()) == []
    assert verify(Folder(str(root)), is_deep=True).findings == ()


@pytest.mark.verify
def test_tables_without_links_lose_the_rows_of_a_compacted_day(tmp_path: Path) -> None:
    """The twin: the tables name the files in `data`, which a compaction takes away before it publishes the new ones."""
    root = tmp_path / "archive"
    assert ToyRun(str(root), LOG, rows_max=150, tables=BOTH, removed_guard="links").run_process() == 0

    killed = ToyRun(
        str(root), LOG, is_compacting=True, now_ms=LATER_MS, tables=BOTH, removed_guard="links",
        crash_at=(crash_points.AFTER_EXCHANGE, 1),
    ).run_process()  # fmt: skip

    assert killed == -signal.SIGKILL
    assert faults_of_tables(Folder(str(root)), all_rows(), links=False) != []


@pytest.mark.verify
def test_publication_that_does_not_read_the_tables_adds_rows_twice(tmp_path: Path) -> None:
    """The twin: a publisher that does not read the tables repeats what a killed one has committed."""
    root = tmp_path / "archive"

    killed = ToyRun(
        str(root), LOG, rows_max=150, crash_at=(crash_points.AFTER_TABLE, 1), tables=BOTH
    ).run_process()  # fmt: skip
    lose_checkpoint(root)
    ended = ToyRun(str(root), LOG, tables=BOTH, removed_guard="difference").run_process()

    assert (killed, ended) == (-signal.SIGKILL, 0)
    assert any("doubled" in fault for fault in faults_of_tables(Folder(str(root)), all_rows()))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    store = ObjectStore(tmp_path_factory.mktemp("objects") / "buckets")
    store.start()
    try:
        yield store
    finally:
        store.kill()


@pytest.mark.verify
@pytest.mark.needs_object_store
@pytest.mark.parametrize("guard", ["", "expiry"], ids=["shipped", "twin"])
def test_killed_expiry_on_an_object_store_deletes_no_file_of_a_table(
    server: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guard: str
) -> None:
    """The next start is killed before it has published. In the twin it has deleted the files of expired days."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    toy_run = ToyRun(
        str(tmp_path / "archive"), LOG, destination=server.address(f"{tmp_path.name}{guard}"), environment=KEYS,
        tables=BOTH, removed_guard=guard,
    )  # fmt: skip
    storage = storage_of(toy_run.destination)
    assert toy_run.run_process() == 0
    expiring = replace(toy_run, expire_days=3, now_ms=days_later_ms("2026-11-22", 3))

    killed = replace(expiring, crash_at=(crash_points.MID_EXPIRY, 2)).run_process()
    after_kill = faults_of_tables(storage, all_rows())
    killed_again = replace(expiring, crash_at=(crash_points.BEFORE_TABLE, 1)).run_process()
    after_start = faults_of_tables(storage, all_rows())

    assert (killed, killed_again) == (-signal.SIGKILL, -signal.SIGKILL)
    assert after_kill == []
    assert (after_start == []) is (not guard)
    if not guard:
        for point in (crash_points.AFTER_TABLE, crash_points.MID_DELETION):
            assert replace(expiring, crash_at=(point, 1)).run_process() == -signal.SIGKILL
            assert faults_of_tables(storage) == []
        assert expiring.run_process() == 0
        assert faults_of_tables(storage, rows_of_day(LAST_DAY)) == []
        assert verify(storage).findings == ()
        assert not [path for path in storage.paths("data") if "day=2026-11-22" in path]
