"""Bursts: the programs, the summary of their repeated runs, the goals and the table. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from gantry_bench.burst_load import Outcome, Program, ProgramName, ShapeName, quantile
from gantry_bench.figures import Figures
from gantry_bench.measurement import Goal

SystemName = Literal["Gantry", "Apache"]

BURST_COUNT: Final = 5000
PACED_PER_SECOND: Final = 500
ID_SHAPE_NAMES: Final[dict[ShapeName, str]] = {"java": "Java's", "other": "other"}
"""The forms of unique ids, with their names in tables."""


def programs(count: int) -> dict[ProgramName, Program]:
    """Return all programs, with so many sends each."""
    return {
        "burst": Program(name="burst", text=f"{count:,} sends at once", count=count),
        "oneway-burst": Program(
            name="oneway-burst", text=f"{count:,} one-way sends at once", count=count, is_oneway=True
        ),
        "oneway-paced": Program(
            name="oneway-paced", text=f"{count:,} one-way sends, {PACED_PER_SECOND} a second", count=count,
            is_oneway=True, per_second=PACED_PER_SECOND,
        ),
    }  # fmt: skip


class Cell(msgspec.Struct, frozen=True):
    """All runs of one program against one system under one background load."""

    system: SystemName
    load: int
    """The number of busy processes that run meanwhile."""
    program: Program
    shape: ShapeName
    """The form of the messages' unique ids."""
    outcomes: list[Outcome]

    @property
    def refused(self) -> Counter[int]:
        """Count the error answers by code."""
        total: Counter[int] = Counter()
        for outcome in self.outcomes:
            total.update(outcome.refused)
        return total

    @property
    def sent(self) -> int:
        return sum(outcome.sent for outcome in self.outcomes)

    @property
    def stored(self) -> int:
        return sum(outcome.stored for outcome in self.outcomes)

    @property
    def unanswered(self) -> int:
        return sum(outcome.unanswered for outcome in self.outcomes)

    @property
    def honest_refused(self) -> int:
        return sum(outcome.honest_refused for outcome in self.outcomes)

    @property
    def honest_us(self) -> list[float]:
        """Return the durations of all requests of the honest client during floods, in microseconds."""
        return [value for outcome in self.outcomes for value in outcome.honest_us]

    @property
    def seconds_max(self) -> float:
        """Return the duration of the slowest run."""
        return max(outcome.seconds for outcome in self.outcomes)


def burst_goals(cells: Sequence[Cell]) -> list[Goal]:
    """Return the goals: Gantry's refusals compared with Apache's in the same cell, and Gantry's losses and side effects
    over all cells.
    """
    goals = []
    all_ours = [cell for cell in cells if cell.system == "Gantry"]
    for ours in all_ours:
        if not ours.program.is_oneway:
            theirs = next((cell for cell in cells if cell.system == "Apache" and _has_same_load(cell, ours)), None)
            limit = 0 if theirs is None else theirs.refused.total()
            text = f"refused: {ours.program.text}, ids {ID_SHAPE_NAMES[ours.shape]}, load {ours.load}"
            goals.append(Goal(text=text, limit=limit, measured=ours.refused.total(), unit="sends"))
    lost = sum(cell.sent - cell.stored - cell.refused.total() for cell in all_ours)
    goals.append(Goal(text="neither stored nor refused, everywhere", limit=0, measured=lost, unit="sends"))
    honest = sum(cell.honest_refused for cell in all_ours)
    goals.append(Goal(text="refused to the honest client, everywhere", limit=0, measured=honest, unit="sends"))
    return goals


def _has_same_load(one: Cell, other: Cell) -> bool:
    return (one.load, one.program.name, one.shape) == (other.load, other.program.name, other.shape)


def burst_figures(cells: Sequence[Cell]) -> Figures:
    """Return a table with one row for each cell."""
    rows = [
        [
            cell.program.text, str(cell.load), ID_SHAPE_NAMES[cell.shape], cell.system, _codes(cell.refused),
            f"{cell.stored:,} of {cell.sent:,}", f"{cell.seconds_max:.2f} s",
            f"{quantile(cell.honest_us, 0.5) / 1000:.1f} ms", f"{quantile(cell.honest_us, 0.99) / 1000:.1f} ms",
            str(cell.honest_refused),
        ]
        for cell in cells
    ]  # fmt: skip
    return Figures(
        name="bursts",
        headings=[
            "program", "load", "ids", "broker", "refused", "stored", "slowest run", "honest p50", "honest p99",
            "honest refused",
        ],
        rows=rows,
        notes=[
            "Load: busy processes of the same priority. Refused: by code, of all runs. The honest client sends "
            "one message at a time over its own connection; its figures are those of requests during a flood."
        ],
    )  # fmt: skip


def _codes(refused: Counter[int]) -> str:
    return ", ".join(f"{count:,} with {code}" for code, count in sorted(refused.items())) or "0"
