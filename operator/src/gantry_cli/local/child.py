"""One process that is kept running while it is wanted: started, restarted when it dies, stopped politely.

A crash is answered by another start at once; whoever dies again and again is started ever later, and never given up,
because the others of its group go on without it and somebody may be mending what is wrong. A process does not outlive
its supervisor (``gantry_cli.child``). Its name is its pid with the time of its start, so that no other one, of the same
number, is ever taken for it.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, final

from gantry_cli.processes import (
    RestartPolicy,
    boot_id_of,
    end_process,
    exit_text,
    last_log_line,
    send_signal,
    server_command,
)

PATIENCE_S: Final = 15.0
"""Between two starts of one that died six times within a minute."""
NO_ROOM_S: Final = 2.0
"""Between two tries to start one for which this machine has no room."""
HOLD_POLL_S: Final = 0.1
LAST_LINE_CHARS_MAX: Final = 300

Tell = Callable[[str], None]


@final
class Child:
    """Owned by one event loop. ``run`` is a task of whoever has it, until ``stop`` and its cancellation."""

    def __init__(
        self, name: str, module: str, arguments: Callable[[], Sequence[str]], log: Path, now_ms: Callable[[], int],
        tell: Tell, changed: Callable[[], None],
    ) -> None:  # fmt: skip
        """``arguments`` are asked for at each start; ``changed`` is called when it has started or ended."""
        self.name: Final = name
        self.log: Final = log
        self.boot_id = ""
        """Of the process that runs; empty while none does."""
        self.started_ms: int | None = None
        self.stopped_ms: int | None = now_ms()
        self.starts = 0
        self.failure = ""
        """What it said when it ended by itself last."""
        self._module, self._arguments, self._now_ms = module, arguments, now_ms
        self._tell, self._changed = tell, changed
        self._policy = RestartPolicy(delay_s_max=PATIENCE_S)
        self._started_s = 0.0
        self._wanted = asyncio.Event()
        self._hurry = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._is_stopping = False
        self.is_blocked: Callable[[], bool] = lambda: False
        """Whether it must not be started now."""

    def __repr__(self) -> str:
        return f"<Child {self.name} {self.boot_id or 'stopped'} starts={self.starts}>"

    @property
    def is_running(self) -> bool:
        return bool(self.boot_id)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self.boot_id else None

    def start(self) -> None:
        """Have it run; nothing if it does."""
        self._wanted.set()

    async def stop(self) -> bool:
        """Have it end, politely first, and stay down. False if it had to be killed."""
        self._wanted.clear()
        self._hurry.set()
        return await self._end()

    async def restart(self) -> None:
        """Have it end politely and start anew."""
        self._wanted.set()
        await self._end()

    async def run(self) -> None:
        """Keep it running while it is wanted."""
        while True:
            await self._wanted.wait()
            self._hurry.clear()
            while self._wanted.is_set() and self.is_blocked():
                await self._rest(HOLD_POLL_S)
            if not self._wanted.is_set():
                continue
            try:
                code = await self._run_once()
            except OSError as error:  # no room for its settings or its log, no process to be had: others go on
                await self._wait_for_room(error)
                continue
            if not self._is_stopping and self._wanted.is_set():
                await self._wait_after(code)

    # -- one life ------------------------------------------------------------------------------------------------------

    async def _run_once(self) -> int:
        with self.log.open("ab") as output:
            self._process = process = await asyncio.create_subprocess_exec(
                *server_command(self._module, *self._arguments()),
                stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        self.starts += 1
        self._started_s = asyncio.get_running_loop().time()
        self._is_stopping = False
        self.boot_id, self.started_ms, self.stopped_ms = boot_id_of(process.pid), self._now_ms(), None
        self._changed()
        if not self._wanted.is_set():
            send_signal(process, signal.SIGTERM)
        code = await process.wait()
        self.boot_id, self.stopped_ms = "", self._now_ms()
        self._changed()
        return code

    async def _wait_for_room(self, error: OSError) -> None:
        self.failure = f"{self.name} cannot be started: {error}"
        self._tell(self.failure)
        self.starts += 1
        await self._rest(NO_ROOM_S)

    async def _wait_after(self, code: int) -> None:
        delay_s = self._policy.delay_after_death(self._started_s, asyncio.get_running_loop().time())
        assert delay_s is not None, "a member of a group is never given up"
        last = f": {last_log_line(self.log)[:LAST_LINE_CHARS_MAX]}" if code > 0 else ""
        self.failure = f"{self.name} {exit_text(code)}{last}"
        when = (
            "is kept down" if self.is_blocked() else f"starts again {f'in {delay_s:.0f} s' if delay_s else 'at once'}"
        )
        self._tell(f"{self.failure}; it {when}")
        await self._rest(delay_s)

    async def _rest(self, seconds: float) -> None:
        """So long, or until it is to stop."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hurry.wait()

    async def _end(self) -> bool:
        process = self._process
        if process is None or not self.boot_id:
            return True
        self._is_stopping = True
        is_polite = await end_process(process)
        self.boot_id = ""
        return is_polite
