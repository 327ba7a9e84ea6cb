"""The common start of published pages: where the figures were measured, and which goals were met. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gantry_bench.figures import Figures
from gantry_bench.machine import Machine
from gantry_bench.measurement import Goal


def machine_figures(machine: Machine, started_at: str) -> Figures:
    """Return a table of the machine and the software that were measured."""
    kernel = ".".join(machine.kernel.split(".")[:2])
    return Figures(
        name="measured on",
        headings=["processor", "cores", "memory", "Linux", "Python", "uvloop", "when"],
        rows=[[
            machine.processor, str(machine.cores), f"{machine.memory_bytes / (1 << 30):.0f} GiB", kernel,
            machine.python, machine.uvloop, started_at,
        ]],
        notes=[],
    )  # fmt: skip


def goal_figures(goals: Sequence[Goal]) -> Figures:
    """Return a table of the goals."""
    rows = [
        [goal.text, goal.limit_text, f"{goal.measured:.3g} {goal.unit}", "met" if goal.is_met else "**not met**"]
        for goal in goals
    ]
    return Figures(name="goals", headings=["goal", "limit", "measured", ""], rows=rows, notes=[])
