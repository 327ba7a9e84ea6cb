"""The tables and pictures of the curves, for the terminal and for docs/benchmarks.md. Pure.

A table has a row for each step and code path. Below it are the conditions, a sentence for each bend, and the steps that
were not measured, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from gantry_bench.curve_definitions import CURVES
from gantry_bench.curve_plot import draw
from gantry_bench.curve_points import (
    PATH_TEXTS,
    Curve,
    CurveName,
    Point,
    Skipped,
    explain,
    find_bend,
    line_of,
    paths_of,
    size_text,
)
from gantry_bench.figures import Figures
from gantry_bench.table import OTHER_CORES_NOTICED

IMAGES: Final = "images"
"""The folder of the pictures, beside the page."""
CORES_BUSY_SHARE: Final = 0.8
"""From this share of a machine's cores on, the cores are what bends a curve."""


def image_name(curve: CurveName) -> str:
    """Return the file name of a curve's picture."""
    return f"scale-{curve}.svg"


def points_of(points: Sequence[Point], curve: CurveName) -> list[Point]:
    """Return the points of one curve, by size, with the code paths of a size side by side."""
    own = [point for point in points if point.curve == curve]
    order = {path: number for number, path in enumerate(paths_of(own))}
    return sorted(own, key=lambda point: (point.size, order[point.path]))


def curve_figures(
    curve: Curve, points: Sequence[Point], skipped: Sequence[Skipped], *, cores: int, problem: str = ""
) -> Figures:
    """Return the table of a curve with its notes; ``points`` and ``skipped`` may be those of all curves."""
    own = points_of(points, curve.name)
    columns = [one for one in curve.measures if any(one.key in point.values for point in own)]
    rows = [
        [
            size_text(point.size), PATH_TEXTS[point.path],
            *(f"{point.values[one.key]:,.{one.decimals}f}" if one.key in point.values else "" for one in columns),
        ]
        for point in own
    ]  # fmt: skip
    notes = [*curve.notes, *explain(curve, own)]
    if curve.name == "shards":
        notes += cores_notes(own, cores)
    notes += [f"Not measured: {size_text(one.size)} {curve.axis}: {one.reason}." for one in unique(skipped, curve.name)]
    if problem:
        notes.append(f"Not complete: {problem}")
    others = max((point.other_cores for point in own), default=0.0)
    if others > OTHER_CORES_NOTICED:
        notes.append(f"Other programs used up to {others:.1f} cores meanwhile, so the figures mean little.")
    return Figures(
        name=curve.name, headings=[curve.axis, "path", *(one.heading for one in columns)], rows=rows, notes=notes
    )


def unique(skipped: Sequence[Skipped], curve: CurveName) -> list[Skipped]:
    """Return the skipped steps of a curve, one for each size: both code paths lack the same."""
    return list({one.size: one for one in skipped if one.curve == curve}.values())


def cores_notes(points: Sequence[Point], cores: int) -> list[str]:
    """Return a sentence for each code path whose rate bends, with the cores that were busy at the bend."""
    measure = next(one for one in CURVES["shards"].measures if one.key == "rate")
    notes = []
    for path in paths_of(points):
        bend = find_bend(line_of(points, "rate", path), measure)
        if bend is None:
            continue
        point = next(point for point in points if point.path == path and point.size == bend.size)
        busy = point.values["broker_cores"] + point.values["load_cores"] + point.other_cores
        text = f"The rate of the {PATH_TEXTS[path]} path bends at {size_text(bend.size)} shards: brokers, load "
        text += f"generators and other programs use {busy:.1f} of the {cores} cores there"
        is_full = busy >= CORES_BUSY_SHARE * cores
        notes.append(
            f"{text}, so **the cores are the bend**." if is_full else f"{text}, so the cores are not the bend."
        )
    return notes


def page_figures(
    points: Sequence[Point], skipped: Sequence[Skipped], *, cores: int, problems: Mapping[CurveName, str]
) -> list[Figures]:
    """Return the table of every curve that has points, skipped steps or a problem."""
    return [
        curve_figures(curve, points, skipped, cores=cores, problem=problems.get(name, ""))
        for name, curve in CURVES.items()
        if name in problems or any(one.curve == name for one in points) or unique(skipped, name)
    ]


def with_image(figures: Figures) -> Figures:
    """Return the table with its picture as the first note, as a page shows it."""
    curve = CURVES[figures.name]  # type: ignore[index]  # tables of curves have their names
    image = f"![{figures.name}: the cost by number of {curve.axis}]({IMAGES}/{image_name(curve.name)})"
    return msgspec.structs.replace(figures, notes=[image, *figures.notes])


def pictures(points: Sequence[Point]) -> dict[str, str]:
    """Return the picture of each curve that has points, by file name."""
    return {
        image_name(name): draw(curve, points_of(points, name))
        for name, curve in CURVES.items()
        if points_of(points, name)
    }
