"""`gantry console` as a process: a list of local folders, another address on Enter, and the end by Ctrl-C."""

from __future__ import annotations

import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import httpx
import pytest
from admin_scene import ENVIRONMENT, Child

ANSWER_S: Final = 60.0


def list_of(address: str) -> list[dict[str, object]]:
    """Log in with an address, and return the groups of the list."""
    base, _, code = address.strip().partition("/#code=")
    with httpx.Client(base_url=base, timeout=ANSWER_S) as client:
        session = client.post("/v1/console/sessions", json={"code": code}).json()["session"]
        answer = client.get("/v1/broker-groups", headers={"Authorization": f"Bearer {session}"})
    found: list[dict[str, object]] = answer.json()["groups"]
    return found


def words_for(folder: Path) -> list[str]:
    return ["console", "--data", str(folder / "crew"), "--data", str(folder / "wagon")]


def test_several_local_groups_are_listed_until_the_command_is_interrupted(tmp_path: Path) -> None:
    """Folders whose groups do not run are listed with the reason; SIGINT ends the command with code 0."""
    child = Child("gantry_cli", words_for(tmp_path), "http://127.0.0.1:")
    try:
        groups = list_of(child.line)
        child.send(signal.SIGINT)
        assert child.process.wait(ANSWER_S) == 0
    finally:
        child.end()
    assert [(one["name"], one["can_open"]) for one in groups] == [("crew", False), ("wagon", False)]
    assert all("no group runs in" in str(one["fault"]) for one in groups)
    assert "press Enter" not in child.log, "standard input is not a terminal in the foreground"


@pytest.mark.skipif(shutil.which("setsid") is None, reason="setsid gives a process a terminal of its own")
def test_enter_prints_another_address(tmp_path: Path) -> None:
    """Each line that is typed prints an address for one more browser; Ctrl-C ends the command."""
    master, slave = pty.openpty()
    command = ["setsid", "--ctty", "--wait", sys.executable, "-m", "gantry_cli", *words_for(tmp_path)]
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=ENVIRONMENT)
    os.close(slave)
    try:
        shown = read_until(master, b"", b"press Enter for another one")
        os.write(master, b"\n")
        shown = read_until(master, shown, b"#code=", count=2)
        first, second = [line for line in shown.decode().split() if "#code=" in line]
        assert first != second and len(list_of(first)) == len(list_of(second)) == 2
        os.write(master, b"\x03")
        assert process.wait(ANSWER_S) == 0
    finally:
        process.kill()
        process.wait(ANSWER_S)
        os.close(master)


def test_missing_package_is_named_and_needed_for_a_served_console_only(tmp_path: Path) -> None:
    """Without h11 the other uses of the command work, and the list names the remedy."""
    blocked = "import sys; sys.modules['h11'] = None; from gantry_cli.main import main; main(sys.argv[1:])"

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", blocked, *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S, env=ENVIRONMENT, check=False)

    served, printed = run(*words_for(tmp_path)), run("console", "--data", str(tmp_path / "crew"))
    assert served.returncode == 1 and "the package h11" in served.stderr and "pip install" in served.stderr
    assert printed.returncode == 3 and "no group with a console runs" in printed.stderr


def read_until(terminal: int, shown: bytes, text: bytes, *, count: int = 1) -> bytes:
    """Read from a terminal until it has shown a text, and the line with it, this many times."""
    deadline = time.monotonic() + ANSWER_S
    while shown.count(text) < count or not shown.endswith(b"\n"):
        assert time.monotonic() < deadline, shown
        shown += os.read(terminal, 4096)
    return shown
