"""Pulls of a backlog: the figures of one consumer on every server, goals and the table. Pure.

The figure is the size of the answers' records for a second of the broker's CPU time, because a rate by the clock would
measure the consumer, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

import msgspec

from gantry_bench.figures import Figures
from gantry_bench.measurement import Goal
from gantry_bench.send_figures import PATHS, SERVER_TEXTS, GantryPath, ServerName, missing_notes

APACHE_RATIO_MIN: Final = 2.0
"""Goal: as many bytes for a second of the broker's CPU time as Apache's broker, times this."""
MESSAGES_AT_ONCE: Final = 32


class PullRun(msgspec.Struct, frozen=True):
    """The pulls of one measurement on one server."""

    server: ServerName
    pulls: int
    messages: int
    size_bytes: int
    """The size of the records of all answers."""
    seconds: float
    cpu_seconds: float
    """CPU time of the broker."""


class BacklogCell(msgspec.Struct, frozen=True):
    """Medians of the measurements on one server."""

    server: ServerName
    megabytes_per_second: float
    megabytes_per_cpu_second: float
    megabytes_per_cpu_second_least: float
    megabytes_per_cpu_second_most: float
    repetitions: int
    cpu_us_per_pull: float
    messages_per_pull: float


class BacklogReport(msgspec.Struct, frozen=True):
    """All results of a run."""

    runs: list[PullRun]
    missing: dict[ServerName, str]
    other_cores: float


def summarise_pulls(runs: Sequence[PullRun]) -> list[BacklogCell]:
    """Return a cell for each server. A measurement without CPU time is too short for a figure, and counts as 0."""
    cells = []
    for server in dict.fromkeys(run.server for run in runs):
        own = [run for run in runs if run.server == server]
        megabytes = [_ratio(run.size_bytes / 1e6, run.cpu_seconds) for run in own]
        cells.append(
            BacklogCell(
                server=server,
                megabytes_per_second=median(run.size_bytes / run.seconds / 1e6 for run in own),
                megabytes_per_cpu_second=median(megabytes),
                megabytes_per_cpu_second_least=min(megabytes),
                megabytes_per_cpu_second_most=max(megabytes),
                repetitions=len(own),
                cpu_us_per_pull=median(_ratio(run.cpu_seconds * 1e6, run.pulls) for run in own),
                messages_per_pull=median(_ratio(run.messages, run.pulls) for run in own),
            )
        )
    return cells


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def by_server(cells: Sequence[BacklogCell]) -> dict[ServerName, BacklogCell]:
    """Return the cells by their servers."""
    return {cell.server: cell for cell in cells}


def measured_path(servers: Mapping[ServerName, object]) -> GantryPath | None:
    """Return the code path on which goals are checked, or None if neither was measured."""
    return next((path for path in PATHS if path in servers), None)


def backlog_goals(report: BacklogReport) -> list[Goal]:
    """Return the goal, if both Gantry's and Apache's brokers were measured."""
    cells = by_server(summarise_pulls(report.runs))
    path = measured_path(cells)
    if path is None or "apache" not in cells:
        return []
    measured = _ratio(cells[path].megabytes_per_cpu_second, cells["apache"].megabytes_per_cpu_second)
    text = f"{SERVER_TEXTS[path]}: bytes pulled for a CPU second"
    return [Goal(text=text, limit=APACHE_RATIO_MIN, measured=measured, unit="x Apache", is_floor=True)]


def backlog_table(report: BacklogReport) -> Figures:
    """Return a row for each server."""
    cells = summarise_pulls(report.runs)
    apache = by_server(cells).get("apache")
    rows = [
        [
            SERVER_TEXTS[cell.server], f"{cell.megabytes_per_second:,.0f}", f"{cell.megabytes_per_cpu_second:,.0f}",
            f"{cell.cpu_us_per_pull:.1f}", f"{cell.messages_per_pull:.1f}",
            "" if apache is None else f"{_ratio(cell.megabytes_per_cpu_second, apache.megabytes_per_cpu_second):.2f}",
        ]
        for cell in cells
    ]  # fmt: skip
    return Figures(
        name="backlog",
        headings=["server", "MB/s", "MB for a CPU second", "CPU us/pull", "messages/pull", "x Apache"],
        rows=rows,
        notes=missing_notes(report.missing),
    )
