"""`make bench-store`: the cost of the store's guarantees.

Four parts: the tail of an append with and without a write buffer, synchronous flush beside asynchronous, how fast a
start reads a log after a kill, and memory. Everything is measured in one run; what goals compare is measured in turn.
Goals are printed as met or not met; the exit code is 1 when an answer was wrong, or when a goal was missed and
`--assert-goals` was given. With `--publish` its tables in docs/promises.md are replaced by this run's.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, get_args

import click
import msgspec
from gantry_bench.errors import BenchmarkFailed
from gantry_bench.figures import print_figures, publish
from gantry_bench.machine import Machine, OtherWork, describe_machine
from gantry_bench.measurement import Goal
from gantry_bench.options import ASSERT_GOALS
from gantry_bench.page import goal_figures, machine_figures
from gantry_bench.parts import Outcome, PartName, StoreParts
from gantry_bench.processes import ROOT
from gantry_bench.results import json_option, shown_path, write_results
from gantry_bench.scale import FULL, QUICK, SHORT, Scale
from gantry_bench.speedups import CodePath, probe
from gantry_bench.table import OTHER_CORES_NOTICED, print_goals
from rich.console import Console

RESULTS: Final = ROOT / "bench" / "results"
PAGE: Final = ROOT / "docs" / "promises.md"
QUIET_SECONDS: Final = 2.0


class Results(msgspec.Struct, frozen=True):
    """All results, as written to the results file."""

    started_at: str
    machine: Machine
    scale: Scale
    path: CodePath
    """The code path of stores and brokers."""
    outcomes: dict[PartName, Outcome]

    @property
    def goals(self) -> list[Goal]:
        return [goal for outcome in self.outcomes.values() for goal in outcome.goals]

    @property
    def errors(self) -> int:
        return sum(outcome.errors for outcome in self.outcomes.values())


@contextmanager
def working_folder() -> Iterator[Path]:
    """Make a folder in `bench/results`, and remove it at the end, also after an error."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="run-", dir=RESULTS) as folder:
        yield Path(folder)


def warn_if_busy(console: Console) -> None:
    """Warn if other programs are busy, because they distort the figures."""
    with OtherWork() as others:
        time.sleep(QUIET_SECONDS)
    if others.cores > OTHER_CORES_NOTICED:
        console.print(
            f"other programs use {others.cores:.1f} of {os.cpu_count()} cores: the figures mean little",
            style="yellow",
        )


def report(console: Console, results: Results, *, json_path: Path | None, is_publishing: bool) -> None:
    """Print tables and goals, and write the results file. If requested and all answers were right, publish."""
    for outcome in results.outcomes.values():
        print_figures(console, outcome.figures)
    print_goals(console, results.goals)
    path = write_results(results, results.started_at, folder=RESULTS, name="store", json_path=json_path)
    console.print(f"written to {shown_path(path, ROOT)}", highlight=False)
    if results.errors:
        console.print(f"{results.errors} answers were wrong or refusals", style="red")
    elif is_publishing:
        tables = [machine_figures(results.machine, results.started_at), goal_figures(results.goals)]
        tables += [outcome.figures for outcome in results.outcomes.values()]
        PAGE.write_text(publish(PAGE.read_text(), tables))
        console.print(f"published in {PAGE.relative_to(ROOT)}", highlight=False)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--only", "names", multiple=True, type=click.Choice(get_args(PartName)), default=get_args(PartName),
    show_default=True, help="Part to run; may be given several times.",
)  # fmt: skip
@click.option("--quick", is_flag=True, help="Run for a minute to check the benchmark itself; the figures mean nothing.")
@click.option(
    "--short", is_flag=True, help="Recover only the largest log, three times from memory, as make bench does."
)
@click.option("--publish", "is_publishing", is_flag=True, help="Replace its tables in docs/promises.md.")
@json_option
@ASSERT_GOALS
def main(
    names: Sequence[PartName], *, quick: bool, short: bool, is_publishing: bool, json_path: Path | None,
    assert_goals: bool,
) -> None:  # fmt: skip
    """Measure the store: append tail, synchronous flush, recovery speed, resident memory."""
    names = tuple(dict.fromkeys(names))
    if is_publishing and (quick or short or set(names) != set(get_args(PartName))):
        raise click.UsageError("--publish needs a complete run, without --quick, --short and --only")
    console = Console(width=None if sys.stdout.isatty() else 150)
    scale = QUICK if quick else SHORT if short else FULL
    started = time.gmtime()
    try:
        warn_if_busy(console)
        with working_folder() as folder:
            parts = StoreParts(scale, folder, lambda text: console.print(f"  {text} ...", style="dim", highlight=False))
            outcomes: dict[PartName, Outcome] = {name: parts.by_name[name]() for name in names}
        started_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", started)
        results = Results(
            started_at=started_at, machine=describe_machine(), scale=scale, path=probe(), outcomes=outcomes
        )
        report(console, results, json_path=json_path, is_publishing=is_publishing)
    except BenchmarkFailed as error:
        raise click.ClickException(str(error)) from error
    is_missed = any(not goal.is_met for goal in results.goals)
    sys.exit(1 if results.errors or (assert_goals and is_missed) else 0)


if __name__ == "__main__":
    main()
