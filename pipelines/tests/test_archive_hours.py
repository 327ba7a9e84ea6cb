"""Archives that are partitioned by hour: files, compaction, expiry and tables, and kills between the steps of these."""

from __future__ import annotations

import datetime
import json
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

from deltalake import DeltaTable
from pyiceberg.table import StaticTable
from spark_kit.listings import RowCounts, by_duckdb
from spark_kit.table_trial import BOTH, QUEUES, all_rows, row_faults, rows_of_tables
from spark_kit.toy_log import HOUR_US, NOON_US, ToyLog
from spark_kit.toy_run import ToyRun, run_toy

from gantry_pipelines.archive import crash_points
from gantry_pipelines.archive.errors import OtherArchive
from gantry_pipelines.archive.file_writing import Packing, write_files
from gantry_pipelines.archive.format import ArchiveFormat, read_format
from gantry_pipelines.archive.layout import FORMAT, Partition, Place, partition_end_ms, place_of
from gantry_pipelines.archive.manifest_reader import read_manifest
from gantry_pipelines.archive.storage import Folder
from gantry_pipelines.archive.tables.publication import TablePublisher, root_of
from gantry_pipelines.archive.tables.table_verification import verify_tables
from gantry_pipelines.archive.verification import verify
from gantry_pipelines.archive.writer import ArchiveWriter
from gantry_spec.pipelines.parts import PartitionUnit
from pyspark_rocketmq.model import QueueId, QueueRange

LOG: Final = ToyLog({QUEUES[0]: 250, QUEUES[1]: 120, QUEUES[2]: 30}, step_us=HOUR_US // 60)
"""From 12:00 on, one message each minute; those of the first queue end at 16:09."""

FORMAT_BY_HOUR: Final = ArchiveFormat(100, partition_by=PartitionUnit.HOUR)
HOURS: Final = [Partition("2026-11-22", f"{hour:02d}") for hour in range(12, 17)]
DAY_MS: Final = 24 * 3_600_000


def toy_run(root: Path, **more: Any) -> ToyRun:
    return replace(ToyRun(str(root), LOG, tables=BOTH, partition_by=PartitionUnit.HOUR), **more)


def faults(root: Path, wanted: RowCounts | None = None) -> list[str]:
    """Return what is wrong with the live files and the tables, by each reader; with `wanted`, also missing rows."""
    storage = Folder(str(root))
    found = [f"duckdb (live files): {one}" for one in row_faults(by_duckdb(root), wanted, all_rows(LOG))]
    roots = [root_of(storage, topic) for topic in sorted({queue.topic for queue in LOG.ends})]
    for name, (seen, unreadable) in rows_of_tables(roots).items():
        found += [*unreadable, *(f"{name}: {one}" for one in row_faults(seen, wanted, all_rows(LOG)))]
    return found


def hours_of(root: Path) -> list[Partition]:
    """Return the partitions of the live files of the first queue, by offset."""
    files = read_manifest(Folder(str(root))).data()
    return [file.place.partition for file in files if file.range.queue == QUEUES[0]]


# -- names and times ---------------------------------------------------------------------------------------------------


def test_path_has_the_hour_within_the_day() -> None:
    """A path without an hour is that of an archive by day."""
    place = Place(QueueRange(QueueId("orders", "broker-a", 3), 0, 5), "2026-11-22", "07")

    assert place.folder == "data/topic=orders/day=2026-11-22/hour=07"
    assert place_of(place.path) == place
    assert place_of(place.path.replace("/hour=07", "")) == replace(place, hour="")
    assert place_of(place.path.replace("hour=07", "hour=24")) is None
    assert place_of(place.path.replace("hour=07", "hour=7")) is None


@pytest.mark.parametrize(
    ("partition", "zone", "end_us"),
    [
        (Partition("2026-11-22", "12"), "UTC", NOON_US + HOUR_US),
        (Partition("2026-11-22", "23"), "UTC", NOON_US + 12 * HOUR_US),
        (Partition("2026-11-22"), "UTC", NOON_US + 12 * HOUR_US),
        (Partition("2026-11-22", "12"), "Asia/Kolkata", NOON_US - 4 * HOUR_US - HOUR_US // 2),
        (Partition("2026-10-25", "02"), "Europe/Berlin", 1_792_893_600_000_000),  # 01:00 and 02:00 UTC are 02:00 there
        (Partition("2026-03-29", "01"), "Europe/Berlin", 1_774_746_000_000_000),  # the hour from 02:00 is skipped
    ],
)
def test_hour_ends_when_no_message_can_be_stored_in_it(partition: Partition, zone: str, end_us: int) -> None:
    """Where clocks are set back, an hour ends after its second time."""
    assert partition_end_ms(partition, zone) == end_us // 1000


# -- files -------------------------------------------------------------------------------------------------------------


def test_file_ends_where_the_hour_changes(tmp_path: Path) -> None:
    """Rows after a change of the clock are in the folder of their own hour, and no offset is missing."""
    queue = QUEUES[0]
    log = ToyLog({queue: 150}, step_us=HOUR_US // 60, clock_back={70: HOUR_US})
    [piece] = [QueueRange(queue, 0, 150)]

    files = list(
        write_files(log.batches([piece]), [piece], Folder(str(tmp_path)), replace(FORMAT_BY_HOUR, grid_rows=1000),
                    Packing())
    )  # fmt: skip

    assert [(file.place.hour, file.range.begin, file.range.end) for file in files] == [
        ("12", 0, 60), ("13", 60, 70), ("12", 70, 71), ("13", 71, 120), ("14", 120, 150),
    ]  # fmt: skip


def test_archive_keeps_its_unit_of_partitions(tmp_path: Path) -> None:
    """Another unit is refused. Earlier programs refuse an archive by hour by its version, and read one by day."""
    by_hour, by_day = Folder(str(tmp_path / "hours")), Folder(str(tmp_path / "days"))
    ArchiveWriter.open(by_hour, FORMAT_BY_HOUR).close()
    ArchiveWriter.open(by_day, ArchiveFormat(100)).close()

    for storage, wanted in ((by_hour, ArchiveFormat(100)), (by_day, FORMAT_BY_HOUR)):
        with pytest.raises(OtherArchive, match=r"has layout.partitionBy (hour|day), but the configuration has"):
            ArchiveWriter.open(storage, wanted)
    assert read_format(by_hour).partition_by is PartitionUnit.HOUR
    assert [json.loads(one.read(FORMAT))["version"] for one in (by_hour, by_day)] == [2, 1]
    document = json.loads(by_day.read(FORMAT))
    del document["partition_by"]
    by_day.write(FORMAT, json.dumps(document).encode())
    ArchiveWriter.open(by_day, ArchiveFormat(100)).close()


# -- the archive and its tables ----------------------------------------------------------------------------------------


def test_readers_skip_files_by_hour_and_get_the_same_rows(tmp_path: Path) -> None:
    """Compaction merges the files of an hour; a table that is made again has the same partitions."""
    root, now_ms = tmp_path / "archive", partition_end_ms(HOURS[2], "UTC")
    run_toy(toy_run(root, rows_max=90))
    before = len(hours_of(root))
    run_toy(toy_run(root, is_compacting=True, now_ms=now_ms))

    storage = Folder(str(root))
    assert hours_of(root)[:3] == HOURS[:3] and before > len(hours_of(root)) > 4
    assert faults(root, all_rows(LOG)) == []
    assert verify(storage, is_deep=True).findings == () == verify_tables(storage, BOTH).findings
    with ArchiveWriter.open(storage) as writer:
        list(TablePublisher(writer, BOTH).rebuild())
    assert faults(root, all_rows(LOG)) == []
    table = root_of(storage, "orders")
    iceberg = StaticTable.from_metadata(f"{table.address}/_iceberg")
    wanted = {("broker-a", queue, offset) for queue in (0, 1) for offset in range(60, 120)}
    scan = iceberg.scan(
        "day = '2026-11-22' and hour = 13", selected_fields=("broker", "queue", "offset", "day", "hour")
    )
    delta = DeltaTable(table.address)
    rows = delta.to_pyarrow_table(filters=[("day", "=", datetime.date(2026, 11, 22)), ("hour", "=", 13)])
    assert [field.name for field in iceberg.spec().fields] == ["day", "hour"] == delta.metadata().partition_columns
    assert len(list(scan.plan_files())) == 2
    for found in (scan.to_arrow(), rows):
        named = found.select(["broker", "queue", "offset", "hour"]).to_pylist()
        assert Counter(tuple(row.values()) for row in named) == Counter((*one, 13) for one in wanted)


def test_readers_of_the_folder_find_the_hour(tmp_path: Path) -> None:
    """pyarrow and DuckDB take day and hour from the paths."""
    root = tmp_path / "archive"
    run_toy(toy_run(root, tables=ToyRun("", LOG).tables))
    types: dict[str, pa.DataType] = {"topic": pa.string(), "day": pa.string(), "hour": pa.int32()}
    schema = pa.schema(types)
    dataset: Any = ds.dataset(str(root / "data"), partitioning=ds.partitioning(schema, flavor="hive"))
    by_pyarrow = Counter(dataset.to_table(columns=["hour"]).column("hour").to_pylist())
    with duckdb.connect() as connection:
        found = connection.execute(
            "SELECT hour::INT, count(*) FROM read_parquet(?, hive_partitioning=true) GROUP BY 1",
            [f"{root}/data/**/*.parquet"],
        ).fetchall()

    assert by_pyarrow == {12: 150, 13: 120, 14: 60, 15: 60, 16: 10} == dict(found)


def test_hours_expire_one_after_the_other(tmp_path: Path) -> None:
    """An hour expires so many days after its end, and its range is not archived again."""
    root = tmp_path / "archive"
    run_toy(toy_run(root))
    run_toy(toy_run(root, expire_days=3, now_ms=partition_end_ms(HOURS[1], "UTC") + 3 * DAY_MS))

    manifest = read_manifest(Folder(str(root)))
    assert sorted({file.place.partition for file in manifest.data()}) == HOURS[2:]
    assert manifest.faults() == [] and manifest.ends() == LOG.ends
    assert not list(root.glob("data/topic=*/day=*/hour=1[23]/*"))
    wanted = Counter({row: 1 for row in all_rows(LOG) if row[3] >= 120})
    assert faults(root, wanted) == []
    assert verify(Folder(str(root)), is_deep=True).findings == ()


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize(
    "point",
    [
        crash_points.AFTER_MERGE, crash_points.AFTER_EXCHANGE, crash_points.MID_MERGE, crash_points.BEFORE_TABLE,
        crash_points.AFTER_TABLE, crash_points.MID_EXPIRY,
    ],
)  # fmt: skip
def test_kill_in_an_archive_by_hour_is_completed_by_the_next_run(tmp_path: Path, point: str) -> None:
    """Readers see each message once after the kill, and after the next run."""
    root, now_ms = tmp_path / "archive", partition_end_ms(HOURS[4], "UTC")
    run_toy(toy_run(root, rows_max=90))
    more: dict[str, Any] = {"is_compacting": True, "now_ms": now_ms}
    wanted = all_rows(LOG)
    if point == crash_points.MID_EXPIRY:
        more = {"expire_days": 3, "now_ms": partition_end_ms(HOURS[1], "UTC") + 3 * DAY_MS}
        wanted = Counter({row: 1 for row in wanted if row[3] >= 120})

    killed = toy_run(root, **more, crash_at=(point, 2)).run_process()
    after_kill = faults(root, wanted if point != crash_points.MID_EXPIRY else None)
    run_toy(toy_run(root, **more))

    assert killed == -signal.SIGKILL
    assert after_kill == [] == faults(root, wanted)
    assert verify(Folder(str(root)), is_deep=True).findings == ()
