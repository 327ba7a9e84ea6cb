"""Sending an archive back. The rule: each message is there once, in its queue's order, as it was, whoever fails
when."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from spark_kit.toy_archive import archived
from spark_kit.toy_log import ToyLog, body_of

from gantry_client import Message, MessageQueue, RequestTimeout, SendReceipt, SendStatus
from gantry_pipelines.archive.errors import RestoreFailed
from gantry_pipelines.archive.restore import RestorePlan, restore
from pyspark_rocketmq.model import QueueId

ONE, TWO = QueueId("orders", "broker-a", 0), QueueId("orders", "broker-a", 1)
LOG = ToyLog({ONE: 650, TWO: 320})


class Broker:
    """A target in memory. `faults` are what becomes of the sends, one after the other: stored or not, answered or
    not."""

    def __init__(self, queues: int = 2) -> None:
        self.logs: dict[int, list[tuple[str, Message]]] = {number: [] for number in range(queues)}
        self.faults: dict[int, str] = {}
        self.sends = 0

    def queues(self, topic: str) -> Sequence[MessageQueue]:
        return [MessageQueue(topic=topic, broker_name="b", queue_id=number) for number in self.logs]

    def send(self, messages: Sequence[Message], queue: MessageQueue, ids: Sequence[str]) -> Sequence[SendReceipt]:
        self.sends += 1
        fault = self.faults.get(self.sends, "")
        log = self.logs[queue.queue_id]
        if fault != "lost":
            log += zip(ids, messages, strict=True)
        if fault in ("lost", "unanswered"):
            raise RequestTimeout("b", 1000)
        status = SendStatus.FLUSH_SLAVE_TIMEOUT if fault == "not promised" else SendStatus.SEND_OK
        return [
            SendReceipt(status=status, message_id=one, offset_message_id="", queue=queue, queue_offset=len(log) - 1)
            for one in ids
        ]

    def end(self, queue: MessageQueue) -> int:
        return len(self.logs[queue.queue_id])

    def ids(self, queue: MessageQueue, begin: int) -> Iterable[str]:
        return [one for one, _ in self.logs[queue.queue_id][begin:]]

    def bodies(self, number: int) -> list[bytes]:
        return [message.body for _, message in self.logs[number]]


class Time:
    def __init__(self) -> None:
        self.seconds = 0.0

    def now_s(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


def plan(tmp_path: Path, **more: object) -> RestorePlan:
    return RestorePlan({"orders": "again"}, str(tmp_path / "progress"), **more)  # type: ignore[arg-type]


def test_an_archive_is_sent_back_as_it_was(tmp_path: Path) -> None:
    """Queue by queue in its order, with bodies, keys, tags, properties and the sender's ids; done again, nothing is
    sent."""
    storage, broker = archived(LOG, tmp_path / "archive"), Broker()

    first = restore(storage, plan(tmp_path), broker, Time())
    second = restore(storage, plan(tmp_path), broker, Time())

    assert [one.sent for one in first] == [650, 320] and [one.sent for one in second] == [0, 0]
    assert broker.bodies(0) == [body_of(ONE, offset) for offset in range(650)]
    assert broker.bodies(1) == [body_of(TWO, offset) for offset in range(320)]
    identity, message = broker.logs[0][7]
    assert (identity, message.topic, message.tags, message.keys) == (f"{ONE}-7", "again", "tag-1", ("key-7",))


@pytest.mark.parametrize("fault", ["lost", "unanswered", "not promised"])
def test_a_send_without_a_good_answer_is_looked_for_first(tmp_path: Path, fault: str) -> None:
    """What was stored is not sent again, what was not is; in order, each once."""
    storage, broker = archived(ToyLog({ONE: 650}), tmp_path / "archive"), Broker(1)
    broker.faults = {2: fault, 4: fault}

    restore(storage, plan(tmp_path), broker, Time())

    assert broker.bodies(0) == [body_of(ONE, offset) for offset in range(650)]


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_restore_that_died_goes_on_where_it_was(tmp_path: Path, at: int) -> None:
    """Killed between a send and its progress, the next run finds in the target what was sent."""

    class Died(BaseException):
        pass

    class Dying(Broker):
        def send(self, messages: Sequence[Message], queue: MessageQueue, ids: Sequence[str]) -> Sequence[SendReceipt]:
            receipts = super().send(messages, queue, ids)
            if self.sends == at:
                raise Died
            return receipts

    storage, broker = archived(ToyLog({ONE: 650}), tmp_path / "archive"), Dying(1)

    with pytest.raises(Died):
        restore(storage, plan(tmp_path), broker, Time())
    [rest] = restore(storage, plan(tmp_path), broker, Time())

    assert broker.bodies(0) == [body_of(ONE, offset) for offset in range(650)]
    assert rest.found > 0 and rest.is_whole


def test_without_looking_messages_would_be_there_twice(tmp_path: Path) -> None:
    """The twin: a target that shows nothing of what it has gets the unanswered batch a second time."""

    class Blind(Broker):
        def ids(self, queue: MessageQueue, begin: int) -> Iterable[str]:
            return []

    storage, broker = archived(ToyLog({ONE: 650}), tmp_path / "archive"), Blind(1)
    broker.faults = {2: "unanswered"}

    restore(storage, plan(tmp_path), broker, Time())

    assert len(broker.bodies(0)) > 650


def test_brokers_that_stay_away_end_it_with_how_far_it_came(tmp_path: Path) -> None:
    """Patience has an end, and the message says from where the next run goes on."""
    storage, broker = archived(ToyLog({ONE: 650}), tmp_path / "archive"), Broker(1)
    broker.faults = dict.fromkeys(range(3, 1000), "lost")

    with pytest.raises(RestoreFailed, match=r"was sent up to 200"):
        restore(storage, plan(tmp_path), broker, Time())


def test_a_topic_that_is_not_there_and_another_target_are_refused(tmp_path: Path) -> None:
    """A typing error restores nothing, and progress of one target is not used for another."""
    storage = archived(ToyLog({ONE: 50}), tmp_path / "archive")
    restore(storage, plan(tmp_path), Broker(1), Time())

    with pytest.raises(RestoreFailed, match="nothing of topic ordres"):
        restore(storage, RestorePlan({"ordres": "again"}, str(tmp_path / "p")), Broker(1), Time())
    with pytest.raises(RestoreFailed, match="use another folder"):
        restore(storage, RestorePlan({"orders": "other"}, str(tmp_path / "progress")), Broker(1), Time())
