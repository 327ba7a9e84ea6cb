"""Repair, while the store serves, of what is derived from the log and was found wrong: queues first, then the index.

The index is rebuilt from the file in which the fault was found: that file and all behind it leave the index, and the
log from where it began is read again, a slice at a time, up to what is shown. Until then the index ``is_behind``: no
batch is indexed twice, recovery points do not vouch for it, and a key that is not found is answered with "try again"
(``KeyMatches.is_complete``). An index that stopped for want of room catches up in the same way once there is room.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, final

from gantry_broker.errors import StoreFailed, StoreFull
from gantry_broker.ports.disk import Disk
from gantry_broker.store.commit_log import CommitLog
from gantry_broker.store.consume_queue import FILLER_SIZE, UNIT, ConsumeQueue
from gantry_broker.store.dispatcher import Dispatcher, QueuesListener
from gantry_broker.store.key_index import KeyIndex
from gantry_broker.store.log_guard import LogGuard
from gantry_broker.store.queue_repair import QueueRepair
from gantry_broker.store.queue_table import QueueTable
from gantry_broker.store.record_dispatch import record_facts
from gantry_broker.store.record_taker import RecordTaker
from gantry_broker.store.recovery import Seals
from gantry_broker.store.sliced_scan import LogScan

log = logging.getLogger(__name__)

RETRY_INTERVAL_MS: Final = 10_000
"""How long a rebuild waits that has met a full disk."""


@final
class IndexRepair:
    """Rebuilds the end of the index. Owned by the loop's thread."""

    def __init__(
        self,
        disk: Disk,
        commit_log: CommitLog,
        queues: QueueTable,
        index: KeyIndex,
        dispatcher: Dispatcher,
        *,
        seals: Seals,
        delay_levels_ms: tuple[int, ...],
        monotonic_ms: Callable[[], int],
        request_point: Callable[[], None],
    ) -> None:
        self.rebuilds = 0
        """How often a part of the index was rebuilt to its end."""

        self._disk: Final = disk
        self._log: Final = commit_log
        self._queues: Final = queues
        self._index: Final = index
        self._dispatcher: Final = dispatcher
        self._seals: Final = seals
        self._delay_levels_ms: Final = delay_levels_ms
        self._monotonic_ms: Final = monotonic_ms
        self._request_point: Final = request_point
        self._taker: RecordTaker | None = None
        self._offset = 0
        self._begin = 0
        self._retry_at_ms: int | None = None

    def __repr__(self) -> str:
        return f"<IndexRepair of {self._index.directory} rebuilds={self.rebuilds}>"

    @property
    def is_waiting_for_room(self) -> bool:
        """Whether the last attempt met a full disk, and the next one has to wait."""
        return self._retry_at_ms is not None

    def step(self) -> bool:
        """One slice of work. False when there is none left, or it has to wait for room."""
        index = self._index
        if not index.is_behind:
            return False
        if self._retry_at_ms is not None and self._monotonic_ms() < self._retry_at_ms:
            return False
        self._retry_at_ms = None
        taker = self._taker
        if taker is None or index.damaged is not None:
            taker = self._start()
        end = self._dispatcher.tail[0]
        scan = LogScan(
            self._log, self._offset, end, self._seals, found=taker.found, found_plain=taker.found_plain
        )  # fmt: skip
        try:
            is_more = scan.step()
        except StoreFailed:
            return False  # The process ends: nothing may be rebuilt from another store's log.
        except (StoreFull, OSError) as exc:
            # The file that it happened in is dropped, and the log is read again from where that file began.
            log.warning("key index is not rebuilt yet: no room", extra={"reason": str(exc)})
            self._taker, self._retry_at_ms = None, self._monotonic_ms() + RETRY_INTERVAL_MS
            return False
        self._offset = scan.offset
        if is_more:
            return True
        self._finish(end)
        return False

    def _start(self) -> RecordTaker:
        """Drop what is damaged, and everything behind it."""
        index = self._index
        reason = index.damage
        index.drop_damaged()
        self._request_point()
        taker = RecordTaker(self._disk, self._log, self._queues, index.put_again, self._delay_levels_ms)
        taker.restrict(set())
        # The last message of the last file that is kept may have keys in the next one: all of them are put again.
        taker.skip_indexed(index.end_physical - 1)
        self._taker, self._begin = taker, max(index.end_physical, self._log.min_physical)
        self._offset = self._begin
        log.warning("key index is being rebuilt from the commit log", extra={"offset": self._begin, "reason": reason})
        return taker

    def _finish(self, end: int) -> None:
        self._taker = None
        self._index.mark_complete()
        self.rebuilds += 1
        self._request_point()
        log.warning("key index has been rebuilt from the commit log", extra={"offset": self._begin, "end": end})

    def forget(self) -> None:
        """The log is about to become another one; a rebuild begins again with what is left then."""
        self._taker = None


@final
class DerivedRepair:
    """Everything that a running store repairs. Owned by the loop's thread."""

    def __init__(
        self,
        disk: Disk,
        commit_log: CommitLog,
        table: QueueTable,
        index: KeyIndex | None,
        dispatcher: Dispatcher,
        guard: LogGuard,
        *,
        seals: Seals,
        delay_levels_ms: tuple[int, ...],
        monotonic_ms: Callable[[], int],
        repaired: QueuesListener,
        request_point: Callable[[], None],
    ) -> None:
        """``repaired`` is called with queues that can be read again, ``request_point`` when the point must change."""
        self.queues: Final = QueueRepair(
            commit_log, table, seals=seals, delay_levels_ms=delay_levels_ms, monotonic_ms=monotonic_ms,
            repaired=repaired, request_point=request_point,
        )  # fmt: skip
        self.index: Final = None if index is None else IndexRepair(
            disk, commit_log, table, index, dispatcher, seals=seals, delay_levels_ms=delay_levels_ms,
            monotonic_ms=monotonic_ms, request_point=request_point,
        )  # fmt: skip
        self.on_damage: Final = self.queues.on_damage
        """Called when there is work for ``step`` and was none before."""

        self.on_healed_record: Final[list[Callable[[str, int], None]]] = []
        """Called with topic and place of each record that was damaged, and is good again."""

        self._log: Final = commit_log
        self._table: Final = table
        self._guard: Final = guard
        self._delay_levels_ms: Final = delay_levels_ms
        self._repaired: Final = repaired
        guard.damage.on_healed.append(self._healed)

    def __repr__(self) -> str:
        return f"<DerivedRepair {self.queues!r} {self.index!r}>"

    @property
    def index_rebuilds(self) -> int:
        return 0 if self.index is None else self.index.rebuilds

    def step(self) -> bool:
        """One slice of work, of some milliseconds. False when there is none left to do now."""
        return self.queues.step() or (self.index is not None and self.index.step())

    def forget(self) -> None:
        """The log or its queues are about to become others: nothing that is known holds any more."""
        self.queues.forget()
        if self.index is not None:
            self.index.forget()

    def _healed(self, start: int, end: int) -> None:
        """``[start, end)`` of the log is good again: queues that were built while it was not get what they lack."""
        self.queues.forget_lost(start, end)
        view = self._log.view(start)[: end - start]
        touched: set[ConsumeQueue] = set()
        position = 0
        for stop in self._guard.record_ends(view, start):
            facts = record_facts(view, position, stop - position, self._delay_levels_ms)
            for listener in self.on_healed_record:
                listener(facts.topic, start + position)
            queue = self._table.get(facts.topic, facts.queue_id)
            number = facts.queue_offset
            is_wanted = facts.is_queued and not self._table.is_deleted(facts.topic, start + position)
            if queue is not None and is_wanted and queue.min_offset <= number < queue.readable_end:
                unit = queue.unit(number)
                if unit is not None and unit[1] == FILLER_SIZE:
                    queue.replace_unit(number, UNIT.pack(start + position, stop - position, facts.tags_code))
                    touched.add(queue)
            position = stop
        if touched:
            self._repaired(touched)
