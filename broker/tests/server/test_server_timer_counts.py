"""Requests about timers return the pending messages by topic, also after a restart, a crash and a promotion."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from test_server_roles import SYNC, UNASSIGNED, running_group, wait_until_copied, wait_until_following

from gantry_broker.app import Broker
from gantry_testing.fake_clock import FakeClock
from gantry_testing.local import TOPIC, Dialogue, dialogue, running_broker, wait_until
from gantry_testing.running_store import copy_running_store
from gantry_testing.timer_client import DAY_MS, TIMERS, queue_end, recall, send_timer, unique_id, wait_for_rounds
from gantry_wire import RequestCode


async def pending(client: Dialogue) -> dict[str, int]:
    """Return the counts of request 61."""
    reply = await client.ask(RequestCode.GET_TIMER_METRICS, {})
    return {topic: one["count"] for topic, one in json.loads(reply.body)["timingCount"].items()}


async def send_some(client: Dialogue, first: int, end: int) -> list[str]:
    """Send messages that are due after as many seconds as their numbers; return their recall handles."""
    handles: list[str] = []
    for number in range(first, end):
        reply = await send_timer(client, b"%d" % number, UNIQ_KEY=unique_id(number), TIMER_DELAY_SEC=str(number))
        handles.append(reply["recallHandle"])
    return handles


async def wait_until_read(broker: Broker) -> None:
    await wait_until(lambda: broker.timers.reader.position == queue_end(broker, TIMERS, 0))


@pytest.mark.parametrize("is_clean", [True, False], ids=["stop", "crash"])
async def test_pending_timers_are_counted_across_a_restart(tmp_path: Path, is_clean: bool) -> None:
    """Messages from before the start count as those from after it, until they are delivered or due and recalled."""
    clock, store = FakeClock(), tmp_path / "store"
    async with running_broker(store, clock=clock, flushConsumerOffsetInterval="100") as broker:
        async with dialogue(broker) as client:
            handles = await send_some(client, 1, 31)
            assert (await recall(client, handles[24])).code == 0
            clock.advance(10_000)
            await wait_until(lambda: queue_end(broker) == 10)
            await wait_for_rounds(broker)
            assert await pending(client) == {TOPIC: 20}
        if not is_clean:
            await send_later(broker, clock)
            copy_running_store(store, tmp_path / "crashed")
    async with (
        running_broker(store if is_clean else tmp_path / "crashed", clock=clock) as broker,
        dialogue(broker) as client,
    ):
        await wait_for_rounds(broker)
        assert await pending(client) == {TOPIC: 20 if is_clean else 21}
        await send_some(client, 31, 41)
        await wait_until_read(broker)
        assert await pending(client) == {TOPIC: 30 if is_clean else 31}
        clock.advance(15_000)
        await wait_until(lambda: queue_end(broker) >= 24)
        await wait_for_rounds(broker)
        assert await pending(client) == {TOPIC: 15 if is_clean else 16}
        clock.advance(2 * DAY_MS)
        await wait_for_rounds(broker)
        assert await pending(client) == {}
        assert broker.timers.runtime_info()["timerCongestNum"] == 0


async def send_later(broker: Broker, clock: FakeClock) -> None:
    """Store one more message, which the last written progress does not have."""
    async with dialogue(broker) as client:
        await send_timer(client, b"last", UNIQ_KEY=unique_id(99), TIMER_DELAY_SEC="99")
    await wait_until_read(broker)


@pytest.mark.parametrize("is_damaged", [False, True], ids=["intact", "rebuilt"])
async def test_counts_are_built_again_with_the_due_files(tmp_path: Path, is_damaged: bool) -> None:
    """If the due files are lost, the messages are read and counted again, and not in addition."""
    clock = FakeClock()
    async with running_broker(tmp_path, clock=clock) as broker, dialogue(broker) as client:
        await send_some(client, 1, 21)
        clock.advance(5_000)
        await wait_until(lambda: queue_end(broker) == 5)
    if is_damaged:
        shutil.rmtree(tmp_path / "timers")
    async with running_broker(tmp_path, clock=clock) as broker, dialogue(broker) as client:
        await wait_for_rounds(broker)
        assert await pending(client) == {TOPIC: 15}


@pytest.mark.verify
async def test_promoted_slave_has_the_counts_of_its_master(tmp_path: Path) -> None:
    """The master sends its counts with its progress; the new one continues from them."""
    async with running_group(tmp_path) as members:
        first = await members.start("one", **SYNC, **UNASSIGNED, brokerId="1")
        second = await members.start("two", **SYNC, **UNASSIGNED, brokerId="2")
        await first.orders.promote(1 << 8, [2], False)
        await second.orders.follow(1 << 8, first.settings.ha_address)
        await wait_until_following(first, 2)
        async with dialogue(first) as client:
            for number in range(12):
                delay = "50" if number < 4 else "3600000"
                await send_timer(client, b"%d" % number, UNIQ_KEY=unique_id(number), TIMER_DELAY_MS=delay)
            await wait_until(lambda: queue_end(first) == 4)
            await wait_for_rounds(first)
            assert await pending(client) == {TOPIC: 8}
        await wait_until_copied(first, second)
        await wait_until(lambda: second.timers.progress.pending.by_topic() == {TOPIC: 8})
        await first.close()
        await second.orders.promote(300, [], False)
        async with dialogue(second) as client:
            await wait_for_rounds(second)
            assert await pending(client) == {TOPIC: 8}
