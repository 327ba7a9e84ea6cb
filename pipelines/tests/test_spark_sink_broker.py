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

SOON = {"transactionTimeOut": "100", "transactionCheckInterval": "200", "transactionCheckMax": "3"}
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """One broker without slaves that checks transactions early, and gives them up early."""
    with group(tmp_path_factory.mktemp("sink"), slaves=0, with_sidecars=False, **SOON) as running:
        yield running
        running.brokers[0].child.end()  # a restart may have replaced the first process


class Scene:
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

    def end(self, halves: HalfMessageList, count: int) -> None:
        """Commit only the first ``count`` half messages, as a driver does that dies after them."""

        async def some() -> None:
            async with TransactionProducer(self.name_server, group_of(self.query), answers_checks=False) as producer:
                await BrokerTransactionEnder(producer, self.options).commit(HalfMessageList(halves.refs[:count]))

        asyncio.run(some())

    def decide(self, done: list[TaskResult], batch: int = 0) -> HalfMessageList:
        """Store the marker, and stop there."""
        halves = HalfMessageList(place for one in done for place in unpack(one.halves))

        async def marker() -> None:
            async with self.driver(batch).open_attempt() as attempt:
                await attempt.decider.commit(halves)

        asyncio.run(marker())
        return halves


def test_batch_is_delivered_by_the_commit_of_its_driver(broker: Group) -> None:
    """Each queue has the rows in the order of their task."""
    scene = Scene(broker)
    rows = [f"{number:04d}" for number in range(200)]
    done = scene.tasks(rows)
    assert scene.bodies() == []

    committed = asyncio.run(scene.driver().commit(done))

    assert (committed.rows, committed.is_replay, committed.may_have_orphans) == (200, False, False)
    assert sorted(scene.bodies()) == rows
    for queue in (0, 1):
        found = [body for number, body in asyncio.run(scene._bodies()) if number == queue]
        for part in ("00", "01"):
            assert [body for body in found if body[:2] == part] == sorted(body for body in found if body[:2] == part)


@pytest.mark.parametrize("ends", [0, 7, 20], ids=["before-the-ends", "between-them", "after-them"])
def test_batch_of_a_driver_that_died_after_the_marker_is_finished(broker: Group, ends: int) -> None:
    """The replay stores its rows again, and delivers those of the marker."""
    scene = Scene(broker, sweep="false")
    rows = [f"{number:02d}" for number in range(20)]
    scene.end(scene.decide(scene.tasks(rows)), ends)

    committed = asyncio.run(scene.driver(run="run-2").commit(scene.tasks(rows, run="run-2")))

    assert (committed.is_replay, committed.rolled_back) == (True, 20)
    assert sorted(scene.bodies()) == rows


@pytest.mark.verify
def test_driver_that_dies_before_the_marker_delivers_nothing(broker: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next attempt is the batch; the half messages of the dead one, and no others, are checked and rolled back."""
    monkeypatch.setattr(driving, "SWEEP_MS", 4000)
    scene = Scene(broker)
    asyncio.run(scene.driver(0).commit(scene.tasks(["first"], 0)))
    scene.tasks(["x", "y", "z"], 1)
    later = scene.tasks(["later"], 2)

    committed = asyncio.run(scene.driver(1, run="run-2").commit(scene.tasks(["x", "y", "z"], 1, run="run-2")))

    assert committed.may_have_orphans
    assert sorted(scene.bodies()) == ["first", "x", "y", "z"]
    asyncio.run(scene.driver(2, run="run-2").commit(later))
    assert Counter(scene.bodies()) == Counter(["first", "x", "y", "z", "later"])
    assert asyncio.run(driving.sweep(scene.query, 9, HalfMessageList(), scene.options, sweep_ms=3000)) == 0


@pytest.mark.verify
def test_open_batch_is_not_checked_by_the_broker(broker: Group) -> None:
    """This broker gives up after three checks in a second; a driver may be away for longer than that."""
    scene = Scene(broker, sweep="false")
    done = scene.tasks(["a", "b"])
    halves = scene.decide(done)
    other = Scene(broker)
    asyncio.run(other_is_given_up(broker.name_server, other.topic))

    asyncio.run(scene.driver().commit(scene.tasks(["a", "b"], run="run-2")))

    assert sorted(scene.bodies()) == ["a", "b"]
    assert len(halves) == 2


def test_aborted_batch_is_rolled_back_unless_decided(broker: Group) -> None:
    """Spark also aborts when commit has failed, and a decided batch must not be rolled back then."""
    scene = Scene(broker, sweep="false")
    failed = scene.tasks(["a", "b"])
    assert asyncio.run(scene.driver().abort(failed[:1], is_full_batch=False)) == 1
    decided = scene.tasks(["c", "d"])
    scene.decide(decided)

    assert asyncio.run(scene.driver().abort(decided, is_full_batch=True)) == 0

    with pytest.raises(BatchTorn, match="1 of 1"):
        scene.end(HalfMessageList(unpack(failed[0].halves)), 1)
    asyncio.run(scene.driver(run="run-2").commit(scene.tasks(["c", "d"], run="run-2")))
    assert sorted(scene.bodies()) == ["c", "d"]


@pytest.mark.verify
def test_batch_survives_kills_of_its_broker(broker: Group) -> None:
    """The broker is killed between the marker and the ends, and again between two ends."""
    scene = Scene(broker, sweep="false")
    rows = [f"{number:02d}" for number in range(30)]
    halves = scene.decide(scene.tasks(rows))
    restart(broker.brokers[0])
    scene.end(halves, 11)
    restart(broker.brokers[0])

    asyncio.run(scene.driver(run="run-2").commit(scene.tasks(rows, run="run-2")))

    assert sorted(scene.bodies()) == rows


def test_broker_without_message_index_is_refused(tmp_path: Path) -> None:
    """After a restart it would not know how a transaction has ended."""
    with group(tmp_path, slaves=0, with_sidecars=False, messageIndexEnable="false") as running:
        scene = Scene(running)
        with pytest.raises(NotTransactional, match="messageIndexEnable=true"):
            scene.tasks(["a", "b"])


async def other_is_given_up(name_server: str, topic: str) -> None:
    """Begin another transaction, and wait until the broker has given it up, so that this much time has passed."""
    given_up = MessageQueue(topic=names.CHECK_MAX_TIME_TOPIC, broker_name=BROKER, queue_id=0)
    async with TransactionProducer(name_server, "in-vain") as producer, PullConsumer(name_server, "readers") as reader:
        await producer.begin(Message(topic, b"x"))

        async def is_there() -> bool:
            with suppress(ClientError):
                return await reader.max_offset(given_up) > 0
            return False

        await wait_until(is_there, timeout_s=60, what="a transaction that is given up")


def restart(broker: BrokerChild) -> None:
    """Restart the broker as after a crash."""
    arguments = broker.child.process.args
    assert isinstance(arguments, list)
    broker.child.end()
    broker.child = Child("gantry_broker", arguments[3:], "broker listening on")
