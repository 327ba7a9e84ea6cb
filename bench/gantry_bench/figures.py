"""A table of figures, rendered for the terminal and for a page of the documentation, with the same numbers in both.

A page keeps a place for each table between two markers:

    <!-- bench-store: append tail -->
    ... the text between them is replaced ...
    <!-- end: append tail -->

The first word is the benchmark's name: one page may hold the tables of several. A page that has lost its markers is
an error, because a page without figures could go unnoticed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from rich.console import Console
from rich.table import Table

from gantry_bench.errors import BenchmarkFailed


class Figures(msgspec.Struct, frozen=True):
    """One table, with the notes that are needed to read it."""

    name: str
    """The name in its markers."""

    headings: list[str]
    rows: list[list[str]]
    notes: list[str]
    """Sentences below the table: conditions, and missing parts with their reasons."""


def print_figures(console: Console, figures: Figures) -> None:
    """Print the table to the terminal."""
    table = Table(title=figures.name, title_justify="left")
    for place, heading in enumerate(figures.headings):
        table.add_column(heading, justify="left" if place == 0 else "right")
    for row in figures.rows:
        table.add_row(*row)
    console.print(table)
    for note in figures.notes:
        console.print(note, style="dim", highlight=False)


def markdown(figures: Figures) -> str:
    """Return the table as Markdown."""
    lines = [_row(figures.headings), "|" + "---|" * len(figures.headings), *(_row(row) for row in figures.rows)]
    for note in figures.notes:
        lines += ["", note]
    return "\n".join(lines)


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def publish(page: str, all_figures: Sequence[Figures], *, benchmark: str = "bench-store") -> str:
    """Return the page with each table of a benchmark in its place."""
    for figures in all_figures:
        start, end = f"<!-- {benchmark}: {figures.name} -->\n", f"<!-- end: {figures.name} -->"
        before, found_start, rest = page.partition(start)
        _, found_end, after = rest.partition(end)
        if not found_start or not found_end:
            raise BenchmarkFailed(f"the page has no markers for {figures.name!r}; add the lines {start.strip()} {end}")
        page = f"{before}{start}{markdown(figures)}\n{end}{after}"
    return page
