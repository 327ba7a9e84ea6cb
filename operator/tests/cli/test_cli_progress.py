"""What moves on a terminal while something long goes on, and that nobody else sees it."""

import os
import pty
import socket
import subprocess
import sys

import pytest

from gantry_cli import progress
from gantry_testing.tree import PYTHON_PATH

PROGRAM = """
import sys, time
from gantry_cli import progress
progress.LATE_S = {late_s}
with progress.{bar} as tell:
    if tell is not None:
        tell(3, 10)
    deadline = time.monotonic() + {lasts_s}
    while time.monotonic() < deadline:
        time.sleep(0.05)
    print("the result")
"""


def run(bar: str, *, late_s: float, lasts_s: float) -> tuple[str, str]:
    """What a program prints to a pipe on standard output and to a terminal on standard error."""
    controller, terminal = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(bar=bar, late_s=late_s, lasts_s=lasts_s)],
        stdout=subprocess.PIPE, stderr=terminal, env=os.environ | {"PYTHONPATH": PYTHON_PATH, "TERM": "xterm"},
    ) as process:  # fmt: skip
        os.close(terminal)
        seen = b""
        try:
            while chunk := os.read(controller, 4096):
                seen += chunk
        except OSError:
            pass  # a terminal whose last writer is gone reads as an error
        assert process.stdout is not None
        printed = process.stdout.read().decode()
    os.close(controller)
    assert process.returncode == 0
    return printed, seen.decode()


@pytest.mark.verify
@pytest.mark.parametrize(
    ("bar", "shown"),
    [
        ("waiting('asking everybody')", "asking everybody"),
        ("count_progress('sending')", "3/10"),
        ("bytes_progress('reading')", "3/10 bytes"),
    ],
)
def test_long_work_moves_on_the_terminal_and_the_result_is_elsewhere(bar: str, shown: str) -> None:
    """It is on standard error; standard output has the result and nothing else."""
    printed, seen = run(bar, late_s=0.0, lasts_s=1.5)

    assert printed == "the result\n"
    assert shown in seen and "the result" not in seen


def test_short_work_shows_nothing() -> None:
    """What is over before anybody wonders leaves a terminal as it was."""
    _, seen = run("waiting('asking everybody')", late_s=30.0, lasts_s=0.0)

    assert "asking" not in seen


@pytest.mark.parametrize("bar", [progress.bytes_progress, progress.count_progress])
def test_nothing_moves_where_nobody_watches(
    bar: object, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into a pipe or a file no bar is written, whatever it lasts."""
    monkeypatch.setattr(progress, "LATE_S", 0.0)
    assert callable(bar)

    with bar("reading") as tell:
        tell(1, 2)

    assert capsys.readouterr() == ("", "")


def test_it_comes_before_anybody_wonders() -> None:
    """Everything that lasts longer than two seconds has shown something by then."""
    assert progress.LATE_S < 2.0


LONG = [
    ("status",),
    ("topic", "list"),
    ("topic", "describe", "orders"),
    ("topic", "create", "orders"),
    ("topic", "delete", "orders", "--yes"),
    ("produce", "orders", "a body"),
    ("group", "resend", "billing", "--from-dead-letters"),
]


@pytest.mark.verify(quick=5)
@pytest.mark.parametrize("words", LONG, ids=" ".join)
def test_command_that_waits_for_somebody_shows_it(words: tuple[str, ...]) -> None:
    """A name server that takes the connection and says nothing: whoever waits sees that something goes on."""
    controller, terminal = pty.openpty()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        at_once = "from gantry_cli import progress; progress.LATE_S = 0.0; from gantry_cli.main import main"
        program = f"{at_once}; main({[*words, '-n', address]!r})"
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=subprocess.DEVNULL, stderr=terminal, env=os.environ | {"PYTHONPATH": PYTHON_PATH, "TERM": "xterm"},
        )  # fmt: skip
        os.close(terminal)
        seen = b""
        try:
            while b"0:00:0" not in seen:
                seen += os.read(controller, 4096)  # an error when the command ends without having shown anything
        finally:
            process.kill()
            process.wait()
            os.close(controller)

    assert b"0:00:0" in seen
