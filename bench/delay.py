"""`make bench-delay`: the memory of waiting delayed messages, and how late they are delivered.

A million messages wait in a broker while five thousand a second come due, first by delay levels, then as timers. The
run of the timers also measures a restart, and races recalls against delivery. The last part lets timers come due across
a kill, a promotion, and jumps of the wall clock. Goals are printed as met or not met; the exit code is 1 when an answer
was wrong or a message lost, or when a goal was missed and `--assert-goals` was given.
"""

from __future__ import annotations

import sys
from typing import Final

import click
import msgspec
from gantry_bench.delay_run import FULL, QUICK, DelayReport, delay_figures, delay_goals, measure
from gantry_bench.options import ASSERT_GOALS, QUICK_CHECK
from gantry_bench.reported_run import Benchmark
from gantry_bench.timer_faults import FULL as FULL_FAULTS
from gantry_bench.timer_faults import QUICK as QUICK_FAULTS
from gantry_bench.timer_faults import FaultReport, fault_figures, fault_goals, measure_faults
from gantry_bench.timer_run import FULL as FULL_TIMERS
from gantry_bench.timer_run import QUICK as QUICK_TIMERS
from gantry_bench.timer_run import TimerReport, measure_timers, timer_figures, timer_goals


def _errors(report: DelayReport) -> int:
    return report.errors


def _timer_errors(report: TimerReport) -> int:
    return report.errors


def _fault_errors(report: FaultReport) -> int:
    return report.errors


TIMERS: Final = Benchmark(
    name="timers", measure=measure_timers, figures=timer_figures, goals=timer_goals, errors=_timer_errors
)
FAULTS: Final = Benchmark(
    name="timer-faults", measure=measure_faults, figures=fault_figures, goals=fault_goals, errors=_fault_errors
)
BENCHMARK: Final = Benchmark(name="delay", measure=measure, figures=delay_figures, goals=delay_goals, errors=_errors)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@QUICK_CHECK
@ASSERT_GOALS
@click.option("--only", type=click.Choice(["levels", "timers", "faults"]), help="Run only this part.")
@click.option("--pending", type=click.IntRange(min=1), help="The number of pending timers, such as 10000000.")
def main(quick: bool, assert_goals: bool, only: str | None, pending: int | None) -> None:
    """Measure delayed messages: memory while they wait, and how late they are delivered."""
    codes: list[int] = []
    if only in (None, "levels"):
        codes.append(BENCHMARK.measure_and_print(QUICK if quick else FULL, assert_goals=assert_goals))
    if only in (None, "timers"):
        scale = QUICK_TIMERS if quick else FULL_TIMERS
        scale = scale if pending is None else msgspec.structs.replace(scale, pending=pending)
        codes.append(TIMERS.measure_and_print(scale, assert_goals=assert_goals))
    if only in (None, "faults"):
        codes.append(FAULTS.measure_and_print(QUICK_FAULTS if quick else FULL_FAULTS, assert_goals=assert_goals))
    sys.exit(max(codes))


if __name__ == "__main__":
    main()
