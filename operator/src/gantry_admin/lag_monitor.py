"""The background task that samples the lag of all groups, and keeps its history across restarts of the sidecar.

    every 15 s: inventory (cached) -> store times of the oldest messages -> one sample of every group and topic
    every 60 s: the whole history -> DIR/consumer-lag, replaced atomically; at most one minute is lost in a crash

The directory is the sidecar's own, never the broker's store. Without one, or if it cannot be written, the history is
kept in memory only, and ``/v1/status`` has the reason.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final, final

from gantry_admin.consumer_lag import TopicLag, lag_by_topic
from gantry_admin.documents import LagHistoryDocument
from gantry_admin.errors import Problem
from gantry_admin.inventory_cache import InventoryCache
from gantry_admin.lag_history import DOCUMENT_BYTES_MAX, SAMPLE_S, LagHistory, Pair, open_file, seal_file
from gantry_admin.lag_times import StoreTimes
from gantry_remoting.durable_files import replace_file
from gantry_status.clocks import Clock, now

log = logging.getLogger(__name__)

SAVE_S: Final = 60
"""The interval between two writes of the file: what a crash of the sidecar can lose."""
READ_WAIT_S: Final = 5.0
"""How long a sample waits for the store times. No answer waits for a sample."""
RETRY_S: Final = 1.0
"""The wait after a sample for which nothing was known, as in the first moments of a broker."""
FILE_NAME: Final = "consumer-lag"


@final
class LagMonitor:
    """The sampled lag of all groups of one broker. Owned by the event loop."""

    def __init__(
        self, inventory: InventoryCache, times: StoreTimes, folder: Path | None, *, clock: Clock = now
    ) -> None:
        """``folder`` is the sidecar's own directory; None to keep the history in memory only."""
        self.times: Final = times
        self.history: Final = LagHistory()
        self._inventory: Final = inventory
        self._path: Final = None if folder is None else folder / FILE_NAME
        self._clock: Final = clock
        self._fault = "" if folder is not None else "no --state directory is given"
        self._is_loaded = False

    def __repr__(self) -> str:
        return f"<LagMonitor {self.history!r} {self._path} {self._fault}>"

    async def run(self) -> None:
        """Load the history, then sample and save until cancelled."""
        await self.load()
        saved_ns = self._clock().boottime_ns
        while True:
            is_sampled = await self.sample()
            if self._clock().boottime_ns - saved_ns >= SAVE_S * 1_000_000_000:
                await self.save()
                saved_ns = self._clock().boottime_ns
            await asyncio.sleep(SAMPLE_S if is_sampled else RETRY_S)

    async def close(self) -> None:
        """Save the history, and wait for the end of pending reads. Call it after ``run`` was cancelled."""
        await self.times.close()
        await self.save()

    async def sample(self) -> bool:
        """Record the lag of all groups once. Without an inventory nothing is recorded, which is shown as a gap."""
        try:
            inventory = (await self._inventory.get()).inventory
        except Problem:
            return False
        await self.times.refresh(inventory, READ_WAIT_S)
        lags: dict[Pair, TopicLag] = {
            (group, topic): lag
            for group in inventory.groups
            for topic, lag in lag_by_topic(self.times.queues(inventory, group)).items()
        }
        self.history.record(self._clock(), lags)
        return True

    def document(self) -> LagHistoryDocument:
        """Return where the history is kept, and why not in a file."""
        return LagHistoryDocument(
            kept_in="memory" if self._fault else "file",
            reason=self._fault or None,
            series_left_out=self.history.left_out,
        )

    async def load(self) -> None:
        """Load the history from its file. A file that cannot be used is left out, and replaced at the next write."""
        path = self._path
        if path is None:
            return
        try:
            content = await asyncio.to_thread(_read, path)
            if content is not None:
                document = await asyncio.to_thread(open_file, content)
                self.history.restore(document, self._clock().wall_ms)
        except (OSError, ValueError) as error:
            log.warning("history of consumer lag discarded", extra={"file": str(path), "reason": str(error)[:300]})
        self._is_loaded = True

    async def save(self) -> None:
        """Replace the file, if the history was loaded before."""
        path = self._path
        if path is None or not self._is_loaded:
            return
        document = self.history.to_document()
        try:
            await asyncio.to_thread(_write, path, document)
        except OSError as error:
            if not self._fault:
                log.warning(
                    "history of consumer lag cannot be written; it is kept in memory only",
                    extra={"file": str(path), "reason": str(error)[:300]},
                )
            self._fault = f"cannot write {path}: {error.strerror}"[:300]
        else:
            self._fault = ""


def _read(path: Path) -> bytes | None:
    """Return the content of the file; None if it does not exist. Raises ValueError if it is too long; blocks."""
    try:
        with path.open("rb") as file:
            content = file.read(DOCUMENT_BYTES_MAX + 1)
    except FileNotFoundError:
        return None
    if len(content) > DOCUMENT_BYTES_MAX:
        raise ValueError(f"it is longer than {DOCUMENT_BYTES_MAX} bytes")
    return content


def _write(path: Path, document: bytes) -> None:
    """Replace the file; blocks. It is not synced: after a power loss, a torn file is discarded."""
    replace_file(path, seal_file(document), mode=0o600, is_durable=False)
