"""The store's own time in a running broker (`store.retention_clock`), and the record of it that outlives the process.

Notes of it name places in the log, so a cut is reported here as soon as it is made (`log_cut`). The record says how
many cuts it knows of: one that was written before the last cut, as after a kill, has no notes to believe.
"""

from __future__ import annotations

import logging
from typing import Final, final

import msgspec

from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.persist import in_thread
from gantry_broker.store.retention_clock import (
    SETTLE_MS,
    ClockReading,
    RetentionClock,
    RetentionRecord,
    decode_record,
    encode_record,
)

log = logging.getLogger(__name__)


@final
class StoreTime:
    """Owned by the event loop; what waits for the disk runs in worker threads."""

    def __init__(self, core: BrokerCore) -> None:
        self._core: Final = core
        self._path: Final = f"{core.settings.store_path}/retention-clock.json"
        self._clock: RetentionClock | None = None
        self._recorded: object = None
        self._trouble = ""

    def __repr__(self) -> str:
        return f"<StoreTime {self._clock!r}>"

    async def observe(self) -> tuple[RetentionClock, int]:
        """Look at the clocks and the log: the store's clock, and its own time now."""
        now, store = self._reading(), self._core.store
        clock = self._clock
        if clock is None:
            record = await in_thread(self._read)
            newest_ms, log_end = store.log.last_timestamp_ms, store.log.wrote
            clock = self._clock = RetentionClock(now, newest_ms=newest_ms, log_end=log_end, record=record)
        own_ms = clock.observe(now, log_begin=store.log.min_physical, log_end=store.log.wrote)
        await self._keep(clock, now)
        return clock, own_ms

    def log_cut(self, end: int) -> None:
        """Forget by when the log had come beyond ``end``: other messages will lie there."""
        if self._clock is not None:
            self._clock.observe(self._reading(), log_begin=self._core.store.log.min_physical, log_end=end)

    async def close(self) -> None:
        """Keep by when the last messages were stored."""
        if self._clock is not None:
            self._recorded = None
            await self.observe()

    def _reading(self) -> ClockReading:
        clock = self._core.clock
        return ClockReading(clock.wall_ms(), clock.boot_ms(), clock.boot_id())

    def _read(self) -> RetentionRecord | None:
        """What an earlier process has kept, if it is of this store. Without it files count by their store times."""
        disk = self._core.disk
        try:
            if not disk.exists(self._path):
                return None
            record = decode_record(disk.read_file(self._path))
            identity = self._core.store.identity
            if record.store == identity.uuid:
                return record.after_cuts(identity.cuts)
            reason = "it belongs to another store"
        except (OSError, ValueError, msgspec.DecodeError) as error:
            reason = str(error)
        log.warning(
            "the record of the store's own time is not usable; messages expire by their store times",
            extra={"path": self._path, "reason": reason},
        )
        return None

    async def _keep(self, clock: RetentionClock, now: ClockReading) -> None:
        """Write the record when there is a note more, at most once a minute, and every hour while nothing is sent."""
        identity = self._core.store.identity
        state = clock.notes_count, clock.is_doubtful, now.boot_ms // SETTLE_MS, identity.cuts
        if state == self._recorded:
            return
        data = encode_record(clock.record(identity.uuid, now, cuts=identity.cuts))
        try:
            await in_thread(lambda: self._core.disk.write_file(self._path, data))
        except OSError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                facts = {"reason": self._trouble}
                log.error("the record of the store's own time could not be written; it is tried again", extra=facts)
            return
        self._trouble = ""
        self._recorded = state
