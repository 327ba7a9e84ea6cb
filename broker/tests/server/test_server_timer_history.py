"""Seeded histories of timers, recalls, crashes, restarts and clock changes, compared with a model.

A crash copies the files of the running broker, as a killed process leaves them, and continues with the copy. At the end
every acknowledged message that was not recalled is in its queue, no message is there before it was due, and none whose
recall was answered with code 0.
"""

import asyncio
import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gantry_broker.app import Broker
from gantry_broker.server.timers import due_index, service
from gantry_broker.server.timers.delivery import TimerDelivery
from gantry_broker.server.timers.entries import Entry
from gantry_testing.fake_clock import FakeClock
from gantry_testing.local import Dialogue, dialogue, running_broker, wait_until
from gantry_testing.running_store import copy_running_store
from gantry_testing.timer_client import delivered, queue_end, recall, send_timer, unique_id, wait_for_rounds

STEPS = 60
CONF = {"flushConsumerOffsetInterval": "100", "flushIntervalCommitLog": "50"}


@dataclass
class Timer:
    """The model's state of one message."""

    due_ms: int
    handle: str
    is_recalled: bool = False


@dataclass
class History:
    """One broker, its restarts, and the model."""

    root: Path
    rng: random.Random
    clock: FakeClock = field(default_factory=FakeClock)
    timers: dict[int, Timer] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)
    starts: int = 0

    async def start(self, stack: AsyncExitStack) -> tuple[Broker, Dialogue]:
        broker = await stack.enter_async_context(running_broker(self.store, clock=self.clock, disk=None, **CONF))
        return broker, await stack.enter_async_context(dialogue(broker))

    @property
    def store(self) -> Path:
        return self.root / str(self.starts)

    def crash(self) -> None:
        """Continue with the files as they are at this moment."""
        source = self.store
        self.starts += 1
        copy_running_store(source, self.store)

    async def step(self, broker: Broker, client: Dialogue) -> None:
        kind = self.rng.random()
        if kind < 0.5:
            number = len(self.timers)
            delay_ms = self.rng.choice((1, 50, 900, 5_000, 70_000, 3_600_000))
            due_ms = self.clock.wall_ms() + delay_ms
            name, text = self.rng.choice((("TIMER_DELAY_MS", str(delay_ms)), ("TIMER_DELIVER_MS", str(due_ms))))
            reply = await send_timer(client, b"%d" % number, UNIQ_KEY=unique_id(number), **{name: text})
            self.timers[number] = Timer(due_ms, reply["recallHandle"])
        elif kind < 0.75 and self.timers:
            number = self.rng.choice(list(self.timers))
            answer = await recall(client, self.timers[number].handle)
            self.timers[number].is_recalled |= answer.code == 0
            if answer.code != 0:
                self.refused.add(number)
        elif kind < 0.95:
            self.clock.advance(self.rng.choice((1, 60, 1_000, 65_000, 600_000)))
            if self.rng.random() < 0.7:
                await wait_for_rounds(broker)
        else:
            self.clock.jump_wall(self.rng.choice((-600_000, -2_000, 300_000)))


async def run_history(root: Path, seed: int) -> tuple[History, list[tuple[int, int]]]:
    """Run one history; return it with (number, time stored) of every delivered message."""
    history = History(root, random.Random(seed))
    for _ in range(4):
        async with AsyncExitStack() as stack:
            broker, client = await history.start(stack)
            for _ in range(STEPS // 4):
                await history.step(broker, client)
            if history.rng.random() < 0.7:
                history.crash()
    async with AsyncExitStack() as stack:
        broker, client = await history.start(stack)
        history.clock.advance(2 * 3_600_000)
        await wait_for_rounds(broker)
        expected = sum(not timer.is_recalled for timer in history.timers.values())
        await wait_until(lambda: queue_end(broker) >= expected, 60)
        await wait_for_rounds(broker)
        stored = await delivered(client, queue_end(broker))
    return history, [(int(one.body), one.store_timestamp_ms) for one in stored]


def faults(history: History, stored: list[tuple[int, int]]) -> list[str]:
    """Return what is wrong with the delivered messages."""
    numbers = {number for number, _ in stored}
    wanted = {number for number, timer in history.timers.items() if not timer.is_recalled}
    found = [f"{number} is lost" for number in wanted - numbers]
    found += [f"{number} was recalled" for number in numbers if history.timers[number].is_recalled]
    found += [f"{number} is early" for number, stored_ms in stored if stored_ms < history.timers[number].due_ms]
    return found


async def run_at_once(work: Callable[[], Any]) -> Any:
    """Run what a worker thread does, so that no due file changes while a crash copies the files one after another."""
    await asyncio.sleep(0)
    return work()


@pytest.fixture(autouse=True)
def fast_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the timers look for work more often, and write their files more often."""
    monkeypatch.setattr(service, "run_in_thread", run_at_once)
    monkeypatch.setattr(due_index, "run_in_thread", run_at_once)
    monkeypatch.setattr(service, "TICK_S", 0.004)
    monkeypatch.setattr(service, "PAUSE_S", 0.001)
    monkeypatch.setattr(service, "FILES_TICK_S", 0.01)
    monkeypatch.setattr(service, "FLUSH_INTERVAL_S", 0.02)
    monkeypatch.setattr(due_index, "FILES_PER_STEP", 2)


@pytest.mark.verify(quick=3)
@pytest.mark.parametrize("seed", range(40))
async def test_history_of_timers_matches_the_model(tmp_path: Path, seed: int) -> None:
    """No message is lost, early, or delivered after its recall was accepted; a refused recall was too late."""
    history, stored = await run_history(tmp_path, seed)

    assert faults(history, stored) == []
    numbers = {number for number, _ in stored}
    assert all(number in numbers for number in history.refused if not history.timers[number].is_recalled)


@pytest.mark.verify
async def test_history_finds_a_forgotten_recall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deliverer that ignores recalls is found: the histories can fail."""

    def ignore(self: TimerDelivery, entry: Entry, topic: str) -> None:
        return None

    monkeypatch.setattr(TimerDelivery, "find_cancellation", ignore)
    found = []
    for seed in range(5):
        history, stored = await run_history(tmp_path / str(seed), seed)
        found += faults(history, stored)

    assert any(text.endswith("was recalled") for text in found)
