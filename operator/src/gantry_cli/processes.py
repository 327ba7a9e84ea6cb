"""What all that keep server processes running share: how one is started, ended, restarted, and what its end is called.

`gantry up --single`, local groups and pods each watch their servers in a loop of their own, because they answer a death
differently. The rules that must not differ between them are here.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, final

WINDOW_S: Final = 60.0
STOP_TIMEOUT_S: Final = 70.0
"""Longer than a broker's own `shutdownTimeout`, so that the broker itself reports what it could not finish."""
LAST_LINE_BYTES: Final = 4096
NO_OUTPUT: Final = "it said nothing"


@final
@dataclass(slots=True, kw_only=True)
class RestartPolicy:
    """When a server that died is started again: at once, then ever later. Pure: times in, a decision out.

    first `at_once_max` deaths within a minute   -> at once
    each further one                             -> after 1, 2, 4 ... at most `delay_s_max` seconds
    more than `deaths_max` within a minute       -> never: a restart does not mend what is wrong
    `short_lives_max` lives under a minute       -> never, likewise
    """

    at_once_max: int = 1
    delay_s_max: float
    deaths_max: int | None = None
    """None to restart the server however often it dies."""

    short_lives_max: int | None = None
    """In a row; None for no limit."""

    _deaths: list[float] = field(default_factory=list)
    _short_lives: int = 0

    @property
    def recent(self) -> int:
        """The number of deaths within the last minute, counted at the last death."""
        return len(self._deaths)

    def delay_after_death(self, started: float, now: float) -> float | None:
        """Return the seconds to wait after a life from `started` to `now`, or None to give up."""
        self._short_lives = self._short_lives + 1 if now - started < WINDOW_S else 0
        self._deaths = [death for death in self._deaths if now - death < WINDOW_S] + [now]
        if self.deaths_max is not None and self.recent > self.deaths_max:
            return None
        if self.short_lives_max is not None and self._short_lives >= self.short_lives_max:
            return None
        if self.recent <= self.at_once_max:
            return 0.0
        return float(min(2 ** (self.recent - self.at_once_max - 1), self.delay_s_max))


def server_command(*words: str) -> list[str]:
    """Return the command line of `python -m WORDS...` as a process that does not outlive this one."""
    return [sys.executable, "-m", "gantry_cli.child", str(os.getpid()), *words]


def exit_text(code: int) -> str:
    """Return how a process ended, by its exit code: -N if signal N killed it."""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


def last_log_line(log: Path) -> str:
    """Return the last line of a log, where the reason of an end usually is."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_LINE_BYTES))
            lines = file.read(LAST_LINE_BYTES).decode("utf-8", "replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1] if lines else NO_OUTPUT


def boot_id_of(pid: int) -> str:
    """Return the pid with the start time of the process that runs under it now; empty if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return ""
    fields = stat.rpartition(b")")[2].split()
    return "" if fields[0] in (b"Z", b"X") else f"{pid}-{int(fields[19])}"


def send_signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Send a signal to a process, unless it has ended.

    ``process.send_signal`` polls the process first, in Python before 3.13. If the process has just ended, that takes
    its exit code away from asyncio, which then reports 255.
    """
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)


async def end_process(process: asyncio.subprocess.Process) -> bool:
    """End a process with SIGTERM, and wake it up for that; False when it had to be killed after `STOP_TIMEOUT_S`."""
    for number in (signal.SIGTERM, signal.SIGCONT):
        send_signal(process, number)
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        send_signal(process, signal.SIGKILL)
        await process.wait()
        return False
    return True
