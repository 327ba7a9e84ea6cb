"""Random runs of a store: sends, flushes, crashes of every kind, and a checker that knows what was promised.

After every recovery the log must be a prefix of what was sent (nothing altered, invented or out of order), it must
contain everything that had been flushed before the crash, queue offsets must be dense, and what was once lost must
never return. The seed is in the test's name: ``pytest broker/tests/simulation -k seed17-`` replays one.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantry_broker.errors import StoreFull, StoreUnusable
from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.store_world import StoreWorld

SEEDS = range(int(os.environ.get("GANTRY_SIMULATION_SEEDS", "60")))
TOPICS = [("orders", 0), ("orders", 1), ("bills", 0), ("%RETRY%g", 0)]


class RandomHistory:
    """One store with random actions, and the checks of its promises.

    It is simpler than the histories of ``SimulatedStore``, and shares no code with them.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = StoreWorld(FaultyDisk(), "/data/store")
        self.flushed = 0
        self.world.open()

    def run(self, steps: int) -> None:
        actions: list[Callable[[], None]] = [self.send] * 8 + [self.step] * 3 + [self.flush] * 2
        actions += [self.crash, self.kill, self.stop, self.crash_in_recovery, self.fill_the_disk]
        for _ in range(steps):
            self.random.choice(actions)()
        self.crash()
        self.check()

    # -- random actions --------------------------------------------------------------------------------------------

    def send(self) -> None:
        drafts = []
        for _ in range(self.random.choice([1, 1, 3, 20])):
            topic, queue_id = self.random.choice(TOPICS)
            body = self.random.randbytes(self.random.choice([0, 10, 100, 700]))
            drafts.append(self.world.draft(topic, queue_id, body=body, sys_flag=self.random.choice([0, 0, 0, 4, 8])))
        self.world.append(drafts, contiguous=self.random.random() < 0.2)
        self.world.clock.advance(self.random.choice([0, 1, 50]))

    def step(self) -> None:
        self.world.clock.advance(self.random.choice([100, 1_000, 20_000]))
        self.world.store.flush_step()
        self.flushed = self.world.store.log.flushed

    def flush(self) -> None:
        self.flushed = self.world.store.flush()

    def kill(self) -> None:
        wrote = self.world.store.log.wrote
        self.world.kill()
        self.reopen(at_least=wrote)

    def crash(self) -> None:
        self.world.lose_power(self.random.choice([None, self.random.randrange(1 << 30)]))
        self.reopen(at_least=self.flushed)

    def stop(self) -> None:
        wrote = self.world.store.log.wrote
        self.world.close()
        if self.random.random() < 0.5:
            self.world.lose_power(self.random.randrange(1 << 30))
        self.reopen(at_least=wrote)

    def crash_in_recovery(self) -> None:
        self.world.lose_power(self.random.randrange(1 << 30))
        operation = self.random.choice(["sync", "write", "sync_directory", "zero", "remove", "create"])
        for _ in range(self.random.randrange(6)):
            self.world.faulty_disk.fail_next(operation, 5)
            try:
                self.world.open()
            except (StoreFull, StoreUnusable):
                self.world.lose_power(self.random.randrange(1 << 30))
            else:
                self.world.disk.kill()
                self.world.lose_power(self.random.randrange(1 << 30))
        self.reopen(at_least=self.flushed)

    def fill_the_disk(self) -> None:
        disk = self.world.faulty_disk
        disk.capacity = disk.space("/").used + self.random.randrange(20_000)
        try:
            for _ in range(20):
                self.send()
        except StoreFull:
            disk.capacity = 1 << 30
            self.world.clock.advance(5_000)
        disk.capacity = 1 << 30

    # -- checks ----------------------------------------------------------------------------------------------------

    def reopen(self, *, at_least: int) -> None:
        report = self.world.open()
        assert report.end >= at_least, f"expected the log up to {at_least} at least, found {report.end}"
        assert report.damaged == []
        assert report.lost_flushed_bytes == 0
        self.flushed = self.world.store.log.flushed
        assert self.flushed == report.end
        self.world.forget_after(report.end)
        assert self.world.find_altered() is None
        self.check()

    def check(self) -> None:
        for topic, queue_id in TOPICS:
            messages = self.world.messages(topic, queue_id)
            assert [message.body for message in messages] == self.world.sent_bodies(topic, queue_id)
            assert [message.queue_offset for message in messages] == list(range(len(messages)))
            if messages:
                last = messages[-1]
                found, _, _ = self.world.store.keys.records(topic, last.properties["UNIQ_KEY"], 64, 0, 1 << 60)
                assert self.world.store.guard.message_at(last.physical_offset) in found
        times = [message.store_timestamp_ms for message in self.world.messages(*TOPICS[0])]
        assert times == sorted(times)


@pytest.mark.verify(quick=15)
@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"seed{seed}-")
def test_flushed_messages_survive_any_crash_as_prefix(seed: int) -> None:
    """For any history and any crash, everything flushed survives, and the log is a prefix of what was sent."""
    RandomHistory(seed).run(steps=60)


def test_record_torn_in_its_properties_ends_the_log() -> None:
    """A record that is torn only after its body ends the log like any other torn record."""
    world = StoreWorld(FaultyDisk(), "/data/store")
    world.open()
    world.send(count=3)
    start = world.sent[1].end
    world.kill()
    world.overwrite("commitlog/00000000000000000000", world.sent[2].end - 20, bytes(20))

    assert world.open().end == start


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 900), min_size=1, max_size=60),
    flush_after=st.integers(0, 60),
    tear=st.none() | st.integers(0, 1 << 30),
)
def test_one_crash_after_one_flush_keeps_a_prefix(sizes: list[int], flush_after: int, tear: int | None) -> None:
    """After the smallest history (send, flush, send, crash) the log is a prefix with everything flushed."""
    world = StoreWorld(FaultyDisk(), "/data/store")
    world.open()
    flushed = 0
    for number, size in enumerate(sizes):
        world.append([world.draft("orders", number % 2, body=bytes([number]) * size)])
        if number == flush_after:
            flushed = world.store.flush()
    world.lose_power(tear)

    report = world.open()

    assert flushed <= report.end <= (world.sent[-1].end)
    world.forget_after(report.end)
    assert world.find_altered() is None
    for queue_id in (0, 1):
        assert world.bodies("orders", queue_id) == world.sent_bodies("orders", queue_id)
