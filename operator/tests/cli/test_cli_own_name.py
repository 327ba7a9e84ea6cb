"""Hints name a command that the reader's shell can find."""

from pathlib import Path

import pytest

from gantry_cli.local.running import own_name


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "bin" / "gantry"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_a_command_on_the_path_is_called_by_its_name(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody types a path where the name is enough."""
    monkeypatch.setenv("PATH", str(program.parent))

    assert own_name(str(program)) == "gantry"


def test_a_command_off_the_path_is_called_by_a_path_that_works(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After `make up` the command is in .venv/bin, and the hint says so."""
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.chdir(tmp_path)

    assert own_name(str(program)) == "bin/gantry"


def test_another_gantry_on_the_path_is_not_taken_for_this_one(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hint never sends the reader to another installation."""
    other = tmp_path / "other" / "gantry"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(other.parent))
    monkeypatch.chdir(tmp_path)

    assert own_name(str(program)) == "bin/gantry"
