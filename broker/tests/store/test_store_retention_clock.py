"""The store's own time: no wall clock makes a message older or keeps it longer, over restarts and suspends."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable

import msgspec
import pytest

from gantry_broker.store.retention_clock import (
    CLAIM_MS_MIN,
    NOTE_INTERVAL_MS,
    NOTES_MAX,
    TOLERANCE_MS,
    ClockReading,
    RetentionClock,
    RetentionRecord,
    decode_record,
    encode_record,
)
from gantry_testing.fake_clock import FakeClock

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
NOW_MS = 1_700_000_000_000
STORE = "0" * 32


def read_clocks(clock: FakeClock) -> ClockReading:
    return ClockReading(clock.wall_ms(), clock.boot_ms(), clock.boot_id())


def read_wall_clock_only(clock: FakeClock) -> ClockReading:
    """Read the wall clock in place of the boot clock, as without the safeguard."""
    return ClockReading(clock.wall_ms(), clock.wall_ms(), clock.boot_id())


class History:
    """A store with appends, of which the true time of every message is known."""

    def __init__(self, reading: Callable[[FakeClock], ClockReading] = read_clocks) -> None:
        self.clocks = FakeClock(NOW_MS)
        self.reading = reading
        self.true_ms = NOW_MS
        self.wrote = 0
        self.newest_ms = 0
        self.ends: list[int] = []
        self.stored_at: list[int] = []
        """The true time of each end of the log, ascending like the ends."""

        self.lost_notes: list[int] = []
        """When a crash or a cut took the *note* of the last minute, the record of an end of the log and its time.

        Messages of that minute count as younger.
        """

        self.saved_record: bytes | None = None
        """The record of the last save, for the next process."""

        self.own = RetentionClock(reading(self.clocks), newest_ms=0, log_end=0)
        """The clock under test, which has the store's *own time*."""

    def run(self, duration_ms: int, *, is_sending: bool = True) -> None:
        """Let time pass; a message is sent and the clocks are read every ten seconds."""
        for _ in range(duration_ms // 10_000):
            self.clocks.advance(10_000)
            self.true_ms += 10_000
            self.observe(is_sending=is_sending)

    def observe(self, *, is_sending: bool = True) -> None:
        if is_sending:
            self.newest_ms = max(self.newest_ms, self.clocks.wall_ms())
            self.wrote += 1_000
            self.ends.append(self.wrote)
            self.stored_at.append(self.true_ms)
        before = self.own.note_changes
        self.own.observe(self.reading(self.clocks), log_begin=0, log_end=self.wrote)
        if self.own.note_changes != before or self.saved_record is None:
            self.save_record()

    def save_record(self) -> None:
        """Save what the next process gets."""
        self.saved_record = encode_record(self.own.record(STORE, self.reading(self.clocks)))

    def suspend(self, duration_ms: int) -> None:
        self.clocks.suspend(duration_ms)
        self.true_ms += duration_ms
        self.observe()

    def restart(self, down_ms: int, *, is_reboot: bool = False) -> None:
        """Crash: the next process has the record that was saved last."""
        self.lost_notes.append(self.true_ms)
        (self.clocks.reboot if is_reboot else self.clocks.advance)(down_ms)
        self.true_ms += down_ms
        record = None if self.saved_record is None else decode_record(self.saved_record)
        now = self.reading(self.clocks)
        self.own = RetentionClock(now, newest_ms=self.newest_ms, log_end=self.wrote, record=record)
        self.observe()

    def cut(self, count: int) -> None:
        """Cut what the new master of this slave does not have."""
        self.lost_notes.append(self.stored_at[len(self.ends) - count])
        del self.ends[len(self.ends) - count :], self.stored_at[len(self.stored_at) - count :]
        self.wrote = self.ends[-1] if self.ends else 0
        self.observe(is_sending=False)

    def ages(self) -> list[tuple[int, int]]:
        """Return (counted age, true age) of many files."""
        own_ms = self.own.observe(self.reading(self.clocks), log_begin=0, log_end=self.wrote)
        ends = self.ends[:: max(1, len(self.ends) // 50)]
        return [
            (own_ms - self.own.latest_store_time(end, self.newest_ms), self.true_ms - self._true_store_time(end))
            for end in ends
        ]

    def has_note(self, true_age_ms: int) -> bool:
        """Return whether a message of that age was not stored in the two minutes before a crash or a cut."""
        stored_ms = self.true_ms - true_age_ms
        return not any(-10_000 <= lost_ms - stored_ms <= 2 * NOTE_INTERVAL_MS for lost_ms in self.lost_notes)

    def _true_store_time(self, end: int) -> int:
        return self.stored_at[bisect_left(self.ends, end)]


def run_random_history(history: History, random_source: random.Random, *, is_rebooting: bool) -> int:
    """Run a random history. Return how often the machine booted."""
    boots = 0
    for _ in range(40):
        match random_source.choice(("run", "run", "idle", "jump", "jump", "suspend", "restart", "cut", "reboot")):
            case "run":
                history.run(random_source.choice((60_000, 600_000, HOUR_MS, 2 * HOUR_MS)))
            case "idle":
                history.run(random_source.choice((600_000, HOUR_MS)), is_sending=False)
            case "jump":
                by_ms = random_source.choice((-1, 1)) * random_source.choice((30_000, HOUR_MS, DAY_MS, 30 * DAY_MS))
                history.clocks.jump_wall(by_ms)
            case "suspend":
                history.suspend(random_source.choice((60_000, 8 * HOUR_MS, 3 * DAY_MS)))
            case "restart":
                history.restart(random_source.choice((1_000, HOUR_MS, 2 * DAY_MS)))
            case "cut" if len(history.ends) > 20:
                history.cut(random_source.randint(1, 10))
            case "reboot" if is_rebooting:
                history.save_record()
                history.restart(random_source.choice((60_000, HOUR_MS, 2 * DAY_MS)), is_reboot=True)
                boots += 1
                history.run(CLAIM_MS_MIN + 60_000)
            case _:
                history.run(60_000)
    return boots


@pytest.mark.parametrize("seed", range(30))
def test_no_history_makes_a_message_older_or_keeps_it_longer(seed: int) -> None:
    """With jumps, suspends, restarts and cuts on one boot, counted ages are true but for the notes' minute."""
    history = History()
    run_random_history(history, random.Random(seed), is_rebooting=False)

    for counted_ms, true_ms in history.ages():
        assert counted_ms <= true_ms
        if history.has_note(true_ms):
            assert counted_ms >= true_ms - NOTE_INTERVAL_MS - 20_000


@pytest.mark.parametrize("seed", range(30))
def test_reboots_make_no_message_older(seed: int) -> None:
    """If no boot changes the wall clock, no age exceeds the true one by more than one tolerance for each boot."""
    history = History()
    boots = run_random_history(history, random.Random(seed), is_rebooting=True)

    for counted_ms, true_ms in history.ages():
        assert counted_ms <= true_ms + boots * TOLERANCE_MS


def test_with_the_wall_clock_messages_would_expire_too_early() -> None:
    """Without the store's own time the same histories expire young messages."""
    too_old = 0
    for seed in range(10):
        history = History(read_wall_clock_only)
        run_random_history(history, random.Random(seed), is_rebooting=False)
        too_old += any(counted_ms > true_ms + HOUR_MS for counted_ms, true_ms in history.ages())

    assert too_old > 5


@pytest.mark.parametrize("jump_ms", [DAY_MS, -DAY_MS, 100 * DAY_MS, -100 * DAY_MS])
def test_clock_jump_of_days_changes_no_age(jump_ms: int) -> None:
    """A message that is an hour old when the clock is set is three hours old two hours later."""
    history = History()
    history.run(HOUR_MS)
    history.clocks.jump_wall(jump_ms)
    history.run(2 * HOUR_MS)

    assert all(0 <= true_ms - counted_ms <= NOTE_INTERVAL_MS + 20_000 for counted_ms, true_ms in history.ages())


def started(*, newest_ms: int, record: RetentionRecord | None = None) -> tuple[FakeClock, RetentionClock]:
    clocks = FakeClock(NOW_MS)
    return clocks, RetentionClock(read_clocks(clocks), newest_ms=newest_ms, log_end=5_000, record=record)


def observe_for(clocks: FakeClock, own: RetentionClock, duration_ms: int) -> int:
    for _ in range(duration_ms // 10_000):
        clocks.advance(10_000)
        own.observe(read_clocks(clocks), log_begin=0, log_end=5_000)
    return own.observe(read_clocks(clocks), log_begin=0, log_end=5_000)


def test_first_start_after_days_of_downtime_waits_an_hour() -> None:
    """Without a record the newest message has the last wall clock; the downtime since then counts after an hour."""
    clocks, own = started(newest_ms=NOW_MS - 100 * HOUR_MS)

    assert observe_for(clocks, own, HOUR_MS - 10_000) == NOW_MS - 99 * HOUR_MS - 10_000
    assert own.is_doubtful
    assert observe_for(clocks, own, 10_000) == clocks.wall_ms()
    assert not own.is_doubtful


def test_clock_that_is_corrected_after_a_boot_has_no_effect() -> None:
    """A boot with a clock days ahead, corrected within the hour, counts only the true downtime."""
    history = History()
    history.run(HOUR_MS)
    history.save_record()
    history.clocks.jump_wall(50 * DAY_MS)
    history.restart(2 * HOUR_MS, is_reboot=True)
    history.run(CLAIM_MS_MIN - 120_000)
    history.clocks.jump_wall(-50 * DAY_MS)
    history.run(CLAIM_MS_MIN + 60_000)

    assert not history.own.is_doubtful
    for counted_ms, true_ms in history.ages():
        assert counted_ms <= true_ms + 2 * TOLERANCE_MS
        assert counted_ms >= true_ms - 4 * TOLERANCE_MS or not history.has_note(true_ms)


def test_doubt_survives_a_restart() -> None:
    """A process that ends within the hour leaves the downtime in doubt, and the next one waits an hour again."""
    history = History()
    history.run(HOUR_MS)
    history.save_record()
    history.restart(5 * HOUR_MS, is_reboot=True)
    history.run(CLAIM_MS_MIN // 2)
    assert history.own.is_doubtful
    history.save_record()
    history.restart(120_000)

    assert history.own.is_doubtful
    history.run(CLAIM_MS_MIN + 60_000)
    for counted_ms, true_ms in history.ages():
        assert counted_ms <= true_ms + 2 * TOLERANCE_MS
        assert counted_ms >= true_ms - 4 * TOLERANCE_MS or not history.has_note(true_ms)


def test_empty_log_uses_the_wall_clock() -> None:
    """Without a message there is only the wall clock."""
    clocks, own = started(newest_ms=0)

    assert observe_for(clocks, own, 10_000) == NOW_MS + 10_000


def test_log_from_the_future_does_not_set_the_time_ahead() -> None:
    """Messages with times of a clock that ran ahead do not make others older."""
    clocks, own = started(newest_ms=NOW_MS + 500 * HOUR_MS)

    assert observe_for(clocks, own, 10_000) == NOW_MS + 10_000


def test_files_from_before_the_first_note_count_by_their_store_times() -> None:
    """Files of RocketMQ, or of an earlier version, expire by their store times."""
    clocks, own = started(newest_ms=NOW_MS)
    own.observe(read_clocks(clocks), log_begin=0, log_end=9_000)

    assert own.latest_store_time(5_000, NOW_MS - DAY_MS) == NOW_MS - DAY_MS
    assert own.latest_store_time(5_001, NOW_MS - DAY_MS) == NOW_MS


def test_notes_are_bounded() -> None:
    """A log that grows for months keeps a bounded number of notes, and thinning them makes no file older."""
    clocks, own = started(newest_ms=NOW_MS)
    for number in range(3 * NOTES_MAX):
        clocks.advance(NOTE_INTERVAL_MS)
        own.observe(read_clocks(clocks), log_begin=0, log_end=6_000 + number)

    record = own.record(STORE, read_clocks(clocks))
    assert len(record.notes) <= NOTES_MAX
    for number in (0, 100, NOTES_MAX, 3 * NOTES_MAX - 1):
        assert own.latest_store_time(6_000 + number, 0) >= NOW_MS + (number + 1) * NOTE_INTERVAL_MS


def test_record_with_a_flipped_bit_is_refused() -> None:
    """The CRC covers every byte of the record."""
    clocks, own = started(newest_ms=NOW_MS)
    data = encode_record(own.record(STORE, read_clocks(clocks)))

    assert decode_record(data).store == STORE
    for place in range(len(data)):
        with pytest.raises((ValueError, msgspec.DecodeError)):
            decode_record(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
