"""The state of pop consumption in memory, as it follows from the records of the log. Pure.

    queue of a group   [ ...... popped ...... | next pop ...... )
                          [ck 10..13]  [ck 14..16]               14, 16 acked: 15 is delivered again when 14..16 is over
                          all acked: forgotten

Applying a record twice changes nothing, so that a part of a revive queue may be read again. A checkpoint is forgotten
when all of its messages are acked; a message that is delivered again counts as acked.

A summary of the state (`record`) says from where a start reads, and has old open checkpoints (`open_records`).
Owned by the event loop.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, final

from gantry_broker.server.pop.open_records import COMPACTED_FROM, OpenRecords
from gantry_broker.server.pop.records import (
    REVIVE_QUEUES,
    AckRecord,
    CheckpointRecord,
    OldCheckpoint,
    PopRecord,
    PositionRecord,
    StateRecord,
    revive_queue_of,
)
from gantry_broker.server.pop.times import due_time

SEPARATOR: Final = "@"
"""Separates topic and group in keys of a state."""

FOREIGN_GRACE_MS: Final = 3_000
"""How long a checkpoint of a RocketMQ broker stays open after its time. Its acks are timer messages, too, which are due
at that time, rounded up to a second. RocketMQ waits for them two seconds."""

CheckpointKey = tuple[int, int]
"""The start offset and the time of a pop, which name a checkpoint of a queue."""


@final
class Checkpoint:
    """The messages of one pop from one queue that are invisible to the group."""

    __slots__ = ("acked", "broker_name", "due_ms", "invisible_ms", "is_foreign", "is_suspended", "offsets",
                 "pop_time_ms", "queue", "record_offset", "revive_queue", "start_offset")  # fmt: skip

    def __init__(
        self, queue: PopQueue, start_offset: int, pop_time_ms: int, invisible_ms: int, offsets: Sequence[int]
    ) -> None:
        self.queue: Final = queue
        self.start_offset: Final = start_offset
        self.pop_time_ms: Final = pop_time_ms
        self.invisible_ms: Final = invisible_ms
        self.offsets: Final = offsets
        """The queue offsets of its messages, growing."""

        self.acked = 0
        """The messages that are done: bit ``n`` stands for ``offsets[n]``."""

        self.revive_queue = queue.revive_queue
        """The revive queue that has its record and its acks; RocketMQ's brokers take the queues in rotation."""

        self.record_offset = -1
        """The offset of its record in the revive queue."""

        self.due_ms = pop_time_ms + invisible_ms
        """When its messages are delivered again, on the clock of deadlines: see `due_time`."""

        self.broker_name: str | None = None
        self.is_foreign = False
        """Whether a RocketMQ broker has stored it."""

        self.is_suspended = False
        """Whether the delivery did not fail, so that the next one is not counted."""

    def __repr__(self) -> str:
        return f"<Checkpoint {self.queue!r} {self.start_offset}@{self.pop_time_ms} open={self.unacked}>"

    @property
    def key(self) -> CheckpointKey:
        return self.start_offset, self.pop_time_ms

    @property
    def is_done(self) -> bool:
        """Whether all messages are acked."""
        return self.acked == (1 << len(self.offsets)) - 1

    @property
    def unacked(self) -> list[int]:
        """The queue offsets of the messages that are not acked."""
        return [offset for index, offset in enumerate(self.offsets) if not self.acked >> index & 1]

    @property
    def distances(self) -> list[int] | None:
        """The distance of each message from the start offset; None if they follow each other from there on."""
        offsets, start = self.offsets, self.start_offset
        is_dense = isinstance(offsets, range) and offsets.start == start
        return None if is_dense else [offset - start for offset in offsets]

    def bit_of(self, offset: int) -> int:
        """Return the bit of the message at a queue offset; 0 if it is none of this checkpoint."""
        offsets = self.offsets
        index = offset - offsets.start if isinstance(offsets, range) else bisect_left(offsets, offset)
        return 1 << index if 0 <= index < len(offsets) and offsets[index] == offset else 0

    def bits_of(self, offsets: Iterable[int]) -> int:
        """Return the bits of several messages."""
        bits = 0
        for offset in offsets:
            bits |= self.bit_of(offset)
        return bits

    def offsets_of(self, bits: int) -> list[int]:
        """Return the queue offsets that these bits stand for."""
        if bits and not bits & (bits - 1):  # one message, as most acks
            return list(self.offsets[bits.bit_length() - 1 : bits.bit_length()])
        return [offset for index, offset in enumerate(self.offsets) if bits >> index & 1]


@final
class PopQueue:
    """What a group has popped from one queue of a topic."""

    __slots__ = ("generation", "group", "inflight_count", "next_offset", "open", "queue_id", "revive_queue", "topic")

    def __init__(self, topic: str, group: str, queue_id: int) -> None:
        self.topic: Final = topic
        self.group: Final = group
        self.queue_id: Final = queue_id
        self.revive_queue: Final = revive_queue_of(topic, group, queue_id)
        self.next_offset: int | None = None
        """Where the next pop starts to read; None if it is unknown."""

        self.open: Final[dict[CheckpointKey, Checkpoint]] = {}
        self.inflight_count = 0
        """The number of messages that are popped and not acked."""

        self.generation = 0
        """Counts the times that the checkpoints became void."""

    def __repr__(self) -> str:
        return f"<PopQueue {self.topic}/{self.queue_id} {self.group} next={self.next_offset} open={len(self.open)}>"


def is_open(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint has messages that are not acked, and is not void."""
    return checkpoint.queue.open.get(checkpoint.key) is checkpoint


@final
class PopState:
    """All queues of all groups that pop. Owned by the event loop."""

    def __init__(
        self,
        start: StateRecord | None = None,
        starts: Sequence[int] = (0,) * REVIVE_QUEUES,
        *,
        now_ms: int = 0,
        wall_lead_ms: int = 0,
    ) -> None:
        """Begin with a state of the log, or, without one, at these offsets of the revive queues.

        ``now_ms`` and ``wall_lead_ms`` are the times as for ``apply``.
        """
        self.queues: Final[dict[tuple[str, str, int], PopQueue]] = {}
        self.inflight_count = 0
        """The number of messages that are popped and not acked, of all queues."""

        self._known_ends: Final = list(starts if start is None else start.ends)
        """For each revive queue, the offset up to which the first state has the positions."""

        recent = None if start is None else start.recent_starts
        self.read_offsets: Final = list(recent or (starts if start is None else start.starts))
        """For each revive queue, the offset of the next record to apply."""

        self.open_count = 0
        """The number of open checkpoints."""

        self._records: Final = [OpenRecords[Checkpoint](is_open, end) for end in self._known_ends]
        """For each revive queue the open checkpoints in the order of their records."""

        self._due: list[tuple[int, int, Checkpoint]] = []
        self._due_count = 0
        if start is not None:
            self._begin(start, now_ms, wall_lead_ms)

    def __repr__(self) -> str:
        return f"<PopState queues={len(self.queues)} inflight={self.inflight_count} read={self.read_offsets}>"

    def _begin(self, start: StateRecord, now_ms: int, wall_lead_ms: int) -> None:
        for key, positions in start.positions.items():
            topic, _, group = key.partition(SEPARATOR)
            for queue_id, offset in positions.items():
                self.queue(topic, group, queue_id).next_offset = offset
        found: list[tuple[OldCheckpoint, CheckpointRecord]] = []
        for key, queues in start.old.items():
            topic, _, group = key.partition(SEPARATOR)
            for queue_id, checkpoints in queues.items():
                found += [(one, one.record(topic, group, queue_id)) for one in checkpoints]
        for one, record in sorted(found, key=lambda pair: pair[0].record_offset):
            foreign_queue = one.foreign_queue if one.foreign_queue >= 0 else None
            due_ms = due_time(one.pop_time, one.invisible_time, now_ms=now_ms, wall_lead_ms=wall_lead_ms)
            queue = self.queue(record.topic, record.group, record.queue_id)
            self._open_recorded(queue, record, one.record_offset, due_ms, foreign_queue)

    def queue(self, topic: str, group: str, queue_id: int) -> PopQueue:
        """Return the state of a queue; it is created if it is missing."""
        key = topic, group, queue_id
        found = self.queues.get(key)
        if found is None:
            found = self.queues[key] = PopQueue(topic, group, queue_id)
        return found

    def find(self, topic: str, group: str, queue_id: int, key: CheckpointKey) -> Checkpoint | None:
        """Return the open checkpoint with this key; None if all of its messages are acked, or there was none."""
        queue = self.queues.get((topic, group, queue_id))
        return None if queue is None else queue.open.get(key)

    # -- records -------------------------------------------------------------------------------------------------------

    def apply(
        self,
        record: PopRecord,
        record_offset: int,
        now_ms: int,
        *,
        wall_lead_ms: int = 0,
        foreign_queue: int | None = None,
    ) -> None:
        """Apply a record that was read from the log. ``now_ms`` is the present time, on the clock of deadlines.

        ``wall_lead_ms``: how far the wall clock is ahead of that clock.
        ``foreign_queue``: the revive queue of a record that a RocketMQ broker has stored, as a timer message, so that
        it comes just before its checkpoint is over, and out of order. It does not change the next offset, which
        RocketMQ commits by itself.
        """
        queue = self.queue(record.topic, record.group, record.queue_id)
        if isinstance(record, CheckpointRecord):
            due_ms = due_time(record.pop_time, record.invisible_time, now_ms=now_ms, wall_lead_ms=wall_lead_ms)
            self._apply_checkpoint(queue, record, record_offset, due_ms, foreign_queue)
        elif isinstance(record, AckRecord):
            checkpoint = queue.open.get((record.start_offset, record.pop_time))
            if checkpoint is not None:
                self.ack(checkpoint, checkpoint.bits_of(record.offsets))
        else:
            self._apply_position(queue, record, record_offset)

    def _apply_checkpoint(
        self, queue: PopQueue, record: CheckpointRecord, record_offset: int, due_ms: int, foreign_queue: int | None
    ) -> None:
        offsets = record.offsets
        if not offsets or any(a >= b for a, b in pairwise(offsets)):
            raise ValueError("a checkpoint without messages, or whose offsets do not grow")
        if foreign_queue is None and record_offset >= self._known_ends[queue.revive_queue]:
            queue.next_offset = max(queue.next_offset or 0, offsets[-1] + 1)
        self._open_recorded(queue, record, record_offset, due_ms, foreign_queue)

    def _open_recorded(
        self, queue: PopQueue, record: CheckpointRecord, record_offset: int, due_ms: int, foreign_queue: int | None
    ) -> None:
        offsets = record.offsets
        if (record.start_offset, record.pop_time) in queue.open:
            return
        checkpoint = Checkpoint(queue, record.start_offset, record.pop_time, record.invisible_time, offsets)
        checkpoint.broker_name, checkpoint.is_suspended = record.broker_name, record.is_suspended
        checkpoint.due_ms = due_ms
        if foreign_queue is not None:
            checkpoint.revive_queue, checkpoint.is_foreign = foreign_queue, True
            checkpoint.due_ms += FOREIGN_GRACE_MS
        self.open(checkpoint, record_offset)
        self.ack(checkpoint, record.bit_map & (1 << len(offsets)) - 1)

    def _apply_position(self, queue: PopQueue, record: PositionRecord, record_offset: int) -> None:
        if record.is_void:  # checkpoints of another revive queue have acks there
            self.void(queue, before=record_offset)
        if record_offset >= self._known_ends[queue.revive_queue]:
            queue.next_offset = None if record.offset < 0 else record.offset

    # -- changes -------------------------------------------------------------------------------------------------------

    def open(self, checkpoint: Checkpoint, record_offset: int) -> None:
        """Add a checkpoint whose record is at this offset of its revive queue."""
        queue = checkpoint.queue
        checkpoint.record_offset = record_offset
        queue.open[checkpoint.key] = checkpoint
        queue.inflight_count += len(checkpoint.offsets)
        self.inflight_count += len(checkpoint.offsets)
        self.open_count += 1
        self._records[checkpoint.revive_queue].add(checkpoint, self.open_count)
        self.schedule(checkpoint, checkpoint.due_ms)

    def ack(self, checkpoint: Checkpoint, bits: int) -> int:
        """Mark messages as done; return how many of them were not before."""
        queue, new = checkpoint.queue, bits & ~checkpoint.acked
        if not new or not is_open(checkpoint):
            return 0
        checkpoint.acked |= new
        count = new.bit_count()
        queue.inflight_count -= count
        self.inflight_count -= count
        if checkpoint.is_done:
            del queue.open[checkpoint.key]
            self.open_count -= 1
        return count

    def void(self, queue: PopQueue, *, before: int | None = None) -> None:
        """Forget all checkpoints of a queue, or those with records before an offset of its revive queue."""
        for checkpoint in list(queue.open.values()):
            is_own = checkpoint.revive_queue == queue.revive_queue
            if before is None or (is_own and checkpoint.record_offset < before):
                self.ack(checkpoint, (1 << len(checkpoint.offsets)) - 1)
        queue.generation += 1

    # -- due checkpoints -----------------------------------------------------------------------------------------------

    def schedule(self, checkpoint: Checkpoint, due_ms: int) -> None:
        """Let the messages of a checkpoint be delivered again at this time."""
        checkpoint.due_ms = due_ms
        self._due_count += 1
        heapq.heappush(self._due, (due_ms, self._due_count, checkpoint))
        if len(self._due) > COMPACTED_FROM + 2 * self.open_count:
            self._due = [entry for entry in self._due if is_open(entry[2])]
            heapq.heapify(self._due)

    def take_due(self, now_ms: int) -> Checkpoint | None:
        """Return a checkpoint that is over; None if there is none. It is due again only by ``schedule``."""
        due = self._due
        while due and (due[0][0] <= now_ms or not is_open(due[0][2])):
            due_ms, _, checkpoint = heapq.heappop(due)
            if is_open(checkpoint) and due_ms == checkpoint.due_ms:
                return checkpoint
        return None

    def overdue_ms(self, now_ms: int) -> int:
        """Return for how long the messages of the oldest open checkpoint have been due; 0 if none is due."""
        due = self._due
        while due and (not is_open(due[0][2]) or due[0][0] != due[0][2].due_ms):
            heapq.heappop(due)
        return max(0, now_ms - due[0][0]) if due else 0

    def oldest_open(self) -> dict[tuple[str, str, int], int]:
        """Return the offset of the oldest message that is not acked, by topic, group and queue."""
        return {
            key: min(one.unacked[0] for one in queue.open.values()) for key, queue in self.queues.items() if queue.open
        }

    # -- the state for the log -----------------------------------------------------------------------------------------

    def start_of(self, revive_queue: int) -> int:
        """Return the offset of the record of the oldest open checkpoint; without one, of the next record to read."""
        return self._records[revive_queue].oldest(self.read_offsets[revive_queue])

    def record(self) -> StateRecord:
        """Return the state for the log: a summary of the records so far."""
        positions: dict[str, dict[int, int]] = {}
        for (topic, group, queue_id), queue in self.queues.items():
            if queue.next_offset is not None:
                positions.setdefault(f"{topic}{SEPARATOR}{group}", {})[queue_id] = queue.next_offset
        ends = list(self.read_offsets)
        summaries = [one.summarize(end) for one, end in zip(self._records, ends, strict=True)]
        old: dict[str, dict[int, list[OldCheckpoint]]] = {}
        for checkpoint in (one for summary in summaries for one in summary.old):
            queue = checkpoint.queue
            queues = old.setdefault(f"{queue.topic}{SEPARATOR}{queue.group}", {})
            queues.setdefault(queue.queue_id, []).append(_old_checkpoint(checkpoint))
        return StateRecord(
            starts=[summary.oldest for summary in summaries], ends=ends, positions=positions,
            recent_starts=[summary.start for summary in summaries], old=old,
        )  # fmt: skip


def _old_checkpoint(checkpoint: Checkpoint) -> OldCheckpoint:
    return OldCheckpoint(
        record_offset=checkpoint.record_offset, start_offset=checkpoint.start_offset, pop_time=checkpoint.pop_time_ms,
        invisible_time=checkpoint.invisible_ms, count=len(checkpoint.offsets), acked=checkpoint.acked,
        distances=checkpoint.distances, broker_name=checkpoint.broker_name, is_suspended=checkpoint.is_suspended,
        foreign_queue=checkpoint.revive_queue if checkpoint.is_foreign else -1,
    )  # fmt: skip
