"""The pictures of a soak as SVG: a panel for each group of measures, with a line for each process. Pure.

The horizontal axis is the time in minutes; faults are grey bands with their names in a tooltip. A line is thinned out
to ``POINTS_MAX`` points, each the highest of its interval, so that a picture stays small and no peak is lost. The same
figures give the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final
from xml.sax.saxutils import escape

from gantry_bench.curve_plot import GRID_COLOUR, TEXT_COLOUR, Axis, tick_step, value_axis

from gantry_soak.bounds import Judged, Measure
from gantry_soak.records import Fault, Run
from gantry_soak.trends import Point, Verdict

WIDTH: Final = 880
PANEL_HEIGHT: Final = 230
LEFT, RIGHT, TOP, BOTTOM = 84, 220, 34, 46
POINTS_MAX: Final = 120
LINES_MAX: Final = 9
"""The most lines of a panel: those with the largest values, and every one that grows."""

COLOURS: Final = (
    "#2f81f7", "#c9680a", "#2da44e", "#8250df", "#cf222e", "#1b7c83", "#9a6700", "#bf3989", "#57606a",
)  # fmt: skip
PICTURES: Final[dict[str, tuple[str, ...]]] = {
    "memory": ("own memory", "memory with mapped files"),
    "files": ("descriptors", "threads", "mappings"),
    "disk": ("disk",),
    "latency": ("p50", "p99"),
    "tables": ("tables",),
}
"""The panels of each picture, by its name."""


def pictures(run: Run, judged: Sequence[Judged]) -> dict[str, str]:
    """Return the pictures by the names of their files."""
    return {f"soak-{name}.svg": draw(name, panels, run, judged) for name, panels in PICTURES.items()}


def draw(name: str, panels: Sequence[str], run: Run, judged: Sequence[Judged]) -> str:
    """Return a picture with a panel for each group of measures."""
    length_s = max((sample.at_s for sample in run.samples), default=60.0)
    height = PANEL_HEIGHT * len(panels)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" font-family="sans-serif" font-size="12" fill="{TEXT_COLOUR}">',
        f"<title>Soak: {escape(name)} over time</title>",
    ]
    for number, panel in enumerate(panels):
        shown = choose_lines([one for one in judged if one.measure.group == panel])
        if shown:
            lines += _panel(panel, shown, run.faults, length_s, PANEL_HEIGHT * number)
    return "\n".join([*lines, "</svg>", ""])


def choose_lines(judged: Sequence[Judged]) -> list[Judged]:
    """Return the measures that a panel shows: what grows, then the largest."""
    candidates = [one for one in judged if one.measure.points and any(point.value for point in one.measure.points)]
    ranked = sorted(
        candidates,
        key=lambda one: (one.trend.verdict is not Verdict.GROWS, -max(point.value for point in one.measure.points)),
    )
    return sorted(ranked[:LINES_MAX], key=lambda one: one.measure.name)


def time_axis(length_s: float, start: float, end: float) -> Axis:
    """Return the axis of the time in minutes."""
    minutes = max(length_s / 60, 0.1)
    step = tick_step(minutes)
    return Axis(0.0, minutes, start, end, False, [step * tick for tick in range(math.floor(minutes / step) + 1)])


def thin_out(points: Sequence[Point]) -> list[Point]:
    """Return at most ``POINTS_MAX`` points: the highest of each interval."""
    if len(points) <= POINTS_MAX:
        return list(points)
    size = len(points) / POINTS_MAX
    groups = [points[int(number * size) : max(int((number + 1) * size), int(number * size) + 1)]
              for number in range(POINTS_MAX)]  # fmt: skip
    return [max(group, key=lambda point: point.value) for group in groups if group]


def _panel(title: str, shown: Sequence[Judged], faults: Sequence[Fault], length_s: float, top: int) -> list[str]:
    measures = [one.measure for one in shown]
    across = time_axis(length_s, LEFT, WIDTH - RIGHT)
    values = [point.value for measure in measures for point in measure.points]
    up = value_axis(values, top + PANEL_HEIGHT - BOTTOM, top + TOP)
    unit = f" ({measures[0].unit})" if measures[0].unit else ""
    scale = ", log" if up.is_logarithmic else ""
    drawn = [
        f'<g class="panel" id="{escape(title).replace(" ", "-")}">',
        f'<text x="{LEFT}" y="{top + 20}" font-weight="bold">{escape(title)}{unit}{scale}</text>',
        *_bands(faults, across, up),
        *_grid(across, up),
    ]
    for number, one in enumerate(shown):
        drawn += _line(one, COLOURS[number % len(COLOURS)], across, up, top + TOP + 8 + 19 * number)
    return [*drawn, "</g>"]


def _bands(faults: Sequence[Fault], across: Axis, up: Axis) -> list[str]:
    drawn = []
    for fault in faults:
        start = across.place(min(fault.start_s / 60, across.high))
        end = across.place(min(fault.end_s / 60, across.high))
        drawn.append(
            f'<rect class="fault" x="{start:.1f}" y="{up.end:g}" width="{max(end - start, 1.5):.1f}" '
            f'height="{up.start - up.end:g}" fill="{GRID_COLOUR}" fill-opacity="0.3">'
            f"<title>{escape(fault.name)} {escape(fault.target)}</title></rect>"
        )
    return drawn


def _grid(across: Axis, up: Axis) -> list[str]:
    drawn = []
    for tick in up.ticks:
        y = f"{up.place(tick):.1f}"
        drawn.append(
            f'<line x1="{across.start}" x2="{across.end}" y1="{y}" y2="{y}" stroke="{GRID_COLOUR}" '
            f'stroke-opacity="0.3"/><text x="{across.start - 8}" y="{y}" dy="4" text-anchor="end">{tick:,g}</text>'
        )
    for tick in across.ticks:
        x = f"{across.place(tick):.1f}"
        drawn.append(
            f'<line x1="{x}" x2="{x}" y1="{up.start}" y2="{up.start + 5}" stroke="{GRID_COLOUR}"/>'
            f'<text x="{x}" y="{up.start + 18}" text-anchor="middle">{tick:g}</text>'
        )
    middle = (across.start + across.end) / 2
    return [*drawn, f'<text x="{middle:g}" y="{up.start + 36:g}" text-anchor="middle">minutes</text>']


def _line(one: Judged, colour: str, across: Axis, up: Axis, legend_y: float) -> list[str]:
    measure = one.measure
    text = " ".join(
        f"{across.place(point.at_s / 60):.1f},{up.place(max(point.value, up.low)):.1f}"
        for point in thin_out(measure.points)
    )
    grows = one.trend.verdict is Verdict.GROWS
    label = escape(label_of(measure)) + (" GROWS" if grows else "")
    x = WIDTH - RIGHT + 12
    weight = ' font-weight="bold"' if grows else ""
    return [
        f'<polyline class="line" points="{text}" fill="none" stroke="{colour}" stroke-width="{3 if grows else 1.5}"/>',
        f'<line x1="{x}" x2="{x + 22}" y1="{legend_y}" y2="{legend_y}" stroke="{colour}" stroke-width="2"/>'
        f'<text x="{x + 28}" y="{legend_y + 4}"{weight}>{label}</text>',
    ]


def label_of(measure: Measure) -> str:
    """Return the name of a line, short enough for the legend."""
    return measure.name if len(measure.name) <= 28 else measure.name[:27] + "…"
