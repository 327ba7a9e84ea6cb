"""The scrubber reads all of the log again and again, slowly: damage is found while a replica still has the record.

    every slice:  worker thread  reads 256 KiB from the disk, around the page cache
                  event loop     verifies 64 KiB, lets others have their turn, verifies the next
                  damage         reported as if a reader had met it, and so healed from a replica

It reads ``[min_physical, flushed)`` and begins again at the log's start, at most once in ``PASS_INTERVAL_S``. Bounded
by bytes per second; the loop's share is a microsecond a record. Where the file system allows it the bytes come from the
media itself (``Disk.read_uncached``), so nothing that consumers read is pushed out of the page cache, and damage is
found that a good copy in the page cache still hides: then that copy is written again.

How far a pass has come is kept in ``scrub.json``, and a restart goes on at the begin of that log file, where a record
begins for certain.
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
SLICE_BYTES: Final = 64 << 10
"""Verified in one turn of the loop: some hundred microseconds with small records."""

PASS_INTERVAL_S: Final = 3600.0
"""A small log is not read more often than that, however soon a pass is over."""

START_DELAY_S: Final = 60.0
"""A broker that has just started has enough to read."""

IDLE_S: Final = 1.0
"""How often it is looked for something to do while there is nothing."""

KEEP_INTERVAL_S: Final = 60.0
"""How often the position is written down."""


class ScrubProgress(msgspec.Struct, frozen=True):
    """What ``scrub.json`` says."""

    position: int
    pass_ended_wall_ms: int = 0


@final
class Scrubber:
    """Owned by the loop; ``run`` is its task."""

    def __init__(self, core: BrokerCore, disk: Disk, quiet: asyncio.Lock, *, bytes_per_second: int) -> None:
        """``quiet`` is held while something is written again: nothing is deleted or cut meanwhile."""
        self.position = 0
        self.scrubbed_bytes = 0
        self.passes = 0
        self.pass_ended_wall_ms = 0
        self._core: Final = core
        self._disk: Final = disk
        self._quiet: Final = quiet
        self._rate: Final = bytes_per_second
        self._path: Final = f"{core.settings.store_path}/scrub.json"
        self._pass_began_at = 0.0
        self._kept_at = 0.0
        self._is_pass_begun = False

    def __repr__(self) -> str:
        return f"<Scrubber position={self.position} passes={self.passes}>"

    @property
    def is_on(self) -> bool:
        """Whether ``run`` has anything to do."""
        return self._rate > 0

    def add_to(self, integrity: Integrity) -> Integrity:
        """With how far the scrubber is."""
        return integrity._replace(
            scrub_position=self.position,
            scrubbed_bytes=self.scrubbed_bytes,
            scrub_pass_ended_wall_ms=self.pass_ended_wall_ms,
        )

    async def run(self) -> None:
        """Scrub until cancelled."""
        await asyncio.sleep(START_DELAY_S)
        await asyncio.to_thread(self._load)
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                done = await self.step()
            except (OSError, StoreError) as error:
                if self.position < self._core.store.log.min_physical:
                    continue  # it has expired meanwhile
                facts = {"offset": self.position, "reason": str(error)}
                log.error("a part of the log cannot be read by the scrubber and was left out", extra=facts)
                done = self._to_next_file()
            except Exception:  # a fault of ours must not end a broker that serves
                log.exception("unexpected error while scrubbing", extra={"offset": self.position})
                done = self._to_next_file()
            await asyncio.sleep(max(done / self._rate - (loop.time() - began), 0.0) if done else IDLE_S)

    async def step(self) -> int:
        """Read and verify one piece; how many bytes of the log that was, 0 if there is nothing to do now."""
        store, loop = self._core.store, asyncio.get_running_loop()
        if self._core.gate.is_still or not self._begin_pass(loop.time()):
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
            return len(data)  # what was read says nothing of it
        place = start + verified
        store.guard.damage.found_good(start, place)
        if not verified:
            place = await self._look_closer(base, start, stop)
            if self._is_other_log(identity, start):
                return len(data)
        self.position = place
        self.scrubbed_bytes += place - start
        if loop.time() - self._kept_at >= KEEP_INTERVAL_S:
            self._kept_at = loop.time()
            await self._keep()
        return place - start

    def log_cut(self, end: int) -> None:
        """Read what comes behind ``end`` from there: a record begins there, and none needs to at the old position."""
        self.position = min(self.position, end)

    def _is_other_log(self, identity: StoreIdentity, start: int) -> bool:
        """Whether the log was cut, changed or lent since it had ``identity``, or has expired at ``start``."""
        store = self._core.store
        return self._core.gate.is_still or store.identity is not identity or start < store.log.min_physical

    def _begin_pass(self, now: float) -> bool:
        """Whether a pass is under way."""
        store = self._core.store
        if not self._is_pass_begun:
            if self.passes and now - self._pass_began_at < PASS_INTERVAL_S:
                return False
            self._is_pass_begun, self._pass_began_at = True, now
        if not store.log.min_physical <= self.position <= store.log.flushed:
            self.position = store.log.min_physical
        return True

    async def _end_pass(self) -> None:
        self._is_pass_begun = False
        self.passes += 1
        self.pass_ended_wall_ms = self._core.clock.wall_ms()
        facts = {"end": self.position, "damaged": len(self._core.store.guard.damage.damaged)}
        log.info("the log is scrubbed", extra=facts)
        self.position = self._core.store.log.min_physical
        await self._keep()

    async def _read(self, base: int, start: int, length: int) -> bytes:
        path = f"{self._core.settings.store_path}/commitlog/{base:020d}"
        return await asyncio.to_thread(self._disk.read_uncached, path, start - base, length)

    async def _verify(self, data: bytes, start: int) -> int:
        """How many bytes of good records ``data`` begins with, in slices."""
        guard, view, done = self._core.store.guard, memoryview(data), 0
        while done < len(data):
            end = guard.good_bytes(view[done : done + SLICE_BYTES], start + done)
            if not end:
                end = guard.good_bytes(view[done:], start + done)  # a record that is longer than a slice
            if not end:
                break
            done += end
            await asyncio.sleep(0)
        return done

    async def _look_closer(self, base: int, start: int, stop: int) -> int:
        """No good record begins at ``start`` as far as was read; where to go on."""
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
            if guard.is_good_now(start, start + size):
                # The page cache has it as it ought to be: only the media is wrong.
                return await self._write_again(start, size)
        guard.damage.report(start)
        return guard.end_of_damage(start)

    async def _write_again(self, start: int, size: int) -> int:
        store = self._core.store
        async with self._quiet:
            view = store.log.view(start)[:size]
            data = bytes(view)
            if store.guard.is_whole(data, start):
                await asyncio.to_thread(store.guard.rewriting(start, data))
                store.guard.damage.rewritten(start, size)
        return start + size

    def _to_next_file(self) -> int:
        """Leave out the rest of a file that cannot be read."""
        file_size = self._core.settings.store.mapped_file_size_commit_log
        start = self.position
        self.position += file_size - start % file_size
        return self.position - start

    # -- scrub.json ----------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        try:
            found = read_sealed(self._disk, self._path, ScrubProgress)
        except (ValueError, OSError) as error:
            log.warning("the scrubber begins again", extra={"path": self._path, "reason": str(error)})
            return
        if found is not None:
            file_size = self._core.settings.store.mapped_file_size_commit_log
            self.position = found.position - found.position % file_size
            self.pass_ended_wall_ms = found.pass_ended_wall_ms

    async def _keep(self) -> None:
        progress = ScrubProgress(self.position, self.pass_ended_wall_ms)
        try:
            await asyncio.to_thread(write_sealed, self._disk, self._path, progress)
        except OSError as error:
            log.warning("how far the log is scrubbed was not written down", extra={"reason": str(error)})
