"""The summary of a store: its identity, its last stop, its contents, and what the next start would do.

Of the log only two kinds of records are read: the first one of each file, to recognize files of other stores, and the
newest ones, to find the end. The bodies of the newest are not checked. Everything else comes from names, sizes, small
files, and a few units and headers of queues, index and write buffers; ``verify`` checks whether it is correct.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from gantry_broker.ports.disk import DiskSpace
from gantry_broker.ports.reading import ReadingDisk
from gantry_broker.store.identity import Epoch
from gantry_broker.store.inspect.buffers import BufferDirectory, read_buffer_directory
from gantry_broker.store.inspect.config_tables import TableSummary, read_config_tables
from gantry_broker.store.inspect.facts import StoreFacts, find_missing_ranges, find_refusal, plan_next_start, read_facts
from gantry_broker.store.inspect.index_reader import IndexReader
from gantry_broker.store.inspect.log_reader import LogReader, StopReason
from gantry_broker.store.loss import AcceptedLoss, LostRange, describe_missing
from gantry_broker.store.recovery import StartPlan
from gantry_broker.store.replay import SET_ASIDE
from gantry_store_files.queue_units import NO_UNIT, QueueReader, list_queue_locations
from gantry_store_files.segments import index_names, most_common_size

END_BYTES_MAX: Final = 4 << 30
"""Limit of the bytes that are read to find the end of the log. With a recent recovery point it takes far fewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSummary:
    """The summary of the commit log."""

    start: int
    """The offset at which the first file begins."""

    end: int
    """End of the last whole record."""

    is_end_known: bool
    """Whether the end was found; otherwise ``end`` is a lower bound."""

    files: int
    file_size: int
    allocated: int
    """Bytes of disk blocks that the files have."""

    faults: list[str]
    """Why a start would refuse the log's files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSummary:
    """The summary of one queue, by its units."""

    queue_id: int
    min_offset: int
    """Queue offset of the first message that is left."""

    max_offset: int
    """Queue offset after the last message."""

    files: int

    @property
    def messages(self) -> int:
        return self.max_offset - self.min_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSummary:
    """The summary of one index file."""

    name: str
    entries: int
    end_physical: int
    """Physical offset where the newest indexed message begins."""

    fault: str
    """Why this cannot be an index file; empty if it can."""


@dataclass(slots=True, kw_only=True)
class StoreSummary:
    """The summary of a whole store."""

    root: str
    is_store: bool
    """Whether the directory contains any part of a store."""

    writer: str
    """The program that wrote the log: ``gantry``, ``rocketmq``, ``both``, ``unknown``, or empty without a log."""

    holder_pid: int | None
    """Process id of the broker that has the store open: 0 if it is in another container, None if there is none."""

    is_clean: bool
    uuid: str = ""
    generation: int = 0
    """The number of starts of the store that have accepted messages."""

    epochs: list[Epoch] = field(default_factory=list)
    identity_fault: str = ""
    """Why the identity, or one copy of it, cannot be used; empty if it can."""

    log: LogSummary | None = None
    flushed: int | None = None
    """The flushed end of the log according to Gantry's seal in the checkpoint; None without one."""

    failed_flushed: int | None = None
    """The flushed end of the log at a failed flush; None if none has failed."""

    checkpoint_times_ms: tuple[int, int, int] | None = None
    """Store times of the newest flushed message in log, queues and index."""

    point_through: int | None = None
    """The offset up to which the recovery point records the store as durable; None without a usable one."""

    point_fault: str = ""
    """Why the recovery point cannot be used; empty if it can or there is none."""

    topics: dict[str, list[QueueSummary]] = field(default_factory=dict)
    index: list[IndexSummary] = field(default_factory=list)
    tables: list[TableSummary] = field(default_factory=list)
    buffers: BufferDirectory | None = None
    set_aside: list[str] = field(default_factory=list)
    """Files in the folder ``set-aside``, which starts have moved or copied out of the log."""

    space: DiskSpace | None = None
    missing: list[LostRange] = field(default_factory=list)
    """Missing ranges of the log that were on the disk, as far as the end of the log is known."""

    accepted: list[AcceptedLoss] = field(default_factory=list)
    """Ranges whose loss an administrator has accepted."""

    next_start: str = ""
    """The actions of the next start, in one sentence."""

    messages: int = 0
    """How many messages the queues hold."""


def inspect_store(disk: ReadingDisk, root: str, *, buffers_path: str | None = None) -> StoreSummary:
    """Summarize the store in ``root``. Raises ``OSError`` if a file cannot be read at all."""
    facts = read_facts(disk, root)
    reader = LogReader(disk, facts.log, facts.ownership_at)
    try:
        return _summarize(disk, facts, reader, buffers_path)
    finally:
        reader.close()


def _summarize(disk: ReadingDisk, facts: StoreFacts, reader: LogReader, buffers_path: str | None) -> StoreSummary:
    root = facts.root
    topics, newest = _topics(disk, facts)
    tables = read_config_tables(disk, root)
    summary = StoreSummary(
        root=root,
        is_store=bool(facts.log)
        or any(disk.metadata(f"{root}/{name}") for name in ("store.json", "config", "consumequeue")),
        writer=_writer(facts),
        holder_pid=facts.holder.pid if facts.holder is not None else None,
        is_clean=facts.is_clean,
        identity_fault=facts.identity_fault,
        failed_flushed=facts.failed_flushed,
        point_through=facts.point.through if facts.point is not None else None,
        point_fault=facts.point_fault,
        topics=topics,
        index=[_index(disk, f"{root}/index/{name}") for name in index_names(disk, f"{root}/index")],
        tables=[table.summary() for table in tables],
        buffers=read_buffer_directory(disk, facts, buffers_path),
        set_aside=[name for name in disk.list(f"{root}/{SET_ASIDE}") if not name.endswith(".json")],
        space=disk.space(root),
        messages=sum(queue.messages for queues in topics.values() for queue in queues),
    )
    if facts.identity is not None:
        summary.uuid, summary.generation = facts.identity.uuid, facts.identity.generation
        summary.epochs = facts.identity.epochs
    if facts.checkpoint is not None:
        summary.flushed = facts.checkpoint.flushed if facts.checkpoint.is_ours else None
        summary.checkpoint_times_ms = facts.checkpoint[:3]
    plan = plan_next_start(facts, reader)
    if facts.log:
        summary.log = _log(disk, facts, reader, max(plan.start, newest if plan.is_full else 0))
    summary.accepted = facts.loss.accepted
    if summary.log is None or summary.log.is_end_known:
        summary.missing = find_missing_ranges(disk, facts, summary.log.end if summary.log is not None else 0)
    summary.next_start = next_start(summary, plan, facts, find_refusal(facts, tables))
    return summary


def _writer(facts: StoreFacts) -> str:
    if not facts.log:
        return ""
    if facts.identity is None:
        return "unknown" if facts.identity_fault else "rocketmq"
    owners = {epoch.is_ours for epoch in facts.identity.epochs}
    if facts.identity.epochs[0].start > facts.log_start:
        owners.add(False)
    return "both" if len(owners) > 1 else "gantry" if True in owners else "rocketmq"


def _log(disk: ReadingDisk, facts: StoreFacts, reader: LogReader, start: int) -> LogSummary:
    """Summarize the log; read the newest records, without checking their bodies, to find its end."""
    limit = min(facts.files_end, start + END_BYTES_MAX)
    stop = reader.walk(start, limit, lambda view, position, offset, size: None, verify_crc=False)
    allocated = sum(found.allocated for segment in facts.log if (found := disk.metadata(segment.path)) is not None)
    return LogSummary(
        start=facts.log_start,
        end=stop.offset,
        is_end_known=stop.reason in (StopReason.END, StopReason.REACHED) and stop.offset < start + END_BYTES_MAX,
        files=len(facts.log),
        file_size=most_common_size(facts.log),
        allocated=allocated,
        faults=[f"{fault.path}: {fault.text}" for fault in facts.file_faults],
    )


def _topics(disk: ReadingDisk, facts: StoreFacts) -> tuple[dict[str, list[QueueSummary]], int]:
    """Return all queues, and the start of the newest message that has a unit."""
    topics: dict[str, list[QueueSummary]] = {}
    newest = facts.log_start
    for location in list_queue_locations(disk, facts.root):
        reader = QueueReader(disk, location)
        end = reader.end()
        first = reader.first_from(facts.log_start, end)
        if end > first and reader.unit(end - 1) != NO_UNIT:
            physical = reader.unit(end - 1)[0]
            newest = max(newest, physical if facts.log_start <= physical < facts.files_end else 0)
        topics.setdefault(location.topic, []).append(
            QueueSummary(queue_id=location.queue_id, min_offset=first, max_offset=end, files=len(reader.segments))
        )
    return topics, newest


def _index(disk: ReadingDisk, path: str) -> IndexSummary:
    name = path.rpartition("/")[2]
    try:
        reader = IndexReader(disk, path)
    except OSError as exc:
        return IndexSummary(name=name, entries=0, end_physical=0, fault=f"it cannot be read: {exc.strerror}")
    reader.close()
    end = reader.header.end_physical if reader.header is not None else 0
    return IndexSummary(name=name, entries=reader.count, end_physical=end, fault=reader.fault)


def next_start(summary: StoreSummary, plan: StartPlan, facts: StoreFacts, refusal: str) -> str:
    """Return one sentence that describes what the next start would do. ``refusal`` is that of `find_refusal`."""
    if refusal and not facts.is_in_use:
        return f"The next start would fail: {refusal}."
    if summary.missing and not facts.is_in_use:
        return f"The next start would accept no messages: {describe_missing(summary.missing)}."
    if not facts.log:
        return (
            "The next start would create a new, empty store here."
            if not summary.is_store
            else ("The next start would begin an empty log: there are no log files.")
        )
    if facts.is_in_use:
        return "A broker has the store open: a second start would fail and change nothing."
    behind = max(0, (summary.log.end if summary.log is not None else 0) - plan.start)
    live = [one for one in summary.buffers.live if one.is_of_this_store] if summary.buffers is not None else []
    waiting = sum(one.bytes_not_committed for one in live)
    replay = f", replay up to {waiting} bytes of {len(live)} write buffers" if waiting and not facts.is_clean else ""
    if facts.is_missing_data_restored:
        return f"The next start would read the whole log, since missing files have reappeared{replay}."
    if facts.is_clean and not plan.is_full:
        return "The last stop was clean: the next start would read nothing and accept messages at once."
    if plan.is_full:
        why = "the last stop was clean, but" if facts.is_clean else "the last run crashed, and"
        return f"The next start would read the whole log, since {why} there is no usable recovery point{replay}."
    return f"The last run crashed: the next start would read the log from {plan.start} on, {behind} bytes{replay}."
