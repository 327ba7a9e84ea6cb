"""`make bench-archive`: reads of messages that only the archive has, by a consumer in Java, and sends beside them.

The exit code is 1 when a message was missing or delivered twice, or when a goal was missed and `--assert-goals` was
given.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "e2e" / "interop"))

import click
from gantry_bench.archive_reads_run import FULL, QUICK, archive_reads_figures, archive_reads_goals, measure
from gantry_bench.options import ASSERT_GOALS, QUICK_CHECK
from gantry_bench.reported_run import Benchmark

BENCHMARK: Final = Benchmark(
    name="archive", measure=measure, figures=archive_reads_figures, goals=archive_reads_goals,
    errors=lambda report: sum(turn.errors for turn in report.turns),
)  # fmt: skip


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@QUICK_CHECK
@ASSERT_GOALS
def main(quick: bool, assert_goals: bool) -> None:
    """Measure consumers that read a topic from its first message, most of it only in the archive, and sends beside."""
    BENCHMARK.run(QUICK if quick else FULL, assert_goals=assert_goals)


if __name__ == "__main__":
    main()
