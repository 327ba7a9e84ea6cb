"""At least once: what a task sends to brokers that refuse, drop, and promise less than they should."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest

from gantry_testing.client import FakeCluster, ThreadedCluster
from gantry_testing.client.broker import FakeBroker
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.command import Command
from gantry_wire.message import StoredMessage
from pyspark_rocketmq.errors import InvalidRow, NotStored, NotTransactional, Refused
from pyspark_rocketmq.sink.columns import Columns
from pyspark_rocketmq.sink.options import parse
from pyspark_rocketmq.sink.tasks import TaskDone, TaskIdentity, run_task

BATCH = RequestCode.SEND_BATCH_MESSAGE


@pytest.fixture
def threaded() -> Iterator[ThreadedCluster]:
    """Two brokers with two queues each."""
    cluster = FakeCluster(("broker-a", "broker-b"), auto_creates_topics=False)
    cluster.add_topic("T", queues=2)
    with ThreadedCluster(cluster) as one:
        yield one


def send(threaded: ThreadedCluster, columns: Mapping[str, Any], **options: str) -> TaskDone:
    """What a task does with these rows, in Arrow batches of seven."""
    said = {"nameServers": threaded.cluster.name_server, "topic": "T", "patience": "5s", "requestTimeout": "3s"}
    table = pa.table({name: pa.array(values) for name, values in columns.items()})
    batches = iter(table.to_batches(max_chunksize=7))
    return run_task(batches, parse(said | options), Columns(tuple(columns)), "q", 3, TaskIdentity(partition=1))


def stored(threaded: ThreadedCluster) -> list[StoredMessage]:
    return [message for broker in threaded.cluster.brokers.values() for message in broker.messages("T")]


def requests(threaded: ThreadedCluster, code: RequestCode = BATCH) -> int:
    return sum(broker.received[code] for broker in threaded.cluster.brokers.values())


def test_rows_travel_in_batches_and_say_who_they_are(threaded: ThreadedCluster) -> None:
    """One request for as many as fit, whatever Arrow's batches are."""
    bodies = [f"{number:04d}".encode() for number in range(100)]

    done = send(threaded, {"body": bodies})

    assert (done.rows, done.body_bytes, done.unsure, done.halves) == (100, 400, 0, b"")
    assert requests(threaded) == 1
    found = {message.body: message.properties["SPARK_ID"] for message in stored(threaded)}
    assert found == {body: f"q:3:1:{number}" for number, body in enumerate(bodies)}


def test_a_request_is_no_larger_than_was_said(threaded: ThreadedCluster) -> None:
    """And a row that is larger alone goes alone."""
    send(threaded, {"body": [b"x" * 400] * 20 + [b"y" * 5000]}, batchBytes="2k")

    sizes = [len(request.body) for broker in threaded.cluster.brokers.values() for request in broker.requests
             if request.code == BATCH]  # fmt: skip
    assert sorted(sizes)[-1] > 5000
    assert all(size <= 2048 for size in sorted(sizes)[:-1])
    assert len(stored(threaded)) == 21


def test_what_was_not_acknowledged_is_sent_again(threaded: ThreadedCluster) -> None:
    """A lost answer, a busy broker, a broken connection: at least once, and here once more than that."""
    broker = threaded.cluster.broker("broker-a")

    def store_and_lose(command: Command, connection: object) -> None:
        broker._faults.clear()
        broker._dispatch(command, connection)  # type: ignore[arg-type]

    broker.fault(BATCH, store_and_lose)
    done = send(threaded, {"body": [b"x"], "queue": [0], "broker": ["broker-a"]}, requestTimeout="500ms")

    assert done.rows == 1
    assert [message.properties["SPARK_ID"] for message in stored(threaded)] == ["q:3:1:0"] * 2


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE])
def test_a_refusal_that_passes_is_waited_for(threaded: ThreadedCluster, code: ResponseCode) -> None:
    """A broker that is no master for a moment."""
    for broker in threaded.cluster.brokers.values():
        broker.refuse(BATCH, code, times=4)
    send(threaded, {"body": [b"x"]})
    assert len(stored(threaded)) == 1


def test_a_refusal_that_does_not_pass_ends_the_task(threaded: ThreadedCluster) -> None:
    """At once, with the broker's words."""
    for broker in threaded.cluster.brokers.values():
        broker.refuse(BATCH, ResponseCode.MESSAGE_ILLEGAL, "too odd", times=9)
    with pytest.raises(NotStored, match="too odd"):
        send(threaded, {"body": [b"x"]})


def test_a_missing_right_is_said_as_one(threaded: ThreadedCluster) -> None:
    """Credentials are another person's work than brokers."""
    threaded.cluster.broker("broker-a").refuse(BATCH, ResponseCode.NO_PERMISSION, "not you", times=9)
    with pytest.raises(Refused, match="not you"):
        send(threaded, {"body": [b"x"], "queue": [0], "broker": ["broker-a"]})


def test_patience_has_an_end(threaded: ThreadedCluster) -> None:
    """And the error names the option."""
    for broker in threaded.cluster.brokers.values():
        broker.refuse(BATCH, ResponseCode.SYSTEM_BUSY, times=99)
    with pytest.raises(NotStored, match="option patience"):
        send(threaded, {"body": [b"x"]}, patience="400ms")


@pytest.mark.parametrize("code", [10, 11, 12])
def test_only_an_acknowledgement_is_one(threaded: ThreadedCluster, code: int) -> None:
    """Stored, but not on the disk or a slave: sent again, and an error if it stays so; or accepted and counted."""
    broker = threaded.cluster.broker("broker-a")

    def unsure(command: Command, connection: object) -> Command | None:
        faults = broker._faults.pop(BATCH)
        answer = broker._dispatch(command, connection)  # type: ignore[arg-type]
        broker._faults[BATCH] = faults
        assert isinstance(answer, Command)
        return command.reply(code, ext=answer.ext)

    rows: Mapping[str, Any] = {"body": [b"x"], "queue": [0], "broker": ["broker-a"]}
    broker.fault(BATCH, unsure, times=1)
    assert send(threaded, rows).unsure == 0
    assert len(stored(threaded)) == 2
    broker.fault(BATCH, unsure, times=1)
    assert send(threaded, rows, onUnsure="accept").unsure == 1
    assert len(stored(threaded)) == 3
    broker.fault(BATCH, unsure, times=99)
    with pytest.raises(NotStored, match="not as safely as promised"):
        send(threaded, rows, patience="300ms")


def test_a_queue_keeps_its_order_over_repetitions(threaded: ThreadedCluster) -> None:
    """One request of a queue at a time; other queues do not wait for it."""
    for broker in threaded.cluster.brokers.values():
        broker.fault(BATCH, lambda command, _: command.reply(ResponseCode.SYSTEM_BUSY, "busy"), times=3)
    keys = [f"key-{number % 5}" for number in range(60)]
    send(threaded, {"body": [f"{number:03d}".encode() for number in range(60)], "shardingKey": keys}, batchBytes="400")

    for key in set(keys):
        bodies = [message.body for message in stored(threaded) if message.properties["__SHARDINGKEY"] == key]
        assert bodies == sorted(bodies)
        assert len(bodies) == 12
    assert requests(threaded) > 10


def test_a_delayed_row_travels_alone(threaded: ThreadedCluster) -> None:
    """Brokers take none in a batch."""
    send(threaded, {"body": [b"x", b"y", b"z"], "delayLevel": [0, 3, None]})
    assert requests(threaded, RequestCode.SEND_MESSAGE_V2) == 1
    assert requests(threaded) == 1
    delays = {message.body: message.properties.get("DELAY") for message in stored(threaded)}
    assert delays == {b"x": None, b"y": "3", b"z": None}


def test_a_bad_row_ends_the_task_with_its_number(threaded: ThreadedCluster) -> None:
    """Not with a broker's refusal of everything around it."""
    with pytest.raises(InvalidRow, match="row 9: column body is null"):
        send(threaded, {"body": [b"x"] * 9 + [None]})


def test_a_broker_that_would_store_twice_is_refused_before_a_row_is_sent(threaded: ThreadedCluster) -> None:
    """Apache's answer to a heartbeat promises nothing."""
    with pytest.raises(NotTransactional, match=r"broker-a, broker-b of topic T.*Apache RocketMQ\s+stores it twice"):
        send(threaded, {"body": [b"x"]}, transactional="true")
    assert stored(threaded) == []


async def start_later(broker: FakeBroker) -> None:
    """Start it a second from now, on the loop of its cluster."""
    loop = asyncio.get_running_loop()
    loop.call_later(1.0, lambda: loop.create_task(broker.start()))


@pytest.mark.verify
def test_one_that_is_away_for_a_moment_is_waited_for(threaded: ThreadedCluster) -> None:
    """A rolling update stops no query."""
    broker = threaded.cluster.broker("broker-a")
    threaded.cluster.stale_names.add("broker-a")
    threaded.run(broker.stop())
    threaded.run(start_later(broker))

    send(threaded, {"body": [b"x"], "queue": [0], "broker": ["broker-a"]}, patience="60s")

    assert len(stored(threaded)) == 1
