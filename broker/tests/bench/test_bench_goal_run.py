"""`make bench`: the plan of its parts, their processes, what a failed part leaves, and what is published.

Parts are small programs in place of benchmarks, or recorded results.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import goals
import msgspec
import pytest
import send
from click.testing import CliRunner
from gantry_bench import errors, goal_parts, loadgen, machine, measurement, part_process, speedups
from test_bench_goals import ALL_PARTS, COMPILED, NONE, RECORDED, send_results

# -- the parts ---------------------------------------------------------------------------------------------------------


def test_nothing_is_run_twice_without_a_compiled_path() -> None:
    """Without it each part runs once, on the Python path; with it replication and recovery run on both."""
    one = {part.name: part.setting for part in goal_parts.plan_parts(is_quick=False, has_compiled=False, before=None)}
    both = {part.name: part.setting for part in goal_parts.plan_parts(is_quick=False, has_compiled=True, before="HEAD")}

    assert one == {"send": None, "ha": "off", "backlog": None, "recovery-python": "off"}
    assert set(both) == set(ALL_PARTS)
    assert (both["ha"], both["ha-python"], both["before"]) == ("auto", "off", "off")


@pytest.mark.parametrize(("is_quick", "minutes_max"), [(True, 8), (False, 58)], ids=["quick", "full"])
def test_estimates_are_within_the_limits(is_quick: bool, minutes_max: int) -> None:
    """All parts together take less than an hour, or eight minutes."""
    parts = goal_parts.plan_parts(is_quick=is_quick, has_compiled=True, before="HEAD")

    assert sum(part.minutes for part in parts) < minutes_max


def test_part_gets_its_code_path_and_its_file(tmp_path: Path) -> None:
    """The setting is in the environment of the program, which passes it on to its brokers."""
    parts = goal_parts.plan_parts(is_quick=True, has_compiled=True, before=None)
    [part] = [one for one in parts if one.name == "ha-python"]

    words = goal_parts.command_of(part, tmp_path)

    assert words[:3] == ["env", "GANTRY_SPEEDUPS=off", sys.executable]
    assert words[3].endswith("bench/ha.py")
    assert words[-2:] == ["--json", str(tmp_path / "ha-python.json")]


def test_space_is_checked_before_the_first_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that does not fit would fail only after the others. No part needs 30 GiB, and a quick one little."""
    free = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free._replace(free=15 << 30))

    goal_parts.check_space(goal_parts.plan_parts(is_quick=True, has_compiled=True, before="HEAD"), tmp_path)
    with pytest.raises(errors.BenchmarkFailed, match=r"15\.0 GiB are free on the disk of .* the part ha needs 16\.0"):
        goal_parts.check_space(goal_parts.plan_parts(is_quick=False, has_compiled=True, before="HEAD"), tmp_path)


@pytest.mark.parametrize(
    ("repetitions", "timing", "limit"),
    [(3, loadgen.Timing(500, 1500), goal_parts.SEND_BYTES), (1, loadgen.Timing(200, 500), goal_parts.SEND_QUICK_BYTES)],
    ids=["full", "quick"],
)
def test_sends_need_no_more_space_than_planned(repetitions: int, timing: loadgen.Timing, limit: int) -> None:
    """The program checks it again, by the length of its loads."""
    plan = send.Plan(
        parts=("servers",), modes=(measurement.MODES["a"],), bodies_bytes=(1024,), senders=(), repetitions=repetitions,
        timing=timing, has_apache=True,
    )  # fmt: skip

    assert plan.free_bytes_needed <= limit


def run_program(tmp_path: Path, text: str, seconds_max: float = 60.0) -> tuple[str, list[str], str]:
    """Run a program in place of a part; return the problem, the reported progress and the log."""
    progress: list[str] = []
    log = tmp_path / "part.log"
    problem = part_process.run_part([sys.executable, "-c", text], log, seconds_max=seconds_max, report=progress.append)
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


IGNORING = (
    "import signal, subprocess, sys, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    "other = subprocess.Popen(['sleep', '600'], start_new_session=True, stdout=subprocess.DEVNULL)\n"
    "print(f'  {other.pid} ...', flush=True)\ntime.sleep(600)"
)


def wait_until_gone(process_id: int) -> bool:
    """Return whether a process ends soon; an ended one that its new parent has not waited for counts as gone."""
    for _ in range(200):
        try:
            text = Path(f"/proc/{process_id}/stat").read_text()
        except FileNotFoundError:
            return True
        if text[text.rindex(")") + 2] == "Z":
            return True
        time.sleep(0.05)
    return False


def test_part_that_ignores_interrupts_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is killed together with what it has started, also in other sessions, and the next part can run."""
    monkeypatch.setattr(part_process, "STOP_SECONDS_MAX", 0.3)

    problem, [line], _ = run_program(tmp_path, IGNORING, seconds_max=3.0)

    assert problem.startswith("it was stopped after 0 minutes; it did not end at an interrupt and was killed")
    assert wait_until_gone(int(line.split()[0]))


def test_part_accepts_interrupts_in_the_background(tmp_path: Path) -> None:
    """A shell without job control has its background jobs ignore SIGINT, which processes inherit."""
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        text = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
        _, _, log = run_program(tmp_path, text)
    finally:
        signal.signal(signal.SIGINT, previous)

    assert log == "True\n"


def test_sigterm_stops_the_part(tmp_path: Path) -> None:
    """It acts as an interrupt: the part ends its servers, and the figures of the finished ones are shown."""
    stub = tmp_path / "stub.py"
    stub.write_text(
        "import pathlib, time\ntry:\n    print('  started ...', flush=True)\n    time.sleep(600)\n"
        f"finally:\n    pathlib.Path({str(tmp_path / 'ended')!r}).touch()"
    )
    program = (
        "import pathlib, sys, goals\n"
        f"goals.RESULTS = pathlib.Path({str(tmp_path / 'results')!r})\n"
        f"goals.command_of = lambda part, folder: [sys.executable, {str(stub)!r}]\n"
        "goals.main(['--only', 'backlog', '--quick'])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=Path(goals.__file__).parent,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            if "started" in line:
                break
        process.send_signal(signal.SIGTERM)
        output = process.stdout.read()

    assert process.returncode == 130
    assert "The part backlog has failed: interrupted." in output
    assert (tmp_path / "ended").exists()


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
        part_process.run_part(
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

    class Quiet(machine.OtherWork):
        def __exit__(self, *_: object) -> None:
            self.cores = float(os.environ.get("BUSY_CORES", "0"))

    page = tmp_path / "benchmarks.md"
    page.write_text(goals.PAGE.read_text())
    monkeypatch.setattr(goals, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(goals, "PAGE", page)
    monkeypatch.setattr(goals, "OtherWork", Quiet)
    monkeypatch.setattr(goals, "check_space", lambda parts, folder: None)
    monkeypatch.setattr(speedups, "probe", lambda setting: COMPILED)

    def run(
        *arguments: str, failing: tuple[str, ...] = (), interrupted_at: str = "", recorded: Any = RECORDED,
        broken: tuple[str, ...] = (), busy: float = 0.0,
    ) -> Any:  # fmt: skip
        monkeypatch.setenv("BUSY_CORES", str(busy))

        def run_part(command: list[str], log_path: Path, **_: object) -> str:
            path = Path(command[-1])
            name: Any = path.stem
            if name == interrupted_at:
                raise KeyboardInterrupt
            if name in failing:
                return "exit code 1: it broke"
            path.write_bytes(b"{" if name in broken else msgspec.json.encode(recorded[name]))
            return ""

        monkeypatch.setattr(goals, "run_part", run_part)
        return CliRunner().invoke(goals.main, list(arguments))

    return run


def show_again(folder: Path, *options: str) -> Any:
    """Show the results of a run again."""
    return CliRunner().invoke(goals.main, ["--from", str(folder), *options])


def test_complete_run_publishes_its_tables(bench: RunBench, tmp_path: Path) -> None:
    """The tables are in the page, and the goals that are missed do not fail the command unless that was requested."""
    result = bench()

    assert result.exit_code == 0, result.output
    assert "part 1 of 6: sends on every server" in result.output
    assert "| 1.70 us, 1.55 x | 7.00 us, 6.36 x | 30.00 us | 1.10 us | met |" in goals.PAGE.read_text()
    [folder] = (tmp_path / "results").iterdir()
    assert show_again(folder).exit_code == 0
    assert show_again(folder, "--assert-goals").exit_code == 1


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
    again = show_again(folder)
    assert again.exit_code == 1
    assert "1.70 us, 1.55 x" in again.output


def test_results_that_cannot_be_read_are_not_published(bench: RunBench) -> None:
    """They are a failed part, although its program has ended with 0, also if publishing is requested."""
    before = goals.PAGE.read_text()

    result = bench("--publish", broken=("backlog",))

    assert result.exit_code == 1
    assert "not published: a part has failed" in result.output
    assert "The part backlog has failed: its results cannot be read" in result.output
    assert goals.PAGE.read_text() == before


def test_part_on_the_wrong_path_is_not_published(bench: RunBench) -> None:
    """Replication on the Python path twice has no figures of the compiled one."""
    result = bench(recorded={**RECORDED, "ha": RECORDED["ha-python"]})

    assert result.exit_code == 1
    assert "The part ha-python has failed: it ran on the python path, as ha did." in result.output
    assert "not published: a part has failed" in result.output


def test_figures_of_a_busy_machine_are_published_only_on_request(bench: RunBench, tmp_path: Path) -> None:
    """The reason names the part; the page has it as a note."""
    before = goals.PAGE.read_text()

    refused = bench(busy=0.4)

    assert refused.exit_code == 0, refused.output
    assert "not published: other programs used up to 0.40 cores, in the part send" in refused.output
    assert goals.PAGE.read_text() == before
    [folder] = (tmp_path / "results").iterdir()
    assert show_again(folder, "--publish").exit_code == 0
    assert "Other programs used up to 0.40 cores, in the part send." in goals.PAGE.read_text()


def test_failed_runs_of_apache_are_published_only_on_request(bench: RunBench, tmp_path: Path) -> None:
    """A page with fewer of Apache's cells must not replace a complete one by itself."""
    recorded = msgspec.json.decode(msgspec.json.encode(RECORDED))
    recorded["ha"]["outcomes"]["producer"]["runs"][-1]["problem"] = "no rate"

    refused = bench(recorded=recorded)

    assert "not published: 1 cells of replication have failed runs" in refused.output
    [folder] = (tmp_path / "results").iterdir()
    assert "published in" in show_again(folder, "--publish").output


def test_figures_without_the_compiled_path_are_published_only_on_request(
    bench: RunBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would replace a page that has both paths."""
    monkeypatch.setattr(speedups, "probe", lambda setting: NONE)
    costs = {"c": (1.1, 5.0), "python": (7.0, 12.0), "apache": (30.0, 50.0)}
    recorded = {**RECORDED, "send": send_results(costs), "ha": {**RECORDED["ha"], "path": NONE}}
    before = goals.PAGE.read_text()

    refused = bench(recorded=recorded)

    assert "not published: the compiled path was not measured (no C compiler)" in refused.output
    assert goals.PAGE.read_text() == before
    [folder] = (tmp_path / "results").iterdir()
    assert show_again(folder, "--publish").exit_code == 0
    assert goals.PAGE.read_text() != before


def test_page_without_markers_is_a_message(bench: RunBench) -> None:
    """The figures are kept, and the reason is one line."""
    goals.PAGE.write_text("no markers")

    result = bench()

    assert result.exit_code == 1
    assert "Error: the figures are not published: the page has no markers for 'measured on'" in result.output


def test_cell_without_cpu_time_does_not_end_the_run(bench: RunBench) -> None:
    """The table has the other figures."""
    costs = {"c": (0.0, 5.0), "python": (7.0, 12.0), "compiled": (1.7, 8.0), "apache": (30.0, 50.0)}

    result = bench(recorded={**RECORDED, "send": send_results(costs)})

    assert result.exit_code == 0, result.output
    assert "17.65 x" in result.output


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
