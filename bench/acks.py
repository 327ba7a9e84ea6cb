"""`make bench-acks`: what an acknowledgement costs, by what it waits for.

A master and a slave acknowledge a send when the message is in the master's memory, at a slave, on a slave's disk, or on
both disks. The table shows the rate and latency of each beside the events that an acknowledged message survives, on
this machine's disk and on one whose every sync takes longer. It is what the defaults of groups are chosen by.
"""

from __future__ import annotations

from typing import Final

import click
from gantry_bench.ack_run import FULL, QUICK, ack_figures, ack_goals, count_errors, measure
from gantry_bench.options import ASSERT_GOALS, QUICK_CHECK
from gantry_bench.reported_run import Benchmark

BENCHMARK: Final = Benchmark(name="acks", measure=measure, figures=ack_figures, goals=ack_goals, errors=count_errors)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@QUICK_CHECK
@ASSERT_GOALS
def main(quick: bool, assert_goals: bool) -> None:
    """Measure sends by what their acknowledgement waits for: nothing, a slave, a slave's disk, both disks."""
    BENCHMARK.run(QUICK if quick else FULL, assert_goals=assert_goals)


if __name__ == "__main__":
    main()
