"""Delivers delayed messages from SCHEDULE_TOPIC_XXXX, where they are stored by level, to their own topics.

    queue of a level   [ delivered ...... due by now | due later ...... )
                                          `- not read: the units of the queue hold the due times

In the queue of a level due times only grow, so only its first undelivered message needs to be checked; and its unit
(20 bytes of the queue) holds the due time. A million waiting messages therefore cost nothing but disk space. The unit
is a hint: it was written with the delays of that time, and has no checksum. The store timestamp of the record decides,
so no message is delivered early; if the wall clock was set back, `ObservedEnds` decides. A clock that is set forward
makes messages due, as for every program that reads it.

A pass delivers one slice of every level with due messages, then the next slice of each, and serves other requests after
every slice: a level that is an hour behind delays another one by a few slices. When no message is due, the service
sleeps until the next one is, but at most ``TICK_S``, and at least ``PAUSE_S``, so that messages with different due
times are delivered together. ``progress`` holds the delivered offsets.
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
"""The longest sleep. A message that arrives meanwhile is not due before its end, except with a delay of 0 s."""
PAUSE_S: Final = 0.01
"""The shortest sleep: how late a message may be, so that those due just after it are delivered with it."""
SLICE_MESSAGES_MAX: Final = 128
"""Limit of the messages of one level that are delivered before other work."""
SLICE_BYTES_MAX: Final = 1024 * 1024
"""Limit of the bytes of these messages."""
FULL_RETRY_S: Final = 1.0
"""The pause after the store has refused copies of a level, as on a full disk."""
HEALED: Final = 0
"""Used instead of a level for healed messages of all levels."""

SKIPPED_MAX: Final = 10_000
"""How many skipped messages are remembered: the same limit as for damaged ranges."""

OBSERVATIONS_MAX: Final = 16
"""The limit of observed ends of one level within its delay. More of them cost memory and gain little."""

COPIES_MAX: Final = 64
"""The limit of messages with one unique key that are examined: each retry of a message has the same key."""


@final
class ObservedEnds:
    """The ends of the levels' queues at past times: a second proof that a message has waited for its delay.

        queue of a level  [ ...... observed 9 s ago ...... observed 5 s ago ...... end )
                                                   `- all of this has waited 5 s, even if the clock was changed

    The first proof is the store timestamp of the record, compared with the wall clock. That clock may be set back, by
    an hour, or by a year if it was wrong. Store timestamps never go back, so messages that are stored afterwards seem
    to come from the future, and would wait for their delay and an hour. A message that was in its queue at one moment
    of the monotonic clock has waited for its delay one delay later; so such a message is late by
    `1 / OBSERVATIONS_MAX` of its delay at most, and never early.

    Observations are lost at a restart, after which they start again. Owned by the event loop.
    """

    def __init__(self) -> None:
        self._observed: dict[int, deque[tuple[int, int]]] = {}
        """Level -> (monotonic time, end of its queue), both growing."""

        self._waited: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"<ObservedEnds {self._waited}>"

    def forget(self) -> None:
        """Forget all observations, since the queues may have been replaced."""
        self._observed.clear()
        self._waited.clear()

    def observe(self, level: int, end: int, *, now_ms: int, delay_ms: int) -> int:
        """Record the present end of a level's queue; return the offset before which all messages have waited."""
        observed = self._observed.setdefault(level, deque())
        known_end = max(self._waited.get(level, 0), observed[-1][1] if observed else 0)
        if end < known_end:  # the queue was truncated: the observations are invalid
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
    """Delivers due messages of all delay levels. Owned by the event loop; `run` is its task."""

    def __init__(self, core: BrokerCore) -> None:
        self.progress: Final = DelayProgress(core)
        self.rounds = 0
        """The number of rounds that ended with no more messages due, except at levels that wait for a retry."""

        self._core: Final = core
        self._observed_ends: Final = ObservedEnds()
        self._known_due: dict[int, tuple[int, int]] = {}
        """Level -> (offset, due time) from a record whose unit holds a different due time."""

        self._retry_at: dict[int, float] = {}
        """Level, or ``HEALED`` -> loop time of the next attempt, after the store has refused one."""

        self._skipped: set[tuple[int, int]] = set()
        """(level, offset) of messages that were damaged, or had expired, when they were due, since the start."""

        self.healed: Final = HealedRecords(core.store, names.SCHEDULE_TOPIC)
        self._next_ms = 0
        """The earliest due time of all levels that the present pass has found."""

    def __repr__(self) -> str:
        return f"<DelayService rounds={self.rounds} {self.progress!r}>"

    def on_log_changed(self, end: int) -> None:
        """Forget healed and skipped messages from ``end`` on: other messages will be stored at their offsets."""
        self.healed.on_log_changed(end)
        ends = {level: queue_end for level, (_, queue_end) in self.positions().items()}
        self._skipped = {(level, offset) for level, offset in self._skipped if offset < ends.get(level, 0)}

    def positions(self) -> dict[int, tuple[int, int]]:
        """Return (delivered offset, end of the queue) of every level that was used."""
        found: dict[int, tuple[int, int]] = {}
        for level in self._levels():
            queue = self._core.store.queues.get(names.SCHEDULE_TOPIC, level - 1)
            if queue is not None:
                found[level] = (self.progress.next_offset(level), queue.end)
        return found

    def _levels(self) -> range:
        return range(1, len(self._core.settings.store.delay_levels_ms) + 1)

    async def run(self) -> None:
        """Deliver due messages until cancelled."""
        while True:
            if self._core.gate.write_refusal is not None:  # only a master delivers
                self._known_due.clear()  # the log may have been replaced when this broker is the master again
                self._observed_ends.forget()
                await asyncio.sleep(TICK_S)
                continue
            now_ms = self._core.clock.wall_ms()
            self._next_ms = now_ms + int(TICK_S * 1000)
            if self.healed.offsets and self._retry_at.get(HEALED, 0.0) <= asyncio.get_running_loop().time():
                self._deliver_healed()
            if await self._pass():
                continue
            self.rounds += 1
            await asyncio.sleep(min(TICK_S, max(PAUSE_S, (self._next_ms - now_ms) / 1000)))

    async def _pass(self) -> bool:
        """Deliver a slice of every level with due messages. True if more messages are due."""
        loop = asyncio.get_running_loop()
        is_more = False
        for level in self._levels():
            if self._retry_at.get(level, 0.0) > loop.time():
                continue
            before = self.progress.next_offset(level)
            try:
                is_more |= self._deliver_slice(level)
            except BrokerError as error:
                log.warning(
                    "failed to deliver delayed messages; will retry", extra={"level": level, "reason": str(error)}
                )
                self._retry_at[level] = loop.time() + FULL_RETRY_S
                continue
            if self.progress.next_offset(level) != before:
                await asyncio.sleep(0)
                if self._core.gate.write_refusal is not None:
                    return False
        return is_more

    def _deliver_slice(self, level: int) -> bool:
        """Deliver due messages of one level, at most a slice. True if more of them are due."""
        store, progress = self._core.store, self.progress
        queue = store.queues.get(names.SCHEDULE_TOPIC, level - 1)
        if queue is None:
            return False
        offset = max(progress.next_offset(level), queue.min_offset)
        now_ms = self._core.clock.wall_ms()
        delay_ms = self._core.settings.store.delay_levels_ms[level - 1]
        monotonic_ms = self._core.clock.monotonic_ms()
        waited = self._observed_ends.observe(level, queue.end, now_ms=monotonic_ms, delay_ms=delay_ms)
        count = self._count_due(level, queue, offset, now_ms=now_ms, delay_ms=delay_ms)
        count = max(count, min(SLICE_MESSAGES_MAX, waited - offset))
        if not count:
            return False
        result = store.read(
            names.SCHEDULE_TOPIC, level - 1, offset, count_max=count, bytes_max=SLICE_BYTES_MAX, accept=None
        )
        if not result.body:  # the messages have expired, or are damaged, which the reader has reported
            if result.next_offset <= offset:
                return False
            if len(self._skipped) < SKIPPED_MAX:
                self._skipped.update((level, passed) for passed in range(offset, result.next_offset))
            progress.advance(level, result.next_offset)
            return True
        due = due_drafts(
            result.body, delay_ms=delay_ms, now_ms=now_ms, waited_before=waited, find_queue=self._find_target_queue
        )
        if due.drafts:
            store.append(due.drafts)
            self._core.stats.count_put(len(due.drafts), store)
        end = offset if due.end is None else due.end
        if end > offset:
            progress.advance(level, end)
        if due.next_ms is not None:
            self._known_due[level] = (end, due.next_ms)
            self._next_ms = min(self._next_ms, due.next_ms)
            return False
        return end > offset and (count >= SLICE_MESSAGES_MAX or end < offset + count)

    def _deliver_healed(self) -> None:
        """Deliver messages that were damaged when they were due, and are healed."""
        try:
            self.healed.process(self._deliver_once)
        except BrokerError as error:  # the index is incomplete, or the store refuses: retried in a later round
            facts = {"offset": min(self.healed.offsets), "reason": str(error)}
            log.info("failed to deliver healed delayed message; will retry", extra=facts)
            self._retry_at[HEALED] = asyncio.get_running_loop().time() + FULL_RETRY_S

    def _deliver_once(self, record: bytes) -> None:
        store, message = self._core.store, decode_record(record)
        level, offset = message.queue_id + 1, message.queue_offset
        if offset >= self.progress.next_offset(level) or not self._was_skipped(level, message):
            return
        due = due_drafts(record, delay_ms=0, now_ms=message.store_timestamp_ms, find_queue=self._find_target_queue)
        store.append(due.drafts)
        self._core.stats.count_put(len(due.drafts), store)
        self._skipped.discard((level, offset))
        log.warning("delivered healed delayed message late", extra={"level": level, "offset": offset})

    def _was_skipped(self, level: int, message: StoredMessage) -> bool:
        """Whether a message of a level was skipped when it was due, so that its topic has no copy of it.

        A restart forgets skipped messages, so a copy is searched by the unique key.
        """
        if (level, message.queue_offset) in self._skipped:
            return True
        unique, topic = message.properties.get(keys.UNIQUE_KEY), message.properties.get(keys.REAL_TOPIC)
        if not unique or not topic or not self._core.store.has_index:
            return False
        found, _, _ = self._core.store.keys.records(topic, unique, COPIES_MAX, 0, 1 << 62)
        return not any(_is_copy(decode_record(record), message, topic) for record in found)

    def _find_target_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the destination queue; create it, readable for consumers, if it is missing."""
        self._core.topics.ensure_queue(topic, queue_id)
        return self._core.store.queues.get_or_create(topic, queue_id)

    def _count_due(self, level: int, queue: ConsumeQueue, offset: int, *, now_ms: int, delay_ms: int) -> int:
        """Return how many messages from ``offset`` on are due by their units, at most a slice."""
        known_offset, known_ms = self._known_due.get(level, (-1, 0))
        if known_offset == offset and known_ms > now_ms:
            self._next_ms = min(self._next_ms, known_ms)
            return 0
        count = 0
        for _, size, due_ms in queue.units(offset, offset + SLICE_MESSAGES_MAX):
            # A due time beyond this level's delay is not reliable: the record decides.
            if size != FILLER_SIZE and now_ms < due_ms <= now_ms + delay_ms:
                self._next_ms = min(self._next_ms, due_ms)
                break
            count += 1
        return count


def _is_copy(message: StoredMessage, delayed: StoredMessage, topic: str) -> bool:
    """Whether a message is the delivered copy of a delayed one. A retry of the message has another count."""
    own = message.topic, message.born_timestamp_ms, message.born_host, message.reconsume_times
    return own == (topic, delayed.born_timestamp_ms, delayed.born_host, delayed.reconsume_times)
