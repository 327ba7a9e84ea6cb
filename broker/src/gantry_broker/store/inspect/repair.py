"""What a start would do to a store, without doing it.

The decisions are the start's own: ``plan_start`` says where reading begins and what damage means, ``scan_log`` finds
the end and the rot, ``plan_replay`` judges the write buffers. What becomes of queues and index follows from their ends
and from the recovery point, and a test holds this account of it against real starts.

The log is mapped here, for reading only, since the start's own scan wants a view; every byte was read once before, so
that a disk that cannot read is an error and no signal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, final

from gantry_broker.ports.reading import ReadingDisk
from gantry_broker.store.inspect.buffers import buffer_directory, found_buffers, map_file
from gantry_broker.store.inspect.facts import StoreFacts, plan_of, read_facts
from gantry_broker.store.inspect.index_reader import IndexReader, index_names
from gantry_broker.store.inspect.log_reader import LogReader
from gantry_broker.store.inspect.queue_reader import QueueReader
from gantry_broker.store.inspect.segments import (
    Segment,
    queue_places,
    segment_at,
    segment_faults,
    segments_of,
    usual_size,
)
from gantry_broker.store.record_dispatch import record_facts
from gantry_broker.store.recovery import INFINITE, ScanResult, StartPlan, scan_log
from gantry_broker.store.replay import Expected, plan_replay
from gantry_broker.store.settings import StoreSettings

Progress = Callable[[int, int], None]
PROGRESS_RECORDS: Final = 10_000
_DELAY_LEVELS_MS: Final = StoreSettings().delay_levels_ms


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


@dataclass(slots=True, kw_only=True)
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
        return not (self.rotten or self.lost_flushed_bytes or self.lost_messages)


@final
class MappedSegment:
    """A log file as the start's scan wants it, mapped when it is looked at."""

    def __init__(self, disk: ReadingDisk, segment: Segment) -> None:
        self.base_offset: Final = segment.base_offset
        self.end_offset: Final = segment.end_offset
        self._disk: Final = disk
        self._path: Final = segment.path
        self._view: memoryview | None = None

    @property
    def view(self) -> memoryview:
        if self._view is None:
            self._view = map_file(self._disk, self._path)
        return self._view


@final
class RepairPlanner:
    """Plans for one store. Used once. Raises ``OSError`` for what cannot be read at all."""

    def __init__(self, disk: ReadingDisk, root: str, progress: Progress | None = None) -> None:
        self._disk: Final = disk
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
        start = plan_of(facts, self._reader)
        plan.read_from, plan.is_full = start.start, start.is_full
        if plan.refusal or not facts.log:
            return plan
        files = tuple(MappedSegment(self._disk, segment) for segment in facts.log if segment.end_offset > start.start)
        result = scan_log(files, start.start, start.durable_mark, self._found, seals=facts.ours_from)
        plan.rotten = result.damaged
        plan.lost_flushed_bytes = result.lost_flushed
        plan.end = self._plan_buffers(result, start, buffers_path)
        plan.read_bytes = plan.end - start.start
        if not (facts.is_clean and not start.is_full and result.end == start.start):
            plan.cut_bytes = self._reader.last_used(plan.end, facts.files_end) - plan.end
            plan.cut_records = self._reader.count_records(plan.end, facts.files_end) if plan.cut_bytes else 0
        self._plan_queues(start)
        self._plan_index(start)
        if not start.is_full and (plan.queues_rebuilt or plan.is_index_rebuilt):
            plan.read_bytes += start.start - facts.log_start
            plan.records += self._reader.count_records(facts.log_start, start.start, verify_crc=False)
        plan.lost_bytes = sum(end - begin for begin, end in plan.rotten) + max(plan.lost_flushed_bytes, plan.cut_bytes)
        return plan

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
        if directory is None or facts.identity is None:
            return result.end
        plan.buffers_path, plan.buffers_fault = directory.path, directory.fault
        found = found_buffers(self._disk, directory)
        identity = facts.identity
        expected = Expected(identity.uuid, identity.generation, identity.epoch, facts.log[0].size, facts.is_clean)
        replay = plan_replay(result.end, found, expected, self._file_bytes)
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

    # -- queues and index ----------------------------------------------------------------------------------------------

    def _plan_queues(self, start: StartPlan) -> None:
        """Which queues are built again, how much is put again, and which messages they know that will be gone."""
        plan, facts = self._plan, self._facts
        point = facts.point if not start.is_full else None
        missing = {
            (topic, int(queue)) for topic, ends in (point.queues if point is not None else {}).items() for queue in ends
        }
        damaged = set(point.damaged) if point is not None else set()
        for place in queue_places(self._disk, facts.root):
            queue = QueueReader(self._disk, place)
            name = (place.topic, place.queue_id)
            missing.discard(name)
            end = min(queue.end(before=start.start), queue.whole_limit)
            durable = point.queues.get(place.topic, {}).get(str(place.queue_id), 0) if point is not None else 0
            if self._is_of_deleted(queue, end):
                continue
            if point is not None and (end < durable or name in damaged or not self._is_plausible(queue, end)):
                plan.queues_rebuilt.append(name)
            plan.lost_messages += self._count_lost(queue)
        ends = point.queues if point is not None else {}
        plan.queues_rebuilt += [(topic, queue_id) for topic, queue_id in missing if ends[topic][str(queue_id)] > 0]
        plan.queues_rebuilt.sort()
        plan.queues_behind = [(topic, queue_id, count) for (topic, queue_id), count in sorted(self._units.items())]

    def _is_of_deleted(self, queue: QueueReader, end: int) -> bool:
        """Whether the topic was deleted, and a crash has brought the queue's files back."""
        first = queue.first_from(self._facts.log_start, end)
        return first < end and queue.unit(first)[0] < self._deleted.get(queue.place.topic, -1)

    def _is_plausible(self, queue: QueueReader, end: int) -> bool:
        """As the start asks: whether the first and the last unit lead to messages of the queue."""
        first = queue.first_from(self._facts.log_start, end)
        for offset in {first, end - 1} if first < end else ():
            physical, size, _ = queue.unit(offset)
            segment = segment_at(self._facts.log, physical)
            if segment is None or physical + size > segment.end_offset:
                return False
            found = self._reader.record_at(physical, verify_crc=False)
            if found is None or not found.check.is_good:
                continue
            record = record_facts(found.data, 0, found.check.size, _DELAY_LEVELS_MS)
            if (record.topic, record.queue_id, record.queue_offset) != (
                queue.place.topic,
                queue.place.queue_id,
                offset,
            ):
                return False
        return True

    def _count_lost(self, queue: QueueReader) -> int:
        """How many units lead into what is rotten, or behind the end."""
        end = queue.end()
        beyond = end - queue.first_from(self._plan.end, end)
        rotten = sum(queue.first_from(stop, end) - queue.first_from(begin, end) for begin, stop in self._plan.rotten)
        return beyond + rotten

    def _plan_index(self, start: StartPlan) -> None:
        """Whether the index is built again."""
        plan, facts = self._plan, self._facts
        point = facts.point if not start.is_full else None
        names = index_names(self._disk, facts.root)
        if point is None:
            is_there = self._disk.facts(f"{facts.root}/index") is not None
            plan.is_index_rebuilt = is_there and not (facts.is_clean and self._are_good(names))
        elif not point.is_indexed:
            plan.is_index_rebuilt = True
        elif point.index is not None:
            kept = [name for name in names if name <= point.index.name]
            newest = self._open_index(point.index.name) if point.index.name in kept else None
            is_short = (
                newest is None
                or newest.header is None
                or (facts.is_clean and newest.header.next_number < point.index.header.next_number)
            )
            plan.is_index_rebuilt = is_short or not self._are_good(kept)

    def _are_good(self, names: list[str]) -> bool:
        readers = [self._open_index(name) for name in names]
        return all(reader is not None and reader.is_loadable for reader in readers)

    def _open_index(self, name: str) -> IndexReader | None:
        try:
            reader = IndexReader(self._disk, f"{self._facts.root}/index/{name}")
        except OSError:
            return None
        reader.close()
        return reader


def refusal_of(disk: ReadingDisk, facts: StoreFacts) -> str:
    """Why a start would refuse this store before it reads it; empty if it would not."""
    if facts.identity is None and facts.identity_fault:
        return f"the store's identity cannot be read: {facts.identity_fault}"
    fault = next(segment_faults(facts.log, usual_size(facts.log)), None)
    if fault is not None:
        return f"{fault.path}: {fault.text}"
    queue_files = [one for place in queue_places(disk, facts.root) for one in segments_of(disk, place.directory)]
    size = usual_size(queue_files)
    odd = next((one for one in queue_files if one.size not in (0, size)), None)
    return "" if odd is None else f"{odd.path}: it has {odd.size} bytes, other queue files have {size}"
