"""The points of a curve, where it bends, and the sentences that explain the bend from the measurement. Pure.

A figure has an expected growth. It is *flat* if more of something idle should cost nothing, *linear* if each one costs
the same in addition to a fixed part, *proportional* if twice as many should yield twice as much. The bend is the first
step at which a figure leaves the line that is expected:

    flat            the value is 1.5 times the lowest of the earlier steps
    linear          the growth since the first step exceeds the value at the first step: the fixed part ends to dominate
    proportional    less than 0.75 of the first step's value is gained for each one

Beyond that, a linear figure is *super-linear* at a step if each one costs 1.5 times as much as between the two steps
before. Growth within the noise of a figure counts for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec

from gantry_bench.send_figures import PATHS, GantryPath

Growth = Literal["none", "flat", "linear", "proportional"]
CurveName = Literal["topics", "connections", "consumers", "shards", "restart"]

FLAT_FACTOR: Final = 1.5
SHARE_MIN: Final = 0.75
SUPER_LINEAR_FACTOR: Final = 1.5
PATH_TEXTS: Final[dict[GantryPath, str]] = {"compiled": "compiled", "python": "Python"}


class Measure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of a curve: its place in the table and, with ``title``, its panel in the picture."""

    key: str
    heading: str
    """The heading of its column, and the label of the panel's axis: what it is, and its unit."""
    decimals: int = 1
    title: str = ""
    """The title of its panel; empty for a figure that is only in the table."""
    growth: Growth = "none"
    noise: float = 0.0
    """A smaller growth, in the figure's unit, is not explained."""
    each_factor: float = 1.0
    each_unit: str = ""
    """How growth for each one is shown: 1024 and "KiB" for a figure in MiB."""
    parts: tuple[tuple[str, str], ...] = ()
    """Keys and texts of figures in the same unit that explain it: which part of the growth is theirs."""
    references: tuple[tuple[str, str], ...] = ()
    """Keys and texts of the same figure under other conditions, to compare with at the bend."""


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured as the number of one thing grows."""

    name: CurveName
    noun: str
    """One of the things that are counted: a topic."""
    axis: str
    """The label of the horizontal axis, and the heading of the first column."""
    measures: tuple[Measure, ...]
    notes: tuple[str, ...] = ()
    """Sentences below the table: the conditions."""

    @property
    def panels(self) -> list[Measure]:
        """The figures with a panel of their own in the picture."""
        return [measure for measure in self.measures if measure.title]


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one step on one code path."""

    curve: CurveName
    path: GantryPath
    size: float
    values: dict[str, float]
    other_cores: float = 0.0
    """The CPU use of other programs meanwhile, in cores."""


class Skipped(msgspec.Struct, frozen=True):
    """A step that was not measured, and why."""

    curve: CurveName
    size: float
    reason: str


class Bend(msgspec.Struct, frozen=True):
    """The step at which a figure leaves the expected line."""

    size: float
    value: float
    before_size: float
    """The step before."""
    before_value: float
    ratio: float
    """How many times the value that is expected, or that was measured earlier."""


Line = Sequence[tuple[float, float]]
"""Sizes and values, in the order of sizes."""


def line_of(points: Sequence[Point], key: str, path: GantryPath) -> list[tuple[float, float]]:
    """Return one figure of one code path; steps without it are left out."""
    own = sorted((point for point in points if point.path == path and key in point.values), key=lambda one: one.size)
    return [(point.size, point.values[key]) for point in own]


def paths_of(points: Sequence[Point]) -> list[GantryPath]:
    """Return the code paths that were measured, in the order of tables."""
    return [path for path in PATHS if any(point.path == path for point in points)]


def find_bend(line: Line, measure: Measure) -> Bend | None:
    """Return the bend of a figure, or None if it has none within what was measured.

    The steps after a bend are beyond it, too: a single step that is dearer is a disturbed measurement.
    """
    found: Bend | None = None
    for number in range(1, len(line)):
        ratio = _ratio_at_bend(line, number, measure)
        if ratio is None:
            found = None
        elif found is None:
            found = Bend(*line[number], *line[number - 1], ratio)
    return found


def _ratio_at_bend(line: Line, number: int, measure: Measure) -> float | None:
    """Return how many times the expected value a step has, if that is beyond a bend; None if it is not."""
    (first_size, first), (size, value) = line[0], line[number]
    if measure.growth == "none":
        return None
    if measure.growth == "proportional":
        ratio = _ratio(value, first * size / first_size)
        return ratio if ratio < SHARE_MIN else None
    if measure.growth == "linear":
        return _ratio(value, first) if value - first > max(first, measure.noise) else None
    lowest = min(earlier for _, earlier in line[:number])
    return _ratio(value, lowest) if value >= FLAT_FACTOR * lowest and value - lowest >= measure.noise else None


def _ratio(value: float, expected: float) -> float:
    return value / expected if expected else 0.0


def find_super_linear(line: Line, measure: Measure) -> Bend | None:
    """Return the first step of a linear figure from which each one costs more than before; None if there is none."""
    if measure.growth != "linear":
        return None
    for (size_0, value_0), (size_1, value_1), (size_2, value_2) in zip(line, line[1:], line[2:], strict=False):
        earlier, later = (value_1 - value_0) / (size_1 - size_0), (value_2 - value_1) / (size_2 - size_1)
        is_measurable = value_1 - value_0 >= measure.noise and value_2 - value_1 >= measure.noise
        if is_measurable and later >= SUPER_LINEAR_FACTOR * earlier:
            return Bend(size_2, value_2, size_1, value_1, later / earlier)
    return None


def size_text(size: float) -> str:
    """Return the number of things for a sentence or an axis."""
    return f"{size:,.0f}" if size == int(size) else f"{size:,g}"


def explain(curve: Curve, points: Sequence[Point]) -> list[str]:
    """Return a sentence or two for each panel and code path: the bend, and which part of the cost grows there."""
    sentences = []
    for measure in curve.panels:
        for path in paths_of(points):
            line = line_of(points, measure.key, path)
            if len(line) > 1 and measure.growth != "none":
                own = {point.size: point.values for point in points if point.path == path}
                sentences.append(f"{measure.title}, {PATH_TEXTS[path]}: {_explain_line(curve, measure, line, own)}")
    return sentences


def _explain_line(curve: Curve, measure: Measure, line: Line, own: Mapping[float, Mapping[str, float]]) -> str:
    def shown(value: float) -> str:
        return f"{value:,.{measure.decimals}f}"

    bend = find_bend(line, measure)
    last_size, last = line[-1]
    if measure.growth == "linear":
        return _explain_linear(curve, measure, line, bend)
    if measure.growth == "proportional":
        if bend is None:
            most = size_text(last_size)
            return f"grows with every {curve.noun} up to {most}, from {shown(line[0][1])} to {shown(last)}."
        text = f"bends at {size_text(bend.size)}: {bend.ratio:.2f} of what as many times the first one would yield"
    elif bend is None:
        first_size, first = line[0]
        return (
            f"no bend up to {size_text(last_size)}; {shown(first)} at {size_text(first_size)}, {shown(last)} at "
            f"{size_text(last_size)}."
        )
    else:
        text = f"bends at {size_text(bend.size)}, {shown(bend.value)} after {shown(bend.before_value)} at "
        text += f"{size_text(bend.before_size)} ({bend.ratio:.1f} times the lowest)"
    references = "".join(
        f"; {text} {shown(own[bend.size][key])}" for key, text in measure.references if key in own[bend.size]
    )
    return f"{text}{_explain_parts(measure, own[bend.before_size], own[bend.size])}{references}."


def _explain_linear(curve: Curve, measure: Measure, line: Line, bend: Bend | None) -> str:
    (first_size, first), (last_size, last) = line[0], line[-1]
    each = (last - first) / (last_size - first_size)
    text = f"{first:,.{measure.decimals}f} at {size_text(first_size)}, and "
    text += f"{each * measure.each_factor:,.3g} {measure.each_unit} for each further {curve.noun}"
    if last - first < measure.noise:
        return f"no growth beyond noise up to {size_text(last_size)}."
    if bend is None:
        text += f"; up to {size_text(last_size)} the fixed part is the larger one"
    else:
        text += f"; bends at {size_text(bend.size)}, where growth exceeds the fixed part"
    steep = find_super_linear(line, measure)
    if steep is None:
        return f"{text}."
    return (
        f"{text}. **Faster than linear** at {size_text(steep.size)}: each one costs {steep.ratio:.1f} times as much as "
        "between the two steps before."
    )


def _explain_parts(measure: Measure, before: Mapping[str, float], after: Mapping[str, float]) -> str:
    """Return which parts have grown, largest first."""
    grown = sorted(
        ((after[key] - before[key], text) for key, text in measure.parts if key in before and key in after),
        key=lambda one: -one[0],
    )
    if not grown:
        return ""
    return "; of the change, " + ", ".join(f"{change:+,.{measure.decimals}f} {text}" for change, text in grown)
