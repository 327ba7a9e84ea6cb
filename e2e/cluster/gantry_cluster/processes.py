"""Processes that are identified beyond doubt: a process id alone is not enough, because the kernel reuses it.

A `Process` is a process id and the start time of the process, and no signal is sent to an id with another start time.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
START_FIELD = 19
"""The position of the start time among the fields after the name in /proc/PID/stat."""
PARENT_FIELD = 1
STATE_FIELD = 0


def _fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name, which may hold spaces; empty if the process has ended."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


@dataclass(frozen=True)
class Process:
    """One process of the current boot."""

    pid: int
    started: int
    """The start time in clock ticks since the boot."""

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """Return the process that has this id now, or None."""
        fields = _fields(pid)
        return cls(pid, int(fields[START_FIELD])) if fields else None

    def is_alive(self) -> bool:
        """Return whether it still runs; a zombie does not."""
        fields = _fields(self.pid)
        return bool(fields) and int(fields[START_FIELD]) == self.started and fields[STATE_FIELD] not in "ZX"

    def send(self, number: signal.Signals) -> None:
        """Send a signal to this process only."""
        if self.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def resident_bytes(self) -> int:
        """Return the memory that it holds now."""
        try:
            pages = int((PROC / str(self.pid) / "statm").read_text().split()[1])
        except (FileNotFoundError, ProcessLookupError):
            return 0
        return pages * os.sysconf("SC_PAGE_SIZE")


def is_running(pid: int) -> bool:
    """Return whether a process that was just started has not ended."""
    process = Process.of(pid)
    return process is not None and process.is_alive()


def start_detached(words: Sequence[str], log: Path) -> int:
    """Start a program in a session of its own that outlives this process, with its output in a log; return its id.

    `subprocess` is not used, because its objects wait for the end of what they started.
    """
    output = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    files: list[tuple[int, int, str, int, int] | tuple[int, int, int]] = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), output, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    return os.posix_spawnp(words[0], list(words), os.environ, file_actions=files, setsid=True)


def child_of(pid: int) -> Process | None:
    """Return the only child of a process that waits for it."""
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            fields = _fields(int(entry.name))
            if fields and int(fields[PARENT_FIELD]) == pid:
                return Process(int(entry.name), int(fields[START_FIELD]))
    return None
