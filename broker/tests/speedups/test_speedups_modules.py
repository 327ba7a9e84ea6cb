"""The modules that are compiled from their own source: which ones run, and when their Python source runs instead."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from speedups_tree import PACKAGE, SOURCE, build, build_wheel, environment, tree

from gantry_speedups import module_list
from gantry_testing.tree import ROOT

__all__ = ["tree"]

SHOW = (
    "import gantry_proxy.ack_batches as m; from gantry_speedups import modules;"
    "print(m.one(), m.__file__.endswith('.so'), modules.is_degraded, modules.describe())"
)
PROXY = Path("broker/src/gantry_proxy")
MODULE = "from gantry_proxy.numbers import ONE\n\n\ndef one() -> int:\n    return ONE\n"
CONSTANT = "from typing import Final\n\nONE: Final = {}\n"


@pytest.fixture
def small_tree(tree: Path) -> Path:
    """A repository whose proxy has one module in the list, one that it imports, and one that this imports."""
    (tree / PACKAGE / "_native.pyx").write_text(SOURCE)
    (tree / PROXY).mkdir()
    shutil.copy(ROOT / PROXY / "__init__.py", tree / PROXY)
    (tree / PROXY / "ack_batches.py").write_text(MODULE)
    (tree / PROXY / "numbers.py").write_text("from gantry_proxy.digits import ONE as ONE\n")
    (tree / PROXY / "digits.py").write_text(CONSTANT.format(1))
    return tree


def shown(tree: Path, **variables: str) -> str:
    """Return what a process of this tree runs, or the last line of its error."""
    known = environment({"PYTHONPATH": str(tree / "broker/src"), **variables})
    done = subprocess.run([sys.executable, "-c", SHOW], env=known, capture_output=True, text=True, check=False)
    return (done.stdout or done.stderr).strip().rpartition("\n")[2]


def library_of(tree: Path) -> Path:
    return next((tree / PACKAGE / module_list.FOLDER).glob(f"{module_list.LIBRARY}.*"))


@pytest.mark.needs_speedups
def test_compiled_modules_run_until_a_source_changes(small_tree: Path) -> None:
    """What they import, directly or not, is a source, too: its constants are in their code. A build is made once."""
    assert build(small_tree, GANTRY_SPEEDUPS="require").returncode == 0
    built_ns = library_of(small_tree).stat().st_mtime_ns

    assert shown(small_tree) == "1 True False compiled hot path"
    assert shown(small_tree, GANTRY_SPEEDUPS="require") == "1 True False compiled hot path"
    assert shown(small_tree, GANTRY_SPEEDUPS="off").startswith("1 False False Python hot path: switched off")
    assert build(small_tree).stdout == ""
    assert library_of(small_tree).stat().st_mtime_ns == built_ns

    (small_tree / PROXY / "digits.py").write_text(CONSTANT.format(2))

    reason = "built from other sources; run scripts/setup"
    assert shown(small_tree) == f"2 False True Python hot path: {reason}"
    assert reason in shown(small_tree, GANTRY_SPEEDUPS="require")


@pytest.mark.needs_speedups
@pytest.mark.verify
def test_changed_modules_are_built_again(small_tree: Path) -> None:
    """A setup takes the change of a module that is imported by an imported one."""
    for number in (1, 2):
        (small_tree / PROXY / "digits.py").write_text(CONSTANT.format(number))
        assert build(small_tree, GANTRY_SPEEDUPS="require").returncode == 0
        assert shown(small_tree) == f"{number} True False compiled hot path"


@pytest.mark.needs_speedups
@pytest.mark.verify
def test_damaged_modules_are_not_loaded_and_built_again(small_tree: Path) -> None:
    """The loader does not notice a truncated file. The twin without the check of sizes would end with a signal."""
    assert build(small_tree).returncode == 0
    library = library_of(small_tree)
    content = library.read_bytes()
    library.unlink()
    library.write_bytes(content[:5_000])

    assert f"has 5000 bytes instead of {len(content)}; run scripts/setup" in shown(small_tree)
    library.write_bytes(b"x" * len(content))
    assert shown(small_tree).startswith("1 False True Python hot path: cannot be loaded: ")
    assert build(small_tree, GANTRY_SPEEDUPS="require").returncode == 0
    assert shown(small_tree) == "1 True False compiled hot path"


@pytest.mark.needs_speedups
def test_failed_compilation_of_a_module_is_shown_and_leaves_the_python_path(small_tree: Path) -> None:
    """All is compiled, or nothing, so that one reason holds for the whole hot path."""
    (small_tree / PROXY / "ack_batches.py").write_text(MODULE + "\nasync def two():\n    yield 2\n")

    done, refused = build(small_tree), build(small_tree, GANTRY_SPEEDUPS="require")

    assert (done.returncode, refused.returncode) == (0, 1)
    assert "async generators are unimplemented" in done.stderr
    assert shown(small_tree).startswith("1 False True Python hot path: build failed: ")
    assert not (small_tree / PACKAGE / module_list.FOLDER).exists()


@pytest.mark.needs_speedups
@pytest.mark.verify
def test_wheel_has_the_compiled_modules_and_their_sources(small_tree: Path) -> None:
    """A program that was installed from it runs them."""
    name, files, _ = build_wheel(small_tree, GANTRY_SPEEDUPS="require")
    installed = small_tree / "installed"
    with zipfile.ZipFile(small_tree / "dist" / name) as archive:
        archive.extractall(installed)
    shutil.rmtree(small_tree / "broker/src")
    shutil.copytree(installed, small_tree / "broker/src")

    assert f"{module_list.FOLDER}/{module_list.MANIFEST}" in files
    assert shown(small_tree) == "1 True False compiled hot path"


@pytest.mark.needs_speedups
def test_proxy_of_this_tree_runs_its_compiled_modules() -> None:
    """Every module of the list is compiled; the code that GANTRY_SPEEDUPS=off runs is the source."""
    script = (
        f"import importlib as i; print(sum(i.import_module(n).__file__.endswith('.so') for n in {module_list.NAMES}))"
    )
    for mode, count in (("require", len(module_list.NAMES)), ("off", 0)):
        done = subprocess.run(
            [sys.executable, "-c", script], env=os.environ | {"GANTRY_SPEEDUPS": mode}, capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        assert done.stdout == f"{count}\n"


@pytest.mark.parametrize("name", module_list.NAMES)
def test_package_of_a_listed_module_adds_its_compiled_ones(name: str) -> None:
    """Otherwise the compiled file would be built and never found."""
    package = ROOT / "broker/src" / Path(*name.split(".")).parent / "__init__.py"

    assert package.read_text().endswith("\nadd_compiled(__name__, __path__)\n")


@pytest.mark.parametrize("name", module_list.NAMES)
def test_listed_module_gives_each_caught_exception_of_a_function_its_own_name(name: str) -> None:
    """In a coroutine, mypyc gives a name the type of its first exception, and fails to assign another one."""
    source = (ROOT / "broker/src" / module_list.source_of(name)).read_text()
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            caught = [node.name for node in ast.walk(function) if isinstance(node, ast.ExceptHandler) and node.name]
            assert len(caught) == len(set(caught)), f"{function.name} catches {caught}"
