"""GANTRY_SPEEDUPS selects the path, and every reason for the Python path is given in one line.

Each case imports a copy of the package in a process of its own, since the choice is made once, at the import.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import pytest

import gantry_speedups
from gantry_testing.tree import PYTHON_PATH

PACKAGE = Path(gantry_speedups.__file__).parent
MODULE_FILE = f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
PROGRAM = "import gantry_speedups as s; print(s.is_compiled, s.native is not None, s.is_degraded, s.hot_path, s.reason)"
PYTHON = "False False False python "
DEGRADED = "False False True python "
COMPILED = "True True False compiled \n"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package with its sources, without a compiled module."""
    copy = tmp_path / "gantry_speedups"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("*.so", "build.txt", "__pycache__"))
    return copy


@pytest.fixture
def built_package(package: Path) -> Path:
    """The same with the compiled module of this tree."""
    shutil.copy(PACKAGE / MODULE_FILE, package)
    return package


def run(package: Path, mode: str | None, program: str = PROGRAM) -> subprocess.CompletedProcess[str]:
    """Run a program that imports the copy."""
    environment = {name: value for name, value in os.environ.items() if name != "GANTRY_SPEEDUPS"}
    environment |= {"PYTHONPATH": str(package.parent)} | ({} if mode is None else {"GANTRY_SPEEDUPS": mode})
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)


def choice(package: Path, mode: str | None) -> str:
    """Return what the package has chosen."""
    done = run(package, mode)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.needs_speedups
@pytest.mark.parametrize("mode", [None, "", "auto", "require"], ids=["unset", "empty", "auto", "require"])
def test_compiled_module_is_used(built_package: Path, mode: str | None) -> None:
    """A module that was built from the sources beside it is used, unless it is switched off."""
    assert choice(built_package, mode) == COMPILED


@pytest.mark.needs_speedups
def test_off_does_not_load_the_module(built_package: Path) -> None:
    """With `off` the Python path runs, and the module is not even imported."""
    assert choice(built_package, "off") == f"{PYTHON}switched off by GANTRY_SPEEDUPS=off\n"
    loaded = run(built_package, "off", "import sys, gantry_speedups; print('gantry_speedups._native' in sys.modules)")
    assert loaded.stdout == "False\n"


@pytest.mark.parametrize("mode", ["yes", "OFF", "0"])
def test_invalid_mode_is_refused_with_the_valid_ones(package: Path, mode: str) -> None:
    """An unknown value is an error, and not one of the modes."""
    done = run(package, mode)

    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.endswith(f"SpeedupsError: GANTRY_SPEEDUPS={mode}: expected auto, require or off")


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (None, "not built; run scripts/setup"),
        ("", "not built; run scripts/setup"),
        ("f\nnot built: no C compiler when Gantry was built\n", "not built: no C compiler when Gantry was built"),
        ("f\n\n", f"not built for Python 3.{sys.version_info.minor}; run scripts/setup"),
    ],
    ids=["never built", "empty record", "no compiler", "another Python"],
)
def test_missing_module_has_the_reason_of_its_build(package: Path, record: str | None, reason: str) -> None:
    """Without a module the Python path runs, and the reason is that of the last build."""
    if record is not None:
        (package / "build.txt").write_text(record)

    assert choice(package, None) == f"{PYTHON}{reason}\n"


def test_failed_build_counts_as_a_fault(package: Path) -> None:
    """A broker warns about a module that should be there; one that could not be expected is no fault."""
    (package / "build.txt").write_text("f\nbuild failed: see above\n")

    assert choice(package, "auto") == f"{DEGRADED}build failed: see above\n"


@pytest.mark.needs_speedups
@pytest.mark.parametrize("changed", ["_native.pyx", "crc32.h", "new.pxi"])
def test_module_of_other_sources_is_not_used(built_package: Path, changed: str) -> None:
    """After a pull, or an edit of any source, the old module is not used, and no later import gets it."""
    with (built_package / changed).open("a") as file:
        file.write("\n")

    assert choice(built_package, "auto") == f"{DEGRADED}built from other sources; run scripts/setup\n"
    kept = "import sys, gantry_speedups as s; print('gantry_speedups._native' in sys.modules, hasattr(s, '_native'))"
    assert run(built_package, "auto", kept).stdout == "False False\n"


@pytest.mark.needs_speedups
def test_module_without_sources_is_used(built_package: Path) -> None:
    """A wheel has no sources, so there is nothing to compare."""
    for path in (*built_package.glob("*.pyx"), *built_package.glob("*.h")):
        path.unlink()

    assert choice(built_package, "require") == COMPILED


@pytest.mark.parametrize("content", [b"", b"\x7fELF and nothing else"], ids=["empty", "torn"])
def test_broken_module_is_not_used(package: Path, content: bytes) -> None:
    """A file that cannot be loaded gives the loader's message as the reason."""
    (package / MODULE_FILE).write_bytes(content)

    found = choice(package, "auto")

    assert found.startswith(f"{DEGRADED}cannot be loaded: ")
    assert len(found.splitlines()) == 1 and MODULE_FILE in found


@pytest.mark.parametrize("fault", ["missing", "broken", "failing"])
def test_require_refuses_to_start_without_a_usable_module(package: Path, fault: str) -> None:
    """With `require` nothing runs on the Python path; the error has the reason and the remedy."""
    reason = {
        "missing": "not built; run scripts/setup",
        "broken": "cannot be loaded: ",
        "failing": "cannot be loaded: ",
    }[fault]
    if fault == "broken":
        (package / MODULE_FILE).write_bytes(b"broken")
    if fault == "failing":  # its import fails for want of another name
        (package / "_native.py").write_text("from gantry_speedups import gone\n")

    done = run(package, "require")

    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert f"SpeedupsError: GANTRY_SPEEDUPS=require, but the compiled hot path is not usable: {reason}" in last
    assert "-- run scripts/setup with a C compiler" in last


@pytest.mark.parametrize(("program", "name"), [("gantry_broker", "gantry broker"), ("gantry_cli", "gantry")])
@pytest.mark.parametrize("mode", ["require", "sometimes"])
def test_program_refuses_with_one_line(package: Path, program: str, name: str, mode: str) -> None:
    """Each program that processes messages ends with exit code 2 and no traceback, so that it is not started again."""
    paths = os.pathsep.join([str(package.parent), PYTHON_PATH])
    environment = os.environ | {"GANTRY_SPEEDUPS": mode, "PYTHONPATH": paths}

    done = subprocess.run(
        [sys.executable, "-m", program, "--help"], env=environment, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith(f"{name}: GANTRY_SPEEDUPS={mode}")


@pytest.mark.parametrize("mode", ["off", "require", "sometimes"])
def test_command_line_ends_with_one_line(mode: str) -> None:
    """`gantry` reports an invalid or unfulfilled GANTRY_SPEEDUPS without a traceback, with exit code 2."""
    environment = os.environ | {"GANTRY_SPEEDUPS": mode, "PYTHONPATH": PYTHON_PATH}
    done = subprocess.run(
        [sys.executable, "-m", "gantry_cli", "--version"], env=environment, capture_output=True, text=True, check=False
    )

    if mode == "off":
        assert "Python hot path: switched off by GANTRY_SPEEDUPS=off)" in done.stdout
    elif done.returncode == 0:
        assert mode == "require" and done.stdout.endswith("compiled hot path)\n")
    else:
        assert done.returncode == 2
        [line] = done.stderr.splitlines()
        assert line.startswith(f"gantry: GANTRY_SPEEDUPS={mode}")


def test_fixture_runs_both_paths(speedups: ModuleType | None) -> None:
    """In each of its cases the package, and the processes of the test, have the path of the case."""
    assert gantry_speedups.native is speedups
    assert gantry_speedups.is_compiled == (speedups is not None)
    assert gantry_speedups.describe().startswith("Python hot path" if speedups is None else "compiled hot path")
    assert os.environ["GANTRY_SPEEDUPS"] == ("off" if speedups is None else "require")
