"""A small repository in which faults are planted: one module, and tests of it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from mutations.tiny_faults import SOURCE

TESTS = """\
import os
from pathlib import Path

import pytest
from tiny_product.sums import add, double, half


def test_adding():
    assert add(2, 3) == 5


@pytest.mark.verify
def test_doubling():
    assert double(3) == 6


def test_of_the_machine():
    assert "TINY_BROKEN" not in os.environ


def test_of_chance():
    mark = Path(os.environ.get("TINY_CHANCE", __file__))
    if not mark.exists():
        mark.touch()
        raise AssertionError("only once")
"""


@pytest.fixture
def tiny_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository with one module and its tests, which the product's own plugins select."""
    root = tmp_path / "tiny"
    package = (root / SOURCE).parent
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (root / SOURCE).write_text(
        "def add(a, b):\n    return a + b\n\n\ndef double(a):\n    return a * 2\n\n\ndef half(a):\n    return a / 2\n"
    )
    (root / "test_sums.py").write_text(TESTS)
    plugins = "-p gantry_testing.requirements_plugin -p gantry_testing.parts_plugin"
    (root / "pytest.ini").write_text(f"[pytest]\naddopts = {plugins}\n")
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return root
