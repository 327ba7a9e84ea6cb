"""The facts in the small files of a store: the process that uses it, its last stop, its durable positions.

They are read once, and before the log, because a broker may be writing the store meanwhile. So these facts can only be
older than the data that is read later, and "the checkpoint is ahead of the log" is a contradiction and no race. The
content of a file never causes an exception here: a fact that cannot be read is absent. For the identity and the
recovery point the reason is kept beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gantry_broker.ports.reading import LockHolder, ReadingDisk
from gantry_broker.store.checkpoint import CHECKPOINT_BYTES, CheckpointContent, decode_checkpoint
from gantry_broker.store.failure import decode_flush_failure
from gantry_broker.store.file_heads import HEADS_FILE, LogHeads, compare_heads
from gantry_broker.store.fillers import FILLER_HEAD_BYTES, is_accepted_filler, is_log_filler
from gantry_broker.store.inspect.config_tables import ConfigTable
from gantry_broker.store.inspect.log_reader import LogReader
from gantry_broker.store.log_end import LogEnd, decode_log_end
from gantry_broker.store.loss import LossRecord, LostRange, find_missing, is_missing_data_restored, recorded_range
from gantry_broker.store.opening import find_rocketmq_start, seals_of
from gantry_broker.store.ownership import ForeignIdentity, find_foreign_identity
from gantry_broker.store.recovery import Seals, StartFacts, StartPlan, is_point_proved, plan_start
from gantry_broker.store.recovery_point import RecoveryPoint
from gantry_store_files.recovery_point import RECOVERY_POINT_FILE
from gantry_store_files.sealed import read_sealed_or_fault, read_small
from gantry_store_files.segments import Segment, SegmentFault, most_common_size, segment_at, segment_faults, segments_of
from gantry_store_files.store_identity import StoreIdentity, read_copies
from gantry_wire.message import RecordCheck


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    """Everything that is known about a store before its log is read."""

    root: str
    holder: LockHolder | None
    """The process that has the store open, a broker of RocketMQ or Gantry."""

    is_clean: bool
    """Whether the last stop was clean: there is no file ``abort``. Meaningless for a store in use."""

    log: tuple[Segment, ...]
    """The log's files, without those that a start would set aside."""

    foreign: tuple[Segment, ...]
    """Log files of other stores, and misplaced ones. Empty for a store in use, whose log may be truncated meanwhile."""

    identity: StoreIdentity | None
    identity_fault: str
    """Why the identity, or one copy of it, cannot be used; empty if it can be used or there is none."""

    checkpoint: CheckpointContent | None
    point: RecoveryPoint | None
    """The last recovery point; None without a usable one."""

    point_fault: str
    """Why the recovery point cannot be used; empty if it can or there is none."""

    failed_flushed: int | None
    """The flushed end of the log at a failed flush; None if none has failed."""

    loss: LossRecord
    """The losses that the last start found, and those that were accepted."""

    log_end: LogEnd | None
    """The written end of the log, with the start and the machine that wrote it."""

    is_missing_data_restored: bool
    """Whether files that the last start missed exist again: then a start reads the whole log."""

    ownership_at: Seals
    """Whether records at an offset must have a seal, and the end of that range, by the rule of the next start."""

    @property
    def is_in_use(self) -> bool:
        return self.holder is not None

    @property
    def is_clean_stop_trusted(self) -> bool:
        """Whether a start treats the last stop as clean."""
        return self.is_clean and not self.is_missing_data_restored

    @property
    def is_cleanly_stopped(self) -> bool:
        """Whether the last stop was clean and no broker runs, so that all files must be consistent with each other."""
        return self.is_clean and not self.is_in_use

    def written_end(self, boot_id: str) -> int:
        """Return the end to which the last start wrote the log, if it ran in the machine's present boot; else 0."""
        if self.log_end is None or self.identity is None or not boot_id:
            return 0
        owner, end, _ = self.log_end
        is_last = (owner.store, owner.generation) == (self.identity.uuid, self.identity.generation)
        is_last_writer = self.checkpoint is None or self.checkpoint.is_ours
        return end if is_last and is_last_writer and owner.machine.partition("/")[0] == boot_id else 0

    @property
    def file_faults(self) -> list[SegmentFault]:
        """Why a start would refuse the log's files; ``find_missing_ranges`` returns the ranges missing between them."""
        return [fault for fault in segment_faults(self.log, most_common_size(self.log)) if not fault.is_hole]

    @property
    def log_start(self) -> int:
        return self.log[0].base_offset if self.log else 0

    @property
    def files_end(self) -> int:
        return self.log[-1].end_offset if self.log else 0


def read_facts(disk: ReadingDisk, root: str) -> StoreFacts:
    """Read the facts of the store in ``root``. Raises ``OSError`` if a file cannot be read at all."""
    holder = disk.lock_holder(f"{root}/lock")
    is_clean = disk.metadata(f"{root}/abort") is None
    copies = read_copies(disk, root)
    identity, identity_fault = copies.chosen, copies.fault
    point, point_fault = read_sealed_or_fault(disk, f"{root}/{RECOVERY_POINT_FILE}", RecoveryPoint)
    data = read_small(disk, f"{root}/checkpoint")
    checkpoint = decode_checkpoint(data[:CHECKPOINT_BYTES]) if data is not None else None
    loss = read_sealed_or_fault(disk, f"{root}/loss.json", LossRecord)[0] or LossRecord()
    log = segments_of(disk, f"{root}/commitlog")
    heads, _ = read_sealed_or_fault(disk, f"{root}/{HEADS_FILE}", LogHeads)
    compared = compare_heads(
        disk, f"{root}/commitlog", disk.list(f"{root}/commitlog"),
        heads if checkpoint is None or checkpoint.is_ours else None, most_common_size(log),
    )  # fmt: skip
    foreign: tuple[Segment, ...] = ()
    if identity is not None:
        match find_foreign_identity(identity, copies.backup, point, heads, compared):
            case ForeignIdentity.IDENTITY:
                identity, identity_fault = copies.backup, "store.json was written by another store"
            case ForeignIdentity.BOTH_COPIES | ForeignIdentity.ONE_COPY as foreign_copies:
                identity, identity_fault = None, f"another store wrote {foreign_copies.value}"
            case None:
                pass
    are_heads_trusted = False
    if identity is not None:
        if not identity.accepts_uuid(point.store if point is not None else ""):
            point, point_fault = None, "it was written by another store"
        are_heads_trusted = heads is not None and identity.accepts_uuid(heads.store) and heads.cuts >= identity.cuts
    if holder is None:
        bases = {one.base_offset for one in (*compared.misplaced, *(compared.foreign if are_heads_trusted else ()))}
        foreign = tuple(segment for segment in log if segment.base_offset in bases)
        log = tuple(segment for segment in log if segment.base_offset not in bases)
    rocketmq_start = None
    if checkpoint is not None:
        rocketmq_start = find_rocketmq_start(checkpoint, point, log[0].base_offset if log else 0)
    # A start creates a filler where a file is missing between two others.
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
        failed_flushed=_read_flush_failure(disk, root),
        loss=loss,
        log_end=_read_log_end(disk, root),
        is_missing_data_restored=is_missing_data_restored(loss, log[0].base_offset if log else 0, lost_files),
        ownership_at=seals_of(identity, rocketmq_start),
    )


def find_refusal(facts: StoreFacts, tables: Sequence[ConfigTable]) -> str:
    """Return why a start would refuse this store before it reads the log; empty if it would not."""
    for table in tables:
        if table.is_needed and not table.is_usable:
            return f"config/{table.name}.json and its copy (.bak) cannot be read: {table.fault}"
    if facts.identity is None and facts.identity_fault:
        return f"the store's identity cannot be used: {facts.identity_fault}"
    return next((f"{fault.path}: {fault.text}" for fault in facts.file_faults), "")


def find_missing_ranges(disk: ReadingDisk, facts: StoreFacts, end: int, *, written: int = 0) -> list[LostRange]:
    """Return the missing ranges of a log that ends at ``end``, by the function that the start uses."""
    checkpoint = facts.checkpoint or CheckpointContent()
    recorded = recorded_range(facts.point, checkpoint, facts.identity, facts.loss, written=written)
    if facts.is_in_use:
        recorded = recorded._replace(begin=None)  # Retention may have deleted files meanwhile.
    holes = [(base, base + size) for base, size in _holes(disk, facts)]
    return find_missing(recorded, begin=facts.log_start, end=end, holes=holes, record=facts.loss)


def _holes(disk: ReadingDisk, facts: StoreFacts) -> list[tuple[int, int]]:
    """Return (start, size) of log files that are missing between others, or are fillers of a loss not accepted."""
    size = most_common_size(facts.log)
    holes = [(base, size) for base, is_accepted in _read_fillers(disk, facts.log) if not is_accepted]
    for earlier, later in zip(facts.log, facts.log[1:], strict=False):
        if size and earlier.size == size and later.base_offset % size == 0:
            holes += [(base, size) for base in range(earlier.end_offset, later.base_offset, size)]
    return sorted(holes)


def plan_next_start(facts: StoreFacts, reader: LogReader, *, written: int = 0) -> StartPlan:
    """Return where the next start begins to read, by the function that the start uses.

    ``written`` is the result of ``find_unbuffered_end``, or 0.
    """

    def check_at(offset: int) -> RecordCheck | None:
        found = reader.record_at(offset, verify_seal=False)
        return None if found is None else found.check

    start = StartFacts(
        is_clean=facts.is_clean_stop_trusted,
        min_physical=facts.log_start,
        files_end=facts.files_end,
        sealed_flushed=facts.checkpoint.flushed if facts.checkpoint is not None else 0,
        point_through=facts.point.through if facts.point is not None and not facts.is_missing_data_restored else None,
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
            continue  # Retention has just deleted it.
        try:
            head = file.pread(FILLER_HEAD_BYTES, 0)
        finally:
            file.close()
        if is_log_filler(head, segment.size):
            found.append((segment.base_offset, is_accepted_filler(head, segment.size)))
    return tuple(found)


def _read_flush_failure(disk: ReadingDisk, root: str) -> int | None:
    data = read_small(disk, f"{root}/flush-failed")
    return None if data is None else decode_flush_failure(data)
