"""Stores pending timer messages again before retention deletes their log files.

    timer queue   [ delivered, recalled or stored again | kept ...... end )      no log file with a kept one is deleted

A log file is deleted `fileReservedTime` after its newest message, and a timer message may wait for longer. So a pending
message that is older than half of that time is appended to the timer topic again, as RocketMQ does (it calls this
rolling), and so are recall records whose messages are not due yet. A copy names its first copy, so that recalls from
before it still cancel it, and the copy before it, which is not delivered. When the disk needs space, younger messages
of the oldest files are stored again, too.

A crash may repeat copies of the last seconds; copies of one message are delivered once.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, final

from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.delay.drafts import store_timestamp
from gantry_broker.server.timers.drafts import copied_draft
from gantry_broker.server.timers.entries import (
    JAVA_PRECISION_MAX_MS,
    MESSAGE,
    NO_KEY,
    REPLACED,
    Entry,
    decode_entry,
    entries_of,
)
from gantry_broker.server.timers.progress import TimerProgress
from gantry_broker.server.timers.reader import TimerReader
from gantry_broker.server.timers.window import DueWindow
from gantry_broker.store.draft import Draft
from gantry_broker.store.retention import HOUR_MS, NOTHING_UNCONSUMED
from gantry_wire import names
from gantry_wire.message import INT, RECORD_HEAD

log = logging.getLogger(__name__)

SLICE_MESSAGES_MAX: Final = 64
"""Limit of the records that one step examines."""
SLICE_BYTES_MAX: Final = 1 << 20
"""Limit of the bytes of these records."""
FIND_SLICES_MAX: Final = 500
"""How many slices a stop reads to find the first pending message: 32,000 messages, less than a second."""
SOON_MS: Final = 60_000
"""A message that is due within this time is delivered, and not stored again."""


@final
class TimerRoller:
    """Stores old pending messages of the timer topic again. Owned by the event loop."""

    def __init__(self, core: BrokerCore, progress: TimerProgress, reader: TimerReader, window: DueWindow) -> None:
        self.needed_before = 0
        """Log files before this offset are needed for space: their messages are stored again, however young."""
        self.rolled_count = 0
        """The number of records that were stored again since the start."""
        self._core: Final = core
        self._progress: Final = progress
        self._reader: Final = reader
        self._window: Final = window

    def __repr__(self) -> str:
        return f"<TimerRoller kept={self._progress.state.kept} rolled={self.rolled_count}>"

    def needed_from(self) -> int:
        """Return the physical offset of the first record that must not be deleted; ``NOTHING_UNCONSUMED`` for none."""
        queue = self._core.store.queues.get(names.TIMER_TOPIC, 0)
        if queue is None:
            return NOTHING_UNCONSUMED
        kept = max(self._progress.settle_steps().kept, queue.min_offset)
        unit = queue.unit(kept)
        return NOTHING_UNCONSUMED if unit is None else unit[0]

    def step(self) -> bool:
        """Examine some of the oldest kept records. True if there may be more to do. Raises errors of the store."""
        store, state = self._core.store, self._progress.state
        queue = store.queues.get(names.TIMER_TOPIC, 0)
        if queue is None:
            return False
        start, end = max(state.kept, queue.min_offset), min(self._reader.settled_position, queue.readable_end)
        unit = queue.unit(start) if start < end else None
        if unit is None or not self._is_old(unit[0]):
            return False
        result = store.read(
            names.TIMER_TOPIC, 0, start, count_max=min(SLICE_MESSAGES_MAX, end - start), bytes_max=SLICE_BYTES_MAX,
            accept=None,
        )  # fmt: skip
        drafts: list[Draft] = []
        replaced: list[Entry] = []
        kept, position = start, 0
        while position < len(result.body):
            record_end = position + int(INT.unpack_from(result.body, position)[0])
            record = result.body[position:record_end]
            if not self._examine(record, drafts, replaced):
                break
            kept, position = int(RECORD_HEAD.unpack_from(record, 0)[5]) + 1, record_end
        if not result.body and not result.is_waiting:
            kept = max(kept, min(result.next_offset, end))
        if drafts:
            _, queue_offsets = store.append(drafts)
            self._core.stats.count_put(len(drafts), store)
            self.rolled_count += len(drafts)
            for entry, queue_offset in zip(replaced, queue_offsets, strict=True):
                if entry.kind == MESSAGE:
                    self._window.cancel(Entry(entry.due_ms, REPLACED, entry.queue_offset, queue_offset, NO_KEY))
        self._progress.change(self._progress.state._replace(kept=kept))
        return kept > start and kept < end

    async def find_pending(self, start: int) -> int:
        """Return the queue offset of the first message from ``start`` on that may be pending, in a limited time."""
        queue = self._core.store.queues.get(names.TIMER_TOPIC, 0)
        if queue is None:
            return start
        offset = start
        for _ in range(FIND_SLICES_MAX):
            result = self._core.store.read(
                names.TIMER_TOPIC, 0, offset, count_max=SLICE_MESSAGES_MAX, bytes_max=SLICE_BYTES_MAX, accept=None
            )
            position = 0
            while position < len(result.body):
                end = position + int(INT.unpack_from(result.body, position)[0])
                record = result.body[position:end]
                found = entries_of(record, 0, len(record))
                if found and not self._is_done(decode_entry(found[0])):
                    return offset
                offset, position = int(RECORD_HEAD.unpack_from(record, 0)[5]) + 1, end
            if not result.body:
                break
            await asyncio.sleep(0)
        return offset

    def _examine(self, record: bytes, drafts: list[Draft], replaced: list[Entry]) -> bool:
        """Decide about one record: add a draft of its copy if it is needed. False if it has to be kept for now."""
        found = entries_of(record, 0, len(record))
        entry = decode_entry(found[0]) if found else None
        if entry is None or self._is_done(entry):
            return True
        physical = int(RECORD_HEAD.unpack_from(record, 0)[6])
        now_ms = self._core.clock.wall_ms()
        if not self._is_record_old(record, physical, now_ms) or entry.due_ms < now_ms + SOON_MS:
            return False
        queue = self._core.store.queues.get_or_create(names.TIMER_TOPIC, 0)
        drafts.append(copied_draft(record, queue, entry.origin))
        replaced.append(entry)
        return True

    def _is_done(self, entry: Entry) -> bool:
        """Whether nothing depends on a record any more."""
        state = self._progress.state
        if entry.kind == MESSAGE:
            return state.is_passed(entry.due_ms, entry.queue_offset)
        return entry.due_ms + JAVA_PRECISION_MAX_MS <= state.last.due_ms

    def _is_old(self, physical: int) -> bool:
        """Whether the record at this offset is to be examined now."""
        record = self._core.store.guard.message_at(physical, is_known=True)
        return record is None or self._is_record_old(record, physical, self._core.clock.wall_ms())

    def _is_record_old(self, record: bytes, physical: int, now_ms: int) -> bool:
        half_ms = self._core.settings.store.retention.reserved_hours * HOUR_MS // 2
        return physical < self.needed_before or now_ms - store_timestamp(record, 0) >= half_ms
