"""Hints name `gantry` in a form that the shell of the user finds."""

from pathlib import Path

import pytest

from gantry_cli.local.running import program_name


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "bin" / "gantry"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_program_on_the_path_is_called_by_name(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is used if the PATH leads to this program."""
    monkeypatch.setenv("PATH", str(program.parent))

    assert program_name(str(program)) == "gantry"


def test_program_off_the_path_is_called_by_relative_path(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program outside of the PATH, such as .venv/bin/gantry after `make up`, is shown with its relative path."""
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.chdir(tmp_path)

    assert program_name(str(program)) == "bin/gantry"


def test_other_installation_on_the_path_is_not_used(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hint never names another installation."""
    other = tmp_path / "other" / "gantry"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(other.parent))
    monkeypatch.chdir(tmp_path)

    assert program_name(str(program)) == "bin/gantry"
