"""Child processes that never outlive the run.

Every child has a process group of its own and a log file; `Nursery.run` also limits its time. Leaving the `Nursery`,
also by an error, ends all children concurrently, by SIGTERM first and by SIGKILL a moment later: their data is not
needed any more, and Apache's broker takes many seconds for a clean stop.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from gantry_interop.errors import DeadlineExceeded, InteropError

STOP_SECONDS_MAX = 60.0
LEAVING_SECONDS_MAX = 1.0
"""The time that remaining children have for a clean stop at the end of a run."""

POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Child:
    """One running program and the file with its output."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def tail(self, lines: int = 15) -> str:
        """Return the end of the program's output, for error messages."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def is_running(self) -> bool:
        """Return whether the program has not ended yet."""
        return self.process.poll() is None

    def stop(self, seconds_max: float = STOP_SECONDS_MAX) -> int:
        """End the program and everything that it started: SIGTERM, then SIGKILL. Return its exit code."""
        self.request_stop()
        try:
            return self.process.wait(seconds_max)
        except subprocess.TimeoutExpired:
            return self.kill()

    def request_stop(self) -> None:
        """Send SIGTERM without waiting for the end."""
        self._signal(signal.SIGTERM)

    def kill(self) -> int:
        """End the program with SIGKILL, like a crash."""
        self._signal(signal.SIGKILL)
        return self.process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


class Nursery:
    """Starts children, and ends all of them when the context ends."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._children: list[Child] = []

    def __enter__(self) -> Nursery:
        self._logs.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in reversed(self._children):
            child.request_stop()
        deadline = time.monotonic() + LEAVING_SECONDS_MAX
        for child in self._children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(max(deadline - time.monotonic(), 0))
            child.kill()

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> Child:
        """Start a program with a log file of its own, also if it is started again."""
        log = self._logs / f"{name}.log"
        again = 1
        while log.exists():
            again += 1
            log = self._logs / f"{name}-{again}.log"
        with log.open("xb") as output:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                start_new_session=True,
            )
        child = Child(name, process, log)
        self._children.append(child)
        return child

    def run(self, name: str, command: Sequence[str], environment: Mapping[str, str], seconds_max: float) -> Child:
        """Start a program and wait for its end, up to the deadline."""
        child = self.start(name, command, environment)
        try:
            child.process.wait(seconds_max)
        except subprocess.TimeoutExpired:
            child.kill()
            raise DeadlineExceeded(
                f"{name} did not end within {seconds_max:.0f} s; see {child.log}:\n{child.tail()}"
            ) from None
        return child


def wait_until(what: str, holds: Callable[[], bool], seconds_max: float, child: Child | None = None) -> None:
    """Wait for a condition. Raises DeadlineExceeded at the deadline, and InteropError if the process on which it
    depends has ended.
    """
    deadline = time.monotonic() + seconds_max
    while not holds():
        if child is not None and not child.is_running():
            raise InteropError(
                f"{child.name} ended with {child.process.returncode} before {what}; see {child.log}:\n{child.tail()}"
            )
        if time.monotonic() > deadline:
            hint = f"; see {child.log}:\n{child.tail()}" if child is not None else ""
            raise DeadlineExceeded(f"{what}: not reached within {seconds_max:.0f} s{hint}")
        time.sleep(POLL_SECONDS)
