"""Delayed messages: stored under SCHEDULE_TOPIC_XXXX by level, put into their own topic when they are due.

    queue of a level   [ delivered ...... due by now | due later ...... )
                                          `- looked at by the queue's units alone, which say when each is due

Every level is a queue in which due times only grow, so only its first undelivered message needs looking at; and that
one's unit (20 bytes of the queue) says when it is worth reading. A million messages that wait therefore cost nothing
but their place on the disk. The unit is a hint: it was written with the delays of that day, and nothing guards it
against rot. The record itself decides, and never early; or `ObservedEnds` does, where the wall clock was set back.
A clock that is set forward makes whatever it passes due, as for everybody who reads it.

A pass delivers one slice of every level that has something due, then the next slice of each, with a turn of the loop
for everybody else after every slice: a level that is an hour behind costs another one a few slices' time. When nothing
is due any more the service sleeps until the next message is, but at least ``PAUSE_S``, so that what comes due one by
one is delivered by the dozen. How far a level is delivered is ``progress``.
"""

import asyncio
import logging
from collections import deque
from typing import Final, final

from gantry_broker.errors import BrokerError
from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.healed_records import HealedRecords
from gantry_broker.server.delay.drafts import due_drafts
from gantry_broker.server.delay.progress import DelayProgress
from gantry_broker.store.consume_queue import FILLER_SIZE, ConsumeQueue
from gantry_wire import names
from gantry_wire import properties as keys
from gantry_wire.message import StoredMessage, decode_record

log = logging.getLogger(__name__)

TICK_S: Final = 0.1
"""The longest sleep. No delay is shorter, so nothing that comes meanwhile is due before the next look."""
PAUSE_S: Final = 0.01
"""The shortest sleep: how late a message may be for the sake of those that are due just after it."""
SLICE_MESSAGES_MAX: Final = 128
SLICE_BYTES_MAX: Final = 1024 * 1024
FULL_RETRY_S: Final = 1.0
HEALED: Final = 0
"""In the place of a level: messages of all levels that were passed over, and are healed."""

PASSED_OVER_MAX: Final = 10_000
"""Damaged messages that are remembered: as many as damaged ranges are."""

OBSERVATIONS_MAX: Final = 16
"""Observed ends of one level within its delay. More of them cost memory and gain little."""

COPIES_MAX: Final = 64
"""Messages with one unique key that are looked at: each retry of a message has the same."""


@final
class ObservedEnds:
    """Where the queue of each level ended at which time: a second proof that a message has waited long enough.

        queue of a level  [ ...... observed 9 s ago ...... observed 5 s ago ...... end )
                                                   `- all of this has waited 5 s, whatever a clock showed meanwhile

    The first proof is the record's own time of storing, compared with the wall clock. That clock may be set back, by an
    hour or by a year that it was wrong: times of storing never go back, so whatever is stored from then on seems to
    come from the future, and would wait for its delay and an hour. A message that was in its queue at one moment of the
    monotonic clock, and is still there one delay later, has waited for its delay; so such a message is late by
    `1 / OBSERVATIONS_MAX` of its delay, and never early.

    Nothing of this outlives the process: after a restart a level is observed for the first time again. Owned by the
    event loop.
    """

    def __init__(self) -> None:
        self._observed: dict[int, deque[tuple[int, int]]] = {}
        """Level -> (monotonic time, end of its queue), both growing."""

        self._waited: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"<ObservedEnds {self._waited}>"

    def forget(self) -> None:
        """Forget everything: the queues may be others when they are observed again."""
        self._observed.clear()
        self._waited.clear()

    def observe(self, level: int, end: int, *, now_ms: int, delay_ms: int) -> int:
        """A level's queue ends at ``end`` now. Returns up to where everything has waited for its delay."""
        observed = self._observed.setdefault(level, deque())
        if end < max(self._waited.get(level, 0), observed[-1][1] if observed else 0):  # cut, and not what was observed
            observed.clear()
            self._waited.pop(level, None)
        while observed and observed[0][0] + delay_ms <= now_ms:
            self._waited[level] = observed.popleft()[1]
        waited = self._waited.get(level, 0)
        last_ms, last_end = observed[-1] if observed else (now_ms - delay_ms, waited)
        if end > last_end and (not observed or now_ms - last_ms >= delay_ms / OBSERVATIONS_MAX):
            observed.append((now_ms, end))
        return waited


@final
class DelayService:
    """Delivers what is due. Owned by the event loop; `run` is its task."""

    def __init__(self, core: BrokerCore) -> None:
        self.progress: Final = DelayProgress(core)
        self.rounds = 0
        """How often every level was looked at until nothing was due."""

        self._core: Final = core
        self._observed_ends: Final = ObservedEnds()
        self._not_before: dict[int, tuple[int, int]] = {}
        """Level -> (offset, time): a record said when it is due, and its unit had said something else."""

        self._retry_at: dict[int, float] = {}
        """Level, or ``HEALED`` -> loop time: the store has refused it."""

        self._passed_over: set[tuple[int, int]] = set()
        """(level, offset) of what was damaged when it was due, since the start."""

        self.healed: Final = HealedRecords(core.store, names.SCHEDULE_TOPIC)
        self._next_ms = 0
        """When the first message of all levels is due, as far as the pass under way has seen."""

    def __repr__(self) -> str:
        return f"<DelayService rounds={self.rounds} {self.progress!r}>"

    def log_cut(self, end: int) -> None:
        """The log ends at ``end`` now: forget what was healed or passed over behind it, others will have its places."""
        self.healed.log_cut(end)
        ends = {level: queue_end for level, (_, queue_end) in self.positions().items()}
        self._passed_over = {(level, offset) for level, offset in self._passed_over if offset < ends.get(level, 0)}

    def positions(self) -> dict[int, tuple[int, int]]:
        """For every level used so far: (delivered up to, end of its queue)."""
        found: dict[int, tuple[int, int]] = {}
        for level in self._levels():
            queue = self._core.store.queues.get(names.SCHEDULE_TOPIC, level - 1)
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
                self._observed_ends.forget()
                await asyncio.sleep(TICK_S)
                continue
            now_ms = self._core.clock.wall_ms()
            self._next_ms = now_ms + int(TICK_S * 1000)
            if self.healed.places and self._retry_at.get(HEALED, 0.0) <= asyncio.get_running_loop().time():
                self._deliver_healed()
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
        queue = store.queues.get(names.SCHEDULE_TOPIC, level - 1)
        if queue is None:
            return False
        offset = max(progress.offset(level), queue.min_offset)
        now_ms = self._core.clock.wall_ms()
        delay_ms = self._core.settings.store.delay_levels_ms[level - 1]
        monotonic_ms = self._core.clock.monotonic_ms()
        waited = self._observed_ends.observe(level, queue.end, now_ms=monotonic_ms, delay_ms=delay_ms)
        count = self._worth_reading(level, queue, offset, now_ms=now_ms, delay_ms=delay_ms)
        count = max(count, min(SLICE_MESSAGES_MAX, waited - offset))
        if not count:
            return False
        result = store.read(
            names.SCHEDULE_TOPIC, level - 1, offset, count_max=count, bytes_max=SLICE_BYTES_MAX, accept=None
        )
        if not result.body:  # what was here has expired, or is damaged, which the reader has reported
            if result.next_offset <= offset:
                return False
            if len(self._passed_over) < PASSED_OVER_MAX:
                self._passed_over.update((level, passed) for passed in range(offset, result.next_offset))
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

    def _deliver_healed(self) -> None:
        """Deliver what was damaged when it was due, and is good again."""
        try:
            self.healed.take(self._deliver_once)
        except BrokerError as error:  # the index is not complete, or the store takes nothing: in a later round
            facts = {"offset": min(self.healed.places), "reason": str(error)}
            log.info("a healed delayed message waits", extra=facts)
            self._retry_at[HEALED] = asyncio.get_running_loop().time() + FULL_RETRY_S

    def _deliver_once(self, record: bytes) -> None:
        store, message = self._core.store, decode_record(record)
        level, offset = message.queue_id + 1, message.queue_offset
        if offset >= self.progress.offset(level) or not self._was_passed_over(level, message):
            return
        due = due_drafts(record, delay_ms=0, now_ms=message.store_timestamp_ms, find_queue=self._deliverable)
        store.append(due.drafts)
        self._core.stats.put(len(due.drafts), store)
        self._passed_over.discard((level, offset))
        log.warning("a delayed message was healed and is delivered late", extra={"level": level, "offset": offset})

    def _was_passed_over(self, level: int, message: StoredMessage) -> bool:
        """Whether a message of a level was damaged when it was due: nothing in its own topic comes of it.

        A restart forgets what was passed over, so what has a unique key is looked for.
        """
        if (level, message.queue_offset) in self._passed_over:
            return True
        unique, topic = message.properties.get(keys.UNIQUE_KEY), message.properties.get(keys.REAL_TOPIC)
        if not unique or not topic or not self._core.store.has_index:
            return False
        found, _, _ = self._core.store.keys.records(topic, unique, COPIES_MAX, 0, 1 << 62)
        return not any(_is_copy(decode_record(record), message, topic) for record in found)

    def _deliverable(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, which consumers know of from now on if they did not."""
        self._core.topics.widen(topic, queue_id)
        return self._core.store.queues.get_or_create(topic, queue_id)

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


def _is_copy(message: StoredMessage, delayed: StoredMessage, topic: str) -> bool:
    """Whether a message is what became of a delayed one. A retry of the same message has another count."""
    own = message.topic, message.born_timestamp_ms, message.born_host, message.reconsume_times
    return own == (topic, delayed.born_timestamp_ms, delayed.born_host, delayed.reconsume_times)
