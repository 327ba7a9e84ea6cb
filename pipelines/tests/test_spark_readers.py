"""The readers, called as Spark calls them, with real brokers and without a JVM."""

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
from msgspec.structs import replace
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, In, IsNotNull, LessThan, StringContains
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows
from spark_kit.fake_catalog import FakeCatalog, FakeClock
from spark_kit.processes import Group, Sent
from spark_kit.stored import piece_of, stored
from spark_kit.topics import places, send_to_new_topic

from gantry_client.sync import Admin, PullConsumer
from gantry_wire.message import StoredMessage
from pyspark_rocketmq import message_times
from pyspark_rocketmq.batch_reader import PushingBatchReader, TaskPartition
from pyspark_rocketmq.decode import TIME_MS_END, decode
from pyspark_rocketmq.errors import DataLost, NoReplica
from pyspark_rocketmq.model import QueueId
from pyspark_rocketmq.options import read_options
from pyspark_rocketmq.stream_reader import StreamReader

COLUMNS = ("queue", "offset")
Places = list[tuple[int, int]]


def stream(brokers: Group, **options: str) -> StreamReader:
    """Return a reader as Spark creates it in the process beside the driver."""
    given = {"nameServers": brokers.name_server, "startingOffsets": "earliest", **options}
    return StreamReader(read_options(given, is_stream=True), COLUMNS)


def rows_of(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> Places:
    """Return the rows of a batch, each task read by a pickled copy of the reader."""
    found: Places = []
    for partition in reader.partitions(start, end):
        worker = pickle.loads(pickle.dumps(reader))
        for batch in worker.read(pickle.loads(pickle.dumps(partition))):
            found += zip(batch.column("queue").to_pylist(), batch.column("offset").to_pylist(), strict=True)
    return found


def as_logged(offset: dict[str, Any]) -> dict[str, Any]:
    """Return an offset as Spark logs and parses it."""
    kept: dict[str, Any] = json.loads(json.dumps(offset))
    return kept


@pytest.mark.verify
def test_batches_with_random_limits_are_together_the_log(brokers: Group) -> None:
    """With any limits, transports and restarts the batches are together the acknowledged messages."""
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    sent: list[Sent] = send_to_new_topic(brokers, "pieces", 1)
    rows, offset = Places(), stream(brokers, subscribe="pieces").initialOffset()
    for turn in range(6):
        sent += brokers.send(rng.randrange(1, 60), topic="pieces", bytes_each=rng.randrange(10, 2000))
        way = rng.choice([{"transport": "pull"}, {"sidecars": brokers.sidecar_urls[0]}, {}])
        limit = "1000000" if turn == 5 else str(rng.randrange(1, 50))
        reader = stream(brokers, subscribe="pieces", maxRowsPerTrigger=limit, minPartitions=str(turn + 1), **way)
        end = as_logged(reader.latestOffset(offset, reader.getDefaultReadLimit()))
        first, again = rows_of(reader, offset, end), None
        if rng.random() < 0.5:
            reader.stop()
            reader = stream(brokers, subscribe="pieces")
            again = rows_of(reader, offset, end)
        assert again is None or sorted(again) == sorted(first), f"seed {seed}: a repeated batch has other rows"
        rows, offset = rows + first, end
        reader.stop()

    assert sorted(rows) == places(sent), f"seed {seed}"


@pytest.mark.verify
def test_group_offsets_never_exceed_what_spark_committed(brokers: Group) -> None:
    """A batch that was planned, or even read, is not committed before Spark asks for the batch after it."""
    send_to_new_topic(brokers, "committed", 40)
    reader = stream(brokers, subscribe="committed", commitGroup="watchers")
    first = as_logged(reader.latestOffset(reader.initialOffset(), ReadAllAvailable()))
    rows_of(reader, reader.initialOffset(), first)
    with PullConsumer(brokers.name_server, "watchers") as consumer:
        queues = [queue for queue in consumer.queues("committed") if consumer.max_offset(queue)]
        assert [consumer.committed(queue) for queue in queues] == [None] * 4

        assert reader.latestOffset(first, ReadAllAvailable()) == first
        assert [consumer.committed(queue) for queue in queues] == [10] * 4
    reader.stop()


def test_added_queue_is_read_from_its_first_message(brokers: Group) -> None:
    """This also holds for a query that began at the latest messages."""
    send_to_new_topic(brokers, "growing", 10, queues=1)
    reader = stream(brokers, subscribe="growing", startingOffsets="latest", discoveryInterval="0")
    start = as_logged(reader.latestOffset(reader.initialOffset(), ReadAllAvailable()))
    assert rows_of(reader, reader.initialOffset(), start) == []
    with Admin(brokers.name_server) as admin:
        admin.wait(admin.topics.create("growing", queues=8))
    late = brokers.send(16, topic="growing", queues=8)

    end, rows = start, Places()
    for _ in range(20):
        before, end = end, as_logged(reader.latestOffset(end, ReadAllAvailable()))
        rows += rows_of(reader, before, end)
        if len(rows) == len(late):
            break
    assert sorted(rows) == places(late)
    reader.stop()


def test_lost_messages_are_a_row_in_the_gaps_table(tmp_path: Path) -> None:
    """A batch with gaps writes one file, the same one when it is repeated; a batch without gaps writes none."""
    view = FakeCatalog()
    queue = view.add_queue("orders", "broker-a", 0)
    view.append(queue, 10)
    options = {"nameServers": "ns:1", "subscribe": "orders", "startingOffsets": "earliest", "maxRowsPerTrigger": "3"}
    options |= {"failOnDataLoss": "false", "gapsPath": str(tmp_path / "gaps")}

    def reader() -> StreamReader:
        return StreamReader(read_options(options, is_stream=True), COLUMNS, view, clock=FakeClock())

    running = reader()
    first = running.latestOffset(running.initialOffset(), ReadMaxRows(3))
    running.partitions(running.initialOffset(), first)
    assert not (tmp_path / "gaps").exists()
    view.expire(queue, 7)
    second = as_logged(running.latestOffset(first, ReadMaxRows(3)))
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
def test_default_read_limit_is_the_first_limit(options: dict[str, str], limit: Any, expected: Any) -> None:
    """Trigger.Once, which requests everything, gets everything."""
    view = FakeCatalog()
    queue = view.add_queue("orders", "broker-a", 0)
    view.append(queue, 10)
    given = {"nameServers": "ns:1", "subscribe": "orders", "startingOffsets": "earliest", **options}
    reader = StreamReader(read_options(given, is_stream=True), COLUMNS, view)

    assert reader.getDefaultReadLimit() == expected
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert end["o"] == {"orders": {"broker-a": {"0": 10}}}


def batch_of(catalog: FakeCatalog, *filters: Any, **options: str) -> tuple[Places, list[Any]]:
    """Return what a filtered batch reads, and the filters that it hands back."""
    reader = PushingBatchReader(
        read_options({"nameServers": "ns:1", "subscribe": "orders", **options}, is_stream=False), COLUMNS
    )
    rest = list(reader.pushFilters(list(filters)))
    found: Places = []
    for task in reader.tasks(catalog):
        found += [(one.queue.number, at) for one in task.ranges for at in range(one.begin, one.end)]
    return sorted(found), rest


@pytest.fixture
def orders_catalog() -> FakeCatalog:
    view = FakeCatalog()
    for number in range(3):
        queue = view.add_queue("orders", "broker-a", number)
        for minute in range(100):
            view.append(queue, stored_ms=minute * 60_000)
    return view


def test_pushed_filters_narrow_the_read(orders_catalog: FakeCatalog) -> None:
    """Exact filters are not handed back to Spark, all others are."""
    queue, offset, low = EqualTo(("queue",), 2), LessThan(("offset",), 5), GreaterThanOrEqual(("offset",), 3)
    assert batch_of(orders_catalog, queue, offset, low, IsNotNull(("queue",))) == ([(2, 3), (2, 4)], [])

    some, body = In(("queue",), (0, 1)), StringContains(("keys",), "x")
    rows, rest = batch_of(orders_catalog, some, body)
    assert {number for number, _ in rows} == {0, 1} and len(rows) == 200 and rest == [body]

    assert batch_of(orders_catalog, EqualTo(("broker",), "broker-b")) == ([], [])
    assert batch_of(orders_catalog, EqualTo(("queue",), 1.5))[1] != []


def test_time_filters_are_widened_by_a_margin(orders_catalog: FakeCatalog) -> None:
    """Clocks of two masters may differ: messages within ten minutes are read, and Spark drops unwanted ones."""
    moment = pa.scalar(50 * 60_000_000, pa.timestamp("us", tz="UTC")).as_py()
    filters = GreaterThanOrEqual(("storeTime",), moment), LessThan(("storeTime",), moment)
    rows, rest = batch_of(orders_catalog, *filters)

    assert rest == list(filters)
    assert Counter(number for number, _ in rows) == {0: 20, 1: 20, 2: 20}
    assert min(rows) == (0, 40) and max(rows) == (2, 59)


def test_batch_ends_at_the_configured_position(orders_catalog: FakeCatalog) -> None:
    """A batch begins and ends at times; a starting offset whose message was deleted already is a loss."""
    rows, _ = batch_of(orders_catalog, startingTimestamp="60000", endingTimestamp="180000")
    assert rows == [(number, at) for number in range(3) for at in (1, 2)]
    assert batch_of(orders_catalog, startingTimestamp="180000", endingTimestamp="60000") == ([], [])

    orders_catalog.expire(QueueId("orders", "broker-a", 1), 40)
    starts = '{"orders": {"broker-a": {"0": -1, "1": 30, "2": -1}}}'
    with pytest.raises(DataLost, match="orders/broker-a/1 was to be read from 30 on"):
        batch_of(orders_catalog, startingOffsets=starts)
    assert len(batch_of(orders_catalog, startingOffsets=starts, failOnDataLoss="false")[0]) == 60


def test_loss_of_a_batch_ends_where_its_range_ends(orders_catalog: FakeCatalog, tmp_path: Path) -> None:
    """Messages that were deleted behind the requested range are not lost to this read."""
    orders_catalog.expire(QueueId("orders", "broker-a", 1), 40)
    options = {
        "startingOffsets": '{"orders": {"broker-a": {"0": 0, "1": 10, "2": 0}}}',
        "endingOffsets": '{"orders": {"broker-a": {"0": 1, "1": 30, "2": 0}}}',
    }

    with pytest.raises(DataLost, match="its messages below 30 were deleted: 20 messages are lost"):
        batch_of(orders_catalog, **options)
    rows, _ = batch_of(orders_catalog, **options, failOnDataLoss="false", gapsPath=str(tmp_path / "gaps"))

    (file,) = (tmp_path / "gaps").iterdir()
    assert rows == [(0, 0)]
    assert [json.loads(line) for line in file.read_text().splitlines()] == [
        {"topic": "orders", "broker": "broker-a", "queue": 1, "begin": 10, "end": 30, "rows": 20, "kind": "expired"}
    ]


@pytest.mark.verify
def test_unavailable_broker_is_an_error_after_patience(free_address: Callable[[], str]) -> None:
    """The error names the request, and is not raised earlier: a failover is no reason to end a query."""
    options = {"nameServers": free_address(), "subscribe": "orders", "patience": "1s", "requestTimeout": "1s"}
    reader = StreamReader(read_options(options, is_stream=True), COLUMNS)
    with pytest.raises(NoReplica, match=r"orders.*timed out after 1000 ms"):
        reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    reader.stop()


def test_empty_read_has_a_schema_and_no_rows() -> None:
    """Spark makes a partition of nothing itself, and still needs the columns."""
    options = read_options({"nameServers": "ns:1", "subscribe": "orders"}, is_stream=False)
    reader = PushingBatchReader(options, COLUMNS)
    (found,) = reader.read(pickle.loads(pickle.dumps(TaskPartition(None))))

    assert found.num_rows == 0 and found.schema.names == list(COLUMNS)


class Unlisted:
    """Brokers of which no source names a replica any more."""

    def __init__(self, view: FakeCatalog) -> None:
        self.view = view
        self.requested: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.view, name)

    def replicas(self, broker: str) -> Any:
        self.requested.append(broker)
        raise NoReplica(f"no replica of {broker}")


def test_age_of_unread_messages_does_not_wait_for_an_unlisted_broker(
    orders_catalog: FakeCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is only shown as lag; the query continues at once, without the age."""
    waiting, non_waiting = Unlisted(orders_catalog), Unlisted(orders_catalog)
    monkeypatch.setattr(StreamReader, "non_waiting_catalog", non_waiting)
    options = {"nameServers": "ns:1", "subscribe": "orders", "startingOffsets": "earliest", "maxRowsPerTrigger": "3"}
    catalog: Any = waiting
    reader = StreamReader(read_options(options, is_stream=True), COLUMNS, catalog, clock=FakeClock())

    reader.latestOffset(reader.initialOffset(), ReadMaxRows(3))

    assert (waiting.requested, non_waiting.requested) == ([], ["broker-a"])
    reported = reader.reportLatestOffset()
    assert reported is not None and reported["oldest"] == {}


def test_message_without_a_valid_store_time_has_no_age(
    orders_catalog: FakeCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark cannot show a time beyond the year 9999: it is null, so IS NOT NULL is left to Spark, and it has no age."""
    is_set = IsNotNull(("storeTime",))
    assert batch_of(orders_catalog, is_set)[1] == [is_set]

    valid = StoredMessage(topic="orders", body=b"", queue_id=1, store_timestamp_ms=1_700_000_000_123)
    log = stored([replace(valid, queue_id=0, store_timestamp_ms=TIME_MS_END), valid])
    monkeypatch.setattr(message_times, "read_task", lambda task, _: decode(piece_of(log, task), task, batch_rows=10))
    settings = read_options({"nameServers": "ns:1", "subscribe": "orders"}, is_stream=True).settings
    unread = {QueueId("orders", "broker-a", number): 0 for number in (0, 1)}

    assert message_times.store_times_ms(unread, orders_catalog, settings) == {
        QueueId("orders", "broker-a", 1): 1_700_000_000_123
    }


class Masterless:
    """Brokers that can be read, but whose master is unavailable for some attempts."""

    def __init__(self, view: FakeCatalog, failures: int) -> None:
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
def test_failed_group_commit_is_repeated_later(
    orders_catalog: FakeCatalog, is_available_now: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A query continues while a master is missing; the next call commits, also without another batch.

    An AvailableNow query tries again before it ends.
    """
    brokers: Any = Masterless(orders_catalog, failures=1)
    options = {"nameServers": "ns:1", "subscribe": "orders", "startingOffsets": "earliest", "commitGroup": "billing"}
    clock = FakeClock()
    reader = StreamReader(read_options(options, is_stream=True), COLUMNS, brokers, clock=clock)
    if is_available_now:
        reader.prepareForTriggerAvailableNow()
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())

    assert reader.latestOffset(end, ReadAllAvailable()) == end
    assert bool(orders_catalog.groups) is is_available_now
    assert caplog.messages == ["failed to commit group offsets; retrying with the next call"]
    reader.latestOffset(end, ReadAllAvailable())
    assert set(orders_catalog.groups["billing"].values()) == {100}
    assert clock.slept  # it does not poll as often as Spark calls it
