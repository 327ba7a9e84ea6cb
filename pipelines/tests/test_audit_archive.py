"""Comparison of an archive with the log, without Spark and brokers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from spark_kit.fake_catalog import FakeCatalog
from spark_kit.toy_archive import archive_log, archive_new_messages
from spark_kit.toy_log import ToyLog, as_batch

from gantry_pipelines.archive.compaction import CompactionRules, compact, expire
from gantry_pipelines.archive.file_writing import Packing
from gantry_pipelines.archive.format import ALL_COLUMNS
from gantry_pipelines.archive.manifest import ArchivedFile
from gantry_pipelines.archive.manifest_reader import read_manifest
from gantry_pipelines.archive.storage import Folder
from gantry_pipelines.archive.writer import ArchiveWriter
from gantry_pipelines.audit import archive_check
from gantry_pipelines.audit.archive_check import archive_tasks, audit_archive, compare_file, read_archive
from gantry_pipelines.audit.model import Coverage, Finding, FindingKind, Row
from pyspark_rocketmq.model import Bounds, QueueId, QueueRange, ReadFrom
from pyspark_rocketmq.settings import ReadSettings

QUEUE = QueueId("orders", "broker-a", 0)
LOG = ToyLog({QUEUE: 250})
READING = ReadSettings(name_servers="127.0.0.1:1")


def findings_of(root: Path, log: ToyLog, wanted: range = range(250), *, number: int = 0) -> list[Finding]:
    """Compare one file with a log that has these offsets, and return the findings."""
    rows = rows_of_comparison(root, read_manifest(Folder(str(root))).data()[number], log, wanted)
    return [row for row in rows if isinstance(row, Finding)]


def rows_of_comparison(
    root: Path, file: ArchivedFile, log: ToyLog, wanted: range = range(250), *, begin: int = 0
) -> list[Row]:
    """Compare a file of a manifest that may be an older one with a log from ``begin`` on, and return all rows."""

    def rows_of(one: QueueRange) -> Iterator[pa.RecordBatch]:
        yield as_batch(
            [log.row(one.queue, offset) for offset in range(one.begin, one.end) if offset in wanted], ALL_COLUMNS
        )

    common = QueueRange(QUEUE, max(begin, file.range.begin), file.range.end)
    return list(compare_file(Folder(str(root)), file, ALL_COLUMNS, common, rows_of))


def rewrite(root: Path, change: dict[str, object], at: int) -> None:
    """Change values of one row of the first file."""
    path = sorted(root.glob("data/*/*/*.parquet"))[0]
    table = pq.read_table(path, partitioning=None)
    rows = table.to_pylist()
    rows[at].update(change)
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)


def test_archive_that_equals_the_log_has_no_finding(tmp_path: Path) -> None:
    """If every column of every row is equal, there is no finding."""
    archive_log(LOG, tmp_path)

    assert [found for number in range(3) for found in findings_of(tmp_path, LOG, number=number)] == []


@pytest.mark.parametrize(
    ("change", "name"),
    [({"body": b"another"}, "body"), ({"properties": [("KEYS", "other")]}, "properties"), ({"keys": None}, "keys")],
    ids=["body", "properties", "keys"],
)
def test_differing_row_is_reported_with_its_columns(tmp_path: Path, change: dict[str, object], name: str) -> None:
    """A message that differs is one finding, which names the columns."""
    archive_log(LOG, tmp_path)
    rewrite(tmp_path, change, 7)

    [found] = findings_of(tmp_path, LOG)

    assert (found.kind, found.topic, found.queue, found.offset, found.count) == (
        FindingKind.ARCHIVE_DIFFERS,
        "orders",
        0,
        7,
        1,
    )
    assert f"other {name} than" in found.detail


def test_rows_of_only_one_side_are_missing_or_extra(tmp_path: Path) -> None:
    """Rows that only the log or only the archive has are findings; consecutive rows are one finding."""
    archive_log(LOG, tmp_path)
    rewrite(tmp_path, {"offset": 1_000}, 7)

    assert [(one.kind, one.offset) for one in findings_of(tmp_path, LOG)] == [
        (FindingKind.ARCHIVE_EXTRA, 1_000),
        (FindingKind.ARCHIVE_MISSING, 7),
    ]
    archive_log(LOG, tmp_path / "other")
    extra = findings_of(tmp_path / "other", LOG, range(90))
    assert [(one.kind, one.offset, one.count) for one in extra] == [(FindingKind.ARCHIVE_EXTRA, 90, 10)]


def test_offset_that_is_twice_in_a_file_is_extra(tmp_path: Path) -> None:
    """A row in place of one that the log no longer has leaves the count of rows as it was."""
    archive_log(LOG, tmp_path)
    rewrite(tmp_path, {"offset": 8}, 7)
    [file, *_] = read_manifest(Folder(str(tmp_path))).data()

    rows = list(rows_of_comparison(tmp_path, file, LOG, begin=8))

    found = [(row.kind, row.offset, row.count) for row in rows if isinstance(row, Finding)]
    assert (FindingKind.ARCHIVE_EXTRA, 8, 1) in found, found


def test_unreadable_or_missing_file_is_a_finding(tmp_path: Path) -> None:
    """The finding has the range of the file."""
    archive_log(LOG, tmp_path)
    paths = sorted(tmp_path.glob("data/*/*/*.parquet"))
    paths[0].unlink()
    data = bytearray(paths[1].read_bytes())
    data[len(data) // 3] ^= 0xFF
    paths[1].write_bytes(data)

    bounds = {QUEUE: Bounds(0, 250)}
    tasks, findings, _ = archive_tasks(read_archive(str(tmp_path)), bounds, {"broker-a": ()}, READING)

    summaries = [(one.kind, one.topic, one.queue, one.offset, one.count) for one in findings]
    assert summaries == [(FindingKind.ARCHIVE_MISSING, "orders", 0, 0, 100)]
    assert len(tasks) == 2
    [unreadable] = findings_of(tmp_path, LOG, number=1)
    assert (unreadable.kind, unreadable.offset, unreadable.count) == (FindingKind.ARCHIVE_MISSING, 100, 100)
    assert "cannot be read" in unreadable.detail


def test_expired_and_not_yet_archived_messages_are_notes(tmp_path: Path) -> None:
    """Only the common range is compared; rows after the log's end are a finding."""
    archive_log(LOG, tmp_path)

    tasks, findings, notes = archive_tasks(
        read_archive(str(tmp_path)), {QUEUE: Bounds(130, 300)}, {"broker-a": ()}, READING
    )
    _, beyond, _ = archive_tasks(read_archive(str(tmp_path)), {QUEUE: Bounds(0, 240)}, {"broker-a": ()}, READING)
    _, gone, expired_notes = archive_tasks(read_archive(str(tmp_path)), {}, {}, READING)

    assert findings == []
    assert [(task.range.begin, task.range.end) for task in tasks] == [(130, 200), (200, 250)]
    assert any("130 messages are no longer in the log" in note for note in notes)
    assert any("50 messages of its queues are not archived yet" in note for note in notes)
    assert [(one.kind, one.offset, one.count) for one in beyond] == [(FindingKind.ARCHIVE_EXTRA, 240, 10)]
    assert gone == []
    assert any("250 messages" in note for note in expired_notes)


def test_messages_archived_during_the_audit_are_no_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log's bounds are read after the manifest, so the log has all messages of its files."""
    storage, log = archive_log(LOG, tmp_path), FakeCatalog()
    log.append(log.add_queue("orders", "broker-a", 0), 250)

    class Catalog:
        """The log, which gets 50 more messages, archived at once, when its bounds were read for the last time."""

        def __init__(self, read_settings: ReadSettings) -> None:
            self.read_from = read_settings.read_from

        def __enter__(self) -> FakeCatalog:
            return log

        def __exit__(self, *_: object) -> None:
            if self.read_from is ReadFrom.MASTER:
                log.append(QUEUE, 50)
                with ArchiveWriter.open(storage) as writer:
                    archive_new_messages(ToyLog({QUEUE: 300}), writer, batch=1)

    monkeypatch.setattr(archive_check, "Catalog", Catalog)

    result = audit_archive(str(tmp_path), READING, lambda _: [])

    assert read_manifest(storage).ends() == {QUEUE: 300}
    assert result.findings == ()


def test_staged_file_is_compared(tmp_path: Path) -> None:
    """A file that its writer has added to the manifest, and not published yet, is read where it is staged."""
    archive_log(LOG, tmp_path)
    file = read_manifest(Folder(str(tmp_path))).data()[0]
    staged = dataclasses.replace(file, staged="_staged/one.part")
    (tmp_path / "_staged").mkdir(exist_ok=True)
    (tmp_path / file.place.path).rename(tmp_path / staged.staged)

    [coverage] = rows_of_comparison(tmp_path, staged, LOG)

    assert isinstance(coverage, Coverage) and (coverage.records, coverage.note) == (file.rows, "")


@pytest.mark.parametrize("change", ["compacted", "expired"])
def test_file_that_its_writer_has_deleted_meanwhile_is_a_note(tmp_path: Path, change: str) -> None:
    """A file that cannot be read is a finding only if the newest manifest has it."""
    storage = archive_log(LOG, tmp_path)
    file = read_manifest(storage).data()[0]
    with ArchiveWriter.open(storage) as writer:
        now_ms = LOG.first_us // 1000 + 10 * 86_400_000
        done: list[Any] = list(
            compact(writer, CompactionRules(), Packing(), now_ms)
            if change == "compacted"
            else expire(writer, 1, now_ms)
        )
        writer.delete_replaced()
    assert done and not (tmp_path / file.place.path).exists()

    [coverage] = rows_of_comparison(tmp_path, file, LOG)

    assert isinstance(coverage, Coverage) and coverage.records == 0
    assert "compacted or expired during the audit" in coverage.note
