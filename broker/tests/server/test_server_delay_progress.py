"""How far delays are delivered: twice may be, skipped may not be, whoever is the master next."""

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from test_server_roles import MOVED, SYNC, copied, follows, group

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
class Log:
    """A store's positions, moved by hand."""

    wrote: int = 0
    flushed: int = 0
    confirmed: int = 0
    queue_end: int = 1 << 40
    marks: list[str] = field(default_factory=list)

    @property
    def log(self) -> "Log":
        """Its own log, positions and queues."""
        return self

    positions = queues = log

    def get(self, topic: str, queue_id: int) -> SimpleNamespace:
        return SimpleNamespace(end=self.queue_end)

    def mark(self, name: str, *, now: bool) -> None:
        self.marks.append(name)


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def progress(log: Log) -> DelayProgress:
    core: Any = SimpleNamespace(store=log, clock=FakeClock(), persistence=log)
    return DelayProgress(cast("BrokerCore", core))


def says(offset: int) -> DelayOffsetDocument:
    """A master's table."""
    return DelayOffsetDocument(offset_table={LEVEL: offset})


# ------- a master's own


def test_the_file_says_what_nothing_can_take_back(log: Log, progress: DelayProgress) -> None:
    """A delivery counts when its copy is on the disk, and with as many slaves as are waited for."""
    log.wrote = 100
    progress.advance(LEVEL, 7)
    assert progress.offset(LEVEL) == 7

    assert progress.settled().get(LEVEL, 0) == 0
    log.flushed = 100
    assert progress.settled().get(LEVEL, 0) == 0
    log.flushed, log.confirmed = 99, 100
    assert progress.settled().get(LEVEL, 0) == 0
    log.flushed = 100
    assert progress.document().offset_table == {LEVEL: 7}


def test_what_is_not_settled_yet_is_written_again(log: Log, progress: DelayProgress) -> None:
    """Nothing else may happen for hours, and the file must get there all the same."""
    log.wrote = 100
    progress.advance(LEVEL, 7)
    log.marks.clear()

    progress.document()

    assert log.marks == ["delayOffset"]


def test_steps_that_nobody_confirms_are_bounded(log: Log, progress: DelayProgress) -> None:
    """A master alone delivers for days; later than it could, but rightly, all of it is settled."""
    for number in range(1, 10 * STEPS_MAX):
        log.wrote = number * 10
        progress.advance(LEVEL, number)
    assert len(progress._steps[LEVEL]) <= STEPS_MAX

    log.flushed = log.confirmed = log.wrote - 1
    assert progress.settled()[LEVEL] < 10 * STEPS_MAX - 1
    log.flushed = log.confirmed = log.wrote
    assert progress.settled()[LEVEL] == 10 * STEPS_MAX - 1


# ------- a slave's


def test_a_masters_word_counts_when_the_log_is_there(log: Log, progress: DelayProgress) -> None:
    """Before, the copies that it speaks of are not here, and would be skipped."""
    progress.receive(says(5), 100)
    progress.receive(says(9), 200)

    progress.reach(99)
    assert progress.offset(LEVEL) == 0
    progress.reach(199)
    assert progress.offset(LEVEL) == 5
    progress.reach(200)
    assert progress.offset(LEVEL) == 9
    assert progress.settled().get(LEVEL, 0) == 0, "and for the file, when it is on the disk"
    log.flushed = 200
    assert progress.settled()[LEVEL] == 9


def test_words_that_wait_are_bounded(log: Log, progress: DelayProgress) -> None:
    """A slave that is hours behind keeps the oldest and the newest."""
    for number in range(1, 10 * WAITING_MAX):
        progress.receive(says(number), number * 10)

    progress.reach(10)
    assert progress.offset(LEVEL) == 1
    progress.reach(1 << 40)
    assert progress.offset(LEVEL) == 10 * WAITING_MAX - 1


def test_another_master_may_have_delivered_less(log: Log, progress: DelayProgress) -> None:
    """Then this broker has, too: its log is that master's now."""
    log.wrote = log.flushed = 100
    progress.receive(says(9), 100)
    progress.reach(100)
    assert progress.settled()[LEVEL] == 9

    progress.begin_copying()
    progress.receive(says(4), 100)
    progress.reach(100)

    assert progress.offset(LEVEL) == 4
    assert progress.settled()[LEVEL] == 4


def test_who_follows_forgets_what_may_have_been_cut(log: Log, progress: DelayProgress) -> None:
    """An old master's unconfirmed deliveries, and words about a log that ends earlier now."""
    log.wrote = log.flushed = log.confirmed = 100
    progress.advance(LEVEL, 5)
    progress.settled()
    log.wrote = log.flushed = 200
    progress.advance(LEVEL, 9)
    progress.receive(says(12), 150)

    log.wrote = 120
    progress.begin_copying()
    progress.reach(1 << 40)

    assert progress.offset(LEVEL) == 5


def test_a_new_master_believes_what_its_log_has(log: Log, progress: DelayProgress) -> None:
    """Confirmed or not: the log is the truth from now on, and words about more are forgotten."""
    progress.receive(says(5), 100)
    progress.receive(says(9), 200)
    log.wrote = 150

    progress.lead()
    progress.reach(1 << 40)

    assert progress.offset(LEVEL) == 5


def test_no_level_is_delivered_beyond_its_queue(log: Log, progress: DelayProgress) -> None:
    """New messages would take those places, and be skipped."""
    progress.load(says(50))
    log.queue_end = 40

    progress.lead()

    assert progress.offset(LEVEL) == progress.settled()[LEVEL] == 40


# ------- real brokers


async def send_later(broker: Broker, body: bytes, level: int = 1) -> None:
    async with dialogue(broker) as client:
        await client.send_ok(body, properties=properties_text(UNIQ_KEY=UNIQUE_ID, DELAY=str(level)))


async def messages(broker: Broker) -> list[StoredMessage]:
    async with dialogue(broker) as client:
        return await client.read(0, maxMsgNums="1000")


@pytest.mark.verify
@pytest.mark.parametrize("is_stamped", [True, False], ids=["stamped", "twin"])
async def test_a_promoted_slave_never_skips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_stamped: bool) -> None:
    """A master delivers, says so, and dies before the copy is on the slave, which then delivers it itself.

    The twin believes the master at once, and the message is never seen.
    """
    if not is_stamped:
        monkeypatch.setattr(DelayProgress, "receive", lambda self, document, end: self._take(end, document))
    conf = {**SYNC, **MOVED, "messageDelayLevel": "3s 1h"}
    async with group(tmp_path) as members:
        first = await members.start("one", **conf, brokerId="1")
        second = await members.start("two", **conf, brokerId="2")
        await first.orders.promote(1 << 8, [2], False)
        await second.orders.follow(1 << 8, first.settings.ha_address)
        await follows(first, 2)
        await send_later(first, b"later")
        await copied(first, second)
        stream = next(iter(first.replication.master.server.streams))
        stream.pause_writing()

        await wait_until(lambda: first.delay.progress.offset(1) == 1)
        known = second.delay.progress
        await wait_until(
            lambda: known.offset(1) == 1 or any(one.offset_table.get(1) for _, one in known._waiting.waiting)
        )
        assert second.store.log.wrote < first.store.log.wrote, "the copy is on the master only"
        await second.orders.promote(300, [1], False)
        await first.orders.follow(300, second.settings.ha_address)
        await follows(second, 1)

        if is_stamped:
            await wait_until(lambda: second.delay.progress.offset(1) == 1)
            await copied(second, first)
        else:
            rounds = second.delay.rounds
            await wait_until(lambda: second.delay.rounds >= rounds + 3)
        assert [message.body for message in await messages(second)] == ([b"later"] if is_stamped else [])
        if is_stamped:
            await wait_until(lambda: first.delay.progress.offset(1) == 1)


@pytest.mark.verify
async def test_delays_go_on_after_a_drained_switchover(tmp_path: Path) -> None:
    """What was delivered before is not delivered again, what waited is delivered by the new master, each once."""
    conf = {**SYNC, **MOVED, "messageDelayLevel": "1s 6s"}
    async with group(tmp_path) as members:
        first = await members.start("one", **conf, brokerId="1")
        second = await members.start("two", **conf, brokerId="2")
        await first.orders.promote(1 << 8, [2], False)
        await second.orders.follow(1 << 8, first.settings.ha_address)
        await follows(first, 2)
        await send_later(first, b"soon", 1)
        await send_later(first, b"late", 2)
        await wait_until(lambda: second.delay.progress.offset(1) == 1)

        await first.orders.drain(5_000)
        await second.orders.promote(300, [1], False)
        await first.orders.follow(300, second.settings.ha_address)
        await follows(second, 1)
        await wait_until(lambda: second.delay.progress.offset(2) == 1)
        await copied(second, first)

        assert [message.body for message in await messages(second)] == [b"soon", b"late"]


async def test_a_level_far_behind_does_not_hold_up_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each level gets a slice in turn: one message of another level does not wait for hundreds."""
    monkeypatch.setattr(delay, "SLICE_MESSAGES_MAX", 8)
    clock = FakeClock()
    async with running_broker(tmp_path, clock=clock) as broker:
        async with dialogue(broker) as client:
            for level in [1] * 200 + [3]:
                body = b"level %d" % level
                await client.send_ok(body, properties=properties_text(UNIQ_KEY=UNIQUE_ID, DELAY=str(level)))

        clock.advance(10_000)
        await wait_until(lambda: broker.delay.progress.offset(1) == 200 and broker.delay.progress.offset(3) == 1)

        bodies = [message.body for message in await messages(broker)]
        assert bodies.index(b"level 3") == 8


async def test_messages_that_wait_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million of them costs nothing: when the first is due is in its queue, and no record is looked at."""
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
        await wait_until(lambda: broker.delay.progress.offset(1) == 1)
        assert reads == 1


async def test_a_slave_that_restarts_goes_on_where_it_was(tmp_path: Path) -> None:
    """What it has taken over is in its own file, and counts when it is promoted without hearing of a master."""
    conf = {**SYNC, **MOVED, "messageDelayLevel": "1s 1h"}
    async with group(tmp_path) as members:
        first = await members.start("one", **conf, brokerId="1")
        second = await members.start("two", **conf, brokerId="2")
        await first.orders.promote(1 << 8, [2], False)
        await second.orders.follow(1 << 8, first.settings.ha_address)
        await follows(first, 2)
        await send_later(first, b"once")
        await wait_until(lambda: second.delay.progress.offset(1) == 1)
        await second.close()
        await first.close()

        second = await members.start("two")
        assert second.delay.progress.offset(1) == 1
        await second.orders.promote(300, [], False)
        rounds = second.delay.rounds
        await wait_until(lambda: second.delay.rounds >= rounds + 3)
        queue = second.store.queues.get(TOPIC, 0)
        assert queue is not None and queue.end == 1
