"""`make bench-delay`: the memory of waiting delayed messages, and how late they are delivered.

A million messages wait in a broker while five thousand a second come due. Goals are printed as met or not met; the
exit code is 1 when an answer was wrong or a message lost, or when a goal was missed and `--assert-goals` was given.
"""

from __future__ import annotations

from typing import Final

import click
from gantry_bench.delay_run import FULL, QUICK, DelayReport, delay_figures, delay_goals, measure
from gantry_bench.reported_run import Benchmark


def _errors(report: DelayReport) -> int:
    return report.errors


BENCHMARK: Final = Benchmark(name="delay", measure=measure, figures=delay_figures, goals=delay_goals, errors=_errors)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--quick", is_flag=True, help="Run for seconds to check the benchmark itself; the figures mean nothing.")
@click.option("--assert-goals", is_flag=True, help="Exit with 1 when a goal is missed.")
def main(quick: bool, assert_goals: bool) -> None:
    """Measure delayed messages: memory while they wait, and how late they are delivered."""
    BENCHMARK.run(QUICK if quick else FULL, assert_goals=assert_goals)


if __name__ == "__main__":
    main()
