"""Reads the timer topic's queue, like a consumer, and passes its entries to the due files and to the window.

    queue 0   [ in the due files ...... | read ...... | not read ...... )

A master and a slave both read, so that a promoted slave has its due files. Late messages, which are due before the mark
of the progress, are *urgent* on a master: they are delivered as soon as they are due. They keep the offset that a start
reads from, so they are in no file. On a slave they are ignored, since a promotion reads from that offset again.
"""

from __future__ import annotations

import logging
from typing import Final, final

from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.delay.drafts import record_properties
from gantry_broker.server.timers.due_files import IndexedPosition
from gantry_broker.server.timers.due_index import DueIndex
from gantry_broker.server.timers.entries import (
    MESSAGE,
    REPLACED,
    decode_entry,
    entries_in,
    entries_of,
    kind_of,
    real_topic,
    source_of,
)
from gantry_broker.server.timers.pending import ReadMessage
from gantry_broker.server.timers.progress import MARKS_MAX, TimerProgress
from gantry_broker.server.timers.urgent import UrgentMessages
from gantry_broker.server.timers.window import DueWindow
from gantry_broker.store.consume_queue import ConsumeQueue
from gantry_wire import names
from gantry_wire.message import INT, RECORD_HEAD

log = logging.getLogger(__name__)

SLICE_MESSAGES_MAX: Final = 256
"""Limit of the messages that are read before other work."""
SLICE_BYTES_MAX: Final = 1 << 20
"""Limit of the bytes of these messages."""
URGENT_MAX: Final = 16 * 1024
"""Limit of urgent messages in memory. With as many, reading pauses until some are delivered."""
SET_BACK_MS: Final = 5_000
"""A message that is this far before its time, although later ones are delivered, shows that the clock was set back."""


@final
class TimerReader:
    """The reader of the timer topic. Owned by the event loop."""

    def __init__(self, core: BrokerCore, progress: TimerProgress, index: DueIndex, window: DueWindow) -> None:
        self.position = 0
        """The queue offset of the next message to read."""
        self.urgent: Final = UrgentMessages()
        """The late messages."""
        self.is_waiting = False
        """Whether the next message is damaged and may still be healed from a replica; reading waits for it."""
        self._core: Final = core
        self._progress: Final = progress
        self._index: Final = index
        self._window: Final = window
        self._last_entry = b""
        self._last_physical = -1

    def __repr__(self) -> str:
        return f"<TimerReader position={self.position} urgent={len(self.urgent)}>"

    @property
    def settled_position(self) -> int:
        """The offset before which no late message waits: a start reads from here on."""
        late = self.urgent.first_offset
        return self.position if late is None else late

    @property
    def indexed_position(self) -> IndexedPosition:
        """The position for the due files, which have every entry that was read."""
        return IndexedPosition(self.position, self._last_physical, self._last_entry.hex())

    def restart(self, position: int) -> None:
        """Read again from ``position``, at most."""
        queue = self._core.store.queues.get(names.TIMER_TOPIC, 0)
        self.position = min(self.position, position, 0 if queue is None else queue.end)
        self.urgent.clear()

    def restore(self, indexed: IndexedPosition) -> bool:
        """Start after the indexed messages; False if the due files have entries that do not follow from the queue.

        Whether they do is decided by the last indexed message. Its record is read from the log, since the queue may not
        be visible up to there yet: a start hides messages until slaves have confirmed them.
        """
        if indexed.queue_offset <= 0:
            return True
        queue = self._core.store.queues.get(names.TIMER_TOPIC, 0)
        if queue is None or indexed.last_physical < 0:
            return False
        entry, end = bytes.fromhex(indexed.last_entry), queue.end
        if self._is_in_log(entry, indexed.last_physical):
            end = max(end, source_of(decode_entry(entry)) + 1)
        elif end < indexed.queue_offset or not self._is_in_queue(queue, entry, indexed.last_physical):
            return False
        # Messages without a valid time may have followed the last indexed one. The log may have lost them.
        self.position, self._last_entry = min(indexed.queue_offset, end), entry
        self._last_physical = indexed.last_physical
        return True

    def _is_in_log(self, entry: bytes, physical: int) -> bool:
        """Return whether the record at this offset of the log has this entry, and is of the present topic."""
        store = self._core.store
        if physical < store.queues.deleted.get(names.TIMER_TOPIC, -1):
            return False
        record = store.guard.message_at(physical)
        return record is not None and entries_of(record, 0, len(record))[:1] == [entry]

    def _is_in_queue(self, queue: ConsumeQueue, entry: bytes, physical: int) -> bool:
        """Return whether the queue had this entry, whose record has expired or is damaged."""
        store, offset = self._core.store, source_of(decode_entry(entry))
        if physical < store.log.min_physical:
            return True
        unit = queue.unit(offset)
        return unit is not None and unit[0] == physical and store.guard.message_at(physical) is None

    def find_record(self, queue_offset: int) -> bytes | None:
        """Return the record at this queue offset; None if it has expired, is damaged, or is not visible yet."""
        queue = self._core.store.queues.get(names.TIMER_TOPIC, 0)
        unit = None if queue is None else queue.unit(queue_offset)
        return None if unit is None else self._core.store.guard.message_at(unit[0], is_known=True)

    def read_slice(self, *, is_master: bool) -> bool:
        """Read some messages. True if the end of the queue is reached, as far as consumers may see it."""
        store = self._core.store
        queue = store.queues.get(names.TIMER_TOPIC, 0)
        if queue is None:
            return True
        if self.position < queue.min_offset:
            self.position = queue.min_offset
            self._progress.pending.skip_to(self.position)
        if self._index.is_full or len(self.urgent) >= URGENT_MAX:
            return False
        if self.position >= queue.readable_end:
            return True
        result = store.read(
            names.TIMER_TOPIC, 0, self.position, count_max=SLICE_MESSAGES_MAX, bytes_max=SLICE_BYTES_MAX, accept=None
        )
        self.is_waiting = result.is_waiting and not result.body
        start, began, messages = 0, self.position, list[ReadMessage]()
        while start < len(result.body):
            end = start + int(INT.unpack_from(result.body, start)[0])
            message = self._take_record(result.body, start, end, is_master=is_master)
            if message is not None:
                messages.append(message)
            start = end
        self.position = max(self.position, result.next_offset)
        self._progress.pending.note_read(began, self.position, messages)
        return self.position >= queue.readable_end

    def _take_record(self, data: bytes, start: int, end: int, *, is_master: bool) -> ReadMessage | None:
        """Take the entries of a record; return the message that is to be counted, if it is one."""
        pairs = record_properties(data, start, end)
        entries = entries_in(data, start, pairs)
        if not entries:
            log.error("timer message without valid time; skipping it", extra={"position": self.position})
            return None
        for one in entries:
            self._take_entry(one, is_master=is_master)
        self._last_entry, self._last_physical = entries[0], int(RECORD_HEAD.unpack_from(data, start)[6])
        entry, state = decode_entry(entries[0]), self._progress.state
        is_delivered = entry.queue_offset < state.read and state.is_passed(entry.due_ms, entry.queue_offset)
        if entry.kind != MESSAGE or is_delivered:
            return None
        replaced = [decode_entry(one).queue_offset for one in entries[1:] if kind_of(one) == REPLACED]
        return ReadMessage(entry.queue_offset, real_topic(pairs), replaced[0] if replaced else None)

    def _take_entry(self, data: bytes, *, is_master: bool) -> None:
        entry, state = decode_entry(data), self._progress.state
        if entry.kind == MESSAGE and state.is_passed(entry.due_ms, entry.queue_offset):
            if entry.queue_offset < state.read or not is_master:
                return
            now_ms = self._core.clock.wall_ms()
            if entry.due_ms < now_ms + SET_BACK_MS or len(state.marks) >= MARKS_MAX:
                self.urgent.push(data)
                return
            log.warning(
                "wall clock was set back; later timers wait", extra={"mark_ms": state.last.due_ms, "now_ms": now_ms}
            )
            self._progress.change(state.set_back(entry.queue_offset, now_ms))
            self._window.restart(now_ms, keeps_recalls=True)
        self._index.add(data)
        if is_master:
            self._window.add(data)
