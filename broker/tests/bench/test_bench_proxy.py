"""The proxy benchmark, small: it runs, writes its results, and its figures and goals are correct.

The tests do not check durations, which are meaningful only on a quiet machine.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import proxy
import pytest
from click.testing import CliRunner
from gantry_bench import proxy_run, reported_run
from gantry_bench.proxy_figures import idle_figures, load_figures, proxy_errors, proxy_goals
from gantry_bench.proxy_load import Latency, Mode, ProxyLoad, ProxyReport, arguments
from gantry_bench.proxy_run import IdleCell, ProxyBenchReport, summarize
from gantry_bench.proxy_stacks import ProxyStack

SCALE = msgspec.structs.replace(proxy_run.FULL, outstanding=(1,))


@pytest.mark.verify
def test_benchmark_of_the_proxy_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sends and receives are answered without an error, idle clients connect, and the results are written."""
    monkeypatch.setattr(reported_run, "RESULTS", tmp_path / "results")

    result = CliRunner().invoke(proxy.main, ["--quick", "--without-apache", "--idle", "20"])

    assert result.exit_code == 0, result.output
    [path] = (tmp_path / "results").iterdir()
    report = json.loads(path.read_text())["report"]
    assert [cell["mode"] for cell in report["cells"]] == ["send", "send", "receive", "receive"]
    assert all(cell["errors"] == 0 and cell["per_second"] > 0 for cell in report["cells"])
    assert report["idle"][0]["clients"] == 20


def report_of(mode: Mode, messages: int, *, errors: int = 0, proxy_s: float = 1.0) -> ProxyReport:
    return ProxyReport(
        mode=mode.value, connections=1, outstanding=1, body_bytes=1024, messages=messages, seconds=2.0,
        messages_per_second=messages / 2, latency_us=Latency(1, 2, 3, 4, 5), receives=0, empty_receives=0,
        errors=errors, refused_by_code={}, first_refusal="code 7: no", own_cpu_seconds=0.5,
        cpu_seconds=[proxy_s / 2, proxy_s / 2, 0.25], resident_bytes_before=[0, 0, 0], resident_bytes=[0, 0, 0],
    )  # fmt: skip


def bench_report(ours_s: float, ours: int) -> ProxyBenchReport:
    cells = [
        summarize(name, [report_of(mode, messages, proxy_s=proxy_s)])
        for mode in (Mode.SEND, Mode.RECEIVE)
        for name, messages, proxy_s in (("Gantry", ours, ours_s), ("Apache", 1_000, 1.0))
    ]
    idle = [IdleCell(stack="Gantry", clients=10, bytes_per_client=20_480, cpu_share=0.012, errors=2)]
    return ProxyBenchReport(cells=cells, idle=idle, without_apache="", without_idle="", other_cores=0.5)


def test_cell_has_medians_and_costs_of_a_message() -> None:
    """CPU time is that of each process, divided by its messages."""
    reports = [
        report_of(Mode.SEND, count, errors=1, proxy_s=seconds) for count, seconds in ((10, 1), (1_000, 2), (40, 3))
    ]
    cell = summarize("Gantry", reports)

    assert (cell.per_second, cell.errors) == (20, 3)
    assert (cell.proxy_us, cell.broker_us) == (75_000, 6_250)


def test_load_without_a_message_has_no_figures_and_no_goal() -> None:
    """The table names the reason; a proxy of ours that does not serve a load fails the run, Apache's does not."""
    good, failed = report_of(Mode.SEND, 10), report_of(Mode.SEND, 0)
    report = bench_report(1.0, 1_000)
    for ours, theirs, errors in ((good, failed, 2), (failed, good, 3)):
        cells = [summarize("Gantry", [ours]), summarize("Apache", [theirs])]
        one = msgspec.structs.replace(report, cells=cells)

        assert [row[3] for row in load_figures(one, SCALE).rows].count("failed") == 1
        assert any("code 7: no" in note for note in load_figures(one, SCALE).notes)
        assert (proxy_goals(one, SCALE), proxy_errors(one)) == ([], errors)


@pytest.mark.parametrize(("seconds", "messages", "met"), [(1.0, 1_000, True), (2.2, 2_000, False), (0.8, 900, False)])
def test_goals_compare_with_the_proxy_of_apache(seconds: float, messages: int, met: bool) -> None:
    """At least its rate, and at most its CPU time for each message."""
    goals = proxy_goals(bench_report(seconds, messages), SCALE)

    assert len(goals) == 4
    assert all(goal.is_met for goal in goals) is met


def test_without_apache_there_are_no_goals() -> None:
    """A figure without a comparison is neither met nor missed."""
    report = bench_report(1.0, 1_000)
    ours = [cell for cell in report.cells if cell.stack == "Gantry"]
    alone = msgspec.structs.replace(report, cells=ours, without_apache="no Java")

    assert proxy_goals(alone, SCALE) == []
    assert "no Java" in load_figures(alone, SCALE).notes[-1]
    assert proxy_errors(alone) == 2


def test_tables_have_a_row_for_each_load_and_proxy() -> None:
    """The name of a row is that of the proxy and of the broker behind it."""
    report = bench_report(1.0, 1_000)
    table = load_figures(report, SCALE)

    assert [row[:3] for row in table.rows] == [
        ["send", "1", "Gantry / Gantry"], ["send", "1", "Apache / Apache"],
        ["receive", "1", "Gantry / Gantry"], ["receive", "1", "Apache / Apache"],
    ]  # fmt: skip
    assert idle_figures(report, SCALE).rows == [["Gantry", "10", "20.0", "1.2"]]


def test_command_of_the_generator() -> None:
    """Sixteen outstanding calls share a client; all processes are measured."""
    stack = ProxyStack("Gantry", "127.0.0.1:1", (11, 12), 13, "broker-a")
    command = arguments(ProxyLoad(mode=Mode.RECEIVE, outstanding=64, warm_up_ms=5, duration_ms=7), stack)

    assert {"-mode=receive", "-connections=4", "-outstanding=64", "-pids=11,12,13", "-duration=7ms"} <= {*command}


def test_full_run_has_the_loads_of_its_goals() -> None:
    """1, 64 and 256 outstanding, and ten thousand idle clients."""
    assert (proxy_run.FULL.outstanding, proxy_run.FULL.idle_clients) == ((1, 64, 256), 10_000)
