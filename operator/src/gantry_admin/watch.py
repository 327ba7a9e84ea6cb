"""The watch of the status page: a thread reads it ten times a second, and the last observation is kept.

    gantry-page: read the page  -->  the newest PageObservation  -->  event loop: wakes the tasks that wait for it

The invariant: **an answer never waits for a file.** Only the first read, at the start, is in the event loop. Later a
file system that hangs blocks only the thread; the last observation remains, and every answer has its age, measured on
the machine's boot-time clock from the time at which the broker's own event loop stamped the publication.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

from gantry_admin.at_risk import WrittenHistory
from gantry_status import PageNotFound, PageReader, Reading, StatusPageError
from gantry_status.clocks import Clock, now

log = logging.getLogger(__name__)

READ_INTERVAL_S: Final = 0.1
"""The interval between two reads of the page, in seconds."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PageObservation:
    """One observation of the status page."""

    at_boottime_ns: int
    """When the page was read, on the machine's boot-time clock."""
    reading: Reading | None = None
    """The last publication of the broker; None if there is none that can be read."""
    fault: str = ""
    """Why there is no reading; empty if there is one."""
    is_absent: bool = False
    """Whether there is no page, as before the broker's first start, or it has not been read yet."""

    def age_ms(self, now_ns: int) -> int | None:
        """Return the age of the publication in ms; None without a page, or if it is from before the machine's boot."""
        if self.reading is None or self.reading.age_ms is None:
            return None
        return max(0, now_ns - self.reading.status.published_boottime_ns) // 1_000_000


@final
class PageWatch:
    """The thread that reads the page. Owned by the event loop that starts it, in which observations are delivered."""

    def __init__(self, path: str, *, clock: Clock = now) -> None:
        self.history: Final = WrittenHistory()
        """The times at which the log was written, as far as observed. Owned by the event loop."""
        self.observation: PageObservation = PageObservation(
            at_boottime_ns=clock().boottime_ns, fault="the status page has not been read yet", is_absent=True
        )
        self._clock: Final = clock
        self._reader: Final = PageReader(path, clock=clock)
        self._stop: Final = threading.Event()
        self._thread: Final = threading.Thread(target=self._run, name="gantry-page", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._next: asyncio.Event = asyncio.Event()
        self._observers: Final[list[Callable[[PageObservation], None]]] = []

    def __repr__(self) -> str:
        state = "read" if self.observation.reading else self.observation.fault
        return f"<PageWatch {self._reader.path} {state}>"

    def now_ns(self) -> int:
        """Return the current time on the boot-time clock, in ns."""
        return self._clock().boottime_ns

    def on_observation(self, observer: Callable[[PageObservation], None]) -> None:
        """Call ``observer`` in the event loop after each observation."""
        self._observers.append(observer)

    def start(self) -> None:
        """Read the page now, and start the thread that reads it again and again."""
        self._loop = asyncio.get_running_loop()
        self._adopt(self._read())
        self._thread.start()

    def close(self) -> None:
        """Stop the thread. A thread that hangs in the file system is left behind."""
        self._stop.set()
        self._thread.join(timeout=1.0)

    async def next(self, timeout_s: float) -> bool:
        """Wait for the next observation, and return whether it came in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._next.wait()
        except TimeoutError:
            return False
        return True

    def _run(self) -> None:
        while not self._stop.wait(READ_INTERVAL_S):
            observation, loop = self._read(), self._loop
            if loop is None or loop.is_closed():
                break
            loop.call_soon_threadsafe(self._adopt, observation)
        self._reader.close()

    def _read(self) -> PageObservation:
        at = self._clock().boottime_ns
        try:
            return PageObservation(at_boottime_ns=at, reading=self._reader.read())
        except PageNotFound as error:
            return PageObservation(at_boottime_ns=at, fault=str(error), is_absent=True)
        except StatusPageError as error:
            return PageObservation(at_boottime_ns=at, fault=str(error))

    def _adopt(self, observation: PageObservation) -> None:
        self.observation = observation
        if observation.reading is not None:
            self.history.record(observation.reading)
        woken, self._next = self._next, asyncio.Event()
        woken.set()
        for observer in self._observers:
            observer(observation)
