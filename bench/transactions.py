"""`make bench-transactions`: what a transaction costs while many others are open.

Nothing that is open is read again because another transaction ends: a hundred in flight cost the same beside none,
ten thousand and a hundred thousand others. Goals are printed as met or not met; the exit code is 1 when messages were
lost or doubled, or when a goal was missed and `--assert-goals` was given.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import click
import msgspec
from gantry_bench.errors import BenchmarkFailed
from gantry_bench.figures import print_figures
from gantry_bench.machine import Machine, describe_machine, hand_out_cores
from gantry_bench.processes import ROOT
from gantry_bench.table import print_goals
from gantry_bench.transactions_run import (
    FULL,
    QUICK,
    TransactionReport,
    TransactionScale,
    measure,
    transaction_figures,
    transaction_goals,
)
from rich.console import Console

RESULTS: Final = ROOT / "bench" / "results"


class Results(msgspec.Struct, frozen=True):
    """Everything, as written to the results file."""

    started_at: str
    machine: Machine
    scale: TransactionScale
    report: TransactionReport


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--quick", is_flag=True, help="Seconds, to see that it runs; the figures mean nothing.")
@click.option("--assert-goals", is_flag=True, help="Exit with 1 when a goal is missed.")
def main(quick: bool, assert_goals: bool) -> None:
    """Measure transactions: their rate, and the broker's CPU for one, beside others that are open."""
    console = Console(width=None if sys.stdout.isatty() else 150)
    scale = QUICK if quick else FULL
    started_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    RESULTS.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix="run-", dir=RESULTS) as folder:
            cores = hand_out_cores(os.sched_getaffinity(0))
            report = measure(
                scale, cores, Path(folder), lambda text: console.print(f"  {text} ...", style="dim", highlight=False)
            )
    except BenchmarkFailed as error:
        raise click.ClickException(str(error)) from error
    goals = transaction_goals(report, scale)
    print_figures(console, transaction_figures(report, scale))
    print_goals(console, goals)
    results = Results(started_at=started_at, machine=describe_machine(), scale=scale, report=report)
    path = RESULTS / f"transactions-{started_at.replace(':', '').replace('-', '')}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
    console.print(f"written to {path}", highlight=False)
    is_missed = any(not goal.is_met for goal in goals)
    sys.exit(1 if assert_goals and is_missed else 0)


if __name__ == "__main__":
    main()
