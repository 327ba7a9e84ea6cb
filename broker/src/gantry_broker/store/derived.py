"""Recovery of derived files: which queues and index files a start trusts, and which it rebuilds from the log.

Queues are trusted as far as the recovery point records them as durable, and only if their first and last units point
to their messages; the index is trusted as far as its header was durable. Files that are missing, damaged or untrusted
are deleted and rebuilt from the log: that costs time and never a message.

    untrusted -> recorded in the recovery point, durably -> deleted -> rebuilt -> synced -> a new recovery point

The second step makes a crash in the fourth step harmless. Such a crash may leave any part of a rebuilt file: for
example a queue that is as long as the old point records, but has holes. So the point must not record the queue as
durable any more when the rebuilding begins.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from typing import Final, final

import msgspec

from gantry_broker.errors import StoreFull, is_disk_full
from gantry_broker.ports.disk import Disk
from gantry_broker.store.commit_log import CommitLog
from gantry_broker.store.consume_queue import FILLER_SIZE, ConsumeQueue
from gantry_broker.store.index_file import IndexFile
from gantry_broker.store.key_hash import key_hash
from gantry_broker.store.key_index import KeyIndex
from gantry_broker.store.mapped_file import zero_range
from gantry_broker.store.queue_search import QueueSearch
from gantry_broker.store.queue_table import QueueTable
from gantry_broker.store.record_dispatch import is_plausible_unit, parse_record_fields
from gantry_broker.store.recovery_point import IndexPoint, RecoveryPoint, RecoveryPointFile
from gantry_broker.store.scan_dispatcher import ScanDispatcher
from gantry_broker.store.settings import CONSUME_UNIT_BYTES
from gantry_store_files.queue_units import NO_UNIT, is_filler
from gantry_wire.message import RecordFault, check_record

log = logging.getLogger(__name__)

COMPARED_ENTRIES: Final = 8
"""Number of entries of each index file that a start compares with the log. Enough to detect another store's file."""


@final
class DerivedFiles:
    """Loads and rebuilds queues and index during one recovery."""

    def __init__(
        self,
        disk: Disk,
        commit_log: CommitLog,
        queues: QueueTable,
        index: KeyIndex | None,
        scan_dispatcher: ScanDispatcher,
        delay_levels_ms: tuple[int, ...],
        point_file: RecoveryPointFile,
    ) -> None:
        self.rebuilt: set[ConsumeQueue] = set()
        """Queues that are rebuilt from the beginning of the log."""

        self.ends_found: dict[str, dict[str, int]] = {}
        """By topic and queue id: the end of a queue at the kill, if known and higher than in the recovery point."""

        self.is_index_usable = True
        """Whether the index need not be rebuilt."""

        self.is_index_rebuilt = False
        self._disk: Final = disk
        self._log: Final = commit_log
        self._queues: Final = queues
        self._search: Final = QueueSearch(commit_log, queues)
        self._index: Final = index
        self._scan_dispatcher: Final = scan_dispatcher
        self._delay_levels_ms: Final = delay_levels_ms
        self._point_file: Final = point_file

    def load(self, before: int, point: RecoveryPoint | None, *, is_clean: bool, written: int = 0) -> None:
        """Open queues and index as far as they can be trusted, and delete those that are rebuilt.

        Only what concerns records before ``before`` is kept. ``written`` is the end of the log at a kill; 0 if unknown.
        """
        self.rebuilt = self._load_queues(before, point, is_clean=is_clean, written=written)
        point = self._stop_trusting(point)
        self._remove_untrusted()
        self.is_index_usable = self._load_index(point, is_clean=is_clean)
        self._stop_trusting(point)
        self._remove_untrusted()
        if self._index is not None:
            self._scan_dispatcher.skip_indexed(self._index.end_physical, self._index.count_last_keys())

    def _load_queues(
        self, before: int, point: RecoveryPoint | None, *, is_clean: bool, written: int
    ) -> set[ConsumeQueue]:
        """Open the queues and return those that must be rebuilt."""
        for queue in self._queues.discover():
            end = self._open_queue(queue, before, is_clean=is_clean, written=written)
            first = queue.unit(queue.min_offset)
            if first is not None and self._queues.is_deleted(queue.topic, first[0]):
                # The topic was deleted, and its files reappeared after a crash.
                self._queues.remove(queue)
            elif end > queue.end:
                self.ends_found.setdefault(queue.topic, {})[str(queue.queue_id)] = end
        if point is None:
            return set()
        found = (self._queues.get(topic, queue_id) for topic, queue_id in point.damaged)
        rebuilt = {queue for queue in found if queue is not None}
        for topic, ends in point.queues.items():
            for queue_id, end in ends.items():
                queue = self._queues.get_or_create(topic, int(queue_id))
                start = point.starts.get(topic, {}).get(queue_id, 0)
                if queue.end < end or (queue.min_offset > start and not self._has_expired_before(queue, point)):
                    # Its last files are missing, or units are gone or wrong whose messages have not expired.
                    rebuilt.add(queue)
        for queue in self._queues:
            if queue not in rebuilt and not self._is_plausible(queue):
                rebuilt.add(queue)
        return rebuilt

    def _has_expired_before(self, queue: ConsumeQueue, point: RecoveryPoint) -> bool:
        """Return whether the messages before a queue's first one may have expired since ``point`` was written.

        The log has lost the range from where it began then. The last unit before the first one, if its file still
        exists, must point there.
        """
        unit = queue.stored_unit(queue.min_offset - 1)
        is_wrong = unit != NO_UNIT and not is_filler(unit) and unit[0] < point.min_physical
        return point.min_physical != self._log.min_physical and not is_wrong

    def _open_queue(self, queue: ConsumeQueue, before: int, *, is_clean: bool, written: int) -> int:
        """Open the files of a queue, and keep only the first units, whose messages begin before ``before``.

        Those are known to be durable and in order; all later units are zeroed, to be dispatched again from the log.
        After a clean stop a later unit could only follow directly, so the files are not read to their ends. Return
        the end of the units whose messages begin before ``written``. Files with such units are kept: if the log has
        lost the messages, their blocks are needed for the fillers, also on a full disk.
        """
        queue.files.load(setting="mappedFileSizeConsumeQueue", is_derived=True)
        first, last = queue.limit_to_files(0, queue.files.end_offset // CONSUME_UNIT_BYTES)
        end = queue.find_end(first, last, lambda unit: unit[1] > 0 and 0 <= unit[0] < before)
        # If the whole log is read again, every message of a kept unit has expired, also where a unit is uncertain.
        is_all_read = before <= self._log.min_physical
        queue.min_offset = end if is_all_read else self._search.find_start(queue, first, end)
        found_end = queue.find_end(end, last, lambda unit: unit[1] > 0 and 0 <= unit[0] < written)
        queue.end = queue.readable_end = queue.flushed_end = end
        queue.unit_sums.reset(end)
        for file in queue.files.retire_before(queue.min_offset * CONSUME_UNIT_BYTES):
            # A crash happened after log files were deleted and before these were.
            file.close()
            queue.files.unlink(file)
        queue.files.remove_from(max(end, found_end) * CONSUME_UNIT_BYTES + 1)
        for file in queue.files.files:
            used = min(max(end * CONSUME_UNIT_BYTES - file.base_offset, 0), file.size)
            next_unit = file.file.pread(CONSUME_UNIT_BYTES, used)
            if is_clean and next_unit.count(0) == len(next_unit):
                pass
            elif zero_range(file.file, used, file.size):
                # Otherwise stale units would return after the next crash, and be trusted then.
                queue.is_dirty = True
            with suppress(StoreFull):  # Reading needs no blocks, and the next unit reserves them again.
                file.reserve(used)
        if not is_clean:
            # Names and units may be in the page cache only, from an interrupted recovery that built the queue.
            queue.files.mark_names_unsynced()
            queue.flushed_end = queue.min_offset
        queue.seek(end)
        return found_end

    def _stop_trusting(self, point: RecoveryPoint | None) -> RecoveryPoint | None:
        """Mark in the recovery point, durably, everything that this start rebuilds; return the changed point.

        If only the index is to be rebuilt and the disk is full, that is postponed, and the point stays as it is.
        """
        if point is None:
            return None
        damaged = {*point.damaged, *((queue.topic, queue.queue_id) for queue in self.rebuilt)}
        is_indexed = point.is_indexed and self.is_index_usable
        if (damaged, is_indexed) == (set(point.damaged), point.is_indexed):
            return point
        reduced_point = msgspec.structs.replace(point, damaged=sorted(damaged), is_indexed=is_indexed)
        try:
            self._point_file.write(reduced_point)
        except OSError as exc:
            if not is_disk_full(exc):
                raise
            self._remove_untrusted()  # Removing the files makes room for the point.
            try:
                self._point_file.write(reduced_point)
            except OSError as again:
                if not is_disk_full(again) or damaged != set(point.damaged):
                    raise
                self._postpone_index_rebuild(again)
                return point
        return reduced_point

    def _postpone_index_rebuild(self, error: OSError) -> None:
        """Let ``IndexRepair`` rebuild the index, whose files are removed, once the disk has space.

        No queue has to be rebuilt with it.
        """
        assert self._index is not None, "there is no index to rebuild"
        self._index.mark_behind()
        self.is_index_usable, self.is_index_rebuilt = True, False
        log.error("key index is behind; it catches up when the disk has space", extra={"reason": str(error)})

    def _remove_untrusted(self) -> None:
        for queue in self.rebuilt:
            queue.reset(self._disk)
        if self._index is not None and not self.is_index_usable:
            self._index.remove_all()

    def _is_plausible(self, queue: ConsumeQueue) -> bool:
        """Return whether the first and the last unit of a queue point to messages of that queue."""
        if queue.end == queue.min_offset:
            return True
        for offset in (queue.min_offset, queue.end - 1):
            unit = queue.unit(offset)
            file = self._log.files.at(unit[0]) if unit is not None else None
            if unit is not None and unit[1] == FILLER_SIZE:
                continue
            if unit is None or file is None:
                return False
            position = unit[0] - file.base_offset
            check = check_record(file.view, position, physical_offset=unit[0], verify_crc=False)
            fields = partial(parse_record_fields, file.view, position, unit[1], self._delay_levels_ms)
            if not is_plausible_unit(unit, (queue.topic, queue.queue_id, offset), file.end_offset, check, fields):
                return False
        return True

    def _load_index(self, point: RecoveryPoint | None, *, is_clean: bool) -> bool:
        """Open the index. Return False if it must be rebuilt from the beginning of the log."""
        index = self._index
        if index is None:
            return True
        if point is None:
            # Without a recovery point, only an index that a clean stop left is known to be complete.
            is_usable = is_clean and index.load()
        elif not point.is_indexed:
            is_usable = False
        elif point.index is None:
            index.remove_all()
            return True
        else:
            is_usable = (
                index.load(up_to=point.index.name)
                and not self._lacks_index_file(index, point)
                and not self._holds_foreign_index_file(index, point, point.index)
                and self._restore_index(index, point.index, is_clean=is_clean)
            )
        if is_usable and not is_clean:
            index.mark_names_unsynced()
        if not is_usable:
            self.is_index_rebuilt = self._disk.exists(index.directory) or point is not None
        return is_usable

    def _lacks_index_file(self, index: KeyIndex, point: RecoveryPoint) -> bool:
        missing = index.find_missing_file(point.index_files, self._log.min_physical)
        if missing is not None:
            path = f"{index.directory}/{missing}"
            log.warning(
                "key index is unusable; rebuilding it from the commit log",
                extra={"path": path, "reason": "it is missing"},
            )
        return missing is not None

    def _holds_foreign_index_file(self, index: KeyIndex, point: RecoveryPoint, newest: IndexPoint) -> bool:
        """Return whether a file differs from the one in the recovery point, or belongs to another log."""
        ends = dict(point.index_files)
        for file in index.files:
            header, reason = file.header, ""
            if header.end_physical != ends.get(file.name, header.end_physical):
                reason = f"it ends at offset {header.end_physical} instead of {ends[file.name]}"
            elif file.name == newest.name and header.begin != newest.header.begin:
                reason = f"it begins at offset {header.begin_physical} instead of {newest.header.begin_physical}"
            elif not self._is_index_file_of_log(file, newest if file.name == newest.name else None):
                reason = "its entries do not point to messages with their keys"
            if reason:
                log.warning(
                    "key index is unusable; rebuilding it from the commit log",
                    extra={"path": file.file.path, "reason": reason},
                )
                return True
        return False

    def _is_index_file_of_log(self, file: IndexFile, newest: IndexPoint | None) -> bool:
        """Return whether the entries of a file point to messages with their keys, by a sample of them.

        One match is enough. Entries of messages that have expired, or where the log has zeros or a blank record now,
        prove nothing; if all in the sample are such entries, the file is accepted. Entries of the newest file are used
        as far as the recovery point declares them durable.
        """
        count = (newest.header if newest is not None else file.header).next_number - 1
        has_no_mismatch = True
        for number in sorted({1 + (count - 1) * step // (COMPARED_ENTRIES - 1) for step in range(COMPARED_ENTRIES)}):
            if not 1 <= number < file.header.next_number:
                continue
            value, physical = file.entry(number)
            log_file = self._log.files.at(physical) if physical >= self._log.min_physical else None
            if log_file is None:
                continue
            position = physical - log_file.base_offset
            check = check_record(log_file.view, position, physical_offset=physical, verify_crc=False)
            if check.fault in (RecordFault.END, RecordFault.BLANK):
                continue  # The record is lost.
            if check.is_good:
                fields = parse_record_fields(log_file.view, position, check.size, self._delay_levels_ms)
                if any(key_hash(fields.topic, key) == value for key in fields.keys):
                    return True
            has_no_mismatch = False
        return has_no_mismatch

    def _restore_index(self, index: KeyIndex, point: IndexPoint, *, is_clean: bool) -> bool:
        try:
            return index.restore(point, is_clean=is_clean)
        except StoreFull as exc:
            # Rewriting needs blocks. Until the disk has space, queries use the index as it is.
            index.mark_behind()
            log.error("key index is behind; it catches up when the disk has space", extra={"reason": str(exc)})
            return True

    def restore_ends(self, point: RecoveryPoint | None, *, is_trusted: bool) -> None:
        """Restore the next offset of each queue whose last messages have expired or are lost.

        A point that is not trusted, for example because its last record is damaged or was deleted since, proves nothing
        about queues with files. For queues without files it is used nevertheless, since only it has their next offsets.
        Raises ``StoreFull`` if the disk has no space for filler units, which stand for no message, in a queue with
        files: without them the offsets of the lost messages would be used again. The next start finds the same point,
        and tries again.
        """
        if point is None:
            return
        for topic, ends in point.queues.items():
            for queue_id, end in ends.items():
                queue = self._queues.get_or_create(topic, int(queue_id))
                if queue.end < end and not queue.files.files:
                    queue.start_at(end)
                elif queue.end < end and is_trusted:
                    queue.fill_to(end, point.through - 1)
