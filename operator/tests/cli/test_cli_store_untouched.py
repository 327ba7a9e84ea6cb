"""The reading commands of `gantry store` change nothing: no byte, no time, and no running broker."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from store_commands.store_states import (
    READING_COMMANDS,
    STORES,
    another_process,
    fill_store,
    fingerprint,
    gantry_store,
    make_damaged_store,
    make_killed_store,
    run_reading_command,
)


@pytest.mark.parametrize("store", STORES, ids=str)
def test_reading_changes_nothing(store: str, tmp_path: Path) -> None:
    """Names, contents, times and blocks of the store are the same after every command, in any state of the store."""
    STORES[store](tmp_path)
    before = fingerprint(tmp_path)

    for command in READING_COMMANDS:
        result = run_reading_command(command, str(tmp_path / "store"))
        assert result.exit_code in (0, 1, 3, 4), (command, result.output, result.exception)
        assert result.exception is None or isinstance(result.exception, SystemExit), (command, result.exc_info)
        assert fingerprint(tmp_path) == before, command


def test_reading_changes_nothing_of_store_in_use(tmp_path: Path) -> None:
    """A running broker is not affected, and is shown in the output."""
    make_killed_store(tmp_path)
    with another_process(tmp_path, "hold") as holder:
        before = fingerprint(tmp_path)
        for command in READING_COMMANDS:
            assert run_reading_command(command, str(tmp_path / "store")).exit_code == 0, command
            assert fingerprint(tmp_path) == before, command

        shown = json.loads(run_reading_command("inspect-all", str(tmp_path / "store")).output)
        assert shown["holder_pid"] == holder.pid
        assert "A broker has the store open" in shown["next_start"]
        assert "a broker has the store open" in run_reading_command("verify", str(tmp_path / "store")).output


@pytest.mark.parametrize("command", READING_COMMANDS, ids=str)
def test_files_are_opened_read_only(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are opened without write access, even if the user has it."""
    make_damaged_store(tmp_path)
    opened: list[str] = []
    really_open = os.open

    def checked_open(path: str, flags: int, *more: Any, **named: Any) -> int:
        if str(tmp_path) in str(path):
            opened.append(path)
            assert flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND) == 0, path
        return really_open(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", checked_open)

    result = run_reading_command(command, str(tmp_path / "store"))

    assert opened
    assert result.exit_code in (0, 1), result.output


@pytest.mark.verify
def test_store_being_written_is_good(tmp_path: Path) -> None:
    """While a process appends, its moving end is not an error, and all older records are verified."""
    fill_store(tmp_path).close()
    root = str(tmp_path / "store")
    with another_process(tmp_path, "write"):
        for _ in range(5):
            result = gantry_store("verify", root, "--json")
            report = json.loads(result.output)
            assert result.exit_code == 0, report
            assert report["is_in_use"] and report["records"] >= 220
            assert json.loads(gantry_store("repair-plan", root, "--json").output)["damaged"] == []
            assert gantry_store("inspect", root).exit_code == 0
