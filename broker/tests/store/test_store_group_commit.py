"""Group commit with a pause: how many waiting senders one fsync answers.

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
from gantry_broker.store.flusher import DELAY_MS_MAX, CommitDelay
from gantry_broker.store.worker import Worker
from gantry_testing.store_world import TINY, make_world

MESSAGE_BYTES = 1000
SYNCS = 400
NextSend = Callable[[float, int], float]
"""A function that returns when a sender sends its next message: (time of its answer, its number) -> time."""


class Disk:
    """A disk whose syncs take time, and senders with one message each; time is a number."""

    def __init__(self, senders: int, *, sync_ms: int, next_send: NextSend) -> None:
        self.rule = CommitDelay()
        self.pauses = 0
        self.groups: list[int] = []
        """The number of messages that each sync has answered."""

        self._due = [0.01 * number for number in range(senders)]
        self._sync_ms = sync_ms
        self._next_send = next_send
        self._now = 0.0

    def waiting(self) -> int:
        """Return the number of messages that were sent and not answered."""
        return sum(due <= self._now for due in self._due)

    def pause_if_due(self) -> None:
        """Pause, if the rule requests it."""
        before = self.waiting()
        wanted = self.rule.bytes_to_wait_for(before * MESSAGE_BYTES)
        if wanted:
            place = min(len(self._due), math.ceil(wanted / MESSAGE_BYTES)) - 1
            self._now = min(self._now + self.rule.pause_ms_max, sorted(self._due)[place])
            self.rule.record_pause(before * MESSAGE_BYTES, self.waiting() * MESSAGE_BYTES)
            self.pauses += 1

    def sync(self, *, has_pause: bool = True) -> None:
        """Run one sync, with the events before and after it."""
        self._now = max(self._now, min(self._due))
        if has_pause:
            self.pause_if_due()
        group = [number for number, due in enumerate(self._due) if due <= self._now]
        self._now += self._sync_ms
        self.rule.record_sync(self.waiting() * MESSAGE_BYTES, self._sync_ms)
        for number in group:
            self._due[number] = self._next_send(self._now, number)
        self.groups.append(len(group))

    @property
    def messages_per_sync(self) -> float:
        """Return the number of messages per sync in the steady state."""
        later = self.groups[len(self.groups) // 2 :]
        return sum(later) / len(later)


def after_a_millisecond(now: float, number: int) -> float:
    """Send again after a millisecond for network and client, one message after the other."""
    return now + 1.0 + 0.002 * number


@pytest.mark.parametrize("senders", [1, 2, 16, 64, 256])
def test_nearly_all_waiting_senders_are_answered_by_one_sync(senders: int) -> None:
    """Senders that send again when answered: at least nine of ten are in every sync of a slow disk."""
    disk = Disk(senders, sync_ms=5, next_send=after_a_millisecond)

    for _ in range(SYNCS):
        disk.sync()

    assert disk.messages_per_sync >= 0.9 * senders


@pytest.mark.parametrize("senders", [16, 64, 256])
def test_without_the_pause_half_of_the_senders_are_answered(senders: int) -> None:
    """The twin of the test above: syncs that begin as soon as anything was appended."""
    disk = Disk(senders, sync_ms=5, next_send=after_a_millisecond)

    for _ in range(SYNCS):
        disk.sync(has_pause=False)

    assert disk.messages_per_sync == pytest.approx(senders / 2, rel=0.05)


def test_senders_with_their_own_rate_cause_few_pauses() -> None:
    """If a pause brings no additional messages, at most one sync in eight has one."""
    senders, period_ms = 200, 40.0

    def at_own_rate(now: float, number: int) -> float:
        phase_ms = period_ms * number / senders
        return phase_ms + math.ceil((now - phase_ms) / period_ms) * period_ms

    disk = Disk(senders, sync_ms=5, next_send=at_own_rate)

    for _ in range(SYNCS):
        disk.sync()

    assert disk.pauses <= SYNCS / 8


def test_single_sender_causes_no_pause() -> None:
    """No other sender is expected, so its sync begins at once."""
    disk = Disk(1, sync_ms=20, next_send=after_a_millisecond)

    for _ in range(SYNCS):
        disk.sync()

    assert disk.pauses == 0


@pytest.mark.parametrize(("took_ms", "pause_ms_max"), [(0, 0), (1, 0.75), (6, 4.5), (500, DELAY_MS_MAX)], ids=str)
def test_the_pause_is_shorter_than_a_sync_and_bounded(took_ms: int, pause_ms_max: float) -> None:
    """A disk that answers in less than a millisecond causes no pause, and one that hung only a bounded one."""
    rule = CommitDelay()
    rule.record_sync(10 * MESSAGE_BYTES, took_ms)

    assert rule.pause_ms_max == pause_ms_max
    assert rule.bytes_to_wait_for(MESSAGE_BYTES) == (9 * MESSAGE_BYTES if pause_ms_max else 0)
    assert rule.bytes_to_wait_for(9 * MESSAGE_BYTES) == 0
    assert rule.bytes_to_wait_for(0) == 0


def test_stop_ends_a_pause() -> None:
    """A step discards earlier wake-ups of the thread and pauses, here for ten minutes; a stop ends the pause."""
    entered, rounds = threading.Event(), 0

    def step() -> bool:
        nonlocal rounds
        rounds += 1
        worker.clear_wake()
        entered.set()
        worker.pause(600)
        return True

    worker = Worker("gantry-test", 1, step)
    worker.start()
    assert entered.wait(30)

    stopping = threading.Thread(target=worker.stop, daemon=True)
    stopping.start()
    stopping.join(60)

    assert not stopping.is_alive(), "the stop has not ended the pause"
    assert rounds == 1


def test_append_is_flushed_without_a_further_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow disk with pauses no append waits for the thread's interval, here a minute."""
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
    poll = threading.Event()

    for number in range(40):
        for _ in range(1 + 5 * number % 13):
            world.send()
        for _ in range(10_000):
            if store.log.flushed == store.log.wrote:
                break
            poll.wait(0.001)
        assert store.log.flushed == store.log.wrote
    assert store.log.sync_count >= 40
    store.close()
