"""Delivers due timer messages: a slice of the window becomes one append to their own topics.

Entries are taken in due order, their records read in log order, and the copies appended in due order. A message is
skipped if it was recalled, if it was stored again, if its record has expired, or if the entry does not match the log.
Nothing is skipped for a record that is damaged and may be healed: its delivery, and that of later messages, waits for
`healWait`; then it is skipped, and delivered late if a replica heals it.
"""

from __future__ import annotations

import logging
from collections.abc import Set
from typing import Final, NamedTuple, final

from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.healed_records import HealedRecords
from gantry_broker.server.delay.drafts import find_destination, record_properties
from gantry_broker.server.timers.drafts import delivered_draft
from gantry_broker.server.timers.entries import (
    REPLACED,
    Entry,
    decode_entry,
    due_of,
    entries_in,
    entries_of,
    first_key,
    real_topic,
    replaces,
    source_of,
)
from gantry_broker.server.timers.progress import TimerProgress
from gantry_broker.server.timers.reader import TimerReader
from gantry_broker.server.timers.window import DueWindow
from gantry_broker.store.consume_queue import ConsumeQueue
from gantry_broker.store.draft import Draft
from gantry_wire import names

log = logging.getLogger(__name__)

SLICE_MESSAGES_MAX: Final = 128
"""Limit of the messages that are delivered before other work."""
SLICE_BYTES_MAX: Final = 1 << 20
"""Limit of the bytes of these messages: at least one is delivered."""
SKIPPED_MAX: Final = 10_000
"""How many skipped messages are remembered: the same limit as for damaged ranges."""


@final
class _Batch:
    """Entries that were taken for one slice, in due order, with where each came from."""

    def __init__(self) -> None:
        self.urgent: list[bytes] = []
        self.pending: list[bytes] = []

    @property
    def entries(self) -> list[bytes]:
        return [*self.urgent, *self.pending]


CopyKey = tuple[int, int, int, str]
"""The due time, the first copy, the key hash and the topic of a message."""


class _Due(NamedTuple):
    """What is done with a due message."""

    entry: Entry
    topic: str
    """Its own topic."""

    draft: Draft | None
    """The message for its own topic; None if it is not delivered."""

    pending_topic: str | None
    """The topic for which it is not pending any more; None if it was not counted, or its copy is."""

    @property
    def copy_key(self) -> CopyKey:
        """What all copies of a message have in common, and no other message has."""
        return self.entry.due_ms, self.entry.origin, self.entry.key_hash, self.topic


@final
class _Slice:
    """The due messages that are appended together."""

    def __init__(self) -> None:
        self.drafts: list[Draft] = []
        self.due: list[_Due] = []
        self.copies: set[CopyKey] = set()
        """The keys of its messages that were stored again."""
        self._bytes = 0

    def add(self, one: _Due) -> bool:
        """Add a message; False if there is no room for it."""
        if one.draft is not None:
            if self.drafts and self._bytes + len(one.draft.body) > SLICE_BYTES_MAX:
                return False
            self._bytes += len(one.draft.body)
            self.drafts.append(one.draft)
            if one.entry.origin != one.entry.queue_offset:
                self.copies.add(one.copy_key)
        self.due.append(one)
        return True


@final
class TimerDelivery:
    """Delivers due messages of the timer topic. Owned by the event loop."""

    def __init__(self, core: BrokerCore, progress: TimerProgress, reader: TimerReader, window: DueWindow) -> None:
        self.delivered_count = 0
        """The number of messages that were delivered since the start."""
        self.lateness_ms_max = 0
        """The longest time by which a message was delivered after it was due, since the last reset."""
        self.healed: Final = HealedRecords(core.store, names.TIMER_TOPIC)
        self._core: Final = core
        self._progress: Final = progress
        self._reader: Final = reader
        self._window: Final = window
        self._copies: set[CopyKey] = set()
        """The keys of the copies that were delivered last, all with one due time."""
        self._skipped: set[int] = set()
        """Queue offsets of messages that were damaged when they were due, since the start."""

    def __repr__(self) -> str:
        return f"<TimerDelivery delivered={self.delivered_count}>"

    def on_log_changed(self, end: int) -> None:
        """Forget healed and skipped messages from ``end`` on: other messages will be stored at their offsets."""
        self.healed.on_log_changed(end)
        queue = self._core.store.queues.get(names.TIMER_TOPIC, 0)
        queue_end = 0 if queue is None else queue.end
        self._skipped = {offset for offset in self._skipped if offset < queue_end}

    def next_due_ms(self) -> int | None:
        """Return when the next message in memory is due; None if there is none."""
        heads = [one for one in (self._window.peek(), self._reader.urgent.peek()) if one is not None]
        return min(map(due_of, heads), default=None)

    def deliver_slice(self) -> bool:
        """Deliver due messages, at most a slice. True if more may be due. Raises errors of the store."""
        now_ms = self._core.clock.wall_ms()
        batch = self._take_due(now_ms)
        if not batch.entries:
            return False
        try:
            done = self._append(batch, now_ms)
        except BaseException:
            self._return(batch, 0)
            raise
        self._return(batch, done)
        passed = max(batch.pending[: max(done - len(batch.urgent), 0)], default=None)
        state, read = self._progress.state, self._reader.settled_position
        if passed is not None:
            entry = decode_entry(passed)
            self._progress.change(state.advance(entry.due_ms, entry.queue_offset, read))
        elif done:
            self._progress.change(state._replace(read=read))
        return done == len(batch.entries)

    def _take_due(self, now_ms: int) -> _Batch:
        batch, reader, window = _Batch(), self._reader, self._window
        # Recalls of an urgent message may be in the due files, if its time is not before the window.
        last_key = min(first_key(now_ms + 1), window.covered)
        while len(batch.urgent) < SLICE_MESSAGES_MAX:
            late = reader.urgent.peek()
            if late is None or late >= last_key:
                break
            batch.urgent.append(reader.urgent.pop())
        while len(batch.urgent) + len(batch.pending) < SLICE_MESSAGES_MAX:
            data = window.peek()
            if data is None or data >= last_key:
                break
            window.pop()
            if not batch.pending or batch.pending[-1] != data:
                batch.pending.append(data)
        return batch

    def _return(self, batch: _Batch, done: int) -> None:
        """Return the entries after the first ``done`` to where they came from."""
        for one in batch.urgent[done:]:
            self._reader.urgent.push(one)
        self._window.push_back(batch.pending[max(done - len(batch.urgent), 0) :])

    def _append(self, batch: _Batch, now_ms: int) -> int:
        """Append the copies of the first messages of the batch; return how many messages are processed."""
        entries = [decode_entry(one) for one in batch.entries]
        by_offset = sorted(range(len(entries)), key=lambda index: entries[index].queue_offset)
        records = {index: self._reader.find_record(entries[index].queue_offset) for index in by_offset}
        known: dict[tuple[bytes, bytes], ConsumeQueue | None] = {}
        found, done, late = _Slice(), 0, len(batch.urgent)
        for index, entry in enumerate(entries):
            record = records[index]
            if index < late or not self._progress.state.is_passed(entry.due_ms, entry.queue_offset):
                if record is None and self._must_wait(entry):
                    break
                if record is not None and not found.add(self._make_due(entry, record, known, now_ms, found.copies)):
                    break
            done += 1
        if found.drafts:
            self._core.store.append(found.drafts)
            self._core.stats.count_put(len(found.drafts), self._core.store)
            self.delivered_count += len(found.drafts)
        late_offsets = {one.queue_offset for one in entries[:late]}
        for one in found.due:
            self._note_done(one, now_ms, is_late=one.entry.queue_offset in late_offsets)
        return done

    def _note_done(self, one: _Due, now_ms: int, *, is_late: bool) -> None:
        """Record that a message is not pending any more. Called after the append, which may have failed."""
        entry = one.entry
        if one.pending_topic is not None:
            self._progress.pending.note_done(entry, one.pending_topic, is_late=is_late)
        if one.draft is not None:
            self.lateness_ms_max = max(self.lateness_ms_max, now_ms - entry.due_ms)
            if entry.origin != entry.queue_offset:
                self._copies = {key for key in self._copies if key[0] == entry.due_ms} | {one.copy_key}

    def _must_wait(self, entry: Entry) -> bool:
        """Whether the unreadable record of a message may still be healed; else the message is skipped."""
        store = self._core.store
        queue = store.queues.get(names.TIMER_TOPIC, 0)
        unit = None if queue is None else queue.unit(entry.queue_offset)
        if unit is None:  # expired, and stored again before that; or of a part of the log that was truncated
            return False
        physical, size, _ = unit
        if store.guard.damage.must_wait(
            physical, size, topic=names.TIMER_TOPIC, queue_id=0, queue_offset=entry.queue_offset
        ):
            return True
        log.error("damaged timer message; skipping it", extra={"queue_offset": entry.queue_offset})
        if len(self._skipped) < SKIPPED_MAX:
            self._skipped.add(entry.queue_offset)
        return False

    def _make_due(
        self,
        entry: Entry,
        record: bytes,
        known: dict[tuple[bytes, bytes], ConsumeQueue | None],
        now_ms: int,
        copies: Set[CopyKey],
    ) -> _Due:
        """Return what is to be done with a due message. ``copies`` are those that are delivered with it."""
        pairs = record_properties(record, 0, len(record))
        if entry.encode() not in entries_in(record, 0, pairs):
            return _Due(entry, "", None, None)
        topic = real_topic(pairs)
        cancellation = self.find_cancellation(entry, topic)
        is_replaced = cancellation is not None and cancellation.kind == REPLACED
        one = _Due(entry, topic, None, None if is_replaced else topic)
        if cancellation is not None or one.copy_key in self._copies or one.copy_key in copies:
            return one
        queue = find_destination(pairs, known, self._find_target_queue)
        if queue is None:
            log.error("timer message without valid real topic; skipping it", extra={"queue_offset": entry.queue_offset})
            return one
        return one._replace(draft=delivered_draft(record, pairs, queue, now_ms))

    def _find_target_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the destination queue; create it, readable for consumers, if it is missing."""
        self._core.topics.ensure_queue(topic, queue_id)
        return self._core.store.queues.get_or_create(topic, queue_id)

    def find_cancellation(self, entry: Entry, topic: str) -> Entry | None:
        """Return the entry by which a message for this topic was stored again or recalled; None if there is none.

        The log must still have its record. A recall or copy that was just appended is not readable yet, and counts.
        """
        for one in self._window.find_cancellations(entry):
            source = source_of(one)
            if source >= self._reader.position:
                return one
            record = self._reader.find_record(source)
            if record is not None and _is_confirmed(one, record, entry, topic):
                return one
        return None

    def deliver_healed(self) -> None:
        """Deliver messages that were skipped as damaged, and are healed. Raises errors of the store."""
        self.healed.process(self._deliver_healed_record)

    def _deliver_healed_record(self, record: bytes) -> None:
        entries = entries_of(record, 0, len(record))
        entry = decode_entry(entries[0]) if entries else None
        if entry is None or entry.queue_offset not in self._skipped:
            return
        one = self._make_due(entry, record, {}, self._core.clock.wall_ms(), set())
        if one.draft is not None:
            self._core.store.append([one.draft])
            self._core.stats.count_put(1, self._core.store)
            log.warning("delivered healed timer message late", extra={"queue_offset": entry.queue_offset})
        if one.pending_topic is not None:
            self._progress.pending.note_done(entry, one.pending_topic, is_late=True)
        self._skipped.discard(entry.queue_offset)


def _is_confirmed(one: Entry, record: bytes, entry: Entry, topic: str) -> bool:
    """Whether the record of a cancellation confirms that it cancels a message for this topic."""
    pairs = record_properties(record, 0, len(record))
    found = entries_in(record, 0, pairs)
    if one.encode() not in found:
        return False
    return one.kind != REPLACED or (replaces(decode_entry(found[0]), entry) and real_topic(pairs) == topic)
