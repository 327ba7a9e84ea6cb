"""`make bench-proxy`: the rate, latency and CPU time of the gRPC proxy, compared with Apache's.

Each proxy is loaded with sends, and with receives and acknowledgements, in front of its own broker; Gantry's proxy also
in front of Apache's broker. Then both hold many idle clients. The exit code is 1 when a call was refused, or when a
goal was missed and `--assert-goals` was given.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import click
import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "e2e" / "interop"))

from gantry_bench.figures import Figures
from gantry_bench.options import ASSERT_GOALS, QUICK_CHECK
from gantry_bench.proxy_figures import idle_figures, load_figures, proxy_errors, proxy_goals
from gantry_bench.proxy_run import FULL, QUICK, ProxyBenchReport, ProxyScale, measure
from gantry_bench.reported_run import Benchmark
from gantry_bench.results import json_option


def _figures(report: ProxyBenchReport, scale: ProxyScale) -> list[Figures]:
    return [load_figures(report, scale), idle_figures(report, scale)]


BENCHMARK: Final = Benchmark(name="proxy", measure=measure, figures=_figures, goals=proxy_goals, errors=proxy_errors)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@QUICK_CHECK
@ASSERT_GOALS
@click.option("--without-apache", is_flag=True, help="Measure Gantry's proxy alone; no Java is needed.")
@click.option("--rounds", type=click.IntRange(min=1), help="How often each load is repeated.")
@click.option("--idle", type=click.IntRange(min=1), help="The number of idle clients, such as 1000.")
@click.option("--processes", type=click.IntRange(min=1), help="Of each of Gantry's proxies; by default one per core.")
@json_option
def main(
    quick: bool, assert_goals: bool, without_apache: bool, rounds: int | None, idle: int | None, processes: int | None,
    json_path: Path | None,
) -> None:  # fmt: skip
    """Measure the gRPC proxy, compared with Apache's."""
    scale = msgspec.structs.replace(QUICK if quick else FULL, with_apache=not without_apache)
    if rounds is not None:
        scale = msgspec.structs.replace(scale, rounds=rounds)
    if idle is not None:
        scale = msgspec.structs.replace(scale, idle_clients=idle)
    if processes is not None:
        scale = msgspec.structs.replace(scale, processes=processes)
    BENCHMARK.run(scale, assert_goals=assert_goals, json_path=json_path)


if __name__ == "__main__":
    main()
