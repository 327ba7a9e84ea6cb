"""`make bench`: the tables from recorded figures, which are results as other benchmarks write them. No load is run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import goals
import msgspec
import pytest
from gantry_bench import (
    backlog,
    figures,
    goal_figures,
    goal_page,
    goal_table,
    ha_cells,
    ha_producer,
    ha_table,
    machine,
    measurement,
    recovery,
    speedups,
)
from gantry_bench.goal_figures import Measured, PartName
from gantry_bench.ha_cells import PLAIN, SETUPS, SYNC_BUFFERED, SYNC_PLAIN, Setup
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


def cost(*microseconds: float) -> measurement.Summary:
    """Return the figures of a server that used this much CPU time per message, in one or several runs."""
    return measurement.summarise([with_cpu(one) for one in microseconds])


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
    cells = ha_cells.summarise_cells([msgspec.convert(msgspec.to_builtins(one), ha_cells.HaRun) for one in runs])
    notes = [ha_table.table_figures(cells, ["The load of the table."])]
    outcomes: dict[str, Any] = {"table": {"runs": runs, "figures": notes, "relay": [], "errors": 0}}
    if threads is not None:
        produced = [
            ha_producer.ProducerRun(name, PLAIN, count, rate, 1.0, 0)  # type: ignore[arg-type]
            for count, both in threads.items()
            for name, rate in zip(("Gantry", "Apache"), both, strict=True)
        ]
        figures_of = ha_producer.producer_figures(produced, ["One run for each cell."])
        outcomes["producer"] = {"runs": produced, "figures": [figures_of]}
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
    table = recovery.recovery_figures(cells, ["One run each."])
    outcome = {"raw": cells, "goals": [], "figures": table, "other_cores": 0.0}
    return {"path": path, "outcomes": {"recovery": outcome}}


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
            "1 slower, 1 with a longer p99, of 7; 25 not compared",
            "2 slower, 2 with a longer p99, of 7; 25 not compared", "", "", "**not met**",
        ),
        "replication, cells slower than Apache; Apache's own producer: 0 of 32": (
            "1 slower, of 2; 30 not compared", "", "", "", "**not met**",
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
    reason = "The compiled path was not measured (no C compiler); goals are checked on the Python path."
    assert table.notes == [reason, "Other programs used up to 0.00 cores, in the part send."]


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


def test_page_has_the_conditions_of_every_table(tmp_path: Path) -> None:
    """The notes of the parts are kept, since a reader must know what was measured once and what is a median."""
    tables = goal_page.page_figures(read(tmp_path, RECORDED), {}, "2026-11-27T12:00:00Z")

    notes = {table.name: table.notes for table in tables}
    assert "One run of each." in notes["sends"]
    assert "One run of each." in notes["senders"]
    assert notes["backlog"] == ["One run of each."]
    assert notes["replication"][0] == "The load of the table."
    assert "those of the compiled path" in notes["replication"][-1]
    assert notes["producer"][0] == "One run for each cell."
    assert notes["recovery"] == ["compiled: One run each.", "Python: One run each."]


# -- what decides a goal -----------------------------------------------------------------------------------------------

ALL_CELLS = dict.fromkeys(goal_table.GOAL_CELLS, 1000.0)


def replication_row(tmp_path: Path, results: dict[str, Any], word: str) -> tuple[str, bool | None]:
    """Return the text and the verdict of the row of a goal on replication."""
    measured = read(tmp_path, {"ha": results})
    [row] = [row for row in goal_table.goal_rows(measured) if word in row.work]
    return row.paths["compiled"].text, row.is_met


def test_goal_on_all_cells_is_met_by_all_cells(tmp_path: Path) -> None:
    """It is met if all 32 are compared, and undecided if one of Apache's is missing."""
    some = {key: rate for key, rate in ALL_CELLS.items() if key != (PLAIN, 64)}

    whole = replication_row(tmp_path, ha_results(COMPILED, ours=ALL_CELLS, apache=ALL_CELLS), "load generator")
    partial = replication_row(tmp_path, ha_results(COMPILED, ours=ALL_CELLS, apache=some), "load generator")

    assert whole == ("0 slower, 0 with a longer p99, of 32", True)
    assert partial == ("0 slower, 0 with a longer p99, of 31; 1 not compared", None)


def test_goal_without_any_cell_of_apache_is_undecided(tmp_path: Path) -> None:
    """The Python path does not decide in place of a compiled path that could not be compared."""
    results = ha_results(COMPILED, ours=ALL_CELLS, apache={})

    assert replication_row(tmp_path, results, "load generator") == ("not compared", None)


def test_cell_without_messages_is_slower_and_later(tmp_path: Path) -> None:
    """Its p99 is 0, which would be the shortest of all."""
    results = ha_results(COMPILED, ours=ALL_CELLS, apache=ALL_CELLS)
    [run] = [
        run for run in results["outcomes"]["table"]["runs"]
        if (run["system"], run["setup"], run["level"]) == ("Gantry", PLAIN, 64)
    ]  # fmt: skip
    nothing = {"mean": 0.0, "p50": 0.0, "p99": 0.0, "p99_9": 0.0, "max": 0.0}
    run["run"] = Run(report=report(messages=0, messages_per_second=0.0, latency_us=nothing), other_cores=0.0)

    text, is_met = replication_row(tmp_path, results, "load generator")

    assert (text, is_met) == ("1 slower, 1 with a longer p99, of 32", False)
    summaries = ha_cells.summarise_cells([
        msgspec.convert(msgspec.to_builtins(one), ha_cells.HaRun) for one in results["outcomes"]["table"]["runs"]
    ])  # fmt: skip
    assert ha_table.slower_notes(summaries)[1].endswith("64 outstanding (no messages).")


def test_refusals_and_failed_runs_are_in_the_table_of_replication(tmp_path: Path) -> None:
    """A system that refuses sends has a lower rate for them."""
    results = ha_results(COMPILED, ours={(PLAIN, 64): 1000.0}, apache={(PLAIN, 64): 1000.0})
    _, theirs = results["outcomes"]["table"]["runs"]
    theirs["run"] = Run(report=report(messages_per_second=500.0, refused_by_code={"2": 1200}), other_cores=0.0)
    failed = {**theirs, "run": None, "problem": "no answer for 5 s"}
    results["outcomes"]["table"]["runs"].append(failed)

    [row] = goal_page.replication_table(read(tmp_path, {"ha": results})).rows

    assert row[-2:] == ["500", "1 / 2; 1,200 refused; no answer for 5 s"]


def producer_results(failed: set[tuple[str, Setup]]) -> dict[str, Any]:
    """Return the results of the producer in all cells; the runs of some systems and setups have failed."""
    results = ha_results(COMPILED, ours={}, apache={})
    runs = [
        ha_producer.ProducerRun(
            system, setup, threads, 0.0 if (system, setup) in failed else 100.0, 1.0, 0,
            problem="no rate" if (system, setup) in failed else "",
        )
        for setup, threads in goal_table.GOAL_CELLS
        for system in ("Gantry", "Apache")
    ]  # fmt: skip
    results["outcomes"]["producer"] = {"runs": runs, "figures": [ha_producer.producer_figures(runs, [])]}
    return results


@pytest.mark.parametrize(
    ("failed", "text", "is_met"),
    [
        (set(), "0 slower, of 32", True),
        ({("Apache", setup) for setup in SETUPS}, "not compared", None),
        ({("Apache", setup) for setup in SETUPS[1:]}, "0 slower, of 4; 28 not compared", None),
        ({("Apache", SETUPS[0]), ("Gantry", SETUPS[1])}, "4 slower, of 28; 4 not compared", False),
    ],
    ids=["none failed", "Apache's", "most of Apache's", "one of each"],
)
def test_failed_run_of_apaches_producer_decides_nothing(
    tmp_path: Path, failed: set[tuple[str, Setup]], text: str, is_met: bool | None
) -> None:
    """A failed run has the rate 0, which would be slower than any of Gantry's; Gantry's own is a missed cell."""
    results = producer_results(failed)

    assert replication_row(tmp_path, results, "own producer") == (text, is_met)
    if failed == {("Apache", setup) for setup in SETUPS}:
        runs = results["outcomes"]["producer"]["runs"]
        assert [goal.unit for goal in ha_producer.producer_goals(runs)] == ["answers"]


def one_send_row(tmp_path: Path, servers: dict[str, measurement.Summary]) -> goal_table.GoalRow:
    """Return the row that compares mode a with Apache's broker."""
    results = send_results({"compiled": (1.7, 8.0)})
    results["cells"][0]["servers"] = servers
    results["missing"] = {}
    return goal_table.goal_rows(read(tmp_path, {"send": results}))[1]


def test_server_that_refuses_sends_is_not_better_for_it(tmp_path: Path) -> None:
    """The cost of refusals is counted for the accepted messages, so a goal against that server is not met by it."""
    refusing = msgspec.structs.replace(cost(30.0), errors=20, messages=980)
    few = msgspec.structs.replace(refusing, errors=5, messages=995)

    row = one_send_row(tmp_path, {"compiled": cost(1.7), "apache": refusing})

    assert (row.apache, row.is_met) == ("30.00 us, 2.0% refused", None)
    assert one_send_row(tmp_path, {"compiled": cost(1.7), "apache": few}).is_met is True
    assert one_send_row(tmp_path, {"compiled": cost(20.0), "apache": refusing}).is_met is False


def test_spread_of_repetitions_is_shown(tmp_path: Path) -> None:
    """A reader sees whether the server was steady."""
    row = one_send_row(tmp_path, {"compiled": cost(1.6, 1.7, 1.9), "apache": cost(25.0, 30.0, 31.0)})

    assert row.apache == "30.00 us (25.00 to 31.00)"
    assert row.paths["compiled"].text == "1.70 us (1.60 to 1.90), 17.65 x"


def test_figure_without_cpu_time_decides_nothing(tmp_path: Path) -> None:
    """There is no ratio to nothing, and none of nothing."""
    row = one_send_row(tmp_path, {"compiled": cost(0.0), "apache": cost(30.0)})

    assert (row.paths["compiled"].text, row.is_met) == ("0.00 us", None)
    assert one_send_row(tmp_path, {"compiled": cost(1.7), "apache": cost(0.0)}).is_met is None


def test_recovery_is_a_median(tmp_path: Path) -> None:
    """Of the recoveries of the largest log; the table shows the least and the most."""
    results = recovery_results(COMPILED, 10.0)
    [cell] = goal_table.largest_recoveries(results["outcomes"]["recovery"]["raw"])
    for seconds in (20.0, 8.0):
        again = msgspec.structs.replace(cell, report=msgspec.structs.replace(cell.report, seconds=seconds))
        results["outcomes"]["recovery"]["raw"].append(again)

    [row] = [
        row for row in goal_table.goal_rows(read(tmp_path, {"recovery-compiled": results})) if "recovery" in row.work
    ]

    assert row.paths["compiled"].text == "1.00 GB/s (0.50 to 1.25; 10 GB)"


def test_second_part_on_a_path_is_a_problem(tmp_path: Path) -> None:
    """It would replace the first one, which has Apache's figures."""
    write(tmp_path, {"ha": ha_results(PYTHON, ours=OURS, apache=APACHE), "ha-python": RECORDED["ha-python"]})

    measured, problems = goal_figures.read_measured(tmp_path, ["ha", "ha-python"])

    assert problems == {"ha-python": "it ran on the python path, as ha did"}
    assert len(measured.apache_cells) == len(APACHE)


def test_busiest_part_is_a_note(tmp_path: Path) -> None:
    """Every figure comes with the work of other programs, of the part with most of it."""
    busy = send_results({"compiled": (1.7, 8.0)})
    busy["cells"][1]["other_cores"] = 0.7

    measured = read(tmp_path, {"send": busy, "backlog": RECORDED["backlog"]})

    table = goal_table.goal_figures([], measured, {})
    assert table.notes == ["Other programs used up to 0.70 cores, in the part send."]


def test_spread_of_pulls_is_shown(tmp_path: Path) -> None:
    """A reader sees whether Apache's broker was steady."""
    results = backlog_results(compiled=2100.0, apache=1000.0)
    results["report"]["runs"] += [*backlog_results(apache=900.0)["report"]["runs"],
                                  *backlog_results(apache=1300.0)["report"]["runs"]]  # fmt: skip

    measured = read(tmp_path, {"backlog": results})

    [row] = [row for row in goal_table.goal_rows(measured) if row.work.startswith("pull")]
    assert (row.apache, row.paths["compiled"].text) == ("1,000 (900 to 1,300)", "2,100, 2.10 x")
