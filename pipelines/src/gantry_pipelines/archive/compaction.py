"""Compaction of closed partitions while readers use them, and expiry of partitions beyond the retention.

A partition is a day or, in an archive that is partitioned by hour, an hour of a day.

    1  the partition's files are merged into `_staged/merged-...`; a file that is not merged gets a hard link there
    2  one record replaces those of the old files                      -> the new files are valid
    3  both folders are exchanged in one step                          -> readers see the new files
    4  the old folder and the old records are deleted

A start after a kill completes the steps after step 2, and discards the work before it. A listing of the folder
shows either all old files or all new ones. A reader that listed before the exchange and opens a file after it gets
"file not found", never a row twice; it has to list again.

A partition may get more files after it was compacted, when the archive was behind; then it is compacted again.

A partition of a topic expires as a whole, when all its files are older than the retention. One record replaces theirs
and marks the ranges as expired, so that the ranges of a queue still have no gap, and a run with a lost checkpoint still
finds the end of the archive. The files are deleted when the tables are published without them.
"""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import pyarrow as pa
import pyarrow.parquet as pq

from gantry_pipelines.archive import crash_points
from gantry_pipelines.archive.errors import CannotCompact, ManifestBroken
from gantry_pipelines.archive.file_writing import (
    ROW_GROUP_ROWS,
    Packing,
    checksum_of,
    parquet_writer,
    range_metadata,
    schema_of,
)
from gantry_pipelines.archive.layout import SCHEMAS, STAGED, Partition, Place, partition_end_ms, quote_name
from gantry_pipelines.archive.manifest import ArchivedFile, RangeKind, Record, merge_ranges
from gantry_pipelines.archive.storage import Folder
from gantry_pipelines.archive.writer import ArchiveWriter, finish_exchange
from gantry_remoting.durable_files import make_folders, sync_file
from pyspark_rocketmq.model import QueueRange

TARGET_BYTES: Final = 256 << 20
"""The default of the largest size of a merged file."""

DAY_MS: Final = 24 * 3600 * 1000
COMPACT_AFTER_MS: Final = DAY_MS
"""The default of the time from the end of a partition to its compaction."""


@final
@dataclass(frozen=True, slots=True)
class CompactionRules:
    """When a partition is compacted, and how large its files become."""

    target_bytes: int = TARGET_BYTES
    """Maximum size of a merged file."""
    after_ms: int = COMPACT_AFTER_MS
    """Time between the end of a partition and its compaction; files that are archived late are then merged with it."""


@final
@dataclass(frozen=True, slots=True)
class CompactedPartition:
    """The result of compacting one partition of one topic."""

    topic: str
    partition: Partition
    files_before: int
    """The number of files that were replaced."""

    files_after: int
    """The number of files after the compaction."""

    bytes_after: int

    def __str__(self) -> str:
        return f"{self.topic} {self.partition}: compacted {self.files_before} files to {self.files_after}"


def compact(
    writer: ArchiveWriter, rules: CompactionRules, packing: Packing, now_ms: int
) -> Iterator[CompactedPartition]:
    """Merge each due partition, one after the other, except those whose folder differs from the manifest.

    Raises CannotCompact, before anything is changed, where two folders cannot be exchanged in one step.
    """
    storage = writer.storage
    if not isinstance(storage, Folder):
        raise CannotCompact(f"{storage}: only two folders of a file system can be exchanged in one step")
    storage.check_exchange()
    for (topic, partition), files in due_partitions(writer, rules, now_ms):
        before = set(storage.paths(files[0].place.folder))
        if before != {file.place.path for file in files}:
            continue  # the folder has foreign files or lacks some of ours: an exchange could remove visible data
        yield _merge_partition(writer, storage, topic, partition, files, rules, packing)


def due_partitions(
    writer: ArchiveWriter, rules: CompactionRules, now_ms: int
) -> list[tuple[tuple[str, Partition], list[ArchivedFile]]]:
    """Return the partitions that ended long enough ago and have files to merge, by topic and time."""
    partitions: dict[tuple[str, Partition], list[ArchivedFile]] = {}
    for file in writer.manifest.data():
        partitions.setdefault((file.range.queue.topic, file.place.partition), []).append(file)
    return [
        (key, files)
        for key, files in sorted(partitions.items())
        if now_ms >= partition_end_ms(key[1], writer.format.time_zone) + rules.after_ms
        and any(len(run) > 1 for run in mergeable_runs(files, rules.target_bytes))
    ]


def mergeable_runs(files: list[ArchivedFile], target_bytes: int) -> list[list[ArchivedFile]]:
    """Group files whose ranges are adjacent, up to a total size; each group becomes one file."""
    found: list[list[ArchivedFile]] = []
    size = 0
    for file in sorted(files, key=lambda file: file.range):
        last = found[-1][-1].range if found else None
        is_adjacent = last is not None and last.queue == file.range.queue and last.end == file.range.begin
        if is_adjacent and size + file.size_bytes <= target_bytes:
            found[-1].append(file)
            size += file.size_bytes
        else:
            found.append([file])
            size = file.size_bytes
    return found


def _merge_partition(
    writer: ArchiveWriter,
    storage: Folder,
    topic: str,
    partition: Partition,
    files: list[ArchivedFile],
    rules: CompactionRules,
    packing: Packing,
) -> CompactedPartition:
    """Merge the files of one partition, and exchange its folder; see the module's docstring."""
    folder = f"{STAGED}/merged-{secrets.token_hex(8)}"
    new: list[ArchivedFile] = []
    for run in mergeable_runs(files, rules.target_bytes):
        if len(run) == 1:
            storage.link(run[0].place.path, f"{folder}/{run[0].place.name}")
            new.append(run[0])
        else:
            new.append(_merge(storage, folder, run, writer, packing))
        crash_points.hit(crash_points.MID_MERGE)
    storage.sync(folder)
    places = {file.place for file in files}
    replaced = tuple(r.name for r in writer.manifest.live() if any(file.place in places for file in r.files))
    other_files = [  # a record of an earlier compaction has files of a single partition, which is this one
        file for name in replaced for file in writer.manifest.records[name].files if file.place not in places
    ]
    assert not other_files, "expected records of data to have files of one partition"
    partition_name = partition.folder.replace("/", "~")
    name = f"{quote_name(topic)}/{partition_name}~merged~{folder.rpartition('-')[2]}.json"
    record = Record(name, tuple(new), replaced, exchange=folder)
    writer.add_record(record)
    crash_points.hit(crash_points.AFTER_MERGE)
    finish_exchange(storage, record)
    writer.delete_replaced()
    return CompactedPartition(topic, partition, len(files), len(new), sum(file.size_bytes for file in new))


def _merge(
    storage: Folder, folder: str, run: list[ArchivedFile], writer: ArchiveWriter, packing: Packing
) -> ArchivedFile:
    """Merge several files into one, row group by row group.

    The new file has each typed column that any of the files has; the rows of older files are null there.
    """
    queue_range = QueueRange(run[0].range.queue, run[0].range.begin, run[-1].range.end)
    place = Place(queue_range, *run[0].place.partition)
    local = storage.new_file()
    schema = _merged_schema(storage, run, writer)
    with parquet_writer(local, schema, packing) as parquet:
        for file in run:
            with storage.open(file.place.path) as opened, pq.ParquetFile(opened) as source:
                for group in range(source.num_row_groups):
                    group_rows = extend_to(source.read_row_group(group), schema)
                    parquet.write_table(group_rows, row_group_size=ROW_GROUP_ROWS)
        parquet.add_key_value_metadata(range_metadata(queue_range))
    with pq.ParquetFile(local) as whole:
        rows = whole.metadata.num_rows
    assert rows == queue_range.count == sum(file.rows for file in run), "expected as many rows as before the merge"
    sync_file(local)
    size, checksum = local.stat().st_size, checksum_of(local)
    first, last = min(file.first_time_us for file in run), max(file.last_time_us for file in run)
    target_folder = Path(storage.root, folder)
    make_folders(target_folder)
    storage.adopt(local, f"{folder}/{place.name}")
    undecoded = sum(file.undecoded for file in run)
    return ArchivedFile(place, rows, size, checksum, first, last, RangeKind.DATA, undecoded=undecoded)


def _merged_schema(storage: Folder, run: list[ArchivedFile], writer: ArchiveWriter) -> pa.Schema:
    """Return the schema of a merged file: the archive's columns, and the recorded ones that any of the files has."""
    found: set[str] = set()
    for file in run:
        with storage.open(file.place.path) as opened:
            found.update(pq.read_schema(opened).names)
    declared = writer.schemas.get(run[0].range.queue.topic, ())
    unknown = sorted(found - {*writer.format.columns, *(one.name for one in declared)})
    if unknown:
        raise ManifestBroken(
            f"{run[0].place.folder} has files with the column {unknown[0]!r}, which {SCHEMAS} does not have: restore it"
        )
    return schema_of(writer.format.columns, tuple(one for one in declared if one.name in found))


def extend_to(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with the columns of a schema, of which those that the rows lack are null."""
    if rows.schema.names == schema.names:
        return rows
    columns: list[Any] = [
        rows.column(field.name) if field.name in rows.schema.names else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def expire(writer: ArchiveWriter, days: int, now_ms: int) -> Iterator[tuple[str, Partition, int]]:
    """Mark partitions that ended more than `days` days ago as expired; yields topic, partition and number of files.

    Their files stay until `ArchiveWriter.delete_replaced`, before which the tables must be published without them.
    """
    found: dict[tuple[str, Partition], list[ArchivedFile]] = {}
    for file in writer.manifest.data():
        if now_ms >= partition_end_ms(file.place.partition, writer.format.time_zone) + days * DAY_MS:
            found.setdefault((file.range.queue.topic, file.place.partition), []).append(file)
    for (topic, partition), files in sorted(found.items()):
        _expire_partition(writer, topic, partition, files)
        yield topic, partition, len(files)


def _expire_partition(writer: ArchiveWriter, topic: str, partition: Partition, files: list[ArchivedFile]) -> None:
    """Replace a partition's records with one of expired ranges.

    The new record also has the ranges that expired before, so that a topic has only one record of expired ranges.
    It replaces all records that earlier ones have replaced and whose files are not deleted yet: while it exists, none
    of them can become live again.
    """
    places = {file.place for file in files}
    # The name is unique, because a partition that got files after it expired will expire a second time.
    moment = "~".join(filter(None, partition))
    name = f"{quote_name(topic)}/expired~{moment}~{secrets.token_hex(4)}.json"
    replaced, expired_files = [], list(files)
    for record in writer.manifest.live():
        is_of_topic = bool(record.files) and record.files[0].range.queue.topic == topic
        if is_of_topic and all(file.kind is RangeKind.EXPIRED for file in record.files):
            replaced += [record.name, *(one for one in record.replaces if one in writer.manifest.records)]
            expired_files += record.files
        elif any(file.place in places for file in record.files):
            assert all(file.place in places for file in record.files), (
                "expected records of data to have files of one partition"
            )
            replaced.append(record.name)
    writer.add_record(Record(name, tuple(merge_ranges(expired_files, RangeKind.EXPIRED)), tuple(replaced)))
    crash_points.hit(crash_points.MID_EXPIRY)
