"""Repair of consume queues while the store serves: a unit that does not lead to its message is rebuilt from the log.

    units      ... | n-1 proved | n wrong ... | m proved | ...
    log            |- the records between the two proved neighbours are read ----|
                      `- holds the message: its unit is written in place
                      `- damaged: the message is lost where the damage is, and reading passes over it
                      `- neither: every unit of the queue is rebuilt from the whole log

A unit is *proved* by a whole record, at the place and of the size that it says, of this topic, queue and queue offset.
No unit is replaced by a guess: what the log does not have stays unreadable until the whole log has been read.

A queue with a wrong unit is ``is_corrupt``, and the next recovery point lists it, so a start after a crash meanwhile
rebuilds all of it. The flag goes after the last unit has been written and the queue's files are marked for
``gantry-point``, which syncs them before it writes a point that does not list the queue.

Owned by the loop's thread. ``step`` reads at most ``sliced_scan.SLICE_BYTES`` of the log or proves at most
``SLICE_UNITS`` units, and the caller gives others a turn between two steps. A read that arrives at such a unit raises
``QueueRebuilding`` meanwhile, and can be repeated afterwards: nothing was skipped, and nothing was served twice.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, final

from gantry_broker.errors import StoreFailed
from gantry_broker.store.commit_log import CommitLog
from gantry_broker.store.consume_queue import FILLER_SIZE, UNIT, ConsumeQueue
from gantry_broker.store.queue_table import QueueTable
from gantry_broker.store.record_dispatch import RecordFacts, plain_facts, record_facts
from gantry_broker.store.recovery import Seals
from gantry_broker.store.sliced_scan import LogScan
from gantry_wire.message import RECORD_BYTES_MIN, check_record
from gantry_wire.names import SCHEDULE_TOPIC
from gantry_wire.plain_records import PlainRecord

log = logging.getLogger(__name__)

SLICE_UNITS: Final = 256
"""Units that one step proves. Each needs a look at its record, which may have to come from the disk."""

COMPARED_UNITS_MAX: Final = 200
"""Units that one pull with a filter compares with their records. What lies behind is for the next one."""

LOST_UNITS_MAX: Final = 65_536
"""Units of damaged messages that are remembered, so that reading passes over them without a search; oldest go first."""

REPORT_INTERVAL_MS: Final = 60_000
"""Repairs of one queue within this time are one line in the log, not one for each unit."""


@dataclass(frozen=True, slots=True)
class _Episode:
    """What was found wrong in one queue and is not reported yet."""

    reported_ms: int | None = None
    rebuilt: int = 0
    lost: int = 0
    first: int = 0
    reason: str = ""


class _Range(NamedTuple):
    """Units ``[first, end)`` that are in doubt, and the log ``[low, high)`` that holds their records."""

    first: int
    end: int
    low: int
    high: int


class _Found(NamedTuple):
    """What reading the log of a range has shown."""

    first: int
    is_found: bytearray
    """For each unit from ``first`` on whether the log has its record."""

    damaged: list[tuple[int, int]]
    rebuilt: int
    """How many units were written."""


@final
class QueueRepair:
    """Finds out what a wrong unit must be, and writes it."""

    def __init__(
        self,
        commit_log: CommitLog,
        queues: QueueTable,
        *,
        seals: Seals,
        delay_levels_ms: tuple[int, ...],
        monotonic_ms: Callable[[], int],
        repaired: Callable[[Collection[ConsumeQueue]], None],
        request_point: Callable[[], None],
    ) -> None:
        """``repaired`` is called with queues that can be read again, ``request_point`` when the point must change."""
        self.units_rebuilt = 0
        self.units_lost = 0
        """Units of messages that the log does not have any more, or not whole."""

        self.on_damage: Final[list[Callable[[], None]]] = []
        """Called when there is work for ``step`` and was none before."""

        self._log: Final = commit_log
        self._queues: Final = queues
        self._seals: Final = seals
        self._delay_levels_ms: Final = delay_levels_ms
        self._monotonic_ms: Final = monotonic_ms
        self._repaired: Final = repaired
        self._request_point: Final = request_point
        self._waiting: OrderedDict[ConsumeQueue, int] = OrderedDict()
        """Queues in doubt, with the queue offset that was found wrong."""

        self._running: Iterator[None] | None = None
        self._lost: Final[OrderedDict[tuple[ConsumeQueue, int], int]] = OrderedDict()
        """Units that lead into damage of the log, as a search has shown; the value is where they lead."""

        self._episodes: Final[dict[ConsumeQueue, _Episode]] = {}

    def __repr__(self) -> str:
        return f"<QueueRepair waiting={len(self._waiting)} rebuilt={self.units_rebuilt} lost={self.units_lost}>"

    @property
    def queues_waiting(self) -> int:
        """How many queues are being repaired or wait for it."""
        return len(self._waiting)

    # -- what readers say ----------------------------------------------------------------------------------------------

    def is_lost(self, queue: ConsumeQueue, offset: int, physical: int) -> bool:
        """Whether a unit that leads to ``physical``, where its message is not, leads into damage of the log.

        False until a search has shown it; the queue is searched and repaired by the next steps then.
        """
        if self._lost.get((queue, offset)) == physical:
            return True
        self.start(queue, offset, reason="a unit does not lead to its message")
        return False

    def known_end(self, queue: ConsumeQueue, begin: int, offset: int, end: int) -> int:
        """Where the units of ``[offset, end)`` end whose tags codes are as the log has them.

        A page that is not known is compared with its records, at most ``COMPARED_UNITS_MAX`` units from ``begin`` on,
        where the pull began. Where a unit is wrong, it is rebuilt by the next steps.
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
                    if not self._is_right(queue, one):
                        self.start(queue, one, reason="a unit contradicts its message")
                        return max(offset, min(one, end))
            sums.learn(page, stop - page * sums.page_units)
            number = stop
        return min(number, end)

    def _is_right(self, queue: ConsumeQueue, number: int) -> bool:
        """Whether a unit is as the log has it, as far as the log can tell."""
        unit = queue.unit(number)
        if unit is None or unit[1] == FILLER_SIZE or self._lost.get((queue, number)) == unit[0]:
            return True
        return self._proved_end(queue, number) is not None

    def start(self, queue: ConsumeQueue, offset: int, *, reason: str) -> None:
        """Have the unit of ``offset`` and its neighbours rebuilt, which are in doubt."""
        if queue in self._waiting:
            return
        unit = queue.unit(offset)
        if unit is not None:
            self._log.demand_own(unit[0])
        episode = self._episodes.setdefault(queue, _Episode())
        if not episode.rebuilt and not episode.lost:
            self._episodes[queue] = replace(episode, first=offset, reason=reason)
        queue.mark_corrupt()
        self._waiting[queue] = offset
        self._request_point()
        for listener in self.on_damage:
            listener()

    def take_shortened(self) -> None:
        """Have those queues rebuilt that have a file which another process has shortened.

        One that waits already stays where it is until it is rebuilt: more of it may be lost than was known.
        """
        shortened = self._queues.shortened
        for _ in range(len(shortened)):
            queue, offset = shortened.popleft()
            if queue in self._waiting:
                shortened.append((queue, offset))
            elif self._is_current(queue):
                queue.seek(queue.readable_end)  # blocks may be missing where the cursor is
                self.start(queue, max(offset, queue.min_offset), reason="a file of it was shortened")

    def forget_lost(self, start: int, end: int) -> None:
        """``[start, end)`` of the log is whole again: messages there are searched anew and served."""
        for key in [key for key, physical in self._lost.items() if start <= physical < end]:
            del self._lost[key]

    def forget(self) -> None:
        """The log or its queues are about to become others: nothing that is known holds any more."""
        self._running = None
        self._waiting.clear()
        self._lost.clear()
        self._episodes.clear()

    # -- repairing -----------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """One slice of work. False when there is none left."""
        if self._running is None:
            self.take_shortened()
            if not self._waiting:
                return self._report_late()
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
            return False  # The process ends: nothing may be rebuilt from another store's log.
        except Exception as exc:
            # A repair that fails must not end the broker. The recovery point lists the queue.
            facts = {"topic": queue.topic, "queue_id": queue.queue_id}
            log.error("rebuilding a consume queue failed; the next start rebuilds it", exc_info=exc, extra=facts)
        self._running = None
        self._waiting.pop(queue, None)
        self._repaired({queue})
        return bool(self._waiting)

    def repair_now(self, topic: str, queue_id: int) -> bool:
        """Take one step for this queue, if it is the next one; whether it can be read again."""
        queue = self._queues.get(topic, queue_id)
        if self._running is None and next(iter(self._waiting), None) is queue:
            self.step()
        return queue not in self._waiting

    def _repair(self, queue: ConsumeQueue, offset: int) -> Iterator[None]:
        log_end = self._log.wrote
        first, low = yield from self._proved_before(queue, offset)
        end, high = yield from self._proved_after(queue, min(offset + 1, queue.readable_end), log_end)
        found = yield from self._rebuild(queue, _Range(first, end, low, high))
        rebuilt = found.rebuilt
        if not found.damaged and (yield from self._unexplained(queue, found)):
            # The neighbours were wrong, too, or the record is where no neighbour points: the log as a whole decides.
            whole = _Range(queue.min_offset, queue.readable_end, self._log.min_physical, log_end)
            found = yield from self._rebuild(queue, whole)
            rebuilt += found.rebuilt
        unexplained = yield from self._unexplained(queue, found)
        if not self._is_current(queue):
            return
        rebuilt += self._fill_expired(queue, offset)
        for number in unexplained:
            rebuilt += self._give_up(queue, number, found)
        self._finish(queue, rebuilt, len(unexplained))

    def _is_current(self, queue: ConsumeQueue) -> bool:
        return self._queues.get(queue.topic, queue.queue_id) is queue

    def _proved_before(self, queue: ConsumeQueue, first: int) -> Generator[None, None, tuple[int, int]]:
        """Behind the last proved unit before ``first``, and where the record of that unit ends."""
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
        """The first proved unit from ``end`` on, and where its record begins."""
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
        """Where the record of a unit ends, if the unit leads to a whole record of its message."""
        unit = queue.unit(number)
        if unit is None or unit[1] == FILLER_SIZE or self._queues.is_deleted(queue.topic, unit[0]):
            return None
        physical, size, tags_code = unit
        written = self._log.view(physical)
        check = check_record(written, 0, physical_offset=physical, is_sealed=self._seals(physical).is_ours)
        if not check.is_good or check.size != size:
            return None
        facts = record_facts(written, 0, size, self._delay_levels_ms)
        is_ours = facts[:3] == (queue.topic, queue.queue_id, number) and self._is_code(queue, facts, tags_code)
        return physical + size if is_ours else None

    def _is_code(self, queue: ConsumeQueue, facts: RecordFacts, code: int) -> bool:
        """Whether ``code`` is right for a message. Due times are of the delays of the day it was stored."""
        return facts.tags_code == code or queue.topic == SCHEDULE_TOPIC

    def _rebuild(self, queue: ConsumeQueue, doubted: _Range) -> Generator[None, None, _Found]:
        """Read ``[low, high)``, and write each unit of ``[first, end)`` that is not what its record says."""
        rebuilt = 0
        name, topic_bytes, queue_id = queue.topic, queue.topic_bytes, queue.queue_id
        first, end = doubted.first, doubted.end
        is_found = bytearray(max(0, end - first))
        deleted_before = self._queues.deleted.get(name, -1)

        def take(facts: RecordFacts, physical: int, size: int) -> None:
            nonlocal rebuilt
            number = facts.queue_offset
            is_meant = facts.is_queued and facts.queue_id == queue_id and facts.topic == name
            if not is_meant or not first <= number < end or physical < deleted_before:
                return
            is_found[number - first] = 1
            unit = queue.unit(number)
            if unit is not None and (unit[:2] != (physical, size) or not self._is_code(queue, facts, unit[2])):
                queue.replace_unit(number, UNIT.pack(physical, size, facts.tags_code))
                rebuilt += 1

        def take_plain(records: Iterable[PlainRecord], run_end: int) -> int:
            for record in records:
                physical, size, topic, number_of_queue, number, _, _ = record
                run_end = physical + size
                if topic == topic_bytes and number_of_queue == queue_id and first <= number < end:
                    take(plain_facts(record, self._delay_levels_ms), physical, size)
            return run_end

        def take_any(view: memoryview, position: int, physical: int, size: int) -> None:
            take(record_facts(view, position, size, self._delay_levels_ms), physical, size)

        scan = LogScan(self._log, doubted.low, doubted.high, self._seals, found=take_any, found_plain=take_plain)
        while scan.step():
            yield
            if not self._is_current(queue):
                break
        return _Found(first, is_found, scan.damaged, rebuilt)

    def _unexplained(self, queue: ConsumeQueue, found: _Found) -> Generator[None, None, list[int]]:
        """Units without a record that ought to have one: those that are no filler, and have not expired."""
        unexplained: list[int] = []
        at = found.is_found.find(0)
        while at >= 0:
            unit = queue.unit(found.first + at)
            if unit is not None and unit[1] != FILLER_SIZE and unit[0] >= self._log.min_physical:
                unexplained.append(found.first + at)
            at = found.is_found.find(0, at + 1)
            if at % SLICE_UNITS == 0:
                yield
        return unexplained

    def _fill_expired(self, queue: ConsumeQueue, number: int) -> int:
        """A unit that leads before the log's beginning, and whose message is nowhere, is one of nothing."""
        unit = queue.unit(number)
        if unit is None or unit[1] == FILLER_SIZE or unit[0] >= self._log.min_physical:
            return 0
        _fill(queue, number)
        return 1

    def _give_up(self, queue: ConsumeQueue, number: int, found: _Found) -> int:
        """The log has no record for a unit: let it lead into the damage that took it, or say that there is nothing.

        How many units were written.
        """
        unit = queue.unit(number)
        if unit is None:
            return 0  # it has expired a moment ago
        place, is_written = unit[0], False
        if not found.damaged:
            _fill(queue, number)
            is_written = True
        elif not any(start <= place < end for start, end in found.damaged):
            place, is_written = found.damaged[0][0], True
            queue.replace_unit(number, UNIT.pack(place, RECORD_BYTES_MIN, 0))
        self._lost[queue, number] = place
        while len(self._lost) > LOST_UNITS_MAX:
            self._lost.popitem(last=False)
        facts = {"topic": queue.topic, "queue_id": queue.queue_id, "queue_offset": number, "offset": place}
        log.error("a stored message is damaged and was passed over", extra=facts)
        return int(is_written)

    # -- what is said about it -----------------------------------------------------------------------------------------

    def _finish(self, queue: ConsumeQueue, rebuilt: int, lost: int) -> None:
        if all(shortened is not queue for shortened, _ in tuple(self._queues.shortened)):
            queue.mark_whole()
        self._request_point()
        self.units_rebuilt += rebuilt
        self.units_lost += lost
        episode = self._episodes.setdefault(queue, _Episode())
        episode = replace(episode, rebuilt=episode.rebuilt + rebuilt, lost=episode.lost + lost)
        self._episodes[queue] = episode
        now_ms = self._monotonic_ms()
        if episode.reported_ms is None or now_ms - episode.reported_ms >= REPORT_INTERVAL_MS:
            self._say(queue, episode, now_ms)

    def _report_late(self) -> bool:
        """Say what was held back, once its time has come. Always False: this is no work to wait for."""
        now_ms = self._monotonic_ms()
        for queue, episode in list(self._episodes.items()):
            if episode.reported_ms is not None and now_ms - episode.reported_ms >= REPORT_INTERVAL_MS:
                if episode.rebuilt or episode.lost:
                    self._say(queue, episode, now_ms)
                else:
                    del self._episodes[queue]
        return False

    def _say(self, queue: ConsumeQueue, episode: _Episode, now_ms: int) -> None:
        if episode.rebuilt or episode.lost:
            facts = {
                "topic": queue.topic, "queue_id": queue.queue_id, "queue_offset": episode.first,
                "units_rebuilt": episode.rebuilt, "messages_lost": episode.lost, "reason": episode.reason,
            }  # fmt: skip
            log.warning("consume queue was damaged and has been rebuilt from the commit log", extra=facts)
        self._episodes[queue] = _Episode(reported_ms=now_ms)


def _fill(queue: ConsumeQueue, number: int) -> None:
    """Let a unit say that there is no message.

    Physical offsets rise along the queue, by which it is searched: a zero in the middle would pass for its beginning.
    """
    before = queue.unit(number - 1)
    queue.replace_unit(number, UNIT.pack(0 if before is None else before[0], FILLER_SIZE, 0))
