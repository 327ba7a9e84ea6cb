"""A clone works wherever it lies: below a path that is long, has a space in it and a letter that is not ASCII.

The kernel takes 107 bytes for the name of a Unix socket, a `#!` neither a space nor a long path, and Java no letter
beyond ASCII in the locale C. Continuous integration runs everything in such a place; this is a small part of it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_group_kit import FREE_PORTS, manifest

from gantry_testing.programs import write_program
from gantry_testing.tree import ROOT

LENGTH = 120
SOURCES = ("broker/src", "broker/testkit", "operator/src", "pipelines/src")


def make_long_path(folder: Path) -> Path:
    """A folder whose path is long, and has a space and letters beyond ASCII in it."""
    start = folder / "é ü"
    return start / ("x" * max(1, LENGTH - len(os.fsencode(start)) - 1))


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The files of this clone in such a place, with this environment's packages; what its scripts made is removed."""
    place = make_long_path(tmp_path_factory.mktemp("any"))
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=True,
    ).stdout  # fmt: skip
    for name in filter(None, names.split(b"\0")):
        source, target = ROOT / os.fsdecode(name), place / os.fsdecode(name)
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    (place / ".venv").symlink_to(sys.prefix)
    yield place
    remove = 'd=$(dirname -- "$0"); . "$d/common.sh"; rm -rf "$TMPDIR"'
    subprocess.run(["sh", "-c", remove, str(place / "scripts/any")], cwd=place, check=True, env=environment(place))


def environment(clone: Path) -> dict[str, str]:
    """Environment in which imports and temporary files use the clone, unless a script overrides TMPDIR."""
    temporary = clone / "temporary"
    temporary.mkdir(exist_ok=True)
    variables = {key: value for key, value in os.environ.items() if not key.startswith(("GANTRY_", "PYTEST_"))}
    paths = os.pathsep.join(str(clone / source) for source in SOURCES)
    return variables | {"PYTHONPATH": paths, "TMPDIR": str(temporary)}


def test_path_is_as_long_as_promised(tmp_path: Path) -> None:
    """It has 120 bytes or more, a space, and a letter of more than one byte."""
    place = str(make_long_path(tmp_path))

    assert len(place.encode()) >= LENGTH
    assert " " in place and not place.isascii()


def test_a_stand_in_runs_by_an_interpreter_at_such_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel runs no file whose `#!` line has such a path, and yet a stand-in by `write_program` runs."""
    place = make_long_path(tmp_path)
    place.mkdir(parents=True)
    (place / "python").symlink_to(sys.executable)
    plain = tmp_path / "plain"
    plain.write_text(f"#!{place}/python\nprint('here')\n")
    plain.chmod(0o755)
    with pytest.raises(OSError, match=r"Exec format|denied|No such file"):
        subprocess.run([str(plain)], check=True)

    monkeypatch.setattr(sys, "executable", str(place / "python"))
    write_program(tmp_path / "stand-in", "import sys\nprint('here', *sys.argv[1:])\n")
    done = subprocess.run([str(tmp_path / "stand-in"), "a b"], capture_output=True, text=True, check=True)

    assert done.stdout == "here a b\n"


@pytest.mark.verify
def test_a_local_group_works_from_there(clone: Path) -> None:
    """The group starts, reports its addresses, accepts messages, answers orders, and stops."""
    (clone / "crew.yaml").write_text(manifest())

    def gantry(*words: str) -> str:
        command = [sys.executable, "-m", "gantry_cli", *words]
        return subprocess.run(
            command, cwd=clone, env=environment(clone), capture_output=True, text=True, check=True, timeout=300
        ).stdout

    own = "import gantry_cli; print(gantry_cli.__file__)"
    found = subprocess.run([sys.executable, "-c", own], env=environment(clone), capture_output=True, text=True).stdout
    assert found.startswith(str(clone))

    gantry("up", "--detach", "-f", "crew.yaml", *FREE_PORTS)
    try:
        gantry("produce", "orders", "one", "two")
        gantry("promote", "0")
        gantry("produce", "orders", "three")
        assert sorted(gantry("consume", "orders").split()) == ["one", "three", "two"]
    finally:
        gantry("down")


@pytest.mark.verify
def test_tests_run_there(clone: Path) -> None:
    """Tests that create sockets, start programs and handle paths pass there."""
    files = [
        "broker/tests/server/test_control_socket.py",
        "broker/tests/house/test_house_scripts.py",
        "operator/tests/cli/test_cli_exit_codes.py",
        "operator/tests/cli/test_pod_broker.py",
    ]
    done = subprocess.run(
        [str(clone / "scripts/run_tests"), "-q", *files],
        cwd=clone, env=environment(clone) | {"GANTRY_TEST_PROCESSES": "0"}, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
