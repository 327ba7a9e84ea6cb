"""Copying on a slave: a master's bytes go into the log, and from there into queues and index as far as confirmed.

    master's stream --append--> log (buffer or file) --dispatch, up to `confirmed`--> queues, index, consumers

Bytes are accepted only after every record in them was checked, and only at the very end of the log. Other bytes raise
``CopyRefused``, and nothing of them is written. The confirmed offset is the one that the master reports, at most the
copied end. Checked records are kept in memory until they are confirmed, and queues are built from them. If too many
wait, the log is read again instead, as at a start. A piece is dispatched as a whole, so that the recovery point always
lies between two records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Any, Final, NamedTuple, final

from gantry_broker.errors import LogReadOnly, StoreCorrupt, StoreFull
from gantry_broker.store import crash_points
from gantry_broker.store.commit_log import CommitLog, Span
from gantry_broker.store.consume_queue import ConsumeQueue
from gantry_broker.store.dispatcher import AppendedBatch, Dispatcher, HeldUnit
from gantry_broker.store.draft import Draft
from gantry_broker.store.fillers import FILLER_HEAD_BYTES
from gantry_broker.store.mapped_file import MappedFile, is_zero
from gantry_broker.store.queue_search import QueueSearch
from gantry_broker.store.queue_table import QueueTable
from gantry_broker.store.record_dispatch import RecordFields, parse_record_fields
from gantry_broker.store.recovery import Seals
from gantry_broker.store.scan_dispatcher import ScanDispatcher
from gantry_broker.store.tail_damage import find_damage
from gantry_speedups import native
from gantry_wire.message import BLANK_MAGIC, BLANK_RECORD, RecordCheck, RecordFault, check_record
from gantry_wire.plain_records import PlainRecord, PlainRun, plain_records

PIECE_BYTES: Final = 256 << 10
"""Size of the pieces into which existing log data is divided when copying starts."""
DISPATCH_BYTES_MAX: Final = 4 << 20
"""Limit of one ``dispatch`` call, so that a slave that catches up does not block the loop."""
KEPT_RECORDS_MAX: Final = 4096
"""Limit of the checked records that are kept in memory until they are confirmed, over all pieces."""


CompiledScan: Final[Any] = None if native is None else native.LogScan
"""The compiled scan of plain records; None if it is not loaded."""

_TIMESTAMP: Final = itemgetter(5)
"""Gets the store time of a plain record (see ``gantry_wire.plain_records``)."""


class CopyRefused(Exception):
    """Bytes from a master do not continue this log. The message gives the reason."""


class Piece(NamedTuple):
    """Consecutive records that are made visible together, or the blank record that closes a file."""

    end: int
    """The offset at which the piece ends in the log."""

    last_record: int
    """Start of the last record; -1 if the piece holds only a blank record, or damage at the end of the log."""

    timestamp_ms: int
    """The newest store time of a message before ``end``."""

    records: list[PlainRecord] | None = None
    """The checked records; None if not all are plain, if too many are kept, or for data from before the copying."""


def _size_of(check: RecordCheck, offset: int) -> int:
    """Return the size of the record at ``offset``. Raises ``StoreCorrupt`` if it has none.

    The record was checked before it was appended, so it was damaged since.
    """
    if check.size <= 0:
        raise StoreCorrupt(offset, "a record of the log was damaged after it was copied, before it became visible")
    return check.size


@final
class LogCopier:
    """Appends a master's log to a slave's, and makes it visible.

    The loop's thread owns it, and the log while it is in use.
    """

    def __init__(
        self,
        log: CommitLog,
        dispatcher: Dispatcher,
        queues: QueueTable,
        scan_dispatcher: ScanDispatcher,
        *,
        seals: Seals,
        delay_levels_ms: tuple[int, ...],
        damaged: Callable[[bool], Sequence[tuple[int, int]]],
        report_damaged: Callable[[int], None],
        end_of_damage: Callable[[int], int],
    ) -> None:
        """Create a copier. ``damaged`` returns the damaged ranges of the log that no replica repairs, in order.

        With True it also returns those that one may repair. ``report_damaged`` requests the repair of a damaged record,
        in the loop's thread only. ``end_of_damage`` returns where the log is good again after one.
        """
        self.is_waiting_for_repair = False
        """Whether the last ``dispatch`` has stopped at a record that was damaged after it was copied."""

        self._damaged: Final = damaged
        self._report_damaged: Final = report_damaged
        self._end_of_damage: Final = end_of_damage
        self._seals: Final = seals
        self._log: Final = log
        self._dispatcher: Final = dispatcher
        self._queues: Final = queues
        self._scan_dispatcher: Final = scan_dispatcher
        self._delay_levels_ms: Final = delay_levels_ms
        self.pieces: Final[deque[Piece]] = deque()
        """Pieces that are copied and not visible yet."""
        self._kept = 0

    # -- into the log --------------------------------------------------------------------------------------------------

    def append(self, data: bytes, offset: int) -> int:
        """Append whole records, the first of which begins at ``offset``, and return the new end of the log.

        Raises ``CopyRefused``, ``StoreFull``, ``PoolExhausted`` or ``LogReadOnly``; then nothing was appended.
        """
        log = self._log
        if log.is_read_only:
            raise LogReadOnly("the commit log is read-only and accepts no more messages")
        if offset != log.wrote:
            raise CopyRefused(f"the data begins at {offset}, but this log ends at {log.wrote}")
        if not data:
            return offset
        piece = self._check(memoryview(data), offset)
        spans, file, position = self._spans(data)
        log.write_all(spans)
        crash_points.hit(crash_points.AFTER_APPEND)
        log.advance(file, position, piece.timestamp_ms)
        if self._kept + len(piece.records or ()) > KEPT_RECORDS_MAX:
            piece = piece._replace(records=None)
        self._kept += len(piece.records or ())
        self.pieces.append(piece)
        return piece.end

    def _check(self, view: memoryview, offset: int) -> Piece:
        """Check every record and return them as a piece. Raises ``CopyRefused``."""
        if self._is_blank_part(view, offset):
            return Piece(offset + len(view), -1, self._log.last_timestamp_ms)
        position, end, last_record, newest_ms = 0, len(view), -1, self._log.last_timestamp_ms
        file_size = self._log.file_size
        records: list[PlainRecord] = []
        is_plain = True
        while position < end:
            physical = offset + position
            is_sealed, sealed_end = self._seals(physical)
            file_end = physical - physical % file_size + file_size
            stop = min(end, min(sealed_end, file_end) - offset)
            if CompiledScan is not None:
                scan = CompiledScan(None)
                position = scan.check(view, position, stop, offset, is_sealed, True)
                if scan.count:
                    last_record, newest_ms, is_plain = scan.last_physical, max(newest_ms, scan.newest_ms), False
            elif run := list(plain_records(view, position, stop, offset, is_sealed=is_sealed)):
                last_record = run[-1][0]
                position = last_record - offset + run[-1][1]
                newest_ms = max(newest_ms, max(map(_TIMESTAMP, run)))
                records = records + run if records else run
            if position >= stop:
                if offset + position > file_end:
                    raise CopyRefused(f"the record at {last_record} crosses the end of its file")
                continue
            is_plain = False
            physical = offset + position
            check = check_record(view, position, physical_offset=physical, is_sealed=is_sealed)
            if check.fault is RecordFault.BLANK and physical + check.size == file_end:
                position += check.size
                continue
            if not check.is_good or physical + check.size > file_end:
                fault = check.fault.value if check.fault is not None else "it crosses the end of its file"
                raise CopyRefused(f"no valid record at {physical}: {fault}")
            fields = parse_record_fields(view, position, check.size, self._delay_levels_ms)
            newest_ms = max(newest_ms, fields.store_timestamp_ms)
            last_record, position = physical, position + check.size
        return Piece(offset + end, last_record, newest_ms, records if is_plain else None)

    def _is_blank_part(self, view: memoryview, offset: int) -> bool:
        """Return whether ``view`` is a part of a large blank record. Raises ``CopyRefused`` for a malformed one.

        Such a record replaces lost log data. It extends to the end of its file, and arrives in parts.
        """
        log = self._log
        base = offset - offset % log.file_size
        end = base + log.file_size
        if log.blanks.get(base, offset) < offset:
            rest = view
        else:
            is_large = len(view) < end - offset and len(view) >= FILLER_HEAD_BYTES
            if not is_large or BLANK_RECORD.unpack_from(view) != (end - offset, BLANK_MAGIC):
                return False
            rest = view[FILLER_HEAD_BYTES:]
            log.blanks[base] = offset
        if offset + len(view) > end or not is_zero(rest):
            raise CopyRefused(f"the data at {offset} does not continue the blank record that began before it")
        return True

    def _is_blank(self, offset: int) -> bool:
        """Return whether only a blank record remains from ``offset`` to the end of its file."""
        return self._log.blanks.get(offset - offset % self._log.file_size, offset + 1) <= offset

    def _spans(self, data: bytes) -> tuple[list[Span], MappedFile, int]:
        """Divide ``data`` by file; return the spans, and the file and position after the last byte."""
        log = self._log
        file = log.file or log.reopen()
        position, start = log.position, 0
        spans: list[Span] = []
        while True:
            size = min(log.file_size - position, len(data) - start)
            spans.append((file, position, data[start : start + size] if size < len(data) else data))
            start, position = start + size, position + size
            if position == log.file_size:
                file, position = log.file_after(file.base_offset), 0
            if start == len(data):
                return spans, file, position

    # -- out of the log ------------------------------------------------------------------------------------------------

    def dispatch(self, confirmed: int) -> bool:
        """Make records before ``confirmed`` visible, about ``DISPATCH_BYTES_MAX`` at most. Return False if more remain.

        It also returns False if the disk has no space for a queue's entries, or if a record was damaged after it was
        copied. The next call tries again: a repaired record takes its place, and one that no replica has is skipped.
        """
        self.is_waiting_for_repair = False
        dispatcher, pieces = self._dispatcher, self.pieces
        start = end = dispatcher.dispatched
        _, last_record, timestamp_ms = dispatcher.last_dispatched
        records: list[PlainRecord] | None = []
        while pieces and pieces[0].end <= confirmed and end - start < DISPATCH_BYTES_MAX:
            piece = pieces.popleft()
            end, timestamp_ms = piece.end, piece.timestamp_ms
            last_record = piece.last_record if piece.last_record >= 0 else last_record
            self._kept -= len(piece.records or ())
            if piece.records is None or records is None:
                records = None
            else:
                records = records + piece.records if records else piece.records
        if end > start:
            try:
                self._dispatch_range(start, end, last_record, timestamp_ms, records)
            except StoreFull:
                pieces.appendleft(Piece(end, last_record, timestamp_ms))
                dispatcher.mark_behind()
                return False
            except StoreCorrupt as error:
                pieces.appendleft(Piece(end, last_record, timestamp_ms))
                self._show_before(error.offset, start)
                self._report_damaged(error.offset)
                self.is_waiting_for_repair = True
                return False
        return not pieces or pieces[0].end > confirmed

    def _show_before(self, offset: int, start: int) -> None:
        """Make the records of ``[start, offset)`` visible, if the last one that was dispatched ends at ``offset``."""
        scan_dispatcher, log = self._scan_dispatcher, self._log
        last = scan_dispatcher.last_record
        extent = log.at(last) if last >= start else None
        if extent is None:
            return
        check = check_record(extent.view, last - extent.base_offset, physical_offset=last, verify_crc=False)
        if check.is_good and last + check.size == offset:
            touched = scan_dispatcher.take_touched()
            self._dispatcher.make_visible(offset, last, log.last_timestamp_ms, touched)

    def _dispatch_range(
        self, start: int, end: int, last_record: int, timestamp_ms: int, records: list[PlainRecord] | None
    ) -> None:
        """Dispatch ``[start, end)`` to queues and index, from ``records`` if these are known."""
        dispatcher, scan_dispatcher = self._dispatcher, self._scan_dispatcher
        assert dispatcher.is_held, "dispatch is not held: recovery points would record the present ends of the queues"
        if records:
            scan_dispatcher.dispatch_plain_records(records, start)
        else:
            self._scan_range(start, end)
        dispatcher.make_visible(end, last_record, timestamp_ms, scan_dispatcher.take_touched())

    def _scan_range(self, start: int, end: int) -> None:
        """Read ``[start, end)`` of the log, and dispatch its records to queues and index, up to a damaged one.

        Raises ``StoreCorrupt`` for a damaged record that may be repaired: what it seems to contain is wrong.
        """
        scan_dispatcher = self._scan_dispatcher
        awaited = {*self._damaged(True)} - {*self._damaged(False)}
        damaged = min((begin for begin, _ in awaited if start <= begin < end), default=end)
        for base, view, stop in self._undamaged_parts(start, damaged):
            offset = base
            while offset < stop and not self._is_blank(offset):
                run = PlainRun(view, offset - base, stop - base, base, is_sealed=False, verify_crc=False)
                after = scan_dispatcher.dispatch_plain_records(run, offset)
                if after > offset:
                    offset = after
                    continue
                check = check_record(view, offset - base, physical_offset=offset, verify_crc=False)
                if check.is_good:
                    scan_dispatcher.dispatch_record(view, offset - base, offset, check.size)
                offset += _size_of(check, offset)
        if damaged < end:
            raise StoreCorrupt(damaged, "it is being repaired")

    def _undamaged_parts(
        self, start: int, end: int, *, is_final: bool = False
    ) -> Iterator[tuple[int, memoryview, int]]:
        """Yield (start, bytes from there on, end) of the undamaged parts of ``[start, end)``, in contiguous memory.

        A damaged part that may be repaired counts as undamaged, unless ``is_final``. Its messages return when it is.
        """
        for damage_start, damage_end in self._damaged(is_final):
            if start < damage_end and damage_start < end:
                yield from self._contiguous_parts(start, max(start, damage_start))
                start = min(end, damage_end)
        yield from self._contiguous_parts(start, end)

    def _contiguous_parts(self, start: int, end: int) -> Iterator[tuple[int, memoryview, int]]:
        """Yield the parts of ``[start, end)``, damaged or not, in the form of ``_undamaged_parts``."""
        newest = self._log.newest(start)
        if newest and start + len(newest) == end:
            yield start, memoryview(newest), end
            return
        while start < end:
            extent = self._log.at(start)
            assert extent is not None, (start, end, self._log)
            stop = min(end, extent.end_offset)
            yield start, extent.view[start - extent.base_offset : stop - extent.base_offset], stop
            start = stop

    # -- changes of the role -------------------------------------------------------------------------------------------

    def collect_undispatched(self) -> None:
        """Collect the part of the log that is in no queue as pieces, which ``dispatch`` then makes visible.

        This broker or another one may have written that part. It is read here, which may take long, so this must not be
        called in the loop's thread.
        """
        self._dispatcher.drop_held_batches()
        start, newest_ms, wrote = self._dispatcher.dispatched, self._dispatcher.last_dispatched[2], self._log.wrote
        search = QueueSearch(self._log, self._queues)
        for queue in self._queues:
            end = search.end_before(queue, start, self._seals)
            if end < queue.end:
                queue.rewind(end)
        for base, view, stop in self._undamaged_parts(start, wrote):
            offset = base
            while offset < stop:
                if self._is_blank(offset):
                    self.pieces.append(Piece(stop, -1, newest_ms))
                    break
                last_record, limit = -1, min(stop, offset + PIECE_BYTES)
                run = PlainRun(view, offset - base, limit - base, base, is_sealed=False, verify_crc=False)
                for physical, size, _, _, _, timestamp_ms, _ in run:
                    last_record, offset, newest_ms = physical, physical + size, max(newest_ms, timestamp_ms)
                if offset < limit:
                    check = check_record(view, offset - base, physical_offset=offset, verify_crc=False)
                    if check.is_good:
                        fields = parse_record_fields(view, offset - base, check.size, self._delay_levels_ms)
                        last_record, newest_ms = offset, max(newest_ms, fields.store_timestamp_ms)
                    offset = offset + check.size if check.size > 0 else min(stop, self._end_of_damage(offset))
                self.pieces.append(Piece(offset, last_record, newest_ms))
        if self.pieces and self.pieces[-1].end < wrote:
            self.pieces.append(Piece(wrote, -1, newest_ms))  # The log ends with damage.

    def find_damage(self) -> list[int]:
        """Return where the records begin that are in no queue yet and were damaged after they were copied.

        Every byte is verified, which may take long: call it in a worker thread that owns the store.
        """
        start = self._undispatched_start()
        parts = self._undamaged_parts(start, self.pieces[-1].end if self.pieces else start)
        return find_damage(parts, self._seals, self._is_blank, self._end_of_damage)

    def hold_undispatched(self) -> None:
        """Pass all pieces to the dispatcher, which holds them until they are confirmed: this store becomes a master's.

        The queue offsets of their messages count as assigned from now on, so that new messages get later ones. Damaged
        records are left out. Raises ``StoreCorrupt`` at one that ``find_damage`` has not found: the next call
        continues there.
        """
        while self.pieces:
            self._hold_piece(self.pieces[0])
            self.pieces.popleft()
        self._kept = 0

    def _hold_piece(self, piece: Piece) -> None:
        units: list[HeldUnit] = []
        drafts: list[Draft] = []
        physical_offsets: list[int] = []
        for base, view, stop in self._undamaged_parts(self._undispatched_start(), piece.end, is_final=True):
            offset = base
            while offset < stop and not self._is_blank(offset):
                check = check_record(view, offset - base, physical_offset=offset, verify_crc=False)
                if check.is_good:
                    fields = parse_record_fields(view, offset - base, check.size, self._delay_levels_ms)
                    queue = self._queue_of(fields, offset)
                    if queue is not None:
                        if fields.is_queued:
                            units = self._hold_unit(units, queue, fields, offset, check.size)
                        drafts.append(Draft(queue, b"", b"", 0, 0, 0, b"", 0, 0, 0, 0, fields.keys))
                        physical_offsets.append(offset)
                offset += _size_of(check, offset)
        if physical_offsets:
            batch = AppendedBatch(piece.end, piece.timestamp_ms, drafts, physical_offsets, {}, units)
            self._dispatcher.dispatch_batch(batch)

    def _queue_of(self, fields: RecordFields, physical: int) -> ConsumeQueue | None:
        """Return the queue of a record; None if its topic was deleted later, or has a name that no directory can have.

        RocketMQ may have stored such a name.
        """
        if self._queues.is_deleted(fields.topic, physical):
            return None
        with suppress(ValueError):
            if not fields.is_queued and not fields.keys:
                return self._queues.make_unlisted(fields.topic, fields.queue_id)  # of a void record
            return self._queues.get_or_create(fields.topic, fields.queue_id)
        return None

    def _hold_unit(
        self, units: list[HeldUnit], queue: ConsumeQueue, fields: RecordFields, physical: int, size: int
    ) -> list[HeldUnit]:
        """Assign a record its queue offsets, and return ``units`` with its unit."""
        offset, end = fields.queue_offset, fields.queue_offset + fields.offsets
        if offset < queue.end:
            units = [unit for unit in units if unit[0] is not queue or unit[1] < offset]
            self._dispatcher.drop_held_from(queue, offset)
            self._queues.restart_at(queue, offset)
        if queue.end == queue.readable_end != offset and not queue.files.files:
            queue.start_at(offset)
        units.append((queue, offset, physical, size, fields.tags_code))
        queue.reserve_offset(end - 1)
        if fields.offsets > 1:
            self._dispatcher.hold_batch_end(queue, end, physical, size)
        return units

    def _undispatched_start(self) -> int:
        """Return the end of what is in queues, or held by the dispatcher."""
        return max(self._dispatcher.dispatched, self._dispatcher.held_end)
