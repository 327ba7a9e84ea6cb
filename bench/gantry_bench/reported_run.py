"""The steps of a benchmark: measure in a folder of its own, print figures and goals, write all results to a file.

The exit code is 1 if there were errors, or if a goal was missed and `--assert-goals` was given.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Generic, NoReturn, TypeVar, final

import click
import msgspec
from rich.console import Console

from gantry_bench.errors import BenchmarkFailed
from gantry_bench.figures import Figures, print_figures
from gantry_bench.machine import Cores, Machine, assign_cores, describe_machine
from gantry_bench.measurement import Goal
from gantry_bench.processes import ROOT
from gantry_bench.results import shown_path, write_results
from gantry_bench.table import print_goals

RESULTS: Final = ROOT / "bench" / "results"

ScaleT = TypeVar("ScaleT")
ReportT = TypeVar("ReportT")


class Results(msgspec.Struct, Generic[ScaleT, ReportT], frozen=True):
    """All results, as written to the results file."""

    started_at: str
    machine: Machine
    scale: ScaleT
    report: ReportT


@final
class Benchmark(msgspec.Struct, Generic[ScaleT, ReportT], frozen=True, kw_only=True):
    """One benchmark: its measurement, and the presentation of the results."""

    name: str
    """The name in its results file."""

    measure: Callable[[ScaleT, Cores, Path, Callable[[str], None]], ReportT]
    figures: Callable[[ReportT, ScaleT], Figures | Sequence[Figures]]
    goals: Callable[[ReportT, ScaleT], Sequence[Goal]]
    errors: Callable[[ReportT], int] = lambda report: 0
    """Returns how many errors there were: wrong answers and refusals, missing rows, failed groups."""

    def run(self, scale: ScaleT, *, assert_goals: bool, json_path: Path | None = None) -> NoReturn:
        """Measure, print, write the results, and end the process."""
        sys.exit(self.measure_and_print(scale, assert_goals=assert_goals, json_path=json_path))

    def measure_and_print(self, scale: ScaleT, *, assert_goals: bool, json_path: Path | None = None) -> int:
        """Measure, print, and write the results; return the exit code."""
        console = Console(width=None if sys.stdout.isatty() else 150)
        started_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        RESULTS.mkdir(parents=True, exist_ok=True)
        try:
            with tempfile.TemporaryDirectory(prefix="run-", dir=RESULTS) as folder:
                cores = assign_cores(os.sched_getaffinity(0))
                report = self.measure(
                    scale,
                    cores,
                    Path(folder),
                    lambda text: console.print(f"  {text} ...", style="dim", highlight=False),
                )
        except BenchmarkFailed as error:
            raise click.ClickException(str(error)) from error
        goals = self.goals(report, scale)
        figures = self.figures(report, scale)
        for table in [figures] if isinstance(figures, Figures) else figures:
            print_figures(console, table)
        print_goals(console, goals)
        results = Results(started_at=started_at, machine=describe_machine(), scale=scale, report=report)
        path = write_results(results, started_at, folder=RESULTS, name=self.name, json_path=json_path)
        console.print(f"written to {shown_path(path, ROOT)}", highlight=False)
        errors = self.errors(report)
        if errors:
            console.print(f"{errors} errors: wrong answers, refusals, missing rows or failed groups", style="red")
        is_missed = any(not goal.is_met for goal in goals)
        return 1 if errors or (assert_goals and is_missed) else 0
