"""When the oldest messages were stored that consumer groups have not consumed: read from the store's files, and cached.

    inventory: group, topic, queue, offset --> known store time? -- no --> a thread reads the unit and the record head

The store time of a stored message never changes, so a group that does not consume costs one read. A group that consumes
costs one read per queue and refresh, within the limits below. Until the message at a new offset is read, the last known
one before it stands in: the lag in seconds is then too long by at most the time between two refreshes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple, final

from gantry_admin.consumer_lag import QueueWait
from gantry_admin.errors import Problem
from gantry_admin.inventory import Inventory, QueueLag
from gantry_admin.ranges import Span
from gantry_admin.store_files import StoreFiles
from gantry_status.clocks import Clock, now

READ_S_MAX: Final = 0.25
"""The time that one refresh may read: on a slow disk some store times stay unknown until a later one."""
QUEUES_MAX: Final = 20_000
"""The most pairs of group and queue whose store times are kept, about 4 MB; further ones are unknown."""

Key = tuple[str, str, int]
"""(group, topic, queue)."""


class StoredAt(NamedTuple):
    """When the message at one offset of a queue was stored."""

    offset: int
    stored_ms: int


@final
class StoreTimes:
    """The store times of the oldest messages that groups have not consumed. Owned by the event loop."""

    def __init__(self, files: StoreFiles, span: Callable[[], Span], *, clock: Clock = now) -> None:
        """``span`` returns the readable part of the log, or raises ``Problem``."""
        self._files: Final = files
        self._span: Final = span
        self._clock: Final = clock
        self._known: dict[Key, StoredAt] = {}
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<StoreTimes of {len(self._known)} queues>"

    async def close(self) -> None:
        """Wait for the end of a pending read, which is bounded."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def queues(self, inventory: Inventory, group: str) -> list[QueueWait]:
        """Return the lag of a group in each queue, by topic and queue; in seconds as far as store times are known."""
        now_ms = self._clock().wall_ms
        return [QueueWait(*one, self._wait(group, one, now_ms)) for one in inventory.lags(group)]

    async def refresh(self, inventory: Inventory, wait_s: float) -> None:
        """Start to read the store times that are missing for an inventory, and wait up to ``wait_s`` for the end."""
        if self._task is None or self._task.done():
            missing = self._missing(inventory)
            if not missing:
                return
            self._task = asyncio.ensure_future(self._read(missing))
        if wait_s > 0:
            await asyncio.wait([self._task], timeout=wait_s)

    def _missing(self, inventory: Inventory) -> list[tuple[Key, QueueLag]]:
        """Return what is to be read, the most urgent first, and forget the store times of all other queues."""
        wanted: set[Key] = set()
        missing: list[tuple[Key, QueueLag]] = []
        for group in inventory.groups:
            for one in inventory.lags(group):
                if one.lag > 0:
                    key = (group, one.topic, one.queue_id)
                    wanted.add(key)
                    known = self._known.get(key)
                    if known is None or known.offset != next_offset(one):
                        missing.append((key, one))
        if self._known.keys() - wanted:
            self._known = {key: known for key, known in self._known.items() if key in wanted}
        missing.sort(key=lambda item: (item[0] in self._known, -item[1].lag))
        return missing

    def _wait(self, group: str, one: QueueLag, now_ms: int) -> float | None:
        if one.lag == 0:
            return 0.0
        known = self._known.get((group, one.topic, one.queue_id))
        if known is None or known.offset > next_offset(one):  # not read yet, or the offset was reset to an earlier one
            return None
        return max(now_ms - known.stored_ms, 0) / 1000

    async def _read(self, missing: list[tuple[Key, QueueLag]]) -> None:
        try:
            span = self._span()
        except Problem:
            return  # the readable part of the log is unknown while the broker recovers
        found = await asyncio.to_thread(read_store_times, self._files, span, missing)
        for key, stored in found.items():
            if stored is None:
                self._known.pop(key, None)
            elif key in self._known or len(self._known) < QUEUES_MAX:
                self._known[key] = stored


def next_offset(one: QueueLag) -> int:
    """Return the offset of the oldest existing message that the group has not consumed; the queue's end without any."""
    return one.end - one.lag


def read_store_times(
    files: StoreFiles, span: Span, missing: list[tuple[Key, QueueLag]], *, seconds_max: float = READ_S_MAX
) -> dict[Key, StoredAt | None]:
    """Read the store times of these groups' oldest messages, in this order; blocks, up to ``seconds_max``.

    A message that retention has deleted meanwhile is replaced by the oldest one that exists. The result is None for a
    message whose time cannot be read, and lacks those for which there was no time left.
    """
    found: dict[Key, StoredAt | None] = {}
    read: dict[tuple[str, int, int], int | None] = {}
    deadline_s = time.monotonic() + seconds_max
    for key, one in missing:
        if time.monotonic() > deadline_s:
            break
        place = (one.topic, one.queue_id, next_offset(one))
        if place not in read:
            read[place] = None
            with suppress(Problem, OSError):  # the queue or its log file is gone, so the store time is unknown
                read[place] = _store_time(files, span, *place)
        stored_ms = read[place]
        found[key] = None if stored_ms is None else StoredAt(place[2], stored_ms)
    return found


def _store_time(files: StoreFiles, span: Span, topic: str, queue_id: int, offset: int) -> int | None:
    stored_ms = files.stored_at(topic, queue_id, offset, span.begin)
    if stored_ms is not None:
        return stored_ms
    oldest = files.bounds(topic, queue_id, span.begin, span.end).begin
    return files.stored_at(topic, queue_id, oldest, span.begin) if oldest > offset else None
