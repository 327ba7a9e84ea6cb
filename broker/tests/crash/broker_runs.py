"""The broker processes of one store: each starts as the round needs it, and ends at a crash point or by a kill.

    start -> serve -> end under load           [crash at the start] ... [be killed while recovering] ...

Ends are counted here, by the broker's log: a broker that ended itself at a crash point has written that in its last
line. If it ended by itself in any other way, that is a fault.
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
"""How long a broker may take to reach the crash point under load, or `kill_when` waits for its condition."""
DUE_POLL_S: Final = 0.02
"""Seconds between two evaluations of the condition of `kill_when`."""
RECOVERY_POINT_INTERVAL_MS: Final = 100
"""Interval of recovery points and checkpoints in a run that ends at one of them; the default is too long for a load."""
RECOVERY_BEGINS, RECOVERY_ENDED, OPENED = " starting ", "store recovered", "store opened"
"""Texts in the broker's log: recovery begins, recovery has ended, and the first recovery point is written."""


@final
class BrokerRuns:
    """A name server, and a broker that is started repeatedly. Owned by one event loop."""

    def __init__(self, directory: Path, settings: Mapping[str, str], verdict: Verdict, *, without: str | None) -> None:
        """Create both processes. `without` names the guard that the broker lacks; see `crashing_broker`."""
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
        return f"<BrokerRuns {self.address} {self._broker!r}>"

    @property
    def log(self) -> str:
        """The log of the broker since its last start."""
        return self._broker.logged_since(self._log_start)

    async def begin(self, first: Plan) -> None:
        """Start the name server, and a broker for the first load."""
        await self._name_server.start()
        await self.start(first)

    async def end(self) -> None:
        """Kill both processes, so that none is left behind."""
        await self._broker.kill()
        await self._name_server.kill()

    async def start(self, following: Plan | None) -> None:
        """Start the broker for the load of the plan `following`, if one follows; measure how long it recovers."""
        options: list[str] = []
        crash_at = following.load_crash if following is not None else None
        if crash_at is not None:
            options += ["--crash-at", str(crash_at), "--armed-by-signal"]
            if crash_at.point in (crash_points.MID_POINT, crash_points.MID_CHECKPOINT):
                options += ["--point-interval", str(RECOVERY_POINT_INTERVAL_MS)]
        await self._launch(*options)
        await self._broker.wait_logged(RECOVERY_BEGINS, self._log_start)
        began_at = time.monotonic()
        await self._broker.wait_logged(RECOVERY_ENDED, self._log_start)
        self._recovery_s = time.monotonic() - began_at
        await self._broker.wait_ready()

    async def end_under_load(self, chosen: Plan) -> str:
        """Let the broker crash at the planned crash point, or kill it when the time is over. Return how it ended."""
        if chosen.load_crash is None:
            is_over = await self._broker.ends_within(chosen.load_s)
        else:
            self._broker.send_signal(signal.SIGUSR1)
            is_over = await self._broker.ends_within(LOAD_S_MAX)
        await self._broker.kill()
        return self._count_end(chosen.load_crash, is_over=is_over)

    async def kill_when(self, is_due: Callable[[], bool]) -> str:
        """Kill the broker when `is_due` holds, or after LOAD_S_MAX. It is suspended while `is_due` is evaluated."""
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

    async def crash_at_start(self, crash_at: CrashAt) -> str:
        """Start the broker so that it crashes at a crash point of its recovery. Return how it ended."""
        await self._launch("--crash-at", str(crash_at))
        await self._broker.wait_logged(OPENED, self._log_start)
        is_over = not self._broker.is_running
        await self._broker.kill()
        return self._count_end(crash_at, is_over=is_over)

    async def kill_while_recovering(self, part: float) -> None:
        """Start the broker, kill it after `part` of the time of its last recovery, and count whether that hit it."""
        await self._launch()
        await self._broker.wait_logged(RECOVERY_BEGINS, self._log_start)
        await asyncio.sleep(part * self._recovery_s)
        await self._broker.kill()
        self._verdict.kills += 1
        self._verdict.recovery_kills += 1
        self._verdict.recovery_hits += RECOVERY_ENDED not in self.log

    async def stop(self) -> None:
        """Stop the broker cleanly, and record a fault if that fails."""
        code = await self._broker.stop()
        if code != 0:
            self._verdict.faults.append(f"a clean stop ended with code {code}\n{self._broker.tail()}")

    async def _launch(self, *options: str) -> None:
        self._broker = self._make_broker(*options)
        self._log_start = self._broker.log_bytes
        await self._broker.launch()

    def _make_broker(self, *options: str) -> ServerProcess:
        """Create the process of the shipped broker, or of the one that ends itself."""
        if self._without is not None:
            options += ("--without", self._without)
        program = ("-m", "gantry_testing.crashing_broker", *options, "--") if options else BROKER
        return broker(self._directory, self._port, self._name_server_port, self._settings, program)

    def _count_end(self, crash_at: CrashAt | None, *, is_over: bool) -> str:
        """Count the end of the broker, and return how it ended."""
        is_hit = crash_at is not None and f"{CRASHING}{crash_at}\n" in self.log
        if crash_at is not None:
            (self._verdict.hits if is_hit else self._verdict.misses)[crash_at.point] += 1
        if is_hit:
            return f"ended at {crash_at}"
        self._verdict.kills += 1
        if is_over:
            self._verdict.faults.append(f"the broker ended by itself\n{self._broker.tail()}")
        return "killed" if crash_at is None else f"killed without reaching {crash_at}"
