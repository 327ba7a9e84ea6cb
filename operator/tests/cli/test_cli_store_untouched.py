"""`gantry store` touches nothing: not a byte, not a time, not a broker that has the store open."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from looking.looks import (
    READING,
    STORES,
    another_process,
    filled,
    fingerprint,
    gantry,
    leave_damaged,
    leave_killed,
    look,
)


@pytest.mark.parametrize("store", STORES, ids=str)
def test_reading_touches_nothing(store: str, tmp_path: Path) -> None:
    """Names, bytes, times, blocks: the tree is after every command what it was before, whatever state it is in."""
    STORES[store](tmp_path)
    before = fingerprint(tmp_path)

    for command in READING:
        result = look(command, str(tmp_path / "store"))
        assert result.exit_code in (0, 1, 3, 4), (command, result.output, result.exception)
        assert result.exception is None or isinstance(result.exception, SystemExit), (command, result.exc_info)
        assert fingerprint(tmp_path) == before, command


def test_reading_touches_nothing_of_a_store_in_use(tmp_path: Path) -> None:
    """The broker that has it open notices nothing, and is said to be there."""
    leave_killed(tmp_path)
    with another_process(tmp_path, "hold") as holder:
        before = fingerprint(tmp_path)
        for command in READING:
            assert look(command, str(tmp_path / "store")).exit_code == 0, command
            assert fingerprint(tmp_path) == before, command

        seen = json.loads(look("inspect-all", str(tmp_path / "store")).output)
        assert seen["holder_pid"] == holder.pid
        assert "A broker has it open" in seen["next_start"]
        assert "a broker has it open" in look("verify", str(tmp_path / "store")).output


@pytest.mark.parametrize("command", READING, ids=str)
def test_files_are_opened_for_reading_only(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may write to a store still does not even ask for it."""
    leave_damaged(tmp_path)
    opened: list[str] = []
    really_open = os.open

    def watched(path: str, flags: int, *more: Any, **named: Any) -> int:
        if str(tmp_path) in str(path):
            opened.append(path)
            assert flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND) == 0, path
        return really_open(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", watched)

    result = look(command, str(tmp_path / "store"))

    assert opened
    assert result.exit_code in (0, 1), result.output


@pytest.mark.verify
def test_a_store_that_is_written_at_this_moment_is_good(tmp_path: Path) -> None:
    """A real process appends all the time; its moving end is no error, and all that was there before is verified."""
    filled(tmp_path).close()
    root = str(tmp_path / "store")
    with another_process(tmp_path, "write"):
        for _ in range(5):
            result = gantry("verify", root, "--json")
            report = json.loads(result.output)
            assert result.exit_code == 0, report
            assert report["is_in_use"] and report["records"] >= 220
            assert json.loads(gantry("repair-plan", root, "--json").output)["rotten"] == []
            assert gantry("inspect", root).exit_code == 0
