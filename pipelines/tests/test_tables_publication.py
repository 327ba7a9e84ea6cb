"""The publication of an archive to tables: it makes each table what the manifest says, in one step, also after kills.

The tables are in memory here; those of Iceberg and Delta have tests of their own."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from pathlib import Path

import pytest
from spark_kit.memory_tables import MemoryTable, MemoryTables
from spark_kit.toy_archive import archive_new_messages
from spark_kit.toy_log import HOUR_US, ToyLog
from spark_kit.toy_run import GRID_ROWS, days_later_ms

from gantry_pipelines.archive.compaction import CompactionRules, compact
from gantry_pipelines.archive.errors import FencedOut
from gantry_pipelines.archive.file_writing import Packing
from gantry_pipelines.archive.format import ArchiveFormat
from gantry_pipelines.archive.layout import WRITER
from gantry_pipelines.archive.object_storage import ObjectStorage
from gantry_pipelines.archive.settings import TableParameters
from gantry_pipelines.archive.storage import Folder
from gantry_pipelines.archive.tables import reported_publication
from gantry_pipelines.archive.tables.model import (
    OtherTable,
    TableChange,
    TableError,
    TableUnavailable,
)
from gantry_pipelines.archive.tables.publication import ManifestState, TablePublisher, root_of
from gantry_pipelines.archive.tables.reported_publication import ReportedPublication
from gantry_pipelines.archive.writer import ArchiveWriter
from gantry_pipelines.reporting import Reporter
from gantry_spec.pipelines.parts import TableFormat
from pyspark_rocketmq.model import QueueId

ORDERS = QueueId("orders", "broker-a", 0)
BILLS = QueueId("%RETRY%bills", "broker-b", 1)
LOG = ToyLog({ORDERS: 250, BILLS: 30}, step_us=HOUR_US // 20)
LATER_MS = days_later_ms("2026-11-23", 3)
DELTA = TableParameters((TableFormat.DELTA,), snapshot_age_ms=1000)


@pytest.fixture
def tables() -> MemoryTables:
    return MemoryTables()


@pytest.fixture
def writer(tmp_path: Path) -> ArchiveWriter:
    return ArchiveWriter.open(Folder(str(tmp_path)), ArchiveFormat(GRID_ROWS))


def publisher_of(writer: ArchiveWriter, tables: MemoryTables) -> TablePublisher:
    return TablePublisher(writer, DELTA, tables)


def assert_tables_equal_manifest(writer: ArchiveWriter, tables: MemoryTables) -> None:
    """Check that each table has the live files of its topic, and that all of them can be opened at its root."""
    wanted = {topic: set(files) for topic, files in ManifestState.of(writer.manifest).files.items()}
    assert {topic: set(table.files) for topic, table in tables.by_topic.items() if table.files} == wanted
    for table in tables.by_topic.values():
        for path, file in table.files.items():
            assert Path(table.root.address, path).stat().st_size == file.size_bytes


def links_of(table: MemoryTable) -> list[Path]:
    """Return the links of a table's files."""
    return list(Path(table.root.address).glob("day=*/*"))


def test_each_topic_has_a_table_of_its_files(writer: ArchiveWriter, tables: MemoryTables) -> None:
    """The first publication adds all files in one snapshot; a second one without changes makes none."""
    archive_new_messages(LOG, writer)
    publisher = publisher_of(writer, tables)

    first, second = list(publisher.publish()), list(publisher.publish())

    assert [(one.topic, one.removed) for one in first] == [("%RETRY%bills", 0), ("orders", 0)]
    assert second == []
    assert_tables_equal_manifest(writer, tables)


def test_properties_of_a_snapshot_have_its_ranges_and_the_end_of_the_archive(
    writer: ArchiveWriter, tables: MemoryTables
) -> None:
    """Adjacent files are one range."""
    publisher = publisher_of(writer, tables)
    archive_new_messages(ToyLog({ORDERS: 120}), writer)
    list(publisher.publish())
    archive_new_messages(ToyLog({ORDERS: 350, QueueId("orders", "broker-a", 1): 5}), writer, batch=1)
    list(publisher.publish())

    table = tables.by_topic["orders"]
    assert [json.loads(change.properties["gantry.ranges"]) for change in table.changes] == [
        [["broker-a", 0, 0, 120]],
        [["broker-a", 0, 120, 350], ["broker-a", 1, 0, 5]],
    ]
    assert json.loads(table.properties()["gantry.ends"]) == {"broker-a": {"0": 350, "1": 5}}
    assert table.properties()["gantry.archive"] == writer.format.identity


def test_publication_of_another_process_completes_what_a_kill_has_left(
    writer: ArchiveWriter, tables: MemoryTables
) -> None:
    """A new publisher reads the table: it adds what is missing and removes what the manifest no longer has."""
    archive_new_messages(LOG, writer)
    list(publisher_of(writer, tables).publish())
    table = tables.by_topic["orders"]
    lost, stale = sorted(table.files)[:2]
    stray = table.files.pop(lost)
    table.files["day=2026-01-01/stale.parquet"] = table.files[stale]

    [published] = publisher_of(writer, tables).publish()

    assert (published.added, published.removed) == (1, 1)
    assert table.changes[-1].add == (stray,)
    assert_tables_equal_manifest(writer, tables)


def test_compaction_replaces_files_in_one_snapshot_and_old_ones_stay_readable(
    writer: ArchiveWriter, tables: MemoryTables
) -> None:
    """A reader of the old snapshot opens its files after the exchange; the sweep deletes them when they are old."""
    publisher = publisher_of(writer, tables)
    archive_new_messages(LOG, writer)
    list(publisher.publish())
    table = tables.by_topic["orders"]
    before = set(table.files)

    for _ in compact(writer, CompactionRules(1 << 30, 0), Packing(), LATER_MS):
        list(publisher.publish())
    publisher.sweep(now_ms=10_000)
    publisher.sweep(now_ms=11_000)
    kept = {path for path in before if Path(table.root.address, path).exists()}
    publisher.sweep(now_ms=11_001)

    replaced = before - set(table.files)
    assert len(replaced) == 3 and kept == before, "expected the grid to have cut one day into several files"
    assert {path for path in before if Path(table.root.address, path).exists()} == before - replaced
    assert all(change.add for change in table.changes), "expected new and old files to be exchanged in one snapshot"
    assert table.expired_before_ms[-1] == 10_001
    assert_tables_equal_manifest(writer, tables)


def test_sweep_waits_again_if_its_record_is_lost(writer: ArchiveWriter, tables: MemoryTables) -> None:
    """Without the record the age of a removed file is unknown, so it counts from now."""
    publisher = publisher_of(writer, tables)
    archive_new_messages(LOG, writer)
    list(publisher.publish())
    list(compact(writer, CompactionRules(1 << 30, 0), Packing(), LATER_MS))
    list(publisher.publish())
    publisher.sweep(now_ms=10_000)
    root = Path(tables.by_topic["orders"].root.address)
    count = len(list(root.glob("day=*/*")))
    (root / "removed.json").unlink()

    publisher.sweep(now_ms=20_000)
    assert len(list(root.glob("day=*/*"))) == count
    publisher.sweep(now_ms=21_001)
    assert len(list(root.glob("day=*/*"))) == len(tables.by_topic["orders"].files)


def test_unavailable_table_does_not_keep_the_others_from_being_published(
    writer: ArchiveWriter, tables: MemoryTables
) -> None:
    """The error comes at the end; the next publication adds what is missing."""
    publisher = publisher_of(writer, tables)
    archive_new_messages(ToyLog({ORDERS: 10, BILLS: 10}), writer)
    list(publisher.publish())
    archive_new_messages(LOG, writer, batch=1)
    tables.faulty("%RETRY%bills", "refused")

    with pytest.raises(TableUnavailable, match="does not answer"):
        list(publisher.publish())
    behind = len(tables.by_topic["%RETRY%bills"].files)
    tables.faulty("%RETRY%bills", "")
    list(publisher.publish())

    assert behind == 1
    assert_tables_equal_manifest(writer, tables)


def test_commit_without_an_answer_is_not_repeated(writer: ArchiveWriter, tables: MemoryTables) -> None:
    """After an error the table is read again, since the change may have been stored."""
    publisher = publisher_of(writer, tables)
    archive_new_messages(ToyLog({ORDERS: 10}), writer)
    list(publisher.publish())
    archive_new_messages(ToyLog({ORDERS: 250}), writer, batch=1)
    tables.faulty("orders", "no answer")

    with pytest.raises(TableUnavailable):
        list(publisher.publish())
    tables.faulty("orders", "")

    assert list(publisher.publish()) == []
    assert_tables_equal_manifest(writer, tables)


def test_rebuilt_tables_equal_the_manifest(writer: ArchiveWriter, tables: MemoryTables) -> None:
    """Dropping a table deletes no data, and the next publication makes it again."""
    publisher = publisher_of(writer, tables)
    archive_new_messages(LOG, writer)
    list(publisher.publish())

    rebuilt = list(publisher.rebuild())

    assert [one.added for one in rebuilt] == [len(table.files) for _, table in sorted(tables.by_topic.items())]
    assert_tables_equal_manifest(writer, tables)


def test_missing_file_of_the_archive_is_not_published(
    writer: ArchiveWriter, tables: MemoryTables, tmp_path: Path
) -> None:
    """A table that names a missing file could not be read, so it stays as it was, and the error names the file."""
    archive_new_messages(LOG, writer)
    sorted(tmp_path.glob("data/topic=orders/*/*"))[0].unlink()

    with pytest.raises(TableError, match=r"data/topic=orders/day=2026-11-22/broker-a-0-0+-0+100.parquet is missing"):
        list(publisher_of(writer, tables).publish())

    assert tables.by_topic["orders"].changes == []
    assert len(tables.by_topic["%RETRY%bills"].changes) == 1


@pytest.fixture
def publication(writer: ArchiveWriter, tables: MemoryTables, monkeypatch: pytest.MonkeyPatch) -> ReportedPublication:
    """The publication of a job, to tables in memory."""
    monkeypatch.setattr(
        reported_publication, "TablePublisher", lambda writer, parameters: TablePublisher(writer, parameters, tables)
    )
    return ReportedPublication(writer, DELTA, Reporter("archive"))


def test_job_reports_tables_that_are_behind_once_and_continues(
    writer: ArchiveWriter,
    tables: MemoryTables,
    publication: ReportedPublication,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A second failure is no second warning; after a success the job is not behind."""
    warnings: list[tuple[str, str]] = []
    monkeypatch.setattr(Reporter, "warn", lambda _self, reason, text: warnings.append((reason, text)))
    archive_new_messages(ToyLog({ORDERS: 10}), writer)
    publication.publish()
    tables.faulty("orders", "refused")
    archive_new_messages(LOG, writer, batch=1)

    publication.publish()
    publication.publish()
    behind = list(publication.summary())
    tables.faulty("orders", "")
    publication.publish()

    assert warnings == [("TablesBehind", "the catalog does not answer")]
    assert behind == ["the tables are behind the archive: the catalog does not answer"]
    assert publication.failure == "" and list(publication.summary()) == ["published 3 snapshots of tables"]


def test_failed_publication_is_repeated_while_the_job_waits(
    writer: ArchiveWriter, tables: MemoryTables, publication: ReportedPublication, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also without another batch: a quiet topic must not stay behind."""
    monkeypatch.setattr(reported_publication, "TIME_SHARE_MAX", 1.0)
    archive_new_messages(ToyLog({ORDERS: 10}), writer)
    publication.publish_batch()
    publication.publish_rest()
    tables.faulty("orders", "refused")
    archive_new_messages(LOG, writer, batch=1)
    publication.publish_batch()
    assert publication.failure
    tables.faulty("orders", "")

    publication.publish_rest()

    assert publication.failure == ""
    assert len(tables.by_topic["orders"].changes) == 2, "expected no publication without a reason"
    assert_tables_equal_manifest(writer, tables)


def test_folder_that_cannot_have_links_does_not_stop_the_job(
    writer: ArchiveWriter,
    tables: MemoryTables,
    publication: ReportedPublication,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another device, or a file system without links: the tables stay behind, and the error names the folder."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "link", refuse)
    archive_new_messages(LOG, writer)

    publication.publish()
    publication.sweep()

    assert publication.failure.startswith("cannot link the files of tables in _tables/~25RETRY~25bills: [Errno 18]")
    assert not any(table.changes for table in tables.by_topic.values())


@pytest.mark.parametrize("is_new_process", [False, True], ids=["same-process", "next-process"])
def test_lost_links_are_made_again(writer: ArchiveWriter, tables: MemoryTables, is_new_process: bool) -> None:
    """The folder of the tables is deleted: after the error that follows, or in the next process, it is complete."""
    publisher = publisher_of(writer, tables)
    archive_new_messages(ToyLog({ORDERS: 210}), writer)
    list(publisher.publish())
    table = tables.by_topic["orders"]
    shutil.rmtree(table.root.address)
    if is_new_process:
        list(publisher_of(writer, tables).publish())
    else:
        archive_new_messages(ToyLog({ORDERS: 250}), writer, batch=1)
        tables.faulty("orders", "refused")
        with pytest.raises(TableUnavailable):
            list(publisher.publish())
        tables.faulty("orders", "")
        list(publisher.publish())

    assert_tables_equal_manifest(writer, tables)


def test_link_to_another_file_is_replaced(writer: ArchiveWriter, tables: MemoryTables) -> None:
    """A range that was written again has the same name; the table must not have the bytes of before."""
    archive_new_messages(LOG, writer)
    list(publisher_of(writer, tables).publish())
    table = tables.by_topic["orders"]
    path = sorted(table.files)[0]
    link = Path(table.root.address, path)
    link.unlink()
    link.write_bytes(b"another file")

    list(publisher_of(writer, tables).publish())

    assert_tables_equal_manifest(writer, tables)
    assert not list(link.parent.glob("*.parquet.*"))


def test_table_of_another_archive_is_refused(writer: ArchiveWriter, tables: MemoryTables, tmp_path: Path) -> None:
    """Its files may have the same names and other messages."""
    archive_new_messages(LOG, writer)
    list(publisher_of(writer, tables).publish())
    with ArchiveWriter.open(Folder(str(tmp_path / "another")), ArchiveFormat(GRID_ROWS)) as other:
        archive_new_messages(LOG, other)

        publisher = publisher_of(other, tables)
        with pytest.raises(OtherTable, match=f"is that of the archive {writer.format.identity}"):
            list(publisher.publish())
        publisher.sweep(now_ms=10_000)
        assert tables.by_topic["orders"].expired_before_ms == [], "expected the other archive to keep its snapshots"
        list(publisher_of(other, tables).rebuild())
        assert tables.by_topic["orders"].properties()["gantry.archive"] == other.format.identity


def test_fenced_writer_changes_no_table(writer: ArchiveWriter, tables: MemoryTables) -> None:
    """Another process has taken the lock, and publishes what it archives."""
    publisher = publisher_of(writer, tables)
    archive_new_messages(LOG, writer)
    writer.storage.write(WRITER, json.dumps({"owner": "another", "host": "there", "process": 7}).encode())

    with pytest.raises(FencedOut):
        list(publisher.publish())

    assert not any(table.changes for table in tables.by_topic.values())


def test_tables_after_a_deadline_are_first_the_next_time(
    writer: ArchiveWriter, tables: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A catalog that does not answer costs time for each table, so that not all may get their turn."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    publisher = publisher_of(writer, tables)
    archive_new_messages(LOG, writer)

    def publish() -> list[str]:
        found = []
        for one in publisher.publish(deadline_s=clock[0] + 1):
            found.append(one.topic)
            clock[0] += 2
        return found

    assert [(publish(), publisher.is_complete) for _ in range(3)] == [
        (["%RETRY%bills"], False),
        (["orders"], False),
        ([], True),
    ]


def test_tables_that_are_no_longer_published_are_reported(
    writer: ArchiveWriter, tables: MemoryTables, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their links would use the space of expired files for ever."""
    archive_new_messages(LOG, writer)
    list(publisher_of(writer, tables).publish())

    ReportedPublication(writer, TableParameters(), Reporter("archive")).publish()

    assert "_tables has tables that are no longer published" in capsys.readouterr().err


def test_batches_are_published_together_while_publications_are_slow(
    writer: ArchiveWriter, tables: MemoryTables, publication: ReportedPublication, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take a tenth of the time at most; the end of a run publishes what is left."""
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    slow = MemoryTable.commit

    def commit(table: MemoryTable, change: TableChange) -> None:
        clock[0] += 6.0
        slow(table, change)

    monkeypatch.setattr(MemoryTable, "commit", commit)
    published_at: list[float] = []
    for batch in range(1, 20):
        archive_new_messages(ToyLog({ORDERS: batch}), writer, batch)
        before = clock[0]
        publication.publish_batch()
        published_at += [before] if clock[0] > before else []
        clock[0] = before + 10.0
    publication.publish()

    assert published_at == [100.0, 160.0, 220.0, 280.0]
    assert_tables_equal_manifest(writer, tables)


def test_tables_of_an_object_store_are_at_the_archives_own_objects() -> None:
    """There are no links, so the root is the folder of the topic's data; options of the address go to the formats."""
    storage = ObjectStorage("s3://bucket/some/prefix?endpoint_override=127.0.0.1:9000&scheme=http")

    root = root_of(storage, "%RETRY%bills")

    assert root.address == "s3://bucket/some/prefix/data/topic=%25RETRY%25bills"
    assert root.options == {"endpoint_override": "127.0.0.1:9000", "scheme": "http"}


def test_table_that_cannot_be_swept_keeps_its_links_and_does_not_stop_the_others(
    writer: ArchiveWriter, tables: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot that was not expired may have them."""
    publisher = publisher_of(writer, tables)
    archive_new_messages(ToyLog({ORDERS: 250, BILLS: 250}, step_us=LOG.step_us), writer)
    list(publisher.publish())
    list(compact(writer, CompactionRules(1 << 30, 0), Packing(), LATER_MS))
    list(publisher.publish())
    publisher.sweep(now_ms=10_000)
    first, second = tables.by_topic["%RETRY%bills"], tables.by_topic["orders"]

    def refuse(_: int) -> None:
        raise TableUnavailable("the catalog does not answer")

    monkeypatch.setattr(first, "expire", refuse)
    with pytest.raises(TableUnavailable):
        publisher.sweep(now_ms=20_000)

    assert len(links_of(first)) > len(first.files)
    assert len(links_of(second)) == len(second.files) and second.expired_before_ms[-1] == 19_000
