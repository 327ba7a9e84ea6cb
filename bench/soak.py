"""`make soak`: every feature of a group for an hour, with faults; memory, files, threads and latency must stay flat."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Final

import click
from gantry_bench.errors import BenchmarkFailed
from gantry_bench.figures import print_figures, publish
from gantry_bench.processes import ROOT
from gantry_bench.results import shown_path
from rich.console import Console

sys.path[:0] = [str(ROOT / "e2e" / "histories")]

from gantry_soak.bounds import judge  # noqa: E402
from gantry_soak.faults import PERIOD_S, PERIOD_S_MIN  # noqa: E402
from gantry_soak.plot import pictures  # noqa: E402
from gantry_soak.records import RecordFile, read_run  # noqa: E402
from gantry_soak.report import fault_figures, message_figures, page_figures, problems_of, trend_figures  # noqa: E402
from gantry_soak.run import make_plan, run_soak  # noqa: E402

from gantry_testing.leaks import LEAKS, leak_environment  # noqa: E402

RESULTS: Final = ROOT / "bench" / "results"
PAGE: Final = ROOT / "docs" / "soak.md"
IMAGES: Final = ROOT / "docs" / "images"
BENCHMARK: Final = "soak"
EXIT_INTERRUPTED: Final = 130
PUBLISHED_MINUTES_MIN: Final = 55.0
FEATURE_HELP: Final = "Feature to run; may be given several times. By default all run."


def analyse(path: Path, console: Console, *, folder: Path | None, is_publishing: bool) -> bool:
    """Print the tables of a file of samples, write its pictures, and return whether the soak has passed."""
    run = read_run(path)
    judged = judge(run)
    for figures in (fault_figures(run), trend_figures(judged), message_figures(run)):
        print_figures(console, figures)
    drawn = pictures(run, judged)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in drawn.items():
            (folder / name).write_text(text, encoding="utf-8")
        console.print(f"pictures: {shown_path(folder, ROOT)}", highlight=False)
    problems = problems_of(run, judged)
    for problem in problems:
        console.print(f"FAILED: {problem}", style="bold red", highlight=False)
    if not problems:
        console.print("passed: nothing grows, and no acknowledged message is lost or altered", style="green")
    if is_publishing:
        minutes = run.samples[-1].at_s / 60 if run.samples else 0.0
        if minutes < PUBLISHED_MINUTES_MIN or run.start.leak:
            raise BenchmarkFailed(
                f"only a run of an hour without a planted leak is published; this one has {minutes:.0f} minutes"
            )
        IMAGES.mkdir(exist_ok=True)
        for name, text in drawn.items():
            (IMAGES / name).write_text(text, encoding="utf-8")
        PAGE.write_text(publish(PAGE.read_text(), page_figures(run, judged, sorted(drawn)), benchmark=BENCHMARK))
        console.print(f"published in {shown_path(PAGE, ROOT)}", highlight=False)
    return not problems


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--hours", type=click.FloatRange(0, min_open=True), default=1.0, show_default=True, help="How long.")
@click.option("--minutes", type=click.FloatRange(0.4), help="How long, in minutes, instead of --hours.")
@click.option("--seed", type=int, default=1, show_default=True, help="Decides the faults and their times.")
@click.option("--feature", "features", multiple=True, metavar="NAME", help=FEATURE_HELP)
@click.option("--fault", "faults", multiple=True, metavar="NAME",
              help="Fault to inject at the planned times; repeatable. `none` injects none.")  # fmt: skip
@click.option("--fault-every", "fault_every_s", type=click.FloatRange(PERIOD_S_MIN), default=PERIOD_S,
              show_default=True, help="Seconds from one fault to the next.")  # fmt: skip
@click.option("--leak", type=click.Choice(sorted(LEAKS)), help="Plant a leak in the brokers: the run must fail.")
@click.option("--data", type=click.Path(path_type=Path, file_okay=False),
              help="Folder for the group's files [default: a new one below bench/results].")  # fmt: skip
@click.option("--keep", is_flag=True, help="Keep the group's files; they are kept after a failure, too.")
@click.option("--samples", type=click.Path(path_type=Path, dir_okay=False), help="File for the samples.")
@click.option("--analyse", "source", metavar="FILE", type=click.Path(path_type=Path, exists=True, dir_okay=False),
              help="Run nothing, and judge a file of samples, also of an interrupted run.")  # fmt: skip
@click.option("--pictures", "folder", type=click.Path(path_type=Path, file_okay=False, resolve_path=True),
              help="Folder for the pictures.")  # fmt: skip
@click.option("--publish", "is_publishing", is_flag=True, help="Replace the tables and pictures of docs/soak.md.")
def main(
    hours: float, minutes: float | None, seed: int, features: Sequence[str], faults: Sequence[str],
    fault_every_s: float, leak: str | None, data: Path | None, keep: bool, samples: Path | None, source: Path | None,
    folder: Path | None, is_publishing: bool,
) -> None:  # fmt: skip
    """Run every feature of a group under faults, and fail if anything grows or an acknowledged message is lost.

    The group is one of `gantry up`: a name server, a synchronous master and its slave with write buffers that survive
    a crash, their sidecars, and a gRPC proxy, all with access control. About a hundred operations a second use
    every feature. Every two and a half minutes a fault that follows from the seed is injected: a process is killed or
    suspended, the role moves, a slave loses its disk, a record or a queue is damaged.

    \b
    make soak                                   an hour, and three minutes to start and to end
    make soak HOURS=6 SOAK='--seed 7'           longer, with other faults
    scripts/soak --minutes 10                   does it run?
    scripts/soak --minutes 10 --leak thread     the check of the check: this must fail
    scripts/soak --feature normal --feature pop --fault none --minutes 3
    scripts/soak --minutes 10 --fault-every 30 --seed 4
    scripts/soak --analyse bench/results/soak-20261127T120000Z.jsonl --pictures /tmp/pictures
    scripts/soak --analyse FILE --publish       writes docs/soak.md and its pictures

    A line is printed each minute, and one for each fault. The samples are written as they are taken: --analyse judges
    them at any time, also while the soak runs. A slope is judged within each life of a process, without its warm-up
    and without the time of faults.

    \b
    You need Linux and a file system of which 12 % are used and 2 GiB are free. Leave the machine alone meanwhile.
    Exit code: 0, or 1 if a check has failed; 130 after an interrupt or SIGTERM, which stop the group.
    """
    console = Console(width=None if sys.stdout.isatty() else 200)
    try:
        if source is not None:
            sys.exit(0 if analyse(source, console, folder=folder, is_publishing=is_publishing) else 1)
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        RESULTS.mkdir(parents=True, exist_ok=True)
        path = (samples or RESULTS / f"soak-{stamp}.jsonl").resolve()
        group_folder = Path(data or tempfile.mkdtemp(prefix="soak-group-", dir=RESULTS)).resolve()
        duration_s = (minutes * 60) if minutes is not None else hours * 3600
        wanted = [] if faults == ("none",) else list(faults)
        plan = make_plan(
            seed, duration_s, features=features, faults=wanted if faults else None, leak=leak or "",
            fault_every_s=fault_every_s,
        )  # fmt: skip
        console.print(f"samples: {shown_path(path, ROOT)}", highlight=False)

        logging.basicConfig(filename=group_folder.with_suffix(".log"), format="%(asctime)s %(levelname)s %(message)s")

        def report(text: str) -> None:
            console.print(text, highlight=False, soft_wrap=True)

        asyncio.run(until_terminated(run_soak(plan, group_folder, RecordFile(path), report, leak_environment(leak))))
        has_passed = analyse(path, console, folder=folder, is_publishing=is_publishing)
        if has_passed and not keep:
            remove_folder(group_folder)
        else:
            console.print(f"files of the group: {shown_path(group_folder, ROOT)}", highlight=False)
    except BenchmarkFailed as error:
        raise click.ClickException(str(error)) from error
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit(EXIT_INTERRUPTED)
    sys.exit(0 if has_passed else 1)


async def until_terminated(soak: Coroutine[object, object, object]) -> None:
    """Run the soak until it ends or SIGTERM comes, after which it stops the group like after an interrupt."""
    task = asyncio.ensure_future(soak)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await task


def remove_folder(folder: Path) -> None:
    """Remove the files of a group that has stopped."""
    for path, directories, files in os.walk(folder, topdown=False):
        for name in files:
            (Path(path) / name).unlink()
        for name in directories:
            (Path(path) / name).rmdir()
    folder.rmdir()


if __name__ == "__main__":
    main()
