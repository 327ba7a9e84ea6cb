"""How many who wait for the disk one sync answers: group commit with a pause for those who are on their way.

The rule is pure, so that a disk and its senders are a few numbers here. The real ones are in `make bench-store`.
"""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gantry_broker.ports.real_disk import RealFile
from gantry_broker.store.flusher import PATIENCE_MS_MAX, Gathering
from gantry_broker.store.worker import Worker
from gantry_testing.store_world import TINY, make_world

MESSAGE_BYTES = 1000
SYNCS = 400
Again = Callable[[float, int], float]
"""When a sender sends again: (the moment of its answer, its number) -> moment."""


class Disk:
    """A disk whose syncs take their time, and senders with one message each; time is a number."""

    def __init__(self, senders: int, *, sync_ms: int, again: Again) -> None:
        self.rule = Gathering()
        self.pauses = 0
        self.groups: list[int] = []
        self._due = [0.01 * number for number in range(senders)]
        self._sync_ms = sync_ms
        self._again = again
        self._now = 0.0

    def waiting(self) -> int:
        """How many have sent and are not answered."""
        return sum(due <= self._now for due in self._due)

    def gather(self) -> None:
        """The pause, if the rule wants one."""
        before = self.waiting()
        wanted = self.rule.wanted(before * MESSAGE_BYTES)
        if wanted:
            place = min(len(self._due), math.ceil(wanted / MESSAGE_BYTES)) - 1
            self._now = min(self._now + self.rule.patience_ms, sorted(self._due)[place])
            self.rule.waited(before * MESSAGE_BYTES, self.waiting() * MESSAGE_BYTES)
            self.pauses += 1

    def sync(self, *, is_gathering: bool = True) -> None:
        """One sync, with what comes before and after it."""
        self._now = max(self._now, min(self._due))
        if is_gathering:
            self.gather()
        group = [number for number, due in enumerate(self._due) if due <= self._now]
        self._now += self._sync_ms
        self.rule.synced(self.waiting() * MESSAGE_BYTES, self._sync_ms)
        for number in group:
            self._due[number] = self._again(self._now, number)
        self.groups.append(len(group))

    @property
    def settled(self) -> float:
        """Messages a sync, once everything goes its way."""
        later = self.groups[len(self.groups) // 2 :]
        return sum(later) / len(later)


def at_once(now: float, number: int) -> float:
    """The network and the client take a millisecond, and the broker takes one after the other."""
    return now + 1.0 + 0.002 * number


@pytest.mark.parametrize("senders", [1, 2, 16, 64, 256])
def test_nearly_everybody_who_waits_is_answered_by_one_sync(senders: int) -> None:
    """Senders that come again when they are answered: at least nine of ten are in every sync of a slow disk."""
    disk = Disk(senders, sync_ms=5, again=at_once)

    for _ in range(SYNCS):
        disk.sync()

    assert disk.settled >= 0.9 * senders


@pytest.mark.parametrize("senders", [16, 64, 256])
def test_without_the_pause_it_would_be_half_of_them(senders: int) -> None:
    """The twin: syncs that begin as soon as anything is there."""
    disk = Disk(senders, sync_ms=5, again=at_once)

    for _ in range(SYNCS):
        disk.sync(is_gathering=False)

    assert disk.settled == pytest.approx(senders / 2, rel=0.05)


def test_senders_at_their_own_pace_are_seldom_waited_for() -> None:
    """Where a pause brings nobody who would not have come anyway, at most one sync in eight has one."""
    senders, period_ms = 200, 40.0

    def by_the_clock(now: float, number: int) -> float:
        phase_ms = period_ms * number / senders
        return phase_ms + math.ceil((now - phase_ms) / period_ms) * period_ms

    disk = Disk(senders, sync_ms=5, again=by_the_clock)

    for _ in range(SYNCS):
        disk.sync()

    assert disk.pauses <= SYNCS / 8


def test_a_single_sender_is_never_kept_waiting() -> None:
    """Nobody else is expected, so its sync begins at once."""
    disk = Disk(1, sync_ms=20, again=at_once)

    for _ in range(SYNCS):
        disk.sync()

    assert disk.pauses == 0


@pytest.mark.parametrize(("took_ms", "patience_ms"), [(0, 0), (1, 0.75), (6, 4.5), (500, PATIENCE_MS_MAX)], ids=str)
def test_the_pause_is_shorter_than_a_sync_and_bounded(took_ms: int, patience_ms: float) -> None:
    """A disk that answers in less than a millisecond is not waited for, one that hung for a while not for long."""
    rule = Gathering()
    rule.synced(10 * MESSAGE_BYTES, took_ms)

    assert rule.patience_ms == patience_ms
    assert rule.wanted(MESSAGE_BYTES) == (9 * MESSAGE_BYTES if patience_ms else 0)
    assert rule.wanted(9 * MESSAGE_BYTES) == 0
    assert rule.wanted(0) == 0


def test_a_thread_that_is_asked_to_stop_does_not_sleep_through_it() -> None:
    """A pause forgets who has woken the thread before, and a stop ends it all the same."""
    entered, rounds = threading.Event(), 0

    def step() -> bool:
        nonlocal rounds
        rounds += 1
        worker.forget()
        entered.set()
        worker.pause(0.001)
        return True

    worker = Worker("gantry-test", 1, step)
    worker.start()
    assert entered.wait(30)

    worker.stop()

    assert rounds >= 1


def test_whoever_appends_is_flushed_with_no_further_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow disk, where the rule has pauses, no append waits for the thread's interval: a minute, here."""
    sync = RealFile.sync

    def slow_sync(file: RealFile) -> None:
        time.sleep(0.003)
        sync(file)

    monkeypatch.setattr(RealFile, "sync", slow_sync)
    flush = dataclasses.replace(TINY.flush, is_sync=True, flush_interval_ms=60_000, recovery_point_interval_ms=0)
    world = make_world("real", tmp_path, dataclasses.replace(TINY, flush=flush))
    store = world.make_store()
    store.open()
    world.adopt(store)
    look = threading.Event()

    for number in range(40):
        for _ in range(1 + 5 * number % 13):
            world.send()
        for _ in range(10_000):
            if store.log.flushed == store.log.wrote:
                break
            look.wait(0.001)
        assert store.log.flushed == store.log.wrote
    assert store.log.sync_count >= 40
    store.close()
