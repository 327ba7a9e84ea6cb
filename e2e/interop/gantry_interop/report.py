"""Tables for people, and a results file for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from gantry_interop.benchmark import BenchmarkReport
from gantry_interop.drivers import Verdict
from gantry_interop.failover_plans import FailoverReport
from gantry_interop.flows import FlowReport

COLUMNS = {
    "sent": "sent",
    "failed": "failed",
    "received": "received",
    "lost": "lost",
    "altered": "altered",
    "out_of_order": "order",
    "duplicates": "twice",
}


WIDTH_MIN = 140
"""The minimum width of the tables, because a log file has no width of its own."""


def console() -> Console:
    """Return a console for reports that is wide enough for all numbers."""
    plain = Console()
    return plain if plain.width >= WIDTH_MIN or plain.is_terminal else Console(width=WIDTH_MIN)


def show_progress(console: Console, verdict: Verdict) -> None:
    """Print one line when a scenario has ended."""
    word = "[green]kept[/]" if verdict.kept else "[red]BROKEN[/]"
    console.print(f"  {verdict.client}  {verdict.scenario:<10} {word}  {verdict.seconds:.1f} s", highlight=False)
    for text in verdict.broken:
        console.print(f"      {text}", style="red", highlight=False, markup=False)


def show_verdicts(console: Console, verdicts: Sequence[Verdict]) -> None:
    """Print a table of all scenarios with their counts."""
    table = Table(title="What the clients saw", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("client")
    table.add_column("scenario")
    for title in COLUMNS.values():
        table.add_column(title, justify="right")
    table.add_column("s", justify="right")
    table.add_column("checks")
    for verdict in verdicts:
        counts = [f"{getattr(verdict, column):,}" for column in COLUMNS]
        word = "[green]kept[/]" if verdict.kept else f"[red]{len(verdict.broken)} broken[/]"
        table.add_row(verdict.client, verdict.scenario, *counts, f"{verdict.seconds:.1f}", word)
    console.print(table)


def show_benchmark(console: Console, report: BenchmarkReport) -> None:
    """Print the rates that Apache's programs reported."""
    table = Table(title="Apache's benchmark programs", title_justify="left")
    for column in ("program", "rates, messages/s", "average ms", "failed"):
        table.add_column(column)
    averages = ", ".join(f"{value:.2f}" for value in report.send_average_ms)
    failures = f"{report.send_failed} sends, {report.response_failed} responses"
    table.add_row("Producer", ", ".join(f"{rate:,}" for rate in report.send_rates), averages, failures)
    table.add_row(
        "Consumer", ", ".join(f"{rate:,}" for rate in report.consume_rates), "", f"{report.consume_failed} messages"
    )
    console.print(table)
    for text in report.broken:
        console.print(f"BROKEN: {text}", style="red", markup=False)


def show_failovers(console: Console, reports: Sequence[FailoverReport]) -> None:
    """Print the results of all failovers. Times are in seconds; those of `ack` and `seen` begin with the order."""
    table = Table(title="Failovers under Java clients", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for title in ("client", "group", "route poll"):
        table.add_column(title)
    for title in ("msgs/s", "acked", "lost", "unseen", "vanished", "orders s", "command s", "ack s", "seen s"):
        table.add_column(title, justify="right")
    table.add_column("checks")
    for one in reports:
        counts = [f"{count:,}" for count in (one.per_second, one.answered, one.lost, one.unseen, one.vanished)]
        taken = (one.orders_seconds, one.command_seconds, one.first_answer_seconds, one.first_delivery_seconds)
        times = [f"{seconds:.2f}" for seconds in taken]
        word = "[green]kept[/]" if one.kept else f"[red]{len(one.broken)} broken[/]"
        table.add_row(one.plan.client, one.plan.name, one.plan.poll_text, *counts, *times, word)
    console.print(table)


def show_failover(console: Console, report: FailoverReport) -> None:
    """Print one line when a failover has ended."""
    plan, word = report.plan, "[green]kept[/]" if report.kept else "[red]BROKEN[/]"
    took = f"first new acknowledgement {report.first_answer_seconds:.2f} s after the order"
    console.print(f"  {plan.client}  {plan.name}, route poll {plan.poll_text}: {word}, {took}", highlight=False)
    for text in report.broken:
        console.print(f"      {text}", style="red", highlight=False, markup=False)


def show_flow(console: Console, report: FlowReport) -> None:
    """Print one line when a flow has ended."""
    console.print("  " + report.line(), style=None if report.kept else "red", highlight=False, markup=False)
    for text in report.broken:
        console.print(f"      {text}", style="red", highlight=False, markup=False)


def write_results(path: Path, results: dict[str, Any]) -> None:
    """Write the results as JSON."""
    path.write_text(json.dumps(results, indent=2) + "\n")
