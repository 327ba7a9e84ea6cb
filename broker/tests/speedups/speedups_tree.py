"""A small tree with the build hook and the package of the hot path, in which a build takes a second."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from gantry_testing.tree import ROOT

PACKAGE = Path("broker/src/gantry_speedups")
SHIPPED = ("__init__.py", "build_record.py", "module_list.py", "modules.py", "py.typed", "_native.pyi")
"""The files of the package that a wheel has, besides those that are built."""
MODULE_FILE = f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
SBOM = "requirements/gantry-mq.cdx.json"
"""The SBOM that is part of each wheel."""

SOURCE = '"""A module for tests."""\n\ndef one():\n    return 1\n'
NO_COMPILER = {"CC": "/nonexistent/compiler"}
SHOW = "import gantry_speedups as s; print(s.hot_path, s.is_degraded, s.reason)"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with the build hook and the package of the hot path only."""
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "requirements").mkdir()
    shutil.copy(ROOT / SBOM, tmp_path / SBOM)
    (tmp_path / PACKAGE).mkdir(parents=True)
    for name in SHIPPED:
        shutil.copy(ROOT / PACKAGE / name, tmp_path / PACKAGE)
    (tmp_path / PACKAGE / "_native.pyx").write_text(SOURCE)
    for folder in ("operator/src", "pipelines/src"):
        (tmp_path / folder).mkdir(parents=True)
    return tmp_path


def environment(variables: dict[str, str]) -> dict[str, str]:
    """Return the environment of a build, without the choices of this run."""
    kept = {name: value for name, value in os.environ.items() if name not in ("GANTRY_SPEEDUPS", "CC", "PYTHONPATH")}
    return kept | variables


def build(tree: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Build in the source tree, as `scripts/setup` does."""
    command = [sys.executable, "hatch_build.py", *arguments]
    return subprocess.run(
        command, cwd=tree, env=environment(variables), capture_output=True, text=True, check=False, timeout=300
    )


def build_wheel(tree: Path, **variables: str) -> tuple[str, set[str], str]:
    """Build a wheel. Return its name, the files of the package in it, and what the build printed."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", "dist"]
    done = subprocess.run(
        command, cwd=tree, env=environment(variables), capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [wheel] = (tree / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        prefix = "gantry_speedups/"
        files = {name.removeprefix(prefix) for name in archive.namelist() if name.startswith(prefix)}
    return wheel.name, files, done.stdout + done.stderr


def running(tree: Path) -> str:
    """Return which path a process of this tree runs."""
    variables = environment({"PYTHONPATH": str(tree / "broker/src")})
    return subprocess.run(
        [sys.executable, "-c", SHOW], env=variables, capture_output=True, text=True, check=True
    ).stdout.strip()


def leftovers(tree: Path) -> set[str]:
    """Return the files in the package that no clone has."""
    return {path.name for path in (tree / PACKAGE).iterdir()} - {*SHIPPED, "_native.pyx", "__pycache__"}
