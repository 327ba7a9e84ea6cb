"""Keeps server processes running: start, wait until ready, restart after a death, stop in order.

A server is ready when it has printed its ready line. Its standard error goes straight to its log file, its standard
output through us, so that readiness is an event and not a guess. Servers run in sessions of their own, so that Ctrl-C
reaches us alone and we stop them in the right order: the one that was started last, first.
"""

import asyncio
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from gantry_cli.processes import RestartPolicy, end_process, exit_text, last_log_line, server_command

log = logging.getLogger(__name__)

READY_TIMEOUT_S: Final = 120.0
"""A broker recovers its log before it is ready."""
RESTARTS_MAX: Final = 5
"""Within a minute. After the sixth death a restart does not mend what is wrong."""
DELAY_S_MAX: Final = 8.0
LOG_PREFIX: Final = re.compile(r"^\d{4}-\d\d-\d\d [\d:,]+ [A-Z]+ \S+ ")
"""Time, level and logger, which the log has and a one-line error does not need."""

Report = Callable[[str], None]


class ServerFailed(Exception):
    """A server cannot be kept running. The caller should stop the others and show this text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCommand:
    """What to run: `python -m module arguments`, and the start of the line it prints when ready."""

    name: str
    module: str
    arguments: tuple[str, ...]
    ready: str
    log: Path


@final
class Server:
    """One server that is kept running. Owned by one event loop."""

    def __init__(self, command: ServerCommand, report: Report) -> None:
        self.command = command
        self.restarts = 0
        self._report = report
        self._policy = RestartPolicy(delay_s_max=DELAY_S_MAX, deaths_max=RESTARTS_MAX)
        self._started_s = 0.0
        self._process: asyncio.subprocess.Process | None = None
        self._output: asyncio.Task[None] | None = None
        self._is_stopping = False

    def __repr__(self) -> str:
        return f"<Server {self.command.name} pid={self.pid} restarts={self.restarts}>"

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start it and wait until it is ready. Raises ServerFailed with its last words."""
        name, is_ready = self.command.name, asyncio.Event()
        process = await self._spawn()
        self._process = process
        self._output = asyncio.create_task(self._copy_output(process, is_ready), name=f"output of {name}")
        ready, ended = asyncio.ensure_future(is_ready.wait()), asyncio.ensure_future(process.wait())
        try:
            await asyncio.wait((ready, ended), timeout=READY_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
            if is_ready.is_set():
                return
            if ended.done():
                await self._output
                raise ServerFailed(f"the {name} did not start: {self._last_words()}")
            raise ServerFailed(f"the {name} was not ready after {READY_TIMEOUT_S:.0f} s; see {self.command.log}")
        finally:
            ready.cancel()
            ended.cancel()

    async def keep(self) -> None:
        """Restart it whenever it dies, until `stop`. Raises ServerFailed when that does not help."""
        while True:
            assert self._process is not None, "start comes before keep"
            code = await self._process.wait()
            if self._is_stopping:
                return
            await self._restart_after(code)

    async def stop(self) -> bool:
        """End it, politely first; False when it had to be killed."""
        self._is_stopping = True
        process = self._process
        if process is None or process.returncode is not None:
            return True
        try:
            return await end_process(process)
        finally:
            if self._output is not None:
                await self._output

    async def _restart_after(self, code: int) -> None:
        name = self.command.name
        while True:
            how = exit_text(code)
            delay = self._policy.delay_after_death(self._started_s, asyncio.get_running_loop().time())
            if delay is None:
                raise ServerFailed(
                    f"the {name} {how} for the {RESTARTS_MAX + 1}th time in a minute: {self._last_words()}"
                )
            when = "at once" if not delay else f"in {delay:.0f} s"
            self._report(
                f"the {name} {how}; restarting {when} (restart {self._policy.recent} of {RESTARTS_MAX} a minute)"
            )
            await asyncio.sleep(delay)
            if self._is_stopping:
                return
            self.restarts += 1
            try:
                await self.start()
            except ServerFailed as error:
                log.warning("restart failed", extra={"server": name, "reason": str(error)})
                code = (self._process.returncode if self._process is not None else None) or 1
                continue
            self._report(f"the {name} is back (pid {self.pid})")
            return

    async def _spawn(self) -> asyncio.subprocess.Process:
        command = self.command
        self._started_s = asyncio.get_running_loop().time()
        with command.log.open("ab") as errors:
            return await asyncio.create_subprocess_exec(
                *server_command(command.module, *command.arguments),
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=errors, start_new_session=True,
            )  # fmt: skip

    async def _copy_output(self, process: asyncio.subprocess.Process, is_ready: asyncio.Event) -> None:
        assert process.stdout is not None, "standard output is a pipe"
        with self.command.log.open("ab") as file:
            async for line in process.stdout:
                file.write(line)
                file.flush()
                if line.decode("utf-8", "replace").startswith(self.command.ready):
                    is_ready.set()

    def _last_words(self) -> str:
        """The end of its log, where the reason usually is."""
        return f"{LOG_PREFIX.sub('', last_log_line(self.command.log))} (see {self.command.log})"
