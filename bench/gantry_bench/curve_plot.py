"""A picture of a curve as SVG: a panel for each figure, with a line for each code path. Pure; no packages are needed.

The horizontal axis is logarithmic; the vertical one is, too, if the values of a panel span more than two decades. Each
bend has a ring around its point, and a label with its size. Text stays text, and every colour can be read on a light
and on a dark background. The same figures give the same bytes.

    | title            | title            |
    |  y ^      o--o   |  y ^             |
    |    |  o--'       |    |  o--o--o    |
    |    +---------> x |    +---------> x |
    legend
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final
from xml.sax.saxutils import escape

import msgspec

from gantry_bench.curve_points import PATH_TEXTS, Bend, Curve, Measure, Point, find_bend, line_of, paths_of, size_text
from gantry_bench.send_figures import GantryPath

PANEL_WIDTH: Final = 440
PANEL_HEIGHT: Final = 270
COLUMNS: Final = 2
LEFT, RIGHT, TOP, BOTTOM = 84, 24, 44, 56
LEGEND_HEIGHT: Final = 34
DECADES_LOGARITHMIC: Final = 100.0
"""Values whose largest is more than so many times the smallest get a logarithmic axis."""
TICKS: Final = 4
TEXT_COLOUR: Final = "#7a7f87"
"""A grey with a contrast of 4 on white and on black."""
GRID_COLOUR: Final = "#8b949e"
COLOURS: Final[dict[GantryPath, str]] = {"compiled": "#2f81f7", "python": "#c9680a"}
DASHES: Final[dict[GantryPath, str]] = {"compiled": "", "python": ' stroke-dasharray="6 4"'}
"""The lines differ by more than their colour."""


class Axis(msgspec.Struct, frozen=True):
    """A range of values on a range of pixels."""

    low: float
    high: float
    start: float
    end: float
    is_logarithmic: bool
    ticks: list[float]

    def place(self, value: float) -> float:
        """Return the pixel of a value."""
        if self.is_logarithmic:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def size_axis(sizes: Sequence[float], start: float, end: float) -> Axis:
    """Return the logarithmic axis of the steps; each has a tick."""
    low, high = min(sizes), max(sizes)
    if low == high:
        low, high = low / 2, high * 2
    return Axis(low, high, start, end, True, sorted(set(sizes)))


def value_axis(values: Sequence[float], start: float, end: float) -> Axis:
    """Return the axis of a figure: from 0, or logarithmic for values that span more than two decades."""
    low, high = min(values), max(values)
    if low > 0 and high / low > DECADES_LOGARITHMIC:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        ticks = [10.0**power for power in range(first, last + 1)]
        return Axis(ticks[0], ticks[-1], start, end, True, ticks)
    step = tick_step(max(high, -low, 0.0) or 1.0)
    lowest = math.floor(low / step) if low < 0 else 0
    ticks = [round(step * number, 9) for number in range(lowest, max(math.ceil(high / step), 1) + 1)]
    return Axis(ticks[0], ticks[-1], start, end, False, ticks)


def tick_step(most: float) -> float:
    """Return a round distance of ticks: 1, 2 or 5 times a power of ten."""
    rough = most / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))


def draw(curve: Curve, points: Sequence[Point]) -> str:
    """Return the picture of a curve. Panels without values are left out."""
    paths = paths_of(points)
    panels = [one for one in curve.panels if any(line_of(points, one.key, path) for path in paths)]
    rows = math.ceil(len(panels) / COLUMNS)
    width, height = PANEL_WIDTH * min(COLUMNS, max(len(panels), 1)), PANEL_HEIGHT * rows + LEGEND_HEIGHT
    name = escape(f"Cost by number of {curve.axis}")
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" font-family="sans-serif" font-size="12" fill="{TEXT_COLOUR}">',
        f"<title>{name}</title>",
    ]
    for number, measure in enumerate(panels):
        left, top = PANEL_WIDTH * (number % COLUMNS), PANEL_HEIGHT * (number // COLUMNS)
        lines += _panel(curve, measure, points, paths, left=left, top=top)
    lines += _legend(paths, height - LEGEND_HEIGHT / 2)
    return "\n".join([*lines, "</svg>", ""])


def _panel(
    curve: Curve, measure: Measure, points: Sequence[Point], paths: Sequence[GantryPath], *, left: int, top: int
) -> list[str]:
    lines = {path: line_of(points, measure.key, path) for path in paths}
    across = size_axis([size for line in lines.values() for size, _ in line], left + LEFT, left + PANEL_WIDTH - RIGHT)
    up = value_axis([value for line in lines.values() for _, value in line], top + PANEL_HEIGHT - BOTTOM, top + TOP)
    middle_x, middle_y = (across.start + across.end) / 2, (up.start + up.end) / 2
    drawn = [
        f'<g class="panel" id="{curve.name}-{escape(measure.key)}">',
        f'<text x="{across.start}" y="{top + 22}" font-weight="bold">{escape(measure.title)}</text>',
        *_grid(across, up),
        f'<text x="{middle_x:g}" y="{up.start + 40:g}" text-anchor="middle">{escape(curve.axis)} (log)</text>',
        f'<text transform="translate({left + 14} {middle_y:g}) rotate(-90)" text-anchor="middle">'
        f"{escape(measure.heading)}{' (log)' if up.is_logarithmic else ''}</text>",
    ]
    for path, line in lines.items():
        if line:
            drawn += _line(path, line, find_bend(line, measure), across, up)
    return [*drawn, "</g>"]


def _grid(across: Axis, up: Axis) -> list[str]:
    drawn = []
    for tick in up.ticks:
        y = f"{up.place(tick):.2f}"
        drawn.append(
            f'<line x1="{across.start}" x2="{across.end}" y1="{y}" y2="{y}" stroke="{GRID_COLOUR}" '
            f'stroke-opacity="0.3"/><text x="{across.start - 8}" y="{y}" dy="4" text-anchor="end">{tick:,g}</text>'
        )
    for tick in across.ticks:
        x = f"{across.place(tick):.2f}"
        drawn.append(
            f'<line x1="{x}" x2="{x}" y1="{up.start}" y2="{up.start + 5}" stroke="{GRID_COLOUR}"/>'
            f'<text x="{x}" y="{up.start + 20}" text-anchor="middle">{size_text(tick)}</text>'
        )
    return drawn


def _line(
    path: GantryPath, line: Sequence[tuple[float, float]], bend: Bend | None, across: Axis, up: Axis
) -> list[str]:
    colour, name = COLOURS[path], PATH_TEXTS[path]
    places = [(across.place(size), up.place(value)) for size, value in line]
    text = " ".join(f"{x:.2f},{y:.2f}" for x, y in places)
    drawn = [
        f'<polyline class="line {path}" points="{text}" fill="none" stroke="{colour}" stroke-width="2"{DASHES[path]}/>'
    ]
    for (x, y), (size, value) in zip(places, line, strict=True):
        drawn.append(
            f'<circle cx="{x:.2f}" cy="{y:.2f}" r="3.5" fill="{colour}">'
            f"<title>{name}, {size_text(size)}: {value:,.4g}</title></circle>"
        )
    if bend is not None:
        x, y = across.place(bend.size), up.place(bend.value)
        anchor = "end" if x > (across.start + across.end) / 2 else "start"
        # One path has its label above the point and the other below, so that two bends at one step stay readable.
        label_y = y - 10 if path == "compiled" else y + 20
        label_y = min(max(label_y, up.end - 4), up.start - 4)
        drawn.append(
            f'<circle class="bend {path}" cx="{x:.2f}" cy="{y:.2f}" r="7" fill="none" stroke="{colour}"/>'
            f'<text class="bend {path}" x="{x + (-9 if anchor == "end" else 9):.2f}" y="{label_y:.2f}" '
            f'text-anchor="{anchor}" fill="{colour}">bend at {size_text(bend.size)}</text>'
        )
    return drawn


def _legend(paths: Sequence[GantryPath], y: float) -> list[str]:
    drawn = []
    for number, path in enumerate(paths):
        x = LEFT + 160 * number
        drawn.append(
            f'<line x1="{x}" x2="{x + 30}" y1="{y:g}" y2="{y:g}" stroke="{COLOURS[path]}" '
            f'stroke-width="2"{DASHES[path]}/>'
            f'<text x="{x + 38}" y="{y + 4:g}">{PATH_TEXTS[path]} path</text>'
        )
    return drawn
