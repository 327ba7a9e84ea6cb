"""The status page, looked at ten times a second by a thread of its own, and what the last look was.

    gantry-page: read the page  -->  the newest Look  -->  event loop: wakes whoever waits for the next one

The rule it guards: **an answer never waits for a file.** A file system that hangs stops the thread and nothing else;
the last look stays, and every answer says how old it is, measured on the machine's boot-time clock against the moment
at which the broker's own event loop stamped the publication.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

from gantry_admin.at_risk import WrittenHistory
from gantry_status import PageAbsent, PageReader, Reading, StatusPageError
from gantry_status.moment import Now, now

log = logging.getLogger(__name__)

LOOK_INTERVAL_S: Final = 0.1


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look at the page."""

    at_boottime_ns: int
    reading: Reading | None = None
    fault: str = ""
    """Why there is no reading."""
    is_absent: bool = False
    """There is no page: the broker was never started here."""

    def age_ms(self, now_ns: int) -> int | None:
        """Since the broker published; None without a page, or when it was made before the machine was started last."""
        if self.reading is None or self.reading.age_ms is None:
            return None
        return max(0, now_ns - self.reading.status.published_boottime_ns) // 1_000_000


@final
class PageWatch:
    """Owned by the event loop that starts it; the thread only replaces ``look``."""

    def __init__(self, path: str, *, clock: Now = now) -> None:
        self.history: Final = WrittenHistory()
        """When which byte was written, as far as we have seen it. The event loop's."""
        self.look: Look = Look(at_boottime_ns=clock().boottime_ns, fault="it was not looked at yet", is_absent=True)
        self._clock: Final = clock
        self._reader: Final = PageReader(path, clock=clock)
        self._stop: Final = threading.Event()
        self._thread: Final = threading.Thread(target=self._run, name="gantry-page", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._next: asyncio.Event = asyncio.Event()
        self._hears: Final[list[Callable[[Look], None]]] = []

    def __repr__(self) -> str:
        return f"<PageWatch {self._reader.path} {'seen' if self.look.reading else self.look.fault}>"

    def now_ns(self) -> int:
        """This moment on the boot-time clock."""
        return self._clock().boottime_ns

    def on_look(self, hear: Callable[[Look], None]) -> None:
        """Call ``hear`` in the event loop after each look."""
        self._hears.append(hear)

    def start(self) -> None:
        """Look once, now, and then again and again."""
        self._loop = asyncio.get_running_loop()
        self._adopt(self._read())
        self._thread.start()

    def close(self) -> None:
        """Look no more. A thread that hangs in the file system is left behind."""
        self._stop.set()
        self._thread.join(timeout=1.0)

    async def next(self, timeout_s: float) -> bool:
        """Wait for another look, and say whether it came in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._next.wait()
        except TimeoutError:
            return False
        return True

    def _run(self) -> None:
        while not self._stop.wait(LOOK_INTERVAL_S):
            look, loop = self._read(), self._loop
            if loop is None or loop.is_closed():
                break
            loop.call_soon_threadsafe(self._adopt, look)
        self._reader.close()

    def _read(self) -> Look:
        at = self._clock().boottime_ns
        try:
            return Look(at_boottime_ns=at, reading=self._reader.read())
        except PageAbsent as error:
            return Look(at_boottime_ns=at, fault=str(error), is_absent=True)
        except StatusPageError as error:
            return Look(at_boottime_ns=at, fault=str(error))

    def _adopt(self, look: Look) -> None:
        self.look = look
        if look.reading is not None:
            self.history.see(look.reading)
        woken, self._next = self._next, asyncio.Event()
        woken.set()
        for hear in self._hears:
            hear(look)
