"""What a broker does every few seconds, whoever asks it for what: write, count, let go."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, final

from gantry_broker.server.core import BrokerCore
from gantry_broker.server.stats import SAMPLE_INTERVAL_S
from gantry_broker.server.stream_speeds import StreamSpeeds

CLIENT_SCAN_S: Final = 10.0
COUNTERS_A_TURN: Final = 256
"""So many statistics are read before others have their turn."""


@final
class Upkeep:
    """Three tasks of one broker. None of them ends by itself."""

    def __init__(self, core: BrokerCore, speeds: StreamSpeeds) -> None:
        self._core: Final = core
        self._speeds: Final = speeds

    def __repr__(self) -> str:
        return f"<Upkeep of {self._core.settings.broker_name}>"

    def runs(self) -> list[Coroutine[Any, Any, None]]:
        """Each of them, to be run as a task."""
        return [self._write(), self._count(), self._scan()]

    def let_go(self) -> None:
        """Of locks and clients whose time is up."""
        self._core.locks.expire()
        for connection in self._core.clients.expire():
            connection.close("sent no heartbeat for two minutes")

    async def _write(self) -> None:
        core = self._core
        while True:
            await asyncio.sleep(core.settings.offsets_interval_ms / 1000)
            if core.offsets.is_dirty:
                core.offsets.is_dirty = False
                core.persistence.mark("consumerOffset", now=False)
            await core.persistence.round()

    async def _count(self) -> None:
        stats, statistics = self._core.stats, self._core.statistics
        loop = asyncio.get_running_loop()
        while True:
            stats.sample(loop.time())
            self._speeds.look()
            for number, _ in enumerate(statistics.tick(), start=1):
                if number % COUNTERS_A_TURN == 0:
                    await asyncio.sleep(0)
            if stats.days.begins_day(self._core.clock.wall_ms()):
                stats.days.note(statistics.totals())
            await asyncio.sleep(SAMPLE_INTERVAL_S)

    async def _scan(self) -> None:
        while True:
            await asyncio.sleep(CLIENT_SCAN_S)
            self.let_go()
