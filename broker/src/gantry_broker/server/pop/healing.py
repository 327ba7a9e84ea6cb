"""Applies records of pop consumption that were damaged when they were read, once a replica has healed them.

    revive queue   [ ... ck (damaged, skipped) ... ack ... ck ... | end of what was read )
                         healed: `- read again from here, for what later records change for the same messages

A start that finds a checkpoint damaged waits for a replica up to ``healWait``, and then continues without it, so that
its messages are invisible to the group for good. When it is healed, its messages become open again, except for those
that later records in the log ack or pop again, and those that the next pop finds anyway. An ack of such a message that
came while its checkpoint was damaged had no effect, so the message is delivered again.

A healed ack takes effect if its checkpoint is open. A healed reset of a group ends the checkpoints before it.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from typing import Final, final

from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.healed_records import HealedRecords
from gantry_broker.server.pop import records
from gantry_broker.server.pop.checkpoints import Checkpoint, PopQueue
from gantry_broker.server.pop.journal import PopJournal
from gantry_broker.server.pop.log_reader import SLICE_BYTES_MAX, SLICE_MESSAGES_MAX
from gantry_broker.server.pop.records import REVIVE_QUEUES, AckRecord, CheckpointRecord, PopRecord, PositionRecord
from gantry_wire.message import StoredMessage, decode_record

log = logging.getLogger(__name__)


@final
@dataclass(slots=True)
class HealedCheckpoint:
    """A checkpoint that was skipped, and its messages that later records ack or pop again."""

    checkpoint: Checkpoint
    record_offset: int
    """The offset of its record in the revive queue."""

    scanned: int
    """The offset of the next record of the revive queue to examine."""

    generation: int
    """The generation of its queue when the checkpoint was healed."""

    done: int = 0
    """The messages that are acked or popped again, as bits."""

    @property
    def is_obsolete(self) -> bool:
        """Whether none of its messages is open, or its group was reset meanwhile."""
        queue, everything = self.checkpoint.queue, (1 << len(self.checkpoint.offsets)) - 1
        return self.done == everything or self.generation != queue.generation

    def examine(self, record: PopRecord) -> None:
        """Mark the messages as done that a later record acks, pops again or makes void."""
        checkpoint, queue = self.checkpoint, self.checkpoint.queue
        if (record.topic, record.group, record.queue_id) != (queue.topic, queue.group, queue.queue_id):
            return
        if isinstance(record, PositionRecord):
            self.done = (1 << len(checkpoint.offsets)) - 1 if record.is_void else self.done
        elif isinstance(record, CheckpointRecord) or (record.start_offset, record.pop_time) == checkpoint.key:
            self.done |= checkpoint.bits_of(record.offsets)

    def finish(self) -> int:
        """Return the messages that are done, with those that are invisible now or that the next pop finds."""
        queue = self.checkpoint.queue
        done = self.done
        for other in queue.open.values():
            done |= self.checkpoint.bits_of(other.offsets)
        next_offset = queue.next_offset or 0
        return done | self.checkpoint.bits_of(offset for offset in self.checkpoint.offsets if offset >= next_offset)


@final
class HealedPops:
    """Applies healed records, a slice at a time. Owned by the event loop."""

    def __init__(self, core: BrokerCore, journal: PopJournal) -> None:
        self._core: Final = core
        self._journal: Final = journal
        self._healed: Final = HealedRecords(core.store, journal.topic)
        self._waiting: Final[deque[HealedCheckpoint]] = deque()
        self._state = journal.state
        """The state to which ``_waiting`` belongs."""

    def __repr__(self) -> str:
        return f"<HealedPops waiting={len(self._waiting)} {self._healed!r}>"

    def on_log_changed(self, end: int) -> None:
        """Forget healed records from ``end`` on, where the log ends now: other records will be appended there."""
        self._healed.on_log_changed(end)

    def step(self) -> bool:
        """Examine a slice of records. True if there may be more. The journal is ready. Raises errors of the store."""
        if self._state is not self._journal.state:  # it was read again, with the records that are healed
            self._state = self._journal.state
            self._waiting.clear()
        self._healed.process(self._take)
        if not self._waiting:
            return False
        first = self._waiting[0]
        if not self._scan(first):
            return False
        if self._is_scanned(first):
            self._waiting.popleft()
            self._reopen(first)
        return bool(self._waiting)

    def _take(self, data: bytes) -> None:
        """Apply a healed record that was skipped, or keep its checkpoint until later records are examined."""
        message, state = decode_record(data), self._journal.state
        number, offset = message.queue_id, message.queue_offset
        record = _parse(message)
        if record is None or number >= REVIVE_QUEUES or offset >= state.read_offsets[number]:
            return
        queue = state.queue(record.topic, record.group, record.queue_id)
        if isinstance(record, AckRecord):
            times = self._journal.times
            state.apply(record, offset, times.monotonic_ms(), wall_lead_ms=times.wall_lead_ms())
        elif isinstance(record, PositionRecord):
            if record.is_void:
                _end_before(queue, offset, self._journal)
        elif record.offsets and (record.start_offset, record.pop_time) not in queue.open:
            checkpoint = Checkpoint(queue, record.start_offset, record.pop_time, record.invisible_time, record.offsets)
            checkpoint.broker_name, checkpoint.is_suspended = record.broker_name, record.is_suspended
            checkpoint.revive_queue = number
            self._waiting.append(HealedCheckpoint(checkpoint, offset, offset + 1, queue.generation))

    def _scan(self, healed: HealedCheckpoint) -> bool:
        """Examine a slice of the records after a checkpoint. False if one of them may still be healed."""
        number, store = healed.checkpoint.revive_queue, self._core.store
        if self._is_scanned(healed):
            return True
        result = store.read(
            self._journal.topic, number, healed.scanned, count_max=SLICE_MESSAGES_MAX, bytes_max=SLICE_BYTES_MAX,
            accept=None,
        )  # fmt: skip
        if result.is_waiting and not result.body:
            return False
        position = 0
        while position < len(result.body):
            message = decode_record(result.body, position)
            position += message.size
            record = _parse(message)
            if record is not None:
                healed.examine(record)
        healed.scanned = max(result.next_offset, healed.scanned + 1)
        return True

    def _is_scanned(self, healed: HealedCheckpoint) -> bool:
        queue = self._core.store.queues.get(self._journal.topic, healed.checkpoint.revive_queue)
        return queue is None or healed.scanned >= queue.readable_end

    def _reopen(self, healed: HealedCheckpoint) -> None:
        """Open the messages of a checkpoint that are not done, and store a state from which a start finds it."""
        checkpoint, state = healed.checkpoint, self._journal.state
        queue = checkpoint.queue
        healed.done = healed.finish()
        if healed.is_obsolete or checkpoint.key in queue.open:
            return
        checkpoint.due_ms = self._journal.times.due_ms(checkpoint.pop_time_ms, checkpoint.invisible_ms)
        state.open(checkpoint, healed.record_offset)
        state.ack(checkpoint, healed.done)
        facts = {"topic": queue.topic, "queue": queue.queue_id, "group": queue.group}
        log.warning("reopened healed pop checkpoint", extra={**facts, "messages": len(checkpoint.unacked)})
        self._journal.store_state()


def _parse(message: StoredMessage) -> PopRecord | None:
    try:
        return records.parse_record(message)
    except ValueError as error:
        facts = {"offset": message.queue_offset, "queue": message.queue_id, "reason": str(error)}
        log.error("unreadable pop record; skipping it", extra=facts)
        return None


def _end_before(queue: PopQueue, record_offset: int, journal: PopJournal) -> None:
    """Forget the checkpoints before a healed reset of the group."""
    for checkpoint in list(queue.open.values()):
        if checkpoint.record_offset < record_offset:
            journal.state.ack(checkpoint, (1 << len(checkpoint.offsets)) - 1)
