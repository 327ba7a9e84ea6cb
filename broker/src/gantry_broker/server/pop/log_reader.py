"""Reads the state of pop consumption from the log: the last readable record of kind ``state``, and what follows it.

    state queue    ... state }            with the old open checkpoints
    revive queue   [ ... old, or done ... | ck ... ack ... ck ...... end )
                                          `- the start in the state

The master keeps the state that it has read, and applies its own records to it (`journal`). A slave has none: its log
grows by copying. If it needs to know which messages are popped and not acked, it reads the state anew.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Final, final

from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.pop import records
from gantry_broker.server.pop.checkpoints import PopState
from gantry_broker.server.pop.records import REVIVE_QUEUES, STATE_QUEUE, StateRecord
from gantry_broker.server.pop.times import PopTimes
from gantry_wire import names
from gantry_wire import properties as keys
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.message import StoredMessage, decode_record

log = logging.getLogger(__name__)

SLICE_MESSAGES_MAX: Final = 256
"""Limit of the records that are read before other requests are served, of all revive queues: about 8 ms."""
SLICE_BYTES_MAX: Final = 1 << 20
"""Limit of the bytes of these records in one revive queue."""

STATES_EXAMINED_MAX: Final = 64
"""How many records of kind ``state`` are examined, from the last one on, until one is readable."""


@final
class PopLogReader:
    """One reading of the state of pop consumption from the log. Owned by the event loop."""

    def __init__(self, core: BrokerCore, times: PopTimes) -> None:
        self._core: Final = core
        self._times: Final = times
        self.topic: Final = names.revive_topic(core.settings.cluster_name)
        """The topic of the records."""

        self.state = PopState()
        """The state as far as it was read."""

        self.is_begun = False
        """Whether the last record of kind ``state`` was searched for."""

        self.has_found_state = False
        """Whether there was a readable one."""

        self.is_waiting = False
        """Whether reading waits for a replica to heal the next record."""

        self._own: Final[list[deque[tuple[int, int]]]] = [deque() for _ in range(REVIVE_QUEUES)]
        """Ranges of own records beyond a record that has to be read first."""

    def __repr__(self) -> str:
        return f"<PopLogReader {self.state!r} {'waiting' if self.is_waiting else 'reading'}>"

    def begin(self) -> bool:
        """Start from the last readable state of the log, or else from RocketMQ's committed offsets.

        False if the last state is damaged and may still be healed from a replica.
        """
        found = self._find_state()
        if self.is_waiting:
            return False
        self.is_begun = True
        if found is not None:
            times = self._times
            self.state = PopState(found, now_ms=times.monotonic_ms(), wall_lead_ms=times.wall_lead_ms())
            self.has_found_state = True
            return True
        committed = (self._core.offsets.find(names.REVIVE_GROUP, self.topic, each) for each in range(REVIVE_QUEUES))
        # RocketMQ commits the last offset that it has processed, not the next one.
        self.state = PopState(starts=[0 if last is None else last + 1 for last in committed])
        return True

    def read_slice(self) -> bool:
        """Read a slice of the revive queues. True if all of their records are read."""
        self.is_waiting = False
        left = SLICE_MESSAGES_MAX
        for number in range(REVIVE_QUEUES):
            left -= self._read_slice(number, left)
        return all(self._is_read(number) for number in range(REVIVE_QUEUES))

    def skip(self, number: int, record_offset: int) -> None:
        """Do not read a record that was appended to a revive queue, because its caller has applied it."""
        offsets = self.state.read_offsets
        if offsets[number] == record_offset:
            offsets[number] = record_offset + 1
            return
        own = self._own[number]
        if own and own[-1][1] == record_offset:
            own[-1] = (own[-1][0], record_offset + 1)
        else:
            own.append((record_offset, record_offset + 1))

    def _find_state(self) -> StateRecord | None:
        store = self._core.store
        queue = store.queues.get(self.topic, STATE_QUEUE)
        self.is_waiting = False
        end = 0 if queue is None else queue.readable_end
        first = 0 if queue is None else queue.min_offset
        for offset in range(end - 1, max(first, end - STATES_EXAMINED_MAX) - 1, -1):
            result = store.read(self.topic, STATE_QUEUE, offset, count_max=1, bytes_max=1, accept=None)
            self.is_waiting = result.is_waiting
            if self.is_waiting:
                return None
            try:
                message = decode_record(result.body)
                if message.queue_offset == offset:
                    return records.parse_state(message)
            except (ValueError, RemoteProtocolError) as error:
                log.error("unreadable pop state; using the one before", extra={"offset": offset, "reason": str(error)})
        return None

    def _is_read(self, number: int) -> bool:
        queue = self._core.store.queues.get(self.topic, number)
        return queue is None or self.state.read_offsets[number] >= queue.readable_end

    def _read_slice(self, number: int, count_max: int) -> int:
        """Read some records of a revive queue; return their number."""
        store, state = self._core.store, self.state
        queue = store.queues.get(self.topic, number)
        if queue is None:
            return 0
        offset = state.read_offsets[number] = max(state.read_offsets[number], queue.min_offset)
        if count_max <= 0 or offset >= queue.readable_end:
            return 0
        result = store.read(
            self.topic, number, offset, count_max=count_max, bytes_max=SLICE_BYTES_MAX, accept=None
        )  # fmt: skip
        if result.is_waiting and not result.body:
            self.is_waiting = True
            return 0
        position = count = 0
        while position < len(result.body):
            message = decode_record(result.body, position)
            position += message.size
            count += 1
            if not self._is_own(number, message.queue_offset):
                self._apply(message, number)
        state.read_offsets[number] = max(result.next_offset, offset + 1)
        self._skip_own(number)
        return count

    def _apply(self, message: StoredMessage, number: int) -> None:
        times = self._times
        try:
            record = records.parse_record(message)
            if record is not None:
                foreign_queue = number if keys.TIMER_ENQUEUE_MS in message.properties else None
                self.state.apply(
                    record, message.queue_offset, times.monotonic_ms(), wall_lead_ms=times.wall_lead_ms(),
                    foreign_queue=foreign_queue,
                )  # fmt: skip
        except ValueError as error:
            facts = {"offset": message.queue_offset, "queue": message.queue_id, "reason": str(error)}
            log.error("unreadable pop record; skipping it", extra=facts)

    def _is_own(self, number: int, offset: int) -> bool:
        return any(start <= offset < end for start, end in self._own[number])

    def _skip_own(self, number: int) -> None:
        """Continue after own records that follow the last one that was read."""
        own, offsets = self._own[number], self.state.read_offsets
        while own and own[0][0] <= offsets[number]:
            offsets[number] = max(offsets[number], own.popleft()[1])
