"""Delayed messages: stored under SCHEDULE_TOPIC_XXXX by level, put into their own topic when they are due.

    queue of a level   [ delivered ...... due by now | due later ...... )
                                          `- looked at by the queue's units alone, which say when each is due

Every level is a queue in which due times only grow, so only its first undelivered message needs looking at; and that
one's unit (20 bytes of the queue) says when it is worth reading. A million messages that wait therefore cost nothing
but their place on the disk. The unit is a hint: it was written with the delays of that day, and nothing guards it
against rot. The record itself decides, and never early; or `delay_sightings` does, where the wall clock was set back.
A clock that is set forward makes whatever it passes due, as for everybody who reads it.

A pass delivers one slice of every level that has something due, then the next slice of each, with a turn of the loop
for everybody else after every slice: a level that is an hour behind costs another one a few slices' time. When nothing
is due any more the service sleeps until the next message is, but at least ``PAUSE_S``, so that what comes due one by
one is delivered by the dozen. How far a level is delivered is ``delay_progress``.
"""

import asyncio
import logging
from typing import Final, final

from gantry_broker.errors import BrokerError
from gantry_broker.server.core import BrokerCore
from gantry_broker.server.delay_drafts import due_drafts
from gantry_broker.server.delay_progress import DelayProgress
from gantry_broker.server.delay_sightings import Sightings
from gantry_broker.store.consume_queue import FILLER_SIZE, ConsumeQueue
from gantry_wire import names

log = logging.getLogger(__name__)

TICK_S: Final = 0.1
"""The longest sleep. No delay is shorter, so nothing that comes meanwhile is due before the next look."""
PAUSE_S: Final = 0.01
"""The shortest sleep: how late a message may be for the sake of those that are due just after it."""
SLICE_MESSAGES_MAX: Final = 128
SLICE_BYTES_MAX: Final = 1024 * 1024
FULL_RETRY_S: Final = 1.0


@final
class DelayService:
    """Delivers what is due. Owned by the event loop; `run` is its task."""

    def __init__(self, core: BrokerCore) -> None:
        self.progress: Final = DelayProgress(core)
        self.rounds = 0
        """How often every level was looked at until nothing was due."""

        self._core: Final = core
        self._sightings: Final = Sightings()
        self._not_before: dict[int, tuple[int, int]] = {}
        """Level -> (offset, time): a record said when it is due, and its unit had said something else."""

        self._retry_at: dict[int, float] = {}
        """Level -> loop time: the store has refused it."""

        self._next_ms = 0
        """When the first message of all levels is due, as far as the pass under way has seen."""

    def __repr__(self) -> str:
        return f"<DelayService rounds={self.rounds} {self.progress!r}>"

    def positions(self) -> dict[int, tuple[int, int]]:
        """For every level used so far: (delivered up to, end of its queue)."""
        found: dict[int, tuple[int, int]] = {}
        for level in self._levels():
            queue = self._core.store.find_queue(names.SCHEDULE_TOPIC, level - 1)
            if queue is not None:
                found[level] = (self.progress.offset(level), queue.end)
        return found

    def _levels(self) -> range:
        return range(1, len(self._core.settings.store.delay_levels_ms) + 1)

    async def run(self) -> None:
        """Deliver until cancelled."""
        while True:
            if self._core.gate.sends is not None:  # a master delivers, and nobody else
                self._not_before.clear()  # the log may be another one when it opens again
                self._sightings.forget()
                await asyncio.sleep(TICK_S)
                continue
            now_ms = self._core.clock.wall_ms()
            self._next_ms = now_ms + int(TICK_S * 1000)
            if await self._pass():
                continue
            self.rounds += 1
            await asyncio.sleep(min(TICK_S, max(PAUSE_S, (self._next_ms - now_ms) / 1000)))

    async def _pass(self) -> bool:
        """A slice of every level that has something due. True when more is due at once."""
        loop = asyncio.get_running_loop()
        is_more = False
        for level in self._levels():
            if self._retry_at.get(level, 0.0) > loop.time():
                continue
            before = self.progress.offset(level)
            try:
                is_more |= self._deliver_slice(level)
            except BrokerError as error:
                log.warning("delayed messages wait for the store", extra={"level": level, "reason": str(error)})
                self._retry_at[level] = loop.time() + FULL_RETRY_S
                continue
            if self.progress.offset(level) != before:
                await asyncio.sleep(0)
                if self._core.gate.sends is not None:
                    return False
        return is_more

    def _deliver_slice(self, level: int) -> bool:
        """Deliver what is due of one level, at most a slice. True when more than that is due."""
        store, progress = self._core.store, self.progress
        queue = store.find_queue(names.SCHEDULE_TOPIC, level - 1)
        if queue is None:
            return False
        offset = max(progress.offset(level), queue.min_offset)
        now_ms = self._core.clock.wall_ms()
        delay_ms = self._core.settings.store.delay_levels_ms[level - 1]
        monotonic_ms = self._core.clock.monotonic_ms()
        waited = self._sightings.see(level, queue.end, now_ms=monotonic_ms, delay_ms=delay_ms)
        count = self._worth_reading(level, queue, offset, now_ms=now_ms, delay_ms=delay_ms)
        count = max(count, min(SLICE_MESSAGES_MAX, waited - offset))
        if not count:
            return False
        result = store.read(
            names.SCHEDULE_TOPIC, level - 1, offset, count_max=count, bytes_max=SLICE_BYTES_MAX, accept=None
        )
        if not result.body:  # what was here has expired, or is rotten, which the reader has said
            if result.next_offset <= offset:
                return False
            progress.advance(level, result.next_offset)
            return True
        due = due_drafts(result.body, delay_ms=delay_ms, now_ms=now_ms, waited=waited, find_queue=self._deliverable)
        if due.drafts:
            store.append(due.drafts)
            self._core.stats.put(len(due.drafts), store)
        end = offset if due.end is None else due.end
        if end > offset:
            progress.advance(level, end)
        if due.next_ms is not None:
            self._not_before[level] = (end, due.next_ms)
            self._next_ms = min(self._next_ms, due.next_ms)
            return False
        return end > offset and (count >= SLICE_MESSAGES_MAX or end < offset + count)

    def _deliverable(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, which consumers know of from now on if they did not."""
        self._core.topics.widen(topic, queue_id)
        return self._core.store.queue(topic, queue_id)

    def _worth_reading(self, level: int, queue: ConsumeQueue, offset: int, *, now_ms: int, delay_ms: int) -> int:
        """How many messages from ``offset`` on are due as far as their units say, at most a slice."""
        known_offset, known_ms = self._not_before.get(level, (-1, 0))
        if known_offset == offset and known_ms > now_ms:
            self._next_ms = min(self._next_ms, known_ms)
            return 0
        count = 0
        for _, size, due_ms in queue.units(offset, offset + SLICE_MESSAGES_MAX):
            # A time that this level's delay cannot have made is no reason to wait: the record is asked.
            if size != FILLER_SIZE and now_ms < due_ms <= now_ms + delay_ms:
                self._next_ms = min(self._next_ms, due_ms)
                break
            count += 1
        return count
