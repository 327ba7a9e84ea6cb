"""The name server as a process: ready line, signals, exit codes, one-line errors."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gantry_testing.tree import PYTHON_PATH

READY = "name server listening on "


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "gantry_nameserver", *arguments]


@contextmanager
def running(directory: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Start a name server on a free port, and return it with the reported port."""
    process = subprocess.Popen(
        command("--listen", "127.0.0.1:0", "--data", str(directory)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": PYTHON_PATH},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith(READY), line
        yield process, int(line.rpartition(":")[2])
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=120)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_signal_stops_name_server_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    """After the ready line it accepts connections; a signal ends it with code 0 and no traceback."""
    with running(tmp_path) as (process, port):
        socket.create_connection(("127.0.0.1", port), timeout=60).close()

        process.send_signal(number)
        _, errors = process.communicate(timeout=120)

        assert process.returncode == 0
        assert "Traceback" not in errors


def test_port_or_directory_in_use_is_reported_with_a_remedy(tmp_path: Path) -> None:
    """The error is one line that names the port and the option, or the directory; the exit code is 1."""
    with running(tmp_path / "first") as (_, port):
        port_taken = _run("--listen", f"127.0.0.1:{port}", "--data", str(tmp_path / "second"))
        directory_taken = _run("--listen", "127.0.0.1:0", "--data", str(tmp_path / "first"))
        (tmp_path / "conf").write_text(f"externalListenPort={port}\n")
        outside = _run("--listen", "127.0.0.1:0", "-c", str(tmp_path / "conf"), "--data", str(tmp_path / "third"))

    assert outside.returncode == 1 and f"port {port} is in use; choose another with externalL" in outside.stderr
    assert port_taken.returncode == 1 and f"port {port} is in use; choose another with --listen" in port_taken.stderr
    assert directory_taken.returncode == 1 and str(tmp_path / "first") in directory_taken.stderr
    for result in (port_taken, directory_taken, outside):
        assert "Traceback" not in result.stderr and len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--listen", "9876"), "host:port"),
        (("--tls", "enforcing"), "--tls-cert"),
        (("-c", "/nowhere.conf"), "/nowhere.conf"),
    ],
)
def test_invalid_options_are_reported_in_one_line(tmp_path: Path, arguments: tuple[str, ...], text: str) -> None:
    """An invalid option is named before anything starts; the exit code is 2, with which it is not restarted."""
    result = _run(*arguments, "--data", str(tmp_path))

    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1
    assert text in result.stderr and "Traceback" not in result.stderr


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=180, check=False,
        env=os.environ | {"PYTHONPATH": PYTHON_PATH},
    )  # fmt: skip
