"""The readers' own objects, called as Spark calls them, against real brokers and without a JVM."""

from __future__ import annotations

import json
import pickle
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, In, IsNotNull, LessThan, StringContains
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows
from spark_kit.fake_view import FakeTime, FakeView
from spark_kit.processes import Group, Sent
from spark_kit.topics import filled, places

from gantry_client.sync import Admin, PullConsumer
from pyspark_rocketmq.batch_reader import PushingBatchReader, TaskPartition
from pyspark_rocketmq.errors import DataLost, NoReplica
from pyspark_rocketmq.model import QueueId
from pyspark_rocketmq.options import read_options
from pyspark_rocketmq.stream_reader import StreamReader

PLACE = ("queue", "offset")
Places = list[tuple[int, int]]


def stream(brokers: Group, **options: str) -> StreamReader:
    """A reader as it is made in Spark's process beside the driver."""
    given = {"nameServers": brokers.name_server, "startingOffsets": "earliest", **options}
    return StreamReader(read_options(given, is_stream=True), PLACE)


def rows_of(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> Places:
    """A batch, each task read by a worker of its own, as what arrives there."""
    found: Places = []
    for partition in reader.partitions(start, end):
        worker = pickle.loads(pickle.dumps(reader))
        for batch in worker.read(pickle.loads(pickle.dumps(partition))):
            found += zip(batch.column("queue").to_pylist(), batch.column("offset").to_pylist(), strict=True)
    return found


def logged(offset: dict[str, Any]) -> dict[str, Any]:
    """As Spark keeps it."""
    kept: dict[str, Any] = json.loads(json.dumps(offset))
    return kept


@pytest.mark.verify
def test_random_limits_give_the_log_in_pieces(brokers: Group) -> None:
    """Whatever the limits, the ways and the restarts: the batches are together what was acknowledged."""
    seed = random.randrange(1 << 30)
    dice = random.Random(seed)
    sent: list[Sent] = filled(brokers, "pieces", 1)
    rows, offset = Places(), stream(brokers, subscribe="pieces").initialOffset()
    for turn in range(6):
        sent += brokers.send(dice.randrange(1, 60), topic="pieces", bytes_each=dice.randrange(10, 2000))
        way = dice.choice([{"transport": "pull"}, {"sidecars": brokers.urls[0]}, {}])
        limit = "1000000" if turn == 5 else str(dice.randrange(1, 50))
        reader = stream(brokers, subscribe="pieces", maxRowsPerTrigger=limit, minPartitions=str(turn + 1), **way)
        end = logged(reader.latestOffset(offset, reader.getDefaultReadLimit()))
        first, again = rows_of(reader, offset, end), None
        if dice.random() < 0.5:
            reader.stop()
            reader = stream(brokers, subscribe="pieces")
            again = rows_of(reader, offset, end)
        assert again is None or sorted(again) == sorted(first), f"seed {seed}: a batch that is done again is another"
        rows, offset = rows + first, end
        reader.stop()

    assert sorted(rows) == places(sent), f"seed {seed}"


@pytest.mark.verify
def test_a_group_is_told_only_what_spark_has_committed(brokers: Group) -> None:
    """A batch that was planned, and even read, is not committed before Spark says so: it asks for what is behind it."""
    filled(brokers, "told", 40)
    reader = stream(brokers, subscribe="told", commitGroup="watchers")
    first = logged(reader.latestOffset(reader.initialOffset(), ReadAllAvailable()))
    rows_of(reader, reader.initialOffset(), first)
    with PullConsumer(brokers.name_server, "watchers") as consumer:
        queues = [queue for queue in consumer.queues("told") if consumer.max_offset(queue)]
        assert [consumer.committed(queue) for queue in queues] == [None] * 4

        assert reader.latestOffset(first, ReadAllAvailable()) == first
        assert [consumer.committed(queue) for queue in queues] == [10] * 4
    reader.stop()


def test_a_queue_that_is_added_is_read_from_its_first_message(brokers: Group) -> None:
    """Also in a query that began at the latest messages."""
    filled(brokers, "growing", 10, queues=1)
    reader = stream(brokers, subscribe="growing", startingOffsets="latest", discoveryInterval="0")
    start = logged(reader.latestOffset(reader.initialOffset(), ReadAllAvailable()))
    assert rows_of(reader, reader.initialOffset(), start) == []
    with Admin(brokers.name_server) as admin:
        admin.wait(admin.topics.create("growing", queues=8))
    late = brokers.send(16, topic="growing", queues=8)

    end, rows = start, Places()
    for _ in range(20):
        before, end = end, logged(reader.latestOffset(end, ReadAllAvailable()))
        rows += rows_of(reader, before, end)
        if len(rows) == len(late):
            break
    assert sorted(rows) == places(late)
    reader.stop()


def test_messages_that_are_gone_are_a_row_in_the_gaps_table(tmp_path: Path) -> None:
    """One file for a batch with gaps, the same one when the batch is done again; nothing without gaps."""
    view = FakeView()
    queue = view.add_queue("orders", "broker-a", 0)
    view.append(queue, 10)
    options = {"nameServers": "ns:1", "subscribe": "orders", "startingOffsets": "earliest", "maxRowsPerTrigger": "3"}
    options |= {"failOnDataLoss": "false", "gapsPath": str(tmp_path / "gaps")}

    def reader() -> StreamReader:
        return StreamReader(read_options(options, is_stream=True), PLACE, view, clock=FakeTime())

    running = reader()
    first = running.latestOffset(running.initialOffset(), ReadMaxRows(3))
    running.partitions(running.initialOffset(), first)
    assert not (tmp_path / "gaps").exists()
    view.expire(queue, 7)
    second = logged(running.latestOffset(first, ReadMaxRows(3)))
    for one in (running, reader()):
        assert [task.value.ranges[0].begin for task in one.partitions(first, second)] == [7]

    (file,) = (tmp_path / "gaps").iterdir()
    row = {"topic": "orders", "broker": "broker-a", "queue": 0, "begin": 3, "end": 7, "rows": 4, "kind": "expired"}
    assert [json.loads(line) for line in file.read_text().splitlines()] == [row]


@pytest.mark.parametrize(
    ("options", "limit", "expected"),
    [
        ({}, ReadAllAvailable(), ReadAllAvailable()),
        ({"maxBytesPerTrigger": "1m", "minRowsPerTrigger": "5"}, ReadMaxBytes(1), ReadMaxBytes(1 << 20)),
        ({"maxRowsPerTrigger": "3", "maxBytesPerTrigger": "1m"}, ReadMaxRows(3), ReadMaxRows(3)),
        ({"minRowsPerTrigger": "5"}, ReadMinRows(5), ReadMinRows(5)),
    ],
    ids=["none", "bytes", "rows", "minimum"],
)
def test_spark_is_shown_the_first_limit(options: dict[str, str], limit: Any, expected: Any) -> None:
    """And Trigger.Once, which asks for everything, gets everything."""
    view = FakeView()
    queue = view.add_queue("orders", "broker-a", 0)
    view.append(queue, 10)
    given = {"nameServers": "ns:1", "subscribe": "orders", "startingOffsets": "earliest", **options}
    reader = StreamReader(read_options(given, is_stream=True), PLACE, view)

    assert reader.getDefaultReadLimit() == expected
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert end["o"] == {"orders": {"broker-a": {"0": 10}}}


def batch_of(catalog: FakeView, *filters: Any, **options: str) -> tuple[Places, list[Any]]:
    """What a filtered batch would read, and what it gives back."""
    reader = PushingBatchReader(
        read_options({"nameServers": "ns:1", "subscribe": "orders", **options}, is_stream=False), PLACE
    )
    rest = list(reader.pushFilters(list(filters)))
    found: Places = []
    for task in reader.tasks(catalog):
        found += [(one.queue.number, at) for one in task.ranges for at in range(one.begin, one.end)]
    return sorted(found), rest


@pytest.fixture
def orders() -> FakeView:
    view = FakeView()
    for number in range(3):
        queue = view.add_queue("orders", "broker-a", number)
        for minute in range(100):
            view.append(queue, stored_ms=minute * 60_000)
    return view


def test_filters_narrow_what_is_read(orders: FakeView) -> None:
    """What narrows exactly is not given back to Spark, everything else is."""
    queue, offset, low = EqualTo(("queue",), 2), LessThan(("offset",), 5), GreaterThanOrEqual(("offset",), 3)
    assert batch_of(orders, queue, offset, low, IsNotNull(("queue",))) == ([(2, 3), (2, 4)], [])

    some, body = In(("queue",), (0, 1)), StringContains(("keys",), "x")
    rows, rest = batch_of(orders, some, body)
    assert {number for number, _ in rows} == {0, 1} and len(rows) == 200 and rest == [body]

    assert batch_of(orders, EqualTo(("broker",), "broker-b")) == ([], [])
    assert batch_of(orders, EqualTo(("queue",), 1.5))[1] != []


def test_times_are_narrowed_with_a_margin(orders: FakeView) -> None:
    """Clocks of two masters may differ: what lies within ten minutes is read, and Spark drops what is not wanted."""
    moment = pa.scalar(50 * 60_000_000, pa.timestamp("us", tz="UTC")).as_py()
    filters = GreaterThanOrEqual(("storeTime",), moment), LessThan(("storeTime",), moment)
    rows, rest = batch_of(orders, *filters)

    assert rest == list(filters)
    assert Counter(number for number, _ in rows) == {0: 20, 1: 20, 2: 20}
    assert min(rows) == (0, 40) and max(rows) == (2, 59)


def test_a_batch_ends_where_it_is_told_to(orders: FakeView) -> None:
    """By offset and by time; a place that is gone already is a loss."""
    rows, _ = batch_of(orders, startingTimestamp="60000", endingTimestamp="180000")
    assert rows == [(number, at) for number in range(3) for at in (1, 2)]
    assert batch_of(orders, startingTimestamp="180000", endingTimestamp="60000") == ([], [])

    orders.expire(QueueId("orders", "broker-a", 1), 40)
    starts = '{"orders": {"broker-a": {"0": -1, "1": 30, "2": -1}}}'
    with pytest.raises(DataLost, match="orders/broker-a/1 was to be read from 30 on"):
        batch_of(orders, startingOffsets=starts)
    assert len(batch_of(orders, startingOffsets=starts, failOnDataLoss="false")[0]) == 60


@pytest.mark.verify
def test_nobody_to_ask_is_said_when_patience_ends(free_address: Callable[[], str]) -> None:
    """With the name of what was asked for, and no earlier: a failover is no reason to end a query."""
    options = {"nameServers": free_address(), "subscribe": "orders", "patience": "1s", "requestTimeout": "1s"}
    reader = StreamReader(read_options(options, is_stream=True), PLACE)
    with pytest.raises(NoReplica, match=r"orders.*nobody could tell within 1000 ms"):
        reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    reader.stop()


def test_an_empty_read_has_a_schema_and_no_rows() -> None:
    """Spark makes a partition of nothing itself, and still wants to be told the columns."""
    options = read_options({"nameServers": "ns:1", "subscribe": "orders"}, is_stream=False)
    reader = PushingBatchReader(options, PLACE)
    (found,) = reader.read(pickle.loads(pickle.dumps(TaskPartition(None))))

    assert found.num_rows == 0 and found.schema.names == list(PLACE)


class Masterless:
    """Brokers that can be read, and whose master cannot be told anything for some tries."""

    def __init__(self, view: FakeView, failures: int) -> None:
        self.view = view
        self.failures = failures

    def __getattr__(self, name: str) -> Any:
        return getattr(self.view, name)

    def commit_group(self, group: str, offsets: dict[QueueId, int]) -> None:
        self.failures -= 1
        if self.failures >= 0:
            raise NoReplica("no master")
        self.view.commit_group(group, offsets)


@pytest.mark.parametrize("is_available_now", [True, False])
def test_progress_that_could_not_be_told_is_told_later(orders: FakeView, is_available_now: bool) -> None:
    """While a master is missing a query reads on; an AvailableNow query tries once more before it ends."""
    brokers: Any = Masterless(orders, failures=1)
    options = {"nameServers": "ns:1", "subscribe": "orders", "startingOffsets": "earliest", "commitGroup": "billing"}
    clock = FakeTime()
    reader = StreamReader(read_options(options, is_stream=True), PLACE, brokers, clock=clock)
    if is_available_now:
        reader.prepareForTriggerAvailableNow()
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())

    assert reader.latestOffset(end, ReadAllAvailable()) == end
    assert bool(orders.groups) is is_available_now
    reader.latestOffset(end, ReadAllAvailable())
    assert set(orders.groups["billing"].values()) == {100}
    assert clock.slept  # it does not ask as often as Spark does
