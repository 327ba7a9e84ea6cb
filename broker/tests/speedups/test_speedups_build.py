"""The build hook: what it builds, and what it reports where a compiler, headers or Cython are missing or fail.

It runs in a small tree, with a module of two lines in the place of the real one, so that a build takes a second.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
from speedups_tree import (
    MODULE_FILE,
    NO_COMPILER,
    PACKAGE,
    SHIPPED,
    SOURCE,
    build,
    build_wheel,
    environment,
    leftovers,
    running,
    tree,
)

from gantry_testing.tree import ROOT

BROKEN_C = 'cdef extern from *:\n    """\n    int broken(\n    """\n'

__all__ = ["tree"]


def load_hook(tree: Path) -> ModuleType:
    """Return the module of the build hook."""
    spec = importlib.util.spec_from_file_location("hatch_build_under_test", tree / "hatch_build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def prepare_setup(tree: Path) -> None:
    """Add `scripts/setup` to the tree, with an environment in which every call of pip succeeds and does nothing."""
    (tree / "scripts").mkdir()
    for name in ("requirements/build.txt", "requirements/runtime.txt", "scripts/setup"):
        shutil.copy(ROOT / name, tree / name)
    (tree / "scripts/common.sh").write_text(
        'set -eu\nROOT=$PWD VENV=$PWD/.venv\nfind_python() { printf "%s\\n" "$VENV/bin/python"; }\n'
    )
    python = tree / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\ncase "$*" in *pip*) exit 0 ;; esac\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)


def setup(tree: Path, **variables: str) -> str:
    """Run `scripts/setup`. Return what it printed about the hot path: of standard error the warning only."""
    done = subprocess.run(
        ["scripts/setup"], cwd=tree, env=environment(variables), capture_output=True, text=True, check=True, timeout=300
    )
    warnings = [line.partition(";")[0] for line in done.stderr.splitlines() if line.startswith("warning: the compiled")]
    printed = [line for line in done.stdout.splitlines() if "packages" not in line]
    return "\n".join(warnings + printed)


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


@pytest.mark.parametrize("package", ["Cython", "mypy", "setuptools"])
def test_without_build_packages_the_python_path_is_installed(
    tree: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    """A missing package is a reason like a missing compiler."""
    hook = load_hook(tree)
    monkeypatch.setattr(hook, "find_version", lambda name: None if name == package else "1")
    monkeypatch.setenv("CC", "env")  # some program that exists

    assert hook.build_in_place(tree, "auto").reason == f"not built: no {package} when Gantry was built"


def test_without_headers_the_python_path_is_installed(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler without Python's headers compiles nothing."""
    hook = load_hook(tree)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / name))
    monkeypatch.setenv("CC", "env")  # some program that exists

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

    second = build(tree, GANTRY_SPEEDUPS="require")
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")
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
    for file in ("_native.old.so", f"{MODULE_FILE}.1.new", "build.txt.1.new"):
        (tree / PACKAGE / file).write_bytes(b"another build")
    (tree / PACKAGE / "build.txt").write_text("another build\n\n")

    name, files, _ = build_wheel(tree, GANTRY_SPEEDUPS="require")

    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert f"-{tag}-{tag}-linux_" in name
    assert files == {*SHIPPED, MODULE_FILE}


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
    assert files == {*SHIPPED, "build.txt"}
    with zipfile.ZipFile(tree / "dist" / name) as archive:
        archive.extractall(tree / "installed")
    shutil.rmtree(tree / "broker/src")
    shutil.copytree(tree / "installed", tree / "broker/src")
    assert running(tree) == f"python False {reason}"


def test_setup_prints_the_python_path_each_time(tree: Path) -> None:
    """Every setup tries to build, so that one finds headers that were installed since, and shows a failure again."""
    prepare_setup(tree)
    line = "setup: Python hot path: not built: no C compiler when Gantry was built"
    off = "setup: Python hot path: switched off by GANTRY_SPEEDUPS=off"

    assert [setup(tree, **NO_COMPILER), setup(tree, **NO_COMPILER)] == [line, line]
    assert setup(tree, **NO_COMPILER, GANTRY_SPEEDUPS="off") == off
    assert setup(tree, **NO_COMPILER) == line
    assert running(tree) == "python False not built: no C compiler when Gantry was built"


@pytest.mark.needs_speedups
@pytest.mark.verify(quick=1)
def test_setup_repeats_a_failed_build_and_no_successful_one(tree: Path) -> None:
    """A failure is shown by each setup until it is mended; then the module is built once."""
    prepare_setup(tree)
    (tree / PACKAGE / "_native.pyx").write_text("cdef int broken(:\n")

    for _ in range(2):
        warning, result = setup(tree).splitlines()
        assert warning == "warning: the compiled hot path could not be built"
        assert result.startswith("setup: Python hot path: build failed: ")
    (tree / PACKAGE / "_native.pyx").write_text(SOURCE)

    assert setup(tree).startswith("setup: compiled hot path (")
    assert setup(tree) == ""


@pytest.mark.needs_speedups
@pytest.mark.verify(quick=1)
@pytest.mark.parametrize("damage", ["truncated", "deleted", "overwritten"])
def test_damaged_module_is_built_again(tree: Path, damage: str) -> None:
    """A build compares the module with its record. A process does not load one of another size, which may kill it."""
    assert build(tree).returncode == 0
    module = tree / PACKAGE / MODULE_FILE
    content = module.read_bytes()
    module.unlink()
    if damage != "deleted":
        module.write_bytes(content[: len(content) // 3] if damage == "truncated" else b"x" * len(content))

    assert running(tree).startswith("python False not built" if damage == "deleted" else "python True cannot be loaded")
    if damage == "truncated":
        assert f"has {len(content) // 3} bytes instead of {len(content)}; run scripts/setup" in running(tree)
    assert build(tree, GANTRY_SPEEDUPS="require").returncode == 0
    assert running(tree) == "compiled False"


def test_read_only_checkout_is_installed_without_a_record(tree: Path) -> None:
    """The reason is printed, and cannot be kept. A folder in the place of a file refuses a write to root, too."""
    (tree / PACKAGE / "build.txt").mkdir()

    for variables, reason in (
        ({"GANTRY_SPEEDUPS": "off"}, "switched off by GANTRY_SPEEDUPS=off"),
        (NO_COMPILER, "not built: no C compiler when Gantry was built"),
    ):
        done = build(tree, **variables)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == f"setup: Python hot path: {reason}\n"
    assert running(tree) == "python False not built; run scripts/setup"
    assert leftovers(tree) == {"build.txt"}


@pytest.mark.needs_speedups
def test_read_only_checkout_is_installed_without_a_module(tree: Path) -> None:
    """The installation takes the Python path, and fails with `require`."""
    (tree / PACKAGE / MODULE_FILE / "folder").mkdir(parents=True)

    done, refused = build(tree), build(tree, GANTRY_SPEEDUPS="require")

    reason = f"not built: cannot write to {tree / PACKAGE}: "
    assert done.stdout.startswith(f"setup: Python hot path: {reason}")
    assert (done.returncode, done.stderr) == (0, "")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith(f"setup: GANTRY_SPEEDUPS=require: {reason}")
    assert leftovers(tree) == {"build.txt", MODULE_FILE}


@pytest.mark.needs_speedups
def test_draft_of_another_build_is_not_touched(tree: Path) -> None:
    """Two builds at the same time do not write to the same file."""
    draft = tree / PACKAGE / f"{MODULE_FILE}.new"
    draft.write_text("another build")

    assert build(tree).returncode == 0

    assert draft.read_text() == "another build"


@pytest.mark.parametrize("change", ["compiler", "option", "headers", "package", "CFLAGS", "CPPFLAGS", "LDFLAGS"])
def test_change_of_the_tools_causes_a_build(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """The module is up to date only if the same compiler, options, headers and packages would build it."""
    hook, compiler = load_hook(tree), tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\necho version 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    before = hook.fingerprint_of("sources")
    assert hook.fingerprint_of("sources") == before

    if change == "compiler":
        compiler.write_text("#!/bin/sh\necho version 2\n")
    elif change == "option":
        monkeypatch.setenv("CC", f"{compiler} -DX=1")
    elif change == "headers":
        monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / name))
    elif change == "package":
        monkeypatch.setattr(hook, "find_version", lambda name: "0.1")
    else:
        monkeypatch.setenv(change, "-DX=1")

    assert hook.fingerprint_of("sources") != before


@pytest.mark.parametrize("image", ["broker", "pipelines"])
def test_image_build_loads_the_module_where_it_runs(image: str) -> None:
    """The last stage runs the program with the mode of the build, so that `require` fails there."""
    last = (ROOT / image / "Dockerfile").read_text().rpartition("\nFROM ")[2]

    assert "\nARG GANTRY_SPEEDUPS=require\nRUN gantry --version" in last
