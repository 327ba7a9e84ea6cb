"""Tests of groups ask for a cluster that can do what they do to it: read from their own text, not from a run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from gantry_cluster.capabilities import Capability
from gantry_cluster.demands import MARKER

TELLTALES = {
    **dict.fromkeys(("crash_node", "crash", "revive", "disk"), Capability.CRASH_NODES),
    **dict.fromkeys(("uplink_cut", "deaf"), Capability.CUT_NODES),
    "away": Capability.STOP_API_SERVER,
    **dict.fromkeys(
        ("kill_and_wait", "leader_stopped", "container_id", "kill_container", "stopped_container", "is_direct"),
        Capability.ENTER_CONTAINERS,
    ),
    "name_image": Capability.GIVE_IMAGES,
    **dict.fromkeys(("load_image", "pipelines_image"), Capability.LOAD_IMAGES),
    **dict.fromkeys(("outside_gantry", "external_address", "is_known_outside"), Capability.REACH_NODES),
    **dict.fromkeys(("BUFFERED", "UNCOMMITTED", "WITH_PAGES"), Capability.HUGE_PAGES),
}
"""Names in a test that only some clusters have something behind."""
TESTS = sorted(Path(__file__).parent.glob("test_e2e_group*.py"))


def names_in(tree: ast.AST) -> set[str]:
    """Every name, attribute, parameter and keyword."""
    found = set()
    for one in ast.walk(tree):
        match one:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                found.add(name)
    return found


def unsaid(text: str) -> Iterator[str]:
    """Tests of a module that use what they do not ask for."""
    parts = {one.name: one for one in ast.parse(text).body if isinstance(one, ast.FunctionDef | ast.ClassDef)}
    for name, part in parts.items():
        seen, new = set[str](), names_in(part)
        while new - seen:
            seen |= new
            new = set().union(*(names_in(parts[other]) for other in seen & parts.keys()))
        said = " ".join(map(ast.unparse, part.decorator_list))
        wanted = {TELLTALES[word] for word in seen & TELLTALES.keys() if word not in parts}
        for capability in sorted(wanted) if name.startswith("test_") else ():
            if not re.search(rf"{MARKER}\([^)]*\b{capability.name}\b", said):
                yield f"{name} needs {capability.name}"


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_a_test_that_hurts_a_cluster_asks_for_one_that_can_be_hurt(path: Path) -> None:
    """Whatever it uses itself, by a helper, a fixture or a parameter of its module."""
    assert list(unsaid(path.read_text())) == []
    assert f"{MARKER}(Capability.RUN_GROUPS)" in path.read_text()


def test_a_mark_that_is_missing_is_found() -> None:
    """The twin: without their marks these tests are told."""
    bare = [re.sub(rf"@pytest\.mark\.{MARKER}\(.*\)\n", "", path.read_text()) for path in TESTS]

    told = [line.rpartition(" ")[2] for text in bare for line in unsaid(text)]

    assert set(told) == {one.name for one in TELLTALES.values()}
