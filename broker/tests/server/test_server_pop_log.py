"""Only the log decides what is popped and acked: wherever it ends, nothing is lost and no acked message returns."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from gantry_broker.app import Broker
from gantry_broker.errors import StoreFull
from gantry_broker.ports import SystemClock
from gantry_broker.ports.real_disk import RealDisk
from gantry_broker.server.core.offsets import ConsumerOffsets, OffsetDocument
from gantry_broker.server.pop import records
from gantry_broker.server.pop.journal import STATE_INTERVAL_MS, PopProgress
from gantry_broker.server.pop.records import STATE_QUEUE, revive_queue_of
from gantry_broker.server.pop.writer import PopWriter
from gantry_broker.store.checkpoint import decode_checkpoint, encode_checkpoint
from gantry_broker.store.draft import Draft
from gantry_broker.store.identity import IdentityFile
from gantry_broker.store.message_store import MessageStore
from gantry_testing.fake_clock import FakeClock
from gantry_testing.local import GROUP, TOPIC, Dialogue, dialogue, expire, running_broker, truncate_log, wait_until
from gantry_testing.popping import FLUSHED_SOON, Popped, ack, ack_ext, pop, pop_ext, pop_nothing, send
from gantry_wire import RequestCode, ResponseCode
from gantry_wire.commands.pop import PopResult
from gantry_wire.message import check_record

BODIES = {b"1", b"2", b"3", b"4"}


async def drain(broker: Broker, peer: Dialogue) -> list[bytes]:
    """Let the time of all checkpoints be over, pop and ack until nothing is left; return what was delivered."""
    delivered: list[bytes] = []
    journal = broker.pops.journal
    await wait_until(lambda: journal.is_ready)
    while True:
        for queue in journal.state.queues.values():
            for checkpoint in list(queue.open.values()):
                journal.state.schedule(checkpoint, 0)
        await wait_until(lambda: journal.state.open_count == 0)
        reply = await peer.ask(RequestCode.POP_MESSAGE, pop_ext())
        if reply.code == ResponseCode.POLLING_TIMEOUT:
            return delivered
        popped = Popped(reply)
        delivered += popped.bodies
        for receipt in popped.receipts:
            assert (await ack(peer, receipt)).code == 0


def record_ends(store: Path) -> list[int]:
    """The end of every record in the log."""
    data = (store / "commitlog" / f"{0:020d}").read_bytes()
    ends, position = [], 0
    while (check := check_record(data, position)).is_good:
        position += check.size
        ends.append(position)
    return ends


def lose_tail(store: Path, log_end: int) -> None:
    """Zero the log from an offset on, as after a power loss; the offsets of groups were not saved yet."""
    with (store / "commitlog" / f"{0:020d}").open("r+b") as file:
        size = file.seek(0, 2)
        file.seek(log_end)
        file.write(bytes(size - log_end))
    (store / "recovery-point.json").unlink(missing_ok=True)
    checkpoint = store / "checkpoint"
    facts = decode_checkpoint(checkpoint.read_bytes())
    checkpoint.write_bytes(encode_checkpoint(facts._replace(flushed=min(facts.flushed, log_end))))
    identities = IdentityFile(RealDisk(), str(store))
    identity = identities.read()
    assert identity is not None
    identities.write(msgspec.structs.replace(identity, log_end=min(identity.log_end, log_end)))
    (store / "log-end").unlink()
    (store / "abort").touch()
    for name in ("consumerOffset.json", "consumerOffset.json.bak"):
        (store / "config" / name).unlink(missing_ok=True)


async def test_every_end_of_the_log_is_safe(tmp_path: Path) -> None:
    """Between pop, checkpoint, ack, change, redelivery and its ack: a log that ends there loses and repeats nothing."""
    store, acked_at = tmp_path / "whole", list[tuple[bytes, int, int]]()
    async with running_broker(store) as broker, dialogue(broker) as peer:
        await send(peer, *sorted(BODIES))
        sent_end = broker.store.log.wrote
        first = await pop(peer, queueId=0, maxMsgNums=2)
        before = broker.store.log.wrote
        assert (await ack(peer, first.receipts[0])).code == 0
        acked_at.append((b"1", before, broker.store.log.wrote))
        change = ack_ext(first.receipts[1], invisibleTime=1)
        assert (await peer.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, change)).code == 0
        await pop(peer, queueId=0, maxMsgNums=2, invisibleTime=1)
        await wait_until(lambda: broker.pops.reviver.revived_count == 3)
        again = await pop(peer)
        for receipt, body in list(zip(again.receipts, again.bodies, strict=True))[:2]:
            before = broker.store.log.wrote
            assert (await ack(peer, receipt)).code == 0
            acked_at.append((body, before, broker.store.log.wrote))
    ends = [end for end in record_ends(store) if end >= sent_end]
    assert len(ends) > 8
    for number, end in enumerate(ends):
        copy = tmp_path / f"cut-{number}"
        shutil.copytree(store, copy)
        lose_tail(copy, end)
        acked = {body for body, _, at in acked_at if at <= end}
        may_be_acked = {body for body, before, _ in acked_at if before < end}  # a state may follow the ack
        async with running_broker(copy) as broker, dialogue(broker) as peer:
            delivered = await drain(broker, peer)
        assert set(delivered) | may_be_acked == BODIES, f"lost a message at the end {end}"
        assert not set(delivered) & acked, f"repeated an acked message at the end {end}"
        shutil.rmtree(copy)


@pytest.mark.parametrize("is_guarded", [True, False], ids=["copies first", "ack first, the twin"])
async def test_copies_come_before_the_ack_of_the_originals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    """A log that ends between the copy of a message and the record that it was made has the copy only."""
    if not is_guarded:
        original = MessageStore.append_contiguous

        def reversed_append(self: MessageStore, drafts: Sequence[Draft]) -> tuple[Sequence[int], Sequence[int]]:
            physical, queue = original(self, list(drafts)[::-1])
            return list(physical)[::-1], list(queue)[::-1]

        monkeypatch.setattr(MessageStore, "append_contiguous", reversed_append)
    async with running_broker(tmp_path / "whole") as broker, dialogue(broker) as peer:
        await send(peer, b"1")
        before = broker.store.log.wrote
        await pop(peer, invisibleTime=1)
        await wait_until(lambda: broker.pops.reviver.revived_count == 1)
    lost = 0
    for number, end in enumerate(end for end in record_ends(tmp_path / "whole") if end >= before):
        copy = tmp_path / f"cut-{number}"
        shutil.copytree(tmp_path / "whole", copy)
        lose_tail(copy, end)
        async with running_broker(copy) as broker, dialogue(broker) as peer:
            lost += await drain(broker, peer) == []
    assert (lost == 0) == is_guarded


async def test_failed_append_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the store refuses a checkpoint, the pop is refused, and the messages are popped by the next one."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await send(peer, b"1", b"2")
        await pop(peer, maxMsgNums=1, queueId=0)

        def refuse(*given: object) -> object:
            raise StoreFull("no space left")

        with monkeypatch.context() as patch:
            patch.setattr(PopWriter, "append", refuse)
            reply = await peer.ask(RequestCode.POP_MESSAGE, pop_ext())
            assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert broker.pops.journal.state.inflight_count == 1
        assert (await pop(peer)).bodies == [b"2"]


async def test_start_reads_from_the_last_state(tmp_path: Path) -> None:
    """A state is stored at most every ten seconds, and a start reads no record before the oldest open checkpoint."""
    clock = FakeClock()
    async with running_broker(tmp_path, clock=clock) as broker, dialogue(broker) as peer:
        await send(peer, *(b"%d" % n for n in range(40)))
        for _ in range(2):
            for _ in range(10):
                for receipt in (await pop(peer, queueId=0, maxMsgNums=1)).receipts:
                    assert (await ack(peer, receipt)).code == 0
            clock.advance(STATE_INTERVAL_MS)
            await wait_until(lambda: not broker.pops.journal._is_changed)
        await pop(peer, queueId=0, maxMsgNums=1)
    async with running_broker(tmp_path, clock=clock) as broker, dialogue(broker) as peer:
        await wait_until(lambda: broker.pops.journal.is_ready)
        number = revive_queue_of(TOPIC, GROUP, 0)
        found = broker.pops.journal._reader._find_state()
        assert found is not None and found.starts[number] == 40
        assert (await pop(peer, queueId=0, maxMsgNums=1)).bodies == [b"21"]


async def test_unreadable_records_are_skipped(tmp_path: Path) -> None:
    """A damaged record or state in the topic of checkpoints, or one of another program, stops nothing."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await send(peer, b"1", b"2")
        await pop(peer, queueId=0, maxMsgNums=1)
        journal = broker.pops.journal
        number = revive_queue_of(TOPIC, GROUP, 0)
        drafts = [
            journal.draft(number, records.CHECKPOINT_TAG, b"{not JSON"),
            journal.draft(number, records.ACK_TAG, b'{"t":"unknown"}'),
            journal.draft(STATE_QUEUE, records.STATE_TAG, b"x"),
        ]
        broker.store.append(drafts)
        await wait_until(lambda: journal.state.read_offsets[number] == 3)
        assert (await pop(peer, queueId=0, maxMsgNums=1)).bodies == [b"2"]
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await wait_until(lambda: broker.pops.journal.is_ready)
        assert broker.pops.journal.state.inflight_count == 2
        await pop_nothing(peer)


async def test_truncated_log_is_read_again(tmp_path: Path) -> None:
    """A member whose log was cut, and that becomes the master, knows only the checkpoints that are left."""
    async with running_broker(tmp_path, **FLUSHED_SOON) as broker, dialogue(broker) as peer:
        await send(peer, b"1", b"2")
        await pop(peer, queueId=0, maxMsgNums=1)
        end = broker.store.log.wrote
        await pop(peer, queueId=0, maxMsgNums=1)
        await wait_until(lambda: broker.core.offsets.find(GROUP, TOPIC, 0) == 2)
        broker.core.offsets.unproven.update(broker.core.offsets.popped)
        await truncate_log(broker, end)
        async with dialogue(broker) as other:
            assert (await pop(other, queueId=0)).bodies == [b"2"]
            assert broker.pops.journal.state.inflight_count == 2


async def test_expired_message_is_dropped_when_its_time_is_over(tmp_path: Path) -> None:
    """A popped message whose log file was deleted cannot be delivered again; its checkpoint ends."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await send(peer, b"1")
        await pop(peer)
        await send(peer, *(bytes(1 << 20) for _ in range(9)), queue_id=1)
        broker.store.flush()
        await expire(broker)
        await wait_until(lambda: broker.core.readable_range(TOPIC, 0)[0] == 1)
        [checkpoint] = broker.pops.journal.state.queue(TOPIC, GROUP, 0).open.values()
        broker.pops.journal.state.schedule(checkpoint, 0)
        await wait_until(lambda: broker.pops.reviver.dropped_count == 1)
        assert broker.pops.journal.state.inflight_count == 0


@pytest.mark.parametrize("jump_ms", [-3_600_000, 3_600_000], ids=["back", "forth"])
async def test_wall_clock_that_jumps_changes_no_invisible_time(tmp_path: Path, jump_ms: int) -> None:
    """Messages are delivered again when their time is over, although the wall clock was changed meanwhile."""
    clock = FakeClock()
    async with running_broker(tmp_path, clock=clock) as broker, dialogue(broker) as peer:
        await send(peer, b"1")
        await pop(peer, invisibleTime=60_000)
        clock.jump_wall(jump_ms)
        state = broker.pops.journal.state
        assert state.take_due(broker.pops.journal.times.monotonic_ms()) is None
        clock.advance(60_001)
        await wait_until(lambda: broker.pops.reviver.revived_count == 1)


@pytest.mark.parametrize("jump_ms", [-3_600_000, 120_000], ids=["back", "forth"])
async def test_pop_times_of_replies_follow_the_wall_clock(tmp_path: Path, jump_ms: int) -> None:
    """Clients discard messages whose pop time is too old by their clocks, so a reply has the present wall time."""
    clock = FakeClock()
    async with running_broker(tmp_path, clock=clock) as broker, dialogue(broker) as peer:
        await send(peer, b"1", b"2")
        old = await pop(peer, maxMsgNums=1, invisibleTime=60_000)
        clock.jump_wall(jump_ms)
        new = await pop(peer, invisibleTime=60_000)
        empty = PopResult.read((await pop_nothing(peer)).ext)
        assert new.header.pop_time == empty.pop_time == clock.wall_ms()
        clock.advance(10)
        change = ack_ext(new.receipts[0], invisibleTime=30_000)
        changed = await peer.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, change)
        assert int(changed.ext["popTime"]) == clock.wall_ms()
        assert (await ack(peer, old.receipts[0])).code == 0
        clock.advance(29_000)
        assert broker.pops.journal.state.take_due(broker.pops.journal.times.monotonic_ms()) is None
        clock.advance(1_001)
        await wait_until(lambda: broker.pops.reviver.revived_count == 1)


@pytest.mark.parametrize("jump_ms", [-3_600_000, 3_600_000], ids=["back", "forth"])
async def test_wall_clock_that_jumps_blocks_an_ordered_queue_as_long(tmp_path: Path, jump_ms: int) -> None:
    """A queue is blocked for the invisible time of its messages, also one that was changed."""
    order = {"order": "true", "queueId": 0}
    clock = FakeClock()
    async with running_broker(tmp_path, clock=clock) as broker, dialogue(broker) as peer:
        await send(peer, b"1")
        popped = await pop(peer, **order, invisibleTime=60_000)
        clock.jump_wall(jump_ms)
        await pop_nothing(peer, **order)
        change = ack_ext(popped.receipts[0], invisibleTime=90_000)
        assert (await peer.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, change)).code == 0
        clock.advance(89_999)
        await pop_nothing(peer, **order)
        clock.advance(1)
        again = await pop(peer, **order)
        assert again.header.pop_time == clock.wall_ms()


# ------- offsets of a slave

KEY = f"{TOPIC}@{GROUP}"


def document(offset: int, *, is_popped: bool = True) -> OffsetDocument:
    table = {KEY: {0: offset}, "T@readers": {0: offset}}
    return OffsetDocument(offset_table=table, popped=[KEY] if is_popped else None)


@pytest.mark.parametrize("is_careful", [True, False], ids=["careful", "not careful, the twin"])
def test_pop_offset_beyond_the_log_is_not_applied(is_careful: bool) -> None:
    """The master has popped up to 9 and dies before the checkpoint was copied: here the messages are not popped."""
    offsets = ConsumerOffsets(SystemClock())
    progress = PopProgress(offsets)
    for offset, end in ((5, 1000), (9, 1300)):
        received = document(offset)
        if is_careful:
            progress.receive(received, end)
        offsets.replace_from_master(received)
        progress.apply_up_to(1200)
    progress.become_master(1200)
    assert offsets.find(GROUP, TOPIC, 0) == (5 if is_careful else 9)
    assert offsets.find("readers", "T", 0) == 9, "expected offsets of groups that pull to be taken at once"


def test_smaller_offset_of_the_master_counts_at_once() -> None:
    """After a truncation the own offset may be beyond the checkpoints; the smaller one is safe."""
    offsets = ConsumerOffsets(SystemClock())
    offsets.commit_popped(GROUP, TOPIC, 0, 9)
    progress = PopProgress(offsets)
    progress.begin_copying()
    assert offsets.unproven == {KEY}
    received = document(4)
    progress.receive(received, 1000)
    offsets.replace_from_master(received)
    assert offsets.find(GROUP, TOPIC, 0) == 4
    progress.apply_up_to(1000)
    assert (offsets.find(GROUP, TOPIC, 0), offsets.unproven) == (4, set())


def test_popped_offsets_never_move_back() -> None:
    """A pop that ends before the committed offset of a member that pulls leaves it; the keys are in the document."""
    offsets = ConsumerOffsets(SystemClock())
    offsets.commit(GROUP, TOPIC, 0, 7)
    offsets.commit_popped(GROUP, TOPIC, 0, 5)
    assert offsets.find(GROUP, TOPIC, 0) == 7
    again = ConsumerOffsets(SystemClock())
    again.load(offsets.document())
    assert again.popped == {KEY}
