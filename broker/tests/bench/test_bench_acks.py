"""The benchmark of acknowledgements, small: it runs on real pairs, and its goal compares disk and memory.

The tests do not check durations, which are meaningful only on a quiet machine.
"""

from __future__ import annotations

import json
from pathlib import Path

import acks
import msgspec
import pytest
from click.testing import CliRunner
from gantry_bench import ack_run, reported_run
from gantry_bench.ack_run import FULL, QUICK, SLAVE, SLAVE_DISK, WAITS, AckRun, ack_figures, ack_goals, count_errors
from gantry_bench.measurement import Report
from test_bench_ha import load_run


def report(rate: float, *, refused: dict[str, int] | None = None) -> Report:
    """Return the report of a load with this rate."""
    return load_run(rate, refused=refused).report


@pytest.mark.verify
def test_benchmark_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind of acknowledgement is measured at each level, on a slow disk, without a refused send."""
    monkeypatch.setattr(reported_run, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(ack_run, "WAITS", (SLAVE, SLAVE_DISK))
    monkeypatch.setattr(acks, "QUICK", msgspec.structs.replace(QUICK, sync_delays_ms=(2,)))

    result = CliRunner().invoke(acks.main, ["--quick"])

    assert result.exit_code == 0, result.output
    [path] = (tmp_path / "results").glob("acks-*.json")
    runs = json.loads(path.read_text())["report"]
    measured = {(run["wait"], run["sync_delay_ms"], run["level"]) for run in runs}
    assert measured == {(wait.name, 2, level) for wait in (SLAVE, SLAVE_DISK) for level in (1, 64)}
    assert all(run["report"]["messages"] > 0 for run in runs)


def test_goal_compares_a_slaves_disk_with_its_memory() -> None:
    """The goal is met from four fifths of the rate on, on the machine's own disk."""
    for flushed, is_met in ((79_999.0, False), (80_000.0, True)):
        runs = [
            AckRun(SLAVE.name, 0, 256, report(100_000.0)),
            AckRun(SLAVE_DISK.name, 0, 256, report(flushed)),
            AckRun(SLAVE_DISK.name, 2, 256, report(1.0)),
        ]

        [goal] = ack_goals(runs, FULL)

        assert goal.is_met is is_met


def test_table_has_a_row_for_each_kind_and_a_column_for_each_level() -> None:
    """Each disk has a table; a cell shows the median rate and latencies of its repetitions."""
    runs = [
        AckRun(wait.name, delay, level, report(rate))
        for wait in WAITS for delay in FULL.sync_delays_ms for level in FULL.levels for rate in (900.0, 1000.0, 9000.0)
    ]  # fmt: skip

    own, slow = ack_figures(runs, FULL)

    assert (own.name, slow.name) == ("acknowledgements, the machine's disk", "acknowledgements, syncs 2 ms slower")
    assert [row[0] for row in own.rows] == [wait.name for wait in WAITS]
    assert all(len(row) == len(own.headings) == 3 + len(FULL.levels) for row in own.rows)
    assert own.rows[0][3] == "1,000, 10 / 20"


def test_refused_sends_count_as_errors() -> None:
    """A send that a broker refused fails the benchmark."""
    assert count_errors([AckRun(SLAVE.name, 0, 1, report(10.0, refused={"12": 2}))]) == 2
