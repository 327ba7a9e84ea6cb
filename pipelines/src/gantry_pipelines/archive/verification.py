"""Is the archive what its manifest says? Reads only, takes no lock, and may run beside a writer.

    ranges      of each queue they tile: no gap, no overlap
    files       each is there, under its name or still staged, with the bytes and rows that the manifest says, and says
                the same range of itself; readers see no other file
    --deep      every byte has the checksum, every row its offset and its day

What a writer does meanwhile is no finding: a file that is not there, or not in the manifest, is looked at again with a
newer manifest.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gantry_pipelines.archive.format import read_format
from gantry_pipelines.archive.layout import is_data
from gantry_pipelines.archive.manifest import ArchivedFile, Manifest
from gantry_pipelines.archive.reading import ManifestReader
from gantry_pipelines.archive.storage import Storage
from gantry_pipelines.archive.writing import DIGEST, dates_of, said_of

LOOKS_MAX: Final = 5
READ_BYTES: Final = 8 << 20


@final
@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be."""

    path: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}" if self.path else self.text


@final
@dataclass(frozen=True, slots=True)
class Verdict:
    """What was looked at, and what was found."""

    files: int
    rows: int
    size_bytes: int
    findings: tuple[Finding, ...]

    def text(self) -> str:
        """For people."""
        head = f"{self.files} files, {self.rows} rows, {self.size_bytes} bytes: "
        lines = [head + (f"{len(self.findings)} findings" if self.findings else "all is as the manifest says")]
        return "\n".join([*lines, *(f"  {finding}" for finding in self.findings)])


def verify(storage: Storage, *, is_deep: bool = False, told: Callable[[int, int], None] | None = None) -> Verdict:
    """Look at everything; `told` hears how many files of how many were looked at. Raises NoArchive, ManifestBroken."""
    an_format = read_format(storage)
    reader = ManifestReader(storage)
    manifest, findings = _whole_listing(storage, reader)
    files = manifest.data()
    findings += [Finding("", fault) for fault in manifest.faults()]
    for number, file in enumerate(files):
        for text in _file_faults(storage, file, an_format.time_zone, is_deep=is_deep):
            if file in reader.read().data():
                findings.append(Finding(file.place.path, text))
        if told is not None:
            told(number + 1, len(files))
    return Verdict(
        len(files), sum(file.rows for file in files), sum(file.size_bytes for file in files), tuple(findings)
    )


def _whole_listing(storage: Storage, reader: ManifestReader) -> tuple[Manifest, list[Finding]]:
    """Files that readers see and the manifest does not have; looked at again while a writer works."""
    for _ in range(LOOKS_MAX):
        seen = {path for path in storage.paths() if is_data(path)}
        manifest = reader.read()
        strange = seen - {file.place.path for file in manifest.data()}
        strange = {path for path in strange if storage.size(path) is not None}
        if not strange:
            break
    return manifest, [Finding(path, "is not in the manifest, and readers see it") for path in sorted(strange)]


def _file_faults(storage: Storage, file: ArchivedFile, time_zone: str, *, is_deep: bool) -> Iterator[str]:
    """What is wrong with one file."""
    path = file.place.path
    if storage.size(path) is None and file.staged:
        path = file.staged
    size = storage.size(path)
    if size is None:
        yield "is missing"
        return
    if size != file.size_bytes:
        yield f"has {size} bytes, and the manifest says {file.size_bytes}"
        return
    try:
        if is_deep and _checksum(storage, path) != file.checksum:
            yield "has other bytes than the manifest says"
            return
        with storage.open(path) as opened, pq.ParquetFile(opened) as parquet:
            yield from _parquet_faults(parquet, file)
            if is_deep:
                yield from _row_faults(parquet, file, time_zone)
    except FileNotFoundError:
        yield "is missing"
    except (pa.ArrowInvalid, OSError) as error:
        yield f"cannot be read: {str(error).splitlines()[0]}"


def _parquet_faults(parquet: pq.ParquetFile, file: ArchivedFile) -> Iterator[str]:
    rows = parquet.metadata.num_rows
    if rows != file.rows or rows != file.range.count:
        yield f"has {rows} rows, the manifest says {file.rows}, and its name {file.range.count}"
    said = {key.decode(): value.decode() for key, value in (parquet.metadata.metadata or {}).items()}
    if any(said.get(key) != value for key, value in said_of(file.range).items()):
        yield "says another range of itself than its name"


def _row_faults(parquet: pq.ParquetFile, file: ArchivedFile, time_zone: str) -> Iterator[str]:
    expected = file.range.begin
    days: set[str] = set()
    for batch in parquet.iter_batches(columns=["offset", "queue", "broker", "storeTime"]):
        offsets = np.asarray(batch.column("offset"))
        if not np.array_equal(offsets, np.arange(expected, expected + len(offsets))):
            yield f"has other offsets than {expected} and those behind it"
            return
        expected += len(offsets)
        days |= {date.isoformat() for date in dates_of(batch, time_zone).unique().to_pylist()}
        queue = file.range.queue
        if batch.column("queue").unique().to_pylist() != [queue.number]:
            yield "has rows of another queue"
        if batch.column("broker").unique().to_pylist() != [queue.broker]:
            yield "has rows of another broker"
    if days != {file.place.day}:
        yield f"has rows of {', '.join(sorted(days - {file.place.day}))}"


def _checksum(storage: Storage, path: str) -> str:
    digest = hashlib.new(DIGEST)
    with storage.open(path) as opened:
        while data := opened.read(READ_BYTES):
            digest.update(data)
    return digest.hexdigest()
