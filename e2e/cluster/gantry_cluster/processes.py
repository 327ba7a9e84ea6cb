"""Which process is meant: a number alone is not enough, because the kernel gives it to others later.

A `Process` is a number and the moment the process began, and nothing here sends a signal to a number whose moment is
another one.
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
"""Where the moment of the start lies behind the name in /proc/PID/stat."""
PARENT_FIELD = 1
STATE_FIELD = 0


def _fields(pid: int) -> list[str]:
    """What the kernel says of a process behind its name, which itself may hold spaces; nothing when it is gone."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


@dataclass(frozen=True)
class Process:
    """One process of this boot."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """The process that has this number now."""
        fields = _fields(pid)
        return cls(pid, int(fields[START_FIELD])) if fields else None

    def is_alive(self) -> bool:
        """Whether it still runs; one that only waits to be collected does not."""
        fields = _fields(self.pid)
        return bool(fields) and int(fields[START_FIELD]) == self.started and fields[STATE_FIELD] not in "ZX"

    def send(self, number: signal.Signals) -> None:
        """A signal to it and to no one else."""
        if self.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def resident_bytes(self) -> int:
        """The memory it holds now."""
        try:
            pages = int((PROC / str(self.pid) / "statm").read_text().split()[1])
        except (FileNotFoundError, ProcessLookupError):
            return 0
        return pages * os.sysconf("SC_PAGE_SIZE")


def is_running(pid: int) -> bool:
    """Whether a process that we have just started has not ended."""
    process = Process.of(pid)
    return process is not None and process.is_alive()


def start_apart(words: Sequence[str], log: Path) -> int:
    """Start a program that outlives us, in a session of its own, with its words in a log; its number.

    Not by `subprocess`, whose objects want to see the end of what they started.
    """
    output = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    files: list[tuple[int, int, str, int, int] | tuple[int, int, int]] = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), output, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    return os.posix_spawnp(words[0], list(words), os.environ, file_actions=files, setsid=True)


def child_of(pid: int) -> Process | None:
    """The one child of a process that only waits for it."""
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            fields = _fields(int(entry.name))
            if fields and int(fields[PARENT_FIELD]) == pid:
                return Process(int(entry.name), int(fields[START_FIELD]))
    return None
