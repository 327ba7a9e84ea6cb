"""Kills between any two steps of a publication. At any time each table has each row at most once, and only rows of the
log; after the next start all tables have every row once."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

from spark_kit.table_trial import BEGINNING, BOTH, LATER_MS, LOG, all_rows, faults_of_tables
from spark_kit.toy_run import ToyRun, lose_checkpoint

from gantry_pipelines.archive import crash_points
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
