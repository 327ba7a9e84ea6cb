"""The findings of `verify` about tables: each injected fault is found and named, a good table has none, and the
verification changes nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

from spark_kit.memory_tables import MemoryTables
from spark_kit.toy_archive import archive_log, archive_new_messages
from spark_kit.toy_log import HOUR_US, ToyLog
from spark_kit.toy_run import GRID_ROWS, days_later_ms
from spark_kit.visible_folder import NoLock, VisibleFolder

from gantry_pipelines.archive.compaction import CompactionRules, compact, expire
from gantry_pipelines.archive.file_writing import Packing
from gantry_pipelines.archive.format import ArchiveFormat
from gantry_pipelines.archive.layout import FORMAT, WRITER
from gantry_pipelines.archive.settings import TableParameters
from gantry_pipelines.archive.storage import Folder
from gantry_pipelines.archive.tables.publication import ENDS_PROPERTY, TablePublisher
from gantry_pipelines.archive.tables.table_verification import RETRY_INTERVAL_S, WRITER_WAIT_S, verify_tables
from gantry_pipelines.archive.verify_job import VerifyJob, VerifyParameters
from gantry_pipelines.archive.writer import ArchiveWriter
from gantry_pipelines.outcome import EXIT_DONE, EXIT_FAILED
from gantry_pipelines.reporting import Reporter
from gantry_spec.pipelines.parts import TableFormat
from pyspark_rocketmq.model import QueueId

ORDERS = QueueId("orders", "broker-a", 0)
LOG = ToyLog({ORDERS: 250, QueueId("%RETRY%bills", "broker-b", 1): 30}, step_us=HOUR_US // 20)
LONGER = ToyLog({**LOG.ends, ORDERS: 260}, step_us=LOG.step_us)
LATER_MS = days_later_ms("2026-11-23", 3)
BOTH = TableParameters((TableFormat.ICEBERG, TableFormat.DELTA))
DELTA = TableParameters((TableFormat.DELTA,))
FOUND = TableParameters()
"""No format is set: `verify` reads the tables that exist."""


def publish(storage: Folder) -> None:
    """Publish the archive as a run does."""
    with ArchiveWriter.open(storage) as writer:
        list(TablePublisher(writer, BOTH).publish())


@pytest.fixture
def storage(tmp_path: Path) -> Folder:
    """An archive of the log with tables in both formats."""
    storage = archive_log(LOG, tmp_path)
    assert isinstance(storage, Folder)
    publish(storage)
    return storage


def texts(storage: Folder, parameters: TableParameters = FOUND) -> list[str]:
    return [str(one) for one in verify_tables(storage, parameters, wait=no_wait).findings]


def no_wait(_: float) -> None:
    raise AssertionError("waited without a writer")


def table_of_orders(storage: Folder) -> Path:
    return Path(storage.root, "_tables/orders")


def archive_more(storage: Folder) -> None:
    with ArchiveWriter.open(storage) as writer:
        archive_new_messages(LONGER, writer, batch=1)


def delete_link(storage: Folder) -> None:
    sorted(table_of_orders(storage).glob("day=*/*"))[0].unlink()


def truncate_link(storage: Folder) -> None:
    link = sorted(table_of_orders(storage).glob("day=*/*"))[0]
    content = link.read_bytes()
    link.unlink()
    link.write_bytes(content[:-10])


def expire_day(storage: Folder) -> None:
    with ArchiveWriter.open(storage) as writer:
        list(expire(writer, 1, days_later_ms("2026-11-22", 1)))
        writer.delete_replaced()


def compact_days(storage: Folder) -> None:
    with ArchiveWriter.open(storage) as writer:
        list(compact(writer, CompactionRules(1 << 30, 0), Packing(), LATER_MS))


def change_identity(storage: Folder) -> None:
    document = json.loads(storage.read(FORMAT))
    storage.write(FORMAT, json.dumps({**document, "identity": "another"}).encode())


def damage_metadata(storage: Folder) -> None:
    top = table_of_orders(storage)
    sorted(top.glob("_delta_log/*.json"))[-1].write_bytes(b"{")
    for path in top.glob("_iceberg/metadata/v*.metadata.json"):
        path.write_bytes(b"{")


@pytest.mark.parametrize(
    ("inject", "text"),
    [
        (archive_more, "lacks 1 files of the manifest, such as day=2026-11-23/broker-a-0-"),
        (delete_link, "names day=2026-11-22/broker-a-0-00000000000000000000-"),
        (truncate_link, "bytes, which has"),
        (expire_day, "files that are not in the manifest, such as day=2026-11-22/"),
        (compact_days, "lacks 1 files of the manifest, such as day=2026-11-22/"),
        (change_identity, "and this one is another: gantry pipeline tables --set rebuild=true"),
        (damage_metadata, "cannot be read: "),
    ],
    ids=["behind", "lost-link", "cut-link", "expired", "compacted", "other-archive", "damaged"],
)
def test_injected_fault_is_found_in_both_tables(storage: Folder, inject: Callable[[Folder], None], text: str) -> None:
    """Without it there are no findings, with the formats that are set and with those that exist."""
    before = [*texts(storage), *texts(storage, BOTH)]

    inject(storage)
    found = texts(storage)

    assert before == []
    for name in ("Delta table of topic 'orders'", "Iceberg table of topic 'orders'"):
        assert any(one.startswith(f"{name}: ") and text in one for one in found), found
    assert texts(storage, BOTH) == found


def test_lost_table_is_found_if_its_format_is_set(storage: Folder) -> None:
    """Otherwise nothing tells that there was one."""
    shutil.rmtree(table_of_orders(storage) / "_delta_log")

    assert texts(storage, BOTH) == [
        "Delta table of topic 'orders': does not exist: publish it with gantry pipeline tables"
    ]
    assert verify_tables(storage, FOUND).findings == ()
    assert verify_tables(storage, FOUND).tables == 3


@pytest.mark.parametrize(("end", "is_fault"), [(250, False), (240, True), (251, True)])
def test_ends_of_a_snapshot_are_compared_with_the_manifest(tmp_path: Path, end: int, is_fault: bool) -> None:
    """They lie between the last file of the table and the end of the archive."""
    storage, tables = archive_log(ToyLog({ORDERS: 250}), tmp_path), MemoryTables()
    with ArchiveWriter.open(storage) as writer:
        list(TablePublisher(writer, DELTA, tables).publish())
    table = tables.by_topic["orders"]
    properties = {**table.properties(), ENDS_PROPERTY: json.dumps({"broker-a": {"0": end}})}
    table.changes[-1] = type(table.changes[-1])((), frozenset(), properties)

    found = [str(one) for one in verify_tables(storage, DELTA, tables).findings]

    text = f"Delta table of topic 'orders': has gantry.ends {end} for queue 0 of broker-a, expected 250 to 250"
    assert found == ([text] if is_fault else [])


@pytest.mark.parametrize("is_published", [True, False], ids=["published-meanwhile", "behind"])
def test_table_is_read_again_while_there_is_a_writer(tmp_path: Path, is_published: bool) -> None:
    """A writer that publishes late is no finding; a table that stays behind for a minute is one."""
    storage, tables = archive_log(LOG, tmp_path), MemoryTables()
    waits: list[float] = []
    with ArchiveWriter.open(storage) as writer:
        publisher = TablePublisher(writer, DELTA, tables)
        list(publisher.publish())
        archive_new_messages(LONGER, writer, batch=1)

        def wait(seconds: float) -> None:
            waits.append(seconds)
            if is_published and len(waits) == 3:
                list(publisher.publish())

        assert storage.size(WRITER) is not None
        found = verify_tables(storage, DELTA, tables, wait)

    assert found.tables == 2
    assert (found.findings == ()) is is_published
    assert len(waits) == (3 if is_published else WRITER_WAIT_S / RETRY_INTERVAL_S)


def test_verification_changes_nothing(storage: Folder) -> None:
    """Also not the hint of an Iceberg table, which a start corrects after a kill, nor a table that does not exist."""
    (table_of_orders(storage) / "_iceberg/metadata/version-hint.text").write_text("1")
    shutil.rmtree(Path(storage.root, "_tables/~25RETRY~25bills"))

    def content() -> dict[str, bytes]:
        return {path: storage.read(path) for path in storage.paths()}

    before = content()
    found = texts(storage, BOTH)

    assert len(found) == 2 and all("'%RETRY%bills': does not exist" in one for one in found)
    assert content() == before


def test_files_that_an_object_store_has_lost_are_found_once(tmp_path: Path) -> None:
    """Its tables name the files in `data`, so that only those without a record are looked for by their tables."""
    storage, tables = VisibleFolder(str(tmp_path)), MemoryTables()
    with ArchiveWriter.open(storage, ArchiveFormat(GRID_ROWS), NoLock()) as writer:
        archive_new_messages(LOG, writer)
        list(TablePublisher(writer, DELTA, tables).publish())
        list(expire(writer, 1, days_later_ms("2026-11-22", 1)))
        behind = [one.text for one in verify_tables(storage, DELTA, tables).findings if "orders" in one.path]
        writer.delete_replaced()
        lost = [one.text for one in verify_tables(storage, DELTA, tables).findings if "orders" in one.path]

    assert len(behind) == 1 and behind[0].startswith("has 3 files that are not in the manifest")
    assert lost[0] == behind[0] and len(lost) == 4 and lost[1].endswith(".parquet, which is missing")


def test_job_reports_faults_of_tables(storage: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    """As those of files: one line for each, the reason `Damaged`, and the exit code 1."""
    good = VerifyJob().run(VerifyParameters(storage.root), Reporter("verify"))
    delete_link(storage)
    bad = VerifyJob().run(VerifyParameters(storage.root, tables=DELTA), Reporter("verify"))

    assert (good.exit_code, good.facts["tables"]) == (EXIT_DONE, 4)
    assert good.text.endswith("bytes, 4 tables: no findings")
    assert (bad.exit_code, bad.reason, bad.facts["findings"]) == (EXIT_FAILED, "Damaged", 1)
    assert "Delta table of topic 'orders': names day=2026-11-22/" in capsys.readouterr().err
