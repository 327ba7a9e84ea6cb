"""The files that workers write: a file has exactly the rows of its name, and is in the folder of their day."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from spark_kit.toy_log import HOUR_US, ToyLog

from gantry_pipelines.archive.errors import ReadIncomplete
from gantry_pipelines.archive.file_writing import Packing, write_files
from gantry_pipelines.archive.format import ALL_COLUMNS, ArchiveFormat
from gantry_pipelines.archive.manifest import ArchivedFile, tiling_faults
from gantry_pipelines.archive.storage import Folder
from pyspark_rocketmq.model import QueueId, QueueRange
from pyspark_rocketmq.schema import arrow_schema

ONE, TWO = QueueId("orders", "broker-a", 0), QueueId("bills", "broker-a", 0)


def written(log: ToyLog, root: Path, *ranges: QueueRange, zone: str = "UTC") -> list[ArchivedFile]:
    """Write these ranges as a worker does, and return the files."""
    return list(write_files(log.batches(ranges), ranges, Folder(str(root)), ArchiveFormat(100, zone), Packing()))


def rows_of(root: Path, file: ArchivedFile) -> list[dict[str, object]]:
    """Return the rows of a staged file."""
    with pq.ParquetFile(root / file.staged) as parquet:
        return parquet.read().to_pylist()


def test_mixed_queues_are_written_to_separate_files(tmp_path: Path) -> None:
    """Rows of several queues arrive in log order; each piece gets its own rows, bodies and properties unchanged."""
    log = ToyLog({ONE: 250, TWO: 80})
    ranges = [QueueRange(ONE, 0, 100), QueueRange(ONE, 100, 250), QueueRange(TWO, 3, 80)]

    files = written(log, tmp_path, *ranges)

    assert sorted(file.range for file in files) == sorted(ranges)
    for file in files:
        wanted = [log.row(file.range.queue, offset) for offset in range(file.range.begin, file.range.end)]
        found = rows_of(tmp_path, file)
        assert [row["body"] for row in found] == [row["body"] for row in wanted]
        assert [row["properties"] for row in found] == [row["properties"] for row in wanted]
        assert file.rows == file.range.count and (tmp_path / file.staged).stat().st_size == file.size_bytes
    assert pq.read_schema(tmp_path / files[0].staged).equals(arrow_schema(ALL_COLUMNS))


def test_range_across_midnight_is_split_by_day(tmp_path: Path) -> None:
    """When the store time passes midnight of the archive's time zone, one file ends and the next begins."""
    log = ToyLog({ONE: 48}, step_us=HOUR_US)

    in_utc = written(log, tmp_path / "utc", QueueRange(ONE, 0, 48))
    in_kolkata = written(log, tmp_path / "kolkata", QueueRange(ONE, 0, 48), zone="Asia/Kolkata")

    assert [(f.place.day, f.range.begin, f.range.end) for f in in_utc] == [
        ("2026-11-22", 0, 12), ("2026-11-23", 12, 36), ("2026-11-24", 36, 48),
    ]  # fmt: skip
    assert [(f.place.day, f.range.begin, f.range.end) for f in in_kolkata] == [
        ("2026-11-22", 0, 7), ("2026-11-23", 7, 31), ("2026-11-24", 31, 48),
    ]  # fmt: skip


def test_rows_stay_in_their_day_after_the_clock_was_set_back(tmp_path: Path) -> None:
    """Each row is in the folder of its own store time, and the ranges tile, also after the clock was set back."""
    log = ToyLog({ONE: 30}, step_us=HOUR_US, clock_back={13: 3 * HOUR_US, 14: 4 * HOUR_US})

    files = written(log, tmp_path, QueueRange(ONE, 0, 30))

    assert [(f.place.day[-2:], f.range.begin, f.range.end) for f in files] == [
        ("22", 0, 12), ("23", 12, 13), ("22", 13, 15), ("23", 15, 30),
    ]  # fmt: skip
    assert tiling_faults(file.range for file in files) == []


@pytest.mark.parametrize(
    ("given", "wanted", "text"),
    [
        ((0, 90), (0, 100), "the read ended"),
        ((5, 100), (0, 100), "received offset 5"),
        ((0, 101), (0, 100), "received offset 100"),
    ],
    ids=["short", "hole", "more"],
)
def test_read_with_other_rows_than_requested_fails(
    tmp_path: Path, given: tuple[int, int], wanted: tuple[int, int], text: str
) -> None:
    """A read that returns other rows than requested fails the task; only a complete file of the range may be left."""
    log, piece = ToyLog({ONE: 200}), QueueRange(ONE, *wanted)
    batches = log.batches([QueueRange(ONE, *given)], batch_rows=1000)
    found: list[ArchivedFile] = []

    with pytest.raises(ReadIncomplete, match=text):
        for file in write_files(batches, [piece], Folder(str(tmp_path)), ArchiveFormat(100), Packing()):
            found.append(file)

    assert [file for file in found if file.range != piece] == []
    assert len(list(tmp_path.glob("_staged/*"))) == len(found)


def test_row_of_another_queue_fails_the_task(tmp_path: Path) -> None:
    """A row of a queue that was not requested is an error."""
    log = ToyLog({ONE: 200, TWO: 10})
    batches = log.batches([QueueRange(ONE, 0, 10), QueueRange(TWO, 0, 10)])

    with pytest.raises(ReadIncomplete, match="bills"):
        list(write_files(batches, [QueueRange(ONE, 0, 10)], Folder(str(tmp_path)), ArchiveFormat(100), Packing()))
