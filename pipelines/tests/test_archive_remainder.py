"""Tasks in Python workers without Spark: what is planned is read exactly, or the read stops."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from spark_kit.toy_archive import archive_log
from spark_kit.toy_log import ToyLog

from gantry_pipelines.archive import remainder
from gantry_pipelines.archive.fork_check import KnownMessage
from gantry_pipelines.archive.manifest_reader import read_manifest
from gantry_pipelines.archive.object_storage import storage_of
from gantry_pipelines.archive.remainder import (
    BrokerWork,
    FileSlice,
    broker_works,
    file_works,
    pack_slices,
    read_slices,
    read_works,
)
from pyspark_rocketmq.errors import DataLost, LogForked
from pyspark_rocketmq.model import QueueId, QueueRange, Task, TransportKind
from pyspark_rocketmq.schema import COLUMNS
from pyspark_rocketmq.settings import ReadSettings

QUEUE, OTHER = QueueId("orders", "broker-a", 0), QueueId("orders", "broker-a", 1)
SETTINGS = ReadSettings(name_servers="-", batch_rows=30)


def task_of(queue: QueueId) -> Task:
    """Return a task that reads one message."""
    return Task(queue.broker, (), TransportKind.AUTO, (QueueRange(queue, 0, 1),), COLUMNS)


def test_first_task_of_each_broker_checks_the_archived_messages() -> None:
    """Each archived message is compared once in each execution, before a row of its broker is returned."""
    far = QueueId("orders", "broker-b", 0)
    known = [KnownMessage(queue, 9, ("id", 1, 2, None)) for queue in (QUEUE, OTHER, far)]
    works = broker_works([task_of(QUEUE), task_of(OTHER), task_of(far)], known)
    assert [work.known for work in works] == [tuple(known[:2]), (), (known[2],)]


@pytest.mark.parametrize("is_checked", [True, False])
def test_forked_log_returns_no_row(monkeypatch: pytest.MonkeyPatch, is_checked: bool) -> None:
    """A fork below the archived end after the plan stops the read. Twin: without known messages rows are returned."""

    def refuse(known: tuple[KnownMessage, ...], *_: object) -> None:
        if known:
            raise LogForked("forked")

    monkeypatch.setattr(remainder, "check_not_forked", refuse)
    monkeypatch.setattr(remainder, "read_task", lambda *_: iter(["a batch"]))
    work = BrokerWork(task_of(QUEUE), (KnownMessage(QUEUE, 9, ()),) if is_checked else ())
    rows = read_works([pa.RecordBatch.from_pydict({"id": [0]})], (work,), SETTINGS)
    if is_checked:
        with pytest.raises(LogForked):
            next(rows)
    else:
        assert len(list(rows)) == 1


# -- files -------------------------------------------------------------------------------------------------------------


def rows_of(log: ToyLog, keep: Callable[[QueueId, int], bool]) -> list[dict[str, Any]]:
    """Return the expected rows of a log."""
    return [log.row(queue, at) for queue, end in log.ends.items() for at in range(end) if keep(queue, at)]


def read_all(root: Path, parts: dict[QueueId, tuple[int, int]], columns: tuple[str, ...], tags: frozenset[str] | None) \
        -> list[dict[str, Any]]:  # fmt: skip
    """Read offsets of the queues of an archive as the source reads them from an object store."""
    storage = storage_of(str(root))
    slices = []
    for file in read_manifest(storage).data():
        low, high = parts[file.range.queue]
        begin, end = max(low, file.range.begin), min(high, file.range.end)
        if begin < end:
            slices.append(FileSlice(file.place.path, "orders", begin - file.range.begin, end - begin, 1))
    return [row for batch in read_slices(storage, slices, columns, tags, 30) for row in batch.to_pylist()]


def test_slices_of_files_have_the_rows_of_the_log(tmp_path: Path) -> None:
    """All columns, from any row to any other, also across files and Arrow batches; tags select rows."""
    log = ToyLog({QUEUE: 250, OTHER: 130})
    archive_log(log, tmp_path)
    parts = {QUEUE: (95, 231), OTHER: (0, 130)}

    def is_wanted(queue: QueueId, at: int) -> bool:
        return parts[queue][0] <= at < parts[queue][1]

    found = read_all(tmp_path, parts, COLUMNS, None)
    wanted = rows_of(log, is_wanted)
    assert [(row["queue"], row["offset"], row["body"]) for row in found] == [
        (row["queue"], row["offset"], row["body"]) for row in wanted
    ]
    assert [row["properties"] for row in found] == [row["properties"] for row in wanted]
    assert {row["topic"] for row in found} == {"orders"}
    tagged = read_all(tmp_path, parts, ("offset", "topic"), frozenset({"tag-1"}))
    assert tagged == [
        {"offset": row["offset"], "topic": "orders"}
        for row in rows_of(log, lambda queue, at: is_wanted(queue, at) and at % 3 == 1)
    ]
    assert len(read_all(tmp_path, parts, ("topic",), None)) == len(wanted)


def test_slices_are_packed_into_tasks() -> None:
    """There are as many tasks as cores, more for large files, none without a slice, and no slice is lost."""
    slices = [FileSlice(str(number), "orders", 0, 1, 10) for number in range(7)]
    groups = pack_slices(slices, 2)
    assert len(groups) == 2 and [one for group in groups for one in group] == slices
    large = [FileSlice(str(number), "orders", 0, 1, 100 << 20) for number in range(6)]
    assert [len(group) for group in pack_slices(large, 2)] == [2, 2, 2]
    assert pack_slices([], 2) == []


def test_task_of_files_ends_if_a_file_has_expired(tmp_path: Path) -> None:
    """A task reads its slices by their paths; a file that is gone is an error."""
    archive_log(ToyLog({QUEUE: 20}), tmp_path)
    storage = storage_of(str(tmp_path))
    [file] = read_manifest(storage).data()
    works = file_works(storage, [FileSlice(file.place.path, "orders", 3, 10, 5)], ("offset",), None)
    chosen = [pa.RecordBatch.from_pydict({"id": [0]})]

    def offsets() -> list[int]:
        return [row["offset"] for batch in read_works(chosen, tuple(works), SETTINGS) for row in batch.to_pylist()]

    assert offsets() == list(range(3, 13))
    (tmp_path / file.place.path).unlink()
    with pytest.raises(DataLost, match=r"was deleted from .* after the query was planned"):
        offsets()
