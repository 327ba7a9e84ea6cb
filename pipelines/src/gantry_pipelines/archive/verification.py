"""Verify an archive against its manifest. Read-only, takes no lock, and may run beside a writer.

    ranges      the ranges of each queue tile: no gap, no overlap
    files       each file exists, published or still staged, with the size, row count and range of its record, and
                with columns that the archive has; readers see no other file
    deep        the checksum of each file matches, and every row has the right offset, partition, queue and broker

Changes by a writer during the verification are no findings: a file that is not in the manifest is checked again with a
newer manifest, and a finding about a file counts only if a newer manifest still has the file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gantry_pipelines.archive.file_writing import DIGEST, partition_numbers, partition_of, range_metadata
from gantry_pipelines.archive.format import ArchiveFormat, read_format
from gantry_pipelines.archive.layout import DATA, Partition, is_data
from gantry_pipelines.archive.manifest import ArchivedFile, Manifest
from gantry_pipelines.archive.manifest_reader import ManifestReader
from gantry_pipelines.archive.schemas.recorded import RecordedSchemas, read_recorded_schemas
from gantry_pipelines.archive.storage import Storage

LISTINGS_MAX: Final = 5
"""How often files are listed while a writer changes them."""

READ_BYTES: Final = 8 << 20
"""The bytes of a file that are read at a time."""


@final
@dataclass(frozen=True, slots=True)
class Finding:
    """A difference between the archive and its manifest."""

    path: str
    """The path of the file, or the queue for a fault of its ranges."""

    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}" if self.path else self.text


@final
@dataclass(frozen=True, slots=True)
class VerificationResult:
    """The extent and the findings of a verification."""

    files: int
    rows: int
    size_bytes: int
    findings: tuple[Finding, ...]
    tables: int = 0
    """The number of tables that were verified."""
    is_complete: bool = True
    """Whether all files were verified; otherwise the verification was stopped, and the extent is that of its part."""

    def text(self) -> str:
        """Return a summary and the findings as text, one a line."""
        tables = f", {self.tables} tables" if self.tables else ""
        head = f"{self.files} files, {self.rows} rows, {self.size_bytes} bytes{tables}: "
        lines = [head + (f"{len(self.findings)} findings" if self.findings else "no findings")]
        return "\n".join([*lines, *(f"  {finding}" for finding in self.findings)])


def verify(
    storage: Storage,
    *,
    is_deep: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> VerificationResult:
    """Verify all files and ranges. Raises NoArchive, OtherArchive, ManifestBroken.

    `on_progress` is called with the number of verified files and of all files. `is_stopped` is asked before each file.
    """
    archive_format = read_format(storage)
    reader = ManifestReader(storage)
    manifest, findings = _list_unknown_files(storage, reader)
    files = manifest.data()
    expected = _Expected(archive_format, read_recorded_schemas(storage))  # columns are recorded before files have them
    findings += [Finding("", fault) for fault in manifest.faults()]
    verified: list[ArchivedFile] = []
    for file in files:
        if is_stopped():
            break
        for text in _file_faults(storage, file, expected, is_deep=is_deep):
            if file in reader.read().data():
                findings.append(Finding(file.place.path, text))
        verified.append(file)
        if on_progress is not None:
            on_progress(len(verified), len(files))
    rows, size_bytes = sum(file.rows for file in verified), sum(file.size_bytes for file in verified)
    return VerificationResult(len(verified), rows, size_bytes, tuple(findings), is_complete=len(verified) == len(files))


@final
@dataclass(frozen=True, slots=True)
class _Expected:
    """What the archive says about its files."""

    format: ArchiveFormat
    schemas: RecordedSchemas


def _list_unknown_files(storage: Storage, reader: ManifestReader) -> tuple[Manifest, list[Finding]]:
    """Read the manifest, and find files that readers see and it does not have; repeated while a writer is active.

    Files of expired ranges that wait for their deletion are no findings.
    """
    for _ in range(LISTINGS_MAX):
        visible = {path for path in storage.paths(DATA) if is_data(path)}
        manifest = reader.read()
        unknown = visible - {file.place.path for file in (*manifest.data(), *manifest.expired_files())}
        unknown = {path for path in unknown if storage.size(path) is not None}
        if not unknown:
            break
    return manifest, [Finding(path, "is not in the manifest, but readers see it") for path in sorted(unknown)]


def _file_faults(storage: Storage, file: ArchivedFile, expected: _Expected, *, is_deep: bool) -> list[str]:
    """Describe the differences between one file and its record."""
    for path in file.paths:
        faults = _faults_at(path, storage, file, expected, is_deep=is_deep)
        if faults is not None:
            return faults
    return ["is missing"]


def _faults_at(
    path: str, storage: Storage, file: ArchivedFile, expected: _Expected, *, is_deep: bool
) -> list[str] | None:
    """Describe the differences between the file at a path and its record; None: no file is there."""
    size = storage.size(path)
    if size is None:
        return None
    if size != file.size_bytes:
        return [f"has {size} bytes, the manifest has {file.size_bytes}"]
    faults: list[str] = []
    try:
        if is_deep and _checksum(storage, path) != file.checksum:
            return ["does not have the checksum of the manifest"]
        with storage.open(path) as opened, pq.ParquetFile(opened) as parquet:
            faults += _parquet_faults(parquet, file)
            faults += _column_faults(parquet, expected, file)
            if is_deep:
                faults += _row_faults(parquet, file, expected.format)
    except FileNotFoundError:
        return None
    except (pa.ArrowInvalid, OSError) as error:
        faults.append(f"cannot be read: {str(error).splitlines()[0]}")
    return faults


def _parquet_faults(parquet: pq.ParquetFile, file: ArchivedFile) -> Iterator[str]:
    rows = parquet.metadata.num_rows
    if rows != file.rows or rows != file.range.count:
        yield f"has {rows} rows, the manifest has {file.rows}, its name {file.range.count}"
    found_metadata = {key.decode(): value.decode() for key, value in (parquet.metadata.metadata or {}).items()}
    if any(found_metadata.get(key) != value for key, value in range_metadata(file.range).items()):
        yield "has another range in its metadata than in its name"


def _column_faults(parquet: pq.ParquetFile, expected: _Expected, file: ArchivedFile) -> Iterator[str]:
    """Describe typed columns that are not recorded; a file from before a column was added lacks it."""
    declared = {one.name: one.arrow for one in expected.schemas.get(file.range.queue.topic, ())}
    for field in parquet.schema_arrow:
        if field.name not in expected.format.columns and field.name not in declared:
            yield f"has the column {field.name!r} of the type {field.type}, which the archive does not have"
        elif field.name in declared and declared[field.name] != field.type:
            yield f"has the type {field.type} of the column {field.name!r}, expected {declared[field.name]}"


def _row_faults(parquet: pq.ParquetFile, file: ArchivedFile, archive_format: ArchiveFormat) -> Iterator[str]:
    expected = file.range.begin
    unit, zone = archive_format.partition_by, archive_format.time_zone
    partitions: set[Partition] = set()
    for batch in parquet.iter_batches(columns=["offset", "queue", "broker", "storeTime"]):
        offsets = np.asarray(batch.column("offset"))
        if not np.array_equal(offsets, np.arange(expected, expected + len(offsets))):
            yield f"has other offsets than {expected} and the following"
            return
        expected += len(offsets)
        partitions |= {partition_of(int(one), unit) for one in np.unique(partition_numbers(batch, unit, zone))}
        queue = file.range.queue
        if batch.column("queue").unique().to_pylist() != [queue.number]:
            yield "has rows of another queue"
        if batch.column("broker").unique().to_pylist() != [queue.broker]:
            yield "has rows of another broker"
    if partitions != {file.place.partition}:
        yield f"has rows of {', '.join(str(one) for one in sorted(partitions - {file.place.partition}))}"


def _checksum(storage: Storage, path: str) -> str:
    digest = hashlib.new(DIGEST)
    with storage.open(path) as opened:
        while data := opened.read(READ_BYTES):
            digest.update(data)
    return digest.hexdigest()
