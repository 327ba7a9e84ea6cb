"""Checks of everything but messages: names and sizes of files, and whether the small files are readable and right."""

from __future__ import annotations

from collections.abc import Callable

from gantry_broker.ports.reading import ReadingDisk
from gantry_broker.store.inspect.config_tables import ConfigTable, consumer_offsets, known_topics, read_config_tables
from gantry_broker.store.inspect.facts import StoreFacts, find_missing_ranges
from gantry_broker.store.inspect.findings import Finding, Findings, Harm, Kind
from gantry_store_files.queue_units import QueueLocation
from gantry_store_files.segments import SegmentFault

QueueEnd = Callable[[str, int], int | None]
"""A function that returns the end of a queue, given topic and queue id; None if there is no such queue."""


def check_files(facts: StoreFacts, findings: Findings) -> None:
    """Check names and sizes of the log's files."""
    for segment in facts.foreign:
        findings.add(
            Finding(
                kind=Kind.LOG_FILE,
                harm=Harm.LOST,
                text=f"{segment.path} belongs to another store or to another offset",
                remedy="put this store's own file back; else the next start sets it aside, and its range is missing",
                offset=segment.base_offset,
                length=segment.size,
                path=segment.path,
            )
        )
    for fault in facts.file_faults:
        findings.add(
            Finding(
                kind=Kind.LOG_FILE,
                harm=Harm.LOST,
                text=f"{fault.path}: {fault.text}",
                remedy="put the missing data back if there is a copy: a broker refuses to start with this store",
                offset=fault.start,
                length=fault.end - fault.start,
                path=fault.path,
            )
        )


def check_missing(disk: ReadingDisk, facts: StoreFacts, findings: Findings, end: int, *, written: int) -> None:
    """Check that the log, which was read up to its ``end``, has all data that is known to be durable or ``written``."""
    for lost in find_missing_ranges(disk, facts, end, written=written):
        findings.add(
            Finding(
                kind=Kind.MISSING,
                harm=Harm.LOST,
                text=f"{lost.bytes_count} bytes of the log were on the disk and are lost: {lost} ({lost.cause.value})",
                remedy="put the files back, follow a master that has them, or run `gantry store accept-loss`",
                offset=lost.start,
                length=lost.bytes_count,
            )
        )
    for one in facts.loss.accepted:
        findings.add(
            Finding(
                kind=Kind.MISSING,
                harm=Harm.ODD,
                text=f"loss of [{one.start}, {one.end}) ({one.cause.value}) accepted by {one.by or 'an administrator'}",
                offset=one.start,
                length=one.end - one.start,
            )
        )


def queue_file_finding(location: QueueLocation, fault: SegmentFault) -> Finding:
    """Return the finding for a queue file that does not fit its neighbours."""
    return Finding(
        kind=Kind.QUEUE_FILE,
        harm=Harm.DERIVED,
        text=f"{fault.path}: {fault.text}",
        remedy=f"delete {location.directory} while no broker runs: the next start rebuilds the queue",
        path=fault.path,
        topic=location.topic,
        queue_id=location.queue_id,
    )


def check_small_files(
    disk: ReadingDisk, facts: StoreFacts, findings: Findings, queue_end: QueueEnd, newest_ms: int
) -> frozenset[str] | None:
    """Check identity, recovery point, checkpoint and tables; return the known topics, None if they are unknown.

    ``newest_ms`` is the newest store time of the log, or 0 if it was not read.
    """
    _check_identity(facts, findings)
    _check_point(facts, findings, queue_end)
    _check_checkpoint(facts, findings, newest_ms)
    tables = read_config_tables(disk, facts.root)
    for table in tables:
        _check_table(facts, findings, table)
    _check_offsets(facts, findings, tables, queue_end)
    return known_topics(tables)


def _check_identity(facts: StoreFacts, findings: Findings) -> None:
    if not facts.identity_fault:
        return
    if facts.identity is None:
        text = f"the store's identity is unusable, so it is unknown which records need a seal: {facts.identity_fault}"
        remedy = (
            "put a good copy back, or remove both copies: then no existing record needs a seal; no broker starts now"
        )
        findings.add(Finding(kind=Kind.IDENTITY, harm=Harm.LOST, text=text, remedy=remedy, path="store.json"))
        return
    text = f"one copy of the store's identity is unusable: {facts.identity_fault}"
    remedy = "no action needed: the other copy is used, and the next start rewrites both"
    findings.add(Finding(kind=Kind.IDENTITY, harm=Harm.DERIVED, text=text, remedy=remedy, path="store.json"))


def _check_point(facts: StoreFacts, findings: Findings, queue_end: QueueEnd) -> None:
    if facts.point_fault:
        text = f"the recovery point is unusable: {facts.point_fault}"
        remedy = "no action needed: the next start reads the whole log, which takes longer"
        findings.add(
            Finding(kind=Kind.RECOVERY_POINT, harm=Harm.DERIVED, text=text, remedy=remedy, path="recovery-point.json")
        )
    if facts.point is None:
        return
    for topic, ends in facts.point.queues.items():
        for queue, end in ends.items():
            found_end = queue_end(topic, int(queue))
            if found_end is not None and found_end < end:
                text = f"{topic}/{queue} ends at {found_end}, but was durable up to {end}"
                remedy = "no action needed: the next start rebuilds the queue"
                findings.add(
                    Finding(
                        kind=Kind.QUEUE_END, harm=Harm.DERIVED, text=text, remedy=remedy, topic=topic,
                        queue_id=int(queue), queue_offset=found_end, count=end - found_end,
                    )
                )  # fmt: skip


def _check_checkpoint(facts: StoreFacts, findings: Findings, newest_ms: int) -> None:
    checkpoint = facts.checkpoint
    if checkpoint is None or not newest_ms or facts.is_in_use or checkpoint.log_timestamp_ms <= newest_ms:
        return
    ahead = checkpoint.log_timestamp_ms - newest_ms
    text = f"the newest message in the log is {ahead} ms older than the checkpoint's newest flushed message"
    harm = Harm.WRONG if facts.is_clean else Harm.UNSETTLED
    findings.add(Finding(kind=Kind.CHECKPOINT, harm=harm, text=text, path="checkpoint"))


def _check_table(facts: StoreFacts, findings: Findings, table: ConfigTable) -> None:
    path = f"config/{table.name}.json"
    if not table.is_usable:
        text = f"{path}: {table.fault}; its .bak: {table.backup_fault or 'missing'}"
        remedy = "put a good copy back, or remove both files on purpose: a broker does not start with neither readable"
        harm = Harm.LOST
        if not table.is_needed:
            remedy, harm = "no action needed: a broker starts without this table", Harm.ODD
        findings.add(Finding(kind=Kind.CONFIG, harm=harm, text=text, remedy=remedy, path=path))
    elif table.fault:
        text = f"{path}: {table.fault}; its .bak copy is readable"
        remedy = "no action needed: the next start uses the copy, and rewrites the table"
        harm = Harm.UNSETTLED if facts.is_in_use else Harm.DERIVED
        findings.add(Finding(kind=Kind.CONFIG, harm=harm, text=text, remedy=remedy, path=path))
    elif table.has_backup and table.backup_fault:
        text = f"{path}.bak: {table.backup_fault}; the current table is readable"
        findings.add(Finding(kind=Kind.CONFIG, harm=Harm.ODD, text=text, path=f"{path}.bak"))


def _check_offsets(facts: StoreFacts, findings: Findings, tables: list[ConfigTable], queue_end: QueueEnd) -> None:
    if facts.is_in_use:
        return
    for topic, group, queue_id, offset in consumer_offsets(tables):
        end = queue_end(topic, queue_id)
        if end is not None and offset > end:
            text = f"group {group} has consumed {topic}/{queue_id} up to {offset}, but the queue ends at {end}"
            remedy = "no action needed: the next start sets the offset back, so that no new message is skipped"
            harm = Harm.WRONG if facts.is_clean else Harm.UNSETTLED
            findings.add(
                Finding(
                    kind=Kind.CONSUMER_OFFSET, harm=harm, text=text, remedy=remedy, topic=topic, queue_id=queue_id,
                    queue_offset=offset,
                )
            )  # fmt: skip
