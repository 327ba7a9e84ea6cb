"""Progress displays appear on a terminal during long operations, and nowhere else."""

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
progress.DISPLAY_DELAY_S = {late_s}
with progress.{bar} as report:
    if report is not None:
        report(3, 10)
    deadline = time.monotonic() + {lasts_s}
    while time.monotonic() < deadline:
        time.sleep(0.05)
    print("the result")
"""


def run(bar: str, *, late_s: float, lasts_s: float) -> tuple[str, str]:
    """Run a program; return its output to a pipe on standard output and to a terminal on standard error."""
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
            pass  # reading a terminal without writers is an error
        assert process.stdout is not None
        printed = process.stdout.read().decode()
    os.close(controller)
    assert process.returncode == 0
    return printed, seen.decode()


@pytest.mark.verify
@pytest.mark.parametrize(
    ("bar", "shown"),
    [
        ("spinner('querying the cluster')", "querying the cluster"),
        ("count_progress('sending')", "3/10"),
        ("bytes_progress('reading')", "3/10 bytes"),
    ],
)
def test_progress_is_shown_on_standard_error_only(bar: str, shown: str) -> None:
    """Progress is written to standard error; standard output has only the result."""
    printed, seen = run(bar, late_s=0.0, lasts_s=1.5)

    assert printed == "the result\n"
    assert shown in seen and "the result" not in seen


def test_short_operation_shows_no_progress() -> None:
    """An operation that ends before the delay writes nothing to the terminal."""
    _, seen = run("spinner('querying the cluster')", late_s=30.0, lasts_s=0.0)

    assert "querying" not in seen


@pytest.mark.parametrize("bar", [progress.bytes_progress, progress.count_progress])
def test_no_progress_is_shown_without_terminal(
    bar: object, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No progress is written to a pipe or a file."""
    monkeypatch.setattr(progress, "DISPLAY_DELAY_S", 0.0)
    assert callable(bar)

    with bar("reading") as report:
        report(1, 2)

    assert capsys.readouterr() == ("", "")


def test_progress_starts_within_two_seconds() -> None:
    """The delay before a display is shorter than two seconds."""
    assert progress.DISPLAY_DELAY_S < 2.0


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
def test_command_shows_progress_while_waiting_for_server(words: tuple[str, ...]) -> None:
    """While a name server does not answer, the terminal shows the elapsed time."""
    controller, terminal = pty.openpty()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        at_once = "from gantry_cli import progress; progress.DISPLAY_DELAY_S = 0.0; from gantry_cli.main import main"
        program = f"{at_once}; main({[*words, '-n', address]!r})"
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=subprocess.DEVNULL, stderr=terminal, env=os.environ | {"PYTHONPATH": PYTHON_PATH, "TERM": "xterm"},
        )  # fmt: skip
        os.close(terminal)
        seen = b""
        try:
            while b"0:00:0" not in seen:
                seen += os.read(controller, 4096)  # raises an error if the command ends without output
        finally:
            process.kill()
            process.wait()
            os.close(controller)

    assert b"0:00:0" in seen
