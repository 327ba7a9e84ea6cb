"""Console output: a table of figures and a list of goals.

It computes only ratios of its input, so that the numbers printed are the numbers in the results file.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich.console import Console
from rich.table import Table

from gantry_bench.machine import Cores, Machine
from gantry_bench.measurement import Goal, Mode, Summary, cpu_ratio

OTHER_CORES_NOTICED = 0.1
"""Above this CPU use of other programs, the figures come with a warning."""


class Cell(msgspec.Struct, frozen=True):
    """Broker and echo server under the same load, medians of the repetitions."""

    mode: Mode
    body_bytes: int
    header: str
    echo: Summary
    broker: Summary
    other_cores: float


def print_cells(console: Console, cells: Sequence[Cell]) -> None:
    """Print one table for each mode."""
    for mode in dict.fromkeys(cell.mode for cell in cells):
        table = Table(title=mode.text, title_justify="left")
        for heading in ("body", "server"):
            table.add_column(heading)
        for heading in (
            "msgs/s", "p50 us", "p99 us", "p99.9 us", "CPU us/msg", "x echo", "frames/write", "replies/read", "busy",
            "load busy",
        ):  # fmt: skip
            table.add_column(heading, justify="right", no_wrap=True)
        for cell in cells:
            if cell.mode == mode:
                table.add_row(f"{cell.body_bytes} B", "echo", *_figures(cell.echo, ratio=None))
                table.add_row("", "broker", *_figures(cell.broker, ratio=cpu_ratio(cell.broker, cell.echo)))
        console.print(table)


def _figures(summary: Summary, *, ratio: float | None) -> list[str]:
    return [
        f"{summary.messages_per_second:,.0f}",
        f"{summary.p50_us:,.0f}",
        f"{summary.p99_us:,.0f}",
        f"{summary.p99_9_us:,.0f}",
        f"{summary.cpu_us_per_message:.2f}",
        "" if ratio is None else f"{ratio:.1f}",
        f"{summary.frames_per_write:.0f}",
        f"{summary.replies_per_read:.1f}",
        f"{summary.server_utilisation:.0%}",
        f"{summary.load_generator_utilisation:.0%}",
    ]


def print_goals(console: Console, goals: Sequence[Goal]) -> None:
    """Print each goal with the measured value."""
    table = Table(title="Goals", title_justify="left")
    for heading in ("goal", "limit", "measured", ""):
        table.add_column(heading)
    for goal in goals:
        verdict = "[green]met[/green]" if goal.is_met else "[yellow]not met[/yellow]"
        table.add_row(goal.text, goal.limit_text, f"{goal.measured:.3g} {goal.unit}", verdict)
    console.print(table)


def print_surroundings(console: Console, machine: Machine, cores: Cores, cells: Sequence[Cell]) -> None:
    """Print where the figures were measured, and warnings about their reliability."""
    console.print(
        f"{machine.processor}, {machine.cores} cores, Linux {machine.kernel}, "
        f"Python {machine.python}, uvloop {machine.uvloop}",
        style="dim",
        highlight=False,
    )
    if cores.server is None:
        console.print("one core only: server and load share it, so rates and latencies mean little", style="yellow")
    busiest = max((cell.other_cores for cell in cells), default=0.0)
    if busiest > OTHER_CORES_NOTICED:
        console.print(
            f"other processes used up to {busiest:.1f} cores meanwhile: repeat on a quiet machine", style="yellow"
        )
