"""The small facts about a store, read once and first: who uses it, how it ended, what it says is durable.

First, because a store may be written at this very moment. What is read here can then only be behind what is found
later, and "the checkpoint is ahead of the log" stays a contradiction instead of a race. Nothing here raises because
of what a file says: a fact that cannot be read is absent, and why is said beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gantry_broker.ports.reading import LockHolder, ReadingDisk
from gantry_broker.store.checkpoint import CHECKPOINT_BYTES, CheckpointFacts, decode_checkpoint
from gantry_broker.store.failure import decode_flush_failure
from gantry_broker.store.file_heads import HEADS_FILE, LogHeads, compare_heads
from gantry_broker.store.fillers import FILLER_HEAD_BYTES, is_accepted_filler, is_filler
from gantry_broker.store.inspect.config_tables import ConfigTable
from gantry_broker.store.inspect.log_reader import LogReader
from gantry_broker.store.log_end import LogEnd, decode_log_end
from gantry_broker.store.loss import LossRecord, LostRange, find_missing, is_brought_back, vouched_range
from gantry_broker.store.opening import seals_of, written_by_others_from
from gantry_broker.store.ownership import Stranger, find_stranger
from gantry_broker.store.recovery import Seals, StartFacts, StartPlan, is_point_proved, plan_start
from gantry_broker.store.recovery_point import RecoveryPoint
from gantry_store_files.recovery_point import RECOVERY_POINT_FILE
from gantry_store_files.sealed import read_small, sealed_or_fault
from gantry_store_files.segments import Segment, SegmentFault, segment_at, segment_faults, segments_of, usual_size
from gantry_store_files.store_identity import StoreIdentity, read_copies
from gantry_wire.message import RecordCheck


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    """What is known before a byte of the log is read."""

    root: str
    holder: LockHolder | None
    """The process that has the store open, RocketMQ's or ours."""

    is_clean: bool
    """Whether the last stop was clean: there is no ``abort``. Of a store in use it says nothing."""

    log: tuple[Segment, ...]
    """The log's files, but for those that a start would set aside."""

    foreign: tuple[Segment, ...]
    """Files that do not belong where they are. Of a store in use nothing is known: its log may be cut meanwhile."""

    identity: StoreIdentity | None
    identity_fault: str
    """Why the identity, or its better copy, cannot be used; empty when all is well or there is none."""

    checkpoint: CheckpointFacts | None
    point: RecoveryPoint | None
    point_fault: str
    failed_flushed: int | None
    """Up to where the log was flushed when a flush failed, if one has."""

    loss: LossRecord
    """What the last start found missing, and what was accepted."""

    log_end: LogEnd | None
    """Up to where a start has written the log, and which start, on which machine."""

    is_brought_back: bool
    """Whether files are there again that the last start missed: a start reads the whole log then."""

    ours_from: Seals
    """Whether records at an offset must have a seal, and up to where that holds: as the next start will see it."""

    @property
    def is_in_use(self) -> bool:
        return self.holder is not None

    @property
    def is_stop_believed(self) -> bool:
        """Whether a start takes the last stop for a clean one."""
        return self.is_clean and not self.is_brought_back

    @property
    def is_settled(self) -> bool:
        """Whether everything must fit together right now."""
        return self.is_clean and not self.is_in_use

    def written(self, boot_id: str) -> int:
        """Up to where the last start has written the log, if it was on this run of the machine; else 0."""
        if self.log_end is None or self.identity is None or not boot_id:
            return 0
        owner, end, _ = self.log_end
        is_last = (owner.store, owner.generation) == (self.identity.uuid, self.identity.generation)
        is_alone = self.checkpoint is None or self.checkpoint.is_ours
        return end if is_last and is_alone and owner.machine.partition("/")[0] == boot_id else 0

    @property
    def file_faults(self) -> list[SegmentFault]:
        """Why a start would not take the log's files; ``missing_of`` has what is missing between them."""
        return [fault for fault in segment_faults(self.log, usual_size(self.log)) if not fault.is_hole]

    @property
    def log_start(self) -> int:
        return self.log[0].base_offset if self.log else 0

    @property
    def files_end(self) -> int:
        return self.log[-1].end_offset if self.log else 0


def read_facts(disk: ReadingDisk, root: str) -> StoreFacts:
    """The facts of the store in ``root``. Raises ``OSError`` where a file cannot be read at all."""
    holder = disk.lock_holder(f"{root}/lock")
    is_clean = disk.facts(f"{root}/abort") is None
    copies = read_copies(disk, root)
    identity, identity_fault = copies.chosen, copies.fault
    point, point_fault = sealed_or_fault(disk, f"{root}/{RECOVERY_POINT_FILE}", RecoveryPoint)
    data = read_small(disk, f"{root}/checkpoint")
    checkpoint = decode_checkpoint(data[:CHECKPOINT_BYTES]) if data is not None else None
    loss = sealed_or_fault(disk, f"{root}/loss.json", LossRecord)[0] or LossRecord()
    log = segments_of(disk, f"{root}/commitlog")
    heads, _ = sealed_or_fault(disk, f"{root}/{HEADS_FILE}", LogHeads)
    compared = compare_heads(
        disk, f"{root}/commitlog", disk.list(f"{root}/commitlog"),
        heads if checkpoint is None or checkpoint.is_ours else None, usual_size(log),
    )  # fmt: skip
    foreign: tuple[Segment, ...] = ()
    if identity is not None:
        match find_stranger(identity, copies.twin, point, heads, compared):
            case Stranger.IDENTITY:
                identity, identity_fault = copies.twin, "store.json was written by another store"
            case Stranger.BOTH_COPIES | Stranger.ONE_COPY as stranger:
                identity, identity_fault = None, f"another store wrote {stranger.value}"
            case None:
                pass
    is_believed = False
    if identity is not None:
        if not identity.is_of(point.store if point is not None else ""):
            point, point_fault = None, "it was written by another store"
        is_believed = heads is not None and identity.is_of(heads.store) and heads.cuts >= identity.cuts
    if holder is None:
        bases = {one.base_offset for one in (*compared.misplaced, *(compared.foreign if is_believed else ()))}
        foreign = tuple(segment for segment in log if segment.base_offset in bases)
        log = tuple(segment for segment in log if segment.base_offset not in bases)
    others_from = None
    if checkpoint is not None:
        others_from = written_by_others_from(checkpoint, point, log[0].base_offset if log else 0)
    # A start has a filler where a file is missing in between.
    lost_files = {one.start for one in loss.missing if segment_at(log, one.start) is None}
    lost_files.update(base for base, _ in _read_fillers(disk, log))
    return StoreFacts(
        root=root,
        holder=holder,
        is_clean=is_clean,
        log=log,
        foreign=foreign,
        identity=identity,
        identity_fault=identity_fault,
        checkpoint=checkpoint,
        point=point,
        point_fault=point_fault,
        failed_flushed=_read_failed(disk, root),
        loss=loss,
        log_end=_read_log_end(disk, root),
        is_brought_back=is_brought_back(loss, log[0].base_offset if log else 0, lost_files),
        ours_from=seals_of(identity, others_from),
    )


def refusal_of(facts: StoreFacts, tables: Sequence[ConfigTable]) -> str:
    """Why a start would refuse this store before it reads it; empty if it would not."""
    for table in tables:
        if not table.is_usable:
            return f"config/{table.name}.json and its copy (.bak) cannot be read: {table.fault}"
    if facts.identity is None and facts.identity_fault:
        return f"the store's identity cannot be used: {facts.identity_fault}"
    return next((f"{fault.path}: {fault.text}" for fault in facts.file_faults), "")


def missing_of(disk: ReadingDisk, facts: StoreFacts, end: int, *, written: int = 0) -> list[LostRange]:
    """What is missing in a log that ends at ``end``, by the function that the start itself asks."""
    checkpoint = facts.checkpoint or CheckpointFacts()
    vouched = vouched_range(facts.point, checkpoint, facts.identity, facts.loss, written=written)
    if facts.is_in_use:
        vouched = vouched._replace(begin=None)  # retention may have gone on since the small files were read
    holes = [(base, base + size) for base, size in _holes(disk, facts)]
    return find_missing(vouched, begin=facts.log_start, end=end, holes=holes, record=facts.loss)


def _holes(disk: ReadingDisk, facts: StoreFacts) -> list[tuple[int, int]]:
    """(begin, size) of log files that are gone in between, or whose fillers stand for a loss that is not accepted."""
    size = usual_size(facts.log)
    holes = [(base, size) for base, is_accepted in _read_fillers(disk, facts.log) if not is_accepted]
    for earlier, later in zip(facts.log, facts.log[1:], strict=False):
        if size and earlier.size == size and later.base_offset % size == 0:
            holes += [(base, size) for base in range(earlier.end_offset, later.base_offset, size)]
    return sorted(holes)


def plan_of(facts: StoreFacts, reader: LogReader, *, written: int = 0) -> StartPlan:
    """Where the next start begins to read, by the function that the start itself asks.

    ``written`` is what ``written_unbuffered`` says, where that was asked.
    """

    def check_at(offset: int) -> RecordCheck | None:
        found = reader.record_at(offset, verify_seal=False)
        return None if found is None else found.check

    start = StartFacts(
        is_clean=facts.is_stop_believed,
        min_physical=facts.log_start,
        files_end=facts.files_end,
        sealed_flushed=facts.checkpoint.flushed if facts.checkpoint is not None else 0,
        point_through=facts.point.through if facts.point is not None and not facts.is_brought_back else None,
        is_point_proved=is_point_proved(facts.point, facts.log[0].size if facts.log else 0, check_at),
        failed_flushed=facts.failed_flushed,
        written=written,
    )
    return plan_start(start)


def _read_log_end(disk: ReadingDisk, root: str) -> LogEnd | None:
    data = read_small(disk, f"{root}/log-end")
    try:
        return None if data is None else decode_log_end(data)
    except ValueError:
        return None


def _read_fillers(disk: ReadingDisk, log: tuple[Segment, ...]) -> tuple[tuple[int, bool], ...]:
    found: list[tuple[int, bool]] = []
    for segment in log:
        try:
            file = disk.open(segment.path)
        except FileNotFoundError:
            continue  # retention took it away a moment ago
        try:
            head = file.pread(FILLER_HEAD_BYTES, 0)
        finally:
            file.close()
        if is_filler(head, segment.size):
            found.append((segment.base_offset, is_accepted_filler(head, segment.size)))
    return tuple(found)


def _read_failed(disk: ReadingDisk, root: str) -> int | None:
    data = read_small(disk, f"{root}/flush-failed")
    return None if data is None else decode_flush_failure(data)
