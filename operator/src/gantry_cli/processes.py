"""Keeps server processes running: what is started when, how it is ended, and what its end is called.

    ProcessLife      when a process is started, asked to end, and started again: states and transitions, without any I/O
    ServerProcess    carries that out on an event loop: `gantry up`
    PodSupervisor    carries it out as process 1 of a container, where nothing but one ``select`` may run (``pod``)

A server process does not outlive its supervisor (``gantry_cli.child``), and runs in a session of its own, so that
Ctrl-C reaches the supervisor alone, which stops its servers in order.
"""

from __future__ import annotations

import asyncio
import enum
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, final

WINDOW_S: Final = 60.0
STOP_TIMEOUT_S: Final = 70.0
"""Longer than a broker's own `shutdownTimeout`, so that the broker itself reports what it could not finish."""
NO_ROOM_S: Final = 2.0
"""Between two tries to start a process for which this machine has no room."""
HOLD_POLL_S: Final = 0.1
LAST_LINE_BYTES: Final = 4096
LAST_LINE_CHARS_MAX: Final = 300
NO_OUTPUT: Final = "it said nothing"
LOG_PREFIX: Final = re.compile(r"^\d{4}-\d\d-\d\d [\d:,]+ [A-Z]+ \S+ ")
"""Time, level and logger, which the log has and a one-line error does not need."""


# -- when a process is started -----------------------------------------------------------------------------------------


@final
@dataclass(slots=True, kw_only=True)
class RestartPolicy:
    """When a server that died is started again: at once, then ever later. Pure: times in, a decision out.

    first `at_once_max` deaths within a minute   -> at once
    each further one                             -> after 1, 2, 4 ... at most `delay_s_max` seconds
    `short_lives_max` lives under a minute       -> never: a restart does not mend what is wrong
    """

    at_once_max: int = 1
    delay_s_max: float
    short_lives_max: int | None = None
    """In a row; None to restart the server however often it dies."""

    final_codes: frozenset[int] = frozenset()
    """Exit codes after which another start would mend nothing."""

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
        if self.short_lives_max is not None and self._short_lives >= self.short_lives_max:
            return None
        if self.recent <= self.at_once_max:
            return 0.0
        return float(min(2 ** (self.recent - self.at_once_max - 1), self.delay_s_max))


class Phase(enum.Enum):
    """Where a kept process is in its life."""

    STOPPED = "stopped"
    """It is not to run."""
    WAITING = "waiting"
    """It is to be started at `start_at_s`."""
    RUNNING = "running"
    STOPPING = "stopping"
    """It was asked to end, and stays down."""
    RESTARTING = "restarting"
    """It was asked to end, and is started again at once."""
    FAILED = "failed"
    """It died, and its policy starts it no more."""


@final
class ProcessLife:
    """When one process is started, asked to end, and started again. Pure: times and exit codes in, phases out.

                    want          unwant       renew          started    postpone   ended
        STOPPED     WAITING       -            -              STOPPING   -          -
        WAITING     -             STOPPED      -              RUNNING    WAITING    -
        RUNNING     -             STOPPING     RESTARTING     -          -          WAITING or FAILED, by the policy
        STOPPING    RESTARTING    -            -              -          -          STOPPED
        RESTARTING  -             STOPPING     -              -          -          WAITING

    A process that is not wanted any more may still come to be started: its start was under way. It is ended then.
    """

    def __init__(self, policy: RestartPolicy) -> None:
        self.phase = Phase.STOPPED
        self.start_at_s = 0.0
        """When to start it, while it is WAITING."""
        self.starts = 0
        """Tries included that came to nothing."""
        self.policy: Final = policy
        self._started_s = 0.0

    def __repr__(self) -> str:
        return f"<ProcessLife {self.phase.value} starts={self.starts}>"

    def want(self, now_s: float) -> None:
        """Have it run."""
        if self.phase is Phase.STOPPED:
            self.phase, self.start_at_s = Phase.WAITING, now_s
        elif self.phase is Phase.STOPPING:
            self.phase = Phase.RESTARTING

    def unwant(self) -> bool:
        """Have it stay down. Returns whether the process must be asked to end, which is done once."""
        was = self.phase
        if was is Phase.WAITING:
            self.phase = Phase.STOPPED
        elif was in (Phase.RUNNING, Phase.RESTARTING):
            self.phase = Phase.STOPPING
        return was is Phase.RUNNING

    def renew(self) -> bool:
        """Have it end and start anew. Returns whether the process must be asked to end."""
        is_running = self.phase is Phase.RUNNING
        if is_running:
            self.phase = Phase.RESTARTING
        return is_running

    def started(self, now_s: float) -> None:
        """Record that it was started."""
        assert self.phase in (Phase.WAITING, Phase.STOPPED), "only a process that does not run is started"
        self.phase = Phase.RUNNING if self.phase is Phase.WAITING else Phase.STOPPING
        self._started_s = now_s
        self.starts += 1

    def postpone(self, now_s: float, seconds: float) -> None:
        """Record that it could not be started now."""
        self.start_at_s = now_s + seconds
        self.starts += 1

    def ended(self, code: int, now_s: float) -> float | None:
        """Record its end. Returns the seconds until its next start if it died by itself and is started again."""
        was = self.phase
        if was is Phase.STOPPING:
            self.phase = Phase.STOPPED
        elif was is Phase.RESTARTING:
            self.phase, self.start_at_s = Phase.WAITING, now_s
        else:
            assert was is Phase.RUNNING, "only a process that runs can end"
            delay = None if code in self.policy.final_codes else self.policy.delay_after_death(self._started_s, now_s)
            if delay is None:
                self.phase = Phase.FAILED
            else:
                self.phase, self.start_at_s = Phase.WAITING, now_s + delay
            return delay
        return None


def restart_text(delay_s: float) -> str:
    """Return when a process starts again, in words."""
    return f"it starts again {f'in {delay_s:.0f} s' if delay_s else 'at once'}"


# -- one process -------------------------------------------------------------------------------------------------------


def server_command(*words: str) -> list[str]:
    """Return the command line of `python -m WORDS...` as a process that does not outlive this one."""
    return [sys.executable, "-m", "gantry_cli.child", str(os.getpid()), *words]


def exit_text(code: int) -> str:
    """Return how a process ended, by its exit code: -N if signal N killed it."""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


def last_log_line(log: Path) -> str:
    """Return the last line of a log without its prefix: the reason of an end usually is there."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_LINE_BYTES))
            lines = file.read(LAST_LINE_BYTES).decode("utf-8", "replace").strip().splitlines()
    except OSError:
        lines = []
    return LOG_PREFIX.sub("", lines[-1]) if lines else NO_OUTPUT


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


# -- processes on an event loop ----------------------------------------------------------------------------------------


def never() -> bool:
    """Return False: nothing keeps the process from being started."""
    return False


@final
class ServerProcess:
    """One server that is kept running while it is wanted. Owned by one event loop, on which ``run`` is a task.

    A death is answered by another start, and deaths in a row by ever later ones. Its `boot_id` is its pid with the time
    of its start, so that no other process of the same number is ever taken for it.
    """

    def __init__(
        self, name: str, module: str, arguments: Callable[[], Sequence[str]], log: Path, *,
        policy: RestartPolicy, now_ms: Callable[[], int], report: Callable[[str], None],
        changed: Callable[[], None] = lambda: None, is_blocked: Callable[[], bool] = never,
    ) -> None:  # fmt: skip
        """Start nothing yet.

        ``arguments`` are asked for at each start, ``changed`` is called when the process has started or ended, and
        while ``is_blocked()`` it is not started.
        """
        self.name: Final = name
        self.log: Final = log
        self.boot_id = ""
        """Of the process that runs; empty while none does."""
        self.started_ms: int | None = None
        self.stopped_ms: int | None = now_ms()
        self.failure = ""
        """Why it ended by itself, or could not be started, the last time."""
        self._module, self._arguments, self._now_ms = module, arguments, now_ms
        self._report, self._changed, self._is_blocked = report, changed, is_blocked
        self._life: Final = ProcessLife(policy)
        self._hurry: Final = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None

    def __repr__(self) -> str:
        return f"<ServerProcess {self.name} {self.boot_id or 'stopped'} starts={self.starts}>"

    @property
    def starts(self) -> int:
        return self._life.starts

    @property
    def is_running(self) -> bool:
        return bool(self.boot_id)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self.boot_id else None

    def start(self) -> None:
        """Have it run; nothing if it does."""
        self._life.want(_now_s())
        self._hurry.set()

    async def stop(self) -> bool:
        """Have it end, politely first, and stay down. Returns False if it had to be killed."""
        self._life.unwant()
        self._hurry.set()
        return await self._end()

    async def restart(self) -> None:
        """Have it end politely and start anew."""
        self._life.want(_now_s())
        self._life.renew()
        await self._end()

    async def run(self) -> None:
        """Keep it running while it is wanted."""
        life = self._life
        while True:
            self._hurry.clear()
            if life.phase is Phase.STOPPED:
                await self._hurry.wait()
            elif (wait_s := life.start_at_s - _now_s()) > 0 or self._is_blocked():
                await self._rest(wait_s if wait_s > 0 else HOLD_POLL_S)
            else:
                await self._run_once()

    async def _run_once(self) -> None:
        try:
            process = await self._spawn()
        except OSError as error:  # no room for its settings or its log, or no process: the others run on
            self.failure = f"{self.name} cannot be started: {error}"
            self._report(self.failure)
            self._life.postpone(_now_s(), NO_ROOM_S)
            return
        if self._life.phase is Phase.STOPPING:
            send_signal(process, signal.SIGTERM)
        code = await process.wait()
        self.boot_id, self.stopped_ms = "", self._now_ms()
        self._changed()
        delay_s = self._life.ended(code, _now_s())
        assert self._life.phase is not Phase.FAILED, "the policy of a server on a loop never gives it up"
        if delay_s is not None:
            self._report_death(code, delay_s)

    async def _spawn(self) -> asyncio.subprocess.Process:
        with self.log.open("ab") as output:
            self._process = process = await asyncio.create_subprocess_exec(
                *server_command(self._module, *self._arguments()),
                stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        self._life.started(_now_s())
        self.boot_id, self.started_ms, self.stopped_ms = boot_id_of(process.pid), self._now_ms(), None
        self._changed()
        return process

    def _report_death(self, code: int, delay_s: float) -> None:
        last = f": {last_log_line(self.log)[:LAST_LINE_CHARS_MAX]}" if code > 0 else ""
        self.failure = f"{self.name} {exit_text(code)}{last}"
        self._report(f"{self.failure}; {'it is kept down' if self._is_blocked() else restart_text(delay_s)}")

    async def _rest(self, seconds: float) -> None:
        """Wait so long, or until something else is wanted of the process."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hurry.wait()

    async def _end(self) -> bool:
        process = self._process
        if process is None or not self.boot_id:
            return True
        is_polite = await end_process(process)
        self.boot_id = ""
        return is_polite


def _now_s() -> float:
    return asyncio.get_running_loop().time()
