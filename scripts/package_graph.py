"""Write the package graph of ARCHITECTURE.md from the imports of the source, including type-only imports.

The diagram omits edges that a longer path implies; the tables list every import. `make format` updates them, and the
docs test fails if they are outdated.
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
"""The packages whose subpackages the second table lists."""

Graph = Mapping[str, frozenset[str]]
"""The imported parts of each part, a package or a subpackage."""


def packages_of(root: Path) -> list[str]:
    """Return the import packages of the source, from the contracts in pyproject.toml."""
    names: list[str] = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]["root_packages"]
    return names


def imports_between(graph: grimp.ImportGraph, parts: list[str]) -> Graph:
    """Return the imports between parts; a module belongs to the part with the longest matching prefix."""
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
    """Return the parts in topological order, imported ones first. Raises graphlib.CycleError."""
    sorter = TopologicalSorter({part: sorted(graph[part]) for part in sorted(graph)})
    return list(sorter.static_order())


def without_implied(graph: Graph) -> dict[str, list[str]]:
    """Return the transitive reduction: the graph without edges that a longer path implies."""
    reached: dict[str, set[str]] = {}
    kept: dict[str, list[str]] = {}
    for part in in_order(graph):
        further = set[str]().union(*(reached[other] for other in graph[part]))
        reached[part] = further | graph[part]
        kept[part] = sorted(graph[part] - further)
    return kept


def draw(graph: Graph) -> Iterator[str]:
    """Yield the graph as Mermaid; an arrow leads from the importing package to the imported one."""
    yield "```mermaid"
    yield "graph TD"
    for part, imported in without_implied(graph).items():
        yield from (f"    {part} --> {other}" for other in imported)
    yield "```"


def table(graph: Graph, heading: str, nothing: str) -> Iterator[str]:
    """Yield a table of the parts and their imports, the lowest layer first."""
    yield f"| {heading} | imports |"
    yield "|---|---|"
    for part in in_order(graph):
        yield f"| `{part}` | {', '.join(f'`{other}`' for other in sorted(graph[part])) or nothing} |"


def parts_inside(graph: grimp.ImportGraph) -> list[str]:
    """Return the subpackages of the packages in OPENED, except those that are in OPENED themselves."""
    children = {child for package in OPENED for child in graph.find_children(package)}
    return sorted(child for child in children - set(OPENED) if graph.find_children(child))


def graph_section(root: Path) -> str:
    """Return the generated text between the two marks."""
    packages = packages_of(root)
    graph = grimp.build_graph(*packages, cache_dir=None)
    lines = [
        *draw(imports_between(graph, packages)),
        "",
        *table(imports_between(graph, packages), "package", "no other package"),
        "",
        *table(imports_between(graph, parts_inside(graph)), "part of the broker", "no other part"),
    ]
    return "\n".join(lines)


def page(root: Path) -> str:
    """Return ARCHITECTURE.md with the current graph."""
    text = (root / "ARCHITECTURE.md").read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{graph_section(root)}\n{END}{after}"
