"""The remainder source without Spark: what is planned is read exactly, or the read stops."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan
from spark_kit.fake_catalog import FakeCatalog, FakeClock
from spark_kit.toy_archive import archive_log
from spark_kit.toy_log import ToyLog

from gantry_pipelines.archive import remainder_source
from gantry_pipelines.archive.fork_check import KnownMessage
from gantry_pipelines.archive.manifest_reader import read_manifest
from gantry_pipelines.archive.object_storage import storage_of
from gantry_pipelines.archive.remainder_source import (
    PLAN_OPTION,
    FileSlice,
    PushingRemainderReader,
    RemainderPlan,
    RemainderReader,
    RemainderSource,
    SlicesPartition,
    pack_slices,
    read_slices,
)
from pyspark_rocketmq.errors import DataLost, LogForked
from pyspark_rocketmq.model import QueueId, QueueRange
from pyspark_rocketmq.schema import COLUMNS

QUEUE, OTHER = QueueId("orders", "broker-a", 0), QueueId("orders", "broker-a", 1)
HEAD, TAIL = QueueRange(QUEUE, 5, 10), QueueRange(QUEUE, 20, 30)


@pytest.fixture
def catalog() -> FakeCatalog:
    """A broker with two queues of thirty messages."""
    found = FakeCatalog()
    for queue in (QUEUE, OTHER):
        found.add_queue(queue.topic, queue.broker, queue.number)
        found.append(queue, 30)
    return found


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """A clock that does not wait."""
    found = FakeClock()
    monkeypatch.setattr(remainder_source, "SystemClock", lambda: found)
    monkeypatch.setattr(remainder_source, "check_not_forked", lambda *_: None)
    return found


def reader_of(*ranges: QueueRange, **options: str) -> RemainderReader:
    """Return the reader of these ranges, as Spark creates it."""
    plan = RemainderPlan("/nowhere", ranges)
    given = {"nameServers": "-", "subscribe": "orders", "patience": "1s", PLAN_OPTION: plan.to_json(), **options}
    source = RemainderSource(given)
    return source.reader(None)  # type: ignore[arg-type]


def test_plan_survives_its_text() -> None:
    """A plan is an option of the source, as JSON."""
    known = KnownMessage(QUEUE, 9, ("id", 1, 2, None))
    plan = RemainderPlan("s3://b/p?region=x", (HEAD, TAIL), (known,), (FileSlice("data/x", "orders", 1, 2, 3),))
    assert RemainderPlan.from_json(plan.to_json()) == plan


def test_several_ranges_of_a_queue_become_tasks_once(catalog: FakeCatalog) -> None:
    """A queue may be read before and after its archived messages."""
    tasks = reader_of(HEAD, TAIL, QueueRange(OTHER, 0, 30), minPartitions="3").tasks(catalog)
    offsets = [(one.queue, at) for task in tasks for one in task.ranges for at in range(one.begin, one.end)]
    wanted = [(QUEUE, at) for at in (*range(5, 10), *range(20, 30))] + [(OTHER, at) for at in range(30)]
    assert sorted(offsets) == wanted


def test_replica_that_is_behind_the_plan_is_waited_for(catalog: FakeCatalog, clock: FakeClock) -> None:
    """After a failover the end may be readable only a moment later."""
    catalog.brokers["broker-a"].hidden[QUEUE] = 25
    clock.at[1] = lambda: catalog.brokers["broker-a"].hidden.clear()
    assert reader_of(HEAD, TAIL).ranges(catalog) == [HEAD, TAIL]
    assert clock.slept


def test_replica_that_stays_behind_is_an_error(catalog: FakeCatalog) -> None:
    """Twin: what is not readable in time is never left out silently."""
    catalog.brokers["broker-a"].hidden[QUEUE] = 25
    with pytest.raises(DataLost, match="now ends at 25"):
        reader_of(HEAD, TAIL).ranges(catalog)


def test_messages_that_were_deleted_after_the_plan(catalog: FakeCatalog, tmp_path: Path) -> None:
    """They stop the read, or are counted and skipped."""
    catalog.expire(QUEUE, 22)
    with pytest.raises(DataLost, match="were deleted"):
        reader_of(HEAD, TAIL).ranges(catalog)
    reader = reader_of(HEAD, TAIL, failOnDataLoss="false", gapsPath=str(tmp_path))
    assert reader.ranges(catalog) == [QueueRange(QUEUE, 22, 30)]
    assert len(list(tmp_path.glob("gaps-*.json"))) == 1
    catalog.fork("broker-a", 28)
    accepting = reader_of(TAIL, QueueRange(OTHER, 0, 30), failOnDataLoss="false")
    assert accepting.ranges(catalog) == [QueueRange(QUEUE, 22, 28)]


def test_known_messages_are_checked_before_each_read(catalog: FakeCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork below the archived end after the plan stops the read."""

    def refuse(known: tuple[KnownMessage, ...], *_: object) -> None:
        raise LogForked(str(len(known)))

    monkeypatch.setattr(remainder_source, "check_not_forked", refuse)
    with pytest.raises(LogForked, match="0"):
        reader_of(TAIL).ranges(catalog)


def test_filters_narrow_what_is_read_from_brokers(catalog: FakeCatalog) -> None:
    """Spark applies each filter again, because files are not narrowed."""
    reader = reader_of(HEAD, TAIL, QueueRange(OTHER, 0, 30), pushdown="true")
    assert isinstance(reader, PushingRemainderReader)
    filters: list[Any] = [EqualTo(("queue",), 0), GreaterThan(("offset",), 7), EqualTo(("tags",), "red")]
    assert list(reader.pushFilters(filters)) == filters
    assert reader.ranges(catalog) == [QueueRange(QUEUE, 8, 10), TAIL]
    assert reader.wanted_tags() == frozenset({"red"})


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


def test_partitions_of_files_need_no_broker(tmp_path: Path) -> None:
    """A plan that reads only files has no task of a broker."""
    archive_log(ToyLog({QUEUE: 20}), tmp_path)
    [file] = read_manifest(storage_of(str(tmp_path))).data()
    plan = RemainderPlan(str(tmp_path), slices=(FileSlice(file.place.path, "orders", 3, 10, 5),))
    options = {"nameServers": "-", "subscribe": "orders", "columns": "offset", PLAN_OPTION: plan.to_json()}
    reader = RemainderSource(options).reader(None)  # type: ignore[arg-type]
    [partition] = reader.partitions()
    assert isinstance(partition, SlicesPartition)
    assert [row["offset"] for batch in reader.read(partition) for row in batch.to_pylist()] == list(range(3, 13))
    (tmp_path / file.place.path).unlink()
    with pytest.raises(DataLost, match=r"was deleted from .* after the query was planned"):
        list(reader.read(partition))
