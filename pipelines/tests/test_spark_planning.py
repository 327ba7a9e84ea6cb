"""Splitting a read into tasks: nothing is lost and nothing is read twice, however wrong the estimated sizes."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_rocketmq.batch_reader import split_options
from pyspark_rocketmq.model import QueueId, QueueRange, Replica, Task, TransportKind
from pyspark_rocketmq.options import read_options
from pyspark_rocketmq.planning import (
    BYTES_TARGET,
    BYTES_WORTHWHILE,
    Extent,
    SplitOptions,
    can_chunk,
    is_dense,
    plan_tasks,
    task_bytes,
)

BROKERS = ("broker-a", "broker-b")
PLAIN = {name: (Replica(name, 1, "a:1"), Replica(name, 0, "a:2")) for name in BROKERS}
WITH_SIDECARS = {
    name: (Replica(name, 1, "a:1", sidecar="http://a"), Replica(name, 0, "a:2", "http://b")) for name in BROKERS
}


Row = tuple[QueueId, int, int, int]
"""A queue, an offset, and of its record the place and the size."""


@st.composite
def logs(draw: st.DrawFn) -> list[Row]:
    """Draw records of some queues of two brokers, in the order of their logs."""
    rows: list[Row] = []
    for broker in BROKERS:
        place, counts = 1000, Counter[QueueId]()
        for number, size in draw(st.lists(st.tuples(st.integers(0, 3), st.integers(91, 400)), max_size=40)):
            queue = QueueId("orders" if number < 3 else "other", broker, number)
            rows.append((queue, counts[queue], place, size))
            counts[queue] += 1
            place += size
    return rows


@st.composite
def wanted(draw: st.DrawFn) -> tuple[list[Row], list[Extent]]:
    """Draw such logs, and ranges of their queues with sizes that may be wrong."""
    rows = draw(logs())
    extents: list[Extent] = []
    for queue in sorted({row[0] for row in rows}):
        those = [row for row in rows if row[0] == queue]
        begin = draw(st.integers(0, len(those)))
        end = draw(st.integers(begin, len(those)))
        if begin < end:
            last = those[end - 1]
            size = draw(st.integers(1, 1000))
            extents.append(Extent(QueueRange(queue, begin, end), those[begin][2], last[2] + last[3], size))
    return rows, extents


def rows_of(task: Task, rows: list[Row]) -> list[tuple[QueueId, int]]:
    """Return the rows that a reader gets from a task."""
    found: list[tuple[QueueId, int]] = []
    for queue, offset, place, _ in rows:
        is_in_chunk = task.physical is None or task.physical[0] <= place < task.physical[1]
        if queue.broker == task.broker and is_in_chunk:
            found += [(queue, offset) for one in task.ranges if one.queue == queue and one.begin <= offset < one.end]
    return found


@given(wanted(), st.sampled_from([PLAIN, WITH_SIDECARS]), st.integers(1, 5000), st.integers(1, 9), st.integers(1, 4))
def test_tasks_together_have_the_requested_messages(
    drawn: tuple[list[Row], list[Extent]],
    replicas: dict[str, tuple[Replica, ...]],
    bytes_target: int,
    partitions_min: int,
    cores: int,
) -> None:
    """Each message of the ranges is in one task, once, and no other message is in any, however the read is split."""
    rows, extents = drawn
    cut = SplitOptions(("offset",), bytes_target=bytes_target, partitions_min=partitions_min, cores=cores)

    read = Counter(row for task in plan_tasks(extents, replicas, cut) for row in rows_of(task, rows))

    asked = Counter((one.range.queue, at) for one in extents for at in range(one.range.begin, one.range.end))
    assert read == asked


@given(wanted(), st.integers(1, 5000))
def test_task_has_one_broker_and_is_never_empty(drawn: tuple[list[Row], list[Extent]], bytes_target: int) -> None:
    """A worker reads a task from one broker's replicas, and has something to read."""
    _, extents = drawn
    for task in plan_tasks(extents, WITH_SIDECARS, SplitOptions(("offset",), bytes_target=bytes_target)):
        assert task.ranges and all(one.queue.broker == task.broker and one.count > 0 for one in task.ranges)
        assert task.physical is None or task.physical[0] < task.physical[1]


def extent(number: int, count: int, begin: int, end: int, size: int = 1000) -> Extent:
    return Extent(QueueRange(QueueId("orders", "broker-a", number), 0, count), begin, end, size)


def test_dense_stretch_is_read_as_a_whole() -> None:
    """If half of the bytes or more are wanted, tasks are chunks of the log, otherwise ranges of queues."""
    dense = [extent(0, 600, 0, 1_000_000), extent(1, 300, 500, 990_000)]
    sparse = [extent(0, 100, 0, 1_000_000)]
    cut = SplitOptions(("offset",), bytes_target=300_000)

    assert is_dense(dense) and not is_dense(sparse)
    assert [task.physical for task in plan_tasks(dense, WITH_SIDECARS, cut)] == [
        (0, 333333),
        (333333, 666666),
        (666666, 1000000),
    ]
    assert [task.physical for task in plan_tasks(sparse, WITH_SIDECARS, cut)] == [None]


@pytest.mark.parametrize(
    ("transport", "replicas", "expected"),
    [
        (TransportKind.AUTO, WITH_SIDECARS["broker-a"], True),
        (TransportKind.AUTO, (*WITH_SIDECARS["broker-a"], Replica("broker-a", 2, "a:3")), False),
        (TransportKind.AUTO, (Replica("broker-a", 0, "a:1", directory="/data"),), True),
        (TransportKind.AUTO, (), False),
        (TransportKind.PULL, WITH_SIDECARS["broker-a"], False),
        (TransportKind.HTTP, PLAIN["broker-a"], True),
    ],
    ids=["sidecars", "one without", "directory", "no replica", "pull", "http"],
)
def test_chunks_are_planned_only_if_every_replica_can_read_them(
    transport: TransportKind, replicas: tuple[Replica, ...], expected: bool
) -> None:
    """A chunk must not come to a replica that has only RocketMQ's protocol."""
    assert can_chunk(replicas, transport) is expected


def test_there_are_about_as_many_tasks_as_cores() -> None:
    """A small read is one task, a medium one has a task for each core, a large one more, so that none is too large."""
    cut = SplitOptions(("offset",), bytes_target=128 << 20, cores=4)

    assert task_bytes(1000, cut) == 1000
    assert task_bytes(3 * BYTES_WORTHWHILE, cut) == BYTES_WORTHWHILE
    assert task_bytes(400 << 20, cut) == 100 << 20
    assert task_bytes(10 << 30, cut) == 128 << 20


def test_tasks_without_bodies_are_larger() -> None:
    """Headers cost a task few of its bytes; a configured size has precedence, and tags need the properties."""
    given = {"nameServers": "127.0.0.1:9876", "subscribe": "orders"}
    options = read_options(given, is_stream=False)

    assert split_options(options, ("queue", "bodySize"), None).bytes_target == 4 * BYTES_TARGET
    assert split_options(options, ("queue", "body"), None).bytes_target == BYTES_TARGET
    assert split_options(options, ("queue",), frozenset({"red"})).bytes_target == BYTES_TARGET
    small = read_options({**given, "targetPartitionBytes": "1m"}, is_stream=False)
    assert split_options(small, ("queue",), None).bytes_target == 1 << 20


def test_min_partitions_is_honoured_while_there_are_messages() -> None:
    """`minPartitions` splits queues, too; a message is never cut."""
    tasks = plan_tasks([extent(0, 10, 0, 10_000)], PLAIN, SplitOptions(("offset",), partitions_min=4))
    assert [task.count for task in tasks] == [2, 2, 2, 2, 2]
    assert len(plan_tasks([extent(0, 3, 0, 3000)], PLAIN, SplitOptions(("offset",), partitions_min=9))) == 3
