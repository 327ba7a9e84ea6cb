"""`make bench-transactions`: the cost of a transaction while many others are open.

The end of a transaction does not cause reading other open ones: a hundred in flight cost the same beside none,
ten thousand and a hundred thousand others. Goals are printed as met or not met; the exit code is 1 when messages were
lost or doubled, or when a goal was missed and `--assert-goals` was given.
"""

from __future__ import annotations

from typing import Final

import click
from gantry_bench.options import ASSERT_GOALS, QUICK_CHECK
from gantry_bench.reported_run import Benchmark
from gantry_bench.transactions_run import FULL, QUICK, measure, transaction_figures, transaction_goals

BENCHMARK: Final = Benchmark(name="transactions", measure=measure, figures=transaction_figures, goals=transaction_goals)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@QUICK_CHECK
@ASSERT_GOALS
def main(quick: bool, assert_goals: bool) -> None:
    """Measure transactions: their rate, and the broker's CPU for each, beside other open ones."""
    BENCHMARK.run(QUICK if quick else FULL, assert_goals=assert_goals)


if __name__ == "__main__":
    main()
