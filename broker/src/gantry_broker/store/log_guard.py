"""Verification of the log at every read: no consumer and no slave is given a record that is not what was stored.

    pull    body of the answer --sums of the queue (``queue_sums``) match--> served
                               `- else: record by record, by its seal -----> good ones served, and their sums known now
    slaves, queries, transactions:  record by record, on a copy

The rule it guards: **bytes of the log leave this process only after a checksum over these very bytes was compared**: a
sum that was computed when they were written or verified, else the record's own seal, else, where RocketMQ wrote, its
body's CRC, its own offset and its lengths. Not once per start or per file: a file may change while the broker runs.
Since another store's records have seals, too, each file must still begin as it did (``CommitLog.demand_own``).

What is found to be damaged is reported to the ``DamageTable``, which has it healed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final, final

from gantry_broker.errors import StoreCorrupt
from gantry_broker.ports.clock import Clock
from gantry_broker.ports.disk import write_fully
from gantry_broker.store.commit_log import CommitLog
from gantry_broker.store.consume_queue import ConsumeQueue
from gantry_broker.store.damage import DamageTable
from gantry_broker.store.fillers import FILLER_HEAD_BYTES
from gantry_broker.store.recovery import MAGIC_END, Seals, record_starts, record_starts_backward
from gantry_wire.checksum import crc32
from gantry_wire.message import (
    CRC_MASK,
    INT,
    PHYSICAL_OFFSET_POSITION,
    RECORD_BYTES_MIN,
    RecordFault,
    check_record,
)
from gantry_wire.seal import SEAL, SEAL_BYTES, SEAL_REVERSED

ANSWER_BYTES_MAX: Final = 8 << 20
"""Given to a replica at once: a frame of the replication stream, and more than the largest record."""

SEARCH_BYTES: Final = 8 << 20
"""How far the next good record is looked for where a damaged one does not say how long it is: two largest bodies."""

BLANK_BYTES: Final = 8
BLANK_PART_BYTES_MIN: Final = 4_096
"""The first part of a large blank record has everything in it that is not zero."""

_PLACE: Final = struct.Struct(">28xq")
assert _PLACE.size == PHYSICAL_OFFSET_POSITION + 8


@final
class LogGuard:
    """Owned by the thread that owns the log."""

    def __init__(self, commit_log: CommitLog, seals: Seals, clock: Clock, *, heal_wait_ms: int) -> None:
        """``seals`` says where records must be sealed."""
        self.is_verifying = True
        """Tests switch it off to show what it guards against."""

        self._log: Final = commit_log
        self._seals: Final = seals
        self.damage: Final = DamageTable(commit_log, clock, self._damage_end, heal_wait_ms=heal_wait_ms)

    def __repr__(self) -> str:
        return f"<LogGuard {self.damage!r} verifying={self.is_verifying}>"

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
        written = self._log.view(offset)
        if not written:
            return b""
        if self.is_verifying and offset in self.damage and not self._is_record(offset):
            self.damage.report(offset)
            return b""
        part = self._blank_part(written, offset, bytes_max)
        if part:
            return part
        first_bytes = INT.unpack_from(written)[0] if len(written) >= INT.size else 0
        # A copy: what is verified must be what is given away.
        data = bytes(written[: max(bytes_max, first_bytes)])
        view, end = memoryview(data), 0
        for end in self._good_ends(view, offset):
            if end >= bytes_max:
                break
        rest = len(written) - end
        if rest >= BLANK_BYTES and end + rest <= max(bytes_max, BLANK_BYTES) and self._is_blank(offset + end, rest):
            end += rest  # to the end of the file
        elif not end and rest >= BLANK_BYTES and self._is_blank(offset, rest):
            return bytes(written)
        if not end and rest:
            if not self.is_verifying:
                return bytes(written[: max(first_bytes, 1)])
            self.damage.report(offset)
        return data[:end]

    def record_around(self, offset: int) -> int:
        """Where the record begins that ``offset`` lies in or at; if that is damaged, where the one before it ends."""
        if offset % self._log.file_size == 0 or self._is_record(offset):
            return offset
        begin, end = self._record_before(offset)
        return begin if end > offset else end

    def _record_before(self, offset: int) -> tuple[int, int]:
        """Where the last good record that begins before ``offset`` begins and ends, of those in its file and near it.

        Without one both are where the search has begun.
        """
        start = max(offset - offset % self._log.file_size, self._log.min_physical, offset - SEARCH_BYTES)
        extent = self._log.at(start)
        if extent is None or extent.end_offset < offset:
            return offset, offset
        # Of a record that begins just before ``offset``, the magic may lie behind that.
        data = bytes(extent.view[start - extent.base_offset : offset - extent.base_offset + MAGIC_END - 1])
        for position in record_starts_backward(data):
            begin = start + position
            if begin < offset and self._is_record(begin):
                return begin, begin + INT.unpack_from(data, position)[0]
        return start, start

    def records_through(self, start: int, end: int) -> bytes:
        """Good records from ``start`` on until one ends at or behind ``end``, of those that lie in one extent.

        Fewer where one is damaged, which is reported, and where the log ends.
        """
        written = self._log.view(start)
        data, whole = bytes(written[:ANSWER_BYTES_MAX]), 0
        for whole in self._good_ends(memoryview(data), start):
            if start + whole >= end:
                return data[:whole]
        if written and self.is_blank(start + whole):
            # What lies behind the head of a blank record is nobody's, and no sign of another history.
            head = data[: whole + FILLER_HEAD_BYTES]
            return head + bytes(len(data) - len(head))
        if whole < len(written) and len(data) < ANSWER_BYTES_MAX:
            self.damage.report(start + whole)
        return data[:whole]

    def _blank_part(self, written: memoryview, offset: int, bytes_max: int) -> bytes:
        """A part of the large blank record, for lost log data, that ``written`` begins with; empty if there is none.

        It may be as large as a file, so it does not go at once. A slave takes zeros only behind the head of such a one.
        """
        commit_log = self._log
        base = offset - offset % commit_log.file_size
        end = base + commit_log.file_size
        if offset + len(written) != end:
            return b""
        begin = commit_log.blanks.get(base)
        if begin is None or begin > offset:
            is_begin = end - offset > max(bytes_max, BLANK_BYTES) and self._is_blank(offset, end - offset)
            if not is_begin and (any(written[:BLANK_BYTES]) or any(written)):
                return b""
            commit_log.blanks[base] = offset
        return bytes(written[: max(bytes_max, BLANK_PART_BYTES_MIN)])

    def healthy_records(self, start: int, end: int) -> bytes:
        """Whole, verified records of ``[start, end)`` from ``start`` on, as many as one answer to a replica holds.

        Empty where there are none. Nothing is reported: only the one that asks knows whether a record begins there.
        """
        if not start < end <= self._log.wrote:
            return b""
        data = bytes(self._log.view(start)[: min(end - start, ANSWER_BYTES_MAX)])
        whole = self.good_bytes(memoryview(data), start)
        is_to_the_end = whole < len(data) == end - start and self._is_blank(start + whole, len(data) - whole)
        return data if is_to_the_end else data[:whole]

    def is_whole(self, data: bytes, start: int) -> bool:
        """Whether ``data`` is nothing but good records, or the blank that ends a file, of the log at ``start``."""
        whole = self.good_bytes(memoryview(data), start)
        if whole == len(data):
            return True
        check = check_record(data, whole)
        is_end = (start + len(data)) % self._log.file_size == 0
        return check.fault is RecordFault.BLANK and is_end and check.size == len(data) - whole

    def is_good_now(self, start: int, end: int) -> bool:
        """Whether ``[start, end)`` of the log, as it is read now, is nothing but good records."""
        data = self._log.slice(start, end - start)
        return data is not None and self.is_whole(bytes(data), start)

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
        written = self._log.view(offset)
        size: int = INT.unpack_from(written)[0] if len(written) >= RECORD_BYTES_MIN else 0
        return size if RECORD_BYTES_MIN <= size <= len(written) else 0

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
        if not commit_log.min_physical < offset < commit_log.wrote or offset % commit_log.file_size == 0:
            return b""
        if self._is_record(offset):
            return b""
        begin, end = self._record_before(offset)
        if end > offset:
            whole = bytes(commit_log.view(begin)[: end - begin])
            return whole[offset - begin :] if self.good_bytes(memoryview(whole), begin) else b""
        # Else it is where a damaged record begins, or none was found.
        return bytes(commit_log.view(offset)) if end < offset and self.is_blank(end) else b""

    def _is_record(self, offset: int) -> bool:
        extent = self._log.at(offset)
        if extent is None:
            return False
        return self.is_good(extent.view, offset - extent.base_offset, offset)

    def message_at(self, physical_offset: int, *, is_known: bool = False) -> bytes | None:
        """The whole record at ``physical_offset``, verified, or None.

        A damaged one is reported, and so fetched from a replica. ``is_known`` says that a record begins there; without
        it the place may be a client's word, and must look like the begin of a record that lies in no other one.
        """
        written = self._log.view(physical_offset)
        if not written:
            return None
        self._log.demand_own(physical_offset)
        # A copy: what is verified must be what is given away.
        data = bytes(written[: max(self.size_at(physical_offset), RECORD_BYTES_MIN)])
        is_sealed = self._seals(physical_offset).is_ours
        check = check_record(data, 0, physical_offset=physical_offset, is_sealed=is_sealed)
        if check.is_good:
            return data
        looks_like_one = check.fault in (RecordFault.CRC, RecordFault.SEAL)
        if is_known or (looks_like_one and self.record_around(physical_offset) == physical_offset):
            self.damage.report(physical_offset)
        return None

    def rewriting(self, offset: int, data: bytes) -> Callable[[], None]:
        """What writes ``data`` over the log at ``offset``, durably, to be called in a worker thread.

        The loop's half is done at once: a write buffer that holds the range has it. Raises ``StoreCorrupt`` where the
        log has no such range in one file; what is returned raises ``OSError``.
        """
        commit_log, end = self._log, offset + len(data)
        file, disk = commit_log.files.at(offset), commit_log.files.disk
        if file is None or not commit_log.min_physical <= offset < end <= min(commit_log.wrote, file.end_offset):
            raise StoreCorrupt(offset, "the log has no such range any more")
        base, path = file.base_offset, file.path
        if file.buffer is not None and end > file.buffer.start:
            first = max(offset, file.buffer.start)
            file.buffer.view[first - base : end - base] = data[first - offset :]

        def rewrite() -> None:
            # A descriptor of its own: the log's may be closed meanwhile, and its number given to another file.
            target = disk.open(path)
            try:
                target.reserve(end - base)
                write_fully(target, data, offset - base)
                target.sync()
            finally:
                target.close()

        return rewrite

    def end_of_damage(self, offset: int) -> int:
        """Where the log is good again behind the damaged records that begin at ``offset``."""
        end = self.damage.behind(offset)
        extent = self._log.at(end)
        if end > offset and (extent is None or self._begins(end, min(extent.end_offset, self._log.wrote))):
            return end
        return self._damage_end(end)

    def _damage_end(self, offset: int) -> int:
        """Where the first good record behind a damaged one begins; the file's end if there is none near."""
        written = self._log.view(offset)
        if not written:
            return offset + RECORD_BYTES_MIN
        size = self.size_at(offset)
        if size and self._begins(offset + size, offset + len(written)):
            return offset + size
        data = bytes(written[:SEARCH_BYTES])
        starts = record_starts(data, offset, len(data))
        return next((begin for begin in starts if begin > offset and self._is_record(begin)), offset + len(data))

    def _begins(self, offset: int, limit: int) -> bool:
        """Whether a record, a blank or the end of what is written lies at ``offset``."""
        return offset == limit or self._is_record(offset) or self.is_blank(offset)
