"""The writer of an archive: commits the files of batches, and recovers the archive at the start after a crash.

    worker      file written, durable, under a name that no listing shows      (`_staged`)
    driver      record durable                                                 -> the file is archived
                file renamed                                                   -> readers see it
    Spark       batch committed

So a reader's listing never shows more than the manifest has, and each file of the manifest exists: under its name, or
staged, and then the next start publishes it. A repeated batch finds its ranges in the manifest and deletes the files
that it wrote again. The records of a queue are added in the order of offsets, one after the other, each synced:
after a crash at any point the manifest has a prefix of the batch.

On an object store, which has no rename, files are visible before they are in the manifest: between a kill and the next
start a listing may show rows that are not in it. They are rows of the log, each once. The next start deletes them.

A file of an expired range is deleted in three steps: a record replaces its record, the tables are published without it,
and then file and record are deleted. So the replaced records are what is left to do. In a folder, where tables name
links of their own, a start deletes their files at once."""

import logging
from collections.abc import Callable, Sequence, Set
from typing import Final, Self, final

from gantry_pipelines.archive import crash_points
from gantry_pipelines.archive.errors import ManifestBroken, RangesDoNotMeet, UnknownFile
from gantry_pipelines.archive.format import ArchiveFormat, ensure_format, read_format
from gantry_pipelines.archive.layout import ASIDE, DATA, STAGED, is_data, place_of
from gantry_pipelines.archive.lock import WriterLock, acquire_writer_lock
from gantry_pipelines.archive.manifest import ArchivedFile, Manifest, RangeKind, Record, encode, record_of
from gantry_pipelines.archive.manifest_reader import read_manifest
from gantry_pipelines.archive.schemas.recorded import (
    RecordedSchemas,
    add_columns,
    read_recorded_schemas,
    write_recorded_schemas,
)
from gantry_pipelines.archive.schemas.topic_schemas import TopicSchemas
from gantry_pipelines.archive.storage import Folder, Storage

log = logging.getLogger(__name__)

PATHS_NAMED_MAX: Final = 5
"""How many paths or faults an error names."""


@final
class ArchiveWriter:
    """The only process that changes an archive. Created with `open`, closed at the end. One thread at a time."""

    def __init__(
        self,
        storage: Storage,
        archive_format: ArchiveFormat,
        manifest: Manifest,
        lock: WriterLock,
        schemas: RecordedSchemas,
    ) -> None:
        self.storage: Final = storage
        self.schemas = schemas
        """The typed columns of each topic."""
        self._declared: TopicSchemas | None = None
        self.format: Final = archive_format
        self.manifest = manifest
        self._lock: Final = lock
        self._ends = manifest.ends()
        self.missing: tuple[str, ...] = ()
        """Files of the manifest that were not found at the start; `verify` lists them."""

    @classmethod
    def open(
        cls,
        storage: Storage,
        wanted: ArchiveFormat | None = None,
        lock: WriterLock | None = None,
        declared: TopicSchemas | None = None,
    ) -> Self:
        """Take the lock, recover, and record new columns of the declared schemas.

        Raises ArchiveBusy, CannotLock, OtherArchive, NoArchive, ManifestBroken, UnknownFile, SchemaConflict.
        """
        lock = lock or acquire_writer_lock(storage)
        try:
            found = ensure_format(storage, wanted) if wanted else read_format(storage)
            manifest = read_manifest(storage)
            faults = manifest.faults()
            if faults:
                raise ManifestBroken(
                    f"ranges of the manifest in {storage} do not tile: {'; '.join(faults[:PATHS_NAMED_MAX])}"
                )
            writer = cls(storage, found, manifest, lock, read_recorded_schemas(storage))
            writer._recover()
            if declared is not None:
                writer._declare(declared)
        except BaseException:
            lock.release()
            raise
        return writer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock of the archive."""
        self._lock.release()

    # -- a batch -------------------------------------------------------------------------------------------------------

    def commit(self, query_id: str, batch_id: int, files: Sequence[ArchivedFile]) -> list[ArchivedFile]:
        """Add the files of a batch to the archive, and return the new ones. Raises RangesDoNotMeet, FencedOut.

        A batch may be repeated, completely or in part: ranges that are already archived are not added twice.
        """
        crash_points.hit(crash_points.BEFORE_RECORD)
        self._record_schemas({file.range.queue.topic for file in files})
        new: list[ArchivedFile] = []
        for file in sorted(files, key=lambda file: file.range):
            end = self._ends.get(file.range.queue, file.range.begin)
            if file.range.end <= end:
                self._delete_staged(file)
                continue
            if file.range.begin != end:
                raise RangesDoNotMeet(
                    f"the archive has {file.range.queue} up to {end}, but the next file is {file.range}"
                )
            self.add_record(record_of(query_id, batch_id, file))
            crash_points.hit(crash_points.AFTER_RECORD)
            if file.kind is RangeKind.DATA:
                self.storage.publish(file.staged, file.place.path)
            new.append(file)
            crash_points.hit(crash_points.MID_BATCH)
        crash_points.hit(crash_points.AFTER_BATCH)
        return new

    def _declare(self, declared: TopicSchemas) -> None:
        """Use declared schemas: record the new columns of all archived topics. Raises SchemaConflict."""
        self._declared = declared
        self._record_schemas({queue.topic for queue in self._ends} | self.schemas.keys())

    def _record_schemas(self, topics: Set[str]) -> None:
        """Record the new columns of these topics, before the manifest has a file with them. Raises SchemaConflict."""
        if self._declared is None:
            return
        schemas = {
            topic: add_columns(topic, self.schemas.get(topic, ()), self._declared.columns_of(topic))
            for topic in sorted(topics)
        }
        schemas = {**self.schemas, **{topic: columns for topic, columns in schemas.items() if columns}}
        if schemas != self.schemas:
            self._lock.check()
            write_recorded_schemas(self.storage, schemas)
            self.schemas = schemas
            crash_points.hit(crash_points.AFTER_SCHEMAS)

    def check_lock(self) -> None:
        """Raise FencedOut if another writer has taken the lock."""
        self._lock.check()

    def add_record(self, record: Record) -> None:
        """Add one record to the manifest, durably; its files are archived from then on."""
        self._lock.check()
        self.storage.write(record.path, encode(record))
        self.manifest = self.manifest.with_record(record)
        for file in record.files:
            queue = file.range.queue
            self._ends[queue] = max(file.range.end, self._ends.get(queue, 0))

    def delete_replaced(self, is_used: Callable[[ArchivedFile], bool] = lambda _file: False) -> int:
        """Delete the files of records that others replace, and then these records; return the number of records.

        A record stays if one of its files is used. Only the live record decides, so records are deleted in any order.
        """
        replaced, live = self.manifest.replaced, {file.place for file in self.manifest.data()}
        deleted: set[str] = set()
        for name, record in sorted(self.manifest.records.items()):
            files = [file for file in record.files if file.kind is RangeKind.DATA and file.place not in live]
            if name not in replaced or any(is_used(file) for file in files):
                continue
            self._lock.check()
            for file in files:
                self.storage.remove(file.place.path)
            crash_points.hit(crash_points.MID_DELETION)
            self.storage.remove(record.path)
            deleted.add(name)
        self.manifest = Manifest({name: one for name, one in self.manifest.records.items() if name not in deleted})
        return len(deleted)

    def _delete_staged(self, file: ArchivedFile) -> None:
        if file.staged:
            self.storage.remove(file.staged)

    # -- recovery ------------------------------------------------------------------------------------------------------

    def _recover(self) -> None:
        """Complete what a crash interrupted, and remove or move files of no record. Raises UnknownFile.

        On an object store the files of replaced records stay, since tables may name them: the job that has published
        the tables deletes them. In a folder tables name links of their own.
        """
        self._finish_exchanges()
        visible = [path for path in self.storage.paths(DATA) if is_data(path)]
        self._publish_staged(set(visible))
        self._remove_strays(visible)
        if isinstance(self.storage, Folder):
            self.delete_replaced()
            self.storage.remove_folder(STAGED)

    def _finish_exchanges(self) -> None:
        if not isinstance(self.storage, Folder):
            return
        for record in self.manifest.live():
            if record.exchange and self.storage.paths(record.exchange):
                finish_exchange(self.storage, record)

    def _publish_staged(self, visible: set[str]) -> None:
        """Publish the staged files of the manifest, and record those that are missing."""
        staged = set(self.storage.paths(STAGED))
        missing: list[str] = []
        for file in self.manifest.data():
            if file.place.path in visible:
                continue
            if file.staged in staged:
                self.storage.publish(file.staged, file.place.path)
            else:
                missing.append(file.place.path)
        if missing:
            log.error(
                "archive files are missing; their messages cannot be read",
                extra={"count": len(missing), "first": missing[0]},
            )
        self.missing = tuple(missing)

    def _remove_strays(self, visible: Sequence[str]) -> None:
        """Remove files after the manifest's end; in a folder, move them to `_aside`.

        Raises UnknownFile for a file within the manifest's ranges, and for one whose name is not that of a range: it
        may show rows twice, and an administrator has to decide about it.
        """
        known_paths = {file.place.path for record in self.manifest.records.values() for file in record.files}
        unknown: list[str] = []
        for path in visible:
            if path in known_paths:
                continue
            place = place_of(path)
            if place is None or place.range.begin < self._ends.get(place.range.queue, 0):
                unknown.append(path)
            elif isinstance(self.storage, Folder):  # in a folder no run of ours leaves one: foreign data is kept
                self.storage.publish(path, f"{ASIDE}/{place.folder}/{place.name}.aside")
                log.warning("file after end of manifest moved to _aside", extra={"path": path})
            else:
                self.storage.remove(path)
                log.info("file after end of manifest removed", extra={"path": path})
        if unknown:
            shown = ", ".join(unknown[:PATHS_NAMED_MAX])
            raise UnknownFile(
                f"{self.storage} has {len(unknown)} files that are not in the manifest; move them away: {shown}"
            )


def finish_exchange(folder: Folder, record: Record) -> None:
    """Publish a merged day, if it is not visible yet, and delete the files that it replaces."""
    day = record.files[0].place.folder
    visible_paths = set(folder.paths(day))
    if not all(file.place.path in visible_paths for file in record.files):
        folder.exchange(record.exchange, day)
    crash_points.hit(crash_points.AFTER_EXCHANGE)
    folder.remove_folder(record.exchange)
