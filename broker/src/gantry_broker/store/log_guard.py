"""Verification of the log at every read: consumers and slaves get only records that are exactly what was stored.

    pull    body of the answer --sums of the queue (``queue_sums``) match--> served
                               `- else: each record by its seal -----------> good ones served, their sums remembered
    slaves, queries, transactions:  record by record, on a copy

The rule it guards: **bytes of the log leave this process only after a checksum over these very bytes was compared**: a
sum that was computed when they were written or verified, else the record's own seal, else, where RocketMQ wrote, its
body's CRC, its own offset and its lengths. Not once per start or per file: a file may change while the broker runs.
Since another store's records have seals, too, each file must still begin as it did (``CommitLog.require_own_file``).

Damaged records are reported to the ``DamageTable``, which has them healed from a replica.
"""

from __future__ import annotations

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
    BLANK_BYTES,
    CRC_MASK,
    INT,
    PHYSICAL_OFFSET,
    RECORD_BYTES_MAX,
    RECORD_BYTES_MIN,
    RecordFault,
    check_record,
)
from gantry_wire.seal import SEAL, SEAL_BYTES, SEAL_REVERSED

ANSWER_BYTES: Final = 8 << 20
"""Bytes of one answer to a replica. Only one larger record exceeds them, up to ``RECORD_BYTES_MAX``.

That is also the limit of a frame of replication (``ha.frames``).
"""

SEARCH_BYTES: Final = 17 << 20
"""How far to search for the next good record, or for the one before an offset: more than a frame of a client has."""

BLANK_PART_BYTES_MIN: Final = 4_096
"""The smallest first part of a large blank record, which replaces lost data: all bytes after the part are zero."""


@final
class LogGuard:
    """Verifies records before they leave the store, and reports damage. Owned by the loop's thread, as the log is."""

    def __init__(self, commit_log: CommitLog, seals: Seals, clock: Clock, *, heal_wait_ms: int) -> None:
        """Create the guard.

        ``seals`` returns whether records at an offset must have a seal, and up to where that holds.
        """
        self.is_verifying = True
        """Tests switch it off to show what it guards against."""

        self._log: Final = commit_log
        self._seals: Final = seals
        self.damage: Final = DamageTable(commit_log, clock, self._damage_end, heal_wait_ms=heal_wait_ms)

    def __repr__(self) -> str:
        return f"<LogGuard {self.damage!r} verifying={self.is_verifying}>"

    # -- verification --------------------------------------------------------------------------------------------------

    def verified_bytes(self, queue: ConsumeQueue, offset: int, count: int, body: bytes, *, is_consecutive: bool) -> int:
        """Return how many bytes of good records ``body`` begins with.

        It holds ``count`` messages of ``queue``, the first of which is message ``offset``. With ``is_consecutive`` they
        follow each other in the queue without a gap. The caller has compared each record's own offsets.
        """
        if is_consecutive and queue.matches_sums(offset, count, body):
            return len(body)
        view = memoryview(body)
        ends = list(self._good_ends(view, None))
        if is_consecutive and ends:
            starts = (0, *ends[:-1])
            queue.learn(offset, [view[start:end] for start, end in zip(starts, ends, strict=True)])
        return ends[-1] if ends else 0

    def is_good(self, view: memoryview, position: int, offset: int) -> bool:
        """Return whether a good record begins at ``position`` of ``view``; its log offset is ``offset``."""
        self._log.require_own_file(offset)
        is_sealed = self._seals(offset).is_ours
        return check_record(view, position, physical_offset=offset, is_sealed=is_sealed).is_good

    def _good_ends(self, view: memoryview, offset: int | None) -> Iterator[int]:
        """Yield the end position of each good record that ``view`` begins with, until the first that is not good.

        ``view`` lies at ``offset`` in the log; with None, each record's own physical offset is used.
        """
        unpack, seal_of, mark, mask, seals = INT.unpack_from, SEAL.unpack_from, SEAL_REVERSED, CRC_MASK, self._seals
        position, end, size_min = 0, len(view), RECORD_BYTES_MIN
        unpack_physical, file_size = PHYSICAL_OFFSET.unpack_from, self._log.file_size
        file_start = file_end = 0
        while end - position >= size_min:
            size = unpack(view, position)[0]
            stop = position + size
            if size < size_min or stop > end:
                return
            physical = unpack_physical(view, position)[0]
            if offset is not None and physical != offset + position:
                return
            seal_start = stop - SEAL_BYTES
            if seal_of(view, seal_start)[0] != (mark % (crc32(view[position:seal_start]) & mask))[::-1]:
                # Slow path: where no seal is required, the CRC of the record's body decides.
                check = check_record(view, position, physical_offset=physical, is_sealed=seals(physical).is_ours)
                if check.size != size or not check.is_good:
                    return
            if not file_start <= physical < file_end:
                file_start = physical - physical % file_size
                file_end = file_start + file_size
                self._log.require_own_file(physical)
            yield stop
            position = stop

    def read_verified(self, offset: int, bytes_max: int) -> bytes:
        """Return verified records from ``offset`` on: as many as fit, at least one, from one extent.

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
        first_bytes = _copied_bytes(written, offset)
        # A copy, since the verified bytes must be the ones that are sent.
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

    def find_record_start(self, offset: int) -> int:
        """Return where the record begins that contains ``offset``; if it is damaged, where the one before it ends."""
        if offset % self._log.file_size == 0 or self._is_record(offset):
            return offset
        begin, end = self._record_before(offset)
        return begin if end > offset else end

    def _record_before(self, offset: int) -> tuple[int, int]:
        """Return begin and end of the last good record that begins before ``offset``, in the same file.

        The search goes back at most ``SEARCH_BYTES``. If it finds none, both are the offset where it ended.
        """
        start = max(offset - offset % self._log.file_size, self._log.min_physical, offset - SEARCH_BYTES)
        extent = self._log.at(start)
        if extent is None or extent.end_offset < offset:
            return offset, offset
        # A record may begin just before ``offset`` and have its magic after it.
        data = bytes(extent.view[start - extent.base_offset : offset - extent.base_offset + MAGIC_END - 1])
        for position in record_starts_backward(data):
            begin = start + position
            if begin < offset and self._is_record(begin):
                return begin, begin + INT.unpack_from(data, position)[0]
        return start, start

    def read_verified_through(self, start: int, end: int) -> bytes:
        """Return good records of one extent from ``start`` on, up to the first that ends at or after ``end``.

        Fewer where one is damaged, which is reported, where the log ends, and after ``ANSWER_BYTES``.
        """
        written = self._log.view(start)
        parts: list[bytes] = []
        good = 0
        while start + good < end and good < ANSWER_BYTES:
            position = start + good
            # A copy, since the verified bytes must be the ones that are sent.
            data = bytes(written[good : min(good + self._answer_bytes(position, end), RECORD_BYTES_MAX)])
            size = self.good_bytes(memoryview(data), position)
            if not size:
                break
            parts.append(data[:size])
            good += size
        rest = min(len(written), ANSWER_BYTES) - good
        if start + good < end and rest > 0:
            if self.is_blank(start + good):
                # The bytes after the head of a blank record are unused. A difference there is no other history.
                head = bytes(written[good : good + min(FILLER_HEAD_BYTES, rest)])
                parts.append(head + bytes(rest - len(head)))
            else:
                self.damage.report(start + good)
        return b"".join(parts)

    def _answer_bytes(self, start: int, end: int) -> int:
        """Return how many bytes to read for an answer with the records of ``[start, end)``: at least the first one."""
        return max(min(end - start, ANSWER_BYTES), min(self.size_at(start), RECORD_BYTES_MAX))

    def _blank_part(self, written: memoryview, offset: int, bytes_max: int) -> bytes:
        """Return a part of the large blank record, for lost log data, that ``written`` begins with; else empty bytes.

        Such a record may be as large as a file, so it is sent in parts. A slave accepts zeros only after its head.
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

    def read_verified_range(self, start: int, end: int) -> bytes:
        """Return the verified records of ``[start, end)`` from ``start`` on, as many as one answer to a replica holds.

        At least one, but none that ends after the range. Empty where there are none. Damage is not reported, since only
        the caller knows whether a record begins there.
        """
        if not start < end <= self._log.wrote:
            return b""
        data = bytes(self._log.view(start)[: min(end - start, self._answer_bytes(start, end))])
        good = self.good_bytes(memoryview(data), start)
        is_to_the_end = good < len(data) == end - start and self._is_blank(start + good, len(data) - good)
        return data if is_to_the_end else data[:good]

    def is_intact(self, data: bytes, start: int) -> bool:
        """Return whether ``data``, read from the log at ``start``, is only good records, and perhaps a file's end."""
        whole = self.good_bytes(memoryview(data), start)
        if whole == len(data):
            return True
        check = check_record(data, whole)
        is_end = (start + len(data)) % self._log.file_size == 0
        return check.fault is RecordFault.BLANK and is_end and check.size == len(data) - whole

    def is_range_good(self, start: int, end: int) -> bool:
        """Return whether the current content of ``[start, end)`` of the log is only good records."""
        data = self._log.slice(start, end - start)
        return data is not None and self.is_intact(bytes(data), start)

    def good_bytes(self, view: memoryview, start: int) -> int:
        """Return how many bytes of good records ``view`` begins with, which was read from the log at ``start``."""
        return max(self._good_ends(view, start), default=0)

    def record_ends(self, view: memoryview, start: int) -> list[int]:
        """Return the end of each good record that ``view`` begins with, which lies at ``start`` in the log."""
        return list(self._good_ends(view, start))

    def is_blank(self, offset: int) -> bool:
        """Return whether the rest of the log file from ``offset`` on is a blank record."""
        extent = self._log.at(offset)
        return extent is not None and self._is_blank(offset, extent.end_offset - offset)

    def size_at(self, offset: int) -> int:
        """Return the size that the record at ``offset`` claims, or 0 if that is impossible."""
        written = self._log.view(offset)
        size: int = INT.unpack_from(written)[0] if len(written) >= RECORD_BYTES_MIN else 0
        return size if RECORD_BYTES_MIN <= size <= len(written) else 0

    def _is_blank(self, offset: int, size: int) -> bool:
        """Return whether ``[offset, offset + size)`` is the blank record that closes a log file."""
        extent = self._log.at(offset)
        if extent is None or (offset + size) % self._log.file_size:
            return False
        check = check_record(extent.view, offset - extent.base_offset, physical_offset=offset)
        return check.fault is RecordFault.BLANK and check.size == size

    def rest_of_record(self, offset: int) -> bytes:
        """Return the verified bytes from ``offset`` to the end of the record that contains it.

        Empty if a record begins at ``offset``, and if the record that contains it is damaged.
        """
        commit_log = self._log
        if not commit_log.min_physical < offset < commit_log.wrote or offset % commit_log.file_size == 0:
            return b""
        if self._is_record(offset):
            return b""
        begin, end = self._record_before(offset)
        if end > offset:
            record = bytes(commit_log.view(begin)[: end - begin])
            return record[offset - begin :] if self.good_bytes(memoryview(record), begin) else b""
        # Otherwise ``end`` is where a damaged record begins, or where the search found no record.
        return bytes(commit_log.view(offset)) if end < offset and self.is_blank(end) else b""

    def _is_record(self, offset: int) -> bool:
        extent = self._log.at(offset)
        if extent is None:
            return False
        return self.is_good(extent.view, offset - extent.base_offset, offset)

    def message_at(self, physical_offset: int, *, is_known: bool = False) -> bytes | None:
        """Return the whole, verified record at ``physical_offset``, or None.

        A damaged record is reported, so that it is fetched from a replica. With ``is_known`` a record is known to begin
        at the offset. Without it the offset may come from a client: damage is reported only if a record seems to begin
        there, and the offset is not inside another record.
        """
        written = self._log.view(physical_offset)
        if not written:
            return None
        self._log.require_own_file(physical_offset)
        # A copy, since the verified bytes must be the ones that are sent.
        data = bytes(written[: _copied_bytes(written, physical_offset)])
        is_sealed = self._seals(physical_offset).is_ours
        check = check_record(data, 0, physical_offset=physical_offset, is_sealed=is_sealed)
        if check.is_good:
            return data
        has_valid_lengths = check.fault in (RecordFault.CRC, RecordFault.SEAL)
        if is_known or (has_valid_lengths and self.find_record_start(physical_offset) == physical_offset):
            self.damage.report(physical_offset)
        return None

    def prepare_rewrite(self, offset: int, data: bytes) -> Callable[[], None]:
        """Return a function that durably writes ``data`` over the log at ``offset``; call it in a worker thread.

        The part of the loop's thread is done at once: a write buffer that holds the range gets the data. Raises
        ``StoreCorrupt`` if the log has no such range in one file; the returned function raises ``OSError``.
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
            # The function opens its own descriptor: the log's may be closed meanwhile and its number reused.
            target = disk.open(path)
            try:
                target.reserve(end - base)
                write_fully(target, data, offset - base)
                target.sync()
            finally:
                target.close()

        return rewrite

    def end_of_damage(self, offset: int) -> int:
        """Return where the first good record begins after the damaged records at ``offset``."""
        end = self.damage.end_of_damage_at(offset)
        extent = self._log.at(end)
        if end > offset and (extent is None or self._is_record_boundary(end, min(extent.end_offset, self._log.wrote))):
            return end
        return self._damage_end(end)

    def _damage_end(self, offset: int) -> int:
        """Return where the first good record after a damaged one begins, or the end of the searched range."""
        written = self._log.view(offset)
        if not written:
            return offset + RECORD_BYTES_MIN
        size = self.size_at(offset)
        if size and self._is_record_boundary(offset + size, offset + len(written)):
            return offset + size
        data = bytes(written[:SEARCH_BYTES])
        starts = record_starts(data, offset, len(data))
        return next((begin for begin in starts if begin > offset and self._is_record(begin)), offset + len(data))

    def _is_record_boundary(self, offset: int, limit: int) -> bool:
        """Return whether a record, a blank record or the end of the written log lies at ``offset``."""
        return offset == limit or self._is_record(offset) or self.is_blank(offset)


def _copied_bytes(written: memoryview, offset: int) -> int:
    """Return how many bytes to copy for the verification of a record at ``offset``, where ``written`` begins.

    The whole record if its magic, offset and lengths are those of a record, and else as many bytes as the smallest one
    has, which are not good. The bytes may be damaged, or inside the body of a client: their size alone proves nothing.
    """
    check = check_record(written, 0, physical_offset=offset, verify_crc=False)
    return check.size if check.is_good and check.size <= RECORD_BYTES_MAX else RECORD_BYTES_MIN
