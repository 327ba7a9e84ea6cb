"""`make bench-search`: search and live tail of a topic with ten million messages, and sends beside a search.

The exit code is 1 when a search found too little, or when a goal was missed and `--assert-goals` was given.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "operator" / "tests"))

import click
import msgspec
from gantry_bench.options import ASSERT_GOALS, QUICK_CHECK
from gantry_bench.reported_run import Benchmark
from gantry_bench.search_run import FULL, QUICK, measure, search_figures, search_goals

BENCHMARK: Final = Benchmark(
    name="search", measure=measure, figures=search_figures, goals=search_goals, errors=lambda report: report.errors
)  # fmt: skip


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--messages", type=click.IntRange(10_000), help="Messages in the topic  [default: ten million].")
@QUICK_CHECK
@ASSERT_GOALS
def main(messages: int | None, quick: bool, assert_goals: bool) -> None:
    """Measure search and live tail: first hits, whole scans, latency, memory, and sends beside a search."""
    scale = QUICK if quick else FULL
    if messages is not None:
        scale = msgspec.structs.replace(scale, messages=messages)
    BENCHMARK.run(scale, assert_goals=assert_goals)


if __name__ == "__main__":
    main()
