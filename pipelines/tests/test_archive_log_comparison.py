"""The comparison of an archive with the log: pyarrow and DuckDB find missing, duplicate and altered rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from exactly_once import log_comparison
from exactly_once.load import body_of, number_of
from spark_kit.toy_archive import archive_log
from spark_kit.toy_log import ToyLog
from spark_kit.toy_log import body_of as toy_body

from pyspark_rocketmq.model import QueueId

QUEUE = QueueId("orders", "broker-a", 0)


def log_of(path: Path, change: Callable[[list[dict[str, object]]], None]) -> Path:
    rows: list[dict[str, object]] = [{"queue": 0, "offset": one, "body": toy_body(QUEUE, one)} for one in range(150)]
    change(rows)
    pq.write_table(pa.Table.from_pylist(rows, schema=log_comparison.SCHEMA), path)
    return path


@pytest.mark.parametrize(
    "compare", [log_comparison.compare_with_pyarrow, log_comparison.compare_with_duckdb], ids=["pyarrow", "duckdb"]
)
def test_each_reader_finds_every_difference(tmp_path: Path, compare: Callable[[Path, Path], list[str]]) -> None:
    """Equal rows are no finding; an additional, a missing, a duplicate and an altered row each are one."""
    archive_log(ToyLog({QUEUE: 150}), tmp_path / "archive")
    changes: dict[str, Callable[[list[dict[str, object]]], None]] = {
        "more": lambda rows: rows.append({"queue": 0, "offset": 150, "body": b"x"}),
        "fewer": lambda rows: rows.clear(),
        "twice": lambda rows: rows.append(dict(rows[3])),
        "altered": lambda rows: rows[7].update(body=b"x"),
    }

    good = compare(tmp_path / "archive", log_of(tmp_path / "log.parquet", lambda rows: None))
    bad = {
        name: compare(tmp_path / "archive", log_of(tmp_path / f"{name}.parquet", one)) for name, one in changes.items()
    }

    assert good == []
    assert all(len(found) == 1 for found in bad.values()), bad


def test_body_identifies_its_message() -> None:
    """All bodies differ, and a truncated body is not accepted."""
    assert len({body_of(number) for number in range(1000)}) == 1000
    assert number_of(body_of(7)) == 7
    with pytest.raises(ValueError, match="is not that of message 7"):
        number_of(body_of(7)[:-1])
