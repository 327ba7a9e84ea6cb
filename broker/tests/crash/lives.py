"""The lives of one broker over one store: each begins as the round wants it and ends at a place or a moment.

    start -> serve -> end under load                 [end while opening] ... [be killed while recovering] ...

Ends are counted here, and believed only from the log: a broker that should have ended itself at a named point has said
so in its last line, and one that ended in any other way is a fault.
"""

import asyncio
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, final

from crash.plans import Plan
from crash.processes import BROKER, HOST, ServerProcess, broker, name_server
from crash.verdict import Verdict

from gantry_broker.store import crash_points
from gantry_testing.crashing_broker import CRASHING, CrashAt
from gantry_testing.ports import free_broker_port, free_port

LOAD_S_MAX: Final = 10.0
"""How long a broker may take to come to the point where it is to end under load."""
DUE_POLL_S: Final = 0.02
POINT_INTERVAL_MS: Final = 100
RECOVERY_BEGINS, RECOVERY_ENDED, OPENED = " starting ", "store recovered", "the store is open"
"""What the broker's log says before and after it, and when it has written its first recovery point."""


@final
class Lives:
    """A name server and a broker that is started again and again. Owned by one event loop."""

    def __init__(self, directory: Path, settings: Mapping[str, str], verdict: Verdict, *, without: str | None) -> None:
        self._directory = directory
        self._settings = settings
        self._verdict = verdict
        self._without = without
        self._name_server_port, self._port = free_port(), free_broker_port()
        self.address: Final = f"{HOST}:{self._port}"
        self._name_server = name_server(directory, self._name_server_port)
        self._broker = self._make_broker()
        self._recovery_s = 0.0
        self._log_start = 0

    def __repr__(self) -> str:
        return f"<Lives {self.address} {self._broker!r}>"

    @property
    def log(self) -> str:
        """What the broker has logged in this life."""
        return self._broker.logged_since(self._log_start)

    async def begin(self, first: Plan) -> None:
        """The name server, and a broker for the first load."""
        await self._name_server.start()
        await self.start(first)

    async def end(self) -> None:
        """No process is left behind."""
        await self._broker.kill()
        await self._name_server.kill()

    async def start(self, following: Plan | None) -> None:
        """Start it as the next load needs it, and measure how long it recovers."""
        options: list[str] = []
        crash_at = following.load_end if following is not None else None
        if crash_at is not None:
            options += ["--crash-at", str(crash_at), "--armed-by-signal"]
            if crash_at.point in (crash_points.MID_POINT, crash_points.MID_CHECKPOINT):
                options += ["--point-interval", str(POINT_INTERVAL_MS)]
        await self._launch(*options)
        await self._broker.wait_logged(RECOVERY_BEGINS, self._log_start)
        began_at = time.monotonic()
        await self._broker.wait_logged(RECOVERY_ENDED, self._log_start)
        self._recovery_s = time.monotonic() - began_at
        await self._broker.wait_ready()

    async def end_under_load(self, chosen: Plan) -> str:
        """Let it end itself where the plan says, or kill it when its time is over. How it ended."""
        if chosen.load_end is None:
            is_over = await self._broker.ends_within(chosen.load_s)
        else:
            self._broker.send_signal(signal.SIGUSR1)
            is_over = await self._broker.ends_within(LOAD_S_MAX)
        await self._broker.kill()
        return self._count_end(chosen.load_end, is_over=is_over)

    async def kill_when(self, is_due: Callable[[], bool]) -> str:
        """Kill it at a moment at which `is_due` holds, or after LOAD_S_MAX. It is suspended while that is found out."""
        deadline = time.monotonic() + LOAD_S_MAX
        while self._broker.is_running:
            self._broker.send_signal(signal.SIGSTOP)
            if is_due() or time.monotonic() > deadline:
                break
            self._broker.send_signal(signal.SIGCONT)
            await asyncio.sleep(DUE_POLL_S)
        is_over = not self._broker.is_running
        await self._broker.kill()
        return self._count_end(None, is_over=is_over)

    async def end_while_opening(self, crash_at: CrashAt) -> str:
        """Start it so that it ends itself at a point of its recovery. How it ended."""
        await self._launch("--crash-at", str(crash_at))
        await self._broker.wait_logged(OPENED, self._log_start)
        is_over = not self._broker.is_running
        await self._broker.kill()
        return self._count_end(crash_at, is_over=is_over)

    async def kill_while_recovering(self, part: float) -> None:
        """Start it, kill it after `part` of the time that its last recovery took, and see whether that hit."""
        await self._launch()
        await self._broker.wait_logged(RECOVERY_BEGINS, self._log_start)
        await asyncio.sleep(part * self._recovery_s)
        await self._broker.kill()
        self._verdict.kills += 1
        self._verdict.recovery_kills += 1
        self._verdict.recovery_hits += RECOVERY_ENDED not in self.log

    async def stop(self) -> None:
        """A clean stop."""
        code = await self._broker.stop()
        if code != 0:
            self._verdict.faults.append(f"a clean stop ended with code {code}\n{self._broker.tail()}")

    async def _launch(self, *options: str) -> None:
        self._broker = self._make_broker(*options)
        self._log_start = self._broker.log_bytes
        await self._broker.launch()

    def _make_broker(self, *options: str) -> ServerProcess:
        """The shipped broker, or the one that ends itself."""
        if self._without is not None:
            options += ("--without", self._without)
        program = ("-m", "gantry_testing.crashing_broker", *options, "--") if options else BROKER
        return broker(self._directory, self._port, self._name_server_port, self._settings, program)

    def _count_end(self, crash_at: CrashAt | None, *, is_over: bool) -> str:
        """The broker has ended, by itself or not: count it, and say how."""
        is_hit = crash_at is not None and f"{CRASHING}{crash_at}\n" in self.log
        if crash_at is not None:
            (self._verdict.hits if is_hit else self._verdict.misses)[crash_at.point] += 1
        if is_hit:
            return f"ended at {crash_at}"
        self._verdict.kills += 1
        if is_over:
            self._verdict.faults.append(f"the broker ended by itself\n{self._broker.tail()}")
        return "killed" if crash_at is None else f"killed, not having come to {crash_at}"
