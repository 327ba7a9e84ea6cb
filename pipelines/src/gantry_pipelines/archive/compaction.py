"""Days that are over: joining their files while others read them, and deleting those that are too old.

    1  the day's files are merged beside it, in `_staged/merged-...`; what stays as it is gets a second name there
    2  one record replaces those of the old files                      -> the new ones count
    3  both folders are exchanged in one step                          -> readers see the new ones
    4  the old folder and the old records are deleted

A start after a kill goes on behind step 2, and forgets what came before it. A listing of the day's folder shows all
old files or all new ones. Who listed before the exchange and opens a file after it is told that it is not there,
never given a row twice, and lists again.

A day may get more files after it was compacted, when the archive was behind; then it is compacted again.

A day is deleted as a whole: when all its files are older than the retention, of every topic by itself. One record takes
the place of theirs and says that these ranges expired; so ranges go on to tile, and a run whose checkpoint is lost
still knows where the archive ends. Then the files are deleted; after a kill the next start does it.
"""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import pyarrow.parquet as pq

from gantry_pipelines.archive import points
from gantry_pipelines.archive.layout import STAGED, Place, day_end_ms, quoted
from gantry_pipelines.archive.manifest import ArchivedFile, Kind, Record, joined
from gantry_pipelines.archive.storage import Folder
from gantry_pipelines.archive.writer import ArchiveWriter, finish_exchange
from gantry_pipelines.archive.writing import ROW_GROUP_ROWS, Packing, checksum_of, parquet_writer, said_of
from gantry_remoting.durable_files import make_folders, sync_file
from pyspark_rocketmq.model import QueueRange

TARGET_BYTES: Final = 256 << 20
DAY_MS: Final = 24 * 3600 * 1000
AFTER_MS: Final = DAY_MS


@final
@dataclass(frozen=True, slots=True)
class CompactionRules:
    """When and how far."""

    target_bytes: int = TARGET_BYTES
    """A merged file ends before it would be larger."""
    after_ms: int = AFTER_MS
    """How long a day must be over: what is archived late does not make it be merged twice."""


@final
@dataclass(frozen=True, slots=True)
class Merged:
    """One day of one topic."""

    topic: str
    day: str
    files_before: int
    files_after: int
    bytes_after: int

    def __str__(self) -> str:
        return f"{self.topic} {self.day}: {self.files_before} files became {self.files_after}"


def compact(writer: ArchiveWriter, rules: CompactionRules, packing: Packing, now_ms: int) -> Iterator[Merged]:
    """Merge each day that is due, one after the other. Raises CannotCompact."""
    storage = writer.storage
    if not isinstance(storage, Folder) or not storage.can_exchange():
        storage.exchange("one", "other")  # says why not
        raise AssertionError("it said that it cannot")
    for (topic, day), files in due_days(writer, rules, now_ms):
        before = set(storage.paths(files[0].place.folder))
        if before != {file.place.path for file in files}:
            continue  # somebody else's file is in there, or one of ours is not: nothing that is seen is taken away
        yield _merge_day(writer, storage, topic, day, files, rules, packing)


def due_days(
    writer: ArchiveWriter, rules: CompactionRules, now_ms: int
) -> list[tuple[tuple[str, str], list[ArchivedFile]]]:
    """Days that are over for long enough, and in which something can be merged."""
    days: dict[tuple[str, str], list[ArchivedFile]] = {}
    for file in writer.manifest.data():
        days.setdefault((file.range.queue.topic, file.place.day), []).append(file)
    return [
        (key, files)
        for key, files in sorted(days.items())
        if now_ms >= day_end_ms(key[1], writer.format.time_zone) + rules.after_ms
        and any(len(run) > 1 for run in runs(files, rules.target_bytes))
    ]


def runs(files: list[ArchivedFile], target_bytes: int) -> list[list[ArchivedFile]]:
    """Files that become one: neighbours whose ranges meet, up to a size."""
    found: list[list[ArchivedFile]] = []
    size = 0
    for file in sorted(files, key=lambda file: file.range):
        last = found[-1][-1].range if found else None
        meets = last is not None and last.queue == file.range.queue and last.end == file.range.begin
        if meets and size + file.size_bytes <= target_bytes:
            found[-1].append(file)
            size += file.size_bytes
        else:
            found.append([file])
            size = file.size_bytes
    return found


def _merge_day(
    writer: ArchiveWriter,
    storage: Folder,
    topic: str,
    day: str,
    files: list[ArchivedFile],
    rules: CompactionRules,
    packing: Packing,
) -> Merged:
    folder = f"{STAGED}/merged-{secrets.token_hex(8)}"
    new: list[ArchivedFile] = []
    for run in runs(files, rules.target_bytes):
        if len(run) == 1:
            storage.link(run[0].place.path, f"{folder}/{run[0].place.name}")
            new.append(run[0])
        else:
            new.append(_merge(storage, folder, run, writer.format.columns, packing))
        points.reached(points.MID_MERGE)
    storage.sync(folder)
    wanted = {file.place for file in files}
    replaced = tuple(r.name for r in writer.manifest.live() if any(file.place in wanted for file in r.files))
    kept = [  # a record that came from an earlier compaction has one day only, and that is this one
        file for name in replaced for file in writer.manifest.records[name].files if file.place not in wanted
    ]
    assert not kept, "records of data have files of one day"
    name = f"{quoted(topic)}/day={day}~merged~{folder.rpartition('-')[2]}.json"
    record = Record(name, tuple(new), replaced, exchange=folder)
    writer.enter(record)
    points.reached(points.AFTER_MERGE)
    finish_exchange(storage, record)
    writer.forget_replaced()
    return Merged(topic, day, len(files), len(new), sum(file.size_bytes for file in new))


def _merge(
    storage: Folder, folder: str, run: list[ArchivedFile], columns: tuple[str, ...], packing: Packing
) -> ArchivedFile:
    """One file of the rows of several, read and written by row groups."""
    a_range = QueueRange(run[0].range.queue, run[0].range.begin, run[-1].range.end)
    place = Place(a_range, run[0].place.day)
    local = storage.new_file()
    with parquet_writer(local, columns, packing) as parquet:
        for file in run:
            with storage.open(file.place.path) as opened, pq.ParquetFile(opened) as source:
                for group in range(source.num_row_groups):
                    parquet.write_table(source.read_row_group(group), row_group_size=ROW_GROUP_ROWS)
        parquet.add_key_value_metadata(said_of(a_range))
    with pq.ParquetFile(local) as whole:
        rows = whole.metadata.num_rows
    assert rows == a_range.count == sum(file.rows for file in run), "a merge neither adds nor drops a row"
    sync_file(local)
    size, checksum = local.stat().st_size, checksum_of(local)
    first, last = min(file.first_time_us for file in run), max(file.last_time_us for file in run)
    at = Path(storage.root, folder)
    make_folders(at)
    storage.adopt(local, f"{folder}/{place.name}")
    return ArchivedFile(place, rows, size, checksum, first, last, Kind.DATA)


def expire(writer: ArchiveWriter, days: int, now_ms: int) -> Iterator[tuple[str, str, int]]:
    """Delete days that ended more than so many days ago; topic, day and number of files of each."""
    found: dict[tuple[str, str], list[ArchivedFile]] = {}
    for file in writer.manifest.data():
        if now_ms >= day_end_ms(file.place.day, writer.format.time_zone) + days * DAY_MS:
            found.setdefault((file.range.queue.topic, file.place.day), []).append(file)
    for (topic, day), files in sorted(found.items()):
        _expire_day(writer, topic, day, files)
        yield topic, day, len(files)


def _expire_day(writer: ArchiveWriter, topic: str, day: str, files: list[ArchivedFile]) -> None:
    """What expired before is in the new record as well, so there is one such record of a topic."""
    places = {file.place for file in files}
    name = f"{quoted(topic)}/expired~{day}~{secrets.token_hex(4)}.json"  # a day that comes late expires once more
    replaced, gone = [], list(files)
    for record in writer.manifest.live():
        of_topic = bool(record.files) and record.files[0].range.queue.topic == topic
        if of_topic and all(file.kind is Kind.EXPIRED for file in record.files):
            replaced.append(record.name)
            gone += record.files
        elif any(file.place in places for file in record.files):
            assert all(file.place in places for file in record.files), "records of data have files of one day"
            replaced.append(record.name)
    writer.enter(Record(name, tuple(joined(gone, Kind.EXPIRED)), tuple(replaced)))
    points.reached(points.MID_EXPIRY)
    for file in files:
        writer.storage.remove(file.place.path)
    writer.forget_replaced()
