"""Progress of delayed delivery: a message may be delivered twice but never skipped, also by the next master."""

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from test_server_roles import SYNC, UNASSIGNED, running_group, wait_until_copied, wait_until_following

from gantry_broker.app import Broker
from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.offsets import DelayOffsetDocument
from gantry_broker.server.core.stamped_documents import WAITING_MAX
from gantry_broker.server.delay import service as delay
from gantry_broker.server.delay.progress import STEPS_MAX, DelayProgress
from gantry_testing.fake_clock import FakeClock
from gantry_testing.local import TOPIC, UNIQUE_ID, dialogue, properties_text, running_broker, wait_until
from gantry_wire.message import StoredMessage

LEVEL = 3


@dataclass
class FakeLog:
    """Positions of a store that the test sets."""

    wrote: int = 0
    flushed: int = 0
    confirmed: int = 0
    queue_end: int = 1 << 40
    marks: list[str] = field(default_factory=list)

    @property
    def log(self) -> "FakeLog":
        """Its own log, positions and queues."""
        return self

    positions = queues = log

    def get(self, topic: str, queue_id: int) -> SimpleNamespace:
        return SimpleNamespace(end=self.queue_end)

    def mark(self, name: str, *, now: bool) -> None:
        self.marks.append(name)


@pytest.fixture
def log() -> FakeLog:
    return FakeLog()


@pytest.fixture
def progress(log: FakeLog) -> DelayProgress:
    core: Any = SimpleNamespace(store=log, clock=FakeClock(), persistence=log)
    return DelayProgress(cast("BrokerCore", core))


def document_at(offset: int) -> DelayOffsetDocument:
    """Return a master's document with this offset."""
    return DelayOffsetDocument(offset_table={LEVEL: offset})


# ------- a master's own


def test_file_holds_only_settled_offsets(log: FakeLog, progress: DelayProgress) -> None:
    """A delivery is settled when its copy is flushed, and on as many slaves as sends wait for."""
    log.wrote = 100
    progress.advance(LEVEL, 7)
    assert progress.next_offset(LEVEL) == 7

    assert progress.settle_steps().get(LEVEL, 0) == 0
    log.flushed = 100
    assert progress.settle_steps().get(LEVEL, 0) == 0
    log.flushed, log.confirmed = 99, 100
    assert progress.settle_steps().get(LEVEL, 0) == 0
    log.flushed = 100
    assert progress.document().offset_table == {LEVEL: 7}


def test_unsettled_offsets_are_written_later(log: FakeLog, progress: DelayProgress) -> None:
    """The file is updated even if nothing else happens for hours."""
    log.wrote = 100
    progress.advance(LEVEL, 7)
    log.marks.clear()

    progress.document()

    assert log.marks == ["delayOffset"]


def test_unconfirmed_steps_are_limited(log: FakeLog, progress: DelayProgress) -> None:
    """After days without a slave all deliveries are settled in the end, if later than possible."""
    for number in range(1, 10 * STEPS_MAX):
        log.wrote = number * 10
        progress.advance(LEVEL, number)
    assert len(progress._steps[LEVEL]) <= STEPS_MAX

    log.flushed = log.confirmed = log.wrote - 1
    assert progress.settle_steps()[LEVEL] < 10 * STEPS_MAX - 1
    log.flushed = log.confirmed = log.wrote
    assert progress.settle_steps()[LEVEL] == 10 * STEPS_MAX - 1


# ------- a slave's


def test_document_of_a_master_applies_when_the_log_has_its_end(log: FakeLog, progress: DelayProgress) -> None:
    """Applied earlier, it would skip messages whose copies are not here yet."""
    progress.receive(document_at(5), 100)
    progress.receive(document_at(9), 200)

    progress.apply_up_to(99)
    assert progress.next_offset(LEVEL) == 0
    progress.apply_up_to(199)
    assert progress.next_offset(LEVEL) == 5
    progress.apply_up_to(200)
    assert progress.next_offset(LEVEL) == 9
    assert progress.settle_steps().get(LEVEL, 0) == 0, "the file has an offset whose copies are not flushed yet"
    log.flushed = 200
    assert progress.settle_steps()[LEVEL] == 9


def test_waiting_documents_are_limited(log: FakeLog, progress: DelayProgress) -> None:
    """A slave that is hours behind keeps the oldest and the newest."""
    for number in range(1, 10 * WAITING_MAX):
        progress.receive(document_at(number), number * 10)

    progress.apply_up_to(10)
    assert progress.next_offset(LEVEL) == 1
    progress.apply_up_to(1 << 40)
    assert progress.next_offset(LEVEL) == 10 * WAITING_MAX - 1


def test_another_master_may_have_delivered_less(log: FakeLog, progress: DelayProgress) -> None:
    """Then its offsets apply, since this log equals that master's."""
    log.wrote = log.flushed = 100
    progress.receive(document_at(9), 100)
    progress.apply_up_to(100)
    assert progress.settle_steps()[LEVEL] == 9

    progress.begin_copying()
    progress.receive(document_at(4), 100)
    progress.apply_up_to(100)

    assert progress.next_offset(LEVEL) == 4
    assert progress.settle_steps()[LEVEL] == 4


def test_new_slave_forgets_offsets_that_may_be_cut(log: FakeLog, progress: DelayProgress) -> None:
    """Unconfirmed deliveries of an old master, and documents about a log that was cut, are dropped."""
    log.wrote = log.flushed = log.confirmed = 100
    progress.advance(LEVEL, 5)
    progress.settle_steps()
    log.wrote = log.flushed = 200
    progress.advance(LEVEL, 9)
    progress.receive(document_at(12), 150)

    log.wrote = 120
    progress.begin_copying()
    progress.apply_up_to(1 << 40)

    assert progress.next_offset(LEVEL) == 5


def test_new_master_applies_documents_up_to_its_log_end(log: FakeLog, progress: DelayProgress) -> None:
    """Confirmed or not, documents within the log apply; those beyond it are dropped."""
    progress.receive(document_at(5), 100)
    progress.receive(document_at(9), 200)
    log.wrote = 150

    progress.become_master()
    progress.apply_up_to(1 << 40)

    assert progress.next_offset(LEVEL) == 5


def test_level_is_never_delivered_beyond_its_queue(log: FakeLog, progress: DelayProgress) -> None:
    """Otherwise new messages at those offsets would be skipped."""
    progress.load(document_at(50))
    log.queue_end = 40

    progress.become_master()

    assert progress.next_offset(LEVEL) == progress.settle_steps()[LEVEL] == 40


# ------- real brokers


async def send_later(broker: Broker, body: bytes, level: int = 1) -> None:
    async with dialogue(broker) as client:
        await client.send_ok(body, properties=properties_text(UNIQ_KEY=UNIQUE_ID, DELAY=str(level)))


async def messages(broker: Broker) -> list[StoredMessage]:
    async with dialogue(broker) as client:
        return await client.read(0, maxMsgNums="1000")


@pytest.mark.verify
@pytest.mark.parametrize("is_stamped", [True, False], ids=["stamped", "not stamped, the twin"])
async def test_promoted_slave_never_skips_a_delayed_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_stamped: bool
) -> None:
    """A master delivers, reports it, and is replaced before the copy is on the slave, which then delivers it itself.

    The twin applies the report at once, and the message is lost.
    """
    if not is_stamped:
        monkeypatch.setattr(DelayProgress, "receive", lambda self, document, end: self._apply_document(end, document))
    conf = {**SYNC, **UNASSIGNED, "messageDelayLevel": "3s 1h"}
    async with running_group(tmp_path) as members:
        first = await members.start("one", **conf, brokerId="1")
        second = await members.start("two", **conf, brokerId="2")
        await first.orders.promote(1 << 8, [2], False)
        await second.orders.follow(1 << 8, first.settings.ha_address)
        await wait_until_following(first, 2)
        await send_later(first, b"later")
        await wait_until_copied(first, second)
        stream = next(iter(first.replication.master.server.streams))
        stream.pause_writing()

        await wait_until(lambda: first.delay.progress.next_offset(1) == 1)
        known = second.delay.progress
        await wait_until(
            lambda: known.next_offset(1) == 1 or any(one.offset_table.get(1) for _, one in known._waiting.waiting)
        )
        assert second.store.log.wrote < first.store.log.wrote, "expected the copy on the master only"
        await second.orders.promote(300, [1], False)
        await first.orders.follow(300, second.settings.ha_address)
        await wait_until_following(second, 1)

        if is_stamped:
            await wait_until(lambda: second.delay.progress.next_offset(1) == 1)
            await wait_until_copied(second, first)
        else:
            rounds = second.delay.rounds
            await wait_until(lambda: second.delay.rounds >= rounds + 3)
        assert [message.body for message in await messages(second)] == ([b"later"] if is_stamped else [])
        if is_stamped:
            await wait_until(lambda: first.delay.progress.next_offset(1) == 1)


@pytest.mark.verify
async def test_delays_continue_after_a_drained_switchover(tmp_path: Path) -> None:
    """Delivered messages are not delivered again, waiting ones are delivered by the new master, each once."""
    conf = {**SYNC, **UNASSIGNED, "messageDelayLevel": "1s 6s"}
    async with running_group(tmp_path) as members:
        first = await members.start("one", **conf, brokerId="1")
        second = await members.start("two", **conf, brokerId="2")
        await first.orders.promote(1 << 8, [2], False)
        await second.orders.follow(1 << 8, first.settings.ha_address)
        await wait_until_following(first, 2)
        await send_later(first, b"soon", 1)
        await send_later(first, b"late", 2)
        await wait_until(lambda: second.delay.progress.next_offset(1) == 1)

        await first.orders.drain(5_000)
        await second.orders.promote(300, [1], False)
        await first.orders.follow(300, second.settings.ha_address)
        await wait_until_following(second, 1)
        await wait_until(lambda: second.delay.progress.next_offset(2) == 1)
        await wait_until_copied(second, first)

        assert [message.body for message in await messages(second)] == [b"soon", b"late"]


async def test_level_far_behind_does_not_hold_up_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each level gets a slice in turn: one message of another level does not wait for hundreds."""
    monkeypatch.setattr(delay, "SLICE_MESSAGES_MAX", 8)
    clock = FakeClock()
    async with running_broker(tmp_path, clock=clock) as broker:
        async with dialogue(broker) as client:
            for level in [1] * 200 + [3]:
                body = b"level %d" % level
                await client.send_ok(body, properties=properties_text(UNIQ_KEY=UNIQUE_ID, DELAY=str(level)))

        clock.advance(10_000)
        await wait_until(
            lambda: broker.delay.progress.next_offset(1) == 200 and broker.delay.progress.next_offset(3) == 1
        )

        bodies = [message.body for message in await messages(broker)]
        assert bodies.index(b"level 3") == 8


async def test_waiting_messages_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million waiting messages cost nothing: the due time of the first is in its queue, and no record is read."""
    clock = FakeClock()
    async with running_broker(tmp_path, clock=clock) as broker:
        for level in (1, 2, 3, 4):
            await send_later(broker, b"x", level)
        reads = 0
        read = broker.core.store.read

        def count(*arguments: Any, **more: Any) -> Any:
            nonlocal reads
            reads += arguments[0] != TOPIC
            return read(*arguments, **more)

        monkeypatch.setattr(broker.core.store, "read", count)
        rounds = broker.delay.rounds
        await wait_until(lambda: broker.delay.rounds >= rounds + 5)
        assert reads == 0

        clock.advance(1_000)
        await wait_until(lambda: broker.delay.progress.next_offset(1) == 1)
        assert reads == 1


async def test_restarted_slave_continues_at_its_position(tmp_path: Path) -> None:
    """Applied progress is in its own file, and counts if it is promoted without another master's report."""
    conf = {**SYNC, **UNASSIGNED, "messageDelayLevel": "1s 1h"}
    async with running_group(tmp_path) as members:
        first = await members.start("one", **conf, brokerId="1")
        second = await members.start("two", **conf, brokerId="2")
        await first.orders.promote(1 << 8, [2], False)
        await second.orders.follow(1 << 8, first.settings.ha_address)
        await wait_until_following(first, 2)
        await send_later(first, b"once")
        await wait_until(lambda: second.delay.progress.next_offset(1) == 1)
        await second.close()
        await first.close()

        second = await members.start("two")
        assert second.delay.progress.next_offset(1) == 1
        await second.orders.promote(300, [], False)
        rounds = second.delay.rounds
        await wait_until(lambda: second.delay.rounds >= rounds + 3)
        queue = second.store.queues.get(TOPIC, 0)
        assert queue is not None and queue.end == 1
