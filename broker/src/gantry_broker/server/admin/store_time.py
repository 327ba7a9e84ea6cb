"""Runs the store's own clock in a broker (`store.retention_clock`), and saves its record across restarts.

The clock keeps notes: times, each with the end of the log at that time. So every truncation of the log must be reported
at once (`on_log_changed`). The record holds the number of truncations (`cuts`): if it was written before the last one,
as after a kill, its notes are not used.
"""

from __future__ import annotations

import logging
from typing import Final, final

import msgspec

from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.persist import run_in_thread
from gantry_broker.store.retention_clock import (
    CLAIM_MS_MIN,
    ClockReading,
    RetentionClock,
    RetentionRecord,
    decode_record,
    encode_record,
)

log = logging.getLogger(__name__)


@final
class StoreTime:
    """The store's own time. Owned by the event loop; work that waits for the disk runs in worker threads."""

    def __init__(self, core: BrokerCore) -> None:
        self._core: Final = core
        self._path: Final = f"{core.settings.store_path}/retention-clock.json"
        self._clock: RetentionClock | None = None
        self._recorded: object = None
        self._logged_error = ""

    def __repr__(self) -> str:
        return f"<StoreTime {self._clock!r}>"

    async def observe(self) -> tuple[RetentionClock, int]:
        """Update the store's clock from the system clocks and the log; return it with its present time."""
        now, store = self._reading(), self._core.store
        clock = self._clock
        if clock is None:
            record = await run_in_thread(self._read)
            newest_ms, log_end = store.log.last_timestamp_ms, store.log.wrote
            clock = self._clock = RetentionClock(now, newest_ms=newest_ms, log_end=log_end, record=record)
        own_ms = clock.observe(now, log_begin=store.log.min_physical, log_end=store.log.wrote)
        await self._save(clock, now)
        return clock, own_ms

    def on_log_changed(self, end: int) -> None:
        """Forget when the log passed ``end``: other messages will be stored there."""
        if self._clock is not None:
            self._clock.observe(self._reading(), log_begin=self._core.store.log.min_physical, log_end=end)

    async def close(self) -> None:
        """Save the record at the stop, with the time of the last messages."""
        if self._clock is not None:
            self._recorded = None
            await self.observe()

    def _reading(self) -> ClockReading:
        clock = self._core.clock
        return ClockReading(clock.wall_ms(), clock.boot_ms(), clock.boot_id())

    def _read(self) -> RetentionRecord | None:
        """Return the record of an earlier process, if it belongs to this store; without it, store timestamps count."""
        disk = self._core.disk
        try:
            if not disk.exists(self._path):
                return None
            record = decode_record(disk.read_file(self._path))
            identity = self._core.store.identity
            if record.store == identity.uuid:
                return record.with_trusted_notes(identity.cuts)
            reason = "it belongs to another store"
        except (OSError, ValueError, msgspec.DecodeError) as error:
            reason = str(error)
        log.warning(
            "unusable retention clock record; messages expire by their store timestamps",
            extra={"path": self._path, "reason": reason},
        )
        return None

    async def _save(self, clock: RetentionClock, now: ClockReading) -> None:
        """Write the record if it is due: every hour, and after a change of the notes, of doubt, or of ``cuts``.

        A new note is made at most once a minute.
        """
        identity = self._core.store.identity
        state = clock.note_changes, clock.is_doubtful, now.boot_ms // CLAIM_MS_MIN, identity.cuts
        if state == self._recorded:
            return
        data = encode_record(clock.record(identity.uuid, now, cuts=identity.cuts))
        try:
            await run_in_thread(lambda: self._core.disk.write_file(self._path, data))
        except OSError as error:
            if str(error) != self._logged_error:
                self._logged_error = str(error)
                facts = {"reason": self._logged_error}
                log.error("failed to write retention clock record; will retry", extra=facts)
            return
        self._logged_error = ""
        self._recorded = state
