"""The build hook: what it builds, and what it reports where a compiler, headers or Cython are missing or fail.

It runs in a small tree, with a module of two lines in the place of the real one, so that a build takes a second.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from gantry_testing.tree import ROOT

PACKAGE = Path("broker/src/gantry_speedups")
MODULE_FILE = f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
SOURCE = '"""A module for tests."""\n\ndef one():\n    return 1\n'
BROKEN_C = 'cdef extern from *:\n    """\n    int broken(\n    """\n'
NO_COMPILER = {"CC": "/nonexistent/compiler"}
SHOW = "import gantry_speedups as s; print(s.hot_path, s.is_degraded, s.reason)"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with the build hook and the package of the hot path only."""
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / PACKAGE).mkdir(parents=True)
    for name in ("__init__.py", "build_record.py", "py.typed", "_native.pyi"):
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


def load_hook(tree: Path) -> ModuleType:
    """Return the module of the build hook."""
    spec = importlib.util.spec_from_file_location("hatch_build_under_test", tree / "hatch_build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def leftovers(tree: Path) -> set[str]:
    """Return the files in the package that no clone has."""
    sources = {"__init__.py", "build_record.py", "py.typed", "_native.pyi", "_native.pyx", "__pycache__"}
    return {path.name for path in (tree / PACKAGE).iterdir()} - sources


def test_without_compiler_the_python_path_is_installed(tree: Path) -> None:
    """No compiler: one line, exit code 0, and the reason at run time."""
    done = build(tree, **NO_COMPILER)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "setup: Python hot path: not built: no C compiler when Gantry was built\n"
    assert running(tree) == "python False not built: no C compiler when Gantry was built"
    assert leftovers(tree) == {"build.txt"}


def test_without_compiler_require_fails(tree: Path) -> None:
    """With `require` the installation fails, in one line."""
    done = build(tree, GANTRY_SPEEDUPS="require", **NO_COMPILER)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "setup: GANTRY_SPEEDUPS=require: not built: no C compiler when Gantry was built\n"


def test_with_off_nothing_is_built(tree: Path) -> None:
    """With `off` the compiler is not called, and the reason remains known without the variable."""
    done = build(tree, GANTRY_SPEEDUPS="off")

    assert (done.returncode, done.stdout) == (0, "setup: Python hot path: switched off by GANTRY_SPEEDUPS=off\n")
    assert running(tree) == "python False not built: GANTRY_SPEEDUPS was off when Gantry was built"


def test_invalid_mode_is_refused(tree: Path) -> None:
    """An unknown value builds nothing."""
    done = build(tree, GANTRY_SPEEDUPS="no")

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "GANTRY_SPEEDUPS=no: expected auto, require or off\n"


@pytest.mark.parametrize("package", ["Cython", "setuptools"])
def test_without_build_packages_the_python_path_is_installed(
    tree: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    """A missing package is a reason like a missing compiler."""
    hook, find_spec = load_hook(tree), importlib.util.find_spec
    present = "setuptools" if package == "Cython" else "Cython"
    answers = {package: None, present: find_spec("zlib")}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: answers[name])

    assert hook.build_in_place(tree, "auto").reason == f"not built: no {package} when Gantry was built"


def test_without_headers_the_python_path_is_installed(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler without Python's headers compiles nothing."""
    hook = load_hook(tree)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / name))
    monkeypatch.setenv("CC", sys.executable)  # some program that exists

    assert hook.build_in_place(tree, "auto").reason == "not built: no Python headers when Gantry was built"


@pytest.mark.needs_speedups
def test_module_is_compiled_once(tree: Path) -> None:
    """A build is used at run time, and repeated only when a source changes; the tree gets no other file."""
    first = build(tree)
    module = tree / PACKAGE / MODULE_FILE
    built_ns = module.stat().st_mtime_ns

    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout.startswith("setup: compiled hot path (")
    assert running(tree) == "compiled False"
    assert leftovers(tree) == {"build.txt", MODULE_FILE}

    assert build(tree, GANTRY_SPEEDUPS="require").stdout == "setup: compiled hot path (up to date)\n"
    assert module.stat().st_mtime_ns == built_ns

    (tree / PACKAGE / "_native.pyx").write_text(SOURCE.replace("1", "2"))
    assert running(tree) == "python True built from other sources; run scripts/setup"
    assert build(tree).returncode == 0
    assert running(tree) == "compiled False"
    assert module.stat().st_mtime_ns != built_ns


@pytest.mark.needs_speedups
@pytest.mark.verify
def test_outdated_module_is_removed_where_no_new_one_can_be_built(tree: Path) -> None:
    """The reason is the missing compiler, and not a module that would have to be built again."""
    assert build(tree).returncode == 0
    (tree / PACKAGE / "_native.pyx").write_text(SOURCE.replace("1", "2"))

    assert build(tree, **NO_COMPILER).returncode == 0

    assert running(tree) == "python False not built: no C compiler when Gantry was built"


@pytest.mark.needs_speedups
@pytest.mark.verify(quick=1)
@pytest.mark.parametrize(
    ("source", "expected"),
    [(BROKEN_C, "error:"), ("cdef int broken(:\n", "Error compiling Cython file")],
    ids=["C", "Cython"],
)
def test_failed_compilation_is_shown(tree: Path, source: str, expected: str) -> None:
    """The compiler's output is printed; the installation falls back with a warning, and fails with `require`."""
    (tree / PACKAGE / "_native.pyx").write_text(source + SOURCE)

    for mode, code in (("auto", 0), ("require", 1)):
        done = build(tree, GANTRY_SPEEDUPS=mode)

        assert done.returncode == code
        assert expected in done.stderr
        assert "warning: the compiled hot path could not be built" in done.stderr
    assert running(tree).startswith("python True build failed: ")


@pytest.mark.needs_speedups
def test_platform_wheel_has_the_module_and_no_sources(tree: Path) -> None:
    """The wheel is for this Python and machine. A module that lies in the tree is not taken into it."""
    (tree / PACKAGE / "_native.old.so").write_bytes(b"another build")
    (tree / PACKAGE / "build.txt").write_text("another build\n\n")

    name, files, _ = build_wheel(tree, GANTRY_SPEEDUPS="require")

    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert f"-{tag}-{tag}-linux_" in name
    assert files == {"__init__.py", "build_record.py", "py.typed", "_native.pyi", MODULE_FILE}


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"GANTRY_SPEEDUPS": "off"}, "not built: GANTRY_SPEEDUPS was off when Gantry was built"),
        (NO_COMPILER, "not built: no C compiler when Gantry was built"),
    ],
    ids=["off", "no compiler"],
)
def test_wheel_without_the_module_is_pure(tree: Path, variables: dict[str, str], reason: str) -> None:
    """The wheel installs everywhere, and contains the reason."""
    name, files, _ = build_wheel(tree, **variables)

    assert name.endswith("-py3-none-any.whl")
    assert files == {"__init__.py", "build_record.py", "py.typed", "_native.pyi", "build.txt"}
    with zipfile.ZipFile(tree / "dist" / name) as archive:
        archive.extractall(tree / "installed")
    shutil.rmtree(tree / "broker/src")
    shutil.copytree(tree / "installed", tree / "broker/src")
    assert running(tree) == f"python False {reason}"


def test_setup_builds_only_what_has_changed(tree: Path) -> None:
    """The second setup runs no build; a changed source, or a compiler that was installed since, causes one."""
    scripts = tree / "scripts"
    scripts.mkdir()
    (tree / "requirements").mkdir()
    shutil.copy(ROOT / "requirements/build.txt", tree / "requirements")
    shutil.copy(ROOT / "scripts/speedups.sh", scripts)
    python = tree / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    (tree / ".venv/pyvenv.cfg").write_text("")

    def setup(**variables: str) -> str:
        program = "set -eu; VENV=$PWD/.venv; . scripts/speedups.sh; build_speedups"
        return subprocess.run(
            ["sh", "-c", program], cwd=tree, env=environment(variables), capture_output=True, text=True, check=True
        ).stdout

    line = "setup: Python hot path: not built: no C compiler when Gantry was built\n"
    assert [setup(**NO_COMPILER), setup(**NO_COMPILER)] == [line, ""]
    with (tree / PACKAGE / "_native.pyx").open("a") as file:
        file.write("\n")
    assert [setup(**NO_COMPILER), setup(**NO_COMPILER)] == [line, ""]
    assert setup(CC=sys.executable, CFLAGS="-bad") != ""  # a program that exists now, and that compiles nothing
    assert (
        setup(**NO_COMPILER, GANTRY_SPEEDUPS="off") == "setup: Python hot path: switched off by GANTRY_SPEEDUPS=off\n"
    )
