"""Expiry of published files on an object store, whose tables name the files in `data`: a file is deleted when no newest
snapshot names it, also after a kill, and at once without tables. The tables are in memory here."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("pyspark")

from spark_kit.memory_tables import MemoryTables
from spark_kit.toy_archive import archive_new_messages
from spark_kit.toy_log import HOUR_US, ToyLog
from spark_kit.toy_run import GRID_ROWS, days_later_ms
from spark_kit.visible_folder import NoLock, VisibleFolder

from gantry_pipelines.archive import job
from gantry_pipelines.archive.compaction import expire
from gantry_pipelines.archive.format import ArchiveFormat
from gantry_pipelines.archive.job import ArchiveRun
from gantry_pipelines.archive.layout import Partition
from gantry_pipelines.archive.manifest import Manifest
from gantry_pipelines.archive.manifest_reader import read_manifest
from gantry_pipelines.archive.settings import ArchiveParameters, TableParameters
from gantry_pipelines.archive.storage import Folder
from gantry_pipelines.archive.tables import reported_publication
from gantry_pipelines.archive.tables.publication import TablePublisher
from gantry_pipelines.archive.tables.reported_publication import ReportedPublication
from gantry_pipelines.archive.verification import verify
from gantry_pipelines.archive.writer import ArchiveWriter
from gantry_pipelines.reporting import Reporter
from gantry_spec.pipelines.parts import TableFormat
from pyspark_rocketmq.model import QueueId

ORDERS = QueueId("orders", "broker-a", 0)
BILLS = QueueId("bills", "broker-b", 1)
LOG = ToyLog({ORDERS: 350, BILLS: 30}, step_us=HOUR_US // 10)
FIRST_DAY_MS, SECOND_DAY_MS = days_later_ms("2026-11-22", 1), days_later_ms("2026-11-23", 1)
DELTA = TableParameters((TableFormat.DELTA,))


@pytest.fixture
def storage(tmp_path: Path) -> VisibleFolder:
    return VisibleFolder(str(tmp_path))


@pytest.fixture
def tables() -> MemoryTables:
    return MemoryTables()


@pytest.fixture
def writer(storage: VisibleFolder) -> ArchiveWriter:
    """The writer of an archive of the log; a test that opens another one stands for a kill of this one."""
    writer = open_writer(storage)
    archive_new_messages(LOG, writer)
    return writer


def open_writer(storage: VisibleFolder) -> ArchiveWriter:
    return ArchiveWriter.open(storage, ArchiveFormat(GRID_ROWS), NoLock())


def publication_of(
    writer: ArchiveWriter, tables: MemoryTables, monkeypatch: pytest.MonkeyPatch, parameters: TableParameters = DELTA
) -> ReportedPublication:
    """Return the publication of a job, to tables in memory."""
    monkeypatch.setattr(
        reported_publication, "TablePublisher", lambda writer, parameters: TablePublisher(writer, parameters, tables)
    )
    return ReportedPublication(writer, parameters, Reporter("archive"))


def missing_files(storage: VisibleFolder, tables: MemoryTables) -> list[str]:
    """Return the files that the tables name and that cannot be opened."""
    files = [file for table in tables.by_topic.values() for file in table.files.values()]
    return [file.path for file in files if storage.size(file.place.path) is None]


def days_of(storage: VisibleFolder) -> set[str]:
    """Return the topics and days that have files."""
    return {"/".join(path.split("/")[1:3]) for path in storage.paths("data")}


def test_expired_files_are_deleted_when_the_tables_are_published_without_them(
    writer: ArchiveWriter, storage: VisibleFolder, tables: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table of a topic without any files stays, and is empty."""
    publication = publication_of(writer, tables, monkeypatch)
    publication.publish()

    expired = list(expire(writer, 1, FIRST_DAY_MS))
    marked = days_of(storage)
    publication.delete_expired_files()

    assert expired == [("bills", Partition("2026-11-22"), 1), ("orders", Partition("2026-11-22"), 2)]
    assert marked == {"topic=bills/day=2026-11-22", "topic=orders/day=2026-11-22", "topic=orders/day=2026-11-23"}
    assert days_of(storage) == {"topic=orders/day=2026-11-23"}
    assert not tables.by_topic["bills"].files and tables.by_topic["orders"].files
    assert missing_files(storage, tables) == []
    assert read_manifest(storage).expired_files() == [] and read_manifest(storage).ends() == LOG.ends
    assert verify(storage).findings == ()


@pytest.mark.parametrize("has_guard", [True, False], ids=["shipped", "twin"])
def test_expired_files_wait_while_their_table_is_unavailable(
    writer: ArchiveWriter,
    storage: VisibleFolder,
    tables: MemoryTables,
    monkeypatch: pytest.MonkeyPatch,
    has_guard: bool,
) -> None:
    """Those of other topics do not wait. The twin deletes them, and the readers of the table fail."""
    if not has_guard:
        monkeypatch.setattr(TablePublisher, "may_name", lambda _self, _file: False)
    publication = publication_of(writer, tables, monkeypatch)
    publication.publish()
    tables.faulty("orders", "refused")

    list(expire(writer, 1, FIRST_DAY_MS))
    publication.delete_expired_files()

    assert (missing_files(storage, tables) == []) is has_guard
    if has_guard:
        assert days_of(storage) == {"topic=orders/day=2026-11-22", "topic=orders/day=2026-11-23"}
        assert len(writer.manifest.expired_files()) == 2
        assert verify(storage).findings == (), "expected files that wait for their deletion to be no fault"
        tables.faulty("orders", "")
        publication.delete_expired_files()
        assert days_of(storage) == {"topic=orders/day=2026-11-23"}
        assert missing_files(storage, tables) == [] and writer.manifest.expired_files() == []


@pytest.mark.parametrize("has_guard", [True, False], ids=["shipped", "twin"])
def test_start_after_a_kill_during_expiry_publishes_before_it_deletes(
    writer: ArchiveWriter,
    storage: VisibleFolder,
    tables: MemoryTables,
    monkeypatch: pytest.MonkeyPatch,
    has_guard: bool,
) -> None:
    """Also if the catalog is unavailable at this start. In the twin recovery deletes them."""
    publication_of(writer, tables, monkeypatch).publish()
    list(expire(writer, 1, FIRST_DAY_MS))
    if not has_guard:
        usual = ArchiveWriter._remove_strays
        monkeypatch.setattr(
            ArchiveWriter, "_remove_strays", lambda self, visible: (usual(self, visible), self.delete_replaced())
        )

    restarted = open_writer(storage)
    publication = publication_of(restarted, tables, monkeypatch)
    tables.faulty("orders", "refused")
    publication.delete_expired_files()

    assert (missing_files(storage, tables) == []) is has_guard
    if has_guard:
        assert "topic=orders/day=2026-11-22" in days_of(storage)
        tables.faulty("orders", "")
        publication.delete_expired_files()
        assert days_of(storage) == {"topic=orders/day=2026-11-23"}
        assert missing_files(storage, tables) == [] and restarted.manifest.faults() == []


def test_maintenance_of_a_job_publishes_before_it_deletes(
    writer: ArchiveWriter, storage: VisibleFolder, tables: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While tables are behind, the manifest has no more of the expired days; the next maintenance deletes the files."""
    publication_of(writer, tables, monkeypatch).publish()
    monkeypatch.setattr(job, "time", SimpleNamespace(time=lambda: FIRST_DAY_MS / 1000, monotonic=time.monotonic))
    parameters = ArchiveParameters(storage.root, retention_days=1, tables=DELTA)
    run = ArchiveRun(parameters, writer, Reporter("archive"))

    tables.faulty("orders", "refused")
    run._run_maintenance(limit=None)
    behind, waiting = missing_files(storage, tables), len(writer.manifest.expired_files())
    tables.faulty("orders", "")
    run._run_maintenance(limit=1)

    assert (behind, waiting) == ([], 2)
    assert {file.place.day for file in writer.manifest.data()} == {"2026-11-23"}
    assert days_of(storage) == {"topic=orders/day=2026-11-23"} and missing_files(storage, tables) == []


def test_summary_of_a_run_names_expired_files_that_wait() -> None:
    """An operator sees why the archive is larger than its retention."""
    totals = {"rows": 0, "files": 0, "bytes": 0, "rows_lost": 0}
    facts = dict.fromkeys(("rowsTotal", "filesTotal", "bytesTotal", "undecodedTotal", "missingFiles"), 0)
    facts |= {"expiredFiles": 2}

    text = job.build_summary(totals, facts, [0])

    assert "2 expired files are not deleted before the tables are published" in text.splitlines()


def test_expired_files_do_not_wait_without_tables(
    writer: ArchiveWriter, storage: VisibleFolder, tables: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables were switched off after a publication: their metadata may name the files for ever."""
    publication_of(writer, tables, monkeypatch).publish()
    list(expire(writer, 1, FIRST_DAY_MS))

    restarted = open_writer(storage)
    publication_of(restarted, tables, monkeypatch, TableParameters()).delete_expired_files()

    assert days_of(storage) == {"topic=orders/day=2026-11-23"}
    assert restarted.manifest.expired_files() == []


def test_files_of_several_expiries_wait_together(
    writer: ArchiveWriter, storage: VisibleFolder, tables: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest record of expired ranges replaces all records that wait, so that none becomes live again."""
    publication = publication_of(writer, tables, monkeypatch)
    publication.publish()
    tables.faulty("orders", "refused")
    for now_ms in (FIRST_DAY_MS, SECOND_DAY_MS):
        list(expire(writer, 1, now_ms))
        publication.delete_expired_files()
    before = read_manifest(storage)

    for record in before.records.values():  # whichever is deleted first
        rest = Manifest({name: one for name, one in before.records.items() if name != record.name})
        assert record.name not in before.replaced or (rest.faults() == [] and rest.data() == [])
    assert len(before.expired_files()) == 5 and missing_files(storage, tables) == []
    tables.faulty("orders", "")
    publication.delete_expired_files()
    assert days_of(storage) == set() and not tables.by_topic["orders"].files
    assert read_manifest(storage).ends() == LOG.ends and open_writer(storage).manifest.faults() == []


def test_record_that_does_not_replace_waiting_ones_would_show_rows_twice(writer: ArchiveWriter) -> None:
    """The twin: without the waiting records in the newest one, they are live when the record between is deleted."""
    for now_ms in (FIRST_DAY_MS, SECOND_DAY_MS):
        list(expire(writer, 1, now_ms))
    records = writer.manifest.records
    first, newest = sorted(
        (one for name, one in records.items() if name.startswith("orders/expired~")), key=lambda one: len(one.replaces)
    )
    waiting = set(first.replaces)
    forgetful = replace(newest, replaces=tuple(name for name in newest.replaces if name not in waiting))
    without_first = {name: one for name, one in records.items() if name != first.name}

    assert waiting and waiting < set(newest.replaces)
    assert Manifest(without_first).faults() == []
    assert "is archived twice" in Manifest({**without_first, newest.name: forgetful}).faults()[0]


def test_folder_deletes_expired_files_at_the_start(tmp_path: Path) -> None:
    """Its tables name links, so that nothing waits."""
    storage = Folder(str(tmp_path))
    with ArchiveWriter.open(storage, ArchiveFormat(GRID_ROWS)) as writer:
        archive_new_messages(LOG, writer)
        list(expire(writer, 1, FIRST_DAY_MS))
        assert not TablePublisher(writer, DELTA, MemoryTables()).may_name(writer.manifest.expired_files()[0])
        waiting = verify(storage).findings

    ArchiveWriter.open(storage).close()

    assert waiting == () == verify(storage).findings
    assert {"/".join(path.split("/")[1:3]) for path in storage.paths("data")} == {"topic=orders/day=2026-11-23"}


def test_start_lists_only_folders_that_it_needs(
    writer: ArchiveWriter, storage: VisibleFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of tables may have far more files than the archive."""
    listed: list[str] = []
    usual = VisibleFolder.paths

    def paths(storage: VisibleFolder, folder: str = "") -> list[str]:
        listed.append(folder)
        return usual(storage, folder)

    monkeypatch.setattr(VisibleFolder, "paths", paths)

    open_writer(storage)
    verify(storage)

    assert set(listed) == {"data", "_staged", "_manifest/records"}
