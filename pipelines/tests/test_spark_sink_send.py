"""At-least-once sends of a task to brokers that refuse requests, drop them, or store messages unsafely."""

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
from pyspark_rocketmq.sink.tasks import TaskIdentity, TaskResult, run_task

BATCH = RequestCode.SEND_BATCH_MESSAGE


@pytest.fixture
def threaded() -> Iterator[ThreadedCluster]:
    """Two brokers with two queues each."""
    cluster = FakeCluster(("broker-a", "broker-b"), auto_creates_topics=False)
    cluster.add_topic("T", queues=2)
    with ThreadedCluster(cluster) as one:
        yield one


def send(threaded: ThreadedCluster, columns: Mapping[str, Any], **options: str) -> TaskResult:
    """Run a task with these rows, in Arrow batches of seven."""
    given = {"nameServers": threaded.cluster.name_server, "topic": "T", "patience": "5s", "requestTimeout": "3s"}
    table = pa.table({name: pa.array(values) for name, values in columns.items()})
    batches = iter(table.to_batches(max_chunksize=7))
    return run_task(batches, parse(given | options), Columns(tuple(columns)), "q", 3, TaskIdentity(partition=1))


def stored(threaded: ThreadedCluster) -> list[StoredMessage]:
    return [message for broker in threaded.cluster.brokers.values() for message in broker.messages("T")]


def requests(threaded: ThreadedCluster, code: RequestCode = BATCH) -> int:
    return sum(broker.received[code] for broker in threaded.cluster.brokers.values())


def test_rows_are_sent_in_batches_with_their_ids(threaded: ThreadedCluster) -> None:
    """One request has as many rows as fit, independent of Arrow's batches."""
    bodies = [f"{number:04d}".encode() for number in range(100)]

    done = send(threaded, {"body": bodies})

    assert (done.rows, done.body_bytes, done.unsure, done.halves) == (100, 400, 0, b"")
    assert requests(threaded) == 1
    found = {message.body: message.properties["SPARK_ID"] for message in stored(threaded)}
    assert found == {body: f"q:3:1:{number}" for number, body in enumerate(bodies)}


def test_request_is_not_larger_than_configured(threaded: ThreadedCluster) -> None:
    """A row that is larger by itself is sent alone."""
    send(threaded, {"body": [b"x" * 400] * 20 + [b"y" * 5000]}, batchBytes="2k")

    sizes = [len(request.body) for broker in threaded.cluster.brokers.values() for request in broker.requests
             if request.code == BATCH]  # fmt: skip
    assert sorted(sizes)[-1] > 5000
    assert all(size <= 2048 for size in sorted(sizes)[:-1])
    assert len(stored(threaded)) == 21


def test_unacknowledged_batch_is_sent_again(threaded: ThreadedCluster) -> None:
    """After a lost response it is sent again, and here stored twice."""
    broker = threaded.cluster.broker("broker-a")

    def store_and_lose(command: Command, connection: object) -> None:
        broker._faults.clear()
        broker._dispatch(command, connection)  # type: ignore[arg-type]

    broker.fault(BATCH, store_and_lose)
    done = send(threaded, {"body": [b"x"], "queue": [0], "broker": ["broker-a"]}, requestTimeout="500ms")

    assert done.rows == 1
    assert [message.properties["SPARK_ID"] for message in stored(threaded)] == ["q:3:1:0"] * 2


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE])
def test_transient_refusal_is_retried(threaded: ThreadedCluster, code: ResponseCode) -> None:
    """The broker is busy, or not the master, for a moment."""
    for broker in threaded.cluster.brokers.values():
        broker.refuse(BATCH, code, times=4)
    send(threaded, {"body": [b"x"]})
    assert len(stored(threaded)) == 1


def test_permanent_refusal_ends_the_task(threaded: ThreadedCluster) -> None:
    """The task ends at once, with the broker's remark."""
    for broker in threaded.cluster.brokers.values():
        broker.refuse(BATCH, ResponseCode.MESSAGE_ILLEGAL, "too odd", times=9)
    with pytest.raises(NotStored, match="too odd"):
        send(threaded, {"body": [b"x"]})


def test_missing_permission_raises_refused(threaded: ThreadedCluster) -> None:
    """Another person is responsible for credentials than for brokers."""
    threaded.cluster.broker("broker-a").refuse(BATCH, ResponseCode.NO_PERMISSION, "not you", times=9)
    with pytest.raises(Refused, match="not you"):
        send(threaded, {"body": [b"x"], "queue": [0], "broker": ["broker-a"]})


def test_retries_time_out(threaded: ThreadedCluster) -> None:
    """The error names the option patience."""
    for broker in threaded.cluster.brokers.values():
        broker.refuse(BATCH, ResponseCode.SYSTEM_BUSY, times=99)
    with pytest.raises(NotStored, match="option patience"):
        send(threaded, {"body": [b"x"]}, patience="400ms")


@pytest.mark.parametrize("code", [10, 11, 12])
def test_only_send_ok_is_an_acknowledgement(threaded: ThreadedCluster, code: int) -> None:
    """Stored, but not on the disk or a slave: sent again until an error; or accepted and counted."""
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


def test_queue_keeps_its_order_over_retries(threaded: ThreadedCluster) -> None:
    """One request of a queue is sent at a time; other queues do not wait for it."""
    for broker in threaded.cluster.brokers.values():
        broker.fault(BATCH, lambda command, _: command.reply(ResponseCode.SYSTEM_BUSY, "busy"), times=3)
    keys = [f"key-{number % 5}" for number in range(60)]
    send(threaded, {"body": [f"{number:03d}".encode() for number in range(60)], "shardingKey": keys}, batchBytes="400")

    for key in set(keys):
        bodies = [message.body for message in stored(threaded) if message.properties["__SHARDINGKEY"] == key]
        assert bodies == sorted(bodies)
        assert len(bodies) == 12
    assert requests(threaded) > 10


def test_delayed_row_is_sent_alone(threaded: ThreadedCluster) -> None:
    """Brokers accept no delayed message in a batch."""
    send(threaded, {"body": [b"x", b"y", b"z"], "delayLevel": [0, 3, None]})
    assert requests(threaded, RequestCode.SEND_MESSAGE_V2) == 1
    assert requests(threaded) == 1
    delays = {message.body: message.properties.get("DELAY") for message in stored(threaded)}
    assert delays == {b"x": None, b"y": "3", b"z": None}


def test_invalid_row_ends_the_task_with_its_number(threaded: ThreadedCluster) -> None:
    """The broker would refuse the whole request instead."""
    with pytest.raises(InvalidRow, match="row 9: column body is null"):
        send(threaded, {"body": [b"x"] * 9 + [None]})


def test_broker_that_would_store_twice_is_refused_before_sending(threaded: ThreadedCluster) -> None:
    """Apache's response to a heartbeat does not announce the feature."""
    with pytest.raises(
        NotTransactional, match=r"broker-a, broker-b of topic T would store a message twice.*like Apache's"
    ):
        send(threaded, {"body": [b"x"]}, transactional="true")
    assert stored(threaded) == []


async def start_later(broker: FakeBroker) -> None:
    """Start a broker a second from now, on the loop of its cluster."""
    loop = asyncio.get_running_loop()
    loop.call_later(1.0, lambda: loop.create_task(broker.start()))


@pytest.mark.verify
def test_broker_that_is_away_for_a_moment_is_waited_for(threaded: ThreadedCluster) -> None:
    """A rolling update stops no query."""
    broker = threaded.cluster.broker("broker-a")
    threaded.cluster.stale_names.add("broker-a")
    threaded.run(broker.stop())
    threaded.run(start_later(broker))

    send(threaded, {"body": [b"x"], "queue": [0], "broker": ["broker-a"]}, patience="60s")

    assert len(stored(threaded)) == 1
