"""The history of consumer lag: thinning, limits, steps of the clock, its file, and the trend.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import asyncio
import logging
import math
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest

from gantry_admin import consumer_lag, lag_history
from gantry_admin.consumer_lag import BEHIND_S_MIN, QueueWait, TopicLag, group_wait, is_behind, lag_by_topic, trend_of
from gantry_admin.errors import Problem
from gantry_admin.inventory_cache import InventoryCache
from gantry_admin.lag_history import (
    COARSE_S,
    FINE_S,
    HISTORY_S,
    POINTS_MAX,
    SAMPLE_S,
    LagHistory,
    LagPoint,
    open_file,
    seal_file,
)
from gantry_admin.lag_monitor import FILE_NAME, LagMonitor
from gantry_admin.lag_times import StoreTimes
from gantry_status.clocks import Moment

PAIR = ("billing", "orders")
START_MS = 1_700_000_000_000


def moment(seconds: float, *, clock_step_s: float = 0.0) -> Moment:
    """Return a time after the start, on a wall clock that was set by ``clock_step_s``."""
    return Moment(int(seconds * 1e9), START_MS + int((seconds + clock_step_s) * 1000))


def fill(history: LagHistory, seconds: int, *, begin: int = 0, every: int = SAMPLE_S) -> None:
    """Record one sample every few seconds: the lag is the time, and the wait a tenth of it."""
    for at in range(begin, begin + seconds, every):
        history.record(moment(at), {PAIR: TopicLag(at, at / 10)})


def points_of(history: LagHistory, now_s: float) -> list[LagPoint]:
    """Return all points of the pair, with times in seconds since the start."""
    begin_ms = START_MS + int((now_s - HISTORY_S) * 1000)
    rows = history.window(PAIR, begin_ms, 1000, HISTORY_S + 1)
    return [
        LagPoint((row.at_ms - START_MS) // 1000, row.lag, row.wait_s)
        for row in rows
        if row.lag is not None or row.wait_s is not None
    ]


# -- thinning ----------------------------------------------------------------------------------------------------------


def test_samples_of_the_last_hour_are_kept_and_older_ones_thinned() -> None:
    """The newest hour has every sample; before it there is one point for each two minutes."""
    history = LagHistory()
    fill(history, 3 * FINE_S)
    last = 3 * FINE_S - SAMPLE_S

    points = points_of(history, last)

    fine = [point for point in points if point.at_ms >= last - FINE_S]
    coarse = [point for point in points if point.at_ms < last - FINE_S]
    assert len(fine) == FINE_S // SAMPLE_S + 1
    assert {later.at_ms - earlier.at_ms for earlier, later in pairwise(coarse)} == {COARSE_S}


def test_thinned_point_has_the_largest_lag_of_its_period() -> None:
    """A peak of one sample is still the largest lag a day later."""
    history = LagHistory()
    for at in range(0, 4 * FINE_S, SAMPLE_S):
        history.record(moment(at), {PAIR: TopicLag(9_000, 80.0) if at == 1_845 else TopicLag(1, 0.5)})

    points = points_of(history, 4 * FINE_S)

    [peak] = [point for point in points if point.lag == 9_000]
    assert peak.wait_s == pytest.approx(80.0) and 0 <= 1_845 - peak.at_ms < COARSE_S
    assert max(point.lag or 0 for point in points if point is not peak) == 1


def test_history_is_bounded_in_time_and_points() -> None:
    """After two days the oldest point is a day old, and there are no more than the limit."""
    history = LagHistory()
    fill(history, 2 * HISTORY_S)
    now_s = 2 * HISTORY_S - SAMPLE_S

    points = points_of(history, now_s)

    assert now_s - HISTORY_S <= points[0].at_ms < now_s - HISTORY_S + 2 * COARSE_S
    assert len(points) <= POINTS_MAX
    assert len(history.to_document()) < 20 * POINTS_MAX + 200


def test_samples_that_are_too_early_are_left_out() -> None:
    """A sidecar that is restarted again and again does not fill the history."""
    history = LagHistory()
    for at in range(600):
        history.record(moment(at), {PAIR: TopicLag(at, 1.0)})

    assert len(points_of(history, 600)) <= 600 // (SAMPLE_S / 2)


# -- series ------------------------------------------------------------------------------------------------------------


def test_series_with_the_longest_waits_are_kept_and_the_others_counted() -> None:
    """A group that was behind an hour ago is kept; groups without lag make room, and are counted."""
    history = LagHistory(series_max=2)
    history.record(moment(0), {("late", "t"): TopicLag(5, 400.0)})
    sample = {("late", "t"): TopicLag(0, 0.0), ("a", "t"): TopicLag(9, 7.0), ("b", "t"): TopicLag(1, 3.0)}

    for at in range(SAMPLE_S, FINE_S, SAMPLE_S):
        history.record(moment(at), sample)

    assert history.pairs(None, None) == [("a", "t"), ("late", "t")]
    assert history.left_out == 1
    assert history.pairs("a", None) == [("a", "t")] and history.pairs(None, "other") == []


def test_series_of_deleted_group_ends_after_a_day() -> None:
    """Its points stay for 24 hours, and then the series is gone."""
    history = LagHistory()
    history.record(moment(0), {PAIR: TopicLag(5, 4.0), ("other", "t"): TopicLag(0, 0.0)})
    history.record(moment(HISTORY_S - 60), {("other", "t"): TopicLag(0, 0.0)})
    assert PAIR in history.pairs(None, None)

    history.record(moment(HISTORY_S + 60), {("other", "t"): TopicLag(0, 0.0)})

    assert history.pairs(None, None) == [("other", "t")]


# -- time --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step_s", [-7_200.0, 7_200.0], ids=["set-back", "set-forward"])
def test_points_keep_their_ages_when_the_wall_clock_is_set(step_s: float) -> None:
    """Two hours of difference move all earlier points, so that the history has no gap and stays in order."""
    history = LagHistory()
    fill(history, 1_200)
    for at in range(1_200, 1_500, SAMPLE_S):
        history.record(moment(at, clock_step_s=step_s), {PAIR: TopicLag(at, 1.0)})

    points = points_of(history, 1_500 + step_s)

    assert [point.at_ms - int(step_s) for point in points] == list(range(0, 1_500, SAMPLE_S))


def test_without_the_step_points_would_be_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twin: a clock that is set back, and whose step is not recognized, has no new points."""
    monkeypatch.setattr(lag_history, "CLOCK_STEP_MS_MIN", math.inf)
    history = LagHistory()
    fill(history, 1_200)
    for at in range(1_200, 1_500, SAMPLE_S):
        history.record(moment(at, clock_step_s=-7_200), {PAIR: TopicLag(at, 1.0)})

    assert points_of(history, 1_500 - 7_200) == []


def test_suspended_machine_is_shown_as_gap() -> None:
    """The boot-time clock runs on while the machine sleeps, so this is no step of the wall clock."""
    history = LagHistory()
    fill(history, 300)
    fill(history, 300, begin=3_000)

    rows = history.window(PAIR, START_MS, 30_000, 110)

    assert [row.lag is None for row in rows] == [False] * 10 + [True] * 90 + [False] * 10
    assert [row.at_ms for row in rows] == [START_MS + 30_000 * index for index in range(110)]


# -- the file ----------------------------------------------------------------------------------------------------------


def test_history_is_restored_from_its_file() -> None:
    """All points are the same afterwards, also those that were thinned."""
    history, restored = LagHistory(), LagHistory()
    fill(history, 3 * FINE_S)
    now_s = 3 * FINE_S - SAMPLE_S

    restored.restore(open_file(seal_file(history.to_document())), moment(now_s).wall_ms)

    assert points_of(restored, now_s) == points_of(history, now_s) != []


def test_points_in_the_future_are_dropped_when_a_file_is_loaded() -> None:
    """The clock was set back by ten minutes while the sidecar did not run."""
    history, restored = LagHistory(), LagHistory()
    fill(history, 1_200)

    restored.restore(history.to_document(), moment(600).wall_ms)
    restored.record(moment(615), {PAIR: TopicLag(3, 1.0)})

    assert [point.at_ms for point in points_of(restored, 615)] == list(range(0, 616, SAMPLE_S))


def contents() -> dict[str, bytes]:
    """Return files that must not be used, by their fault."""
    history = LagHistory()
    fill(history, 600)
    good = seal_file(history.to_document())
    flipped = bytearray(good)
    flipped[-20] ^= 1
    unordered = history.to_document().replace(START_MS.to_bytes(8, "little"), (2**62).to_bytes(8, "little"), 1)
    return {
        "empty": b"",
        "torn": good[: len(good) // 2],
        "flipped-bit": bytes(flipped),
        "foreign": b"\x7fELF" + bytes(5_000),
        "other-document": seal_file(b"\x93\x01\x02\x03"),
        "unordered": seal_file(unordered),
        "bomb": seal_file(bytes(lag_history.DOCUMENT_BYTES_MAX + 1)),
    }


def monitor_at(folder: Path | None) -> LagMonitor:
    """Return a monitor without an inventory."""
    return LagMonitor(cast("InventoryCache", None), cast("StoreTimes", Closed()), folder, clock=lambda: moment(600))


class Closed:
    """Store times without a pending read."""

    async def close(self) -> None:
        return


@pytest.mark.parametrize("fault", list(contents()))
def test_unusable_file_is_discarded_with_a_log_line(
    fault: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A torn or foreign file is no reason to stop: the history begins anew, and the next write replaces the file."""
    (tmp_path / FILE_NAME).write_bytes(contents()[fault])
    monitor = monitor_at(tmp_path)

    asyncio.run(monitor.load())

    assert monitor.history.pairs(None, None) == []
    assert [line.message for line in caplog.records if line.levelno >= logging.WARNING] == [
        "history of consumer lag discarded"
    ]
    asyncio.run(monitor.close())
    assert open_file((tmp_path / FILE_NAME).read_bytes()) == monitor.history.to_document()


def test_good_file_is_used_without_a_log_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Twin: the file of the same history without a fault."""
    history = LagHistory()
    fill(history, 600)
    (tmp_path / FILE_NAME).write_bytes(seal_file(history.to_document()))
    monitor = monitor_at(tmp_path)

    asyncio.run(monitor.load())

    assert points_of(monitor.history, 600) == points_of(history, 600) != []
    assert caplog.records == []
    assert monitor.document().kept_in == "file"


def test_history_is_kept_in_memory_where_the_directory_cannot_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The status has the reason; the log has it once."""
    (tmp_path / "file").write_text("not a directory")
    monitor = monitor_at(tmp_path / "file")

    asyncio.run(monitor.load())
    asyncio.run(monitor.save())
    asyncio.run(monitor.save())

    state = monitor.document()
    assert state.kept_in == "memory" and "cannot write" in (state.reason or "")
    assert [line.message for line in caplog.records].count(
        "history of consumer lag cannot be written; it is kept in memory only"
    ) == 1


def test_history_without_directory_is_kept_in_memory() -> None:
    """The status says that no directory was given."""
    monitor = monitor_at(None)
    asyncio.run(monitor.load())
    asyncio.run(monitor.close())

    state = monitor.document()
    assert (state.kept_in, state.reason) == ("memory", "no --state directory is given")


def test_file_that_was_not_loaded_yet_is_not_replaced(tmp_path: Path) -> None:
    """A sidecar that is stopped in its first moment keeps the history of the one before."""
    (tmp_path / FILE_NAME).write_bytes(b"history")
    asyncio.run(monitor_at(tmp_path).close())

    assert (tmp_path / FILE_NAME).read_bytes() == b"history"


class NoInventory:
    """An inventory that is not known."""

    async def get(self) -> None:
        raise Problem(503, "not known yet")


def test_nothing_is_recorded_without_an_inventory() -> None:
    """What is unknown is a gap, not a lag of zero."""
    monitor = LagMonitor(cast("InventoryCache", NoInventory()), cast("StoreTimes", Closed()), None)

    assert asyncio.run(monitor.sample()) is False
    assert monitor.history.pairs(None, None) == []


# -- trend and rule ----------------------------------------------------------------------------------------------------


def line(slope: float, *, count: int = 20, start_s: float = 100.0) -> list[tuple[int, float | None]]:
    """Return points on a straight line, fifteen seconds apart."""
    return [(index * 15_000, start_s + slope * index * 15) for index in range(count)]


@pytest.mark.parametrize(
    ("slope", "expected"), [(1.0, "grows"), (0.2, "grows"), (0.05, "steady"), (0.0, "steady"), (-0.3, "shrinks")]
)
def test_trend_is_the_slope_of_the_wait(slope: float, expected: str) -> None:
    """A group that consumes nothing grows by a second per second; one that keeps up is steady."""
    assert trend_of(line(slope)) == expected


def test_trend_is_robust_against_outliers() -> None:
    """Three slow messages of twenty samples, one of them the last, do not make a trend; a mean would."""
    points = line(0.0)
    for index in (3, 11, 19):
        points[index] = (points[index][0], 4_000.0)

    assert trend_of(points) == "steady"


def test_trend_needs_enough_recent_known_points() -> None:
    """Unknown waits and old samples do not count."""
    old: list[tuple[int, float | None]] = [(index * 15_000 - 10_000_000, 1.0 * index) for index in range(20)]
    unknown: list[tuple[int, float | None]] = [(at_ms, None) for at_ms, _ in line(1.0)]

    assert trend_of([]) is None
    assert trend_of(line(1.0, count=consumer_lag.TREND_POINTS_MIN - 1)) is None
    assert trend_of([*old, (0, 5.0)]) is None
    assert trend_of(unknown) is None
    assert trend_of(line(1.0, count=consumer_lag.TREND_POINTS_MIN)) == "grows"


def test_group_is_behind_if_it_waits_too_long_and_falls_further_behind() -> None:
    """A group that catches up is not behind, however long its oldest message has waited."""
    assert is_behind(BEHIND_S_MIN + 1, "grows")
    assert not is_behind(BEHIND_S_MIN + 1, "shrinks")
    assert not is_behind(BEHIND_S_MIN + 1, None)
    assert not is_behind(BEHIND_S_MIN, "grows")
    assert not is_behind(None, "grows")


def test_lag_of_a_group_is_the_longest_wait_of_its_queues() -> None:
    """An unknown queue does not hide a known one; the retry topic does not count; without lag it is zero."""
    retry = "%RETRY%billing"
    queues = [
        QueueWait("orders", 0, 4, 10, 6, 30.0), QueueWait("orders", 1, 8, 10, 2, None),
        QueueWait("orders", 2, 10, 10, 0, 0.0), QueueWait(retry, 0, 1, 10, 9, 500.0),
    ]  # fmt: skip

    topics = lag_by_topic(queues)

    assert topics == {"orders": TopicLag(8, 30.0), retry: TopicLag(9, 500.0)}
    assert group_wait(topics, "billing") == 30.0
    assert group_wait(lag_by_topic(queues[1:2]), "billing") is None
    assert group_wait(lag_by_topic(queues[2:3]), "billing") == group_wait({}, "billing") == 0.0
