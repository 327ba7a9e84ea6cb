"""`make bench`: one table of all performance goals, with both code paths beside Apache and the C server.

The figures are those of other benchmarks, which this program runs one after another, each with a results file of its
own. A part that fails leaves the figures of the others. The exit code is 1 when a part has failed, or when a goal was
missed and `--assert-goals` was given.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, get_args

import click
import msgspec
from gantry_bench import speedups
from gantry_bench.errors import BenchmarkFailed
from gantry_bench.figures import print_figures, publish
from gantry_bench.goal_figures import Measured, PartName, read_measured
from gantry_bench.goal_page import page_figures
from gantry_bench.goal_parts import Part, check_space, command_of, plan_parts
from gantry_bench.goal_table import GoalRow, goal_rows
from gantry_bench.interrupts import interrupt_on_sigterm
from gantry_bench.machine import OtherWork
from gantry_bench.options import ASSERT_GOALS
from gantry_bench.part_process import run_part
from gantry_bench.processes import ROOT
from gantry_bench.results import shown_path
from gantry_bench.table import OTHER_CORES_NOTICED
from rich.console import Console

RESULTS: Final = ROOT / "bench" / "results"
PAGE: Final = ROOT / "docs" / "benchmarks.md"
BENCHMARK: Final = "bench"
TIMEOUT_FACTOR: Final = 3
"""A part may take so many times the estimate, and is then stopped."""
TIMEOUT_MINUTES_MIN: Final = 15
"""The limit of short parts, since the first run also builds Apache's programs."""
EXIT_INTERRUPTED: Final = 130
SETTINGS_FILE: Final = "run.json"


class RunSettings(msgspec.Struct, frozen=True):
    """What was run, as written to the folder of the results."""

    started_at: str
    is_quick: bool
    parts: list[PartName]
    problems: dict[PartName, str] = {}
    other_cores: dict[PartName, float] = {}
    """The CPU time of other programs during each part, in cores, as a mean of its whole time."""


class Progress(msgspec.Struct):
    """What the parts have left so far."""

    problems: dict[PartName, str] = {}
    other_cores: dict[PartName, float] = {}
    is_interrupted: bool = False


def run_parts(parts: Sequence[Part], folder: Path, console: Console) -> Progress:
    """Run the parts, until the last one or an interrupt by the user."""
    progress = Progress()
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
            with OtherWork() as others:
                problem = run_part(
                    command_of(part, folder), log_path, seconds_max=seconds_max,
                    report=lambda line: console.print(line, style="dim", highlight=False),
                )  # fmt: skip
        except KeyboardInterrupt:
            rest = [one.name for one in parts[number - 1 :]]
            progress.problems |= dict.fromkeys(rest, "interrupted")
            progress.is_interrupted = True
            return progress
        progress.other_cores[part.name] = others.cores
        if problem:
            progress.problems[part.name] = problem
            console.print(f"  failed: {problem}; see {shown_path(log_path, ROOT)}", style="red", highlight=False)
    return progress


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


def read_run(folder: Path, settings: RunSettings) -> tuple[Measured, RunSettings]:
    """Return the figures of a run, and its settings with the parts that cannot be read as further problems."""
    measured, unread = read_measured(folder, settings.parts)
    recorded, own = measured.other_cores, settings.other_cores
    cores = {part: max(recorded.get(part, 0.0), own.get(part, 0.0)) for part in {**recorded, **own}}
    measured = msgspec.structs.replace(measured, other_cores=cores)
    return measured, msgspec.structs.replace(settings, problems={**unread, **settings.problems})


def why_unpublished(settings: RunSettings, measured: Measured, *, is_forced: bool) -> str:
    """Return why the figures do not belong into the docs; empty if they do. Some reasons can be overruled."""
    if settings.is_quick:
        return "a quick run"
    if settings.problems:
        return "a part has failed"
    needed: set[PartName] = {"send", "ha", "backlog", "recovery-python"}
    if measured.has_compiled:
        needed |= {"ha-python", "recovery-compiled"}
    if not needed <= set(settings.parts):
        return "not all parts were run"
    if measured.send is not None and {"apache", "c"} & set(measured.send.missing):
        return "Apache's broker or the C server was not measured"
    if is_forced:
        return ""
    if not measured.has_compiled:
        return f"the compiled path was not measured ({measured.compiled_missing}); --publish does so nevertheless"
    if measured.failed_runs:
        return f"{measured.failed_runs} cells of replication have failed runs; --publish does so nevertheless"
    part = measured.busiest_part
    if part is not None and measured.other_cores[part] > OTHER_CORES_NOTICED:
        return (
            f"other programs used up to {measured.other_cores[part]:.2f} cores, in the part {part}; repeat it on a "
            "quiet machine, or publish with --from and --publish"
        )
    return ""


def exit_code(settings: RunSettings, rows: Sequence[GoalRow], *, assert_goals: bool) -> int:
    """Return 0, or 1 if a part has failed, or after a missed goal if that was requested."""
    is_missed = any(row.is_met is False for row in rows)
    return 1 if settings.problems or (assert_goals and is_missed) else 0


def show(measured: Measured, settings: RunSettings, console: Console) -> None:
    """Print the tables of the parts that have results, the table of goals last."""
    tables = page_figures(measured, settings.problems, settings.started_at)
    goals, *others = sorted(tables, key=lambda one: one.name != "goals")
    for figures in [*(table for table in others if table.rows), goals]:
        print_figures(console, figures)


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
    help="Whether a complete run replaces the tables in docs/benchmarks.md. By default it does if the compiled path "
    "was measured and the machine was quiet, and --from does not.",
)  # fmt: skip
@click.option(
    "--from", "source", metavar="FOLDER", type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Measure nothing, and show the results of an earlier run.",
)  # fmt: skip
@ASSERT_GOALS
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

    You need Linux, Go 1.22, Java 17 with Maven, a C compiler, 16 GiB of free disk and 14 GiB of free memory. Without
    Java or a C compiler the table is incomplete, and has the reason. The first run builds the load generator and
    Apache's programs, which takes some minutes more.

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
    measured, settings = read_run(folder, settings)
    show(measured, settings, console)
    console.print(f"results: {shown_path(folder.resolve(), ROOT)}", highlight=False)
    if is_interrupted:
        sys.exit(EXIT_INTERRUPTED)
    if source is None if is_publishing is None else is_publishing:
        if reason := why_unpublished(settings, measured, is_forced=is_publishing is True):
            console.print(f"not published: {reason}", style="yellow", highlight=False)
        else:
            write_page(measured, settings, console)
    sys.exit(exit_code(settings, goal_rows(measured), assert_goals=assert_goals))


def write_page(measured: Measured, settings: RunSettings, console: Console) -> None:
    """Replace the tables of this benchmark in the docs."""
    tables = page_figures(measured, settings.problems, settings.started_at)
    try:
        PAGE.write_text(publish(PAGE.read_text(), tables, benchmark=BENCHMARK))
    except (BenchmarkFailed, OSError) as error:
        raise click.ClickException(f"the figures are not published: {error}") from error
    console.print(f"published in {shown_path(PAGE, ROOT)}", highlight=False)


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
    RESULTS.mkdir(parents=True, exist_ok=True)
    check_space(parts, RESULTS)
    now = time.gmtime()
    folder = RESULTS / f"bench-{time.strftime('%Y%m%dT%H%M%SZ', now)}"
    folder.mkdir()
    started_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", now)
    settings = RunSettings(started_at=started_at, is_quick=is_quick, parts=[part.name for part in parts])
    write_settings(folder, settings)  # now, so that `--from` shows the finished parts even if this process is killed
    with interrupt_on_sigterm():
        done = run_parts(parts, folder, console)
    settings = msgspec.structs.replace(settings, problems=done.problems, other_cores=done.other_cores)
    write_settings(folder, settings)
    return folder, settings, done.is_interrupted


if __name__ == "__main__":
    main()
