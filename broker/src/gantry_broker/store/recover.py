"""Recovery, the doing half: open the files, read the log, cut the torn tail, bring queues and index up to its end.

The order is the promise. The abort marker is set before anything changes. What write buffers of a dead process hold is
put behind the end of the log and synced, before anybody may void a buffer. The tail is cut durably (zeroed from the cut
to the end of its file, later files unlinked, file and directory synced) before a byte is accepted there: overwriting
only the first header would let old records rise again behind new ones of the same size. What was not known to be
flushed is rewritten before it is synced, since after a failed flush the page cache shows bytes that are on no disk.
Only then does ``flushed`` count, and last of all a new recovery point is written.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, final

from gantry_broker.errors import StoreFull
from gantry_broker.ports.disk import Disk
from gantry_broker.store import crash_points
from gantry_broker.store.commit_log import CommitLog
from gantry_broker.store.derived import DerivedFiles
from gantry_broker.store.key_index import KeyIndex
from gantry_broker.store.mapped_file import MappedFile, last_used, rewrite
from gantry_broker.store.queue_table import QueueTable
from gantry_broker.store.record_taker import Progress, RecordTaker
from gantry_broker.store.recovery import (
    INFINITE,
    LogFile,
    ScanResult,
    Seals,
    StartFacts,
    StartPlan,
    is_point_proved,
    no_seals,
    plan_start,
    scan_log,
)
from gantry_broker.store.recovery_point import RecoveryPoint, RecoveryPointFile
from gantry_broker.store.recovery_report import RecoveryReport
from gantry_broker.store.replay import (
    Expected,
    FoundBuffer,
    ReplayStep,
    buffered_from,
    execute_step,
    plan_refills,
    plan_replay,
    set_aside,
)
from gantry_broker.store.settings import StoreSettings
from gantry_wire.message import RecordCheck, check_record

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundStore:
    """Everything that was found beside the log's files before recovery begins."""

    root: str
    point: RecoveryPoint | None
    is_clean: bool
    sealed_flushed: int
    failed_flushed: int | None = None
    expected: Expected
    """What a buffer must say to be believed."""

    buffers: Sequence[FoundBuffer] = ()
    seals: Seals = no_seals
    written: int = 0
    """Up to where this run of the machine has written the log; 0 where that is not known."""


@final
class Recovery:
    """One recovery of one store. Used once, by the thread that opens."""

    def __init__(
        self, disk: Disk, settings: StoreSettings, commit_log: CommitLog, queues: QueueTable, index: KeyIndex | None,
        point_file: RecoveryPointFile, progress: Progress | None,
    ) -> None:  # fmt: skip
        self._disk: Final = disk
        self._log: Final = commit_log
        self._queues: Final = queues
        self._taker: Final = RecordTaker(
            disk, commit_log, queues, None if index is None else index.put_batch, settings.delay_levels_ms, progress
        )  # fmt: skip
        self._derived: Final = DerivedFiles(
            disk, commit_log, queues, index, self._taker, settings.delay_levels_ms, point_file
        )
        self._replayed: Final[list[ReplayStep]] = []
        self._set_aside: Final[list[str]] = []
        self.durable_mark = 0
        """How far the log is durable, if this ends in the middle: the next start must not believe what lies behind."""

        self.start_tail = -1
        """Where the record begins that ends where reading started; -1 if all of the log was read."""

    @property
    def tail(self) -> int:
        """Where the last record begins; -1 in an empty log."""
        return self._taker.tail if self._taker.tail >= 0 else self.start_tail

    def run(self, found: FoundStore) -> RecoveryReport:
        """Recover, and say what happened."""
        point, is_clean = found.point, found.is_clean
        commit_log, taker = self._log, self._taker
        self._queues.load_deleted(point.deleted if point is not None else {})
        if not is_clean and commit_log.files.files:
            # Names that retention took away may be gone in the page cache only. Queues are cut to what is left of the
            # log, durably: if the names came back, their messages would be in no queue.
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
            written=min(found.written, buffered_from(found.buffers, found.expected)),
        )
        plan = plan_start(facts)
        self.durable_mark = min(plan.durable_mark, facts.files_end)
        trusted = point if point is not None and not plan.is_full else None
        if trusted is not None:
            commit_log.note_store_time(trusted.timestamp_ms)
        self.start_tail = trusted.tail if trusted is not None else -1

        derived = self._derived
        derived.load(plan.start, trusted, is_clean=is_clean, written=found.written)
        damaged = self._read_before(plan, found)
        result = self._scan(commit_log.files.files, plan.start, plan.whole_mark, found)
        damaged += result.damaged
        if found.buffers:
            result = self._replay(result, plan, found)
        damaged = sorted(damaged + taker.damaged)
        derived.restore_ends(point, is_trusted=trusted is not None)
        if damaged:
            with suppress(StoreFull):
                self._queues.fill_to(derived.ends_found, max(result.end - 1, 0))
        cut_bytes = self._cut(result, plan, is_clean=is_clean)
        self._make_durable(plan, found, result.end)
        crash_points.hit(crash_points.MID_RECOVERY)
        return RecoveryReport(
            is_clean=is_clean, start=plan.start, end=result.end, records=taker.records, cut_bytes=cut_bytes,
            damaged=damaged, lost_flushed_bytes=result.lost_flushed, queue_ends=derived.ends_found,
            queues_rebuilt=sorted((queue.topic, queue.queue_id) for queue in derived.rebuilt),
            is_index_rebuilt=derived.is_index_rebuilt,
            replayed_bytes=sum(step.end - step.start for step in self._replayed),
            replayed_records=sum(step.records for step in self._replayed), set_aside=self._set_aside,
            had_failed_flush=found.failed_flushed is not None, unknown_topics=taker.unknown_topics,
        )  # fmt: skip

    # -- before the log is read ----------------------------------------------------------------------------------------

    def _check_at(self, offset: int) -> RecordCheck | None:
        file = self._log.files.at(offset)
        return None if file is None else check_record(file.view, offset - file.base_offset, physical_offset=offset)

    # -- reading the log -----------------------------------------------------------------------------------------------

    def _scan(self, files: Sequence[LogFile], start: int, whole_mark: int, found: FoundStore) -> ScanResult:
        taker = self._taker
        return scan_log(files, start, whole_mark, taker.found, found_plain=taker.found_plain, seals=found.seals)

    def _read_before(self, plan: StartPlan, found: FoundStore) -> list[tuple[int, int]]:
        """Read what lies before the start, for queues and an index that are not there; what of it is damaged."""
        rebuilt = self._derived.rebuilt
        if plan.is_full or (not rebuilt and self._derived.is_index_usable):
            return []
        self._taker.restrict(rebuilt)
        files = tuple(_Before(file, plan.start) for file in self._log.files.files if file.base_offset < plan.start)
        # With checksums: a rotten record may claim another queue or offset, and would cost its neighbours theirs.
        result = self._scan(files, self._log.min_physical, plan.start, found)
        self._taker.restrict(None)
        return result.damaged

    # -- write buffers -------------------------------------------------------------------------------------------------

    def _refill_holes(self, found: FoundStore) -> None:
        """Bring back, durably, files in the middle that are gone and that a write buffer still has from the beginning.

        The log is read as if they had never been away. Fillers are in their places, which are no end of the log: what
        buffers hold could not be put behind it any more.
        """
        for step in plan_refills([hole for hole, _ in self._log.fillers.holes], found.buffers, found.expected):
            execute_step(self._log, step)
            self._log.fillers.forget(step.start)
            self._replayed.append(step)

    def _replay(self, result: ScanResult, plan: StartPlan, found: FoundStore) -> ScanResult:
        """Put what only write buffers hold behind the end of the log, durably, and read it."""
        begin = self._log.min_physical
        replay = plan_replay(result.end, found.buffers, found.expected, self._file_bytes, begin=begin)
        for step in replay.steps:
            execute_step(self._log, step)
        for aside in replay.set_aside:
            path = set_aside(self._disk, found.root, aside)
            self._set_aside.append(path)
            log.error(
                "a write buffer does not belong into this log and was set aside",
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

    def _cut(self, result: ScanResult, plan: StartPlan, *, is_clean: bool) -> int:
        """Make everything behind the end of the log zero, durably; how many bytes of its last file were not."""
        if is_clean and not plan.is_full and result.end == plan.start:
            return 0
        file, cut_bytes = self._log.files.at(result.end), 0
        if file is not None:
            position = result.end - file.base_offset
            cut_bytes = last_used(file.file, position) - position
        self._log.cut(result.end)
        return cut_bytes

    def _make_durable(self, plan: StartPlan, found: FoundStore, end: int) -> None:
        """Rewrite what may be in the page cache only, then sync: everything before ``end`` is flushed then."""
        files, is_clean = self._log.files, found.is_clean
        rewrite_from = sync_from = min(plan.durable_mark, end)
        if plan.is_full:
            # Nothing says what was flushed. All of it is synced; rewriting is for what can have been written last.
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
class _Before:
    """The part of a log file that lies before an offset."""

    __slots__ = ("advise", "base_offset", "end_offset", "view")

    def __init__(self, file: MappedFile, end: int) -> None:
        self.advise = file.advise
        self.base_offset = file.base_offset
        self.end_offset = min(end, file.end_offset)
        self.view = file.view[: self.end_offset - self.base_offset]
