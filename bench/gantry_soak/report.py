"""The table of a soak, and its page in the documentation. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from gantry_bench.figures import Figures
from gantry_bench.page import machine_figures

from gantry_soak.bounds import Judged
from gantry_soak.records import Run
from gantry_soak.trends import Verdict

FAILURES_SHOWN: Final = 30
VERDICTS: Final = {Verdict.FLAT: "flat", Verdict.GROWS: "**grows**", Verdict.TOO_SHORT: "too few values"}
KEPT_SHARE: Final = 0.05
"""Measures that are zero all the time, or whose slope is a small part of what is allowed, are summed up in one row."""


def growing(judged: Sequence[Judged]) -> list[Judged]:
    """Return the measures that grow."""
    return [one for one in judged if one.trend.verdict is Verdict.GROWS]


def problems_of(run: Run, judged: Sequence[Judged]) -> list[str]:
    """Return why a soak has failed; none if it has not."""
    found = [
        f"{one.measure.name}: {one.measure.group} grows by {number(one.trend.per_hour)} {one.measure.unit} an hour, "
        f"but {number(one.trend.allowed_per_hour)} are allowed".replace("  ", " ")
        for one in growing(judged)
    ]
    if run.end is None:
        found.append("the run was interrupted: its messages were not judged")
    else:
        found += run.end.findings
    injected = {fault.name for fault in run.faults if not fault.note}
    found += [f"{one.name} was never injected: {one.note}" for one in run.faults if one.name not in injected]
    return found


def number(value: float) -> str:
    """Return a figure with three digits."""
    if value == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def trend_figures(judged: Sequence[Judged], *, is_complete: bool = True) -> Figures:
    """Return the table of trends; without ``is_complete`` only those of processes, disk and latencies that matter."""
    rows = []
    for one in judged:
        trend, measure = one.trend, one.measure
        is_noted = trend.verdict is Verdict.GROWS or is_complete or measure.group not in ("tables", "mappings")
        if not is_noted or (measure.group == "tables" and not trend.median and trend.verdict is not Verdict.GROWS):
            continue
        values = [point.value for point in measure.points]
        unit = f" {measure.unit}" if measure.unit else ""
        rows.append([
            f"{measure.name}: {measure.group}",
            f"{number(min(values))} to {number(max(values))}{unit}",
            f"{number(trend.median)}{unit}" if trend.verdict is not Verdict.TOO_SHORT else "",
            f"{trend.per_hour:+.3g}" if trend.verdict is not Verdict.TOO_SHORT else "",
            number(trend.allowed_per_hour) if trend.verdict is not Verdict.TOO_SHORT else "",
            VERDICTS[trend.verdict],
        ])  # fmt: skip
    notes = [
        f"{sum(one.trend.verdict is verdict for one in judged)} of {len(judged)} measures: {text.strip('*')}."
        for verdict, text in VERDICTS.items()
        if any(one.trend.verdict is verdict for one in judged)
    ]
    return Figures(
        name="trends", headings=["measure", "range", "median", "slope an hour", "allowed", ""], rows=rows, notes=notes
    )  # fmt: skip


def message_figures(run: Run) -> Figures:
    """Return what happened to the messages, and to the operations of each feature."""
    rows: list[list[str]] = []
    notes: list[str] = []
    done = run.samples[-1].done if run.samples else {}
    rows += [[name, f"{count:,}"] for name, count in sorted(done.items())]
    if run.end is not None:
        end = run.end
        notes.append(
            f"{end.sent:,} messages were sent, {end.acknowledged:,} acknowledged and {end.received:,} received. "
            + ("None was lost, altered or delivered against the rules." if not end.findings else "**Findings:**")
        )
        notes += end.findings
        failures = sorted(end.failures.items(), key=lambda one: -one[1])[:FAILURES_SHOWN]
        if failures:
            text = "; ".join(f"{name} {count:,}" for name, count in failures)
            notes.append(f"Operations that failed in faults: {text}.")
    return Figures(name="work", headings=["feature", "operations"], rows=rows, notes=notes)


def fault_figures(run: Run) -> Figures:
    """Return the faults, and how long the group was not whole."""
    rows = [
        [f"{fault.start_s / 60:.1f} min", fault.name, fault.target, f"{fault.end_s - fault.start_s:.1f} s", fault.note]
        for fault in run.faults
    ]
    return Figures(name="faults", headings=["time", "fault", "member", "whole after", ""], rows=rows, notes=[])


def page_figures(run: Run, judged: Sequence[Judged], image_names: Sequence[str]) -> list[Figures]:
    """Return all tables of the page, with the pictures."""
    start = run.start
    minutes = (run.samples[-1].at_s if run.samples else 0.0) / 60
    others = max((one.other_cores for one in run.samples), default=0.0)
    summary = Figures(
        name="run",
        headings=["length", "seed", "features", "faults", "samples", "other programs"],
        rows=[[
            f"{minutes:.0f} min", str(start.seed), str(len(start.features)), str(len(run.faults)),
            str(len(run.samples)), f"up to {others:.1f} cores",
        ]],
        notes=[],
    )  # fmt: skip
    images = [f"![{name} over time, with faults in grey](images/{name})" for name in image_names]
    summary = msgspec.structs.replace(summary, notes=images)
    return [
        machine_figures(start.machine, start.started_at), summary, message_figures(run), fault_figures(run),
        trend_figures(judged, is_complete=False),
    ]  # fmt: skip
