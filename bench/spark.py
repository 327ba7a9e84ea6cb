"""`make bench-spark`: how fast Spark reads, archives and writes topics, and the effect on sends.

One run on `local[2]`: a group of a master and a slave stores messages of 1 KiB; then one Spark session reads them in
every way, in turns, compared with Spark's own Parquet and a reader of tuples. Goals are ratios within the run,
printed as met or not met; the exit code is 1 when rows were missing or too many, or when a goal was missed and
`--assert-goals` was given.
"""

from __future__ import annotations

import signal
import sys
from typing import Final

import click
import msgspec
from gantry_bench.options import ASSERT_GOALS
from gantry_bench.reported_run import Benchmark
from gantry_bench.spark_figures import FULL, QUICK, spark_figures, spark_goals
from gantry_bench.spark_run import measure

BENCHMARK: Final = Benchmark(
    name="spark", measure=measure, figures=spark_figures, goals=spark_goals, errors=lambda report: report.rows_wrong
)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option(
    "--rows",
    type=click.IntRange(10_000, 20_000_000),
    default=None,
    help=f"Number of messages.  [default: {FULL.rows:,}]",
)
@click.option(
    "--repetitions", type=click.IntRange(1, 20), default=None,
    help=f"Repetitions of each way, in turns; medians count.  [default: {FULL.repetitions}]",
)  # fmt: skip
@click.option("--quick", is_flag=True, help="Use few messages to check the benchmark itself; the figures mean nothing.")
@ASSERT_GOALS
def main(rows: int | None, repetitions: int | None, quick: bool, assert_goals: bool) -> None:
    """Measure the Spark source, the archive and the sink, compared with Spark's Parquet and a reader of tuples."""
    scale = QUICK if quick else FULL
    changes = {name: value for name, value in (("rows", rows), ("repetitions", repetitions)) if value is not None}
    BENCHMARK.run(msgspec.structs.replace(scale, **changes), assert_goals=assert_goals)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # SystemExit ends the processes that it has started
    main()
