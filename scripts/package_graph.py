"""Draw who imports whom in ARCHITECTURE.md, from the imports of the source, those for types only included.

The drawing leaves out an arrow that a longer way of arrows implies; the tables name every import. `make format`
writes them again, and the docs test fails when they are stale.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Final

import grimp

BEGIN: Final = "<!-- package graph: written by scripts/package_graph.py (`make format`) from the imports -->"
END: Final = "<!-- end: package graph -->"
OPENED: Final = ("gantry_broker", "gantry_broker.server")
"""Packages whose parts the second table shows one by one."""

Graph = Mapping[str, frozenset[str]]


def packages_of(root: Path) -> list[str]:
    """The import packages of the source, as the contracts of pyproject.toml name them."""
    names: list[str] = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]["root_packages"]
    return names


def imports_between(graph: grimp.ImportGraph, parts: list[str]) -> Graph:
    """What each part imports of the others; a module belongs to the part with the longest name that holds it."""
    part_of = {
        module: max((part for part in parts if f"{module}.".startswith(f"{part}.")), key=len, default=None)
        for module in graph.modules
    }
    found: dict[str, set[str]] = {part: set() for part in parts}
    for importer, part in part_of.items():
        if part is not None:
            found[part] |= {
                other
                for imported in graph.find_modules_directly_imported_by(importer)
                if (other := part_of[imported]) is not None and other != part
            }
    return {part: frozenset(imported) for part, imported in found.items()}


def in_order(graph: Graph) -> list[str]:
    """Every part after those that it imports. Raises graphlib.CycleError, which names a cycle."""
    sorter = TopologicalSorter({part: sorted(graph[part]) for part in sorted(graph)})
    return list(sorter.static_order())


def without_implied(graph: Graph) -> dict[str, list[str]]:
    """The graph without an arrow from a part to another that it reaches by a longer way, too."""
    reached: dict[str, set[str]] = {}
    kept: dict[str, list[str]] = {}
    for part in in_order(graph):
        further = set[str]().union(*(reached[other] for other in graph[part]))
        reached[part] = further | graph[part]
        kept[part] = sorted(graph[part] - further)
    return kept


def drawing(graph: Graph) -> Iterator[str]:
    """The graph for Mermaid; an arrow leads from the importing package to the imported one."""
    yield "```mermaid"
    yield "graph TD"
    for part, imported in without_implied(graph).items():
        yield from (f"    {part} --> {other}" for other in imported)
    yield "```"


def table(graph: Graph, heading: str, nothing: str) -> Iterator[str]:
    """Each part and what it imports, the lowest first."""
    yield f"| {heading} | imports |"
    yield "|---|---|"
    for part in in_order(graph):
        yield f"| `{part}` | {', '.join(f'`{other}`' for other in sorted(graph[part])) or nothing} |"


def parts_inside(graph: grimp.ImportGraph) -> list[str]:
    """The sub-packages of the opened packages, but for those that are opened themselves."""
    children = {child for package in OPENED for child in graph.find_children(package)}
    return sorted(child for child in children - set(OPENED) if graph.find_children(child))


def written(root: Path) -> str:
    """What stands between the two marks."""
    packages = packages_of(root)
    graph = grimp.build_graph(*packages, cache_dir=None)
    lines = [
        *drawing(imports_between(graph, packages)),
        "",
        *table(imports_between(graph, packages), "package", "no other package"),
        "",
        *table(imports_between(graph, parts_inside(graph)), "part of the broker", "no other part"),
    ]
    return "\n".join(lines)


def page(root: Path) -> str:
    """ARCHITECTURE.md with the graph as it is today."""
    text = (root / "ARCHITECTURE.md").read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{written(root)}\n{END}{after}"
