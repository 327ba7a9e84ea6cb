"""The cache of the inventory: refreshed by one request at a time, with a short limit on waiting.

    fresh enough             -> answered from the cache
    the broker runs          -> requested from the broker; without an answer at once, its last one if that is not old
    else, or it is old       -> the newer one of the tables on disk and the broker's last answer, and why

The invariant: every request is answered within a tenth of a second, in any state of the broker, with the source
and the age of the data.
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
from gantry_admin.inventory import Inventory, inventory_from_broker, inventory_from_disk, topics_of_broker
from gantry_admin.observed_broker import ObservedBroker
from gantry_admin.ranges import log_span
from gantry_admin.store_files import StoreFiles
from gantry_client.errors import ClientError

log = logging.getLogger(__name__)

FRESH_S: Final = 2.0
"""The age up to which an inventory is answered from the cache."""
OLD_S: Final = 10.0
"""The age up to which the broker's last answer is preferred to newer tables on disk."""
BROKER_WAIT_S: Final = 0.06
"""How long a request waits for the broker; together with the wait for the disk it stays under a tenth of a second."""
SETTINGS_RETRY_S: Final = 15.0
"""The wait before a broker that did not report its settings is asked again. It ends early when a request for the
inventory succeeds after a failed one."""
DISK_WAIT_S: Final = 0.03
"""How long a request waits for the tables on disk."""


class InventorySnapshot(NamedTuple):
    """An inventory with its source, its time, and why it is no answer of the broker of the last seconds."""

    inventory: Inventory
    source: Literal["broker", "disk"]
    at_s: float
    """When the inventory was requested, by the monotonic clock."""

    reason: str | None
    """Why it is no answer of the broker of the last seconds; None if it is."""

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.at_s

    @property
    def age_ms(self) -> int:
        return int(self.age_s * 1000)


@final
class InventoryCache:
    """The cached inventory of one broker. Owned by the event loop."""

    def __init__(self, broker: ObservedBroker, client: BrokerClient, files: StoreFiles) -> None:
        self._broker: Final = broker
        self._client: Final = client
        self._files: Final = files
        self._from_broker: InventorySnapshot | None = None
        self._from_disk: InventorySnapshot | None = None
        self._broker_task: asyncio.Task[None] | None = None
        self._disk_task: asyncio.Task[None] | None = None
        self._settings_task: asyncio.Task[None] | None = None
        self._flush_mode: Literal["sync", "async"] | None = None
        self._flush_mode_boot_id: object = None
        """The boot id of the broker that the flush mode belongs to."""
        self._fault = "not requested yet"
        self._disk_fault = "not read yet"
        self._has_recovered: Final = asyncio.Event()
        """Set when the broker answers a request for the inventory: the first one, or the first after a failed one."""

    def __repr__(self) -> str:
        return f"<InventoryCache from_broker={self._from_broker is not None} from_disk={self._from_disk is not None}>"

    async def close(self) -> None:
        """Cancel the pending requests, and wait for their end."""
        for task in (self._broker_task, self._disk_task, self._settings_task):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def get(self, *, fresh_s: float = FRESH_S) -> InventorySnapshot:
        """Return the inventory to answer with. Raises ``Problem`` 503 if none is known yet."""
        loop_state = self._broker.loop_state()
        if self._from_broker is not None and self._from_broker.age_s <= fresh_s:
            return self._from_broker
        if loop_state.state == "running":
            self._broker_task = await _run_within(self._broker_task, self._query_broker, BROKER_WAIT_S)
            if self._from_broker is not None and self._from_broker.age_s <= max(fresh_s, OLD_S):
                return self._from_broker
            reason = f"the broker has not answered: {self._fault}"
        else:
            reason = loop_state.reason
        if self._from_disk is None or self._from_disk.age_s > FRESH_S:
            self._disk_task = await _run_within(self._disk_task, self._read_disk, DISK_WAIT_S)
        known = [snapshot for snapshot in (self._from_disk, self._from_broker) if snapshot is not None]
        if not known:
            text = f"not known yet: {reason}; {self._disk_fault}"
            raise Problem(503, text, headers={"Retry-After": "1"})
        newest = max(known, key=lambda snapshot: snapshot.at_s)
        return newest._replace(reason=reason)

    def latest(self, old_s: float) -> InventorySnapshot | None:
        """Return the known inventory without waiting; if it is older than ``old_s``, refresh it in the background."""
        known = [snapshot for snapshot in (self._from_disk, self._from_broker) if snapshot is not None]
        newest = max(known, key=lambda snapshot: snapshot.at_s) if known else None
        if newest is None or newest.age_s > old_s:
            if self._broker.loop_state().state == "running":
                self._broker_task = _ensure_running(self._broker_task, self._query_broker)
            else:
                self._disk_task = _ensure_running(self._disk_task, self._read_disk)
        return newest

    def flush_mode(self) -> Literal["sync", "async"] | None:
        """Return whether sends wait for the broker's disk; requested in the background, once per broker start."""
        reading = self._broker.reading
        boot = None if reading is None else reading.origin.boot_id
        if boot != self._flush_mode_boot_id:
            self._flush_mode = None
            if self._broker.loop_state().state == "running":
                self._settings_task = _ensure_running(self._settings_task, self._query_flush_mode)
        return self._flush_mode

    async def _query_flush_mode(self) -> None:
        """Request the broker's settings once. After a failure, end only when a further request may be sent."""
        reading = self._broker.reading
        self._has_recovered.clear()
        try:
            found = (await self._client.broker_settings()).get("flushDiskType")
        except Problem:
            with suppress(TimeoutError):
                async with asyncio.timeout(SETTINGS_RETRY_S):
                    await self._has_recovered.wait()
            return
        self._flush_mode = "sync" if found == "SYNC_FLUSH" else "async" if found == "ASYNC_FLUSH" else None
        self._flush_mode_boot_id = None if reading is None else reading.origin.boot_id

    def _broker_topics(self) -> set[str]:
        state, reading = self._broker.link.role_report.status, self._broker.reading
        broker = reading.origin.broker_name if reading is not None else ""
        return topics_of_broker(broker, state.cluster if state is not None else "")

    async def _query_broker(self) -> None:
        try:
            admin, address = await self._client.connect()
            inventory = await inventory_from_broker(admin, address, self._broker_topics())
        except (ClientError, AccessFileError, Problem) as error:
            self._fault = str(error)[:300]
        else:
            if self._fault:
                self._has_recovered.set()
            self._from_broker, self._fault = InventorySnapshot(inventory, "broker", time.monotonic(), None), ""

    async def _read_disk(self) -> None:
        try:
            span = log_span(self._broker.reading)
            inventory = await asyncio.to_thread(inventory_from_disk, self._files, span, self._broker_topics())
        except (OSError, Problem) as error:
            self._disk_fault = str(error)[:300]
        else:
            self._from_disk, self._disk_fault = InventorySnapshot(inventory, "disk", time.monotonic(), None), ""


def _ensure_running(running: asyncio.Task[None] | None, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
    """Return the running task, or start a new one."""
    if running is not None and not running.done():
        return running
    return asyncio.ensure_future(work())


async def _run_within(
    running: asyncio.Task[None] | None, work: Callable[[], Awaitable[None]], wait_s: float
) -> asyncio.Task[None]:
    """Return the running task, or start a new one, and wait up to ``wait_s`` for its end."""
    task = _ensure_running(running, work)
    await asyncio.wait([task], timeout=wait_s)
    return task
