"""Supervision of server processes: when a process is started, stopped and restarted.

    ProcessLifecycle the states and transitions of one process, without any I/O
    ServerProcess    runs a process on an event loop, for `gantry up`
    PodSupervisor    is process 1 of a container and runs a server as its child, with a single ``select`` (``pod``)

A server process does not outlive its supervisor (``gantry_cli.child``). With `gantry up` it runs in a session of its
own, so that Ctrl-C reaches the supervisor alone, which stops its servers in order.
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

DEATH_WINDOW_S: Final = 60.0
"""The time in which deaths are counted; a shorter run is a short one."""
STOP_TIMEOUT_S: Final = 70.0
"""The time a process gets to stop; longer than a broker's `shutdownTimeout`, so that the broker itself reports what it
could not finish."""
SPAWN_RETRY_S: Final = 2.0
"""The delay before the next attempt after a process could not be started, for example because a disk was full."""
BLOCKED_POLL_S: Final = 0.1
"""The time between two checks whether a blocked process may start."""
LAST_LINE_BYTES: Final = 4096
LAST_LINE_CHARS_MAX: Final = 300
NO_OUTPUT: Final = "no output"
"""The text for a log without a last line."""
LOG_PREFIX: Final = re.compile(r"^\d{4}-\d\d-\d\d [\d:,]+ [A-Z]+ \S+ ")
"""The time, level and logger of a log line, which are removed in a one-line error."""


# -- when a process is started -----------------------------------------------------------------------------------------


@final
@dataclass(slots=True, kw_only=True)
class RestartPolicy:
    """The restart policy of a server that has died: immediately, then with exponential backoff. Pure, without a clock.

    first `immediate_restarts_max` deaths within a minute   -> immediately
    each further one                                        -> after 1, 2, 4 ... at most `delay_s_max` seconds
    `short_runs_max` runs under a minute                    -> never: another restart would not help
    """

    immediate_restarts_max: int = 1
    """After how many deaths within a minute restarts are delayed."""

    delay_s_max: float
    """The longest delay of a restart, in seconds."""

    short_runs_max: int | None = None
    """The number of consecutive short runs after which the server is not restarted; None for no limit."""

    final_codes: frozenset[int] = frozenset()
    """Exit codes after which the server is not restarted, since the next start would fail in the same way."""

    _deaths: list[float] = field(default_factory=list)
    _short_runs: int = 0

    @property
    def recent(self) -> int:
        """The number of deaths within the last minute, counted at the last death."""
        return len(self._deaths)

    def delay_after_death(self, started: float, now: float) -> float | None:
        """Return the seconds until the restart after a run from `started` to `now`, or None to give up."""
        self._short_runs = self._short_runs + 1 if now - started < DEATH_WINDOW_S else 0
        self._deaths = [death for death in self._deaths if now - death < DEATH_WINDOW_S] + [now]
        if self.short_runs_max is not None and self._short_runs >= self.short_runs_max:
            return None
        if self.recent <= self.immediate_restarts_max:
            return 0.0
        return float(min(2 ** (self.recent - self.immediate_restarts_max - 1), self.delay_s_max))


class Phase(enum.Enum):
    """The state of a supervised process."""

    STOPPED = "stopped"
    """The process is not wanted and does not run."""
    WAITING = "waiting"
    """The process is started at `start_at_s`."""
    RUNNING = "running"
    STOPPING = "stopping"
    """The process was asked to stop, and is not restarted."""
    RESTARTING = "restarting"
    """The process was asked to stop, and is restarted immediately."""
    FAILED = "failed"
    """The process died, and its policy does not restart it."""


@final
class ProcessLifecycle:
    """The lifecycle of one process. Pure: it takes times and exit codes, and changes the phase.

    The methods `request_start`, `request_stop` and `request_restart` ask for a change; `record_start`, `postpone_start`
    and `record_exit` record an event. The columns are these six, in this order.

                    start         stop         restart        started    postponed  exited
        STOPPED     WAITING       -            -              STOPPING   -          -
        WAITING     -             STOPPED      -              RUNNING    WAITING    -
        RUNNING     -             STOPPING     RESTARTING     -          -          WAITING or FAILED, by the policy
        STOPPING    RESTARTING    -            -              -          -          STOPPED
        RESTARTING  -             STOPPING     -              -          -          WAITING

    A stop request may come while a start is in progress. The process then starts in STOPPING, and is stopped.
    """

    def __init__(self, policy: RestartPolicy) -> None:
        self.phase = Phase.STOPPED
        self.start_at_s = 0.0
        """The time of the next start, while the phase is WAITING."""
        self.starts = 0
        """The number of starts, including failed attempts."""
        self.policy: Final = policy
        self._started_s = 0.0

    def __repr__(self) -> str:
        return f"<ProcessLifecycle {self.phase.value} starts={self.starts}>"

    def request_start(self, now_s: float) -> None:
        """Request that the process runs."""
        if self.phase is Phase.STOPPED:
            self.phase, self.start_at_s = Phase.WAITING, now_s
        elif self.phase is Phase.STOPPING:
            self.phase = Phase.RESTARTING

    def request_stop(self) -> bool:
        """Request that the process stops. Returns whether the caller must send it a signal, which is needed once."""
        was = self.phase
        if was is Phase.WAITING:
            self.phase = Phase.STOPPED
        elif was in (Phase.RUNNING, Phase.RESTARTING):
            self.phase = Phase.STOPPING
        return was is Phase.RUNNING

    def request_restart(self) -> bool:
        """Request a restart. Returns whether the caller must send the process a signal."""
        is_running = self.phase is Phase.RUNNING
        if is_running:
            self.phase = Phase.RESTARTING
        return is_running

    def record_start(self, now_s: float) -> None:
        """Record that the process was started."""
        assert self.phase in (Phase.WAITING, Phase.STOPPED), "a process is started only while it does not run"
        self.phase = Phase.RUNNING if self.phase is Phase.WAITING else Phase.STOPPING
        self._started_s = now_s
        self.starts += 1

    def postpone_start(self, now_s: float, seconds: float) -> None:
        """Record that the process could not be started, and retry after ``seconds``."""
        self.start_at_s = now_s + seconds
        self.starts += 1

    def record_exit(self, code: int, now_s: float) -> float | None:
        """Record that the process exited. Returns the seconds until its restart if it died and is restarted."""
        was = self.phase
        if was is Phase.STOPPING:
            self.phase = Phase.STOPPED
        elif was is Phase.RESTARTING:
            self.phase, self.start_at_s = Phase.WAITING, now_s
        else:
            assert was is Phase.RUNNING, "only a running process can exit"
            delay = None if code in self.policy.final_codes else self.policy.delay_after_death(self._started_s, now_s)
            if delay is None:
                self.phase = Phase.FAILED
            else:
                self.phase, self.start_at_s = Phase.WAITING, now_s + delay
            return delay
        return None


def restart_text(delay_s: float) -> str:
    """Return a text that says when a process is restarted."""
    return f"restarting {f'in {delay_s:.0f} s' if delay_s else 'immediately'}"


# -- one process -------------------------------------------------------------------------------------------------------


def server_command(*words: str) -> list[str]:
    """Return the command line of `python -m WORDS...` as a process that does not outlive this one."""
    return [sys.executable, "-m", "gantry_cli.child", str(os.getpid()), *words]


def exit_text(code: int) -> str:
    """Return how a process ended as text; a code of -N means that signal N killed it."""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


def last_log_line(log: Path) -> str:
    """Return the last line of a log without its prefix; it usually has the reason why a process ended."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_LINE_BYTES))
            lines = file.read(LAST_LINE_BYTES).decode("utf-8", "replace").strip().splitlines()
    except OSError:
        lines = []
    return LOG_PREFIX.sub("", lines[-1]) if lines else NO_OUTPUT


def boot_id_of(pid: int) -> str:
    """Return the pid with the start time of its process, which identifies it; empty if no such process runs."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return ""
    fields = stat.rpartition(b")")[2].split()
    return "" if fields[0] in (b"Z", b"X") else f"{pid}-{int(fields[19])}"


def send_signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Send a signal to a process, unless it has ended.

    Before Python 3.13, ``process.send_signal`` polls the process first. If the process has just ended, the poll
    consumes its exit code, and asyncio reports 255.
    """
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)


async def end_process(process: asyncio.subprocess.Process) -> bool:
    """Stop a process with SIGTERM, and SIGCONT as it may be suspended. Returns False if it was killed at a timeout."""
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


def never_blocked() -> bool:
    """Return False: the start of the process is never blocked."""
    return False


@final
class ServerProcess:
    """A server process that is restarted when it dies. Owned by one event loop, on which ``run`` is a task.

    Restarts follow the policy. `boot_id` is the pid with the start time, so that a later process with the same pid is
    not mistaken for this one.
    """

    def __init__(
        self, name: str, module: str, arguments: Callable[[], Sequence[str]], log: Path, *,
        policy: RestartPolicy, now_ms: Callable[[], int], report: Callable[[str], None],
        on_changed: Callable[[], None] = lambda: None, is_blocked: Callable[[], bool] = never_blocked,
    ) -> None:  # fmt: skip
        """Prepare the process; ``run`` starts it.

        ``arguments`` is called at each start, ``on_changed`` after the process has started or exited. While
        ``is_blocked()`` returns True the process is not started.
        """
        self.name: Final = name
        self.log: Final = log
        self.boot_id = ""
        """The boot id of the running process; empty while it does not run."""
        self.started_ms: int | None = None
        self.stopped_ms: int | None = now_ms()
        self.failure = ""
        """Why the process last died or failed to start."""
        self._module, self._arguments, self._now_ms = module, arguments, now_ms
        self._report, self._on_changed, self._is_blocked = report, on_changed, is_blocked
        self._life: Final = ProcessLifecycle(policy)
        self._wake: Final = asyncio.Event()
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
        """Start the process, unless it runs already."""
        self._life.request_start(_now_s())
        self._wake.set()

    async def stop(self) -> bool:
        """Stop the process gracefully, and do not restart it. Returns False if it had to be killed."""
        self._life.request_stop()
        self._wake.set()
        return await self._end()

    async def restart(self) -> None:
        """Stop the running process gracefully, and start it again. A process that does not run must get ``start``."""
        self._life.request_start(_now_s())
        self._life.request_restart()
        await self._end()

    async def run(self) -> None:
        """Keep the process running until it is stopped; this never returns."""
        life = self._life
        while True:
            self._wake.clear()
            if life.phase is Phase.STOPPED:
                await self._wake.wait()
            elif (wait_s := life.start_at_s - _now_s()) > 0 or self._is_blocked():
                await self._sleep(wait_s if wait_s > 0 else BLOCKED_POLL_S)
            else:
                await self._run_once()

    async def _run_once(self) -> None:
        """Start the process, and wait until it has ended or is stopped."""
        try:
            process = await self._spawn()
        except OSError as error:  # a full disk or process table affects this process only
            self.failure = f"{self.name} failed to start: {error}"
            self._report(self.failure)
            self._life.postpone_start(_now_s(), SPAWN_RETRY_S)
            return
        if self._life.phase is Phase.STOPPING:
            send_signal(process, signal.SIGTERM)
        code = await process.wait()
        self.boot_id, self.stopped_ms = "", self._now_ms()
        self._on_changed()
        delay_s = self._life.record_exit(code, _now_s())
        assert self._life.phase is not Phase.FAILED, "the policies of these servers have no limit of restarts"
        if delay_s is not None:
            self._report_death(code, delay_s)

    async def _spawn(self) -> asyncio.subprocess.Process:
        with self.log.open("ab") as output:
            self._process = process = await asyncio.create_subprocess_exec(
                *server_command(self._module, *self._arguments()),
                stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        self._life.record_start(_now_s())
        self.boot_id, self.started_ms, self.stopped_ms = boot_id_of(process.pid), self._now_ms(), None
        self._on_changed()
        return process

    def _report_death(self, code: int, delay_s: float) -> None:
        last = f": {last_log_line(self.log)[:LAST_LINE_CHARS_MAX]}" if code > 0 else ""
        self.failure = f"{self.name} {exit_text(code)}{last}"
        then = "not restarted while `gantry kill` keeps it down or its disk is lost"
        self._report(f"{self.failure}; {then if self._is_blocked() else restart_text(delay_s)}")

    async def _sleep(self, seconds: float) -> None:
        """Sleep for ``seconds``, or until a start or stop is requested."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    async def _end(self) -> bool:
        """End the process if it runs. Returns False if it had to be killed."""
        process = self._process
        if process is None or not self.boot_id:
            return True
        is_graceful = await end_process(process)
        self.boot_id = ""
        return is_graceful


def _now_s() -> float:
    return asyncio.get_running_loop().time()
