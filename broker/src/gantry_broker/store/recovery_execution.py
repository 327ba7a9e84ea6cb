"""Execution of recovery: read the log, replay write buffers, truncate the torn tail, and complete queues and index.

The order is essential. The abort marker is set before this module changes anything. What write buffers of a dead
process hold is written after the end of the log and synced before any buffer is voided. The torn tail is removed
durably (zeroed from the end of the log to the end of its file, later files unlinked, file and directory synced) before
a byte is accepted there: if only the first header were overwritten, old records would reappear after new ones of the
same size. What was not known to be flushed is rewritten before it is synced, since after a failed flush the page cache
may have bytes that are not on the disk. Only then does ``flushed`` count, and a new recovery point is written last.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

from gantry_broker.ports.disk import Disk, DiskFile
from gantry_broker.store import crash_points
from gantry_broker.store.commit_log import CommitLog
from gantry_broker.store.derived import DerivedFiles
from gantry_broker.store.key_index import KeyIndex
from gantry_broker.store.mapped_file import CHUNK_BYTES, MappedFile, find_used_end, rewrite
from gantry_broker.store.queue_table import QueueTable
from gantry_broker.store.read_ahead import MappableFile, ReadAhead
from gantry_broker.store.recovery import (
    INFINITE,
    ScanResult,
    Seals,
    StartFacts,
    StartPlan,
    count_whole_records,
    is_point_proved,
    no_seals,
    plan_start,
    scan_log,
)
from gantry_broker.store.recovery_point import RecoveryPoint, RecoveryPointFile
from gantry_broker.store.recovery_report import RecoveryReport
from gantry_broker.store.replay import (
    ExpectedHeader,
    FoundBuffer,
    ReplayStep,
    execute_step,
    find_first_buffered,
    plan_refills,
    plan_replay,
    set_aside,
)
from gantry_broker.store.scan_dispatcher import Progress, ScanDispatcher
from gantry_broker.store.settings import StoreSettings
from gantry_wire.message import RecordCheck, check_record

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundStore:
    """What a start has found beside the files of the log, and on which recovery depends."""

    root: str
    point: RecoveryPoint | None
    """The last recovery point; None without a usable one."""

    is_clean: bool
    sealed_flushed: int
    """The flushed offset in the checkpoint's seal; 0 without one."""

    failed_flushed: int | None = None
    """Up to where the log was flushed when a flush failed, if one has."""

    expected: ExpectedHeader
    """The identity that a write buffer must have to be replayed."""

    buffers: Sequence[FoundBuffer] = ()
    """The live write buffers that earlier processes have left."""

    seals: Seals = no_seals
    """Returns for an offset whether records must have a seal there."""

    written: int = 0
    """Up to where the log was written on this boot of the machine; 0 if that is not known."""


@final
class Recovery:
    """One recovery of one store. Used once, by the thread that opens the store."""

    def __init__(
        self, disk: Disk, settings: StoreSettings, commit_log: CommitLog, queues: QueueTable, index: KeyIndex | None,
        point_file: RecoveryPointFile, progress: Progress | None,
    ) -> None:  # fmt: skip
        self._disk: Final = disk
        self._log: Final = commit_log
        self._queues: Final = queues
        self._index: Final = index
        self._scan_dispatcher: Final = ScanDispatcher(
            commit_log, queues, None if index is None else index.put_batch, settings.delay_levels_ms, progress
        )
        self._derived: Final = DerivedFiles(
            disk, commit_log, queues, index, self._scan_dispatcher, settings.delay_levels_ms, point_file
        )
        self._replayed: Final[list[ReplayStep]] = []
        self._set_aside: Final[list[str]] = []
        self.durable_mark = 0
        """How far the log is durable if recovery fails halfway: the next start must not trust bytes after it."""

        self.start_record = -1
        """The start of the last record before the start of the reading; -1 if unknown, or if the whole log was read."""

    @property
    def last_record(self) -> int:
        """The physical offset of the last record; -1 if it is unknown, as in an empty log."""
        return self._scan_dispatcher.last_record if self._scan_dispatcher.last_record >= 0 else self.start_record

    def run(self, found: FoundStore) -> RecoveryReport:
        """Run the recovery and return its report.

        Raises ``StoreFull`` if the disk has no space for queue units, for filler units in place of lost messages, or
        for a log file that a write buffer is replayed into.
        """
        point, is_clean = found.point, found.is_clean
        commit_log, scan_dispatcher = self._log, self._scan_dispatcher
        self._queues.load_deleted(point.deleted if point is not None else {})
        if not is_clean and commit_log.files.files:
            # Files that retention unlinked may be gone in the page cache only. Queues are trimmed durably to the rest
            # of the log: if the files came back, their messages would be in no queue.
            commit_log.files.sync_directory()
        self._refill_holes(found)
        facts = StartFacts(
            is_clean=is_clean,
            min_physical=commit_log.min_physical,
            files_end=commit_log.files.end_offset,
            sealed_flushed=found.sealed_flushed,
            point_through=point.through if point is not None else None,
            is_point_proved=is_point_proved(point, commit_log.file_size, self._check_at),
            failed_flushed=found.failed_flushed,
            written=min(found.written, find_first_buffered(found.buffers, found.expected)),
        )
        plan = plan_start(facts)
        self.durable_mark = facts.sealed_flushed if plan.durable_mark == INFINITE else plan.durable_mark
        trusted = point if point is not None and not plan.is_full else None
        if trusted is not None:
            commit_log.note_store_time(trusted.timestamp_ms)
        self.start_record = trusted.tail if trusted is not None else -1

        derived = self._derived
        derived.load(plan.start, trusted, is_clean=is_clean, written=found.written)
        damaged = self._read_before_start(plan, found)
        result = self._scan(commit_log.files.files, plan.start, plan.complete_mark, found)
        damaged += result.damaged
        if found.buffers:
            result = self._replay(result, plan, found)
        damaged = sorted(damaged + scan_dispatcher.damaged)
        derived.restore_ends(point, is_trusted=trusted is not None)
        if damaged:
            self._queues.fill_to(derived.ends_found, max(result.end - 1, 0))
        cut_bytes, cut_records = self._zero_tail(result, plan, found)
        self._make_durable(plan, found, result.end)
        crash_points.hit(crash_points.MID_RECOVERY)
        return RecoveryReport(
            is_clean=is_clean, start=plan.start, end=result.end, records=scan_dispatcher.records, cut_bytes=cut_bytes,
            cut_records=cut_records, damaged=damaged, lost_flushed_bytes=result.lost_flushed,
            queue_ends=derived.ends_found,
            queues_rebuilt=sorted((queue.topic, queue.queue_id) for queue in derived.rebuilt),
            is_index_rebuilt=derived.is_index_rebuilt,
            replayed_bytes=sum(step.end - step.start for step in self._replayed),
            replayed_records=sum(step.records for step in self._replayed), set_aside=self._set_aside,
            had_failed_flush=found.failed_flushed is not None, unknown_topics=scan_dispatcher.unknown_topics,
        )  # fmt: skip

    # -- before the log is read ----------------------------------------------------------------------------------------

    def _check_at(self, offset: int) -> RecordCheck | None:
        file = self._log.files.at(offset)
        return None if file is None else check_record(file.view, offset - file.base_offset, physical_offset=offset)

    # -- reading the log -----------------------------------------------------------------------------------------------

    def _scan(self, files: Sequence[MappableFile], start: int, complete_mark: int, found: FoundStore) -> ScanResult:
        scan_dispatcher = self._scan_dispatcher
        with ReadAhead(self._built_files) as ahead:
            return scan_log(
                ahead.wrap(files),
                start,
                complete_mark,
                scan_dispatcher.dispatch_record,
                on_plain_records=scan_dispatcher.dispatch_plain_records,
                seals=found.seals,
            )

    def _built_files(self) -> Iterator[DiskFile]:
        """Yield the files of queues and index. The thread ``gantry-ahead`` calls it."""
        for queue in self._queues:
            for mapped in queue.files.files:
                yield mapped.file
        for file in () if self._index is None else self._index.files:
            yield file.file

    def _read_before_start(self, plan: StartPlan, found: FoundStore) -> list[tuple[int, int]]:
        """Read the log before the start for queues and an index that must be rebuilt. Return its damaged ranges."""
        rebuilt = self._derived.rebuilt
        if plan.is_full or (not rebuilt and self._derived.is_index_usable):
            return []
        self._scan_dispatcher.restrict_to(rebuilt)
        files = tuple(_FilePrefix(file, plan.start) for file in self._log.files.files if file.base_offset < plan.start)
        # Checksums are verified: a corrupt record may claim another queue or offset, and would displace right units.
        result = self._scan(files, self._log.min_physical, plan.start, found)
        self._scan_dispatcher.restrict_to(None)
        return result.damaged

    # -- write buffers -------------------------------------------------------------------------------------------------

    def _refill_holes(self, found: FoundStore) -> None:
        """Restore missing files in the middle of the log, durably, from write buffers that hold them from their start.

        The log is then read as if they had never been missing. Filler files are in their places, which are not the end
        of the log, so replaying after the end would not restore them.
        """
        for step in plan_refills([hole for hole, _ in self._log.fillers.holes], found.buffers, found.expected):
            execute_step(self._log, step)
            self._log.fillers.forget(step.start)
            self._replayed.append(step)

    def _replay(self, result: ScanResult, plan: StartPlan, found: FoundStore) -> ScanResult:
        """Append what only write buffers hold to the log, durably, and read it."""
        begin = self._log.min_physical
        replay = plan_replay(result.end, found.buffers, found.expected, self._file_bytes, begin=begin)
        for step in replay.steps:
            execute_step(self._log, step)
        for aside in replay.set_aside:
            path = set_aside(self._disk, found.root, aside)
            self._set_aside.append(path)
            log.error(
                "write buffer does not belong to this log and was set aside",
                extra={"buffer": aside.buffer.name, "path": path, "reason": aside.reason},
            )
        self._replayed.extend(replay.steps)
        crash_points.hit(crash_points.AFTER_REPLAY)
        if not replay.steps:
            return result
        again = self._scan(self._log.files.files, result.end, 0, found)
        assert again.end == replay.end, (again, replay)
        lost_flushed = max(0, plan.durable_mark - again.end) if plan.durable_mark != INFINITE else 0
        return replace(again, lost_flushed=lost_flushed)

    def _file_bytes(self, offset: int, size: int) -> memoryview | None:
        file = self._log.files.at(offset)
        if file is None:
            return None
        position = offset - file.base_offset
        return file.view[position : position + size]

    # -- after the log is read -----------------------------------------------------------------------------------------

    def _zero_tail(self, result: ScanResult, plan: StartPlan, found: FoundStore) -> tuple[int, int]:
        """Remove everything after the end of the log, durably. Return the size of the torn tail, and its whole records.

        The size is that in the last file: the number of bytes from the end to the last one that is not zero. Records
        are counted in later files, too. Such a file is read only if it begins with data, or if there is a torn tail:
        after a kill it is the next file, which is allocated and has no data.
        """
        if found.is_clean and not plan.is_full and result.end == plan.start:
            return 0, 0
        cut_bytes = cut_records = 0
        for file in self._log.files.files:
            if file.end_offset <= result.end:
                continue
            start = max(result.end, file.base_offset)
            if start == result.end:
                cut_bytes = find_used_end(file.file, start - file.base_offset) - (start - file.base_offset)
                used_end = start + cut_bytes
            elif cut_bytes or any(file.file.pread(min(CHUNK_BYTES, file.size), 0)):
                used_end = file.base_offset + find_used_end(file.file, 0)
            else:
                continue
            cut_records += count_whole_records(file, start, used_end, found.seals)
        self._log.truncate(result.end)
        return cut_bytes, cut_records

    def _make_durable(self, plan: StartPlan, found: FoundStore, end: int) -> None:
        """Rewrite what may be in the page cache only, and sync, so that everything before ``end`` is flushed."""
        files, is_clean = self._log.files, found.is_clean
        rewrite_from = sync_from = min(plan.durable_mark, end)
        if plan.is_full:
            # It is not known what was flushed. Everything is synced; only what may have been written last is rewritten.
            rewrite_from, sync_from = max(end - files.file_size, files.base_offset), files.base_offset
            if found.failed_flushed is not None:
                rewrite_from = min(rewrite_from, found.failed_flushed)
        for file in files.files:
            if not is_clean:
                rewrite(file.file, max(rewrite_from - file.base_offset, 0), min(end - file.base_offset, file.size))
            if file.end_offset >= sync_from:
                file.file.sync()
        if files.files:
            files.sync_directory()


@final
class _FilePrefix:
    """The part of a log file that lies before an offset."""

    __slots__ = ("advise", "base_offset", "end_offset", "map_ahead", "view")

    def __init__(self, file: MappedFile, end: int) -> None:
        self.advise = file.advise
        self.map_ahead = file.map_ahead
        self.base_offset = file.base_offset
        self.end_offset = min(end, file.end_offset)
        self.view = file.view[: self.end_offset - self.base_offset]
