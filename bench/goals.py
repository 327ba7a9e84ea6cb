"""`make bench`: one table of all performance goals, with both code paths beside Apache and the C server.

The figures are those of other benchmarks, which this program runs one after another, each with a results file of its
own. A part that fails leaves the figures of the others. The exit code is 1 when a part has failed, or when a goal was
missed and `--assert-goals` was given.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Timer
from typing import Final, get_args

import click
import msgspec
from gantry_bench import speedups
from gantry_bench.errors import BenchmarkFailed
from gantry_bench.figures import print_figures, publish
from gantry_bench.goal_figures import Measured, PartName, part_path, read_measured
from gantry_bench.goal_page import page_figures
from gantry_bench.goal_table import GoalRow, goal_rows
from gantry_bench.processes import ROOT
from gantry_bench.results import shown_path
from gantry_bench.speedups import Setting
from rich.console import Console

RESULTS: Final = ROOT / "bench" / "results"
PAGE: Final = ROOT / "docs" / "benchmarks.md"
BENCHMARK: Final = "bench"
STOP_SECONDS_MAX: Final = 90.0
"""The time that an interrupted part has to end its servers before it is killed."""
TIMEOUT_FACTOR: Final = 3
"""A part may take so many times the estimate, and is then stopped."""
TIMEOUT_MINUTES_MIN: Final = 15
"""The limit of short parts, since the first run also builds Apache's programs."""
EXIT_INTERRUPTED: Final = 130
SETTINGS_FILE: Final = "run.json"


class Part(msgspec.Struct, frozen=True):
    """One run of another benchmark."""

    name: PartName
    text: str
    arguments: tuple[str, ...]
    """The program in `bench/` and its arguments."""
    minutes: float
    """The estimated duration."""
    setting: Setting | None = None
    """The code path of its brokers; None for a program that measures both by itself."""


class RunSettings(msgspec.Struct, frozen=True):
    """What was run, as written to the folder of the results."""

    started_at: str
    is_quick: bool
    parts: list[PartName]
    problems: dict[PartName, str] = {}


def plan_parts(*, is_quick: bool, has_compiled: bool, before: str | None) -> list[Part]:
    """Return the parts in the order of running. Without a compiled path nothing is run twice."""
    quick = ("--quick",) if is_quick else ()
    loads = ("--repetitions", "1", "--warm-up-ms", "200", "--duration-ms", "500") if is_quick else ()
    size = quick or ("--short",)
    own: Setting = "auto" if has_compiled else "off"
    parts = [
        Part(
            "send", "sends on every server, and of every sender",
            ("send.py", "--apache", "--mode", "a", "--mode", "b", "--body-bytes", "1024", *loads),
            1.5 if is_quick else 6,
        ),
        Part(
            "ha", "replication beside Apache's, with the load generator and with Apache's producer",
            ("ha.py", "--only", "table", "--only", "producer", *size), 3 if is_quick else 32, own,
        ),
        Part("backlog", "pulls of a backlog", ("backlog.py", *quick), 1 if is_quick else 2),
        Part(
            "recovery-python", "recovery, Python", ("store.py", "--only", "recovery", *quick),
            0.2 if is_quick else 5, "off",
        ),
    ]  # fmt: skip
    if has_compiled:
        parts += [
            Part(
                "ha-python", "replication, Python", ("ha.py", "--only", "table", "--without-apache", *size),
                1 if is_quick else 5, "off",
            ),
            Part(
                "recovery-compiled", "recovery, compiled", ("store.py", "--only", "recovery", *quick),
                0.2 if is_quick else 3, "auto",
            ),
        ]  # fmt: skip
    if before is not None:
        rounds = "1" if is_quick else "5"
        parts.append(
            Part(
                "before", f"sends compared with {before}, Python",
                ("compare.py", before, "--only", "send", "--rounds", rounds), 0.7 if is_quick else 2.5, "off",
            )
        )  # fmt: skip
    return parts


def command_of(part: Part, folder: Path) -> list[str]:
    """Return the command line of a part."""
    program, *arguments = part.arguments
    prefix = () if part.setting is None else speedups.prefix_for(part.setting)
    script = str(ROOT / "bench" / program)
    return [*prefix, sys.executable, script, *arguments, "--json", str(part_path(folder, part.name))]


def run_part(command: Sequence[str], log_path: Path, *, seconds_max: float, report: Callable[[str], None]) -> str:
    """Run a part until it ends; return why it has failed, or an empty text. Its output goes to a file.

    Lines that end with dots report progress, and are passed on. An interrupt of this program stops the part first.
    """
    last_line, is_late = "", False
    with log_path.open("w") as log:
        # In a session of its own, so that Ctrl-C reaches it once, from here: a second one would stop its clean-up.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
            start_new_session=True,
        )  # fmt: skip

        def stop_late() -> None:
            nonlocal is_late
            is_late = True
            process.send_signal(signal.SIGINT)

        assert process.stdout is not None
        timer = Timer(seconds_max, stop_late)
        timer.start()
        try:
            for line in process.stdout:
                log.write(line)
                log.flush()
                last_line = line.strip() or last_line
                if line.startswith("  ") and line.rstrip().endswith("..."):
                    report(line.rstrip())
            code = process.wait()
        finally:
            timer.cancel()
            _stop(process)
            process.stdout.close()
    if is_late:
        return f"it was stopped after {seconds_max / 60:.0f} minutes"
    return "" if code == 0 else f"exit code {code}: {last_line.removeprefix('Error: ')[:300]}"


def _stop(process: subprocess.Popen[str]) -> None:
    """End a part that still runs: it ends its servers at an interrupt."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    try:
        process.communicate(timeout=STOP_SECONDS_MAX)  # reads its output, or it could wait for a full pipe
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def run_parts(parts: Sequence[Part], folder: Path, console: Console) -> tuple[dict[PartName, str], bool]:
    """Run the parts; return the reasons of those that have failed, and whether the user has interrupted the run."""
    problems: dict[PartName, str] = {}
    for number, part in enumerate(parts, 1):
        now = time.strftime("%H:%M:%S")
        left = sum(one.minutes for one in parts[number - 1 :])
        console.print(
            f"{now} part {number} of {len(parts)}: {part.text}; about {part.minutes:g} min, {left:g} min for the rest",
            highlight=False,
        )
        seconds_max = 60 * max(TIMEOUT_FACTOR * part.minutes, TIMEOUT_MINUTES_MIN)
        log_path = folder / f"{part.name}.log"
        try:
            problem = run_part(
                command_of(part, folder), log_path, seconds_max=seconds_max,
                report=lambda line: console.print(line, style="dim", highlight=False),
            )  # fmt: skip
        except KeyboardInterrupt:
            rest = [one.name for one in parts[number - 1 :]]
            return problems | dict.fromkeys(rest, "interrupted"), True
        if problem:
            problems[part.name] = problem
            console.print(f"  failed: {problem}; see {shown_path(log_path, ROOT)}", style="red", highlight=False)
    return problems, False


def write_settings(folder: Path, settings: RunSettings) -> None:
    """Write what was run, so that `--from` shows the same table again."""
    path = folder / SETTINGS_FILE
    path.write_bytes(msgspec.json.format(msgspec.json.encode(settings), indent=1) + b"\n")


def read_settings(folder: Path) -> RunSettings:
    """Read what was run. Raises BenchmarkFailed for a folder that is not of this program."""
    try:
        return msgspec.json.decode((folder / SETTINGS_FILE).read_bytes(), type=RunSettings)
    except (OSError, msgspec.MsgspecError) as error:
        raise BenchmarkFailed(f"{folder} is not a folder of results of make bench: {error}") from error


def why_unpublished(settings: RunSettings, measured: Measured) -> str:
    """Return why the figures do not belong into the docs; empty if they do."""
    if settings.is_quick:
        return "a quick run"
    if settings.problems:
        return "a part has failed"
    needed: set[PartName] = {"send", "ha", "backlog", "recovery-python"}
    if not needed <= set(settings.parts):
        return "not all parts were run"
    if measured.send is not None and {"apache", "c"} & set(measured.send.missing):
        return "Apache's broker or the C server was not measured"
    return ""


def exit_code(settings: RunSettings, rows: Sequence[GoalRow], *, assert_goals: bool) -> int:
    """Return 0, or 1 if a part has failed, or after a missed goal if that was requested."""
    is_missed = any(row.is_met is False for row in rows)
    return 1 if settings.problems or (assert_goals and is_missed) else 0


def show(folder: Path, settings: RunSettings, console: Console) -> tuple[Measured, list[GoalRow]]:
    """Print the tables of the parts that have results, the table of goals last."""
    measured, unread = read_measured(folder, settings.parts)
    problems = {**unread, **settings.problems}
    goals, *others = sorted(page_figures(measured, problems, settings.started_at), key=lambda one: one.name != "goals")
    for figures in [*(table for table in others if table.rows), goals]:
        print_figures(console, figures)
    return measured, goal_rows(measured)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--only", "names", multiple=True, type=click.Choice(get_args(PartName)), metavar="PART",
    help=f"Part to run; may be given several times: {', '.join(get_args(PartName))}.",
)  # fmt: skip
@click.option(
    "--quick", "is_quick", is_flag=True, help="Run for minutes to check that it works; the figures mean little."
)
@click.option("--before", metavar="REV", help="Compare the Python path with this commit, for the goal on it.")
@click.option(
    "--publish/--no-publish", "is_publishing", default=None,
    help="Whether a complete run replaces the tables in docs/benchmarks.md; by default it does, and --from does not.",
)  # fmt: skip
@click.option(
    "--from", "source", metavar="FOLDER", type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Measure nothing, and show the results of an earlier run.",
)  # fmt: skip
@click.option("--assert-goals", is_flag=True, help="Exit with 1 when a goal is missed.")
def main(
    names: Sequence[PartName], *, is_quick: bool, before: str | None, is_publishing: bool | None, source: Path | None,
    assert_goals: bool,
) -> None:  # fmt: skip
    """Measure every performance goal, and print one table of them. Less than an hour; with --quick a few minutes.

    The table has a row for each goal: the broker's CPU time for a send, replication, pulls and recovery. Its columns
    are Gantry's compiled path, its pure Python path, Apache RocketMQ's brokers, and a C server that only appends and
    answers. Goals are ratios of one run, so leave the machine alone meanwhile.

    \b
    make bench                                 all parts; writes the tables to docs/benchmarks.md
    make bench BENCH='--quick'                 all parts, for minutes
    make bench BENCH='--before HEAD~10'        with the goal on the pure Python path
    scripts/bench --only send --only backlog   two parts
    scripts/bench --from bench/results/bench-20261127T120000Z

    Each part is another benchmark (`make bench-send`, ...). Its figures and its output are kept in
    bench/results/bench-TIME/, also if a later part fails or if you interrupt the run.

    You need Linux, Go 1.22, Java 17 with Maven, a C compiler, and 40 GiB of free disk. Without Java or a C compiler
    the table is incomplete, and has the reason. The first run builds the load generator and Apache's programs, which
    takes some minutes more.

    \b
    Exit code: 0, or 1 if a part has failed, or with --assert-goals if a goal was missed; 130 after an interrupt.
    """
    console = Console(width=None if sys.stdout.isatty() else 200)
    is_interrupted = False
    try:
        if source is not None:
            folder, settings = source, read_settings(source)
        else:
            folder, settings, is_interrupted = measure(names, is_quick=is_quick, before=before, console=console)
    except BenchmarkFailed as error:
        raise click.ClickException(str(error)) from error
    measured, rows = show(folder, settings, console)
    console.print(f"results: {shown_path(folder.resolve(), ROOT)}", highlight=False)
    if is_interrupted:
        sys.exit(EXIT_INTERRUPTED)
    if source is None if is_publishing is None else is_publishing:
        if reason := why_unpublished(settings, measured):
            console.print(f"not published: {reason}", style="yellow", highlight=False)
        else:
            tables = page_figures(measured, {}, settings.started_at)
            PAGE.write_text(publish(PAGE.read_text(), tables, benchmark=BENCHMARK))
            console.print(f"published in {shown_path(PAGE, ROOT)}", highlight=False)
    sys.exit(exit_code(settings, rows, assert_goals=assert_goals))


def measure(
    names: Sequence[PartName], *, is_quick: bool, before: str | None, console: Console
) -> tuple[Path, RunSettings, bool]:
    """Run the parts; return the folder of the results, what was run, and whether the user has interrupted it."""
    known = speedups.probe("auto")
    if not known.is_compiled:
        console.print(f"without the compiled path: {known.reason}", style="yellow", highlight=False)
    parts = plan_parts(is_quick=is_quick, has_compiled=known.is_compiled, before=before)
    if names:
        missing = set(names) - {part.name for part in parts}
        if missing:
            needs = "the compiled path" if "before" not in missing else "--before REV"
            raise BenchmarkFailed(f"the part {min(missing)} needs {needs}")
        parts = [part for part in parts if part.name in names]
    now = time.gmtime()
    folder = RESULTS / f"bench-{time.strftime('%Y%m%dT%H%M%SZ', now)}"
    folder.mkdir(parents=True)
    started_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", now)
    settings = RunSettings(started_at=started_at, is_quick=is_quick, parts=[part.name for part in parts])
    write_settings(folder, settings)  # now, so that `--from` shows the finished parts even if this process is killed
    problems, is_interrupted = run_parts(parts, folder, console)
    settings = msgspec.structs.replace(settings, problems=problems)
    write_settings(folder, settings)
    return folder, settings, is_interrupted


if __name__ == "__main__":
    main()
