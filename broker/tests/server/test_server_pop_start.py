"""A start reads few records of pop consumption, however long messages stay open, and serves others meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gantry_broker.server.pop import log_reader, open_records, records
from gantry_broker.server.pop.journal import STATE_INTERVAL_MS, PopJournal
from gantry_broker.server.pop.log_reader import PopLogReader
from gantry_broker.server.pop.records import STATE_QUEUE, revive_queue_of
from gantry_testing.fake_clock import FakeClock
from gantry_testing.local import GROUP, TOPIC, dialogue, running_broker, wait_until
from gantry_testing.popping import FLUSHED_SOON, ack, pop, pop_ext, send
from gantry_wire import RequestCode, ResponseCode
from gantry_wire.message import StoredMessage
from gantry_wire.names import REVIVE_GROUP


@pytest.mark.parametrize("is_guarded", [True, False], ids=["in the state", "not in the state, the twin"])
async def test_old_open_checkpoint_lets_a_start_read_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    """Of 400 records since an open checkpoint a start reads those of the last seconds; the checkpoint is open."""
    if not is_guarded:
        monkeypatch.setattr(open_records, "OLD_MAX", 0)
    clock = FakeClock()
    async with running_broker(tmp_path, clock=clock, **FLUSHED_SOON) as broker, dialogue(broker) as peer:
        await send(peer, *(b"%d" % n for n in range(210)))
        old = await pop(peer, queueId=0, maxMsgNums=2, invisibleTime=86_400_000)
        assert (await ack(peer, old.receipts[0])).code == 0
        for _ in range(2):
            for _ in range(100):
                for receipt in (await pop(peer, queueId=0, maxMsgNums=1)).receipts:
                    assert (await ack(peer, receipt)).code == 0
            clock.advance(STATE_INTERVAL_MS)
            await wait_until(lambda: not broker.pops.journal._is_changed)
        await pop(peer, queueId=0, maxMsgNums=1)
        committed = (REVIVE_GROUP, broker.pops.journal.topic, revive_queue_of(TOPIC, GROUP, 0))
        assert (broker.core.offsets.find(*committed) or 0) <= 0, "RocketMQ would start behind the open checkpoint"
    applied: list[int] = []
    apply = PopLogReader._apply

    def count(self: PopLogReader, message: StoredMessage, number: int) -> None:
        applied.append(number)
        apply(self, message, number)

    monkeypatch.setattr(PopLogReader, "_apply", count)
    async with running_broker(tmp_path, clock=clock) as broker, dialogue(broker) as peer:
        await wait_until(lambda: broker.pops.journal.is_ready)
        assert len(applied) <= 202 if is_guarded else len(applied) > 400
        assert broker.pops.journal.state.inflight_count == 2
        assert (await ack(peer, old.receipts[1])).code == 0
        assert broker.pops.journal.state.inflight_count == 1
        assert (await pop(peer, queueId=0, maxMsgNums=1)).bodies == [b"203"]


async def test_requests_do_not_read_while_the_task_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start with many records: a slice has a limit for all revive queues together, and waiting requests read none."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        for number in range(4):
            await send(peer, *(b"%d" % n for n in range(8)), queue_id=number)
            for _ in range(8):
                await pop(peer, queueId=number, maxMsgNums=1)
        state = [broker.pops.journal.draft(STATE_QUEUE, records.STATE_TAG, b"damaged") for _ in range(64)]
        broker.store.append(state)
    monkeypatch.setattr(log_reader, "SLICE_MESSAGES_MAX", 4)
    readers: list[str] = []
    read_next, applied = PopJournal.read_next, list[int]()
    apply = PopLogReader._apply

    def note(self: PopJournal) -> bool:
        task = asyncio.current_task()
        before = len(applied)
        is_read = read_next(self)
        if len(applied) > before:
            assert len(applied) - before <= 4
            readers.append("" if task is None else task.get_name())
        return is_read

    def count(self: PopLogReader, message: StoredMessage, number: int) -> None:
        applied.append(number)
        apply(self, message, number)

    monkeypatch.setattr(PopLogReader, "_apply", count)
    monkeypatch.setattr(PopJournal, "read_next", note)
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        replies = await asyncio.gather(*(peer.ask(RequestCode.POP_MESSAGE, pop_ext(maxMsgNums=1)) for _ in range(8)))
        assert {reply.code for reply in replies} == {ResponseCode.POLLING_TIMEOUT}
        assert broker.pops.journal.state.inflight_count == 32
        assert len(readers) >= 8
        assert len(set(readers[1:])) == 1, "expected only the task to read after the first slice"
