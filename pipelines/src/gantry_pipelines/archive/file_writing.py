"""Write rows to Parquet files in a worker, one file for each piece and partition. No row crosses to the JVM.

A *piece* is a part of a queue's range that crosses no line of the `grid`.

Rows of many queues may arrive mixed, in the order of the log; those of one queue arrive by offset, and every offset of
a piece must be there. That is checked, so that a file has exactly the rows of its name: a missing or unexpected row
fails the task.

A file ends where the partition changes: the day or, if the format says so, the hour. After a clock was set back a
partition occurs again, in a file of its own; ranges still have no gap, and every row is in the folder of its own store
time.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gantry_pipelines.archive import crash_points
from gantry_pipelines.archive.errors import ReadIncomplete
from gantry_pipelines.archive.format import ArchiveFormat
from gantry_pipelines.archive.layout import Partition, Place
from gantry_pipelines.archive.manifest import ArchivedFile
from gantry_pipelines.archive.schemas.column_types import DeclaredColumn, arrow_fields
from gantry_pipelines.archive.schemas.decoding import RowDecoder
from gantry_pipelines.archive.schemas.topic_schemas import TopicSchemas
from gantry_pipelines.archive.storage import Storage
from gantry_spec.pipelines.parts import PartitionUnit
from pyspark_rocketmq.model import QueueRange
from pyspark_rocketmq.schema import COLUMNS, arrow_schema

TOPIC_COLUMN: Final = "topic"
"""Column that is read to assign rows to queues, and not written: the topic is part of the path."""

ROW_GROUP_ROWS: Final = 1 << 16
"""The most rows of one row group in a file."""

ROW_GROUP_BYTES_MAX: Final = 64 << 20
"""Buffered bytes of all open files of a task, shared evenly; each file has at least 1 MiB, also with more than 64."""

STATISTICS: Final = ("offset", "storeTime")
"""Columns with statistics, by which readers skip row groups, as typed columns have; those of bodies would only make
files larger."""

NO_SCHEMAS: Final = TopicSchemas()

ZSTD_LEVEL: Final = 1
"""Compression level; text bodies are as small as with level 3, in three quarters of the time."""

DIGEST: Final = "sha256"
"""Algorithm of checksums; `sha256sum` can verify it, and processors have instructions for it."""

_REPEATING: Final[tuple[str, ...]] = (
    "broker",
    "queue",
    "tags",
    "bornHost",
    "storeHost",
    "flag",
    "sysFlag",
    "reconsumeTimes",
)
"""The columns that are encoded with a dictionary, since few values occur often."""

_REPEATING_NESTED: Final = {"properties": "properties.key_value.key"}
"""The same for nested columns: the path in Parquet by the column's name."""

_EPOCH: Final = np.datetime64("1970-01-01", "D")
_HOUR_US: Final = 3_600_000_000
_UNIT_US: Final = {PartitionUnit.DAY: 24 * _HOUR_US, PartitionUnit.HOUR: _HOUR_US}


@final
@dataclass(frozen=True, slots=True)
class Packing:
    """How files are compressed; it may differ from run to run."""

    compression: str = "zstd"
    """The compression of Parquet: `zstd`, `snappy` or `none`."""

    level: int | None = ZSTD_LEVEL
    """The level of the compression; None where it has none."""


def write_files(
    batches: Iterable[pa.RecordBatch],
    pieces: Sequence[QueueRange],
    storage: Storage,
    archive_format: ArchiveFormat,
    packing: Packing,
    schemas: TopicSchemas = NO_SCHEMAS,
) -> Iterator[ArchivedFile]:
    """Write exactly these pieces of one broker, and yield each file when it is complete and durable.

    Files of a topic with a declared schema have typed columns beside the others.

    Raises ReadIncomplete if rows are missing, duplicate, or not of these pieces.
    """
    queues: dict[tuple[str, int], list[QueueRange]] = {}
    for piece in sorted(pieces):
        queues.setdefault((piece.queue.topic, piece.queue.number), []).append(piece)
    target = _Target(storage, archive_format, packing, max(1 << 20, ROW_GROUP_BYTES_MAX // max(1, len(queues))))
    writers = {key: _QueueWriter(one, target, schemas.decoder_of(key[0])) for key, one in queues.items()}
    try:
        for batch in batches:
            for key, rows in split_by_queue(batch):
                writer = writers.get(key)
                if writer is None:
                    raise ReadIncomplete(f"received a row of queue {key[1]} of topic {key[0]}, which was not requested")
                yield from writer.add(rows)
        for writer in writers.values():
            writer.check_complete()
    finally:
        for writer in writers.values():
            writer.abandon()


def split_by_queue(batch: pa.RecordBatch) -> Iterator[tuple[tuple[str, int], pa.RecordBatch]]:
    """Yield topic and number of each queue with its rows, in their order."""
    if batch.num_rows == 0:
        return
    topics = batch.column("topic").dictionary_encode()
    numbers = np.asarray(batch.column("queue"))
    keys = np.asarray(topics.indices).astype(np.int64) << 32 | numbers.astype(np.int64)
    found, which = np.unique(keys, return_inverse=True)
    for index, key in enumerate(found.tolist()):
        rows = batch if len(found) == 1 else batch.take(pa.array(np.flatnonzero(which == index), pa.int64()))
        yield (topics.dictionary[key >> 32].as_py(), key & 0xFFFFFFFF), rows


@dataclass(frozen=True, slots=True)
class _Target:
    """Where and how the files of a task are written."""

    storage: Storage
    format: ArchiveFormat
    packing: Packing
    row_group_bytes: int
    """The buffered bytes after which a file's row group is written."""


class _QueueWriter:
    """Writes the pieces of one queue, one after the other."""

    def __init__(self, pieces: list[QueueRange], target: _Target, decoder: RowDecoder | None) -> None:
        self._pieces: Final = pieces
        self._target: Final = target
        self._decoder: Final = decoder
        self._next = pieces[0].begin
        self._open: _OpenFile | None = None

    def add(self, rows: pa.RecordBatch) -> Iterator[ArchivedFile]:
        """Write consecutive rows of the queue, and yield each file that they complete."""
        unit, zone = self._target.format.partition_by, self._target.format.time_zone
        offsets, numbers = np.asarray(rows.column("offset")), partition_numbers(rows, unit, zone)
        begin = 0
        while begin < len(offsets):
            piece = self._pieces[0] if self._pieces else None
            if piece is None or offsets[begin] != self._next:
                raise ReadIncomplete(f"received offset {offsets[begin]}, expected {self._describe_expected()}")
            count = min(len(offsets) - begin, piece.end - self._next)
            is_same = numbers[begin : begin + count] == numbers[begin]
            count = count if is_same.all() else int(np.argmin(is_same))
            run = offsets[begin : begin + count]
            if not np.array_equal(run, np.arange(self._next, self._next + count)):
                raise ReadIncomplete(f"the offsets of {piece} are not consecutive from {self._next} on")
            yield from self._write(piece, partition_of(int(numbers[begin]), unit), rows.slice(begin, count))
            begin += count

    def check_complete(self) -> None:
        """Raise ReadIncomplete unless all pieces are written."""
        if self._pieces:
            raise ReadIncomplete(f"the read ended, expected {self._describe_expected()}")

    def abandon(self) -> None:
        """Delete the file that is being written, after an error."""
        if self._open is not None:
            self._open.abandon()
            self._open = None

    def _write(self, piece: QueueRange, partition: Partition, rows: pa.RecordBatch) -> Iterator[ArchivedFile]:
        if self._open is not None and self._open.partition != partition:
            yield self._close(piece)
        if self._open is None:
            self._open = _OpenFile(self._next, partition, self._target, self._decoder)
        self._open.add(rows)
        self._next += rows.num_rows
        if self._next == piece.end:
            yield self._close(piece)
            self._pieces.pop(0)
            self._next = self._pieces[0].begin if self._pieces else self._next

    def _close(self, piece: QueueRange) -> ArchivedFile:
        assert self._open is not None, "expected an open file with the rows"
        open_file, self._open = self._open, None
        return open_file.close(QueueRange(piece.queue, open_file.begin, self._next))

    def _describe_expected(self) -> str:
        return f"{self._next} of {self._pieces[0]}" if self._pieces else "no more rows"


class _OpenFile:
    """A Parquet file that is being written."""

    def __init__(self, begin: int, partition: Partition, target: _Target, decoder: RowDecoder | None) -> None:
        self.begin: Final = begin
        self.partition: Final = partition
        self._target: Final = target
        self._local: Final[Path] = target.storage.new_file()
        self._columns: Final = list(target.format.columns)
        self._decoder: Final = decoder
        schema = schema_of(target.format.columns, decoder.columns if decoder is not None else ())
        self._writer: Final = parquet_writer(self._local, schema, target.packing)
        self._buffered: list[pa.RecordBatch] = []
        self._rows = self._bytes = self._undecoded = 0
        self._times: list[tuple[int, int]] = []

    def add(self, rows: pa.RecordBatch) -> None:
        rows = rows.select(self._columns)
        times = np.asarray(rows.column("storeTime").cast(pa.int64()))
        self._times.append((int(times.min()), int(times.max())))
        if self._decoder is not None:
            rows, undecoded = self._decoder.extend(rows)
            self._undecoded += undecoded
        while rows.num_rows:
            room = ROW_GROUP_ROWS - sum(one.num_rows for one in self._buffered)
            part = rows.slice(0, room)
            self._buffered.append(part)
            self._bytes += part.nbytes
            self._rows += part.num_rows
            if part.num_rows == room or self._bytes >= self._target.row_group_bytes:
                self._flush()
            rows = rows.slice(part.num_rows)
        crash_points.hit(crash_points.MID_DATA)

    def close(self, queue_range: QueueRange) -> ArchivedFile:
        place = Place(queue_range, *self.partition)
        assert self._rows == queue_range.count, "expected all rows of the range"
        self._flush()
        self._writer.add_key_value_metadata(range_metadata(queue_range))
        self._writer.close()
        size, checksum = self._local.stat().st_size, checksum_of(self._local)
        staged = self._target.storage.finish(self._local, place.path)
        crash_points.hit(crash_points.AFTER_DATA)
        first, last = min(one for one, _ in self._times), max(one for _, one in self._times)
        undecoded = self._undecoded
        return ArchivedFile(place, self._rows, size, checksum, first, last, staged=staged, undecoded=undecoded)

    def abandon(self) -> None:
        self._writer.close()
        self._local.unlink(missing_ok=True)

    def _flush(self) -> None:
        if self._buffered:
            table = pa.Table.from_batches(self._buffered)
            self._writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
            self._buffered, self._bytes = [], 0


def partition_numbers(rows: pa.RecordBatch, unit: PartitionUnit, time_zone: str) -> Any:
    """Return the day or hour of each row's store time in a time zone, as a number that counts from 1970."""
    times: Any = rows.column("storeTime").cast(pa.timestamp("us", time_zone))
    local: Any = np.asarray(pc.local_timestamp(times).cast(pa.int64()))
    return local // _UNIT_US[unit]


def partition_of(number: int, unit: PartitionUnit) -> Partition:
    """Return the partition of a number that `partition_numbers` has returned."""
    if unit is PartitionUnit.DAY:
        return Partition(str(_EPOCH + number))
    return Partition(str(_EPOCH + number // 24), f"{number % 24:02d}")


def schema_of(columns: tuple[str, ...], declared: tuple[DeclaredColumn, ...] = ()) -> pa.Schema:
    """Return the schema of a file: the archive's columns, and the declared ones of its topic."""
    return pa.schema([*arrow_schema(columns), *arrow_fields(declared)])


def parquet_writer(local: Path, schema: pa.Schema, packing: Packing) -> pq.ParquetWriter:
    """Open a new Parquet file with an archive's encoding."""
    declared = [field for field in schema if field.name not in COLUMNS]
    repeating = [name for name in _REPEATING if name in schema.names]
    repeating += [nested for name, nested in _REPEATING_NESTED.items() if name in schema.names]
    repeating += [field.name for field in declared if pa.types.is_string(field.type)]
    measured = [field.name for field in declared if not pa.types.is_nested(field.type)]
    options: Any = {  # pyarrow's type stubs are incomplete
        "compression": packing.compression,
        "compression_level": packing.level,
        "use_dictionary": repeating,
        "write_statistics": [*STATISTICS, *measured],
    }
    return pq.ParquetWriter(local, schema, **options)


def range_metadata(queue_range: QueueRange) -> dict[str, str]:
    """Return the metadata that identify a file's range independently of its path."""
    queue = queue_range.queue
    return {
        "gantry.topic": queue.topic,
        "gantry.broker": queue.broker,
        "gantry.queue": str(queue.number),
        "gantry.begin": str(queue_range.begin),
        "gantry.end": str(queue_range.end),
    }


def checksum_of(path: Path) -> str:
    """Return the checksum of a local file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, DIGEST).hexdigest()
