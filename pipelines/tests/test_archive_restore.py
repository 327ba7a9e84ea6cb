"""Restore of an archive: each message is sent once, in its queue's order and unchanged, with faults at any time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from spark_kit.toy_archive import archive_log
from spark_kit.toy_log import ToyLog, body_of

from gantry_client import Message, MessageQueue, RequestTimeout, SendReceipt, SendStatus
from gantry_pipelines.archive.errors import RestoreFailed
from gantry_pipelines.archive.restore import RestorePlan, prepare_new_group, restore
from pyspark_rocketmq.model import QueueId

ONE, TWO = QueueId("orders", "broker-a", 0), QueueId("orders", "broker-a", 1)
LOG = ToyLog({ONE: 650, TWO: 320})


class Broker:
    """A target in memory. `faults` has, by the number of a send: `lost` (not stored), `unanswered`, `not promised`."""

    def __init__(self, queues: int = 2) -> None:
        self.logs: dict[int, list[tuple[str, Message]]] = {number: [] for number in range(queues)}
        self.faults: dict[int, str] = {}
        self.sends = 0
        self.created: dict[str, int] = {}
        self.existing = {"again"}

    def queues(self, topic: str) -> Sequence[MessageQueue]:
        return [MessageQueue(topic=topic, broker_name="b", queue_id=number) for number in self.logs]

    def topics(self) -> Iterable[str]:
        return sorted(self.existing | self.created.keys())

    def create_topic(self, topic: str, queues: int) -> None:
        self.created[topic] = queues

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


def test_restored_messages_equal_the_archived_ones(tmp_path: Path) -> None:
    """Order, bodies, keys, tags and message ids are restored; a second restore sends nothing."""
    storage, broker = archive_log(LOG, tmp_path / "archive"), Broker()

    first = restore(storage, plan(tmp_path), broker, Time())
    second = restore(storage, plan(tmp_path), broker, Time())

    assert [one.sent for one in first] == [650, 320] and [one.sent for one in second] == [0, 0]
    assert broker.bodies(0) == [body_of(ONE, offset) for offset in range(650)]
    assert broker.bodies(1) == [body_of(TWO, offset) for offset in range(320)]
    identity, message = broker.logs[0][7]
    assert (identity, message.topic, message.tags, message.keys) == (f"{ONE}-7", "again", "tag-1", ("key-7",))


@pytest.mark.parametrize("fault", ["lost", "unanswered", "not promised"])
def test_unacknowledged_send_is_searched_in_the_target_first(tmp_path: Path, fault: str) -> None:
    """Stored messages are not sent again, the others are; in order, each once."""
    storage, broker = archive_log(ToyLog({ONE: 650}), tmp_path / "archive"), Broker(1)
    broker.faults = {2: fault, 4: fault}

    restore(storage, plan(tmp_path), broker, Time())

    assert broker.bodies(0) == [body_of(ONE, offset) for offset in range(650)]


@pytest.mark.parametrize("at", [1, 2, 3])
def test_restore_continues_after_a_crash(tmp_path: Path, at: int) -> None:
    """After a kill between a send and its progress file, the next run finds the sent messages in the target."""

    class Died(BaseException):
        pass

    class Dying(Broker):
        def send(self, messages: Sequence[Message], queue: MessageQueue, ids: Sequence[str]) -> Sequence[SendReceipt]:
            receipts = super().send(messages, queue, ids)
            if self.sends == at:
                raise Died
            return receipts

    storage, broker = archive_log(ToyLog({ONE: 650}), tmp_path / "archive"), Dying(1)

    with pytest.raises(Died):
        restore(storage, plan(tmp_path), broker, Time())
    [rest] = restore(storage, plan(tmp_path), broker, Time())

    assert broker.bodies(0) == [body_of(ONE, offset) for offset in range(650)]
    assert rest.found > 0 and rest.is_complete


def test_restore_after_a_crash_waits_for_messages_that_the_target_does_not_show_yet(tmp_path: Path) -> None:
    """A batch that was in flight at a kill may be stored, and become visible seconds after the next run has begun."""

    class Died(BaseException):
        pass

    class Slow(Broker):
        """A broker that shows the messages of its second send only after five seconds, and whose client dies then."""

        visible = 650

        def send(self, messages: Sequence[Message], queue: MessageQueue, ids: Sequence[str]) -> Sequence[SendReceipt]:
            before = len(self.logs[0])
            receipts = super().send(messages, queue, ids)
            if self.sends == 2:
                self.visible = before
                raise Died
            return receipts

        def end(self, queue: MessageQueue) -> int:
            return len(list(self.ids(queue, 0)))

        def ids(self, queue: MessageQueue, begin: int) -> Iterable[str]:
            shown = 650 if clock.seconds >= 5 else self.visible
            return [one for one, _ in self.logs[0][begin:shown]]

    storage, broker, clock = archive_log(ToyLog({ONE: 650}), tmp_path / "archive"), Slow(1), Time()

    with pytest.raises(Died):
        restore(storage, plan(tmp_path), broker, clock)
    [rest] = restore(storage, plan(tmp_path), broker, clock)

    assert broker.bodies(0) == [body_of(ONE, offset) for offset in range(650)]
    assert rest.found > 0 and clock.seconds < 10


def test_first_restore_does_not_wait_for_an_earlier_one(tmp_path: Path) -> None:
    """Without a progress file no earlier run has sent anything to wait for."""
    storage, clock = archive_log(ToyLog({ONE: 650}), tmp_path / "archive"), Time()

    restore(storage, plan(tmp_path), Broker(1), clock)

    assert clock.seconds == 0


def test_without_searching_the_target_messages_would_be_duplicated(tmp_path: Path) -> None:
    """The twin: if the target returns no ids, the unanswered batch is sent a second time."""

    class Blind(Broker):
        def ids(self, queue: MessageQueue, begin: int) -> Iterable[str]:
            return []

    storage, broker = archive_log(ToyLog({ONE: 650}), tmp_path / "archive"), Blind(1)
    broker.faults = {2: "unanswered"}

    restore(storage, plan(tmp_path), broker, Time())

    assert len(broker.bodies(0)) > 650


def test_restore_fails_with_its_position_when_brokers_stay_unavailable(tmp_path: Path) -> None:
    """After the timeout the restore fails, and the error has the offset at which the next run continues."""
    storage, broker = archive_log(ToyLog({ONE: 650}), tmp_path / "archive"), Broker(1)
    broker.faults = dict.fromkeys(range(3, 1000), "lost")

    with pytest.raises(RestoreFailed, match=r"was restored up to 200"):
        restore(storage, plan(tmp_path), broker, Time())


def test_unknown_topic_and_progress_of_another_target_are_refused(tmp_path: Path) -> None:
    """A mistyped topic restores nothing, and the progress of one target is not used for another."""
    storage = archive_log(ToyLog({ONE: 50}), tmp_path / "archive")
    restore(storage, plan(tmp_path), Broker(1), Time())

    with pytest.raises(RestoreFailed, match="no messages of topic ordres"):
        restore(storage, RestorePlan({"ordres": "again"}, str(tmp_path / "p")), Broker(1), Time())
    with pytest.raises(RestoreFailed, match="use another folder"):
        restore(storage, RestorePlan({"orders": "other"}, str(tmp_path / "progress")), Broker(1), Time())


# -- into a new group --------------------------------------------------------------------------------------------------


def test_new_group_gets_the_topics_of_the_archive(tmp_path: Path) -> None:
    """A missing topic is created with the archive's number of queues; one that exists and is empty is used."""
    storage = archive_log(ToyLog({ONE: 10, TWO: 20, QueueId("bills", "broker-b", 6): 5}), tmp_path / "archive")
    broker = Broker()
    broker.existing = {"bills"}

    topics = prepare_new_group(storage, broker, str(tmp_path / "progress"))

    assert topics == {"orders": "orders", "bills": "bills"}
    assert broker.created == {"orders": 2}


def test_topic_with_messages_of_others_is_refused(tmp_path: Path) -> None:
    """Its messages would be there twice. Nothing is created; the text names the topic and the remedy."""
    storage, broker = archive_log(ToyLog({ONE: 10, QueueId("bills", "b", 0): 5}), tmp_path / "archive"), Broker()
    broker.existing = {"orders"}
    broker.send([Message("orders", b"of someone else")], broker.queues("orders")[0], ["1"])

    with pytest.raises(RestoreFailed, match=r"topic orders has messages already.*restore\.topics"):
        prepare_new_group(storage, broker, str(tmp_path / "progress"))
    assert broker.created == {}


def test_interrupted_restore_into_a_new_group_continues(tmp_path: Path) -> None:
    """The messages of the first run are of this restore, so the second run is not refused."""
    storage, broker = archive_log(ToyLog({ONE: 650}), tmp_path / "archive"), Broker(1)
    broker.existing, progress = {"orders"}, str(tmp_path / "progress")
    first = RestorePlan(prepare_new_group(storage, broker, progress), progress, is_stopped=lambda: broker.sends == 2)
    assert not restore(storage, first, broker, Time())[0].is_complete

    rest = RestorePlan(prepare_new_group(storage, broker, progress), progress)
    assert restore(storage, rest, broker, Time())[0].is_complete
    assert broker.bodies(0) == [body_of(ONE, offset) for offset in range(650)]


def test_progress_of_another_group_is_refused(tmp_path: Path) -> None:
    """A group that was restored is lost, too. With the old progress the next one would get nothing, and no error."""
    storage, progress = archive_log(ToyLog({ONE: 650}), tmp_path / "archive"), str(tmp_path / "progress")
    first, second = Broker(1), Broker(1)
    for broker in (first, second):
        broker.existing = {"orders"}
    restore(storage, RestorePlan(prepare_new_group(storage, first, progress), progress), first, Time())

    with pytest.raises(RestoreFailed, match=r"belongs to a restore to another group.*use another folder"):
        restore(storage, RestorePlan(prepare_new_group(storage, second, progress), progress), second, Time())
    assert second.bodies(0) == []
