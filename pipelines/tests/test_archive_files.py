"""What workers write. The rule: a file has exactly the rows that its name says, each in the folder of its own day."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from spark_kit.toy_log import HOUR_US, ToyLog

from gantry_pipelines.archive.errors import ReadIncomplete
from gantry_pipelines.archive.format import ALL, ArchiveFormat
from gantry_pipelines.archive.manifest import ArchivedFile, tiling_faults
from gantry_pipelines.archive.storage import Folder
from gantry_pipelines.archive.writing import Packing, write_files
from pyspark_rocketmq.model import QueueId, QueueRange
from pyspark_rocketmq.schema import arrow_schema

ONE, TWO = QueueId("orders", "broker-a", 0), QueueId("bills", "broker-a", 0)


def written(log: ToyLog, root: Path, *ranges: QueueRange, zone: str = "UTC") -> list[ArchivedFile]:
    """What a worker makes of them."""
    return list(write_files(log.batches(ranges), ranges, Folder(str(root)), ArchiveFormat(100, zone), Packing()))


def rows_of(root: Path, file: ArchivedFile) -> list[dict[str, object]]:
    """What is in a staged file."""
    with pq.ParquetFile(root / file.staged) as parquet:
        return parquet.read().to_pylist()


def test_mixed_queues_become_files_of_their_own(tmp_path: Path) -> None:
    """Rows of several queues and topics come as they lie in the log; each piece gets its own, all columns as read."""
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
    assert pq.read_schema(tmp_path / files[0].staged).equals(arrow_schema(ALL))


def test_a_range_over_midnight_is_a_file_a_day(tmp_path: Path) -> None:
    """Where the store time passes midnight of the archive's time zone, one file ends and the next begins."""
    log = ToyLog({ONE: 48}, step_us=HOUR_US)

    in_utc = written(log, tmp_path / "utc", QueueRange(ONE, 0, 48))
    in_kolkata = written(log, tmp_path / "kolkata", QueueRange(ONE, 0, 48), zone="Asia/Kolkata")

    assert [(f.place.day, f.range.begin, f.range.end) for f in in_utc] == [
        ("2026-11-22", 0, 12), ("2026-11-23", 12, 36), ("2026-11-24", 36, 48),
    ]  # fmt: skip
    assert [(f.place.day, f.range.begin, f.range.end) for f in in_kolkata] == [
        ("2026-11-22", 0, 7), ("2026-11-23", 7, 31), ("2026-11-24", 31, 48),
    ]  # fmt: skip


def test_a_clock_that_was_set_back_moves_no_row_to_another_day(tmp_path: Path) -> None:
    """Each row lies in the folder of its own store time, and the ranges tile, whatever the clock did."""
    log = ToyLog({ONE: 30}, step_us=HOUR_US, clock_back={13: 3 * HOUR_US, 14: 4 * HOUR_US})

    files = written(log, tmp_path, QueueRange(ONE, 0, 30))

    assert [(f.place.day[-2:], f.range.begin, f.range.end) for f in files] == [
        ("22", 0, 12), ("23", 12, 13), ("22", 13, 15), ("23", 15, 30),
    ]  # fmt: skip
    assert tiling_faults(file.range for file in files) == []


@pytest.mark.parametrize(
    ("given", "wanted", "said"),
    [
        ((0, 90), (0, 100), "the read ended"),
        ((5, 100), (0, 100), "offset 5 came"),
        ((0, 101), (0, 100), "offset 100 came"),
    ],
    ids=["short", "hole", "more"],
)
def test_a_name_never_promises_what_is_not_there(
    tmp_path: Path, given: tuple[int, int], wanted: tuple[int, int], said: str
) -> None:
    """A read that gives other rows than asked for ends the task; no file of that range comes out, and none is left."""
    log, piece = ToyLog({ONE: 200}), QueueRange(ONE, *wanted)
    batches = log.batches([QueueRange(ONE, *given)], batch_rows=1000)
    found: list[ArchivedFile] = []

    with pytest.raises(ReadIncomplete, match=said):
        for file in write_files(batches, [piece], Folder(str(tmp_path)), ArchiveFormat(100), Packing()):
            found.append(file)

    assert [file for file in found if file.range != piece] == []
    assert len(list(tmp_path.glob("_staged/*"))) == len(found)


def test_a_stranger_among_the_rows_ends_the_task(tmp_path: Path) -> None:
    """Rows of a queue that was not asked for are no rows of this archive."""
    log = ToyLog({ONE: 200, TWO: 10})
    batches = log.batches([QueueRange(ONE, 0, 10), QueueRange(TWO, 0, 10)])

    with pytest.raises(ReadIncomplete, match="bills"):
        list(write_files(batches, [QueueRange(ONE, 0, 10)], Folder(str(tmp_path)), ArchiveFormat(100), Packing()))
