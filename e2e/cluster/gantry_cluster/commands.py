"""Running other programs, and waiting for their effects."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from gantry_cluster.errors import CommandFailed, DeadlineExceeded

COMMAND_SECONDS_MAX = 120.0
"""The default limit of a program."""

POLL_SECONDS = 0.1
TAIL_LINES = 15
"""How many last lines of a log an error message has."""


def run(
    *words: str | Path,
    stdin: str | None = None,
    seconds_max: float = COMMAND_SECONDS_MAX,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run a program to its end and return its output. Raises ``CommandFailed`` and ``DeadlineExceeded``."""
    command = [str(word) for word in words]
    try:
        result = subprocess.run(
            command, input=stdin, capture_output=True, text=True, check=False, timeout=seconds_max, env=environment
        )
    except subprocess.TimeoutExpired:
        raise DeadlineExceeded(f"`{' '.join(command)}` did not end within {seconds_max:.0f} s") from None
    except OSError as error:
        raise CommandFailed(f"`{command[0]}` cannot be run: {error}") from error
    if result.returncode != 0:
        raise CommandFailed(
            f"`{' '.join(command)}` ended with {result.returncode}: {(result.stderr or result.stdout).strip()}"
        )
    return result.stdout


def tail(log: Path, lines: int = TAIL_LINES) -> str:
    """Return the end of a log, for error messages."""
    text = log.read_text(errors="replace") if log.exists() else ""
    return "\n".join(text.splitlines()[-lines:])


def wait_until(what: str, holds: Callable[[], bool], seconds_max: float, log: Path | None = None) -> None:
    """Wait for a condition. At the deadline, raise ``DeadlineExceeded`` with the end of the log."""
    deadline = time.monotonic() + seconds_max
    while not holds():
        if time.monotonic() > deadline:
            hint = f"; see {log}:\n{tail(log)}" if log is not None else ""
            raise DeadlineExceeded(f"{what}: not reached within {seconds_max:.0f} s{hint}")
        time.sleep(POLL_SECONDS)
