"""Verification of the log at every read: no consumer and no slave is given a record that is not what was stored.

    pull    body of the answer --sums of the queue (``queue_sums``) match--> served
                               `- else: record by record, by its seal -----> good ones served, and their sums known now
    slaves, queries, transactions:  record by record, on a copy

The rule it guards: **bytes of the log leave this process only after a checksum over these very bytes was compared**: a
sum that was computed when they were written or verified, else the record's own seal, else, where RocketMQ wrote, its
body's CRC, its own offset and its lengths. Not once per start or per file: a file may change while the broker runs.
Since another store's records have seals, too, each file must still begin as it did (``CommitLog.demand_own``).

A damaged record is reported once, counted, and kept here until it is healed or its file expires. ``ask_replica`` may
have it fetched from a replica, now or as soon as one is connected; for a bounded time readers then wait before it
instead of stepping over it, since a consumer that has stepped over an acknowledged message never sees it again.

    found ---- ask_replica ----> healing ----> healed, and forgotten
      ^                           |   |
      `---- could not be written -'   `------> lost: no replica has it ---- asked again ----> healing
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, final

from gantry_broker.ports.clock import Clock
from gantry_broker.store.commit_log import CommitLog
from gantry_broker.store.consume_queue import ConsumeQueue
from gantry_broker.store.loss import FILLER_HEAD_BYTES
from gantry_broker.store.mapped_file import Extent
from gantry_broker.store.recovery import Seals
from gantry_wire.checksum import crc32
from gantry_wire.message import (
    CRC_MASK,
    INT,
    MESSAGE_MAGIC_V1,
    MESSAGE_MAGIC_V2,
    PHYSICAL_OFFSET_POSITION,
    RECORD_BYTES_MIN,
    RecordFault,
    check_record,
)
from gantry_wire.seal import SEAL, SEAL_BYTES, SEAL_REVERSED

log = logging.getLogger(__name__)

DAMAGE_MAX: Final = 10_000
"""Damaged ranges that are remembered. More than that is a broken disk, which the counters show."""

ANSWER_BYTES_MAX: Final = 8 << 20
"""Given to a replica at once: a frame of the replication stream, and more than the largest record."""

SEARCH_BYTES: Final = 8 << 20
"""How far the next good record is looked for where a damaged one does not say how long it is: two largest bodies."""

BLANK_BYTES: Final = 8
BLANK_PART_BYTES_MIN: Final = 4_096
"""The first part of a large blank record has everything in it that is not zero."""

_PLACE: Final = struct.Struct(">28xq")
assert _PLACE.size == PHYSICAL_OFFSET_POSITION + 8
_MAGICS: Final = tuple(magic.to_bytes(4, "big", signed=True) for magic in (MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2))
_MAGIC_POSITION: Final = 4


class DamageState(Enum):
    """What is being done about a damaged range."""

    FOUND = "found"
    """There is no replica to ask, or what it gave could not be written."""

    HEALING = "healing"
    """A replica was asked for it, or will be when it is connected."""

    LOST = "lost"
    """No replica that could be asked has it."""


@dataclass(slots=True)
class Damage:
    """A range of the log that holds no good record."""

    start: int
    end: int
    state: DamageState = DamageState.FOUND
    wait_until_ms: int = -1
    """Until then, on the monotonic clock, readers wait before it."""

    has_waited: bool = False
    """Whether the time has begun for which readers wait before it."""

    was_lost: bool = False
    """Whether it was counted as lost."""


class DamageCounters(NamedTuple):
    """What was found since the start."""

    found: int = 0
    found_bytes: int = 0
    healed: int = 0
    healed_bytes: int = 0
    lost: int = 0
    """Of those found: how many no replica could give."""


@final
class LogGuard:
    """Owned by the thread that owns the log."""

    def __init__(self, commit_log: CommitLog, seals: Seals, clock: Clock, *, heal_wait_ms: int) -> None:
        """``seals`` says where records must be sealed."""
        self.is_verifying = True
        """Tests switch it off to show what it guards against."""

        self.ask_replica: Callable[[Damage], bool] = lambda damage: False
        """Have a replica give the range, now or when one is connected. False if this broker has no replicas."""

        self.on_healed: Callable[[int, int], None] = lambda start, end: None
        """Called with a range of the log that is good again."""

        self.on_resolved: Callable[[], None] = lambda: None
        """Called when readers need not wait any more before some damaged range."""

        self.counters = DamageCounters()
        self._log: Final = commit_log
        self._seals: Final = seals
        self._clock: Final = clock
        self._heal_wait_ms: Final = heal_wait_ms
        self._damage: Final[dict[int, Damage]] = {}

    def __repr__(self) -> str:
        return f"<LogGuard damaged={len(self._damage)} verifying={self.is_verifying}>"

    # -- verification --------------------------------------------------------------------------------------------------

    def verified_bytes(self, queue: ConsumeQueue, offset: int, count: int, body: bytes, *, is_in_row: bool) -> int:
        """With how many bytes of good records ``body`` begins: ``count`` messages of ``queue``, the first of which is
        message ``offset``.

        ``is_in_row`` says that they follow each other in the queue, none left out. Each was found to say its own place.
        """
        if is_in_row and queue.proves(offset, count, body):
            return len(body)
        view = memoryview(body)
        ends = list(self._good_ends(view, None))
        if is_in_row and ends:
            starts = (0, *ends[:-1])
            queue.learn(offset, [view[start:end] for start, end in zip(starts, ends, strict=True)])
        return ends[-1] if ends else 0

    def is_good(self, view: memoryview, position: int, offset: int) -> bool:
        """Whether a good record begins at ``position`` of ``view``, which lies at ``offset`` in the log."""
        self._log.demand_own(offset)
        is_sealed = self._seals(offset).is_ours
        return check_record(view, position, physical_offset=offset, is_sealed=is_sealed).is_good

    def _good_ends(self, view: memoryview, offset: int | None) -> Iterator[int]:
        """Where the good records end with which ``view`` begins: it lies at ``offset`` in the log, or, if that is None,
        its records lie where they say themselves."""
        unpack, seal_of, mark, mask, seals = INT.unpack_from, SEAL.unpack_from, SEAL_REVERSED, CRC_MASK, self._seals
        position, end, size_min = 0, len(view), RECORD_BYTES_MIN
        unpack_place, file_size = _PLACE.unpack_from, self._log.file_size
        file_start = file_end = 0
        while end - position >= size_min:
            size = unpack(view, position)[0]
            stop = position + size
            if size < size_min or stop > end:
                return
            place = unpack_place(view, position)[0]
            if offset is not None and place != offset + position:
                return
            seal_start = stop - SEAL_BYTES
            if seal_of(view, seal_start)[0] != (mark % (crc32(view[position:seal_start]) & mask))[::-1]:
                # The general way: where no seal is demanded its body's CRC decides.
                check = check_record(view, position, physical_offset=place, is_sealed=seals(place).is_ours)
                if check.size != size or not check.is_good:
                    return
            if not file_start <= place < file_end:
                file_start = place - place % file_size
                file_end = file_start + file_size
                self._log.demand_own(place)
            yield stop
            position = stop

    def whole_records(self, offset: int, bytes_max: int) -> bytes:
        """Verified records from ``offset`` on: as many as fit, at least one, of those that lie in one extent.

        Empty where the log ends, and where the record at ``offset`` is damaged, which is reported.
        """
        commit_log = self._log
        extent = commit_log.at(offset)
        if extent is None or not commit_log.min_physical <= offset < commit_log.wrote:
            return b""
        if self.is_verifying and offset in self._damage and not self._is_record(offset):
            self.report(offset)
            return b""
        part = self._blank_part(extent, offset, bytes_max)
        if part:
            return part
        position = offset - extent.base_offset
        limit = min(extent.end_offset, commit_log.wrote) - extent.base_offset
        first_bytes = INT.unpack_from(extent.view, position)[0] if limit - position >= INT.size else 0
        # A copy: what is verified must be what is given away.
        data = bytes(extent.view[position : min(limit, position + max(bytes_max, first_bytes))])
        view, end = memoryview(data), 0
        for end in self._good_ends(view, offset):
            if end >= bytes_max:
                break
        rest = limit - position - end
        if rest >= BLANK_BYTES and end + rest <= max(bytes_max, BLANK_BYTES) and self._is_blank(offset + end, rest):
            end += rest  # to the end of the file
        elif not end and rest >= BLANK_BYTES and self._is_blank(offset, rest):
            return bytes(extent.view[position:limit])
        if not end and rest:
            if not self.is_verifying:
                return bytes(extent.view[position : position + max(first_bytes, 1)])
            self.report(offset)
        return data[:end]

    def record_around(self, offset: int) -> int:
        """Where the record begins that ``offset`` lies in or at; if that is damaged, where the one before it ends."""
        file_start = offset - offset % self._log.file_size
        if offset == file_start or self._is_record(offset):
            return offset
        start = max(file_start, self._log.min_physical, offset - SEARCH_BYTES)
        extent = self._log.at(start)
        if extent is None or extent.end_offset < offset:
            return offset
        data = bytes(extent.view[start - extent.base_offset : offset - extent.base_offset + _MAGIC_POSITION + 3])
        end = len(data)
        while (place := max(data.rfind(magic, 0, end) for magic in _MAGICS)) >= _MAGIC_POSITION:
            begin, end = start + place - _MAGIC_POSITION, place
            if begin < offset and self._is_record(begin):
                size: int = INT.unpack_from(extent.view, begin - extent.base_offset)[0]
                return begin if begin + size > offset else begin + size
        return start

    def records_through(self, start: int, end: int) -> bytes:
        """Good records from ``start`` on until one ends at or behind ``end``, of those that lie in one extent.

        Fewer where one is damaged, which is reported, and where the log ends.
        """
        extent = self._log.at(start)
        if extent is None or not self._log.min_physical <= start < self._log.wrote:
            return b""
        base, limit = extent.base_offset, min(extent.end_offset, self._log.wrote)
        data = bytes(extent.view[start - base : min(limit, start + ANSWER_BYTES_MAX) - base])
        whole = 0
        for whole in self._good_ends(memoryview(data), start):
            if start + whole >= end:
                return data[:whole]
        if self.is_blank(start + whole):
            # What lies behind the head of a blank record is nobody's, and no sign of another history.
            head = data[: whole + FILLER_HEAD_BYTES]
            return head + bytes(len(data) - len(head))
        if start + whole < limit and len(data) < ANSWER_BYTES_MAX:
            self.report(start + whole)
        return data[:whole]

    def _blank_part(self, extent: Extent, offset: int, bytes_max: int) -> bytes:
        """A part of a large blank record, which stands for lost log data; empty where there is none.

        It may be as large as a file, so it does not go at once. A slave takes zeros only behind the head of such a one.
        """
        commit_log = self._log
        base = offset - offset % commit_log.file_size
        end, position = base + commit_log.file_size, offset - extent.base_offset
        if end > commit_log.wrote or extent.end_offset != end:
            return b""
        begin = commit_log.blanks.get(base)
        if begin is None or begin > offset:
            is_begin = end - offset > max(bytes_max, BLANK_BYTES) and self._is_blank(offset, end - offset)
            if not is_begin and (any(extent.view[position : position + BLANK_BYTES]) or any(extent.view[position:])):
                return b""
            commit_log.blanks[base] = offset
        return bytes(extent.view[position : min(position + max(bytes_max, BLANK_PART_BYTES_MIN), len(extent.view))])

    def healthy_records(self, start: int, end: int) -> bytes:
        """Whole, verified records of ``[start, end)`` from ``start`` on, as many as one answer to a replica holds.

        Empty where there are none. Nothing is reported: only the one that asks knows whether a record begins there.
        """
        commit_log = self._log
        extent = commit_log.at(start)
        if extent is None or not commit_log.min_physical <= start < end <= commit_log.wrote:
            return b""
        position, stop = start - extent.base_offset, min(end, extent.end_offset) - extent.base_offset
        data = bytes(extent.view[position : min(stop, position + ANSWER_BYTES_MAX)])
        whole = max(self._good_ends(memoryview(data), start), default=0)
        if start + whole < end == extent.end_offset and self._is_blank(start + whole, end - start - whole):
            return data if len(data) == end - start else data[:whole]
        return data[:whole]

    def is_whole(self, data: bytes, start: int) -> bool:
        """Whether ``data`` is nothing but good records, or the blank that ends a file, of the log at ``start``."""
        whole = max(self._good_ends(memoryview(data), start), default=0)
        if whole == len(data):
            return True
        check = check_record(data, whole)
        is_end = (start + len(data)) % self._log.file_size == 0
        return check.fault is RecordFault.BLANK and is_end and check.size == len(data) - whole

    def is_good_now(self, start: int, end: int) -> bool:
        """Whether ``[start, end)`` of the log, as it is read now, is nothing but good records."""
        extent = self._log.at(start)
        if extent is None or end > extent.end_offset:
            return False
        return self.is_whole(bytes(extent.view[start - extent.base_offset : end - extent.base_offset]), start)

    def good_bytes(self, view: memoryview, start: int) -> int:
        """With how many bytes of good records ``view`` begins, which was read from the log at ``start``."""
        return max(self._good_ends(view, start), default=0)

    def record_ends(self, view: memoryview, start: int) -> list[int]:
        """Where the good records end with which ``view`` begins, which lies at ``start`` in the log."""
        return list(self._good_ends(view, start))

    def is_blank(self, offset: int) -> bool:
        """Whether the rest of its file is blank from ``offset`` on."""
        extent = self._log.at(offset)
        return extent is not None and self._is_blank(offset, extent.end_offset - offset)

    def size_at(self, offset: int) -> int:
        """How long the record at ``offset`` says that it is, if that is possible at all; else 0."""
        extent = self._log.at(offset)
        if extent is None or extent.end_offset - offset < RECORD_BYTES_MIN:
            return 0
        size: int = INT.unpack_from(extent.view, offset - extent.base_offset)[0]
        return size if RECORD_BYTES_MIN <= size <= min(extent.end_offset, self._log.wrote) - offset else 0

    def _is_blank(self, offset: int, size: int) -> bool:
        """Whether the rest of a file is blank from ``offset`` on."""
        extent = self._log.at(offset)
        if extent is None or (offset + size) % self._log.file_size:
            return False
        check = check_record(extent.view, offset - extent.base_offset, physical_offset=offset)
        return check.fault is RecordFault.BLANK and check.size == size

    def rest_of_record(self, offset: int) -> bytes:
        """Verified bytes from ``offset`` to the end of the record that it lies in the middle of; empty at its begin.

        Empty as well where the record is damaged: then none begins there either, and none is given.
        """
        commit_log = self._log
        file_start = offset - offset % commit_log.file_size
        if not commit_log.min_physical < offset < commit_log.wrote or offset == file_start:
            return b""
        if self._is_record(offset):
            return b""
        start = max(file_start, offset - SEARCH_BYTES)
        extent = commit_log.at(start)
        if extent is None or extent.end_offset < offset:
            return b""
        # Of a record that begins just before ``offset``, the magic may lie behind that.
        data = bytes(extent.view[start - extent.base_offset : offset - extent.base_offset + _MAGIC_POSITION + 3])
        end, after = len(data), start
        while (place := max(data.rfind(magic, 0, end) for magic in _MAGICS)) >= _MAGIC_POSITION:
            begin, end = start + place - _MAGIC_POSITION, place
            if not self._is_record(begin):
                continue
            size = INT.unpack_from(data, begin - start)[0]
            if begin + size <= offset:
                after = begin + size
                break
            whole = bytes(extent.view[begin - extent.base_offset :][:size])
            if any(True for _ in self._good_ends(memoryview(whole), begin)):
                return whole[offset - begin :]
        if after < offset and self._is_blank(after, rest := extent.end_offset - after):
            return bytes(extent.view[offset - extent.base_offset :][: rest - (offset - after)])
        return b""  # where a damaged record begins, or none was found

    def _is_record(self, offset: int) -> bool:
        extent = self._log.at(offset)
        if extent is None:
            return False
        return self.is_good(extent.view, offset - extent.base_offset, offset)

    # -- damage --------------------------------------------------------------------------------------------------------

    @property
    def damaged(self) -> list[Damage]:
        """The ranges that are known to be damaged now, in order."""
        begin = self._log.min_physical
        return sorted((one for one in self._damage.values() if one.start >= begin), key=lambda damage: damage.start)

    def report(self, offset: int, size: int = 0, **facts: object) -> Damage | None:
        """The record at ``offset`` is damaged: it is fetched from a replica, logged and counted once.

        ``size`` is what a queue says of its length; 0 if nothing does. None where more is damaged than is remembered.
        """
        damage = self._damage.get(offset)
        if damage is not None:
            return damage
        self._log.demand_own(offset)
        damage = Damage(offset, offset + size if size else self._damage_end(offset))
        size = damage.end - offset
        counters = self.counters
        self.counters = counters._replace(found=counters.found + 1, found_bytes=counters.found_bytes + size)
        if len(self._damage) >= DAMAGE_MAX:
            return None
        self._damage[offset] = damage
        log.error("a stored message is damaged", extra={"offset": offset, "bytes": size, **facts})
        self.ask(damage)
        return damage

    def ask(self, damage: Damage) -> None:
        """Have a replica give the range, if there are replicas."""
        if damage.state is not DamageState.HEALING and self.ask_replica(damage):
            damage.state = DamageState.HEALING

    def must_wait(self, offset: int, size: int = 0, **facts: object) -> bool:
        """Report the damaged record at ``offset``. True while a reader that would pass over it has to wait instead."""
        damage = self.report(offset, size, **facts)
        return damage is not None and self._must_wait(damage)

    def must_wait_before_gap(self) -> bool:
        """Whether a reader has to wait before a place of a queue whose message a start has not found in the log.

        It may lie in any range that is damaged and may still be healed; then it gets its place in the queue.
        """
        waits = [self._must_wait(damage) for damage in self._damage.values()]  # the time begins for all of them
        return any(waits)

    def _must_wait(self, damage: Damage) -> bool:
        """Whether readers wait before a range now. The time begins with the first of them."""
        now_ms = self._clock.monotonic_ms()
        if damage.state is DamageState.HEALING and not damage.has_waited:
            damage.has_waited = True
            damage.wait_until_ms = now_ms + self._heal_wait_ms
        return damage.state is not DamageState.LOST and now_ms < damage.wait_until_ms

    def may_be_healed(self, offset: int) -> bool:
        """Whether the record at ``offset`` is damaged, and a replica may still give it."""
        damage = self._damage.get(offset)
        return damage is not None and damage.state is DamageState.HEALING

    @property
    def is_awaited(self) -> bool:
        """Whether readers wait before some damaged range."""
        return any(damage.wait_until_ms >= 0 for damage in self._damage.values())

    def end_overdue_waits(self) -> None:
        """Resume readers that have waited before a damaged range for as long as they may."""
        now_ms = self._clock.monotonic_ms()
        overdue = [damage for damage in self._damage.values() if 0 <= damage.wait_until_ms <= now_ms]
        for damage in overdue:
            damage.wait_until_ms = -1
            reason = "no replica gave it in time"
            facts = {"offset": damage.start, "bytes": damage.end - damage.start, "reason": reason}
            log.warning("a damaged message is passed over", extra=facts)
        if overdue:
            self.on_resolved()

    def healed(self, damage: Damage) -> None:
        """The range was written again, and verified."""
        if self._damage.pop(damage.start, None) is not None:
            counters, size = self.counters, damage.end - damage.start
            self.counters = counters._replace(
                healed=counters.healed + 1, healed_bytes=counters.healed_bytes + size
            )  # fmt: skip
            log.warning("a damaged message was healed from a replica", extra={"offset": damage.start, "bytes": size})
            self.on_healed(damage.start, damage.end)
        self.on_resolved()

    def not_healed(self, damage: Damage, reason: str, *, is_lost: bool) -> None:
        """No replica has it (``is_lost``), or it could not be written: readers step over it."""
        if damage.start not in self._damage:
            return
        facts = {"offset": damage.start, "bytes": damage.end - damage.start, "reason": reason}
        damage.wait_until_ms = -1
        if is_lost:
            damage.state = DamageState.LOST
            if not damage.was_lost:
                damage.was_lost = True
                self.counters = self.counters._replace(lost=self.counters.lost + 1)
                log.error("a damaged message is lost: no replica has it; `gantry store verify` shows it", extra=facts)
        else:
            damage.state = DamageState.FOUND
            log.warning("a damaged message was not healed yet", extra=facts)
        self.on_resolved()

    def end_of_damage(self, offset: int) -> int:
        """Where the log is good again behind the damaged records that begin at ``offset``."""
        end = offset
        while (damage := self._damage.get(end)) is not None:
            end = damage.end
        extent = self._log.at(end)
        if end > offset and (extent is None or self._begins(end, min(extent.end_offset, self._log.wrote))):
            return end
        return self._damage_end(end)

    def rewritten(self, offset: int, size: int) -> None:
        """A record that was damaged on the disk alone was written again from memory."""
        counters = self.counters
        self.counters = counters._replace(
            found=counters.found + 1, found_bytes=counters.found_bytes + size,
            healed=counters.healed + 1, healed_bytes=counters.healed_bytes + size,
        )  # fmt: skip
        facts = {"offset": offset, "bytes": size}
        log.warning("a message that is damaged on the disk was written again from memory", extra=facts)

    def found_good(self, start: int, end: int) -> None:
        """``[start, end)`` was read and verified: nothing of it is damaged any more."""
        if self._damage and any(start <= offset < end for offset in self._damage):
            self.forget(start, end)
            self.on_healed(start, end)
            self.on_resolved()

    def forget(self, start: int, end: int) -> None:
        """Remove the damage recorded in ``[start, end)``, whose records were verified again."""
        for offset in [offset for offset in self._damage if start <= offset < end]:
            del self._damage[offset]

    def cut(self, end: int) -> None:
        """The log ends at ``end`` now: other records will lie behind it, none of which is damaged."""
        for damage in list(self._damage.values()):
            if damage.start >= end:
                del self._damage[damage.start]
            else:
                damage.end = min(damage.end, end)

    def _damage_end(self, offset: int) -> int:
        """Where the first good record behind a damaged one begins; the file's end if there is none near."""
        extent = self._log.at(offset)
        if extent is None:
            return offset + RECORD_BYTES_MIN
        limit = min(extent.end_offset, self._log.wrote)
        stop = min(limit, offset + SEARCH_BYTES)
        position = offset - extent.base_offset
        size = INT.unpack_from(extent.view, position)[0] if limit - offset >= INT.size else 0
        if RECORD_BYTES_MIN <= size <= limit - offset and self._begins(offset + size, limit):
            return offset + size
        data = bytes(extent.view[position : stop - extent.base_offset])
        found = stop
        for magic in _MAGICS:
            place = data.find(magic, _MAGIC_POSITION + 1)
            while place >= 0 and offset + place - _MAGIC_POSITION < found:
                begin = place - _MAGIC_POSITION
                own = data[begin + PHYSICAL_OFFSET_POSITION : begin + PHYSICAL_OFFSET_POSITION + 8]
                if int.from_bytes(own, "big") == offset + begin and self._is_record(offset + begin):
                    found = offset + begin
                    break
                place = data.find(magic, place + 1)
        return found

    def _begins(self, offset: int, limit: int) -> bool:
        """Whether a record, a blank or the end of what is written lies at ``offset``."""
        if offset == limit or self._is_record(offset):
            return True
        extent = self._log.at(offset)
        return extent is not None and self._is_blank(offset, extent.end_offset - offset)
