"""Online repair of derived data that was found wrong: queues first, then the index.

The index is rebuilt from the file in which the fault was found: it and all later files are removed from the index, and
the log is read again from where that file began, a slice at a time, up to the visible end. Until then the index
``is_behind``: no batch is indexed twice, recovery points do not declare it durable, and a client's query that finds no
message is answered with "try again" (``KeyMatches.is_complete``); ``KeySearch.records`` raises also if it finds some.
An index that stopped on a full disk catches up in the same way, from its newest file on, once there is space.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
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
from gantry_broker.store.record_dispatch import RecordFields, parse_record_fields
from gantry_broker.store.recovery import Seals
from gantry_broker.store.scan_dispatcher import ScanDispatcher
from gantry_broker.store.settings import CONSUME_UNIT_BYTES
from gantry_broker.store.sliced_scan import LogScan

log = logging.getLogger(__name__)

BEGIN_UNITS_MAX: Final = 1_000
"""By how many units a queue begins earlier at once; for more it is rebuilt by the next start."""
RETRY_INTERVAL_MS: Final = 10_000
"""How long a rebuild waits after a full disk or another error of the disk, in milliseconds."""


@final
class IndexRepair:
    """Rebuilds the end of the index. Owned by the loop's thread."""

    def __init__(
        self,
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
        """Number of completed rebuilds of a part of the index."""

        self._log: Final = commit_log
        self._queues: Final = queues
        self._index: Final = index
        self._dispatcher: Final = dispatcher
        self._seals: Final = seals
        self._delay_levels_ms: Final = delay_levels_ms
        self._monotonic_ms: Final = monotonic_ms
        self._request_point: Final = request_point
        self._scan_dispatcher: ScanDispatcher | None = None
        self._offset = 0
        self._begin = 0
        self._retry_at_ms: int | None = None

    def __repr__(self) -> str:
        return f"<IndexRepair of {self._index.directory} rebuilds={self.rebuilds}>"

    @property
    def is_waiting_for_room(self) -> bool:
        """Whether the last attempt failed, on a full disk or another error of it, and no other one has begun."""
        return self._retry_at_ms is not None

    def step(self) -> bool:
        """Do one slice of work. Return False if none is left, or if it must wait after an error of the disk."""
        index = self._index
        if not index.is_behind:
            return False
        if self._retry_at_ms is not None and self._monotonic_ms() < self._retry_at_ms:
            return False
        self._retry_at_ms = None
        scan_dispatcher = self._scan_dispatcher
        if scan_dispatcher is None or index.damaged is not None:
            scan_dispatcher = self._start()
        end = self._dispatcher.last_dispatched[0]
        scan = LogScan(
            self._log, self._offset, end, self._seals,
            on_record=scan_dispatcher.dispatch_record, on_plain_records=scan_dispatcher.dispatch_plain_records,
        )  # fmt: skip
        try:
            is_more = scan.step()
        except StoreFailed:
            return False  # The process ends: the index must not be rebuilt from another store's log.
        except (StoreFull, OSError) as exc:
            # The current file is dropped, and the log is read again from where that file began.
            log.warning("key index rebuild failed; it is retried", extra={"reason": str(exc)})
            self._scan_dispatcher, self._retry_at_ms = None, self._monotonic_ms() + RETRY_INTERVAL_MS
            return False
        self._offset = scan.offset
        if is_more:
            return True
        self._finish(end)
        return False

    def _start(self) -> ScanDispatcher:
        """Drop the damaged file and all later ones, or the newest if none is damaged, and rebuild from there."""
        index = self._index
        reason = index.damage_reason
        index.drop_files_to_rebuild()
        self._request_point()
        scan_dispatcher = ScanDispatcher(self._log, self._queues, index.put_for_rebuild, self._delay_levels_ms)
        scan_dispatcher.restrict_to(set())
        scan_dispatcher.skip_indexed(index.end_physical, index.count_last_keys())
        self._scan_dispatcher, self._begin = scan_dispatcher, max(index.end_physical, self._log.min_physical)
        self._offset = self._begin
        log.warning("rebuilding key index from the commit log", extra={"offset": self._begin, "reason": reason})
        return scan_dispatcher

    def _finish(self, end: int) -> None:
        self._scan_dispatcher = None
        self._index.mark_complete()
        self.rebuilds += 1
        self._request_point()
        log.warning("key index rebuilt from the commit log", extra={"offset": self._begin, "end": end})

    def index_healed_record(self, fields: RecordFields, physical: int) -> bool:
        """Rebuild the index from the record at ``physical`` on if its keys were not indexed while it was damaged.

        Return False if there is nothing to do, since the index has its keys or a running rebuild comes to it.
        """
        index = self._index
        is_to_come = index.is_behind and self._scan_dispatcher is not None and physical >= self._offset
        if is_to_come or not fields.keys:
            return False
        if index.has_entry(fields.topic, fields.keys[0], physical, fields.store_timestamp_ms):
            return False
        index.mark_entry_damaged(physical, f"the message at {physical} was damaged when it was to be indexed")
        self.reset()
        return True

    def reset(self) -> None:
        """Restart a running rebuild, because the log is about to be replaced, or was read too far."""
        self._scan_dispatcher = None


@final
class DerivedRepair:
    """Repairs queues and index of a running store. Owned by the loop's thread."""

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
        on_repaired: QueuesListener,
        request_point: Callable[[], None],
    ) -> None:
        """Create the repair.

        ``on_repaired`` is called with queues that are readable again, ``request_point`` to have a recovery point
        written.
        """
        self.queues: Final = QueueRepair(
            commit_log, table, seals=seals, delay_levels_ms=delay_levels_ms, monotonic_ms=monotonic_ms,
            on_repaired=on_repaired, request_point=request_point,
        )  # fmt: skip
        self.index: Final = None if index is None else IndexRepair(
            commit_log, table, index, dispatcher, seals=seals, delay_levels_ms=delay_levels_ms,
            monotonic_ms=monotonic_ms, request_point=request_point,
        )  # fmt: skip
        self.on_damage: Final = self.queues.on_damage
        """Callbacks for when ``step`` has new work, also if it had some before."""

        self.on_healed_record: Final[list[Callable[[str, int], None]]] = []
        """Callbacks with topic and physical offset of each record that was damaged and is healed."""

        self._log: Final = commit_log
        self._table: Final = table
        self._guard: Final = guard
        self._delay_levels_ms: Final = delay_levels_ms
        self._on_repaired: Final = on_repaired
        self._dispatcher: Final = dispatcher
        self._request_point: Final = request_point
        self.is_copying = False
        """Whether the log is a slave's, which is dispatched as the master confirms it."""

        self._deferred: list[tuple[int, int]] = []
        """Healed records beyond the visible end of the log."""
        guard.damage.on_healed.append(self._repair_healed_range)

    def __repr__(self) -> str:
        return f"<DerivedRepair {self.queues!r} {self.index!r}>"

    @property
    def index_rebuilds(self) -> int:
        return 0 if self.index is None else self.index.rebuilds

    def step(self) -> bool:
        """Do one slice of work, of some milliseconds. Return False if there is nothing to do now."""
        return self.queues.step() or (self.index is not None and self.index.step())

    def reset(self) -> None:
        """Discard all state of repairs, because the log or its queues are about to be replaced."""
        self._deferred.clear()
        self.queues.reset()
        if self.index is not None:
            self.index.reset()

    def place_deferred(self) -> None:
        """Place the healed records that were not visible when they were healed, and are now.

        A master has held the units without them.
        """
        if not self._deferred:
            return
        dispatched = self._dispatcher.dispatched
        due = [(start, end) for start, end in self._deferred if end <= dispatched]
        self._deferred = [one for one in self._deferred if one not in due]
        for start, end in due:
            self._repair_healed_range(start, end)

    def _place_unit(self, queue: ConsumeQueue, fields: RecordFields, physical: int, size: int) -> bool:
        """Write the unit of a healed record where its queue was built without it. Return whether that was so.

        A queue that has no place for it now is rebuilt by the next start.
        """
        number, unit = fields.queue_offset, UNIT.pack(physical, size, fields.tags_code)
        if physical >= self._dispatcher.dispatched:
            self._defer(queue, number, physical, size)
            return False
        try:
            if queue.min_offset <= number < queue.readable_end:
                stored = queue.unit(number)
                if stored is None or stored[1] != FILLER_SIZE:
                    return False
                queue.replace_unit(number, unit)
                return True
            if number < queue.min_offset and _begin_at(queue, number, unit):
                return True
            if number >= queue.readable_end:
                if queue.stored_unit(queue.readable_end - 1)[0] > physical:
                    return False  # newer messages were stored although its offset was unknown
                queue.put(number, physical, size, fields.tags_code)
                return True
        except StoreFull as exc:
            extra = {"offset": physical, "reason": str(exc)}
            log.error("healed message is not in its queue; the next start rebuilds the queue", extra=extra)
        queue.mark_corrupt()
        self._request_point()
        return False

    def _defer(self, queue: ConsumeQueue, number: int, physical: int, size: int) -> None:
        """Place a healed record later, and give no other message its offset. A slave's dispatch places it itself."""
        if not self.is_copying:
            self._deferred.append((physical, physical + size))
            if number >= queue.end:
                queue.reserve_offset(number)

    def _repair_healed_range(self, start: int, end: int) -> None:
        """Add the healed range ``[start, end)`` of the log to queues and index, where they were built without it."""
        self.queues.forget_lost(start, end)
        view = self._log.view(start)[: end - start]
        touched: set[ConsumeQueue] = set()
        is_index_behind = False
        position = 0
        for stop in self._guard.record_ends(view, start):
            fields = parse_record_fields(view, position, stop - position, self._delay_levels_ms)
            for listener in self.on_healed_record:
                listener(fields.topic, start + position)
            is_deleted = self._table.is_deleted(fields.topic, start + position)
            if self.index is not None and not is_deleted and self.index.index_healed_record(fields, start + position):
                is_index_behind = True
            if fields.is_queued and not is_deleted:
                with suppress(ValueError):  # the topic has a name that no directory can have
                    queue = self._table.get_or_create(fields.topic, fields.queue_id)
                    if self._place_unit(queue, fields, start + position, stop - position):
                        touched.add(queue)
            position = stop
        if is_index_behind:
            for wake in self.on_damage:
                wake()
        if touched:
            self._on_repaired(touched)


def _begin_at(queue: ConsumeQueue, offset: int, unit: bytes) -> bool:
    """Begin a queue at ``offset``, which lies before it, with this unit. Return False without a file for it.

    The queue was built without the message. Those between it and the first one are lost.
    """
    filler, first = UNIT.pack(UNIT.unpack(unit)[0], FILLER_SIZE, 0), queue.min_offset
    if first - offset > BEGIN_UNITS_MAX or queue.files.mapped_at(offset * CONSUME_UNIT_BYTES) is None:
        return False
    queue.min_offset = offset
    try:
        for number in range(first - 1, offset, -1):
            queue.replace_unit(number, filler)
        queue.replace_unit(offset, unit)
    except StoreFull:
        queue.min_offset = first
        raise
    return True
