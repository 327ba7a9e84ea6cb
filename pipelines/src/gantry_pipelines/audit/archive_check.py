"""Compare an archive with the log: each file's rows with the messages that the log still has of the same range.

    archive    [ 0 .. 100k ) [ 100k .. 200k ) [ 200k .. 250k )
    log                 [ 130k ............................ 270k )
                        compared, row by row          | 250k..270k: not archived yet, a note

Messages that retention has deleted from the log cannot be compared, and messages that are not archived yet are no
fault; both are mentioned in notes. The archive's own consistency (ranges without gaps, existing files) is checked by
`verify`, whose findings are included.

A writer may be active meanwhile. So the manifest is read before the bounds of the log, which then has every archived
message that has not expired; and a file that cannot be read is a finding only if the newest manifest still has it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gantry_pipelines.archive.errors import ArchiveError
from gantry_pipelines.archive.format import read_format
from gantry_pipelines.archive.manifest import ArchivedFile, Manifest, RangeKind
from gantry_pipelines.archive.manifest_reader import read_manifest
from gantry_pipelines.archive.object_storage import storage_of
from gantry_pipelines.archive.storage import Storage
from gantry_pipelines.archive.verification import Finding as VerificationFinding
from gantry_pipelines.archive.verification import verify
from gantry_pipelines.audit.errors import AuditError
from gantry_pipelines.audit.model import UNKNOWN, Check, Coverage, Finding, FindingKind, Row, Span
from gantry_pipelines.audit.result import ArchiveResult
from gantry_pipelines.audit.running import RunTasks
from pyspark_rocketmq.catalog import Catalog
from pyspark_rocketmq.errors import DataLost, RocketMQSourceError
from pyspark_rocketmq.model import Bounds, QueueId, QueueRange, ReadFrom, Replica, Task
from pyspark_rocketmq.reading import read_task
from pyspark_rocketmq.schema import arrow_schema
from pyspark_rocketmq.settings import ReadSettings

NO_COPY: Final = -1
"""Replica number of findings in an archive, which is no replica."""

RowsOf = Callable[[QueueRange], Iterable[pa.RecordBatch]]
"""Returns the log's messages of a range, by offset."""


@final
@dataclass(frozen=True, slots=True)
class ArchiveTask:
    """The task of comparing one file, with all that a worker needs."""

    destination: str
    file: ArchivedFile
    columns: tuple[str, ...]
    """Columns of the archive; the topic is part of the path."""
    range: QueueRange
    """The part of the file's range that the log still has."""
    replicas: tuple[Replica, ...]
    read_settings: ReadSettings

    @property
    def size_bytes(self) -> int:
        """The size of the file in bytes."""
        return self.file.size_bytes

    def rows(self) -> Iterator[Row]:
        """Compare the file, and yield findings and the coverage: how much was compared."""
        return run_archive_task(self)


@final
@dataclass(frozen=True, slots=True)
class ArchiveState:
    """What an archive has according to itself; read before the log's bounds."""

    destination: str
    columns: tuple[str, ...]
    manifest: Manifest
    findings: tuple[Finding, ...]
    """The findings of `verify`."""
    damaged_paths: frozenset[str]
    """The paths of their files, which are not compared."""


def read_archive(destination: str) -> ArchiveState:
    """Verify an archive, which may take minutes, and then read its manifest. Raises ``AuditError``."""
    try:
        storage = storage_of(destination)
        columns, faults = read_format(storage).columns, verify(storage).findings
        manifest = read_manifest(storage)
        ranges = {file.place.path: file.range for file in manifest.data()}
        findings = tuple(_verification_finding(fault, ranges.get(fault.path)) for fault in faults)
        return ArchiveState(destination, columns, manifest, findings, frozenset(fault.path for fault in faults))
    except (ArchiveError, OSError) as error:
        raise AuditError(f"cannot audit the archive in {destination}: {error}") from error


def archive_tasks(
    archive: ArchiveState,
    bounds: dict[QueueId, Bounds],
    replicas: dict[str, tuple[Replica, ...]],
    read_settings: ReadSettings,
) -> tuple[list[ArchiveTask], list[Finding], list[str]]:
    """Return the tasks, the findings that need no task, and notes."""
    tasks: list[ArchiveTask] = []
    findings = list(archive.findings)
    for file in archive.manifest.data():
        log = bounds.get(file.range.queue, Bounds(0, 0))
        common = QueueRange(file.range.queue, max(file.range.begin, log.begin), min(file.range.end, log.end))
        if file.range.queue in bounds and file.range.end > max(log.end, file.range.begin):
            beyond = QueueRange(file.range.queue, max(file.range.begin, log.end), file.range.end)
            findings.append(_finding(beyond, FindingKind.ARCHIVE_EXTRA, f"the log of this queue ends at {log.end}"))
        if common.count > 0 and file.place.path not in archive.damaged_paths:
            broker_replicas = replicas[common.queue.broker]
            tasks.append(
                ArchiveTask(archive.destination, file, archive.columns, common, broker_replicas, read_settings)
            )
    return tasks, findings, list(_notes(archive.manifest, bounds))


def audit_archive(destination: str, read_settings: ReadSettings, run_tasks: RunTasks) -> ArchiveResult:
    """Audit one archive. Raises ``AuditError`` if it cannot be done."""
    archive = read_archive(destination)
    archived_topics = {queue.topic for queue in archive.manifest.ends()}
    bounds: dict[QueueId, Bounds] = {}
    replicas: dict[str, tuple[Replica, ...]] = {}
    try:
        # Bounds of slave and master are combined: a slave may lag behind the replica that was archived.
        for read_from in (ReadFrom.SLAVE_FIRST, ReadFrom.MASTER):
            with Catalog(replace(read_settings, read_from=read_from)) as catalog:
                queues = catalog.queues(sorted(archived_topics & set(catalog.topics())))
                for queue, found in catalog.bounds(queues).items():
                    before = bounds.get(queue, found)
                    bounds[queue] = Bounds(min(before.begin, found.begin), max(before.end, found.end))
                for broker in {queue.broker for queue in queues} - set(replicas):
                    replicas[broker] = catalog.replicas(broker)
    except (RocketMQSourceError, OSError) as error:
        raise AuditError(f"cannot audit the archive in {destination}: {error}") from error
    tasks, findings, notes = archive_tasks(archive, bounds, replicas, read_settings)
    rows = list(run_tasks(tasks))
    coverage = [row for row in rows if isinstance(row, Coverage)]
    findings += [row for row in rows if isinstance(row, Finding)]
    notes += [row.note for row in coverage if row.note]
    return ArchiveResult(len(tasks), sum(one.records for one in coverage), tuple(findings), tuple(notes))


def run_archive_task(task: ArchiveTask) -> Iterator[Row]:
    """Compare one file with the log, which is read by the Spark source's reader."""

    def rows_of(wanted: QueueRange) -> Iterator[pa.RecordBatch]:
        log_task = Task(
            broker=wanted.queue.broker, replicas=task.replicas, transport=task.read_settings.transport,
            ranges=(wanted,), columns=task.columns,
        )  # fmt: skip
        return read_task(log_task, replace(task.read_settings, is_body_verified=True))

    try:
        yield from compare_file(storage_of(task.destination), task.file, task.columns, task.range, rows_of)
    except DataLost as error:
        text = f"{task.range} expired during the audit: {error}"
        yield Coverage(task.range.queue.broker, Span(0, 0), 0, 0, 0, 0, text)
    except RocketMQSourceError as error:
        raise AuditError(f"cannot read {task.range} of the log: {error}") from error
    except (ArchiveError, OSError) as error:
        raise AuditError(f"cannot read the archive in {task.destination}: {error}") from error


def compare_file(
    storage: Storage, file: ArchivedFile, columns: tuple[str, ...], common: QueueRange, rows_of: RowsOf
) -> Iterator[Row]:
    """Compare each row of a file with the message of the log, for the range that both have."""
    schema = arrow_schema(columns)
    try:
        archived = _read_file(storage, file, schema)
    except (OSError, pa.ArrowInvalid) as error:
        if file not in read_manifest(storage).data():
            text = f"archive: {common} was compacted or expired during the audit: not compared"
            yield Coverage(common.queue.broker, Span(0, 0), 0, 0, 0, 0, text)
            return
        text = f"{file.place.path}: cannot be read: {str(error).splitlines()[0]}"
        yield _finding(common, FindingKind.ARCHIVE_MISSING, text)
        return
    yield from _misplaced_rows(file, _offsets(archived))
    archived = _rows_within(archived, common)
    logged = _rows_within(pa.Table.from_batches(list(rows_of(common)), schema=schema), common)
    archived_offsets, logged_offsets = _offsets(archived), _offsets(logged)
    missing, extra = np.setdiff1d(logged_offsets, archived_offsets), np.setdiff1d(archived_offsets, logged_offsets)
    yield from _run_findings(common.queue, missing, FindingKind.ARCHIVE_MISSING, f"{file.place.path}: not in the file")
    yield from _run_findings(common.queue, extra, FindingKind.ARCHIVE_EXTRA, f"{file.place.path}: not in the log")
    both = np.intersect1d(archived_offsets, logged_offsets)
    differing_columns: dict[int, list[str]] = {}
    left, right = _take_offsets(archived, archived_offsets, both), _take_offsets(logged, logged_offsets, both)
    for name in columns:
        for at in _unequal(left[name], right[name]):
            differing_columns.setdefault(int(both[at]), []).append(name)
    for offset, names in sorted(differing_columns.items()):
        one = QueueRange(common.queue, offset, offset + 1)
        yield _finding(one, FindingKind.ARCHIVE_DIFFERS, f"{file.place.path}: other {', '.join(names)} than in the log")
    yield Coverage(common.queue.broker, Span(0, 0), len(logged), 0, 0, logged.nbytes)


def _read_file(storage: Storage, file: ArchivedFile, schema: pa.Schema) -> pa.Table:
    """Read a file where it is: published, or still staged."""
    for path in file.paths:
        with contextlib.suppress(FileNotFoundError), storage.open(path) as opened:
            return pq.read_table(opened, columns=schema.names).select(schema.names).cast(schema)
    raise FileNotFoundError("the file is missing")


def _unequal(left: pa.ChunkedArray[Any], right: pa.ChunkedArray[Any]) -> list[int]:
    """Return the rows in which two columns differ. Values are compared one by one only if the columns differ."""
    if left.equals(right):
        return []
    pairs = zip(left.to_pylist(), right.to_pylist(), strict=True)
    return [at for at, (one, other) in enumerate(pairs) if _order_map_entries(one) != _order_map_entries(other)]


def _order_map_entries(value: Any) -> Any:
    """Return a map's entries sorted, because their order has no meaning; other values unchanged."""
    return sorted(value) if isinstance(value, list) else value


def _offsets(rows: pa.Table) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.asarray(rows["offset"].to_numpy(), dtype=np.int64)


def _rows_within(rows: pa.Table, wanted: QueueRange) -> pa.Table:
    offsets = _offsets(rows)
    kept = rows.filter(pa.array((offsets >= wanted.begin) & (offsets < wanted.end)))
    return kept.sort_by("offset")


def _take_offsets(rows: pa.Table, offsets: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> pa.Table:
    indices: pa.Int64Array = pa.array(np.searchsorted(offsets, wanted), pa.int64())
    return rows.take(indices)


def _misplaced_rows(file: ArchivedFile, offsets: np.ndarray[Any, Any]) -> Iterator[Finding]:
    """Yield the rows outside the file's range, and those of an offset that occurs more than once."""
    queue, path = file.range.queue, file.place.path
    unique, counts = np.unique(offsets, return_counts=True)
    outside = unique[(unique < file.range.begin) | (unique >= file.range.end)]
    yield from _run_findings(queue, outside, FindingKind.ARCHIVE_EXTRA, f"{path}: outside the range of the file")
    yield from _run_findings(
        queue, unique[counts > 1], FindingKind.ARCHIVE_EXTRA, f"{path}: more than once in the file"
    )


def _run_findings(queue: QueueId, offsets: np.ndarray[Any, Any], kind: FindingKind, detail: str) -> Iterator[Finding]:
    """Yield one finding for each run of consecutive offsets."""
    for part in np.split(offsets, np.where(np.diff(offsets) != 1)[0] + 1):
        if len(part):
            yield _finding(QueueRange(queue, int(part[0]), int(part[-1]) + 1), kind, detail)


def _finding(one: QueueRange, kind: FindingKind, detail: str) -> Finding:
    queue = one.queue
    return Finding(
        queue.broker, NO_COPY, Check.ARCHIVE, kind, queue.topic, queue.number, one.begin, UNKNOWN, 0, one.count, detail
    )


def _verification_finding(fault: VerificationFinding, file_range: QueueRange | None) -> Finding:
    """Convert a finding of `verify` to one of the audit, with the range of its file if the manifest has it."""
    kind = FindingKind.ARCHIVE_MISSING if "missing" in fault.text else FindingKind.ARCHIVE_DIFFERS
    if file_range is None:
        return Finding("", NO_COPY, Check.ARCHIVE, kind, detail=str(fault))
    return _finding(file_range, kind, str(fault))


def _notes(manifest: Manifest, bounds: dict[QueueId, Bounds]) -> Iterator[str]:
    expired_count = lost_count = 0
    for file in manifest.files():
        log = bounds.get(file.range.queue)
        if file.kind is RangeKind.LOST:
            lost_count += file.range.count
        elif file.kind is RangeKind.DATA:
            begin = file.range.end if log is None else log.begin
            expired_count += max(min(file.range.end, begin) - file.range.begin, 0)
    if expired_count:
        yield f"archive: {expired_count} messages are no longer in the log: not compared"
    if lost_count:
        yield f"archive: {lost_count} messages were lost before they could be archived, according to the manifest"
    ends = manifest.ends()
    pending_count = sum(max(one.end - max(ends[queue], one.begin), 0) for queue, one in bounds.items() if queue in ends)
    if pending_count:
        yield f"archive: {pending_count} messages of its queues are not archived yet"
