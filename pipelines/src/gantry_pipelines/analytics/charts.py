"""Charts as inline SVG: stacked areas, lines, bars. Text and shapes only: no script and no external resources.

Colours are classes (`s0` to `s7`), so that the page defines them for light and dark mode. Each chart has a title and a
description for screen readers, and a tooltip on each column; the page shows its numbers in a table. A line has a gap
where there is no value, because a missing measurement is not zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import count
from typing import Final, final

from gantry_pipelines.analytics.axes import (
    Unit,
    format_amount,
    log_ticks,
    moment_text,
    round_ticks,
    time_text,
    time_ticks,
)

WIDTH: Final = 880
"""The width of a chart, in units of its SVG, as all sizes here."""
HEIGHT: Final = 276
NARROW: Final = 430
"""Width of a chart beside another one."""
LOG_SCALE_RATIO_MIN: Final = 30.0
"""Ratio of the largest to the smallest value from which lines are drawn on a logarithmic axis."""
LEFT: Final = 66
"""The margin on the left of the plot, for the labels of the axis."""
RIGHT: Final = 14
TOP: Final = 30
BOTTOM: Final = 30
COLOURS_COUNT: Final = 8
"""The number of colours; further series repeat them."""
BAR_HEIGHT: Final = 24
_serial: Callable[[], int] = count(1).__next__
"""Returns the next number, for ids that are unique on a page."""


@final
@dataclass(frozen=True, slots=True)
class Series:
    """A name and a value for each time of a chart; None if it was not measured."""

    name: str
    values: Sequence[float | None]


@final
@dataclass(frozen=True, slots=True)
class Chart:
    """The data of a chart over time."""

    title: str
    unit: Unit
    times_ms: Sequence[int]
    step_ms: int
    """Length of the interval that begins at each of the times."""
    series: Sequence[Series]

    @property
    def end_ms(self) -> int:
        """The end of the last interval."""
        return self.times_ms[-1] + self.step_ms


def render_areas(chart: Chart) -> str:
    """Return a chart of stacked areas."""
    sums = [sum(series.values[at] or 0 for series in chart.series) for at in range(len(chart.times_ms))]
    plot = _Plot(chart, round_ticks(max(sums, default=0), is_binary=chart.unit.is_binary), WIDTH)
    parts: list[str] = []
    base = [0.0] * len(sums)
    for number, series in enumerate(chart.series):
        top = [low + (value or 0) for low, value in zip(base, series.values, strict=True)]
        forward = "".join(f"L{x}" for x in plot.points(top)).replace("L", "M", 1)
        back = "".join(f"L{x}" for x in reversed(plot.points(base)))
        parts.append(f'<path class="area s{number % COLOURS_COUNT}" d="{forward}{back}Z"/>')
        base = top
    return plot.render("".join(parts))


def render_lines(chart: Chart, *, width: int = WIDTH, is_logarithmic: bool = False) -> str:
    """Return a chart of lines; with `is_logarithmic`, on a logarithmic axis if the values differ very much."""
    values = [value for series in chart.series for value in series.values if value is not None]
    largest, smallest = max(values, default=0), min((value for value in values if value > 0), default=0)
    if is_logarithmic and smallest and largest / smallest >= LOG_SCALE_RATIO_MIN:
        plot = _Plot(chart, log_ticks(smallest, largest), width)
    else:
        plot = _Plot(chart, round_ticks(largest, is_binary=chart.unit.is_binary), width)
    parts = [
        f'<path class="line s{number % COLOURS_COUNT}" d="{"".join(plot.runs(series.values))}"/>'
        for number, series in enumerate(chart.series)
    ]
    return plot.render("".join(parts))


def render_legend(chart: Chart) -> str:
    """Return the legend, a list of the series with their colours."""
    items = (
        f'<li><span class="key s{number % COLOURS_COUNT}"></span>{escape(series.name)}</li>'
        for number, series in enumerate(chart.series)
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


def render_bars(title: str, unit: Unit, rows: Sequence[tuple[str, float, str]]) -> str:
    """Return a chart of horizontal bars from rows (name, value, label at the bar's end)."""
    largest = max((value for _, value, _ in rows), default=0) or 1.0
    height = BAR_HEIGHT * len(rows) + 6
    left, right = 230, 150
    parts: list[str] = []
    for at, (name, value, text) in enumerate(rows):
        y, width = at * BAR_HEIGHT + 4, (WIDTH - left - right) * value / largest
        shown = name if len(name) <= 34 else f"{name[:33]}…"
        parts.append(
            f'<g><title>{escape(name)}: {escape(text)}</title><text class="name" x="{left - 10}" y="{y + 13}">'
            f'{escape(shown)}</text><rect class="bar s0" x="{left}" y="{y}" width="{max(width, 1):.1f}" height="16" '
            f'rx="2"/><text class="value" x="{left + max(width, 1) + 8:.1f}" y="{y + 13}">{escape(text)}</text></g>'
        )
    values = ", ".join(f"{name} {text}" for name, _, text in rows[:8])
    return _svg(title, f"{title}, in {unit.label}: {values}.", height, WIDTH, "".join(parts))


@final
class _Plot:
    """The axes of one chart, and the mapping from values to coordinates."""

    def __init__(self, chart: Chart, ticks: list[float], width: int) -> None:
        self._chart = chart
        self._ticks = ticks
        self._width = width
        self._begin = chart.times_ms[0]
        self._length = max(chart.end_ms - self._begin, 1)

    def x(self, time_ms: float) -> float:
        return LEFT + (self._width - LEFT - RIGHT) * (time_ms - self._begin) / self._length

    def y(self, value: float) -> float:
        low, high = self._ticks[0], self._ticks[-1]
        if low > 0:  # logarithmic
            share = math.log(max(value, low) / low) / math.log(high / low)
        else:
            share = value / high
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - share)

    def points(self, values: Sequence[float]) -> list[str]:
        """Return points in the middle of each interval; the first and the last extend to the edges."""
        middles = [time_ms + self._chart.step_ms / 2 for time_ms in self._chart.times_ms]
        points = [(self.x(middle), self.y(value)) for middle, value in zip(middles, values, strict=True)]
        if points:
            points = [(self.x(self._begin), points[0][1]), *points, (self.x(self._chart.end_ms), points[-1][1])]
        return [f"{x:.1f},{y:.1f}" for x, y in points]

    def runs(self, values: Sequence[float | None]) -> Iterator[str]:
        """Yield the path commands of the stretches that have values; a single value is a dot."""
        is_open = False
        for at, (time_ms, value) in enumerate(zip(self._chart.times_ms, values, strict=True)):
            if value is None:
                is_open = False
                continue
            place = f"{self.x(time_ms + self._chart.step_ms / 2):.1f},{self.y(value):.1f}"
            yield f"{'L' if is_open else 'M'}{place}"
            if not is_open and (at + 1 == len(values) or values[at + 1] is None):
                yield "h0.1"
            is_open = True

    def render(self, shapes: str) -> str:
        """Return the complete chart with axes and shapes."""
        chart = self._chart
        names = ", ".join(series.name for series in chart.series)
        description = (
            f"{chart.title}, in {chart.unit.label}, from {moment_text(self._begin)} to {moment_text(chart.end_ms)} UTC,"
            f" up to {format_amount(self._ticks[-1], chart.unit)}. Shown: {names}. The numbers are in the table below."
        )
        return _svg(
            chart.title, description, HEIGHT, self._width, f"{''.join(self._axes())}{shapes}{''.join(self._tips())}"
        )

    def _axes(self) -> Iterator[str]:
        for tick in self._ticks:
            y = self.y(tick)
            kind = "base" if tick == self._ticks[0] else "grid"
            yield f'<line class="{kind}" x1="{LEFT}" x2="{self._width - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            text = format_amount(tick, self._chart.unit)
            yield f'<text class="tick y" x="{LEFT - 8}" y="{y + 4:.1f}">{escape(text)}</text>'
        scale = ", each line ten times the one below" if self._ticks[0] > 0 else ""
        yield f'<text class="tick" x="{LEFT}" y="14">{self._chart.unit.label}{scale}; times are UTC</text>'
        ticks = time_ticks(self._begin, self._chart.end_ms, max(self._width // 95, 3))
        for moment in ticks:
            x = self.x(moment)
            yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{HEIGHT - BOTTOM}" y2="{HEIGHT - BOTTOM + 4}"/>'
            anchor = "start" if x < LEFT + 20 else "end" if x > self._width - RIGHT - 20 else "middle"
            yield (
                f'<text class="tick" text-anchor="{anchor}" x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}">'
                f"{time_text(moment, ticks)}</text>"
            )

    def _tips(self) -> Iterator[str]:
        """Yield a transparent column for each time, whose tooltip has the values."""
        chart = self._chart
        for at, time_ms in enumerate(chart.times_ms):
            x, end = self.x(time_ms), self.x(time_ms + chart.step_ms)
            values = [(series.name, series.values[at]) for series in chart.series]
            value_lines = [f"{name}: {format_amount(value, chart.unit)}" for name, value in values if value is not None]
            text = "\n".join([f"{moment_text(time_ms)} UTC", *value_lines])
            yield (
                f'<rect class="tip" x="{x:.1f}" y="{TOP}" width="{max(end - x, 0.5):.1f}" '
                f'height="{HEIGHT - TOP - BOTTOM}"><title>{escape(text)}</title></rect>'
            )


def _svg(title: str, description: str, height: int, width: int, content: str) -> str:
    name = f"c{_serial()}"
    return (
        f'<svg role="img" viewBox="0 0 {width} {height}" aria-labelledby="{name}t {name}d">'
        f'<title id="{name}t">{escape(title)}</title><desc id="{name}d">{escape(description)}</desc>{content}</svg>'
    )
