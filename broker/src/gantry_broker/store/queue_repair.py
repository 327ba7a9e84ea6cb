"""Repair of consume queues while the store serves: a unit that does not point to its message is rebuilt from the log.

    units      ... | n-1 proved | n wrong ... | m proved | ...
    log            |- the records between the two proved neighbours are read ----|
                      `- holds the message: its unit is written in place
                      `- damaged: the message is lost where the damage is, and reading skips it
                      `- neither: every unit of the queue is rebuilt from the whole log

A unit is *proved* by a whole record of this topic, queue and queue offset, at the offset in the unit, and with its size
and tags code. What was not found near stays unreadable until the whole log was read, unless damage near it explains the
loss.

A queue with a wrong unit is ``is_corrupt``, and the next recovery point lists it, so that a start after a crash
meanwhile rebuilds all of it. The flag is cleared after the last unit has been written and the queue's files are marked
for the thread ``gantry-point`` (``point_writer``), which syncs them before it writes a point that does not list the
queue.

Owned by the loop's thread. ``step`` reads at most ``sliced_scan.SLICE_BYTES`` of the log or proves at most
``SLICE_UNITS`` units, and the caller serves other requests between two steps. A read of such a unit raises
``QueueRebuilding`` meanwhile, and can be repeated afterwards: no message is skipped, and none is served twice.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from typing import Final, NamedTuple, final

from gantry_broker.errors import StoreFailed
from gantry_broker.store.commit_log import CommitLog
from gantry_broker.store.consume_queue import FILLER_SIZE, UNIT, ConsumeQueue
from gantry_broker.store.queue_table import QueueTable
from gantry_broker.store.record_dispatch import RecordFields, parse_plain_record_fields, parse_record_fields
from gantry_broker.store.recovery import Seals
from gantry_broker.store.repair_log import RepairLog
from gantry_broker.store.sliced_scan import LogScan
from gantry_broker.store.void_records import is_void
from gantry_store_files.queue_units import NO_UNIT
from gantry_wire.message import RECORD_BYTES_MIN, check_record
from gantry_wire.names import SCHEDULE_TOPIC
from gantry_wire.plain_records import PlainRecord

log = logging.getLogger(__name__)

SLICE_UNITS: Final = 256
"""How many units one step proves. Each needs its record, which may have to be read from the disk."""

COMPARED_UNITS_MAX: Final = 200
"""From how many units on a pull with a filter compares no further page with its records. The next pull does."""

LOST_UNITS_MAX: Final = 65_536
"""How many units of damaged messages are remembered, so that reading skips them without a search."""


class _SuspectRange(NamedTuple):
    """Units ``[first, end)`` that may be wrong, and the log range ``[low, high)`` that holds their records."""

    first: int
    end: int
    low: int
    high: int


class _ScanOutcome(NamedTuple):
    """The result of reading the log range of suspect units."""

    first: int
    is_found: bytearray
    """For each unit from ``first`` on, 1 if the log has its record."""

    damaged: list[tuple[int, int]]
    rebuilt: int
    """How many units were written."""


@final
class QueueRepair:
    """Determines from the log what a wrong unit must be, and writes it."""

    def __init__(
        self,
        commit_log: CommitLog,
        queues: QueueTable,
        *,
        seals: Seals,
        delay_levels_ms: tuple[int, ...],
        monotonic_ms: Callable[[], int],
        on_repaired: Callable[[Collection[ConsumeQueue]], None],
        request_point: Callable[[], None],
    ) -> None:
        """``on_repaired`` is called with queues that can be read again, ``request_point`` for a recovery point."""
        self.units_rebuilt = 0
        self.units_lost = 0
        """How many units belong to messages that are damaged in the log or missing from it."""

        self.on_damage: Final[list[Callable[[], None]]] = []
        """Called when ``step`` has new work."""

        self._log: Final = commit_log
        self._queues: Final = queues
        self._seals: Final = seals
        self._delay_levels_ms: Final = delay_levels_ms
        self._on_repaired: Final = on_repaired
        self._request_point: Final = request_point
        self._waiting: OrderedDict[ConsumeQueue, int] = OrderedDict()
        """Queues to repair, each with the queue offset that was found wrong."""

        self._running: Iterator[None] | None = None
        self._lost: Final[OrderedDict[tuple[ConsumeQueue, int], int]] = OrderedDict()
        """Units that point into damaged parts of the log, each with the physical offset in it."""

        self._repair_log: Final = RepairLog(monotonic_ms)

    def __repr__(self) -> str:
        return f"<QueueRepair waiting={len(self._waiting)} rebuilt={self.units_rebuilt} lost={self.units_lost}>"

    @property
    def queues_waiting(self) -> int:
        """The number of queues that are being repaired or wait for repair."""
        return len(self._waiting)

    # -- calls from readers --------------------------------------------------------------------------------------------

    def check_lost_or_repair(self, queue: ConsumeQueue, offset: int, physical: int) -> bool:
        """Return whether the message of a unit is known to be lost in damage of the log at ``physical``.

        The unit does not point to its message. If it is not known to be lost, a repair is requested: the next steps
        search the log and rebuild the queue.
        """
        if self._lost.get((queue, offset)) == physical:
            return True
        self.request_repair(queue, offset, reason="a unit does not point to its message")
        return False

    def known_end(self, queue: ConsumeQueue, begin: int, offset: int, end: int) -> int:
        """Return the end of the units in ``[offset, end)`` whose tags codes match the log.

        A page without a valid checksum, unless this process is filling it, is compared with its records: about
        ``COMPARED_UNITS_MAX`` units from ``begin`` on, where the pull began. The next steps rebuild a wrong unit.
        """
        sums, compared_end = queue.unit_sums, begin + COMPARED_UNITS_MAX
        end = min(end, queue.readable_end)
        number = offset
        while number < end:
            known = sums.known_end(number)
            if known > number:
                number = known
                continue
            page = number // sums.page_units
            first, page_end = max(page * sums.page_units, queue.min_offset), (page + 1) * sums.page_units
            stop = min(page_end, queue.readable_end)
            if stop == page_end or first < sums.written_from or sums.is_altered(page):
                if number >= compared_end:
                    return number
                for one in range(first, stop):
                    if not self._matches_log(queue, one):
                        self.request_repair(queue, one, reason="a unit contradicts its message")
                        return max(offset, min(one, end))
            sums.learn(page, stop - page * sums.page_units)
            number = stop
        return min(number, end)

    def _matches_log(self, queue: ConsumeQueue, number: int) -> bool:
        """Return whether a unit matches the log, as far as the log can prove it."""
        unit = queue.unit(number)
        if unit is None or unit[1] == FILLER_SIZE or self._lost.get((queue, number)) == unit[0]:
            return True
        return self._proved_end(queue, number) is not None

    def request_repair(self, queue: ConsumeQueue, offset: int, *, reason: str) -> None:
        """Request that the unit at ``offset`` and its suspect neighbours are rebuilt."""
        if queue in self._waiting:
            return
        unit = queue.unit(offset)
        if unit is not None:
            self._log.require_own_file(unit[0])
        self._repair_log.note_request(queue, offset, reason)
        queue.mark_corrupt()
        self._waiting[queue] = offset
        self._request_point()
        for listener in self.on_damage:
            listener()

    def enqueue_shortened(self) -> None:
        """Request a rebuild of the queues that have a file which another process has shortened.

        A queue that waits for repair already stays in the deque until that is done: it may have lost more since.
        """
        shortened = self._queues.shortened
        for _ in range(len(shortened)):
            queue, offset = shortened.popleft()
            if queue in self._waiting:
                shortened.append((queue, offset))
            elif self._is_current(queue):
                queue.seek(queue.readable_end)  # blocks may be missing where the cursor is
                self.request_repair(queue, max(offset, queue.min_offset), reason="a file of the queue was shortened")

    def forget_lost(self, start: int, end: int) -> None:
        """Forget lost units in ``[start, end)`` of the log, which is healed: messages there are served again."""
        for key in [key for key, physical in self._lost.items() if start <= physical < end]:
            del self._lost[key]

    def reset(self) -> None:
        """Drop all state, before the log or its queues are replaced."""
        self._running = None
        self._waiting.clear()
        self._lost.clear()
        self._repair_log.reset()

    # -- repairing -----------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Do one slice of work. Return False if none is left."""
        if self._running is None:
            self.enqueue_shortened()
            if not self._waiting:
                self._repair_log.log_deferred()
                return False
            queue, offset = next(iter(self._waiting.items()))
            self._running = self._repair(queue, offset)
        queue = next(iter(self._waiting))
        try:
            next(self._running)
            return True
        except StopIteration:
            pass
        except StoreFailed:
            self._running = None  # an exhausted generator would count as a finished repair
            return False  # The process ends: nothing may be rebuilt from the log of another store.
        except Exception as exc:
            # A repair that fails must not end the broker. The recovery point lists the queue.
            extra = {"topic": queue.topic, "queue_id": queue.queue_id}
            log.error("rebuilding a consume queue failed; the next start rebuilds it", exc_info=exc, extra=extra)
        self._running = None
        self._waiting.pop(queue, None)
        self._on_repaired({queue})
        return bool(self._waiting)

    def repair_now(self, topic: str, queue_id: int) -> bool:
        """Do one step for this queue if it is the next one. Return whether it can be read again."""
        queue = self._queues.get(topic, queue_id)
        if self._running is None and next(iter(self._waiting), None) is queue:
            self.step()
        return queue not in self._waiting

    def _repair(self, queue: ConsumeQueue, offset: int) -> Iterator[None]:
        log_end = self._log.wrote
        first, low = yield from self._proved_before(queue, offset)
        end, high = yield from self._proved_after(queue, min(offset + 1, queue.readable_end), log_end)
        found = yield from self._rebuild(queue, _SuspectRange(first, end, low, high))
        rebuilt = found.rebuilt
        unexplained, empty = yield from self._find_missing(queue, found)
        if not found.damaged and not all(self._is_void(queue, number) for number in unexplained):
            # The neighbours were wrong, too, or the record lies outside their range: the whole log decides.
            whole = _SuspectRange(queue.min_offset, queue.readable_end, self._log.min_physical, log_end)
            found = yield from self._rebuild(queue, whole)
            rebuilt += found.rebuilt
            unexplained, empty = yield from self._find_missing(queue, found)
        if not self._is_current(queue):
            return
        for number in unexplained:
            rebuilt += self._mark_lost(queue, number, found)
        expired = [offset] if found.damaged else [offset, *empty]  # A damaged record may be that of an empty unit.
        for count, number in enumerate(expired, start=1):
            rebuilt += self._fill_expired(queue, number)
            if count % SLICE_UNITS == 0:
                yield
        self._finish(queue, rebuilt, len(unexplained))

    def _is_current(self, queue: ConsumeQueue) -> bool:
        return self._queues.get(queue.topic, queue.queue_id) is queue

    def _proved_before(self, queue: ConsumeQueue, first: int) -> Generator[None, None, tuple[int, int]]:
        """Return the unit after the last proved one before ``first``, and where the record of the proved one ends."""
        log_begin = self._log.min_physical
        for count, number in enumerate(range(first - 1, queue.min_offset - 1, -1), start=1):
            end = self._proved_end(queue, number)
            if end is not None:
                return first, end
            first = number
            if count % SLICE_UNITS == 0:
                yield
                if number <= queue.min_offset:
                    break
        return first, log_begin

    def _proved_after(self, queue: ConsumeQueue, end: int, log_end: int) -> Generator[None, None, tuple[int, int]]:
        """Return the first proved unit from ``end`` on, and where its record begins."""
        while end < queue.readable_end:
            if self._proved_end(queue, end) is not None:
                unit = queue.unit(end)
                assert unit is not None, (queue, end)
                return end, unit[0]
            end += 1
            if end % SLICE_UNITS == 0:
                yield
        return end, log_end

    def _proved_end(self, queue: ConsumeQueue, number: int) -> int | None:
        """Return where the record of a unit ends if the unit points to the whole record of its message, else None."""
        unit = queue.unit(number)
        if unit is None or unit[1] == FILLER_SIZE or self._queues.is_deleted(queue.topic, unit[0]):
            return None
        physical, size, tags_code = unit
        written = self._log.view(physical)
        check = check_record(written, 0, physical_offset=physical, is_sealed=self._seals(physical).is_ours)
        if not check.is_good or check.size != size:
            return None
        fields = parse_record_fields(written, 0, size, self._delay_levels_ms)
        is_of_unit = fields[:3] == (queue.topic, queue.queue_id, number) and self._is_code(queue, fields, tags_code)
        return physical + size if is_of_unit else None

    def _is_code(self, queue: ConsumeQueue, fields: RecordFields, code: int) -> bool:
        """Return whether ``code`` is right. Due times depend on the delay levels at storing, so any one is accepted."""
        return fields.tags_code == code or queue.topic == SCHEDULE_TOPIC

    def _rebuild(self, queue: ConsumeQueue, suspect: _SuspectRange) -> Generator[None, None, _ScanOutcome]:
        """Read ``[low, high)`` of the log, and rewrite each unit of ``[first, end)`` that does not match its record."""
        rebuilt = 0
        name, topic_bytes, queue_id = queue.topic, queue.topic_bytes, queue.queue_id
        first, end = suspect.first, suspect.end
        is_found = bytearray(max(0, end - first))
        deleted_before = self._queues.deleted.get(name, -1)

        def take(fields: RecordFields, physical: int, size: int) -> None:
            nonlocal rebuilt
            number = fields.queue_offset
            is_of_queue = fields.is_queued and fields.queue_id == queue_id and fields.topic == name
            if not is_of_queue or not first <= number < end or physical < deleted_before:
                return
            is_found[number - first] = 1
            unit = queue.unit(number)
            if unit is not None and (unit[:2] != (physical, size) or not self._is_code(queue, fields, unit[2])):
                queue.replace_unit(number, UNIT.pack(physical, size, fields.tags_code))
                rebuilt += 1

        def take_plain(records: Iterable[PlainRecord], run_end: int) -> int:
            for record in records:
                physical, size, topic, number_of_queue, number, _, _ = record
                run_end = physical + size
                if topic == topic_bytes and number_of_queue == queue_id and first <= number < end:
                    take(parse_plain_record_fields(record, self._delay_levels_ms), physical, size)
            return run_end

        def take_any(view: memoryview, position: int, physical: int, size: int) -> None:
            take(parse_record_fields(view, position, size, self._delay_levels_ms), physical, size)

        scan = LogScan(
            self._log, suspect.low, suspect.high, self._seals, on_record=take_any, on_plain_records=take_plain
        )
        while scan.step():
            yield
            if not self._is_current(queue):
                break
        return _ScanOutcome(first, is_found, scan.damaged, rebuilt)

    def _find_missing(
        self, queue: ConsumeQueue, found: _ScanOutcome
    ) -> Generator[None, None, tuple[list[int], list[int]]]:
        """Return the units without a record that should have one, and the empty ones of expired messages.

        Fillers stand for no message.
        """
        unexplained: list[int] = []
        empty: list[int] = []
        at = found.is_found.find(0)
        while at >= 0:
            unit = queue.unit(found.first + at)
            if unit is not None and unit[1] != FILLER_SIZE and unit[0] >= self._log.min_physical:
                unexplained.append(found.first + at)
            elif unit == NO_UNIT:
                empty.append(found.first + at)
            at = found.is_found.find(0, at + 1)
            if at % SLICE_UNITS == 0:
                yield
        return unexplained, empty

    def _is_void(self, queue: ConsumeQueue, number: int) -> bool:
        """Return whether a void record is in the place of the record of a unit, which is lost."""
        unit = queue.unit(number)
        return unit is not None and is_void(self._log.view(unit[0]), unit[0])

    def _fill_expired(self, queue: ConsumeQueue, number: int) -> int:
        """Replace a unit that points before the log's beginning by a filler. Return how many units were written."""
        unit = queue.unit(number) if self._is_current(queue) else None
        if unit is None or unit[1] == FILLER_SIZE or unit[0] >= self._log.min_physical:
            return 0
        _fill(queue, number)
        return 1

    def _mark_lost(self, queue: ConsumeQueue, number: int, found: _ScanOutcome) -> int:
        """Let a unit without a record point into damage of the log, or make it a filler. Return how many changed."""
        unit = queue.unit(number)
        if unit is None:
            return 0  # it has expired meanwhile
        physical, is_written = unit[0], False
        if not found.damaged:
            _fill(queue, number)
            is_written = True
        elif not any(start <= physical < end for start, end in found.damaged):
            physical, is_written = found.damaged[0][0], True
            queue.replace_unit(number, UNIT.pack(physical, RECORD_BYTES_MIN, 0))
        self._lost[queue, number] = physical
        while len(self._lost) > LOST_UNITS_MAX:
            self._lost.popitem(last=False)
        extra = {"topic": queue.topic, "queue_id": queue.queue_id, "queue_offset": number, "offset": physical}
        log.error("stored message is damaged and was skipped", extra=extra)
        return int(is_written)

    def _finish(self, queue: ConsumeQueue, rebuilt: int, lost: int) -> None:
        if all(shortened is not queue for shortened, _ in tuple(self._queues.shortened)):
            queue.mark_intact()
        self._request_point()
        self.units_rebuilt += rebuilt
        self.units_lost += lost
        self._repair_log.note_repair(queue, rebuilt, lost)


def _fill(queue: ConsumeQueue, number: int) -> None:
    """Replace a unit by a filler, which stands for no message.

    Queues are searched by physical offset, which rises along the queue: a zero in the middle would look like its
    beginning.
    """
    before = queue.unit(number - 1)
    queue.replace_unit(number, UNIT.pack(0 if before is None else before[0], FILLER_SIZE, 0))
