"""The comparison of two versions: ratios of rounds, goals, and the tree that a broker is started from.

Loads are reports as the load generator prints them; the process test runs one cell with real brokers of one tree.
"""

from __future__ import annotations

from pathlib import Path

import compare
import pytest
from gantry_bench import errors, loadgen, machine, measurement, processes
from test_bench_measurement import report


def run_of(cpu_us: float, rate: float = 1000.0, **changes: object) -> loadgen.Run:
    """Return a load with this CPU time of the broker per message."""
    server = {
        "user_seconds": 0.1,
        "system_seconds": 0.1,
        "cpu_seconds": 0.2,
        "is_precise": True,
        "cpu_us_per_message": cpu_us,
        "utilisation": 0.2,
    }
    return loadgen.Run(report=report(server=server, messages_per_second=rate, **changes), other_cores=0.0)


def cell_of(name: str, *, cpu_ratio: float, rate_ratio: float) -> compare.Cell:
    """A cell with these ratios."""
    before = [run_of(10.0, 1000.0)]
    return compare.compare_runs(name, {"before": before, "after": [run_of(10.0 * cpu_ratio, 1000.0 * rate_ratio)]})


def test_ratio_is_taken_within_each_round() -> None:
    """A machine that slows down from round to round affects both sides of a round, and so no ratio."""
    runs: dict[compare.Side, list[loadgen.Run]] = {
        "before": [run_of(10.0, 900.0), run_of(20.0, 450.0), run_of(40.0, 225.0)],
        "after": [run_of(11.0, 810.0), run_of(22.0, 405.0), run_of(44.0, 202.5)],
    }
    cell = compare.compare_runs("send a, 128 B", runs)
    assert cell.cpu_ratio == pytest.approx(1.1)
    assert cell.rate_ratio == pytest.approx(0.9)
    assert cell.cpu_us == {"before": 20.0, "after": 22.0}


def test_goals_name_the_worst_cell() -> None:
    """One slow cell among good ones misses the goal, and the goal names it."""
    cells = [
        cell_of("good", cpu_ratio=0.9, rate_ratio=1.1),
        cell_of("costly", cpu_ratio=1.2, rate_ratio=1.0),
        cell_of("slow", cpu_ratio=1.0, rate_ratio=0.8),
    ]
    cpu, rate = compare.goals_of(cells)
    assert "(costly)" in cpu.text
    assert not cpu.is_met
    assert "(slow)" in rate.text
    assert not rate.is_met
    assert all(goal.is_met for goal in compare.goals_of(cells[:1]))


def test_load_without_an_answer_is_an_error() -> None:
    """A cell in which one side answered no message has no ratio."""
    runs: dict[compare.Side, list[loadgen.Run]] = {"before": [run_of(1.0)], "after": [run_of(1.0, messages=0)]}
    with pytest.raises(errors.BenchmarkFailed, match="the broker after the change answered no message"):
        compare.compare_runs("send a, 128 B", runs)


def test_other_cells_are_kept_when_one_cannot_be_compared() -> None:
    """A run of half an hour is not lost because one broker refused one load; the text has the round and the refusal."""
    good: dict[compare.Side, list[loadgen.Run]] = {"before": [run_of(10.0)], "after": [run_of(10.0)]}
    refused = run_of(10.0, messages=0, first_refusal="14 the disk is full")
    bad: dict[compare.Side, list[loadgen.Run]] = {
        "before": [run_of(10.0), refused],
        "after": [run_of(10.0), run_of(10.0)],
    }

    cells, problems = compare.compare_all({"good": good, "bad": bad})

    assert [cell.name for cell in cells] == ["good"]
    assert problems == [
        "bad: in round 2 the broker before the change answered no message with code 0 (14 the disk is full)"
    ]


def test_unknown_commit_is_an_error(tmp_path: Path) -> None:
    """The message names the commit that git does not have."""
    with (
        pytest.raises(errors.BenchmarkFailed, match="cannot read the commit no-such-commit"),
        compare.extract_commit("no-such-commit", tmp_path),
    ):
        pass


def test_tree_without_packages_is_refused(tmp_path: Path) -> None:
    """A broker that would run this tree's code instead of the earlier one's is not started."""
    with pytest.raises(errors.BenchmarkFailed, match="imports gantry_broker from"):
        compare.prefix_for(tmp_path)


@pytest.mark.verify
@pytest.mark.needs_go
def test_cell_is_measured_with_two_brokers(tmp_path: Path) -> None:
    """Both sides run in every round: one cell with two real brokers of this tree."""
    prefix = compare.prefix_for(processes.ROOT)
    comparison = compare.Comparison(
        {"before": prefix, "after": prefix},
        tmp_path,
        cores=machine.Cores(server=None, load=None),
        rounds=2,
        timing=loadgen.Timing(warm_up_ms=10, duration_ms=50),
        report=lambda _: None,
    )
    with processes.start_name_server(tmp_path) as name_server:
        comparison._send_cell(measurement.MODES["a"], 128, name_server)
    (cell,), problems = compare.compare_all(comparison.runs)
    assert problems == []
    assert {side: len(runs) for side, runs in comparison.runs["send a, 128 B"].items()} == {"before": 2, "after": 2}
    assert cell.errors == 0
    assert cell.cpu_ratio > 0
