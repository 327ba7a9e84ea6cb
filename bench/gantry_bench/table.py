"""Console output: the goals of a run, and where it was measured.

The numbers printed are the numbers in the results file.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from gantry_bench.machine import Cores, Machine
from gantry_bench.measurement import Goal

OTHER_CORES_NOTICED = 0.1
"""Above this CPU use of other programs, the figures come with a warning."""


def print_goals(console: Console, goals: Sequence[Goal]) -> None:
    """Print each goal with the measured value."""
    table = Table(title="Goals", title_justify="left")
    for heading in ("goal", "limit", "measured", ""):
        table.add_column(heading)
    for goal in goals:
        verdict = "[green]met[/green]" if goal.is_met else "[yellow]not met[/yellow]"
        table.add_row(goal.text, goal.limit_text, f"{goal.measured:.3g} {goal.unit}", verdict)
    console.print(table)


def print_surroundings(console: Console, machine: Machine, cores: Cores, busiest: float) -> None:
    """Print where the figures were measured, and warnings about their reliability: ``busiest`` is the most CPU time of
    other programs, in cores."""
    console.print(
        f"{machine.processor}, {machine.cores} cores, Linux {machine.kernel}, "
        f"Python {machine.python}, uvloop {machine.uvloop}",
        style="dim",
        highlight=False,
    )
    if cores.server is None:
        console.print("one core only: server and load share it, so rates and latencies mean little", style="yellow")
    if busiest > OTHER_CORES_NOTICED:
        console.print(
            f"other processes used up to {busiest:.1f} cores meanwhile: repeat on a quiet machine", style="yellow"
        )
