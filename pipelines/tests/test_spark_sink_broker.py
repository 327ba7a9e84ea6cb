"""The transactional sink with a broker process: the state after each step of a batch, and how it is cleaned up.

No session: tasks and drivers are called as Spark calls them. A driver that dies is one that does not continue.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from admin_scene import BrokerChild, Child
from spark_kit.processes import BROKER, Group, group

from gantry_client import Admin, ClientError, Message, MessageQueue, PullConsumer, TransactionProducer
from gantry_testing.client import wait_until
from gantry_wire import names
from pyspark_rocketmq.errors import BatchTorn, NotTransactional
from pyspark_rocketmq.sink import driver as driving
from pyspark_rocketmq.sink.columns import Columns
from pyspark_rocketmq.sink.driver import Driver
from pyspark_rocketmq.sink.half_message_list import HalfMessageList, unpack
from pyspark_rocketmq.sink.markers import group_of
from pyspark_rocketmq.sink.options import SinkOptions, parse
from pyspark_rocketmq.sink.tasks import TaskIdentity, TaskResult, run_task
from pyspark_rocketmq.sink.transaction_ender import BrokerTransactionEnder

EARLY_CHECKS = {"transactionTimeOut": "100", "transactionCheckInterval": "200", "transactionCheckMax": "3"}
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """One broker without slaves that checks transactions early, and gives them up early."""
    with group(tmp_path_factory.mktemp("sink"), slaves=0, with_sidecars=False, **EARLY_CHECKS) as running:
        yield running
        running.brokers[0].child.end()  # a restart may have replaced the first process


class SinkQuery:
    """One query with a topic of its own."""

    def __init__(self, running: Group, **more: str) -> None:
        self.name_server = running.name_server
        self.topic = f"sink-{next(NUMBERS)}"
        self.query = f"query-of-{self.topic}"
        self.options: SinkOptions = parse(
            {"nameServers": self.name_server, "topic": self.topic, "transactional": "true", "patience": "60s", **more}
        )
        asyncio.run(self._create())

    async def _create(self) -> None:
        async with Admin(self.name_server) as admin:

            async def is_registered() -> bool:
                return any(broker.is_master for broker in await admin.brokers.all())

            await wait_until(is_registered, timeout_s=60, what="a master that is registered")
            await admin.topics.create(self.topic, queues=2)

    def tasks(self, rows: list[str], batch: int = 0, *, run: str = "run-1", attempt: int = 0) -> list[TaskResult]:
        """Run two tasks with half of the rows each."""
        middle = len(rows) // 2
        done = []
        for partition, part in enumerate((rows[:middle], rows[middle:])):
            batches = iter([pa.record_batch({"body": pa.array(part, pa.string())})])
            identity = TaskIdentity(partition, attempt, self.query, batch, run)
            done.append(run_task(batches, self.options, Columns(("body",)), self.query, batch, identity))
        return done

    def driver(self, batch: int = 0, *, run: str = "run-1") -> Driver:
        return Driver(self.options, self.query, batch, run, is_new_query=False)

    def bodies(self) -> list[str]:
        """Return the bodies that an ordinary consumer reads, in the order of each queue."""
        return [body for _, body in asyncio.run(self._bodies())]

    async def _bodies(self) -> list[tuple[int, str]]:
        found: list[tuple[int, str]] = []
        async with PullConsumer(self.name_server, "readers") as consumer:
            for queue in await consumer.queues(self.topic):
                offset, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
                while offset < end:
                    result = await consumer.fetch(queue, offset)
                    found += [(queue.queue_id, message.body.decode()) for message in result.messages]
                    offset = result.next_offset
        return found

    def commit_first(self, halves: HalfMessageList, count: int) -> None:
        """Commit only the first ``count`` half messages, as a driver does that dies after them."""

        async def some() -> None:
            async with TransactionProducer(self.name_server, group_of(self.query), answers_checks=False) as producer:
                await BrokerTransactionEnder(producer, self.options).commit(HalfMessageList(halves.refs[:count]))

        asyncio.run(some())

    def store_marker(self, done: list[TaskResult], batch: int = 0) -> HalfMessageList:
        """Store the marker, and stop there."""
        halves = HalfMessageList(place for one in done for place in unpack(one.halves))

        async def marker() -> None:
            async with self.driver(batch).open_attempt() as attempt:
                await attempt.decider.commit(halves)

        asyncio.run(marker())
        return halves


def test_batch_is_delivered_by_the_commit_of_its_driver(broker: Group) -> None:
    """Each queue has the rows in the order of their task."""
    sink_query = SinkQuery(broker)
    rows = [f"{number:04d}" for number in range(200)]
    done = sink_query.tasks(rows)
    assert sink_query.bodies() == []

    committed = asyncio.run(sink_query.driver().commit(done))

    assert (committed.rows, committed.is_replay, committed.may_have_orphans) == (200, False, False)
    assert sorted(sink_query.bodies()) == rows
    for queue in (0, 1):
        found = [body for number, body in asyncio.run(sink_query._bodies()) if number == queue]
        for part in ("00", "01"):
            assert [body for body in found if body[:2] == part] == sorted(body for body in found if body[:2] == part)


@pytest.mark.parametrize("ends", [0, 7, 20], ids=["before-the-ends", "between-them", "after-them"])
def test_batch_of_a_driver_that_died_after_the_marker_is_finished(broker: Group, ends: int) -> None:
    """The replay stores its rows again, and delivers those of the marker."""
    sink_query = SinkQuery(broker, sweep="false")
    rows = [f"{number:02d}" for number in range(20)]
    sink_query.commit_first(sink_query.store_marker(sink_query.tasks(rows)), ends)

    committed = asyncio.run(sink_query.driver(run="run-2").commit(sink_query.tasks(rows, run="run-2")))

    assert (committed.is_replay, committed.rolled_back) == (True, 20)
    assert sorted(sink_query.bodies()) == rows


@pytest.mark.verify
def test_driver_that_dies_before_the_marker_delivers_nothing(broker: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next attempt is the batch; the half messages of the dead one, and no others, are checked and rolled back."""
    monkeypatch.setattr(driving, "SWEEP_MS", 4000)
    sink_query = SinkQuery(broker)
    asyncio.run(sink_query.driver(0).commit(sink_query.tasks(["first"], 0)))
    sink_query.tasks(["x", "y", "z"], 1)
    later = sink_query.tasks(["later"], 2)

    committed = asyncio.run(sink_query.driver(1, run="run-2").commit(sink_query.tasks(["x", "y", "z"], 1, run="run-2")))

    assert committed.may_have_orphans
    assert sorted(sink_query.bodies()) == ["first", "x", "y", "z"]
    asyncio.run(sink_query.driver(2, run="run-2").commit(later))
    assert Counter(sink_query.bodies()) == Counter(["first", "x", "y", "z", "later"])
    assert asyncio.run(driving.sweep(sink_query.query, 9, HalfMessageList(), sink_query.options, sweep_ms=3000)) == 0


@pytest.mark.verify
def test_open_batch_is_not_checked_by_the_broker(broker: Group) -> None:
    """This broker gives up after three checks in a second; a driver may be away for longer than that."""
    sink_query = SinkQuery(broker, sweep="false")
    done = sink_query.tasks(["a", "b"])
    halves = sink_query.store_marker(done)
    other = SinkQuery(broker)
    asyncio.run(wait_for_a_given_up_transaction(broker.name_server, other.topic))

    asyncio.run(sink_query.driver().commit(sink_query.tasks(["a", "b"], run="run-2")))

    assert sorted(sink_query.bodies()) == ["a", "b"]
    assert len(halves) == 2


def test_aborted_batch_is_rolled_back_unless_decided(broker: Group) -> None:
    """Spark also aborts when commit has failed, and a decided batch must not be rolled back then."""
    sink_query = SinkQuery(broker, sweep="false")
    failed = sink_query.tasks(["a", "b"])
    assert asyncio.run(sink_query.driver().abort(failed[:1], is_full_batch=False)) == 1
    decided = sink_query.tasks(["c", "d"])
    sink_query.store_marker(decided)

    assert asyncio.run(sink_query.driver().abort(decided, is_full_batch=True)) == 0

    with pytest.raises(BatchTorn, match="1 of 1"):
        sink_query.commit_first(HalfMessageList(unpack(failed[0].halves)), 1)
    asyncio.run(sink_query.driver(run="run-2").commit(sink_query.tasks(["c", "d"], run="run-2")))
    assert sorted(sink_query.bodies()) == ["c", "d"]


@pytest.mark.verify
def test_batch_survives_kills_of_its_broker(broker: Group) -> None:
    """The broker is killed between the marker and the ends, and again between two ends."""
    sink_query = SinkQuery(broker, sweep="false")
    rows = [f"{number:02d}" for number in range(30)]
    halves = sink_query.store_marker(sink_query.tasks(rows))
    restart(broker.brokers[0])
    sink_query.commit_first(halves, 11)
    restart(broker.brokers[0])

    asyncio.run(sink_query.driver(run="run-2").commit(sink_query.tasks(rows, run="run-2")))

    assert sorted(sink_query.bodies()) == rows


def test_broker_without_message_index_is_refused(tmp_path: Path) -> None:
    """After a restart it would not know how a transaction has ended."""
    with group(tmp_path, slaves=0, with_sidecars=False, messageIndexEnable="false") as running:
        sink_query = SinkQuery(running)
        with pytest.raises(NotTransactional, match="messageIndexEnable=true"):
            sink_query.tasks(["a", "b"])


async def wait_for_a_given_up_transaction(name_server: str, topic: str) -> None:
    """Begin another transaction, and wait until the broker has given it up, so that this much time has passed."""
    given_up = MessageQueue(topic=names.CHECK_MAX_TIME_TOPIC, broker_name=BROKER, queue_id=0)
    async with TransactionProducer(name_server, "in-vain") as producer, PullConsumer(name_server, "readers") as reader:
        await producer.begin(Message(topic, b"x"))

        async def is_given_up() -> bool:
            with suppress(ClientError):
                return await reader.max_offset(given_up) > 0
            return False

        await wait_until(is_given_up, timeout_s=60, what="a transaction that is given up")


def restart(broker: BrokerChild) -> None:
    """Restart the broker as after a crash."""
    arguments = broker.child.process.args
    assert isinstance(arguments, list)
    broker.child.end()
    broker.child = Child("gantry_broker", arguments[3:], "broker listening on")
