"""`make bench`: the table of goals from recorded figures, the plan of its parts, and what a failed part leaves.

The figures are results as other benchmarks write them, so no load is run; parts are small programs in place of
benchmarks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import goals
import msgspec
import pytest
from click.testing import CliRunner
from gantry_bench import (
    backlog,
    figures,
    goal_figures,
    goal_page,
    goal_table,
    ha_producer,
    machine,
    measurement,
    recovery,
    speedups,
)
from gantry_bench.goal_figures import Measured, PartName
from gantry_bench.ha_cells import PLAIN, SYNC_BUFFERED, SYNC_PLAIN, Setup
from gantry_bench.loadgen import Run
from test_bench_measurement import report, with_cpu

ALL_PARTS: tuple[PartName, ...] = (
    "send", "ha", "ha-python", "backlog", "recovery-python", "recovery-compiled", "before",
)  # fmt: skip
LOADS: tuple[measurement.ModeName, ...] = ("a", "b")
MACHINE = machine.Machine("A processor", 2, 1 << 30, "6.18.5", "3.11.7", "0.23.0")
COMPILED = speedups.CodePath("auto", True, "")
PYTHON = speedups.CodePath("off", False, "GANTRY_SPEEDUPS=off")
NONE = speedups.CodePath("auto", False, "no C compiler")


def cost(microseconds: float) -> measurement.Summary:
    """Return the figures of a server that uses this much CPU time per message."""
    return measurement.summarise([with_cpu(microseconds)])


def send_results(costs: Mapping[str, tuple[float, float]], *, worst_sender: float = 1.2) -> dict[str, Any]:
    """Return the results of `bench-send` with the CPU times of each server in the modes a and b."""
    cells = [
        {
            "mode": measurement.MODES[mode], "body_bytes": 1024, "other_cores": 0.0,
            "servers": {name: cost(both[number]) for name, both in costs.items()},
        }
        for number, mode in enumerate(LOADS)
    ]  # fmt: skip
    paths = [name for name in ("python", "compiled") if name in costs]
    sender_cells = [
        {
            "sender": measurement.SENDERS[name], "mode": measurement.MODES["a"], "body_bytes": 1024, "other_cores": 0.0,
            "servers": {path: {"usual": cost(2.0), "sender": cost(2.0 * times)} for path in paths},
        }
        for name, times in (("go", 1.1), ("keys", worst_sender))
    ]  # fmt: skip
    known = [PYTHON, COMPILED if "compiled" in costs else NONE]
    missing = {name: "not installed" for name in ("apache", "c") if name not in costs}
    return {"machine": MACHINE, "paths": known, "missing": missing, "cells": cells, "sender_cells": sender_cells}


def ha_results(
    path: speedups.CodePath,
    *,
    ours: Mapping[tuple[Setup, int], float],
    apache: Mapping[tuple[Setup, int], float],
    threads: Mapping[int, tuple[float, float]] | None = None,
) -> dict[str, Any]:
    """Return the results of `bench-ha` with these rates; a p50 is the reverse of the rate, and a p99 twice that."""
    runs = []
    for system, rates in (("Gantry", ours), ("Apache", apache)):
        for (setup, level), rate in rates.items():
            times = {"mean": 1.0, "p50": 1e6 / rate, "p99": 2e6 / rate, "p99_9": 3e6 / rate, "max": 4e6 / rate}
            one = report(messages_per_second=rate, latency_us=times)
            runs.append({"system": system, "setup": setup, "level": level, "run": Run(report=one, other_cores=0.0)})
    outcomes: dict[str, Any] = {"table": {"runs": runs, "relay": [], "errors": 0}}
    if threads is not None:
        outcomes["producer"] = {
            "runs": [
                ha_producer.ProducerRun(name, PLAIN, count, rate, 1.0, 0)  # type: ignore[arg-type]
                for count, both in threads.items()
                for name, rate in zip(("Gantry", "Apache"), both, strict=True)
            ]
        }
    return {"path": path, "without_apache": "", "outcomes": outcomes}


def recovery_results(path: speedups.CodePath, seconds: float, log_bytes: int = 10_000_000_000) -> dict[str, Any]:
    """Return the results of the part `recovery` of `bench-store`, in which the whole log took so many seconds."""
    cells = [
        recovery.RecoveryCell(
            log_bytes=size, way=way, peak=recovery.Peak(1, 1),
            report=recovery.RecoverReport(False, 0, size, 1000, seconds * size / log_bytes, 1.0),
        )
        for size in (1_000_000, log_bytes)
        for way in recovery.WAYS
    ]  # fmt: skip
    return {"path": path, "outcomes": {"recovery": {"raw": cells, "goals": []}}}


def backlog_results(**megabytes: float) -> dict[str, Any]:
    """Return the results of `bench-backlog` with these MB for a CPU second."""
    runs = [
        backlog.PullRun(name, 1000, 32_000, int(size * 1e6), 2.0, 1.0)  # type: ignore[arg-type]
        for name, size in megabytes.items()
    ]
    return {"report": {"runs": runs, "missing": {}, "other_cores": 0.0}}


OURS = {
    (PLAIN, 1): 5000.0, (PLAIN, 64): 40_000.0, (PLAIN, 256): 50_000.0, (SYNC_PLAIN, 1): 2000.0,
    (SYNC_BUFFERED, 1): 1600.0, (SYNC_BUFFERED, 64): 34_000.0, (SYNC_BUFFERED, 256): 35_000.0,
}  # fmt: skip
APACHE = {
    (PLAIN, 1): 6000.0, (PLAIN, 64): 20_000.0, (PLAIN, 256): 25_000.0, (SYNC_PLAIN, 1): 1500.0,
    (SYNC_BUFFERED, 1): 10.0, (SYNC_BUFFERED, 64): 12_000.0, (SYNC_BUFFERED, 256): 15_000.0,
}  # fmt: skip
RECORDED: dict[PartName, dict[str, Any]] = {
    "send": send_results(
        {"echo": (0.5, 4.5), "c": (1.1, 5.0), "python": (7.0, 12.0), "compiled": (1.7, 8.0), "apache": (30.0, 50.0)}
    ),
    "ha": ha_results(COMPILED, ours=OURS, apache=APACHE, threads={1: (850.0, 747.0), 16: (4950.0, 6157.0)}),
    "ha-python": ha_results(PYTHON, ours={key: rate / 2 for key, rate in OURS.items()}, apache={}),
    "backlog": backlog_results(python=900.0, compiled=2100.0, apache=1000.0),
    "recovery-python": recovery_results(PYTHON, 59.0),
    "recovery-compiled": recovery_results(COMPILED, 10.0),
    "before": {
        "before": "HEAD~3", "cells": [{"name": "send a, 128 B", "cpu_ratio": 1.02, "rate_ratio": 0.99, "errors": 0}]
    },
}  # fmt: skip


def write(folder: Path, results: Mapping[PartName, object]) -> None:
    """Write the results of parts to the folder of a run."""
    for part, document in results.items():
        goal_figures.part_path(folder, part).write_bytes(msgspec.json.encode(document))


def read(folder: Path, results: Mapping[PartName, object]) -> Measured:
    """Write results, and read all of them again."""
    write(folder, results)
    measured, problems = goal_figures.read_measured(folder, list(results))
    assert problems == {}
    return measured


def table_of(measured: Measured) -> dict[str, tuple[str, ...]]:
    """Return the columns after the goal of each row, by work and goal."""
    table = goal_table.goal_figures(goal_table.goal_rows(measured), measured, {})
    return {f"{row[0]}: {row[1]}": tuple(row[2:]) for row in table.rows}


# -- the table ---------------------------------------------------------------------------------------------------------


def test_every_goal_has_both_paths_apache_and_the_c_server(tmp_path: Path) -> None:
    """The figures of all parts are in their columns, and goals are checked on the compiled path."""
    rows = table_of(read(tmp_path, RECORDED))

    one = "broker CPU per send, one connection, 64 outstanding in one write"
    many = "broker CPU per send, 64 connections with one each"
    costs = ("30.00 us", "1.10 us")
    assert rows == {
        f"{one}: at most 1.6 x the C server": ("1.70 us, 1.55 x", "7.00 us, 6.36 x", *costs, "met"),
        f"{one}: at least 4 x less than Apache": ("1.70 us, 17.65 x", "7.00 us, 4.29 x", *costs, "met"),
        f"{many}: at most 1.5 x the C server": (
            "8.00 us, 1.60 x", "12.00 us, 2.40 x", "50.00 us", "5.00 us", "**not met**",
        ),
        f"{many}: at least 3 x less than Apache": ("8.00 us, 6.25 x", "12.00 us, 4.17 x", "50.00 us", "5.00 us", "met"),
        "replication, cells slower than Apache, or with a longer p99; load generator: 0 of 32": (
            "1 slower, 1 with a longer p99, of 7", "2 slower, 2 with a longer p99, of 7", "", "", "**not met**",
        ),
        "replication, cells slower than Apache; Apache's own producer: 0 of 32": (
            "1 slower, of 2", "", "", "", "**not met**",
        ),
        "sync replication with a buffer at 64 and 256, of async without a buffer: at least 0.8": (
            "0.85 at 64, 0.70 at 256", "0.85 at 64, 0.70 at 256", "0.60 at 64, 0.60 at 256", "", "**not met**",
        ),
        "sync replication, one outstanding send, p50: at most Apache's with its pool off": (
            "625 us with the buffer on, 500 us with the buffer off",
            "1,250 us with the buffer on, 1,000 us with the buffer off", "667 us", "", "met",
        ),
        "pull of a backlog, one consumer, MB for a broker CPU second: at least 2 x Apache": (
            "2,100, 2.10 x", "900, 0.90 x", "1,000", "", "met",
        ),
        "recovery without a recovery point, 10 GB: at least 0.85 GB/s": (
            "1.00 GB/s (10 GB)", "0.17 GB/s (10 GB)", "", "", "met",
        ),
        "broker CPU per send, costliest of the other senders: at most 1.5 x Java's usual send": (
            "1.20 x (keys)", "1.20 x (keys)", "", "", "met",
        ),
        "pure Python path, CPU per send, worst cell, compared with HEAD~3: at most 1.05 x before": (
            "", "1.020 x (send a, 128 B)", "", "", "met",
        ),
    }  # fmt: skip


def test_figures_are_attributed_to_the_path_that_was_reported(tmp_path: Path) -> None:
    """Where the compiled path is not available, nothing is in its column, and the note has the reason."""
    costs = {"c": (1.1, 5.0), "python": (7.0, 12.0), "apache": (30.0, 50.0)}
    measured = read(
        tmp_path,
        {"send": send_results(costs), "ha": ha_results(NONE, ours=OURS, apache=APACHE)},
    )

    table = goal_table.goal_figures(goal_table.goal_rows(measured), measured, {})

    assert {row[2] for row in table.rows} == {""}
    assert table.rows[0][3:] == ["7.00 us, 6.36 x", "30.00 us", "1.10 us", "**not met**"]
    assert table.notes == ["The compiled path was not measured (no C compiler); goals are checked on the Python path."]


def test_goal_without_figures_is_neither_met_nor_missed(tmp_path: Path) -> None:
    """A missing peer leaves the own figure, and a missing part leaves an empty row."""
    measured = read(tmp_path, {"send": send_results({"python": (7.0, 12.0), "compiled": (1.7, 8.0)})})

    rows = goal_table.goal_rows(measured)

    assert rows[0].paths["compiled"] == goal_table.Judged("1.70 us", None)
    assert {row.verdict for row in rows} == {"not measured", "met"}
    assert [row.work for row in rows if row.is_met] == ["broker CPU per send, costliest of the other senders"]


def test_sender_that_costs_too_much_is_named(tmp_path: Path) -> None:
    """The goal is on the costliest sender of the path."""
    measured = read(tmp_path, {"send": send_results({"compiled": (1.7, 8.0)}, worst_sender=3.3)})

    [row] = [row for row in goal_table.goal_rows(measured) if "senders" in row.work]

    assert (row.paths["compiled"].text, row.verdict) == ("3.30 x (keys)", "**not met**")


def test_part_that_cannot_be_read_leaves_the_others(tmp_path: Path) -> None:
    """The reasons are notes of the table."""
    write(tmp_path, RECORDED)
    goal_figures.part_path(tmp_path, "ha").write_text('{"path":')
    goal_figures.part_path(tmp_path, "backlog").unlink()

    measured, problems = goal_figures.read_measured(tmp_path, ALL_PARTS)
    table = goal_table.goal_figures(goal_table.goal_rows(measured), measured, problems)

    assert problems["backlog"] == "it wrote no results"
    assert problems["ha"].startswith("its results cannot be read: ")
    assert table.notes[-1] == "The part backlog has failed: it wrote no results."
    assert table.rows[0][-1] == "met"


def test_page_has_a_place_for_every_table(tmp_path: Path) -> None:
    """The section of the docs has the markers of each table, and the tables have rows."""
    measured = read(tmp_path, RECORDED)
    tables = goal_page.page_figures(measured, {}, "2026-11-27T12:00:00Z")

    page = figures.publish(goals.PAGE.read_text(), tables, benchmark=goals.BENCHMARK)

    assert [table.name for table in tables] == [
        "measured on", "goals", "sends", "senders", "replication", "producer", "backlog", "recovery",
    ]  # fmt: skip
    assert all(table.rows for table in tables)
    assert "| Gantry, compiled | 1,000 |" in page
    replicated = goal_page.replication_table(measured)
    assert replicated.headings[4:] == [
        "Gantry, compiled, msgs/s", "p50 / p99 us", "Gantry, Python, msgs/s", "p50 / p99 us", "Apache, msgs/s",
        "p50 / p99 us",
    ]  # fmt: skip
    assert replicated.rows[0] == ["async", "async", "off", "1", "5,000", "200 / 400", "2,500", "400 / 800", "6,000",
                                  "167 / 333"]  # fmt: skip


# -- the parts ---------------------------------------------------------------------------------------------------------


def test_nothing_is_run_twice_without_a_compiled_path() -> None:
    """Without it each part runs once, on the Python path; with it replication and recovery run on both."""
    one = {part.name: part.setting for part in goals.plan_parts(is_quick=False, has_compiled=False, before=None)}
    both = {part.name: part.setting for part in goals.plan_parts(is_quick=False, has_compiled=True, before="HEAD")}

    assert one == {"send": None, "ha": "off", "backlog": None, "recovery-python": "off"}
    assert set(both) == set(ALL_PARTS)
    assert (both["ha"], both["ha-python"], both["before"]) == ("auto", "off", "off")


@pytest.mark.parametrize(("is_quick", "minutes_max"), [(True, 8), (False, 60)], ids=["quick", "full"])
def test_estimates_are_within_the_limits(is_quick: bool, minutes_max: int) -> None:
    """All parts together take less than an hour, or eight minutes."""
    parts = goals.plan_parts(is_quick=is_quick, has_compiled=True, before="HEAD")

    assert sum(part.minutes for part in parts) < minutes_max


def test_part_gets_its_code_path_and_its_file(tmp_path: Path) -> None:
    """The setting is in the environment of the program, which passes it on to its brokers."""
    [part] = [one for one in goals.plan_parts(is_quick=True, has_compiled=True, before=None) if one.name == "ha-python"]

    words = goals.command_of(part, tmp_path)

    assert words[:3] == ["env", "GANTRY_SPEEDUPS=off", sys.executable]
    assert words[3].endswith("bench/ha.py")
    assert words[-2:] == ["--json", str(tmp_path / "ha-python.json")]


def run_program(tmp_path: Path, text: str, seconds_max: float = 60.0) -> tuple[str, list[str], str]:
    """Run a program in place of a part; return the problem, the reported progress and the log."""
    progress: list[str] = []
    log = tmp_path / "part.log"
    problem = goals.run_part([sys.executable, "-c", text], log, seconds_max=seconds_max, report=progress.append)
    return problem, progress, log.read_text()


def test_progress_of_a_part_is_passed_on(tmp_path: Path) -> None:
    """Only lines of progress are printed; the log has everything."""
    problem, progress, log = run_program(tmp_path, "print('  first step ...'); print('a table')")

    assert (problem, progress) == ("", ["  first step ..."])
    assert log == "  first step ...\na table\n"


def test_failed_part_is_reported_with_its_last_line(tmp_path: Path) -> None:
    """The last line of click's errors is the reason."""
    problem, _, _ = run_program(tmp_path, "import sys; print('a table'); sys.exit('Error: Go is missing')")

    assert problem == "exit code 1: Go is missing"


def test_part_that_hangs_is_stopped(tmp_path: Path) -> None:
    """A part that exceeds its time is a failed part, and not the end of the run."""
    problem, _, _ = run_program(tmp_path, "import time; time.sleep(600)", seconds_max=0.2)

    assert problem == "it was stopped after 0 minutes"


def test_interrupted_part_ends_its_servers(tmp_path: Path) -> None:
    """A part gets the interrupt, too, and this program waits for its end."""
    text = (
        "import signal, time\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "try:\n    print('  started ...', flush=True)\n    time.sleep(600)\n"
        "finally:\n    open('ended', 'w').close()"
    )

    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        goals.run_part(
            [sys.executable, "-c", f"import os\nos.chdir({str(tmp_path)!r})\n{text}"],
            tmp_path / "part.log",
            seconds_max=60.0,
            report=interrupt,
        )

    assert (tmp_path / "ended").exists()


RunBench = Callable[..., Any]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunBench:
    """The command with recorded results in place of measurements; parts in ``failing`` exit with 1 without results."""
    page = tmp_path / "benchmarks.md"
    page.write_text(goals.PAGE.read_text())
    monkeypatch.setattr(goals, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(goals, "PAGE", page)
    monkeypatch.setattr(speedups, "probe", lambda setting: COMPILED)

    def run(*arguments: str, failing: tuple[str, ...] = (), interrupted_at: str = "") -> Any:
        def run_part(command: list[str], log_path: Path, **_: object) -> str:
            path = Path(command[-1])
            name: Any = path.stem
            if name == interrupted_at:
                raise KeyboardInterrupt
            if name in failing:
                return "exit code 1: it broke"
            path.write_bytes(msgspec.json.encode(RECORDED[name]))
            return ""

        monkeypatch.setattr(goals, "run_part", run_part)
        return CliRunner().invoke(goals.main, list(arguments))

    return run


def test_complete_run_publishes_its_tables(bench: RunBench, tmp_path: Path) -> None:
    """The tables are in the page, and the goals that are missed do not fail the command unless that was requested."""
    result = bench()

    assert result.exit_code == 0, result.output
    assert "part 1 of 6: sends on every server" in result.output
    assert "| 1.70 us, 1.55 x | 7.00 us, 6.36 x | 30.00 us | 1.10 us | met |" in goals.PAGE.read_text()
    assert bench("--assert-goals").exit_code == 1


@pytest.mark.parametrize("arguments", [("--quick",), ("--no-publish",), ("--only", "send")], ids=" ".join)
def test_incomplete_run_is_not_published(bench: RunBench, arguments: tuple[str, ...]) -> None:
    """A quick run, or one of some parts, prints its table and leaves the page alone."""
    before = goals.PAGE.read_text()

    result = bench(*arguments)

    assert result.exit_code == 0, result.output
    assert "broker CPU per send" in result.output
    assert goals.PAGE.read_text() == before


def test_failed_part_keeps_the_others_and_fails_the_command(bench: RunBench, tmp_path: Path) -> None:
    """The exit code is 1, the table has the other figures, and it can be shown again."""
    result = bench(failing=("ha",))

    assert result.exit_code == 1
    assert "failed: exit code 1: it broke" in result.output
    assert "not published: a part has failed" in result.output
    assert "1.70 us, 1.55 x" in result.output
    [folder] = (tmp_path / "results").iterdir()
    assert json.loads((folder / "run.json").read_text())["problems"] == {"ha": "exit code 1: it broke"}
    again = CliRunner().invoke(goals.main, ["--from", str(folder)])
    assert again.exit_code == 1
    assert "1.70 us, 1.55 x" in again.output


def test_interrupt_keeps_the_finished_parts(bench: RunBench) -> None:
    """The table of the finished parts is printed, and the exit code is that of an interrupt."""
    result = bench(interrupted_at="ha")

    assert result.exit_code == 130
    assert "1.70 us, 1.55 x" in result.output
    assert "The part backlog has failed: interrupted." in result.output


@pytest.mark.parametrize(
    ("arguments", "text"),
    [(("--only", "before"), "needs --before REV"), (("--from", "/"), "not a folder of results")],
    ids=["no commit", "another folder"],
)
def test_impossible_request_is_refused(bench: RunBench, arguments: tuple[str, ...], text: str) -> None:
    """The message names what is missing."""
    result = bench(*arguments)

    assert result.exit_code == 1
    assert text in result.output


def test_help_teaches_the_command() -> None:
    """It has examples, the requirements, the place of the results and the exit codes."""
    text = CliRunner().invoke(goals.main, ["--help"]).output

    for word in ("make bench BENCH='--quick'", "C compiler", "bench/results/bench-TIME/", "Exit code"):
        assert word in text
