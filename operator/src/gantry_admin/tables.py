"""The inventory as it is shown: kept for a moment, renewed by one question at a time, and never waited for long.

    young enough             -> shown
    the broker moves         -> asked; if it answers at once, that is shown
    else                     -> the last answer, if it is not old; else what is on the disk, and why

The rule it guards: whoever asks gets an answer within a tenth of a second, whatever the broker does, and is told where
it is from and how old it is.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, Literal, NamedTuple, final

from gantry_access import AccessFileError
from gantry_admin.broker_client import BrokerClient
from gantry_admin.errors import Problem
from gantry_admin.inventory import Inventory, from_broker, from_disk, server_topics
from gantry_admin.observed_broker import ObservedBroker
from gantry_admin.ranges import log_span
from gantry_admin.store_files import StoreFiles
from gantry_client.errors import ClientError

log = logging.getLogger(__name__)

YOUNG_S: Final = 2.0
OLD_S: Final = 10.0
PATIENCE_S: Final = 0.06
"""How long somebody waits for the broker; with the same again for the disk it stays under a tenth of a second."""
REFUSED_S: Final = 15.0
"""Before a broker that does not tell its settings is asked again by itself, unless it begins to tell other things."""
PATIENCE_DISK_S: Final = 0.03


class Shown(NamedTuple):
    """An inventory, where it is from, when, and why not from the broker."""

    inventory: Inventory
    source: Literal["broker", "disk"]
    at_s: float
    reason: str | None

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.at_s

    @property
    def age_ms(self) -> int:
        return int(self.age_s * 1000)


@final
class Tables:
    """Owned by the event loop."""

    def __init__(self, broker: ObservedBroker, client: BrokerClient, files: StoreFiles) -> None:
        self._broker: Final = broker
        self._client: Final = client
        self._files: Final = files
        self._told: Shown | None = None
        self._read: Shown | None = None
        self._asking: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._configuring: asyncio.Task[None] | None = None
        self._flush_mode: Literal["sync", "async"] | None = None
        self._flush_mode_of: object = None
        """Which start of the broker has said so."""
        self._fault = "it was not asked yet"
        self._disk_fault = "it was not read yet"
        self._healed: Final = asyncio.Event()
        """It answers what it did not answer before."""

    def __repr__(self) -> str:
        return f"<Tables told={self._told is not None} read={self._read is not None}>"

    async def close(self) -> None:
        """End what is under way."""
        for task in (self._asking, self._reading, self._configuring):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def get(self, *, young_s: float = YOUNG_S) -> Shown:
        """What is to be shown now. Raises ``Problem`` 503 when there is nothing at all yet."""
        motion = self._broker.motion()
        if self._told is not None and self._told.age_s <= young_s:
            return self._told
        if motion.state == "moving":
            self._asking = await _within(self._asking, self._ask, PATIENCE_S)
            if self._told is not None and self._told.age_s <= max(young_s, OLD_S):
                return self._told
            reason = f"the broker has not answered: {self._fault}"
        else:
            reason = motion.reason
        if self._read is None or self._read.age_s > YOUNG_S:
            self._reading = await _within(self._reading, self._read_disk, PATIENCE_DISK_S)
        known = [shown for shown in (self._read, self._told) if shown is not None]
        if not known:
            text = f"not known yet: {reason}; {self._disk_fault}"
            raise Problem(503, text, headers={"Retry-After": "1"})
        newest = max(known, key=lambda shown: shown.at_s)
        return newest._replace(reason=reason)

    def latest(self, old_s: float) -> Shown | None:
        """What is known, without waiting; somebody is sent to ask when it is older than that."""
        known = [shown for shown in (self._read, self._told) if shown is not None]
        newest = max(known, key=lambda shown: shown.at_s) if known else None
        if newest is None or newest.age_s > old_s:
            if self._broker.motion().state == "moving":
                self._asking = _started(self._asking, self._ask)
            else:
                self._reading = _started(self._reading, self._read_disk)
        return newest

    def flush_mode(self) -> Literal["sync", "async"] | None:
        """Whether sends wait for the broker's disk; asked in the background, once for each of its starts."""
        reading = self._broker.reading
        boot = None if reading is None else reading.origin.boot_id
        if boot != self._flush_mode_of:
            self._flush_mode = None
            if self._broker.motion().state == "moving":
                self._configuring = _started(self._configuring, self._configure)
        return self._flush_mode

    async def _configure(self) -> None:
        reading = self._broker.reading
        self._healed.clear()
        try:
            found = (await self._client.broker_settings()).get("flushDiskType")
        except Problem:
            with suppress(TimeoutError):
                async with asyncio.timeout(REFUSED_S):
                    await self._healed.wait()
            return
        self._flush_mode = "sync" if found == "SYNC_FLUSH" else "async" if found == "ASYNC_FLUSH" else None
        self._flush_mode_of = None if reading is None else reading.origin.boot_id

    def _servers(self) -> set[str]:
        word, reading = self._broker.link.word.status, self._broker.reading
        broker = reading.origin.broker_name if reading is not None else ""
        return server_topics(broker, word.cluster if word is not None else "")

    async def _ask(self) -> None:
        try:
            admin, address = await self._client.connected()
            inventory = await from_broker(admin, address, self._servers())
        except (ClientError, AccessFileError, Problem) as error:
            self._fault = str(error)[:300]
        else:
            if self._fault:
                self._healed.set()
            self._told, self._fault = Shown(inventory, "broker", time.monotonic(), None), ""

    async def _read_disk(self) -> None:
        try:
            span = log_span(self._broker.reading)
            inventory = await asyncio.to_thread(from_disk, self._files, span, self._servers())
        except (OSError, Problem) as error:
            self._disk_fault = str(error)[:300]
        else:
            self._read, self._disk_fault = Shown(inventory, "disk", time.monotonic(), None), ""


def _started(running: asyncio.Task[None] | None, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
    """What is under way already, or begun now."""
    if running is not None and not running.done():
        return running
    return asyncio.ensure_future(work())


async def _within(
    running: asyncio.Task[None] | None, work: Callable[[], Awaitable[None]], patience_s: float
) -> asyncio.Task[None]:
    """The same, and wait for its end for a moment."""
    task = _started(running, work)
    await asyncio.wait([task], timeout=patience_s)
    return task
