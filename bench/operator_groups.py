"""`make bench-operator`: the cost of the operator: many groups created at once at a real API server, and then at rest.

Calls are counted by the API server's audit log, memory by the kernel, rounds by the operator. Goals are printed as met
or not met; the exit code is 1 when a round ended in an error of the operator's own or a group did not stay Ready, or
when a goal was missed and `--assert-goals` was given.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Final

import click
import msgspec

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "operator/tests")]

from gantry_bench.operator_figures import FULL, QUICK, operator_figures, operator_goals  # noqa: E402
from gantry_bench.operator_run import measure  # noqa: E402
from gantry_bench.options import ASSERT_GOALS  # noqa: E402
from gantry_bench.reported_run import Benchmark  # noqa: E402

BENCHMARK: Final = Benchmark(
    name="operator", measure=measure, figures=operator_figures, goals=operator_goals,
    errors=lambda report: report.unexpected_errors + report.not_ready,
)  # fmt: skip


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option(
    "--groups",
    type=click.IntRange(1, 500),
    default=None,
    help=f"Number of groups that are created at once.  [default: {FULL.groups}]",
)
@click.option(
    "--rest", "rest_s", type=click.FloatRange(1, 3600), default=None,
    help=f"Seconds of the measured rest.  [default: {FULL.rest_s:g}]",
)  # fmt: skip
@click.option(
    "--quick",
    is_flag=True,
    help="Use few groups and a short rest to check the benchmark itself; the figures mean nothing.",
)
@ASSERT_GOALS
def main(groups: int | None, rest_s: float | None, quick: bool, assert_goals: bool) -> None:
    """Measure the operator with many groups: until they are Ready, and at rest."""
    scale = QUICK if quick else FULL
    changes = {name: value for name, value in (("groups", groups), ("rest_s", rest_s)) if value is not None}
    BENCHMARK.run(msgspec.structs.replace(scale, **changes), assert_goals=assert_goals)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # SystemExit ends the processes that it has started
    main()
