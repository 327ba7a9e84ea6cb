"""A streaming query reads each message of the log once, despite forks, failovers and retention."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spark_kit.fake_catalog import FakeCatalog, FakeClock

from pyspark_rocketmq.errors import DataLost, InvalidOption, LogForked, NoReplica
from pyspark_rocketmq.gaps import Gap, GapKind
from pyspark_rocketmq.model import QueueId
from pyspark_rocketmq.offsets import Mark, StreamOffset
from pyspark_rocketmq.options import read_options
from pyspark_rocketmq.stream_planner import StreamPlanner

A0, A1, B0 = QueueId("orders", "broker-a", 0), QueueId("orders", "broker-a", 1), QueueId("orders", "broker-b", 0)
BILLS = QueueId("bills", "broker-a", 0)
NOT_FOUND = "queues not found; reading continues without them"
Row = tuple[QueueId, int]


class Query:
    """A query as Spark runs it: it keeps offsets as JSON, and each of its processes may end."""

    def __init__(self, view: FakeCatalog, clock: FakeClock | None = None, **options: Any) -> None:
        self.view = view
        self.clock = clock or FakeClock()
        self.options = {"nameServers": "ns:1", "subscribe": "orders", "startingOffsets": "earliest", "patience": "2s"}
        self.options |= {name: str(value) for name, value in options.items()}
        if {"assign", "subscribePattern"} & set(options):
            del self.options["subscribe"]
        self.log: list[str] = []
        self.rows: list[Row] = []
        self.gaps: list[Gap] = []
        self.restart()

    def restart(self) -> None:
        """Start another process, which has only the offset log."""
        self.planner = StreamPlanner(read_options(self.options, is_stream=True), self.view, self.clock)

    @property
    def start(self) -> StreamOffset:
        return StreamOffset.from_json(json.loads(self.log[-1])) if self.log else StreamOffset()

    def plan(self, *, is_limited: bool = True) -> bool:
        """Plan the next batch, log its offset, and return whether there is one."""
        end = self.planner.next_offset(self.start, is_limited=is_limited)
        if end is not None:
            self.log.append(json.dumps(end.to_json()))
        return end is not None

    def read(self) -> list[Row]:
        """Return the rows of the newest batch."""
        start = StreamOffset.from_json(json.loads(self.log[-2])) if len(self.log) > 1 else StreamOffset()
        ranges, gaps = self.planner.ranges(start, self.start)
        self.gaps += gaps
        return [(one.queue, offset) for one in ranges for offset in range(one.begin, one.end)]

    def step(self) -> list[Row]:
        """Run one trigger, and return its rows."""
        rows = self.read() if self.plan() else []
        self.rows += rows
        return rows


def brokers() -> FakeCatalog:
    """Two brokers, three queues, ten messages in each."""
    view = FakeCatalog()
    for queue in (A0, A1, B0):
        view.add_queue(queue.topic, queue.broker, queue.number)
        view.append(queue, 10)
    return view


def all_rows(view: FakeCatalog) -> list[Row]:
    return sorted((one.queue, one.offset) for broker in view.brokers.values() for one in broker.records)


def all_rows_of(view: FakeCatalog, topic: str) -> list[Row]:
    return [row for row in all_rows(view) if row[0].topic == topic]


@pytest.mark.verify
@given(st.data())
def test_batches_together_are_the_log(data: st.DataObject) -> None:
    """Random logs that grow, random limits, restarts with others, repeated batches: each message is read once."""
    view, clock = FakeCatalog(), FakeClock()
    queues = [view.add_queue("orders", broker, number) for broker in ("broker-a", "broker-b") for number in (0, 1)]
    query = Query(view, clock)
    for _ in range(data.draw(st.integers(1, 12), "turns")):
        for queue in queues:
            view.append(queue, data.draw(st.integers(0, 6)), size=data.draw(st.integers(91, 300)))
        if data.draw(st.booleans()):
            query.options["maxRowsPerTrigger"] = str(data.draw(st.integers(1, 9)))
            query.options["maxBytesPerTrigger"] = str(data.draw(st.integers(1, 3000)))
            query.restart()
        if data.draw(st.booleans()):
            view.begin_epoch(data.draw(st.sampled_from(["broker-a", "broker-b"])))
        is_new = query.plan()
        if is_new and data.draw(st.booleans()):
            query.read()  # this batch was in progress when the process ended
            query.restart()
        query.rows += query.read() if is_new else []
    query.options |= {"maxRowsPerTrigger": "1000000", "maxBytesPerTrigger": "1g"}
    query.restart()
    while query.plan():
        query.rows += query.read()

    assert sorted(query.rows) == all_rows(view)


def test_start_of_a_query_is_decided_once() -> None:
    """A first batch that is planned again by another process begins where the first process began it, not later."""
    view = brokers()
    query = Query(view, startingOffsets="latest")
    view.append(A0, 3)

    assert query.plan()
    first = query.read()
    view.append(A0, 5)
    query.restart()

    assert query.read() == first == []
    assert query.step() == [(A0, 13 + one) for one in range(5)]


def test_new_queue_is_read_from_its_first_message() -> None:
    """Queues, brokers and topics may appear at any time; their messages from before the discovery are read, too."""
    view = brokers()
    query = Query(view, subscribePattern="orders.*", discoveryInterval=0, startingOffsets="latest")
    query.step()

    late = view.add_queue("orders-eu", "broker-c", 3)
    view.append(late, 4)
    view.expire(late, 1)

    assert query.step() == [(late, 1), (late, 2), (late, 3)]
    assert query.step() == []


def test_rows_and_bytes_limits_apply_together() -> None:
    """Rows and bytes at once: the smaller limit counts; without limits everything is read."""
    view = brokers()
    assert len(Query(view, maxRowsPerTrigger=6, maxBytesPerTrigger="1g").step()) == 6
    assert len(Query(view, maxRowsPerTrigger=1000, maxBytesPerTrigger=600).step()) == 6
    assert len(Query(view).step()) == 30


def test_few_messages_wait_for_more_or_for_the_delay() -> None:
    """With minRowsPerTrigger a batch begins when there are as many, or when maxTriggerDelay is over."""
    view, clock = brokers(), FakeClock()
    query = Query(view, clock, minRowsPerTrigger=40, maxTriggerDelay="60s")

    assert query.step() == [] and query.start.ends  # the start is recorded, nothing is read
    clock.now += 59
    assert not query.plan()
    clock.now += 2
    assert len(query.step()) == 30

    view.append(A0, 39)
    assert not query.plan()
    view.append(A0, 1)
    assert len(query.step()) == 40


def test_available_now_reads_up_to_the_ends_at_its_start() -> None:
    """Later messages, also in later queues, belong to the next run; a minimum of rows does not delay the end."""
    view = brokers()
    query = Query(view, minRowsPerTrigger=1000, maxRowsPerTrigger=7, discoveryInterval=0)
    query.planner.fix_target()
    view.append(A0, 5)
    late = view.add_queue("orders", "broker-c", 0)
    view.append(late, 5)

    turns = 0
    while query.plan():
        query.rows += query.read()
        turns += 1

    assert sorted(query.rows) == [row for row in all_rows(view) if row[0] != late and row[1] < 10]
    assert turns == 5  # 30 messages, 7 at a time
    query.restart()
    query.planner.fix_target()
    while query.plan():
        query.rows += query.read()
    assert sorted(query.rows) == all_rows(view)


def test_available_now_waits_for_a_broker_that_is_away() -> None:
    """A broker that was away when the target was fixed is waited for, and read to its end at that time."""
    view = brokers()
    query = Query(view, maxRowsPerTrigger=6, discoveryInterval=0)
    query.step()
    query.restart()
    away = view.brokers.pop("broker-b")
    query.planner.fix_target()
    query.clock.at[1] = lambda: view.brokers.update({"broker-b": away})
    while query.plan():
        query.rows += query.read()

    assert sorted(query.rows) == all_rows(view)


def test_epoch_that_keeps_everything_read_is_no_fork() -> None:
    """A switchover without loss continues silently, and its epoch is recorded."""
    view = brokers()
    query = Query(view)
    query.step()
    view.begin_epoch("broker-a")
    view.append(A0, 2)

    assert query.step() == [(A0, 10), (A0, 11)]
    assert query.start.marks["broker-a"] == Mark(epoch=2, physical=view.brokers["broker-a"].end)


def test_fork_below_the_read_position_stops_the_query() -> None:
    """The error names the fork, the ranges and the count, and another attempt fails in the same way."""
    view = brokers()
    query = Query(view)
    query.step()
    view.fork("broker-a", 17)
    view.append(A1, 20)

    for _ in range(2):
        with pytest.raises(LogForked) as error:
            query.plan()
        query.restart()

    assert "forked at 1700: epoch 2" in str(error.value) and "read up to 2000" in str(error.value)
    assert "3 messages" in str(error.value) and "orders/broker-a/1[7, 10)" in str(error.value)


def test_fork_above_the_read_position_is_ignored() -> None:
    """The replaced messages were never read: with a limit a query may be far behind the log's end."""
    view = brokers()
    query = Query(view, maxRowsPerTrigger=3, assign='{"orders": {"broker-a": [0]}}')
    query.step()
    view.fork("broker-a", 4)

    assert query.step() == [(A0, 3)]


def test_fork_is_skipped_and_counted_without_fail_on_data_loss() -> None:
    """With failOnDataLoss=false the new messages at old offsets are read, and the lost ones are in the gaps, once."""
    view = brokers()
    query = Query(view, failOnDataLoss="false")
    query.step()
    view.fork("broker-a", 17)
    view.append(A1, 5)

    assert query.step() == [(A1, 7), (A1, 8), (A1, 9), (A1, 10), (A1, 11)]
    assert query.gaps == [Gap(A1, 7, 10, GapKind.FORKED)]
    assert query.step() == [] and len(query.gaps) == 1
    view.begin_epoch("broker-a")
    view.append(A0)
    assert query.step() == [(A0, 10)]


def test_messages_that_expired_unread_are_a_loss() -> None:
    """They stop the query, or are counted; a batch that was planned before they expired is never silently short."""
    view = brokers()
    query = Query(view, maxRowsPerTrigger=3)
    query.step()
    view.expire(A0, 5)
    with pytest.raises(DataLost, match=r"orders/broker-a/0 was to be read from 1 on.* 4 messages are lost"):
        query.plan()

    query = Query(view, failOnDataLoss="false")
    assert query.plan()
    view.expire(A1, 3)
    query.restart()
    assert [one for one in query.read() if one[0] == A1] == [(A1, offset) for offset in range(3, 10)]
    assert query.gaps == [Gap(A1, 0, 3, GapKind.EXPIRED)]


def test_lagging_replica_is_waited_for() -> None:
    """An end below the position counts only after patience ends: a slave may have to catch up first."""
    view, clock = brokers(), FakeClock()
    query = Query(view, clock)
    query.step()
    view.brokers["broker-a"].hidden[A0] = 8
    clock.at[2] = view.brokers["broker-a"].hidden.clear
    view.append(A0)

    assert query.step() == [(A0, 10)]
    assert len(clock.slept) == 2

    view.brokers["broker-a"].hidden[A0] = 8
    with pytest.raises(DataLost, match=r"was read up to 11, but now ends at 8: 3 messages are lost"):
        query.plan()


def test_rewound_queue_without_epochs_continues_at_its_end() -> None:
    """Apache's brokers have no epochs: with failOnDataLoss=false new messages are read, and lost ones counted."""
    view = FakeCatalog()
    view.add_queue("orders", "broker-a", 0, has_epochs=False)
    view.append(A0, 10)
    query = Query(view, failOnDataLoss="false")
    query.step()
    view.fork("broker-a", 6)
    assert query.step() == [] and query.gaps == [Gap(A0, 6, 10, GapKind.REWOUND)]
    assert query.start.marks == {}

    view.append(A0, 2)
    assert query.step() == [(A0, 6), (A0, 7)]


def test_unknown_epochs_are_not_guessed() -> None:
    """While only RocketMQ's protocol answers the old mark stays, so that a later epoch is judged correctly."""
    view = brokers()
    query = Query(view)
    query.step()
    before = query.start.marks["broker-a"]
    view.brokers["broker-a"].has_epochs = False
    view.begin_epoch("broker-a")
    view.append(A0, 2)
    query.step()
    assert query.start.marks["broker-a"] == before

    view.brokers["broker-a"].has_epochs = True
    view.append(A0)
    assert query.step() == [(A0, 12)]


def test_fully_read_queue_may_disappear() -> None:
    """A removed shard without unread messages stops no query, and its position is kept in case it comes back."""
    view = brokers()
    query = Query(view, discoveryInterval=0)
    query.step()
    gone = view.brokers.pop("broker-b")
    view.append(A0)

    assert query.step() == [(A0, 10)]
    view.brokers["broker-b"] = gone
    view.append(B0)
    assert query.step() == [(B0, 10)]


def test_missing_queue_with_unread_messages_stops_the_query() -> None:
    """An error after patience or, with failOnDataLoss=false, the query continues without the queue."""
    view = brokers()
    query = Query(view, maxRowsPerTrigger=3, discoveryInterval=0)
    query.step()
    gone = view.brokers.pop("broker-b")
    with pytest.raises(NoReplica, match="queue orders/broker-b/0 not found"):
        query.plan()

    query.clock.at[len(query.clock.slept) + 1] = lambda: view.brokers.update({"broker-b": gone})
    assert query.plan()

    query.options["failOnDataLoss"] = "false"
    query.restart()
    del view.brokers["broker-b"]
    assert query.plan()


def two_topics() -> FakeCatalog:
    """Topic orders with the queues of `brokers`, and topic bills with one queue of ten messages."""
    view = brokers()
    view.add_queue(BILLS.topic, BILLS.broker, BILLS.number)
    view.append(BILLS, 10)
    return view


def delete_topic(view: FakeCatalog, topic: str) -> None:
    for broker in view.brokers.values():
        broker.queues = {queue: records for queue, records in broker.queues.items() if queue.topic != topic}


@pytest.mark.parametrize("is_loss_fatal", ["true", "false"])
@pytest.mark.parametrize(
    "subscription",
    [
        {"subscribe": "orders,bills"},
        {"assign": '{"orders": {"broker-a": [0, 1], "broker-b": [0, 1]}, "bills": {"broker-a": [0]}}'},
    ],
    ids=["subscribe", "assign"],
)
def test_deleted_topic_does_not_stop_the_others(
    subscription: dict[str, str], is_loss_fatal: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A topic that was read to its end may be deleted: the others are read, with new queues if they are subscribed."""
    view = two_topics()
    view.add_queue("orders", "broker-b", 1)
    query = Query(view, None, **subscription, failOnDataLoss=is_loss_fatal, discoveryInterval=0)
    query.step()
    delete_topic(view, "bills")
    view.append(A0)
    assert query.step() == [(A0, 10)]

    view.append(view.add_queue("orders", "broker-b", 2))
    assert query.step() == ([] if "assign" in subscription else [(QueueId("orders", "broker-b", 2), 0)])
    assert query.start.ends[BILLS] == 10 and not query.clock.slept and not caplog.records


@pytest.mark.parametrize("is_available_now", [False, True], ids=["continuous", "available now"])
def test_deleted_topic_with_unread_messages_is_a_missing_queue(
    caplog: pytest.LogCaptureFixture, *, is_available_now: bool
) -> None:
    """The query fails after patience or, with failOnDataLoss=false, names the queue and continues, also restarted."""
    view = two_topics()
    query = Query(view, subscribe="orders,bills", maxRowsPerTrigger=5, discoveryInterval=0)
    query.step()
    delete_topic(view, "bills")
    query.restart()
    if is_available_now:
        query.planner.fix_target()
    with pytest.raises(NoReplica, match="queue bills/broker-a/0 not found"):
        query.plan()

    query.options["failOnDataLoss"] = "false"
    query.restart()
    if is_available_now:
        query.planner.fix_target()
    while rows := query.step():
        assert {queue.topic for queue, _ in rows} == {"orders"}
    assert sorted(row for row in query.rows if row[0].topic == "orders") == all_rows_of(view, "orders")
    (record, *_) = caplog.records
    assert (record.message, record.__dict__["queues"]) == (NOT_FOUND, ["bills/broker-a/0"])
    assert record.__dict__["reason"] == "no broker serves bills"


def test_misspelled_topic_is_reported_that_was_added_to_a_query(caplog: pytest.LogCaptureFixture) -> None:
    """A topic that the query has never read is not one that was deleted."""
    view = brokers()
    query = Query(view, discoveryInterval=0)
    query.step()
    query.options["subscribe"] = "orders,typo"
    query.restart()
    with pytest.raises(NoReplica, match="no broker serves typo"):
        query.plan()

    query.options["failOnDataLoss"] = "false"
    query.restart()
    view.append(A0)
    assert query.step() == [(A0, 10)]
    assert [record.__dict__["reason"] for record in caplog.records] == ["no broker serves typo"]


def test_query_without_any_topic_fails_or_waits_for_its_return(caplog: pytest.LogCaptureFixture) -> None:
    """The reason says that the topic is missing, also if the query had read all of it."""
    view = brokers()
    query = Query(view, discoveryInterval=0)
    query.step()
    deleted = {name: broker.queues for name, broker in view.brokers.items()}
    delete_topic(view, "orders")
    with pytest.raises(NoReplica, match="no broker serves orders"):
        query.plan()

    query.options["failOnDataLoss"] = "false"
    query.restart()
    assert query.step() == []
    assert [record.__dict__["reason"] for record in caplog.records] == ["no broker serves orders"]
    for name, broker in view.brokers.items():
        broker.queues = deleted[name]
    view.append(A0)
    assert query.step() == [(A0, 10)]


def test_available_now_needs_every_topic_before_the_first_batch() -> None:
    """A misspelled topic is an error, although a topic that was deleted later is none."""
    query = Query(brokers(), subscribe="orders,typo")
    query.planner.fix_target()
    with pytest.raises(InvalidOption, match="no broker serves typo"):
        query.plan()


def test_restarted_name_server_does_not_stop_a_query() -> None:
    """A name server that has just started has no routes: a running query waits, a new one fails at once."""
    view = brokers()
    query = Query(view, discoveryInterval=0)
    query.step()
    there = dict(view.brokers)
    view.brokers.clear()
    query.clock.at[1] = lambda: view.brokers.update(there)
    assert query.step() == []
    assert query.clock.slept

    view.brokers.clear()
    with pytest.raises(InvalidOption, match="no broker serves orders"):
        Query(view).plan()


def test_epoch_that_begins_during_planning_is_not_mixed_with_the_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Physical offsets are recorded with their epoch: otherwise the next check would report a fork."""
    view = brokers()
    query = Query(view)
    ask: Callable[..., Any] = view.physical
    turns: list[int] = []

    def physical(offsets: dict[QueueId, int]) -> dict[QueueId, tuple[int, int]]:
        if not turns:
            view.begin_epoch("broker-a")
            view.append(A0, 4)
        turns.append(1)
        return ask(offsets)  # type: ignore[no-any-return]

    monkeypatch.setattr(view, "physical", physical)
    assert len(query.step()) == 34
    assert query.start.marks["broker-a"] == Mark(2, view.brokers["broker-a"].end)
    assert query.step() == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": '{"orders": {"broker-a": {"0": 4, "1": -2}, "broker-b": {"0": -1}}}'}, [4, 0, 10]),
        ({"startingTimestamp": "500", "startingOffsetsByTimestampStrategy": "latest"}, [5, 10, 10]),
        ({"startingGroup": "billing"}, [7, 0, 0]),
        ({"startingGroup": "billing", "startingOffsets": "latest"}, [7, 10, 10]),
    ],
    ids=["offsets", "time", "group", "group else latest"],
)
def test_query_begins_at_the_configured_position(options: dict[str, str], expected: list[int]) -> None:
    """The position is given by offset, by time, or by the committed offsets of a consumer group."""
    view = FakeCatalog()
    for queue in (A0, A1, B0):
        view.add_queue(queue.topic, queue.broker, queue.number)
    for number in range(10):
        view.append(A0, stored_ms=number * 100)
        view.append(A1)
        view.append(B0)
    view.groups["billing"] = {A0: 7}
    query = Query(view)
    if "startingOffsets" not in options:
        del query.options["startingOffsets"]
    query.options |= options
    query.restart()

    assert query.plan()
    assert [query.start.begins[queue] for queue in (A0, A1, B0)] == expected


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"startingOffsets": '{"orders": {"broker-a": {"0": 4}}}'}, "does not name orders/broker-a/1"),
        ({"startingOffsets": '{"orders": {"broker-x": {"0": 4}}}'}, "names orders/broker-x/0"),
        (
            {"startingOffsets": '{"orders": {"broker-a": {"0": 40, "1": -1}, "broker-b": {"0": -1}}}'},
            "offset 40 is beyond orders/broker-a/0, which ends at 10",
        ),
        ({"startingTimestamp": "500"}, "has no message of that time"),
    ],
    ids=["missing", "unknown", "beyond", "too late"],
)
def test_invalid_start_positions_are_refused(options: dict[str, str], problem: str) -> None:
    """They are refused at once, with the option's name."""
    query = Query(brokers())
    del query.options["startingOffsets"]
    query.options |= options
    query.restart()

    with pytest.raises(InvalidOption, match=problem):
        query.plan()
