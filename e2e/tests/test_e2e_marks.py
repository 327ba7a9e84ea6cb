"""Tests of groups declare the capabilities that they use, checked from their source without running them.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from gantry_cluster.capabilities import Capability
from gantry_cluster.capability_needs import MARKER

CAPABILITY_OF_NAME = {
    **dict.fromkeys(("crash_node", "crash", "revive", "disk"), Capability.CRASH_NODES),
    **dict.fromkeys(("cut_uplink", "drop_inbound", "enforce"), Capability.CUT_NODES),
    "kill_temporarily": Capability.STOP_API_SERVER,
    **dict.fromkeys(
        ("kill_and_wait", "pause_leader", "container_id", "kill_container", "pause_container", "is_direct"),
        Capability.ENTER_CONTAINERS,
    ),
    "tag_image": Capability.TAG_IMAGES,
    **dict.fromkeys(("load_image", "pipelines_image"), Capability.LOAD_IMAGES),
    **dict.fromkeys(("run_gantry_outside", "external_address", "is_routed_outside"), Capability.REACH_NODES),
    "application_outside": Capability.REACH_NODES,
    **dict.fromkeys(("BUFFERED", "UNCOMMITTED", "WITH_HUGE_PAGES"), Capability.HUGE_PAGES),
}
"""Names in a test that need a capability."""
TESTS = sorted(Path(__file__).parent.glob("test_e2e_group*.py"))


def names_in(tree: ast.AST) -> set[str]:
    """Return every name, attribute, parameter and keyword."""
    found = set()
    for one in ast.walk(tree):
        match one:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                found.add(name)
    return found


def undeclared_needs(text: str) -> Iterator[str]:
    """Yield the capabilities that tests of a module use without declaring them."""
    parts = {one.name: one for one in ast.parse(text).body if isinstance(one, ast.FunctionDef | ast.ClassDef)}
    for name, part in parts.items():
        seen, new = set[str](), names_in(part)
        while new - seen:
            seen |= new
            new = set().union(*(names_in(parts[other]) for other in seen & parts.keys()))
        marks = " ".join(map(ast.unparse, part.decorator_list))
        wanted = {CAPABILITY_OF_NAME[word] for word in seen & CAPABILITY_OF_NAME.keys() if word not in parts}
        for capability in sorted(wanted) if name.startswith("test_") else ():
            if not re.search(rf"{MARKER}\([^)]*\b{capability.name}\b", marks):
                yield f"{name} needs {capability.name}"


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_every_test_declares_the_capabilities_that_it_uses(path: Path) -> None:
    """This includes uses by a helper, a fixture or a parameter of its module."""
    assert list(undeclared_needs(path.read_text())) == []
    assert f"{MARKER}(Capability.RUN_GROUPS)" in path.read_text()


def test_missing_mark_is_found() -> None:
    """The twin: without their marks these tests are reported."""
    bare = [re.sub(rf"@pytest\.mark\.{MARKER}\(.*\)\n", "", path.read_text()) for path in TESTS]

    reported = [line.rpartition(" ")[2] for text in bare for line in undeclared_needs(text)]

    assert set(reported) == {one.name for one in CAPABILITY_OF_NAME.values()}
