"""What a start would do to a store, without doing it.

The decisions are the start's own: ``plan_start`` says where reading begins and what damage means, ``scan_log`` finds
the end and the rot, ``plan_replay`` judges the write buffers. What becomes of queues and index follows from their ends
and from the recovery point, and a test holds this account of it against real starts.

The log is mapped here, for reading only, since the start's own scan wants a view; every byte was read once before, so
that a disk that cannot read is an error and no signal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple, final

from gantry_broker.ports.reading import ReadingDisk
from gantry_broker.store.inspect.buffers import (
    buffer_directory,
    expected_of,
    found_buffers,
    map_file,
    written_unbuffered,
)
from gantry_broker.store.inspect.config_tables import config_tables
from gantry_broker.store.inspect.facts import StoreFacts, missing_of, plan_of, read_facts, refusal_of
from gantry_broker.store.inspect.log_reader import LogReader, facts_of
from gantry_broker.store.inspect.repair_derived import DerivedPlanner
from gantry_broker.store.loss import LostRange, missing_bytes
from gantry_broker.store.record_taker import PROGRESS_RECORDS, Progress
from gantry_broker.store.recovery import INFINITE, ScanResult, StartPlan, scan_log
from gantry_broker.store.replay import plan_replay
from gantry_store_files.segments import Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedReplay:
    """One write buffer, and what becomes of it."""

    buffer: str
    start: int
    end: int
    records: int
    action: str
    """``replay``, ``set aside`` or ``nothing``."""

    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairPlan:
    """What the next start would do."""

    root: str
    is_in_use: bool
    is_clean: bool
    refusal: str = ""
    """Why a start would refuse; empty if it would not."""

    read_from: int = 0
    is_full: bool = False
    """Whether the whole log is read."""

    read_bytes: int = 0
    records: int = 0
    """Records that would be read and dispatched again."""

    end: int = 0
    """Where the log would end."""

    cut_bytes: int = 0
    cut_records: int = 0
    """Whole records among them, which go with the tail."""

    rotten: list[tuple[int, int]] = field(default_factory=list)
    """Half-open ranges that would be reported and stepped over."""

    lost_flushed_bytes: int = 0
    """Bytes that had been flushed and are gone."""

    missing: list[LostRange] = field(default_factory=list)
    """Ranges of the log that were on the disk and are gone: no sends are taken before an operator accepts it."""

    lost_bytes: int = 0
    lost_messages: int = 0
    """Messages that queues still know and that will not be there. A lower bound where the queues are damaged, too."""

    queues_rebuilt: list[tuple[str, int]] = field(default_factory=list)
    queues_behind: list[tuple[str, int, int]] = field(default_factory=list)
    """Topic, queue id, how many units would be put again."""

    is_index_rebuilt: bool = False
    buffers: list[PlannedReplay] = field(default_factory=list)
    buffers_path: str = ""
    buffers_fault: str = ""

    @property
    def is_lossless(self) -> bool:
        return not (self.rotten or self.lost_flushed_bytes or self.lost_messages or self.missing)


class _PlannedBuffers(NamedTuple):
    """What becomes of the write buffers."""

    end: int
    """Where the log ends after it."""

    lost_flushed_bytes: int
    buffers: list[PlannedReplay]
    path: str = ""
    fault: str = ""


@final
class MappedSegment:
    """A log file, or its part before ``end``, as the start's scan wants it, mapped while it is looked at.

    The scan goes forward only, so its maps are dropped behind it: what it takes is one file, which the kernel may take
    back at any time.
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
        """Every byte was read before it was mapped."""

    def drop(self) -> None:
        """Let go of the map. It is made again if somebody asks."""
        self._view = None


@final
class RepairPlanner:
    """Plans for one store. Used once. Raises ``OSError`` for what cannot be read at all."""

    def __init__(
        self, disk: ReadingDisk, root: str, progress: Progress | None = None, *, boot_id: str = ""
    ) -> None:  # fmt: skip
        """``boot_id`` is the run of the machine on which the next start will be; empty where that is not known."""
        self._disk: Final = disk
        self._boot_id: Final = boot_id
        self._facts: Final[StoreFacts] = read_facts(disk, root)
        self._reader: Final = LogReader(disk, self._facts.log, self._facts.ours_from)
        self._progress: Final[Progress] = progress if progress is not None else lambda done, total: None
        self._records = self._read_from = 0
        self._units: Final[dict[tuple[str, int], int]] = {}
        self._deleted: Final = self._facts.point.deleted if self._facts.point is not None else {}

    def run(self, buffers_path: str | None = None) -> RepairPlan:
        """Plan."""
        try:
            return self._run(buffers_path)
        finally:
            self._reader.close()

    def _run(self, buffers_path: str | None) -> RepairPlan:
        facts = self._facts
        refusal = refusal_of(facts, config_tables(self._disk, facts.root))
        start = plan_of(facts, self._reader, written=written_unbuffered(self._disk, facts, self._boot_id, buffers_path))
        if refusal or not facts.log:
            missing = [] if refusal else missing_of(self._disk, facts, 0)
            return RepairPlan(
                root=facts.root, is_in_use=facts.is_in_use, is_clean=facts.is_clean, refusal=refusal,
                read_from=start.start, is_full=start.is_full, missing=missing,
                lost_flushed_bytes=missing_bytes(missing),
            )  # fmt: skip
        result = self._scan(start)
        rotten, planned = result.damaged, self._plan_buffers(result, start, buffers_path)
        end, read_bytes = planned.end, planned.end - start.start
        # Buffers that cannot be seen from here are no loss: the start may see them.
        written = 0 if planned.fault else facts.written(self._boot_id)
        missing = missing_of(self._disk, facts, end, written=written)
        lost_flushed_bytes = max(planned.lost_flushed_bytes, missing_bytes(missing))
        cut_bytes = 0
        if not (facts.is_clean and not start.is_full and result.end == start.start):
            cut_bytes = self._reader.last_used(end, facts.files_end) - end
        derived = DerivedPlanner(self._disk, facts, self._reader, start)
        is_index_rebuilt, queues_rebuilt = derived.is_index_rebuilt(), derived.queues_rebuilt()
        if not start.is_full and (queues_rebuilt or is_index_rebuilt):
            rotten = sorted(rotten + self._damage_before(start.start))
            read_bytes += start.start - facts.log_start
        return RepairPlan(
            root=facts.root, is_in_use=facts.is_in_use, is_clean=facts.is_clean,
            read_from=start.start, is_full=start.is_full, read_bytes=read_bytes, records=self._records, end=end,
            cut_bytes=cut_bytes,
            cut_records=self._reader.count_records(end, facts.files_end) if cut_bytes else 0,
            rotten=rotten, lost_flushed_bytes=lost_flushed_bytes, missing=missing,
            lost_bytes=sum(stop - begin for begin, stop in rotten) + max(lost_flushed_bytes, cut_bytes),
            lost_messages=derived.count_lost(rotten, end),
            queues_rebuilt=queues_rebuilt,
            queues_behind=[(topic, queue_id, count) for (topic, queue_id), count in sorted(self._units.items())],
            is_index_rebuilt=is_index_rebuilt, buffers=planned.buffers, buffers_path=planned.path,
            buffers_fault=planned.fault,
        )  # fmt: skip

    def _scan(self, start: StartPlan) -> ScanResult:
        """As a start does, which has a filler where a file is missing in between."""
        facts, damaged = self._facts, []
        self._read_from = start.start
        files = self._mapped(start.start, facts.files_end)
        result = ScanResult(end=start.start)
        for number, file in enumerate(files):
            if number and file.base_offset == files[number - 1].end_offset:
                continue
            after = next((at for at, one in enumerate(files[number + 1 :], number + 1)
                          if one.base_offset != files[at - 1].end_offset), len(files))  # fmt: skip
            begin = max(start.start, file.base_offset)
            result = scan_log(files[number:after], begin, start.whole_mark, self._found, seals=facts.ours_from)
            damaged += result.damaged
            if result.end < files[after - 1].end_offset:
                break
        result.damaged = damaged
        return result

    def _mapped(self, start: int, end: int) -> tuple[MappedSegment, ...]:
        files: list[MappedSegment] = []
        for segment in self._facts.log:
            if segment.end_offset > start and segment.base_offset < end:
                files.append(MappedSegment(self._disk, segment, end, files[-1] if files else None))
        return tuple(files)

    def _damage_before(self, start: int) -> list[tuple[int, int]]:
        """What lies before the start is read, too, for what has to be built again; what of it is damaged."""
        facts = self._facts
        before = self._mapped(facts.log_start, start)
        return scan_log(before, facts.log_start, start, self._count, seals=facts.ours_from).damaged

    def _count(self, _view: memoryview, _position: int, _physical: int, _size: int) -> None:
        """A record that a start would read."""
        self._records += 1

    def _found(self, view: memoryview, position: int, physical: int, size: int) -> None:
        """A record that a start would dispatch again."""
        self._records += 1
        if self._records % PROGRESS_RECORDS == 0:
            start = self._read_from
            self._progress(physical - start, self._facts.files_end - start)
        record = facts_of(view, position, size)
        if record.is_queued and physical >= self._deleted.get(record.topic, -1):
            queue = (record.topic, record.queue_id)
            self._units[queue] = self._units.get(queue, 0) + 1

    # -- write buffers -------------------------------------------------------------------------------------------------

    def _plan_buffers(self, result: ScanResult, start: StartPlan, path: str | None) -> _PlannedBuffers:
        facts = self._facts
        directory = buffer_directory(self._disk, facts, path)
        if directory is None:
            return _PlannedBuffers(result.end, result.lost_flushed, [])
        found = found_buffers(self._disk, directory)
        replay = plan_replay(result.end, found, expected_of(facts), self._file_bytes, begin=facts.log_start)
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
                reason="the log has everything that it holds",
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
