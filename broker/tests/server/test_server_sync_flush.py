"""SYNC_FLUSH on the wire: code 0 after the flush, or at once with WAIT=false; 10 at the deadline; no handler waits."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gantry_broker.app import Broker
from gantry_broker.server.core.stats import BrokerStats
from gantry_broker.server.send import ack_gate as module
from gantry_broker.server.send.ack_gate import AckGate, SendState, replace_code
from gantry_broker.setting_keys import broker_settings
from gantry_broker.store.log_end import decode_log_end
from gantry_testing.fake_clock import FakeClock
from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.local import dialogue, local_conf, properties_text, wait_until
from gantry_wire import Command, RequestCode, ResponseCode
from gantry_wire.batch import BatchEntry, encode_batch


class FakeStore:
    """Positions of a log and of its slaves, as store and as replication."""

    promised = flushed = wrote = confirmed = 0
    slaves_acked = 0
    is_waiting_for_slaves = has_slaves = True

    @property
    def acks(self) -> FakeStore:
        return self

    log = positions = acks

    def acked_offset(self) -> int:
        return self.slaves_acked

    def has_enough(self) -> bool:
        return self.has_slaves

    def may_acknowledge(self) -> bool:
        return True


def ack_gate(store: FakeStore, flush_ms: int, slave_ms: int = 60_000) -> AckGate:
    loop = asyncio.get_running_loop()
    stats = BrokerStats()
    return AckGate(store, store, stats, loop, flush_timeout_ms=flush_ms, slave_timeout_ms=slave_ms)  # type: ignore[arg-type]


class FakeConnection:
    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, data: bytes) -> None:
        self.sent.append(data)


def hold(gate: AckGate, connection: FakeConnection, replies: bytes, sends: int, end: int) -> None:
    gate.hold([(connection, replies, sends)], end)


def frame(opaque: int, code: int = 0) -> bytes:
    return Command(code=code, opaque=opaque, flag=1, ext={"msgId": "A"}, body=b"").encode()


def test_late_answer_changes_only_its_code() -> None:
    """Code 10 means "stored, not promised": the client still gets the offset."""
    late = replace_code(frame(1) + frame(2), ResponseCode.FLUSH_DISK_TIMEOUT)

    assert late.count(b'"code":10') == 2
    assert late.count(b'"msgId":"A"') == 2


def test_answers_are_sent_in_log_order_once_promised() -> None:
    """No answer is sent early; one flush answers all sends before it, with one write per connection."""

    async def scenario() -> None:
        store, first, second = FakeStore(), FakeConnection(), FakeConnection()
        gate = ack_gate(store, 5_000)
        hold(gate, first, b"a", 1, 100)
        hold(gate, second, b"b", 1, 100)
        hold(gate, first, b"c", 2, 200)
        hold(gate, first, b"d", 1, 300)

        store.promised = 99
        gate.release()
        assert (first.sent, second.sent, gate.count) == ([], [], 5)
        store.promised = 299
        gate.release()
        assert (first.sent, second.sent, gate.count) == ([b"ac"], [b"b"], 1)
        gate.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize("promised", [0, 100], ids=["late", "in-time"])
def test_only_unflushed_sends_are_answered_10_at_the_deadline(promised: int) -> None:
    """The positions are checked again before a send is answered as late."""

    async def scenario() -> None:
        store, connection = FakeStore(), FakeConnection()
        gate = ack_gate(store, 20)
        hold(gate, connection, frame(1), 1, 100)
        store.promised = promised
        await wait_until(lambda: bool(connection.sent))
        assert (b'"code":10' in connection.sent[0]) == (promised == 0)
        assert gate.late_count == (promised == 0)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("flush_ms", "slave_ms", "flushed", "acked", "code"),
    [
        (60, 20, 0, 0, 12), (60, 20, 100, 0, 12), (60, 20, 0, 100, 10), (20, 60, 0, 0, 10), (20, 60, 0, 100, 10),
        (20, 60, 100, 0, 12),
    ],
    ids=["neither", "no-slave", "no-disk", "disk-first-neither", "disk-first-no-disk", "disk-first-no-slave"],
)  # fmt: skip
def test_disk_and_slaves_are_waited_for_in_parallel(
    flush_ms: int, slave_ms: int, flushed: int, acked: int, code: int
) -> None:
    """Each has its own deadline from the append on; the first one that is missed is the answer."""

    async def scenario() -> None:
        store, connection = FakeStore(), FakeConnection()
        gate = ack_gate(store, flush_ms, slave_ms)
        hold(gate, connection, frame(1), 1, 100)
        store.flushed, store.slaves_acked = flushed, acked
        await wait_until(lambda: bool(connection.sent))
        assert f'"code":{code}'.encode() in connection.sent[0]
        assert (gate.count, gate.late_count) == (0, 1)

    asyncio.run(scenario())


def test_send_with_both_conditions_before_their_deadlines_is_answered_0() -> None:
    """Passing the earlier deadline with the earlier promise kept is no failure."""

    async def scenario() -> None:
        store, connection = FakeStore(), FakeConnection()
        gate = ack_gate(store, 5_000, 20)
        hold(gate, connection, frame(1), 1, 100)
        store.slaves_acked = 100
        first = gate._timer
        await wait_until(lambda: gate._timer is not first)  # the earlier deadline has passed
        assert connection.sent == []
        hold(gate, connection, frame(2), 1, 200)
        store.slaves_acked = store.promised = 200
        gate.release()
        assert connection.sent == [frame(1) + frame(2)]
        gate.stop()

    asyncio.run(scenario())


def test_new_send_meets_its_early_deadline_while_an_older_one_waits_for_the_late_one() -> None:
    """The timer stands at the later deadline of the older send, and is set again."""

    async def scenario() -> None:
        store, connection = FakeStore(), FakeConnection()
        gate = ack_gate(store, 60_000, 20)
        hold(gate, connection, frame(1), 1, 100)
        store.slaves_acked = 100
        first = gate._timer
        await wait_until(lambda: gate._timer is not first)
        hold(gate, connection, frame(2), 1, 200)
        await wait_until(lambda: bool(connection.sent))
        assert connection.sent == [frame(2, ResponseCode.FLUSH_SLAVE_TIMEOUT)]
        gate.stop()

    asyncio.run(scenario())


def test_the_table_and_the_text_have_every_state_of_a_send() -> None:
    """The docstring draws the states once; the gate's text shows the position of each that has one."""

    async def scenario() -> None:
        drawn = re.findall(r"^    ([A-Z]+)  ", module.__doc__ or "", re.MULTILINE)
        assert drawn == [state.name for state in SendState]
        store = FakeStore()
        store.wrote, store.flushed, store.slaves_acked, store.promised = 40, 30, 20, 10
        text = repr(ack_gate(store, 5_000))
        assert "appended=40 flushed=30 replicated=20 acknowledged=10 visible=0" in text

    asyncio.run(scenario())


def test_answer_is_sent_at_once_if_nothing_is_awaited() -> None:
    """Code 11: stored, but no slave is connected."""

    async def scenario() -> None:
        store, connection = FakeStore(), FakeConnection()
        gate = ack_gate(store, 5_000, 3_000)
        store.has_slaves = False
        hold(gate, connection, frame(1), 1, 100)
        assert b'"code":11' in connection.sent[0]
        assert (gate.count, gate.late_count) == (0, 1)

    asyncio.run(scenario())


@asynccontextmanager
async def sync_broker(disk: FaultyDisk, **conf: str) -> AsyncIterator[Broker]:
    settings = broker_settings(local_conf("/store", flushDiskType="SYNC_FLUSH", **conf))
    broker = Broker(settings, disk=disk, clock=FakeClock())
    await broker.start()
    try:
        yield broker
    finally:
        disk.sync_gate.set()
        await broker.close()


async def test_send_is_answered_when_it_is_flushed() -> None:
    """During a flush its sends are not answered and not visible, and all other requests are served."""
    disk = FaultyDisk()
    async with sync_broker(disk) as broker, dialogue(broker) as client:
        await client.send_ok(b"first")
        disk.sync_gate.clear()
        batch = encode_batch([BatchEntry(0, b"b1", b""), BatchEntry(0, b"b2", b"")])
        sends = [asyncio.ensure_future(client.send(b"%d" % number)) for number in range(3)]
        sends.append(asyncio.ensure_future(client.send(batch, code=RequestCode.SEND_BATCH_MESSAGE, batch="true")))
        await wait_until(lambda: broker.core.store.queues.get_or_create("TopicTest", 0).end == 6)

        assert [message.body for message in await client.read(0)] == [b"first"]
        assert not any(send.done() for send in sends)
        assert broker.send_path.ack_gate.count == 4

        disk.sync_gate.set()
        assert [(await send).code for send in sends] == [0, 0, 0, 0]
        assert broker.core.store.log.flushed == broker.core.store.log.wrote
        assert [message.body for message in await client.read(0)] == [b"first", b"0", b"1", b"2", b"b1", b"b2"]


async def test_send_that_does_not_wait_is_answered_at_once() -> None:
    """WAIT=false applies only to its own message, not to others in the pass that wait."""
    disk = FaultyDisk()
    async with sync_broker(disk) as broker, dialogue(broker) as client:
        await client.send_ok(b"first")
        disk.sync_gate.clear()
        waiting = asyncio.ensure_future(client.send(b"waits"))
        unwaited = await client.send(b"unwaited", properties=properties_text(WAIT="false"))

        assert unwaited.code == 0
        assert not waiting.done()
        disk.sync_gate.set()
        assert (await waiting).code == 0


async def test_send_that_does_not_wait_exempts_no_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message at the same index of a later pass waits, also if nothing had to wait when the first one was sent.

    So it is where an asynchronous master holds a grant at first and has lost it then.
    """
    disk = FaultyDisk()
    async with sync_broker(disk) as broker, dialogue(broker) as client:
        store = broker.core.store
        with monkeypatch.context() as patch:
            patch.setattr(broker.send_path.ack_gate, "must_wait", lambda: False)
            assert (await client.send(b"does not wait", properties=properties_text(WAIT="false"))).code == 0
        await wait_until(lambda: store.log.flushed == store.log.wrote)
        disk.sync_gate.clear()
        waiting = asyncio.ensure_future(client.send(b"waits"))
        await wait_until(lambda: store.log.flushed < store.log.wrote)

        # An answer that does not wait would come before that of a later request.
        await client.send(b"does not wait", properties=properties_text(WAIT="false"))
        assert not waiting.done()
        disk.sync_gate.set()
        assert (await waiting).code == 0


async def test_log_end_is_recorded_for_a_send_that_does_not_wait() -> None:
    """After a kill the next start must notice that an answered message was never flushed; see ``store.log_end``."""
    disk = FaultyDisk()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as buffers:
        pool = {"transientStorePoolEnable": "true", "transientStorePoolPath": buffers, "transientStorePoolSize": "2"}
        async with sync_broker(disk, **pool) as broker, dialogue(broker) as client:
            store = broker.core.store

            def recorded_end() -> int:
                return decode_log_end(disk.read_file(f"{store.root}/log-end"))[1]

            await client.send_ok(b"first")
            flushed = store.log.flushed
            disk.sync_gate.clear()
            waiting = asyncio.ensure_future(client.send(b"waits"))
            await wait_until(lambda: store.log.wrote > flushed)
            assert recorded_end() == flushed

            assert (await client.send(b"unwaited", properties=properties_text(WAIT="false"))).code == 0
            assert recorded_end() == store.log.wrote > store.log.flushed
            disk.sync_gate.set()
            assert (await waiting).code == 0


async def test_slow_disk_is_answered_10_and_never_0() -> None:
    """At syncFlushTimeout the client learns that the message is stored and not promised, and where it is."""
    disk = FaultyDisk()
    async with sync_broker(disk, syncFlushTimeout="500") as broker, dialogue(broker) as client:
        await client.send(b"first")
        await wait_until(lambda: broker.core.store.log.flushed == broker.core.store.log.wrote)
        disk.sync_gate.clear()
        late = await client.send(b"late")

        assert (late.code, (late.ext or {})["queueOffset"]) == (10, "1")
        disk.sync_gate.set()
        sent = 2
        async with asyncio.timeout(60):
            while (await client.send(b"next")).code != 0:  # a busy machine may take longer for one sync
                sent += 1
        assert len(await client.read(0)) == sent + 1


async def test_one_fsync_answers_all_sends_before_it() -> None:
    """Group commit: a hundred senders cost a few syncs, not a hundred."""
    disk = FaultyDisk()
    async with sync_broker(disk) as broker, dialogue(broker) as client:
        await client.send_ok(b"first")
        disk.sync_gate.clear()
        first = asyncio.ensure_future(client.send(b"the first waits for its own sync"))
        await wait_until(lambda: broker.core.store.queues.get_or_create("TopicTest", 0).end == 2)
        others = [asyncio.ensure_future(client.send(b"x")) for _ in range(100)]
        await wait_until(lambda: broker.core.store.queues.get_or_create("TopicTest", 0).end == 102)
        syncs = disk.operations["sync"]
        disk.sync_gate.set()

        assert {(await send).code for send in (first, *others)} == {0}
        assert disk.operations["sync"] - syncs <= 5


async def test_hanging_disk_fills_no_memory() -> None:
    """Beyond sendThreadPoolQueueCapacity sends are refused unstored, and taken again when the disk moves."""
    disk = FaultyDisk()
    async with sync_broker(disk, sendThreadPoolQueueCapacity="10") as broker, dialogue(broker) as client:
        await client.send_ok(b"first")
        disk.sync_gate.clear()
        waiting = [asyncio.ensure_future(client.send(b"x")) for _ in range(10)]
        await wait_until(lambda: broker.send_path.ack_gate.count == 10)
        refused = await client.send(b"too many")

        assert (refused.code, "[OVERLOAD]" in (refused.remark or "")) == (2, True)
        assert broker.core.store.queues.get_or_create("TopicTest", 0).end == 11
        disk.sync_gate.set()
        assert {(await send).code for send in waiting} == {0}
        assert (await client.send(b"again")).code == 0


async def test_stop_answers_waiting_sends() -> None:
    """A clean stop flushes, and answers the sends that waited for it."""
    disk = FaultyDisk()
    async with sync_broker(disk) as broker, dialogue(broker) as client:
        await client.send_ok(b"first")
        disk.sync_gate.clear()
        waiting = asyncio.ensure_future(client.send(b"waits"))
        await wait_until(lambda: broker.core.store.queues.get_or_create("TopicTest", 0).end == 2)
        closing = asyncio.ensure_future(broker.close())
        disk.sync_gate.set()
        await closing

        assert (await waiting).code == 0
