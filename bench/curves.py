"""`make bench-scale`: the cost of a broker as topics, connections, consumers, shards and the log grow.

Each curve is a table and a picture with a line for each code path. The results file has every point, and is written
again after each step, so that a failed or interrupted run keeps what it has measured.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, get_args

import click
import msgspec
from gantry_bench import speedups
from gantry_bench.curve_definitions import CURVES
from gantry_bench.curve_page import page_figures, pictures, with_image
from gantry_bench.curve_points import CurveName, Point, Skipped, size_text
from gantry_bench.curve_run import CurveRun, Step, shown_size, steps_of
from gantry_bench.curve_scale import FULL, QUICK, CurveScale
from gantry_bench.errors import BenchmarkFailed
from gantry_bench.figures import print_figures, publish
from gantry_bench.machine import Machine, assign_cores, describe_machine
from gantry_bench.page import machine_figures
from gantry_bench.processes import ROOT
from gantry_bench.results import json_option, shown_path, write_results
from gantry_bench.send_figures import PATHS, GantryPath
from gantry_bench.table import OTHER_CORES_NOTICED, print_surroundings
from rich.console import Console

RESULTS: Final = ROOT / "bench" / "results"
PAGE: Final = ROOT / "docs" / "benchmarks.md"
IMAGES: Final = ROOT / "docs" / "images"
BENCHMARK: Final = "bench-scale"
EXIT_INTERRUPTED: Final = 130
NAMES: Final[tuple[CurveName, ...]] = get_args(CurveName)


class Results(msgspec.Struct, frozen=True):
    """All results, as written to the results file."""

    started_at: str
    machine: Machine
    scale: CurveScale
    curves: list[CurveName]
    missing_path: str
    """Why the compiled path was not measured; empty if it was."""
    points: list[Point] = []
    skipped: list[Skipped] = []
    problems: dict[CurveName, str] = {}
    """Why curves are not complete."""


def read_results(path: Path) -> Results:
    """Read a results file. Raises BenchmarkFailed for a file that is not of this program."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Results)
    except (OSError, msgspec.MsgspecError) as error:
        raise BenchmarkFailed(f"{path} is not a results file of make bench-scale: {error}") from error


def measure(
    results: Results, measure_step: Callable[[Step], Point | Skipped], paths: Sequence[GantryPath],
    save: Callable[[Results], None],
) -> Results:  # fmt: skip
    """Measure all steps that have no point yet, and return the results.

    A curve that fails leaves its own points and the other curves. ``save`` is called after each step. An interrupt ends
    the run, and is a problem of the curves that are not complete.
    """
    points, skipped, problems = list(results.points), list(results.skipped), dict(results.problems)
    current, known = results, {(point.curve, point.path, point.size) for point in results.points}
    for position, name in enumerate(results.curves):
        try:
            for step in steps_of(results.scale, name, paths):
                if (step.curve, step.path, shown_size(step)) in known:
                    continue
                one = measure_step(step)
                if isinstance(one, Skipped):
                    skipped.append(one)
                else:
                    points.append(one)
                current = msgspec.structs.replace(
                    results, points=list(points), skipped=list(skipped), problems=dict(problems)
                )
                save(current)
        except BenchmarkFailed as error:
            problems[name] = str(error)
        except KeyboardInterrupt:
            problems.update(dict.fromkeys(results.curves[position:], "interrupted"))
            break
    order = {name: number for number, name in enumerate(results.curves)}
    points.sort(key=lambda point: (order[point.curve], point.size, point.path))
    current = msgspec.structs.replace(results, points=points, skipped=skipped, problems=problems)
    save(current)
    return current


def quiet_part(results: Results) -> Results:
    """Return the results without problems, skipped steps, and points that were measured beside other programs."""
    points = [point for point in results.points if point.other_cores <= OTHER_CORES_NOTICED]
    return msgspec.structs.replace(results, points=points, skipped=[], problems={})


def why_unpublished(results: Results) -> str:
    """Return why the figures do not belong into the docs; empty if they do."""
    if results.scale.name != FULL.name:
        return "not a full run"
    if results.problems:
        return "a curve is not complete"
    if set(results.curves) != set(NAMES):
        return "not all curves were measured"
    if results.missing_path:
        return "the compiled path was not measured"
    others = max((point.other_cores for point in results.points), default=0.0)
    if others > OTHER_CORES_NOTICED:
        return f"other programs used up to {others:.1f} cores; repeat on a quiet machine"
    return ""


def show(results: Results, console: Console) -> None:
    """Print the table of each curve, and where it was measured."""
    for figures in page_figures(
        results.points, results.skipped, cores=results.machine.cores, problems=results.problems
    ):
        print_figures(console, figures)
    if results.missing_path:
        console.print(f"without the compiled path: {results.missing_path}", style="yellow", highlight=False)
    others = max((point.other_cores for point in results.points), default=0.0)
    print_surroundings(console, results.machine, assign_cores(set(range(results.machine.cores))), others)


def write_pictures(results: Results, folder: Path, console: Console) -> None:
    """Write the picture of each curve."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pictures(results.points).items():
        (folder / name).write_text(text, encoding="utf-8")
        console.print(f"picture: {shown_path(folder / name, ROOT)}", highlight=False)


def publish_results(results: Results, console: Console) -> None:
    """Replace tables and pictures in the documentation."""
    tables = page_figures(results.points, results.skipped, cores=results.machine.cores, problems={})
    page = [machine_figures(results.machine, results.started_at), *(with_image(table) for table in tables)]
    write_pictures(results, IMAGES, console)
    PAGE.write_text(publish(PAGE.read_text(), page, benchmark=BENCHMARK))
    console.print(f"published in {shown_path(PAGE, ROOT)}", highlight=False)


def run(
    names: Sequence[CurveName], scale: CurveScale, json_path: Path | None, console: Console,
    before: Results | None = None,
) -> tuple[Results, Path]:  # fmt: skip
    """Measure the curves, or what an earlier run lacks; return the results and their file. Raises BenchmarkFailed."""
    now = time.gmtime()
    started_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", now)
    compiled = speedups.probe("auto")
    speedups.probe("off")  # fails if the switch does not work
    missing = "" if compiled.is_compiled else compiled.reason
    paths = [path for path in PATHS if path == "python" or not missing]
    results = Results(
        started_at=started_at, machine=describe_machine(), scale=scale, curves=list(names), missing_path=missing
    )
    if before is not None:
        if (before.machine, before.missing_path) != (results.machine, missing):
            raise BenchmarkFailed("the earlier run was on another machine or of another code path: measure everything")
        results, scale = quiet_part(before), before.scale
    RESULTS.mkdir(parents=True, exist_ok=True)
    saved = Path()

    def save(current: Results) -> None:
        nonlocal saved
        saved = write_results(current, started_at, folder=RESULTS, name="scale", json_path=json_path)

    def measure_step(step: Step) -> Point | Skipped:
        one = runner.measure(step)
        if isinstance(one, Skipped):
            text = f"  SKIPPED {size_text(one.size)} {CURVES[one.curve].axis}: {one.reason}"
            console.print(text, style="bold yellow", highlight=False)
        return one

    with tempfile.TemporaryDirectory(prefix="run-", dir=RESULTS) as folder:
        cores = assign_cores(os.sched_getaffinity(0))
        runner = CurveRun(
            scale, cores, Path(folder), lambda text: console.print(f"  {text} ...", style="dim", highlight=False)
        )
        results = measure(results, measure_step, paths, save)
    return results, saved


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--only", "names", multiple=True, type=click.Choice(NAMES), metavar="CURVE",
    help=f"Curve to measure; may be given several times: {', '.join(NAMES)}.",
)  # fmt: skip
@click.option("--quick", "is_quick", is_flag=True, help="Take smaller steps to check that it works; minutes.")
@click.option(
    "--publish/--no-publish", "is_publishing", default=None,
    help="Whether a complete run replaces the tables and pictures in docs/; by default a run on a quiet machine does, "
    "and --from does not.",
)  # fmt: skip
@click.option(
    "--from", "source", metavar="RESULTS", type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Measure nothing, and show the figures of a results file again.",
)  # fmt: skip
@click.option(
    "--continue", "continued", metavar="RESULTS", type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Measure what this results file lacks: steps that failed, were skipped or interrupted, or were measured "
    "beside other programs.",
)  # fmt: skip
@click.option(
    "--pictures", "folder", metavar="FOLDER", type=click.Path(path_type=Path, file_okay=False, resolve_path=True),
    help="Write the pictures to this folder, too.",
)  # fmt: skip
@json_option
def main(
    names: Sequence[CurveName], *, is_quick: bool, is_publishing: bool | None, source: Path | None,
    continued: Path | None, folder: Path | None, json_path: Path | None,
) -> None:  # fmt: skip
    """Measure what a broker costs as its work grows, and where each cost bends. About an hour; with --quick minutes.

    \b
    topics        1 to 10,000 topics: memory, CPU for a send to all in turn, start, CPU at rest
    connections   1 to 10,000 connections, idle with heartbeats, or with one send in flight each
    consumers     1 to 1,000 held pulls, on a queue each and on one queue for all
    shards        1 to 8 brokers on this machine: rate, CPU and memory in sum
    restart       logs of 1 to 100 GB: start after a clean stop, after a kill, and without a recovery point

    Every step is measured on both code paths, compiled and pure Python. The bend of a curve is the step at which a
    figure leaves the line that is expected of it: flat for a cost that should not depend on the number, proportional
    for a rate, and for memory the step at which growth exceeds the fixed part. The sentences below a table name it, and
    which part of the cost has grown: the event loop, other threads, or the kernel.

    \b
    make bench-scale                                      all curves; writes tables and pictures to docs/
    make bench-scale BENCH_SCALE='--quick'                smaller steps, to see that it works
    scripts/bench-scale --only topics --only restart      two curves
    scripts/bench-scale --from bench/results/scale-20261127T120000Z.json --pictures /tmp/pictures
    scripts/bench-scale --continue bench/results/scale-20261127T120000Z.json    what that run lacks

    You need Linux, Go 1.22 to build the load generator, and 10,512 file descriptors (`ulimit -Hn`). Steps that this
    limit does not allow, or that do not leave 10 GB of the disk free, are skipped, and the output has what they need.
    Leave the machine alone meanwhile: a run beside other programs is not published.

    \b
    Exit code: 0, or 1 if a curve has failed; 130 after an interrupt.
    """
    console = Console(width=None if sys.stdout.isatty() else 200)
    if continued is not None and (source is not None or names or is_quick):
        raise click.UsageError(
            "--continue takes the curves and steps of the earlier run; leave out --only, --quick, --from"
        )
    try:
        if source is not None:
            results, path = read_results(source), source.resolve()
        elif continued is not None:
            before = read_results(continued)
            results, path = run(before.curves, before.scale, json_path, console, before)
        else:
            results, path = run(tuple(dict.fromkeys(names)) or NAMES, QUICK if is_quick else FULL, json_path, console)
        show(results, console)
        console.print(f"results: {shown_path(path, ROOT)}", highlight=False)
        if folder is not None:
            write_pictures(results, folder, console)
        if source is None if is_publishing is None else is_publishing:
            if reason := why_unpublished(results):
                console.print(f"not published: {reason}", style="yellow", highlight=False)
            else:
                publish_results(results, console)
    except BenchmarkFailed as error:
        raise click.ClickException(str(error)) from error
    if "interrupted" in results.problems.values():
        sys.exit(EXIT_INTERRUPTED)
    sys.exit(1 if results.problems else 0)


if __name__ == "__main__":
    main()
