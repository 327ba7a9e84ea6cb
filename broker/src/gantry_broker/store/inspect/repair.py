"""The plan of the next start: what recovery would do to a store, computed without changing it.

The decisions are those of a start: ``plan_start`` decides where reading begins and how damage is treated, ``scan_log``
finds the end and the damage, ``plan_replay`` judges the write buffers. The treatment of queues and index follows from
their ends and from the recovery point, and a test compares the plan with real starts.

The log is mapped here, read-only, since the start's scan needs a view; every byte is read once before, so that a read
error of the disk is an exception and no signal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple, final

from gantry_broker.ports.reading import ReadingDisk
from gantry_broker.store.inspect.buffers import (
    expected_header,
    find_unbuffered_end,
    map_file,
    read_buffer_directory,
    read_live_buffers,
)
from gantry_broker.store.inspect.config_tables import read_config_tables
from gantry_broker.store.inspect.facts import StoreFacts, find_missing_ranges, find_refusal, plan_next_start, read_facts
from gantry_broker.store.inspect.log_reader import LogReader, decode_record_fields
from gantry_broker.store.inspect.repair_derived import DerivedPlanner
from gantry_broker.store.loss import LostRange, missing_bytes
from gantry_broker.store.recovery import INFINITE, ScanResult, StartPlan, scan_log
from gantry_broker.store.replay import plan_replay
from gantry_broker.store.scan_dispatcher import PROGRESS_RECORDS, Progress
from gantry_store_files.segments import Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedReplay:
    """One write buffer, and what the next start would do with it."""

    buffer: str
    """The name of the buffer's file."""

    start: int
    """Where the records begin that are written to the log; without a replay, where the buffer begins."""

    end: int
    """Where the records of the buffer end; equal to ``start`` if nothing is done with it."""

    records: int
    """Number of records that are written to the log."""

    action: str
    """``replay``, ``set aside`` or ``nothing``."""

    reason: str = ""
    """Why the buffer is not replayed; empty if it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairPlan:
    """The actions and losses of the next start."""

    root: str
    is_in_use: bool
    is_clean: bool
    """Whether a start would treat the last stop as clean."""

    refusal: str = ""
    """Why the start would fail; empty if it would not."""

    read_from: int = 0
    """The offset from which the log would be read."""

    is_full: bool = False
    """Whether the whole log would be read."""

    read_bytes: int = 0
    """Number of bytes of the log that would be read, those before ``read_from`` included if a rebuild needs them."""

    records: int = 0
    """Number of records that would be read, those of write buffers included."""

    end: int = 0
    """The end of the log after the start."""

    cut_bytes: int = 0
    """Size of the torn tail: the bytes after ``end`` up to the last one that is not zero."""

    cut_records: int = 0
    """Number of whole records after the end of the log, in the torn tail that would be cut off."""

    damaged: list[tuple[int, int]] = field(default_factory=list)
    """Half-open damaged ranges that would be reported and skipped."""

    lost_flushed_bytes: int = 0
    """Number of bytes that were flushed, or written before a kill, and are lost."""

    missing: list[LostRange] = field(default_factory=list)
    """Missing ranges of the log that were on the disk: no send is accepted until they are back or accepted as lost."""

    lost_bytes: int = 0
    """Bytes in damaged ranges, and the larger one of ``lost_flushed_bytes`` and ``cut_bytes``."""

    lost_messages: int = 0
    """Number of lost messages with queue units. A lower bound if queues are damaged, too."""

    queues_rebuilt: list[tuple[str, int]] = field(default_factory=list)
    """Topic and queue id of each queue that would be rebuilt from the log."""

    queues_behind: list[tuple[str, int, int]] = field(default_factory=list)
    """Topic, queue id, and number of units that would be written again."""

    is_index_rebuilt: bool = False
    buffers: list[PlannedReplay] = field(default_factory=list)
    """The write buffers that were found, and what happens to each."""

    buffers_path: str = ""
    """The directory of the write buffers; empty if there is none."""

    buffers_fault: str = ""
    """Why the write buffers cannot be inspected; empty if they can."""

    @property
    def is_lossless(self) -> bool:
        """Whether the start would lose nothing.

        Whole records in the torn tail count as lost although they are not known to be flushed: with asynchronous
        flush they may have been acknowledged.
        """
        return not (self.damaged or self.lost_flushed_bytes or self.lost_messages or self.missing or self.cut_records)


class _PlannedBuffers(NamedTuple):
    """What the next start would do with the write buffers."""

    end: int
    """The end of the log after the replay."""

    lost_flushed_bytes: int
    buffers: list[PlannedReplay]
    path: str = ""
    fault: str = ""


@final
class MappedSegment:
    """A log file, or its part before ``end``, for the start's scan, mapped while it is read.

    The scan moves forward only, so earlier maps are dropped: it uses the memory of one file, which the kernel may
    reclaim at any time.
    """

    def __init__(self, disk: ReadingDisk, segment: Segment, end: int, previous: MappedSegment | None) -> None:
        self.base_offset: Final = segment.base_offset
        self.end_offset: Final = min(segment.end_offset, end)
        self._disk: Final = disk
        self._path: Final = segment.path
        self._previous: Final = previous
        self._view: memoryview | None = None

    @property
    def view(self) -> memoryview:
        if self._view is None:
            self._view = map_file(self._disk, self._path)[: self.end_offset - self.base_offset]
            if self._previous is not None:
                self._previous.drop()
        return self._view

    def advise(self, start: int, end: int) -> None:
        """Do nothing, because every byte was read before it was mapped."""

    def drop(self) -> None:
        """Drop the map. The next use of ``view`` creates it again."""
        self._view = None


@final
class RepairPlanner:
    """Plans the next start of one store. Used once. Raises ``OSError`` if a file cannot be read at all."""

    def __init__(
        self, disk: ReadingDisk, root: str, progress: Progress | None = None, *, boot_id: str = ""
    ) -> None:  # fmt: skip
        """Read the facts of the store in ``root``.

        ``boot_id`` identifies the boot of the machine on which the next start will run; empty if unknown.
        """
        self._disk: Final = disk
        self._boot_id: Final = boot_id
        self._facts: Final[StoreFacts] = read_facts(disk, root)
        self._reader: Final = LogReader(disk, self._facts.log, self._facts.ownership_at)
        self._progress: Final[Progress] = progress if progress is not None else lambda done, total: None
        self._records = self._read_from = 0
        self._units: Final[dict[tuple[str, int], int]] = {}
        self._deleted: Final = self._facts.point.deleted if self._facts.point is not None else {}

    def run(self, buffers_path: str | None = None) -> RepairPlan:
        """Return the plan, with the write buffers in ``buffers_path`` or in the directory that the store records."""
        try:
            return self._run(buffers_path)
        finally:
            self._reader.close()

    def _run(self, buffers_path: str | None) -> RepairPlan:
        facts = self._facts
        refusal = find_refusal(facts, read_config_tables(self._disk, facts.root))
        start = plan_next_start(
            facts, self._reader, written=find_unbuffered_end(self._disk, facts, self._boot_id, buffers_path)
        )
        if refusal or not facts.log:
            missing = [] if refusal else find_missing_ranges(self._disk, facts, 0)
            return RepairPlan(
                root=facts.root, is_in_use=facts.is_in_use, is_clean=facts.is_clean, refusal=refusal,
                read_from=start.start, is_full=start.is_full, missing=missing,
                lost_flushed_bytes=missing_bytes(missing),
            )  # fmt: skip
        result = self._scan(start)
        damaged, planned = result.damaged, self._plan_buffers(result, start, buffers_path)
        end, read_bytes = planned.end, planned.end - start.start
        # Buffers that cannot be read from here are not counted as a loss, since the start may be able to read them.
        written = 0 if planned.fault else facts.written_end(self._boot_id)
        missing = find_missing_ranges(self._disk, facts, end, written=written)
        lost_flushed_bytes = max(planned.lost_flushed_bytes, missing_bytes(missing))
        cut_bytes = 0
        if not (facts.is_clean and not start.is_full and result.end == start.start):
            cut_bytes = self._reader.find_used_end(end, facts.files_end) - end
        derived = DerivedPlanner(self._disk, facts, self._reader, start)
        is_index_rebuilt, queues_rebuilt = derived.must_rebuild_index(), derived.find_queues_to_rebuild()
        if not start.is_full and (queues_rebuilt or is_index_rebuilt):
            damaged = sorted(damaged + self._damage_before(start.start))
            read_bytes += start.start - facts.log_start
        return RepairPlan(
            root=facts.root, is_in_use=facts.is_in_use, is_clean=facts.is_clean,
            read_from=start.start, is_full=start.is_full, read_bytes=read_bytes, records=self._records, end=end,
            cut_bytes=cut_bytes,
            cut_records=self._reader.count_records(end, facts.files_end) if cut_bytes else 0,
            damaged=damaged, lost_flushed_bytes=lost_flushed_bytes, missing=missing,
            lost_bytes=sum(stop - begin for begin, stop in damaged) + max(lost_flushed_bytes, cut_bytes),
            lost_messages=derived.count_lost(damaged, end),
            queues_rebuilt=queues_rebuilt,
            queues_behind=[(topic, queue_id, count) for (topic, queue_id), count in sorted(self._units.items())],
            is_index_rebuilt=is_index_rebuilt, buffers=planned.buffers, buffers_path=planned.path,
            buffers_fault=planned.fault,
        )  # fmt: skip

    def _scan(self, start: StartPlan) -> ScanResult:
        """Scan the log as a start does, which creates a filler where a file is missing between two others."""
        facts, damaged = self._facts, []
        self._read_from = start.start
        files = self._map_files(start.start, facts.files_end)
        result = ScanResult(end=start.start)
        for number, file in enumerate(files):
            if number and file.base_offset == files[number - 1].end_offset:
                continue
            after = next((at for at, one in enumerate(files[number + 1 :], number + 1)
                          if one.base_offset != files[at - 1].end_offset), len(files))  # fmt: skip
            begin = max(start.start, file.base_offset)
            result = scan_log(files[number:after], begin, start.complete_mark, self._found, seals=facts.ownership_at)
            damaged += result.damaged
            if result.end < files[after - 1].end_offset:
                break
        result.damaged = damaged
        return result

    def _map_files(self, start: int, end: int) -> tuple[MappedSegment, ...]:
        files: list[MappedSegment] = []
        for segment in self._facts.log:
            if segment.end_offset > start and segment.base_offset < end:
                files.append(MappedSegment(self._disk, segment, end, files[-1] if files else None))
        return tuple(files)

    def _damage_before(self, start: int) -> list[tuple[int, int]]:
        """Return the damage before ``start``, which is read, too, when a queue or the index must be rebuilt."""
        facts = self._facts
        before = self._map_files(facts.log_start, start)
        return scan_log(before, facts.log_start, start, self._count, seals=facts.ownership_at).damaged

    def _count(self, _view: memoryview, _position: int, _physical: int, _size: int) -> None:
        """Count a record before the start of the scan, which is read for queues or an index that are rebuilt."""
        self._records += 1

    def _found(self, view: memoryview, position: int, physical: int, size: int) -> None:
        """Count a record that a start would dispatch again."""
        self._records += 1
        if self._records % PROGRESS_RECORDS == 0:
            start = self._read_from
            self._progress(physical - start, self._facts.files_end - start)
        record = decode_record_fields(view, position, size)
        if record.is_queued and physical >= self._deleted.get(record.topic, -1):
            queue = (record.topic, record.queue_id)
            self._units[queue] = self._units.get(queue, 0) + 1

    # -- write buffers -------------------------------------------------------------------------------------------------

    def _plan_buffers(self, result: ScanResult, start: StartPlan, path: str | None) -> _PlannedBuffers:
        facts = self._facts
        directory = read_buffer_directory(self._disk, facts, path)
        if directory is None:
            return _PlannedBuffers(result.end, result.lost_flushed, [])
        found = read_live_buffers(self._disk, directory)
        replay = plan_replay(result.end, found, expected_header(facts), self._file_bytes, begin=facts.log_start)
        self._records += sum(step.records for step in replay.steps)
        planned = [
            PlannedReplay(
                buffer=step.buffer.name, start=step.start, end=step.end, records=step.records, action="replay"
            )
            for step in replay.steps
        ]
        planned += [
            PlannedReplay(
                buffer=aside.buffer.name, start=aside.buffer.start, end=aside.end, records=0, action="set aside",
                reason=aside.reason,
            )
            for aside in replay.set_aside
        ]  # fmt: skip
        named = {one.buffer for one in planned}
        planned += [
            PlannedReplay(
                buffer=buffer.name, start=buffer.start, end=buffer.start, records=0, action="nothing",
                reason="the log has all of its records, or they have expired",
            )
            for buffer in found
            if buffer.name not in named
        ]  # fmt: skip
        lost_flushed_bytes = result.lost_flushed
        if replay.steps and start.durable_mark != INFINITE:
            lost_flushed_bytes = max(0, start.durable_mark - replay.end)
        return _PlannedBuffers(replay.end, lost_flushed_bytes, planned, directory.path, directory.fault)

    def _file_bytes(self, offset: int, size: int) -> memoryview | None:
        data = self._reader.bytes_at(offset, size)
        return memoryview(data) if data else None
