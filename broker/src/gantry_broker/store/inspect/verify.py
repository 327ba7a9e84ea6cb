"""Verification of a store: every record, every queue unit and every index entry, once, in the order of the log.

    sizes of files  ->  the log, record by record  ->  tables and small files  ->  the rest of queues and index
                       |- own offset, lengths, CRC, seal; times that never decrease
                       |- its unit in its queue, and back
                       `- its entries in the index, and back

Memory is bounded by the number of queues, not by the size of the log. Records are checked by the functions that the
broker uses. In addition, and unlike a start, log, queues and index are compared completely.

Bad bytes are either **rot**, damage to data that was on the disk, or a **torn tail**, where a crash interrupted a
write: see ``damage``. A record costs the same time as at a start, and a little more for the comparison.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final, final

from gantry_broker.ports.reading import ReadingDisk
from gantry_broker.store.inspect.buffers import find_unbuffered_end
from gantry_broker.store.inspect.damage import DamageJudge, check_file_starts
from gantry_broker.store.inspect.facts import StoreFacts, plan_next_start, read_facts
from gantry_broker.store.inspect.findings import Findings
from gantry_broker.store.inspect.index_check import IndexCheck
from gantry_broker.store.inspect.log_reader import LogReader, Stop, StopReason, decode_record_fields
from gantry_broker.store.inspect.queue_check import CheckContext, QueueCheck
from gantry_broker.store.inspect.small_checks import check_files, check_missing, check_small_files, queue_file_finding
from gantry_broker.store.key_hash import key_hash
from gantry_broker.store.record_dispatch import RecordFields
from gantry_broker.store.recovery import StartPlan
from gantry_broker.store.scan_dispatcher import Progress
from gantry_store_files.queue_units import BLOCK_BYTES_MAX, QueueReader, list_queue_locations
from gantry_store_files.segments import most_common_size, segment_faults
from gantry_wire.message import decode_record
from gantry_wire.properties import TAGS

PROGRESS_BYTES: Final = 16 << 20
"""Progress is reported each time that so many bytes were read."""
QUEUE_MEMORY_BYTES: Final = 64 << 20
"""Limit of the memory of all blocks of queue units together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """The options of a verification: the part of the store to verify."""

    start: int | None = None
    """The offset from which to read the log; None for its beginning."""

    end: int | None = None
    """The offset before which to stop; None for the end of the log."""

    is_quick: bool = False
    """Whether to read the log only from the recovery point on, and check only the ends of the rest.

    Without a usable recovery point only the last file of the log is read.
    """

    boot_id: str = ""
    """The boot id of the machine on which the next start will run; empty if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """The result of a verification: what was read, and the findings."""

    root: str
    is_in_use: bool
    is_clean: bool
    start: int
    end: int
    """Exclusive end of the range of the log that was read."""

    is_full_range: bool
    """Whether the whole log was read."""

    is_interrupted: bool
    """Whether Ctrl-C has ended the verification early."""

    records: int
    """Number of whole records that were read."""

    records_bytes: int
    records_sealed: int
    """Number of records in ranges where a seal protects the whole record."""

    queues: int
    units: int
    """Number of units of consume queues."""

    older_records: int
    """Number of records of topics that were deleted, or deleted and created again."""

    index_files: int
    index_entries: int
    findings: Findings


@final
class Verifier:
    """Verifies one store. Used once, by one thread. Raises ``OSError`` if a file cannot be read at all."""

    def __init__(self, disk: ReadingDisk, root: str, options: VerifyOptions, progress: Progress | None = None) -> None:
        self._disk: Final = disk
        self._options: Final = options
        self._progress: Final[Progress] = progress if progress is not None else lambda done, total: None
        self.facts: Final[StoreFacts] = read_facts(disk, root)
        self._reader: Final = LogReader(disk, self.facts.log, self.facts.ownership_at)
        self._deleted: Final = self.facts.point.deleted if self.facts.point is not None else {}
        self._written: Final = find_unbuffered_end(disk, self.facts, options.boot_id)
        plan = plan_next_start(self.facts, self._reader, written=self._written)
        self._start, self._end, self._is_full_range = self._range(plan)
        self._context: Final = CheckContext(
            findings=Findings(),
            is_record_of=self._is_record_of,
            log_start=self.facts.log_start,
            start=self._start,
            is_cleanly_stopped=self.facts.is_cleanly_stopped,
            is_in_use=self.facts.is_in_use,
            trusted_end=0 if plan.is_full else plan.start,
        )
        self._judge: Final = DamageJudge(self.facts, self._reader, plan.complete_mark, self._context)
        self._queues: Final[dict[tuple[str, int], QueueCheck]] = {}
        self._index: Final = IndexCheck(disk, root, self._context)
        self._records = self._records_bytes = self._records_sealed = self._records_older = 0
        self._queues_opened = 0
        self._reported_offset = 0
        self._is_ours, self._ours_end = False, -1

    def run(self) -> VerifyReport:
        """Verify the store and return the report. Ctrl-C ends it with the findings so far."""
        facts, findings, is_interrupted = self.facts, self._context.findings, False
        check_files(facts, findings)
        try:
            self._open_queues()
            end = self._read_log()
            self._finish(end)
        except KeyboardInterrupt:
            is_interrupted, end = True, max(self._reported_offset, self._start)
        finally:
            self._reader.close()
        return VerifyReport(
            root=facts.root, is_in_use=facts.is_in_use, is_clean=facts.is_clean, start=self._start, end=end,
            is_full_range=self._is_full_range and not is_interrupted, is_interrupted=is_interrupted,
            records=self._records, records_bytes=self._records_bytes, records_sealed=self._records_sealed,
            queues=self._queues_opened, units=sum(queue.units for queue in self._queues.values()),
            older_records=self._records_older + sum(queue.older for queue in self._queues.values()),
            index_files=self._index.files, index_entries=self._index.entries, findings=findings,
        )  # fmt: skip

    def _range(self, recovery: StartPlan) -> tuple[int, int, bool]:
        """Return the range of the log to read, whose start is moved back to the start of a record."""
        options, facts = self._options, self.facts
        start = facts.log_start
        if options.is_quick:
            start = recovery.start if not recovery.is_full or not facts.log else facts.log[-1].base_offset
        if options.start is not None and options.start > start:
            start = self._reader.record_before(min(options.start, facts.files_end))
        end = facts.files_end if options.end is None else min(options.end, facts.files_end)
        return start, max(start, end), start == facts.log_start and end == facts.files_end

    # -- the log -------------------------------------------------------------------------------------------------------

    def _read_log(self) -> int:
        """Read the log and return its end."""
        offset = self._start
        while offset < self._end:
            stop = self._reader.walk(offset, self._end, self._found)
            if stop.reason is StopReason.REACHED:
                return stop.offset
            stop = self._retry_if_in_use(stop)
            if stop.reason is StopReason.REACHED:
                return stop.offset
            after = self._judge.judge(stop, self._end)
            if after is None:
                return stop.offset
            offset = after
        return offset

    def _retry_if_in_use(self, stop: Stop) -> Stop:
        """Continue the walk in a store in use, because a broker may have been writing the record meanwhile."""
        if not self.facts.is_in_use:
            return stop
        return self._reader.walk(stop.offset, self._end, self._found)

    def _found(self, view: memoryview, position: int, physical: int, size: int) -> None:
        """Check one whole record against its queue and the index."""
        self._records += 1
        self._records_bytes += size
        if physical >= self._ours_end:
            self._is_ours, self._ours_end = self.facts.ownership_at(physical)
        self._records_sealed += self._is_ours
        if physical - self._reported_offset >= PROGRESS_BYTES:
            self._reported_offset = physical
            self._progress(physical - self._start, self._end - self._start)
        record = decode_record_fields(view, position, size)
        tag_hash = partial(_tag_hash, view, position, size)
        self._judge.note_time(physical, record.store_timestamp_ms)
        if physical < self._deleted.get(record.topic, -1):
            self._records_older += 1
            self._index.compare_record(physical, self._key_hashes(record), tag_hash, is_wanted=False)
            return
        if record.is_queued:
            queue = self._queues.get((record.topic, record.queue_id))
            if queue is None:
                queue = self._add_absent_queue(record)
            queue.compare_record(record.queue_offset, physical, size, record.tags_code, record.offsets)
        if self._index.has_files:
            self._index.compare_record(physical, self._key_hashes(record), tag_hash)

    def _key_hashes(self, record: RecordFields) -> list[int]:
        return [key_hash(record.topic, key) for key in record.keys] if self._index.has_files else []

    def _add_absent_queue(self, record: RecordFields) -> QueueCheck:
        """Add the check of a queue that has a record and no files."""
        queue = QueueCheck(record.topic, record.queue_id, None, self._context)
        self._queues[record.topic, record.queue_id] = queue
        return queue

    # -- queues, index, tables -----------------------------------------------------------------------------------------

    def _open_queues(self) -> None:
        locations = list(list_queue_locations(self._disk, self.facts.root))
        block_bytes = min(BLOCK_BYTES_MAX, max(QUEUE_MEMORY_BYTES // max(len(locations), 1) // 4, 640))
        readers = [QueueReader(self._disk, location, block_bytes=block_bytes) for location in locations]
        size = most_common_size([segment for reader in readers for segment in reader.segments])
        for reader in readers:
            location = reader.location
            for fault in segment_faults(reader.segments, size):
                self._context.findings.add(queue_file_finding(location, fault))
            used = reader if reader.segments else None
            self._queues[location.topic, location.queue_id] = QueueCheck(
                location.topic, location.queue_id, used, self._context
            )
        self._queues_opened = len(readers)

    def _finish(self, log_end: int) -> None:
        """Check what remains of queues and index, and the small files, after the log was read up to ``log_end``."""
        # If only a part of the log was read, units that point after it cannot be judged.
        is_end_known = self._end == self.facts.files_end
        self._context.set_end(log_end if is_end_known else 0)
        if is_end_known:
            self._judge.finish_log(log_end)
            check_missing(self._disk, self.facts, self._context.findings, log_end, written=self._written)
        newest_ms = self._judge.newest_ms if is_end_known else 0
        known = check_small_files(self._disk, self.facts, self._context.findings, self._queue_end, newest_ms)
        for (topic, queue_id), queue in self._queues.items():
            has_point = self.facts.point is not None and str(queue_id) in self.facts.point.queues.get(topic, {})
            if self._context.end or queue.orphans:
                queue.finish(has_point or known is None or topic in known)
        if self._options.is_quick:
            check_file_starts(self._reader, self._start, self._context)
            for queue in self._queues.values():
                queue.check_ends()
        self._index.finish(is_full_range=self._is_full_range)
        self._judge.finish()

    def _queue_end(self, topic: str, queue_id: int) -> int | None:
        queue = self._queues.get((topic, queue_id))
        return None if queue is None else queue.end

    def _is_record_of(self, physical: int, topic: str, queue_id: int, queue_offset: int) -> bool:
        found = self._reader.record_at(physical)
        if found is None or not found.check.is_good:
            return False
        return decode_record_fields(found.data, 0, found.check.size)[:3] == (topic, queue_id, queue_offset)


def _tag_hash(view: memoryview, position: int, size: int) -> int | None:
    """Return the hash under which RocketMQ 5.4 and later index the tag of a record; None without a tag."""
    message = decode_record(bytes(view[position : position + size]))
    tag = message.properties.get(TAGS)
    return key_hash(message.topic, f"T#{tag}") if tag else None
