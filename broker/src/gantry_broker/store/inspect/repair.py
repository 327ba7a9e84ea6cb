"""What a start would do to a store, without doing it.

The decisions are the start's own: ``plan_start`` says where reading begins and what damage means, ``scan_log`` finds
the end and the rot, ``plan_replay`` judges the write buffers. What becomes of queues and index follows from their ends
and from the recovery point, and a test holds this account of it against real starts.

The log is mapped here, for reading only, since the start's own scan wants a view; every byte was read once before, so
that a disk that cannot read is an error and no signal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from gantry_broker.ports.reading import ReadingDisk
from gantry_broker.store.inspect.buffers import (
    buffer_directory,
    expected_of,
    found_buffers,
    map_file,
    written_unbuffered,
)
from gantry_broker.store.inspect.config_tables import config_tables
from gantry_broker.store.inspect.facts import StoreFacts, missing_of, plan_of, read_facts
from gantry_broker.store.inspect.log_reader import LogReader
from gantry_broker.store.inspect.repair_derived import DerivedPlanner
from gantry_broker.store.inspect.repair_plan import PlannedReplay, RepairPlan
from gantry_broker.store.loss import missing_bytes
from gantry_broker.store.record_dispatch import record_facts
from gantry_broker.store.recovery import INFINITE, ScanResult, StartPlan, scan_log
from gantry_broker.store.replay import plan_replay
from gantry_broker.store.settings import StoreSettings
from gantry_store_files.segments import (
    Segment,
    segment_faults,
    usual_size,
)

Progress = Callable[[int, int], None]
PROGRESS_RECORDS: Final = 10_000
_DELAY_LEVELS_MS: Final = StoreSettings().delay_levels_ms


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
        self._plan: Final = RepairPlan(root=root, is_in_use=self._facts.is_in_use, is_clean=self._facts.is_clean)
        self._units: Final[dict[tuple[str, int], int]] = {}
        self._deleted: Final = self._facts.point.deleted if self._facts.point is not None else {}

    def run(self, buffers_path: str | None = None) -> RepairPlan:
        """Plan."""
        try:
            return self._run(buffers_path)
        finally:
            self._reader.close()

    def _run(self, buffers_path: str | None) -> RepairPlan:
        plan, facts = self._plan, self._facts
        plan.refusal = refusal_of(self._disk, facts)
        start = plan_of(facts, self._reader, written=written_unbuffered(self._disk, facts, self._boot_id, buffers_path))
        plan.read_from, plan.is_full = start.start, start.is_full
        if plan.refusal or not facts.log:
            plan.missing = [] if plan.refusal else missing_of(self._disk, facts, 0)
            plan.lost_flushed_bytes = missing_bytes(plan.missing)
            return plan
        result = self._scan(start)
        plan.rotten = result.damaged
        plan.lost_flushed_bytes = result.lost_flushed
        plan.end = self._plan_buffers(result, start, buffers_path)
        plan.read_bytes = plan.end - start.start
        # Buffers that cannot be seen from here are no loss: the start may see them.
        written = 0 if plan.buffers_fault else facts.written(self._boot_id)
        plan.missing = missing_of(self._disk, facts, plan.end, written=written)
        plan.lost_flushed_bytes = max(plan.lost_flushed_bytes, missing_bytes(plan.missing))
        if not (facts.is_clean and not start.is_full and result.end == start.start):
            plan.cut_bytes = self._reader.last_used(plan.end, facts.files_end) - plan.end
            plan.cut_records = self._reader.count_records(plan.end, facts.files_end) if plan.cut_bytes else 0
        plan.queues_behind = [(topic, queue_id, count) for (topic, queue_id), count in sorted(self._units.items())]
        derived = DerivedPlanner(self._disk, facts, self._reader, start, plan)
        derived.plan_index()
        derived.plan_queues()
        if not start.is_full and (plan.queues_rebuilt or plan.is_index_rebuilt):
            self._read_before(start.start)
        derived.count_lost()
        plan.lost_bytes = sum(end - begin for begin, end in plan.rotten) + max(plan.lost_flushed_bytes, plan.cut_bytes)
        return plan

    def _scan(self, start: StartPlan) -> ScanResult:
        """As a start does, which has a filler where a file is missing in between."""
        facts, damaged = self._facts, []
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

    def _read_before(self, start: int) -> None:
        """What lies before the start is read, too, for what has to be built again."""
        plan, facts = self._plan, self._facts
        before = self._mapped(facts.log_start, start)
        result = scan_log(before, facts.log_start, start, self._count, seals=facts.ours_from)
        plan.read_bytes += start - facts.log_start
        plan.rotten = sorted(plan.rotten + result.damaged)

    def _count(self, _view: memoryview, _position: int, _physical: int, _size: int) -> None:
        """A record that a start would read."""
        self._plan.records += 1

    def _found(self, view: memoryview, position: int, physical: int, size: int) -> None:
        """A record that a start would dispatch again."""
        self._plan.records += 1
        if self._plan.records % PROGRESS_RECORDS == 0:
            start = self._plan.read_from
            self._progress(physical - start, self._facts.files_end - start)
        record = record_facts(view, position, size, _DELAY_LEVELS_MS)
        if record.is_queued and physical >= self._deleted.get(record.topic, -1):
            queue = (record.topic, record.queue_id)
            self._units[queue] = self._units.get(queue, 0) + 1

    # -- write buffers -------------------------------------------------------------------------------------------------

    def _plan_buffers(self, result: ScanResult, start: StartPlan, path: str | None) -> int:
        """What becomes of the write buffers; where the log ends after it."""
        plan, facts = self._plan, self._facts
        directory = buffer_directory(self._disk, facts, path)
        expected = expected_of(facts)
        if directory is None or expected is None:
            return result.end
        plan.buffers_path, plan.buffers_fault = directory.path, directory.fault
        found = found_buffers(self._disk, directory)
        replay = plan_replay(result.end, found, expected, self._file_bytes, begin=facts.log_start)
        for step in replay.steps:
            plan.buffers.append(
                PlannedReplay(
                    buffer=step.buffer.name, start=step.start, end=step.end, records=step.records, action="replay"
                )
            )
        plan.records += replay.replayed_records
        for aside in replay.set_aside:
            plan.buffers.append(
                PlannedReplay(
                    buffer=aside.buffer.name, start=aside.buffer.start, end=aside.end, records=0, action="set aside",
                    reason=aside.reason,
                )
            )  # fmt: skip
        named = {one.buffer for one in plan.buffers}
        for buffer in found:
            if buffer.name not in named:
                plan.buffers.append(
                    PlannedReplay(
                        buffer=buffer.name, start=buffer.start, end=buffer.start, records=0, action="nothing",
                        reason="the log has everything that it holds",
                    )
                )  # fmt: skip
        if replay.steps and start.durable_mark != INFINITE:
            plan.lost_flushed_bytes = max(0, start.durable_mark - replay.end)
        return replay.end

    def _file_bytes(self, offset: int, size: int) -> memoryview | None:
        data = self._reader.bytes_at(offset, size)
        return memoryview(data) if data else None


def refusal_of(disk: ReadingDisk, facts: StoreFacts) -> str:
    """Why a start would refuse this store before it reads it; empty if it would not."""
    for table in config_tables(disk, facts.root):
        if not table.is_usable:
            return f"config/{table.name}.json and its copy (.bak) cannot be read: {table.fault}"
    if facts.identity is None and facts.identity_fault:
        return f"the store's identity cannot be read: {facts.identity_fault}"
    fault = next((one for one in segment_faults(facts.log, usual_size(facts.log)) if not one.is_hole), None)
    return "" if fault is None else f"{fault.path}: {fault.text}"
