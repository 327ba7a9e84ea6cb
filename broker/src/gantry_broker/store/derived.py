"""What a start believes of the files that are derived from the log, and what it has built again.

Queues are trusted as far as the recovery point says that they were durable, and only if their first and last units lead
to messages of theirs; the index as far as its header was. Whatever is missing, damaged or in doubt is thrown away, and
comes from the log: that costs time and never a message.

    in doubt -> the point says so, durably -> thrown away -> built again -> synced -> a new point

The second step is what makes a crash in the fourth one harmless. It may leave any part of what was built: a queue as
long as the old point calls durable, with holes in it. So the point must not vouch for it any more by then.
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
from gantry_broker.store.queue_table import QueueTable
from gantry_broker.store.record_dispatch import is_plausible_unit, record_facts
from gantry_broker.store.record_taker import RecordTaker
from gantry_broker.store.recovery_point import IndexPoint, RecoveryPoint, RecoveryPointFile
from gantry_wire.message import RecordFault, check_record

log = logging.getLogger(__name__)

PROVED_ENTRIES: Final = 8
"""Of each index file that a start compares with the log: enough for a file that is another one's."""


@final
class DerivedFiles:
    """Queues and index in the hands of one recovery."""

    def __init__(
        self,
        disk: Disk,
        commit_log: CommitLog,
        queues: QueueTable,
        index: KeyIndex | None,
        taker: RecordTaker,
        delay_levels_ms: tuple[int, ...],
        point_file: RecoveryPointFile,
    ) -> None:
        self.rebuilt: set[ConsumeQueue] = set()
        """Queues that are built again from the beginning of the log."""

        self.ends_found: dict[str, dict[str, int]] = {}
        """Topic, queue id, end of the queue at the kill, where that is known and lies behind the recovery point's."""

        self.is_index_usable = True
        """Whether the index need not be."""

        self.is_index_rebuilt = False
        self._disk: Final = disk
        self._log: Final = commit_log
        self._queues: Final = queues
        self._index: Final = index
        self._taker: Final = taker
        self._delay_levels_ms: Final = delay_levels_ms
        self._point_file: Final = point_file

    def load(self, before: int, point: RecoveryPoint | None, *, is_clean: bool, written: int = 0) -> None:
        """Open them as far as they can be trusted, and make room for what is built again.

        ``written`` is up to where the log was written before a kill; 0 where that is not known.
        """
        self.rebuilt = self._load_queues(before, point, is_clean=is_clean, written=written)
        point = self._doubt(point)
        self._throw_away()
        self.is_index_usable = self._load_index(point, is_clean=is_clean)
        self._doubt(point)
        self._throw_away()
        if self._index is not None:
            self._taker.skip_indexed(self._index.end_physical)

    def _load_queues(
        self, before: int, point: RecoveryPoint | None, *, is_clean: bool, written: int
    ) -> set[ConsumeQueue]:
        """Open the queues; those that must be built again."""
        min_physical = self._log.min_physical
        for queue in self._queues.discover():
            end = queue.load(before=before, min_physical=min_physical, is_clean=is_clean, written=written)
            first = queue.unit(queue.min_offset)
            if first is not None and self._queues.is_deleted(queue.topic, first[0]):
                # The topic was deleted, and a crash has brought its files back.
                queue.reset(self._disk)
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
                if queue.end < end or (point.min_physical == min_physical and queue.min_offset > start):
                    # Its last files are gone, or its first ones, though the log begins where it began.
                    rebuilt.add(queue)
        for queue in self._queues:
            if queue not in rebuilt and not self._is_plausible(queue):
                rebuilt.add(queue)
        return rebuilt

    def _doubt(self, point: RecoveryPoint | None) -> RecoveryPoint | None:
        """Let the recovery point, durably, not vouch for what is going to be built again; the point as it is then."""
        if point is None:
            return None
        damaged = {*point.damaged, *((queue.topic, queue.queue_id) for queue in self.rebuilt)}
        is_indexed = point.is_indexed and self.is_index_usable
        if (damaged, is_indexed) == (set(point.damaged), point.is_indexed):
            return point
        doubted = msgspec.structs.replace(point, damaged=sorted(damaged), is_indexed=is_indexed)
        try:
            self._point_file.write(doubted)
        except OSError as exc:
            if not is_disk_full(exc):
                raise
            self._throw_away()  # which makes room
            try:
                self._point_file.write(doubted)
            except OSError as again:
                if not is_disk_full(again) or damaged != set(point.damaged):
                    raise
                self._leave_index_behind(again)
                return point
        return doubted

    def _leave_index_behind(self, error: OSError) -> None:
        """Only the index must be rebuilt, and there is no room for that: it is, as soon as there is some."""
        assert self._index is not None, "without an index none is in doubt"
        self._index.mark_behind()
        self.is_index_usable, self.is_index_rebuilt = True, False
        log.error("key index is behind, and catches up when there is room", extra={"reason": str(error)})

    def _throw_away(self) -> None:
        for queue in self.rebuilt:
            queue.reset(self._disk)
        if self._index is not None and not self.is_index_usable:
            self._index.remove_all()

    def _is_plausible(self, queue: ConsumeQueue) -> bool:
        """Whether the first and the last unit of a queue lead to messages of that queue."""
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
            facts = partial(record_facts, file.view, position, unit[1], self._delay_levels_ms)
            if not is_plausible_unit(unit, (queue.topic, queue.queue_id, offset), file.end_offset, check, facts):
                return False
        return True

    def _load_index(self, point: RecoveryPoint | None, *, is_clean: bool) -> bool:
        """Open the index. False if it has to be built from the beginning of the log."""
        index = self._index
        if index is None:
            return True
        if point is None:
            # Nothing says what ought to be there. What a clean stop left is whole, and goes on where it ends.
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
            index.doubt_names()
        if not is_usable:
            self.is_index_rebuilt = self._disk.exists(index.directory) or point is not None
        return is_usable

    def _lacks_index_file(self, index: KeyIndex, point: RecoveryPoint) -> bool:
        missing = index.lacks(point.index_files, self._log.min_physical)
        if missing is not None:
            path = f"{index.directory}/{missing}"
            log.warning("key index is unusable, and is rebuilt", extra={"path": path, "reason": "it is missing"})
        return missing is not None

    def _holds_foreign_index_file(self, index: KeyIndex, point: RecoveryPoint, newest: IndexPoint) -> bool:
        """Whether a file is another one's: not what the recovery point knows by its name, or of another log."""
        ends = dict(point.index_files)
        for file in index.files:
            header, reason = file.header, ""
            if header.end_physical != ends.get(file.name, header.end_physical):
                reason = f"it ends at offset {header.end_physical} instead of {ends[file.name]}"
            elif file.name == newest.name and header.begin != newest.header.begin:
                reason = f"it begins at offset {header.begin_physical} instead of {newest.header.begin_physical}"
            elif not self._is_index_file_of_log(file, newest if file.name == newest.name else None):
                reason = "its entries do not lead to messages with their keys"
            if reason:
                log.warning("key index is unusable, and is rebuilt", extra={"path": file.file.path, "reason": reason})
                return True
        return False

    def _is_index_file_of_log(self, file: IndexFile, newest: IndexPoint | None) -> bool:
        """Whether a few entries lead to messages with their keys. One that does speaks for the file.

        What has expired or is damaged says nothing. Entries of the newest file count as far as the point vouches.
        """
        count = (newest.header if newest is not None else file.header).next_number - 1
        is_good = True
        for number in sorted({1 + (count - 1) * step // (PROVED_ENTRIES - 1) for step in range(PROVED_ENTRIES)}):
            if not 1 <= number < file.header.next_number:
                continue
            value, physical = file.entry(number)
            log_file = self._log.files.at(physical) if physical >= self._log.min_physical else None
            if log_file is None:
                continue
            position = physical - log_file.base_offset
            check = check_record(log_file.view, position, physical_offset=physical, verify_crc=False)
            if check.fault in (RecordFault.END, RecordFault.BLANK):
                continue  # what was there is lost
            if check.is_good:
                facts = record_facts(log_file.view, position, check.size, self._delay_levels_ms)
                if any(key_hash(facts.topic, key) == value for key in facts.keys):
                    return True
            is_good = False
        return is_good

    def _restore_index(self, index: KeyIndex, point: IndexPoint, *, is_clean: bool) -> bool:
        try:
            return index.restore(point, is_clean=is_clean)
        except StoreFull as exc:
            # It needs blocks to be written again, and is answered from as it is until there is room.
            index.mark_behind()
            log.error("key index is behind, and catches up when there is room", extra={"reason": str(exc)})
            return True

    def restore_ends(self, point: RecoveryPoint | None, *, is_trusted: bool) -> None:
        """Let a queue whose last messages have expired, or are lost, keep its next offset.

        A point that is not trusted, such as one whose last record is damaged or was deleted since, proves nothing of
        queues with files. For a queue without files no other file knows the next offset.
        """
        if point is None:
            return
        for topic, ends in point.queues.items():
            for queue_id, end in ends.items():
                queue = self._queues.get_or_create(topic, int(queue_id))
                if queue.end < end and not queue.files.files:
                    queue.start_at(end)
                elif queue.end < end and is_trusted:
                    with suppress(StoreFull):  # then its numbers hold as long as this process
                        queue.fill_to(end, point.through - 1)
