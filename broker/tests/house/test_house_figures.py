"""scripts/code_figures.py counts what the house rules limit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gantry_testing.tree import ROOT

MODULE = """
from product.part import Part


class Wide:
{methods}

def build(part, source):
    own = Part()
    own.name = "finished by its builder"
    part.name = "assigned from outside"
    other = source.part()
    other.size, other.name = 1, "two more"


class Holder:
    def __init__(self):
        self.name = "own"

    def change(self, part):
        self.part.name = "one more"
"""


def figures(root: Path, *arguments: str) -> str:
    """Return the output of the script for a tree."""
    command = [sys.executable, str(ROOT / "scripts/code_figures.py"), "--root", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A package in which `part` is imported once, and `whole` is long, wide and writes into others."""
    package = tmp_path / "broker/src/product"
    package.mkdir(parents=True)
    methods = "".join(f"    def method_{number}(self): ...\n" for number in range(16))
    (package / "__init__.py").write_text("")
    (package / "part.py").write_text("class Part: ...\n")
    (package / "whole.py").write_text(MODULE.format(methods=methods) + "\n" * 450)
    return tmp_path


def test_each_figure_names_its_places(tree: Path) -> None:
    """An assignment counts if it changes another object after its construction, each target by itself."""
    assert figures(tree, "--list", "imported-once").split() == ["broker/src/product/part.py", "1"]
    assert figures(tree, "--list", "long-files").startswith("broker/src/product/whole.py ")
    assert figures(tree, "--list", "wide-classes").split()[1:] == ["Wide", "16"]
    outside = [line.split()[1] for line in figures(tree, "--list", "outside").splitlines()]
    assert outside == ["part.name", "other.size", "other.name", "self.part.name"]


def test_the_table_sums_up_all_packages(tree: Path) -> None:
    """The last row is the whole tree; tests and the test kit are not source."""
    (tree / "broker/tests").mkdir()
    (tree / "broker/tests/test_part.py").write_text("from product.part import Part\n")
    header, _, product, everything = figures(tree, "--by-package").splitlines()

    assert header.split(" | ")[2] == "files"
    assert [row.split(" | ")[2] for row in (product, everything)] == ["3", "3"]
    assert [row.split(" | ")[-3:] for row in (product, everything)] == [["1", "1", "4 |"]] * 2
