"""The periodic tasks of a broker.

They write tables, sample counters, expire clients and queue locks, and repair queues and the key index.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final, final

from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.stats import SAMPLE_INTERVAL_S

CLIENT_SCAN_S: Final = 10.0
"""The interval at which silent clients and overdue queue locks are removed."""
REPAIR_PAUSE_S: Final = 0.005
"""The pause between two slices of a repair, about as long as a slice: half of the loop's time is for requests."""

REPAIR_REPORT_S: Final = 60.0
"""The interval at which repairs that were not logged one by one are logged together."""

COUNTERS_PER_TURN: Final = 256
"""How many counters are read before the loop serves requests again."""


@final
class PeriodicTasks:
    """The four periodic tasks of one broker. They run until they are cancelled."""

    def __init__(self, core: BrokerCore) -> None:
        self._core: Final = core
        self._is_damaged: Final = asyncio.Event()
        core.store.repair.on_damage.append(self._is_damaged.set)

    def __repr__(self) -> str:
        return f"<PeriodicTasks of {self._core.settings.broker_name}>"

    def coroutines(self) -> list[Coroutine[Any, Any, None]]:
        """Return the coroutines, each to be run as a task of its own."""
        return [self._write_tables(), self._sample_counters(), self._expire_clients(), self._repair_store()]

    def expire(self) -> None:
        """Remove locks and clients that were not renewed in time."""
        self._core.locks.expire()
        for connection in self._core.clients.expire():
            connection.close("sent no heartbeat for two minutes")

    async def _write_tables(self) -> None:
        core, change_count = self._core, 0
        while True:
            await asyncio.sleep(core.settings.offsets_interval_ms / 1000)
            if core.offsets.change_count != change_count:
                change_count = core.offsets.change_count
                core.persistence.mark("consumerOffset", now=False)
            await core.persistence.write_stale()

    async def _sample_counters(self) -> None:
        stats, statistics = self._core.stats, self._core.topic_statistics
        loop = asyncio.get_running_loop()
        while True:
            stats.sample(loop.time())
            for number, _ in enumerate(statistics.tick(), start=1):
                if number % COUNTERS_PER_TURN == 0:
                    await asyncio.sleep(0)
            if stats.days.is_new_day(self._core.clock.wall_ms()):
                stats.days.start_day(statistics.totals())
            await asyncio.sleep(SAMPLE_INTERVAL_S)

    async def _repair_store(self) -> None:
        """Rebuild damaged parts of the store's queues and index, a slice at a time."""
        core = self._core
        while True:
            self._is_damaged.clear()
            if core.gate.is_store_lent or core.store.repair.step():
                await asyncio.sleep(REPAIR_PAUSE_S)
                continue
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_damaged.wait(), REPAIR_REPORT_S)

    async def _expire_clients(self) -> None:
        while True:
            await asyncio.sleep(CLIENT_SCAN_S)
            self.expire()
