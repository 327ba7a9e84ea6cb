"""The calculations of the store benchmark: excesses, shares, goals, and the tables of a page. Pure parts only."""

from __future__ import annotations

import pytest
from gantry_bench import errors, figures, group_commit, recovery, recovery_run, runtime_info, scale, tail
from gantry_bench.loadgen import Run
from test_bench_measurement import report


def loop_report(medium: tail.Medium, *, p99_99: float) -> tail.LoopReport:
    """Return a run whose calls took 10 us except for the slowest."""
    times = tail.CallTimes(p50=10.0, p99=10.0, p99_9=10.0, p99_99=p99_99, max=p99_99)
    return tail.LoopReport(
        medium=medium, used_medium=medium, messages=10, seconds=2.0, wrote_bytes=10, call_us=times, late_ms_max=1.0,
        syncs=100, cpu_seconds=1.0, page_faults=0,
    )  # fmt: skip


def rounds(*worst: tuple[float, float, float]) -> list[tail.Round]:
    """Return rounds of (control, no buffer, tmpfs)."""
    return [
        tail.Round(
            control=loop_report("control", p99_99=control),
            runs=[loop_report("none", p99_99=without), loop_report("tmpfs", p99_99=buffered)],
            other_cores=0.0,
        )
        for control, without, buffered in worst
    ]


def sync_run(level: int, flush: group_commit.Flush, *, rate: float, messages: int, syncs: int) -> group_commit.SyncRun:
    """Return a run with so many messages per second."""
    progress = runtime_info.LogProgress(messages=messages, syncs=syncs)
    run = Run(report=report(messages_per_second=rate), other_cores=0.0)
    return group_commit.SyncRun(level=level, flush=flush, run=run, progress=progress)


def test_percentiles_are_rounded_up() -> None:
    """A percentile is a measured time: the next one after its share of all times."""
    times = tail.call_times([nanoseconds * 1000 for nanoseconds in range(1, 10_001)])

    assert (times.p50, times.p99, times.p99_9, times.p99_99, times.max) == (5001.0, 9901.0, 9991.0, 10_000.0, 10_000.0)


def test_run_without_messages_is_no_measurement() -> None:
    """There is no percentile of no values."""
    with pytest.raises(errors.BenchmarkFailed):
        tail.call_times([])


def test_excess_is_over_the_control_of_the_same_round() -> None:
    """A round in which the whole machine was slow does not make a medium slow; the median round counts."""
    cells = tail.summarise_tail(rounds((20, 2020, 70), (5020, 7020, 5070), (20, 9020, 20)))

    assert [cell.medium for cell in cells] == ["control", "none", "tmpfs"]
    assert cells[1].excess_us.p99_99 == 2000
    assert cells[2].excess_us.p99_99 == 50
    assert (cells[1].excess_p99_99_least, cells[1].excess_p99_99_most) == (2000, 9000)


@pytest.mark.parametrize(
    ("without", "buffered", "ratio"), [(2020, 120, 20.0), (2020, 121, 19.8), (2020, 10, 2000.0)], ids=str
)
def test_tail_goal_is_a_ratio_of_excesses(without: float, buffered: float, ratio: float) -> None:
    """It is met at 20 times; an excess below the clock's resolution counts as 1 us, so a fast control gains nothing."""
    [goal] = tail.tail_goals(tail.summarise_tail(rounds((20, without, buffered))))

    assert goal.measured == pytest.approx(ratio, abs=0.01)
    assert goal.is_met == (ratio >= 20)
    assert goal.limit_text == "at least 20 x"


def test_anonymous_memory_has_no_goal() -> None:
    """The goal is for buffers that survive their process; without the run that has no buffer there is no comparison."""
    runs = [loop_report("none", p99_99=2), loop_report("anonymous", p99_99=3)]
    anonymous = tail.Round(control=loop_report("control", p99_99=1), runs=runs, other_cores=0.0)

    assert tail.tail_goals(tail.summarise_tail([anonymous])) == []
    assert tail.tail_goals(tail.summarise_tail(rounds((1, 2, 3)))[:1]) == []


def test_level_is_spread_over_connections() -> None:
    """The level is the number of sends in flight, on 16 connections at most."""
    for level in scale.FULL.sync_levels:
        load = group_commit.load_of(level)
        assert load.connections * load.outstanding == level
        assert load.connections <= 16


def test_sync_goals_compare_with_async_and_with_the_sends_in_flight() -> None:
    """60 % of the asynchronous rate at 256, and 80 % of the waiting sends in one slow sync."""
    runs = [
        sync_run(256, "async", rate=1000, messages=1, syncs=0),
        sync_run(256, "sync", rate=600, messages=500, syncs=10),
        sync_run(256, "slow", rate=100, messages=1000, syncs=5),
    ]

    goals = group_commit.sync_goals(group_commit.summarise_sync(runs))

    assert [(goal.measured, goal.is_met) for goal in goals] == [(0.6, True), (200 / 256, False)]


def test_medians_of_a_cell_are_those_of_its_own_runs() -> None:
    """Levels and flush modes are separated."""
    rates = {("async", 1): (10, 30, 20), ("sync", 1): (1, 2, 9), ("slow", 1): (4, 4, 4)}
    runs = [
        sync_run(level, flush, rate=rate, messages=rate, syncs=1)  # type: ignore[arg-type]
        for (flush, level), values in rates.items()
        for rate in values
    ]

    table = group_commit.sync_figures(group_commit.summarise_sync(runs), ["a note"])

    assert table.rows[0][:4] == ["1", "20", "2", "10%"]
    assert table.rows[0][-1] == "4.0"


def test_runtime_table_has_the_number_of_syncs() -> None:
    """Two samples give the difference between them; a broker without the value is an error."""
    later = runtime_info.progress_of(b'{"table": {"msgPutTotalTodayNow": "30", "commitLogSyncs": "7", "x": "y"}}')

    assert later.since(runtime_info.LogProgress(messages=10, syncs=2)) == runtime_info.LogProgress(messages=20, syncs=5)
    with pytest.raises(errors.BenchmarkFailed, match="no count of syncs"):
        runtime_info.progress_of(b'{"table": {"msgPutTotalTodayNow": "30"}}')


@pytest.mark.parametrize(
    ("way", "end", "start", "records"),
    [("all of it, cached", 90, 0, 10), ("all of it, cached", 100, 0, 9), ("all of it, from the disk", 100, 50, 10)],
    ids=["another end", "fewer messages", "not all of it"],
)
def test_recovery_that_read_something_else_has_no_figure(way: recovery.Way, end: int, start: int, records: int) -> None:
    """It must find the whole written log, and read all of it where that is required."""
    filled = recovery.FillReport(end=100, messages=10, seconds=1.0)
    found = recovery.RecoverReport(is_clean=False, start=start, end=end, records=records, seconds=1.0, cpu_seconds=1.0)

    with pytest.raises(errors.BenchmarkFailed):
        recovery_run.check_report(way, filled, found)


def test_memory_of_a_process_is_read_by_kind() -> None:
    """The kinds are its own pages and those of files; a process that is just ending has neither."""
    text = "Name:\tx\nVmHWM:\t 9 kB\nRssAnon:\t      20 kB\nRssFile:\t      30 kB\n"

    assert recovery_run.parse_peak(text) == recovery.Peak(anonymous_bytes=20_480, file_bytes=30_720)
    assert recovery_run.parse_peak("Name:\tx\n") == recovery.Peak(anonymous_bytes=0, file_bytes=0)


def test_tables_are_replaced_between_their_markers() -> None:
    """Publishing twice gives the same page, and changes nothing outside the markers."""
    page = "before\n<!-- bench-store: a -->\nold\n<!-- end: a -->\nafter\n"
    table = figures.Figures(name="a", headings=["x", "y"], rows=[["1", "2"]], notes=["A note."])

    once = figures.publish(page, [table])

    assert once == (
        "before\n<!-- bench-store: a -->\n| x | y |\n|---|---|\n| 1 | 2 |\n\nA note.\n<!-- end: a -->\nafter\n"
    )
    assert figures.publish(once, [table]) == once


def test_page_without_markers_is_an_error() -> None:
    """Figures without a place on the page are not dropped silently."""
    table = figures.Figures(name="a", headings=[], rows=[], notes=[])

    with pytest.raises(errors.BenchmarkFailed, match="has no markers for 'a'"):
        figures.publish("<!-- bench-store: a -->\n", [table])


def test_log_that_exceeds_the_free_memory_is_noted() -> None:
    """Queues and index are in the page cache, too."""
    assert recovery_run.uncached_note(10_000_000_000, 11_500_000_000) == ""
    assert "10 GB does not fit into the page cache, for which 11 GB" in recovery_run.uncached_note(
        10_000_000_000, 11_000_000_000
    )


def test_short_recoveries_are_of_the_largest_log() -> None:
    """They are repeated from memory, and need no more disk than a part of `make bench` may."""
    assert scale.SHORT.recovery_log_bytes == (max(scale.FULL.recovery_log_bytes),)
    assert recovery_run.log_bytes_needed(scale.SHORT) < 14 << 30
    assert recovery.runs_text(scale.SHORT.recovery_ways) == "3 runs each"
    assert recovery.runs_text(scale.FULL.recovery_ways) == "one run each"
