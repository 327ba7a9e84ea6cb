"""What is verified beside messages: files that fit together, small files that can be read and claim nothing untrue."""

from __future__ import annotations

from collections.abc import Callable

from gantry_broker.ports.reading import ReadingDisk
from gantry_broker.store.inspect.config_tables import ConfigTable, config_tables, consumer_offsets, known_topics
from gantry_broker.store.inspect.facts import StoreFacts, missing_of
from gantry_broker.store.inspect.findings import Finding, Findings, Harm, Kind
from gantry_store_files.queue_units import QueuePlace
from gantry_store_files.segments import SegmentFault

QueueEnd = Callable[[str, int], int | None]
"""Behind the last unit of (topic, queue id); None if there is no such queue."""


def check_files(facts: StoreFacts, findings: Findings) -> None:
    """The log's files, by names and sizes."""
    for segment in facts.foreign:
        findings.add(
            Finding(
                kind=Kind.LOG_FILE,
                harm=Harm.LOST,
                text=f"{segment.path} is not the file that was written here",
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
                remedy="no broker opens such a store: put back what is missing, if there is a copy",
                offset=fault.start,
                length=fault.end - fault.start,
                path=fault.path,
            )
        )


def check_missing(disk: ReadingDisk, facts: StoreFacts, findings: Findings, end: int, *, written: int) -> None:
    """Whether the log has what sealed files vouch for, and was ``written``. It was read to its ``end``."""
    for lost in missing_of(disk, facts, end, written=written):
        findings.add(
            Finding(
                kind=Kind.MISSING,
                harm=Harm.LOST,
                text=f"{lost.bytes_count} bytes of the log were on the disk and are gone: {lost} ({lost.cause.value})",
                remedy="put the files back, let it follow a master that has them, or `gantry store accept-loss`",
                offset=lost.start,
                length=lost.bytes_count,
            )
        )
    for one in facts.loss.accepted:
        findings.add(
            Finding(
                kind=Kind.MISSING,
                harm=Harm.ODD,
                text=f"the loss of [{one.start}, {one.end}) ({one.cause.value}) was accepted by "
                f"{one.by or 'an operator'}",
                offset=one.start,
                length=one.end - one.start,
            )
        )


def queue_file_finding(place: QueuePlace, fault: SegmentFault) -> Finding:
    """A queue's file that does not fit to its neighbours."""
    return Finding(
        kind=Kind.QUEUE_FILE,
        harm=Harm.DERIVED,
        text=f"{fault.path}: {fault.text}",
        remedy=f"delete {place.directory} while no broker runs: the next start builds the queue again",
        path=fault.path,
        topic=place.topic,
        queue_id=place.queue_id,
    )


def check_small(
    disk: ReadingDisk, facts: StoreFacts, findings: Findings, queue_end: QueueEnd, newest_ms: int
) -> frozenset[str] | None:
    """Identity, recovery point, checkpoint, tables. The topics that are known to exist, or None if nothing says so.

    ``newest_ms`` is the newest store time of the log, or 0 when that was not read.
    """
    _check_identity(facts, findings)
    _check_point(facts, findings, queue_end)
    _check_checkpoint(facts, findings, newest_ms)
    tables = config_tables(disk, facts.root)
    for table in tables:
        _check_table(facts, findings, table)
    _check_offsets(facts, findings, tables, queue_end)
    return known_topics(tables)


def _check_identity(facts: StoreFacts, findings: Findings) -> None:
    if not facts.identity_fault:
        return
    if facts.identity is None:
        text = f"nothing says whose records to believe: {facts.identity_fault}"
        remedy = "no broker opens this store: put back a good copy, or remove both: then no record needs a seal"
        findings.add(Finding(kind=Kind.IDENTITY, harm=Harm.LOST, text=text, remedy=remedy, path="store.json"))
        return
    text = f"one copy of the store's identity is not usable: {facts.identity_fault}"
    remedy = "nothing: the other copy is used, and the next start writes both"
    findings.add(Finding(kind=Kind.IDENTITY, harm=Harm.DERIVED, text=text, remedy=remedy, path="store.json"))


def _check_point(facts: StoreFacts, findings: Findings, queue_end: QueueEnd) -> None:
    if facts.point_fault:
        text = f"the recovery point is not usable: {facts.point_fault}"
        remedy = "nothing: the next start reads the whole log, which takes its time"
        findings.add(
            Finding(kind=Kind.RECOVERY_POINT, harm=Harm.DERIVED, text=text, remedy=remedy, path="recovery-point.json")
        )
    if facts.point is None:
        return
    for topic, ends in facts.point.queues.items():
        for queue, end in ends.items():
            there = queue_end(topic, int(queue))
            if there is not None and there < end:
                text = f"{topic}/{queue} ends at {there}, and {end} was durable"
                remedy = "nothing: the next start builds the queue again"
                findings.add(
                    Finding(
                        kind=Kind.QUEUE_END, harm=Harm.DERIVED, text=text, remedy=remedy, topic=topic,
                        queue_id=int(queue), queue_offset=there, count=end - there,
                    )
                )  # fmt: skip


def _check_checkpoint(facts: StoreFacts, findings: Findings, newest_ms: int) -> None:
    checkpoint = facts.checkpoint
    if checkpoint is None or not newest_ms or facts.is_in_use or checkpoint.log_timestamp_ms <= newest_ms:
        return
    ahead = checkpoint.log_timestamp_ms - newest_ms
    text = f"the checkpoint says that a message was flushed which is {ahead} ms newer than the newest in the log"
    harm = Harm.WRONG if facts.is_clean else Harm.UNSETTLED
    findings.add(Finding(kind=Kind.CHECKPOINT, harm=harm, text=text, path="checkpoint"))


def _check_table(facts: StoreFacts, findings: Findings, table: ConfigTable) -> None:
    path = f"config/{table.name}.json"
    if not table.is_usable:
        text = f"{path}: {table.fault}; its .bak: {table.backup_fault or 'missing'}"
        remedy = "no broker starts with empty facts: put back a good copy, or remove both files on purpose"
        findings.add(Finding(kind=Kind.CONFIG, harm=Harm.LOST, text=text, remedy=remedy, path=path))
    elif table.fault:
        text = f"{path}: {table.fault}; its copy can be read"
        remedy = "nothing: the next start uses the copy, and writes the table again"
        harm = Harm.UNSETTLED if facts.is_in_use else Harm.DERIVED
        findings.add(Finding(kind=Kind.CONFIG, harm=harm, text=text, remedy=remedy, path=path))
    elif table.has_backup and table.backup_fault:
        text = f"{path}.bak: {table.backup_fault}; the current table can be read"
        findings.add(Finding(kind=Kind.CONFIG, harm=Harm.ODD, text=text, path=f"{path}.bak"))


def _check_offsets(facts: StoreFacts, findings: Findings, tables: list[ConfigTable], queue_end: QueueEnd) -> None:
    if facts.is_in_use:
        return
    for topic, group, queue_id, offset in consumer_offsets(tables):
        end = queue_end(topic, queue_id)
        if end is not None and offset > end:
            text = f"group {group} has consumed {topic}/{queue_id} up to {offset}, and the queue ends at {end}"
            remedy = "nothing: the next start sets the offset back, so that no new message is passed over"
            harm = Harm.WRONG if facts.is_clean else Harm.UNSETTLED
            findings.add(
                Finding(
                    kind=Kind.CONSUMER_OFFSET, harm=harm, text=text, remedy=remedy, topic=topic, queue_id=queue_id,
                    queue_offset=offset,
                )
            )  # fmt: skip
