"""The state of pop consumption at the master: read from the log once, and kept with its own records.

The log decides. After a start or a promotion the state is read from the log (`log_reader`). Nothing is popped, acked or
delivered again before all records from before the promotion are read: a message that seems open may have been acked at
another master.

While this broker is the master, its own appends are applied at once and are not read again. Records that something else
has stored there, such as a RocketMQ broker's timers, are read in between.

All appends of one turn of the event loop are one batch: checkpoints first, then acks. So a crash in the middle of a
batch leaves checkpoints without acks, whose messages are delivered again, and never an ack that lacks its checkpoint.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, final

from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.offsets import ConsumerOffsets, OffsetDocument
from gantry_broker.server.core.stamped_documents import StampedDocuments
from gantry_broker.server.pop import records
from gantry_broker.server.pop.checkpoints import SEPARATOR, PopQueue, PopState
from gantry_broker.server.pop.log_reader import PopLogReader
from gantry_broker.server.pop.records import REVIVE_QUEUES, STATE_QUEUE
from gantry_broker.server.pop.times import PopTimes
from gantry_broker.store.draft import Draft
from gantry_wire import names

log = logging.getLogger(__name__)

STATE_INTERVAL_MS: Final = 10_000
"""The interval of records of kind ``state``: a start reads the records since the last but one, for which open
checkpoints are no reason to read more, unless there are very many (`open_records.OLD_MAX`)."""

POSITIONS_MAX: Final = 100_000
"""The limit of queues in one state: about a megabyte after compression. Others keep their committed offset only."""


class Progress(NamedTuple):
    """The end of a pop, which becomes the committed offset once the log is durable up to ``log_end``."""

    log_end: int
    queue: PopQueue
    generation: int
    next_offset: int


@final
class PopJournal:
    """The state of pop consumption as far as the log was read, and its restart positions. Owned by the event loop."""

    def __init__(self, core: BrokerCore) -> None:
        self._core: Final = core
        self.times: Final = PopTimes(core.clock)
        self._reader = PopLogReader(core, self.times)
        self.topic: Final = self._reader.topic
        """The topic of the records."""

        self._epoch = -1
        """The epoch for which ``state`` was read."""

        self._promotion_end = 0
        """The end of the log when this broker became the master."""

        self._is_caught_up = False
        """Whether the queues were read up to ``_promotion_end``."""

        self._lacks_records = False
        """Whether reading waits for slaves to confirm all records from before the promotion."""

        self._unsettled: Final[deque[Progress]] = deque()
        self._unsettled_starts: Final[deque[tuple[int, list[int]]]] = deque()
        """(end in the log, starts of the state that ends there)."""

        self._state_at_ms: int | None = None
        self._is_changed = False
        """Whether records were appended since the last one of kind ``state``."""

        self.on_ready: Final[list[Callable[[], None]]] = []
        """Called when the state is complete after a start or a promotion."""

    def __repr__(self) -> str:
        return f"<PopJournal {self.state!r} epoch={self._epoch} {'ready' if self._is_caught_up else 'reading'}>"

    @property
    def state(self) -> PopState:
        """The state of pop consumption. It is only kept up to date while this broker is the master."""
        return self._reader.state

    @property
    def is_waiting(self) -> bool:
        """Whether reading waits, for a replica to heal the next record, or for slaves to confirm all records."""
        return self._lacks_records or self._reader.is_waiting

    @property
    def is_master(self) -> bool:
        """Whether this broker is the master and may append to the log, which no other thread is changing."""
        return self._core.gate.may_append

    @property
    def is_ready(self) -> bool:
        """Whether all records from before the promotion are read, so that the state may be changed."""
        return self._is_caught_up and self._core.store.identity.epoch == self._epoch and self.is_master

    @property
    def is_reading(self) -> bool:
        """Whether a part of the records from before the promotion is read: the task reads the others."""
        return self._reader.is_begun and not self._is_caught_up and self._core.store.identity.epoch == self._epoch

    @property
    def is_used(self) -> bool:
        """Whether the log has, or may have, records of pop consumption."""
        return any(self._core.store.queues.get(self.topic, number) is not None for number in range(REVIVE_QUEUES))

    @property
    def unsettled_count(self) -> int:
        """The number of pops whose ends are not committed yet, since the log is not durable up to their checkpoints."""
        return len(self._unsettled)

    # -- reading -------------------------------------------------------------------------------------------------------

    def read_next(self) -> bool:
        """Read a slice of the revive queues. True if the state is complete. Callers are the master."""
        self._follow_epoch()
        reader = self._reader
        # Checked before reading, since the dispatched position grows meanwhile.
        self._lacks_records = self._core.store.dispatcher.dispatched < self._promotion_end
        if not reader.is_begun:
            if self._lacks_records or not reader.begin():
                return False
            self._is_changed = not reader.has_found_state and self.is_used
        self._lacks_records = False
        if not reader.read_slice():
            return False
        if not self._is_caught_up:
            self._is_caught_up = True
            self._prove_offsets()
            log.info("read pop checkpoints", extra={"queues": len(self.state.queues), "open": self.state.open_count})
            for notify in self.on_ready:
                notify()
        return True

    def _follow_epoch(self) -> None:
        """Read the state again after a promotion, since the log may have changed."""
        epoch = self._core.store.identity.epoch
        if epoch == self._epoch:
            return
        self._reader, self._epoch = PopLogReader(self._core, self.times), epoch
        self._is_caught_up = False
        self._promotion_end = self._core.store.log.wrote
        self._unsettled.clear()
        self._core.offsets.popped_ends.clear()
        self._unsettled_starts.clear()
        self._state_at_ms = None
        self._is_changed = False

    def _prove_offsets(self) -> None:
        """Set back committed offsets whose checkpoints the log may have lost, to where the log proves a pop ended.

        Without any pop in the log, to the start of the queue: messages may be delivered twice, and none is skipped.
        """
        offsets = self._core.offsets
        for key in offsets.unproven:
            topic, _, group = key.partition(SEPARATOR)
            for queue_id, committed in offsets.offsets_of(key).items():
                known = self.state.queues.get((topic, group, queue_id))
                proven = None if known is None else known.next_offset
                if proven is None:
                    proven = self._core.readable_range(topic, queue_id)[0]
                if topic != self.topic and committed > proven:
                    facts = {"topic": topic, "queue": queue_id, "group": group, "old": committed, "new": proven}
                    log.warning("committed offset of popped messages is not proven by the log; set back", extra=facts)
                    offsets.commit(group, topic, queue_id, proven)
        offsets.unproven.clear()

    # -- appending -----------------------------------------------------------------------------------------------------

    def draft(self, number: int, tag: str, body: bytes) -> Draft:
        """Return the draft of a record for a revive queue, or for the queue of states."""
        core = self._core
        core.topics.ensure(self.topic, REVIVE_QUEUES)
        queue = core.store.queues.get_or_create(self.topic, number)
        return records.record_draft(queue, tag, body, host=core.store_host, now_ms=core.clock.wall_ms())

    def note_appended(self, number: int, record_offset: int) -> None:
        """Record that an own record was appended, which the caller has applied to the state."""
        self._is_changed = True
        self._reader.skip(number, record_offset)

    def note_progress(self, queue: PopQueue, next_offset: int) -> None:
        """Commit ``next_offset`` for the group, once the log is durable up to its present end."""
        self._unsettled.append(Progress(self._core.store.log.wrote, queue, queue.generation, next_offset))
        self._core.offsets.popped_ends.record(_offset_key(queue), queue.queue_id, next_offset)

    # -- committed offsets, and the state for the next start -----------------------------------------------------------

    def settle(self) -> None:
        """Commit the ends of pops whose checkpoints no fault can remove any more.

        A committed offset before that could survive its checkpoint, and the messages would be skipped.
        """
        core, offsets = self._core, self._core.offsets
        durable = min(core.store.log.flushed, core.store.positions.confirmed)
        while self._unsettled and self._unsettled[0].log_end <= durable:
            _, queue, generation, next_offset = self._unsettled.popleft()
            if generation == queue.generation:
                offsets.commit_popped(queue.group, queue.topic, queue.queue_id, next_offset)
            else:
                offsets.popped_ends.discard(_offset_key(queue), queue.queue_id, next_offset)
        while self._unsettled_starts and self._unsettled_starts[0][0] <= durable:
            for number, start in enumerate(self._unsettled_starts.popleft()[1]):
                if start > 0:  # RocketMQ's offset is that of the last record which it has processed
                    offsets.commit_popped(names.REVIVE_GROUP, self.topic, number, start - 1)

    def store_state_if_due(self) -> None:
        """Append the state to the log, if it has changed and the last one is old. Raises errors of the store."""
        now_ms = self._core.clock.monotonic_ms()
        if self._is_changed and (self._state_at_ms is None or now_ms >= self._state_at_ms + STATE_INTERVAL_MS):
            self._state_at_ms = now_ms
            self.store_state()

    def store_state(self) -> None:
        """Append the present state to the log, from which the next start reads. Raises errors of the store."""
        state, kept = self.state.record(), 0
        for key, positions in list(state.positions.items()):
            kept += len(positions)
            if kept > POSITIONS_MAX:
                del state.positions[key]
        self._core.store.append([self.draft(STATE_QUEUE, records.STATE_TAG, records.encode_state(state))])
        self._unsettled_starts.append((self._core.store.log.wrote, state.starts))
        self._is_changed = False

    def on_log_changed(self) -> None:
        """Read the state again: the log ends at another offset now, and other records will be appended there."""
        self._epoch = -1


def _offset_key(queue: PopQueue) -> str:
    return f"{queue.topic}{SEPARATOR}{queue.group}"


@final
class PopProgress:
    """The committed offsets of groups that pop, on a slave, as far as its own log supports them.

    A group's offset is the end of what it has popped: the messages before it belong to checkpoints, which are in
    the log. A slave that applied an offset before its log has the checkpoint, and became the master, would deliver
    these messages to no member of the group. So a master's offsets of such groups wait until the log has the end
    that they are stamped with; until then the smaller one of the own offset and the master's counts. Reading too
    much costs only a second delivery.

    Owned by the event loop.
    """

    def __init__(self, offsets: ConsumerOffsets) -> None:
        self._offsets: Final = offsets
        self._waiting: Final = StampedDocuments[dict[str, dict[int, int]]]()
        """The master's offsets of groups that pop, by topic@group and queue."""

    def receive(self, document: OffsetDocument, end: int) -> None:
        """Replace the offsets of groups that pop in a master's document, stamped with ``end``, by safe ones."""
        waiting: dict[str, dict[int, int]] = {}
        for key in self._offsets.popped.union(document.popped or ()):
            offsets = waiting[key] = document.offset_table.pop(key, {})
            own = self._offsets.offsets_of(key)
            safe = {queue: min(offset, own[queue]) for queue, offset in offsets.items() if queue in own}
            if safe:
                document.offset_table[key] = safe
        document.popped = sorted(waiting) or None
        self._waiting.receive(waiting, end)

    def apply_up_to(self, position: int) -> None:
        """Apply the offsets for a log that equals the master's up to ``position``."""
        newest = self._waiting.take_reached(position)
        if newest is not None:
            for key, offsets in newest[1].items():
                self._offsets.replace(key, offsets)
                self._offsets.unproven.discard(key)

    def become_master(self, position: int) -> None:
        """Apply the offsets up to the end of the log, and forget later ones: this broker is the master."""
        self.apply_up_to(position)
        self._waiting.clear()

    def begin_copying(self) -> None:
        """Forget what waits for the log: a stream begins, perhaps from another master, and sends all offsets.

        The log may have lost checkpoints, so the own offsets are not proven until those of the master are applied.
        """
        self._waiting.clear()
        self._offsets.unproven.update(self._offsets.popped)
