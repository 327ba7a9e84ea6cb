"""Reads the whole log slowly and repeatedly, so that damage is found while a replica still has the record.

    every slice:  worker thread  reads 256 KiB from the disk, bypassing the page cache
                  event loop     verifies 64 KiB, serves other requests, verifies the next
                  damage         reported as if a reader had found it, and so healed from a replica

A pass reads ``[min_physical, flushed)``; the next one starts at most once in ``PASS_INTERVAL_S``. The rate is limited
in bytes per second; the loop spends a microsecond per record. If the file system supports it, the bytes come from the
disk itself (``Disk.read_uncached``): the data that consumers read stays in the page cache, and damage is found that an
intact copy in the page cache still hides; then that copy is written to the disk again.

The position of a pass is saved in ``scrub.json``, and a restart continues at the start of that log file, where a record
always begins.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, final

import msgspec

from gantry_broker.errors import StoreError
from gantry_broker.ports.disk import Disk
from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.store.damage import Integrity
from gantry_broker.store.identity import StoreIdentity
from gantry_broker.store.sealed_file import read_sealed, write_sealed

log = logging.getLogger(__name__)

READ_BYTES: Final = 256 << 10
"""How much is read from the disk at a time."""
SLICE_BYTES: Final = 64 << 10
"""How much is verified in one turn of the loop: some hundred microseconds with small records."""

PASS_INTERVAL_S: Final = 3600.0
"""The minimum time between the starts of two passes, for small logs."""

START_DELAY_S: Final = 60.0
"""The delay after the start of the broker, which has to read much then."""

IDLE_S: Final = 1.0
"""The interval of checks for work while there is none."""

SAVE_INTERVAL_S: Final = 60.0
"""The interval at which the position is saved."""


class ScrubProgress(msgspec.Struct, frozen=True):
    """The content of ``scrub.json``: the position, and the end of the last complete pass."""

    position: int
    """The offset of the log up to which the present pass has come."""

    pass_ended_wall_ms: int = 0
    """Wall-clock time at which the last complete pass ended; 0 if there was none."""


@final
class Scrubber:
    """Verifies the log in the background. Owned by the event loop; ``run`` is its task."""

    def __init__(self, core: BrokerCore, disk: Disk, deletion_lock: asyncio.Lock, *, bytes_per_second: int) -> None:
        """``deletion_lock`` is held while a record is rewritten, so that nothing is deleted or truncated meanwhile."""
        self.position = 0
        """The offset of the log at which the pass continues."""
        self.scrubbed_bytes = 0
        """Bytes of the log read since the start, in all passes."""
        self.passes = 0
        """How many passes have ended since the start."""
        self.pass_ended_wall_ms = 0
        """When the last pass ended, also before this start; 0 if none has."""
        self._core: Final = core
        self._disk: Final = disk
        self._deletion_lock: Final = deletion_lock
        self._rate: Final = bytes_per_second
        self._path: Final = f"{core.settings.store_path}/scrub.json"
        self._pass_began_at = 0.0
        self._saved_at = 0.0
        self._is_pass_begun = False

    def __repr__(self) -> str:
        return f"<Scrubber position={self.position} passes={self.passes}>"

    @property
    def is_enabled(self) -> bool:
        """Whether the rate is positive, so that ``run`` has work to do."""
        return self._rate > 0

    def add_progress(self, integrity: Integrity) -> Integrity:
        """Return ``integrity`` with the progress of the scrubber."""
        return integrity._replace(
            scrub_position=self.position,
            scrubbed_bytes=self.scrubbed_bytes,
            scrub_pass_ended_wall_ms=self.pass_ended_wall_ms,
        )

    async def run(self) -> None:
        """Scrub the log until cancelled."""
        await asyncio.sleep(START_DELAY_S)
        await asyncio.to_thread(self._load)
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                done = await self.step()
            except (OSError, StoreError) as error:
                if self.position < self._core.store.log.min_physical:
                    continue  # the file has expired meanwhile
                facts = {"offset": self.position, "reason": str(error)}
                log.error("scrubber failed to read commit log; skipping to the next file", extra=facts)
                done = self._skip_to_next_file()
            except Exception:  # a bug in the scrubber must not stop a serving broker
                log.exception("unexpected error while scrubbing", extra={"offset": self.position})
                done = self._skip_to_next_file()
            await asyncio.sleep(max(done / self._rate - (loop.time() - began), 0.0) if done else IDLE_S)

    async def step(self) -> int:
        """Read and verify one piece of the log; return its size in bytes, 0 if there is no work."""
        store, loop = self._core.store, asyncio.get_running_loop()
        if self._core.gate.is_store_lent or not self._begin_pass(loop.time()):
            return 0
        start, end = self.position, store.log.flushed
        if start >= end:
            await self._end_pass()
            return 0
        file_size = store.settings.mapped_file_size_commit_log
        base = start - start % file_size
        stop = min(end, base + file_size)
        identity = store.identity
        data = await self._read(base, start, min(READ_BYTES, stop - start))
        verified = await self._verify(data, start)
        if self._is_other_log(identity, start):
            return len(data)  # the bytes belong to the old log
        next_position = start + verified
        store.guard.damage.mark_good(start, next_position)
        if not verified:
            next_position = await self._examine_unverified(base, start, stop)
            if self._is_other_log(identity, start):
                return len(data)
        self.position = next_position
        self.scrubbed_bytes += next_position - start
        if loop.time() - self._saved_at >= SAVE_INTERVAL_S:
            self._saved_at = loop.time()
            await self._save_progress()
        return next_position - start

    def on_log_changed(self, end: int) -> None:
        """Continue at ``end`` if the position is after it: a record begins there, and need not at the old position."""
        self.position = min(self.position, end)

    def _is_other_log(self, identity: StoreIdentity, start: int) -> bool:
        """Whether the log has changed since ``identity``, belongs to another thread, or has expired at ``start``."""
        store = self._core.store
        return self._core.gate.is_store_lent or store.identity is not identity or start < store.log.min_physical

    def _begin_pass(self, now: float) -> bool:
        """Start a pass if one is due. True if a pass is running."""
        store = self._core.store
        if not self._is_pass_begun:
            if self.passes and now - self._pass_began_at < PASS_INTERVAL_S:
                return False
            self._is_pass_begun, self._pass_began_at = True, now
            if self.position > store.log.flushed:
                self.position = store.log.min_physical
        self.position = max(self.position, store.log.min_physical)
        return True

    async def _end_pass(self) -> None:
        self._is_pass_begun = False
        self.passes += 1
        self.pass_ended_wall_ms = self._core.clock.wall_ms()
        facts = {"end": self.position, "damaged": len(self._core.store.guard.damage.damaged)}
        log.info("commit log scrub pass complete", extra=facts)
        self.position = self._core.store.log.min_physical
        await self._save_progress()

    async def _read(self, base: int, start: int, length: int) -> bytes:
        path = f"{self._core.settings.store_path}/commitlog/{base:020d}"
        return await asyncio.to_thread(self._disk.read_uncached, path, start - base, length)

    async def _verify(self, data: bytes, start: int) -> int:
        """Verify ``data`` in slices; return the bytes of intact records at its start."""
        guard, view, done = self._core.store.guard, memoryview(data), 0
        while done < len(data):
            end = guard.good_bytes(view[done : done + SLICE_BYTES], start + done)
            if not end:
                end = guard.good_bytes(view[done:], start + done)  # the record is longer than a slice
            if not end:
                break
            done += end
            await asyncio.sleep(0)
        return done

    async def _examine_unverified(self, base: int, start: int, stop: int) -> int:
        """Examine ``start``, where no intact record was verified; return the position to continue at."""
        guard, identity = self._core.store.guard, self._core.store.identity
        if guard.is_blank(start):
            return base + self._core.settings.store.mapped_file_size_commit_log
        size = guard.size_at(start)
        if 0 < size <= stop - start:
            data = await self._read(base, start, size)
            if self._is_other_log(identity, start):
                return start
            if guard.good_bytes(memoryview(data), start) == size:
                return start + size
            if guard.is_range_good(start, start + size):
                # The page cache has the intact record: only the disk is damaged.
                return await self._rewrite(start, size)
        guard.damage.report(start)
        return guard.end_of_damage(start)

    async def _rewrite(self, start: int, size: int) -> int:
        store = self._core.store
        async with self._deletion_lock:
            view = store.log.view(start)[:size]
            data = bytes(view)
            if store.guard.is_intact(data, start):
                await asyncio.to_thread(store.guard.prepare_rewrite(start, data))
                store.guard.damage.count_rewritten(start, size)
        return start + size

    def _skip_to_next_file(self) -> int:
        """Skip the rest of a file that cannot be read; return the number of skipped bytes."""
        file_size = self._core.settings.store.mapped_file_size_commit_log
        start = self.position
        self.position += file_size - start % file_size
        return self.position - start

    # -- scrub.json ----------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        try:
            found = read_sealed(self._disk, self._path, ScrubProgress)
        except (ValueError, OSError) as error:
            log.warning(
                "unusable scrub progress file; scrubbing from the start of the log",
                extra={"path": self._path, "reason": str(error)},
            )
            return
        if found is not None:
            file_size = self._core.settings.store.mapped_file_size_commit_log
            self.position = found.position - found.position % file_size
            self.pass_ended_wall_ms = found.pass_ended_wall_ms

    async def _save_progress(self) -> None:
        progress = ScrubProgress(self.position, self.pass_ended_wall_ms)
        try:
            await asyncio.to_thread(write_sealed, self._disk, self._path, progress)
        except OSError as error:
            log.warning("failed to save scrub progress; will retry", extra={"reason": str(error)})
