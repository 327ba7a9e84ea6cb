"""The one writer of an archive: what a batch wrote becomes part of it here, and here a start tidies up after a kill.

    worker      file written, durable, under a name that no listing shows      (`_staged`)
    driver      record durable                                                 -> it counts
                file renamed                                                   -> readers see it
    Spark       batch done

So what readers see by a listing is never more than the manifest has, and what the manifest has is always there: under
its name, or staged, and the next start gives it its name. A batch that is done again finds its ranges in the manifest
and drops what it wrote once more. Of each queue records are entered in the order of offsets, one after the other,
each synced: wherever it ends, the manifest has a whole beginning of the batch.

On an object store, which has no rename, files are seen before they are in the manifest: between a kill and the next
start a listing may show rows that are not in it. They are rows of the log, each once. The start deletes them."""

import logging
from collections.abc import Sequence
from typing import Final, Self, final

from gantry_pipelines.archive import points
from gantry_pipelines.archive.errors import ManifestBroken, RangesDoNotMeet, UnknownFile
from gantry_pipelines.archive.format import ArchiveFormat, read_format, settle_format
from gantry_pipelines.archive.layout import ASIDE, STAGED, is_data, place_of
from gantry_pipelines.archive.lock import WriterLock, take
from gantry_pipelines.archive.manifest import ArchivedFile, Kind, Manifest, Record, encode, record_of
from gantry_pipelines.archive.reading import read_manifest
from gantry_pipelines.archive.storage import Folder, Storage

log = logging.getLogger(__name__)

PATHS_NAMED_MAX: Final = 5


@final
class ArchiveWriter:
    """Made by `open`, used by one thread, closed."""

    def __init__(self, storage: Storage, an_format: ArchiveFormat, manifest: Manifest, lock: WriterLock) -> None:
        self.storage: Final = storage
        self.format: Final = an_format
        self.manifest = manifest
        self._lock: Final = lock
        self._ends = manifest.ends()
        self.missing: tuple[str, ...] = ()
        """Files of the manifest that were not there at the start: said, and for `verify`."""

    @classmethod
    def open(cls, storage: Storage, wanted: ArchiveFormat | None = None, lock: WriterLock | None = None) -> Self:
        """Take the lock and tidy up. Raises ArchiveBusy, OtherArchive, NoArchive, ManifestBroken, UnknownFile."""
        lock = lock or take(storage)
        try:
            found = settle_format(storage, wanted) if wanted else read_format(storage)
            manifest = read_manifest(storage)
            faults = manifest.faults()
            if faults:
                raise ManifestBroken(f"the manifest in {storage} does not tile: {'; '.join(faults[:PATHS_NAMED_MAX])}")
            writer = cls(storage, found, manifest, lock)
            writer._tidy()
        except BaseException:
            lock.release()
            raise
        return writer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the lock back."""
        self._lock.release()

    # -- a batch -------------------------------------------------------------------------------------------------------

    def commit(self, query_id: str, batch_id: int, files: Sequence[ArchivedFile]) -> list[ArchivedFile]:
        """Make the files of a batch part of the archive; those that are new. Raises RangesDoNotMeet, FencedOut.

        A batch may come again, whole or its rest: what is there already is not entered twice.
        """
        points.reached(points.BEFORE_RECORD)
        new: list[ArchivedFile] = []
        for file in sorted(files, key=lambda file: file.range):
            end = self._ends.get(file.range.queue, file.range.begin)
            if file.range.end <= end:
                self._drop(file)
                continue
            if file.range.begin != end:
                raise RangesDoNotMeet(f"the archive has {file.range.queue} up to {end}, and {file.range} comes next")
            self.enter(record_of(query_id, batch_id, file))
            points.reached(points.AFTER_RECORD)
            if file.kind is Kind.DATA:
                self.storage.show(file.staged, file.place.path)
            new.append(file)
            points.reached(points.MID_BATCH)
        points.reached(points.AFTER_BATCH)
        return new

    def enter(self, record: Record) -> None:
        """Put one record into the manifest, durably; from then on it counts."""
        self._lock.check()
        self.storage.write(record.path, encode(record))
        self.manifest = self.manifest.with_record(record)
        for file in record.files:
            queue = file.range.queue
            self._ends[queue] = max(file.range.end, self._ends.get(queue, 0))

    def forget_replaced(self) -> None:
        """Delete records that do not count any more. Their files must be gone."""
        replaced = self.manifest.replaced
        for name in sorted(replaced & self.manifest.records.keys()):
            self._lock.check()
            self.storage.remove(self.manifest.records[name].path)
        kept = {name: record for name, record in self.manifest.records.items() if name not in replaced}
        self.manifest = Manifest(kept)

    def _drop(self, file: ArchivedFile) -> None:
        if file.staged:
            self.storage.remove(file.staged)

    # -- a start -------------------------------------------------------------------------------------------------------

    def _tidy(self) -> None:
        """Finish what a kill has left half done, and take away what belongs to nothing."""
        self._finish_exchanges()
        self._show_staged()
        self._remove_strays()
        self.forget_replaced()
        if isinstance(self.storage, Folder):
            self.storage.remove_folder(STAGED)

    def _finish_exchanges(self) -> None:
        if not isinstance(self.storage, Folder):
            return
        for record in self.manifest.live():
            if record.exchange and self.storage.paths(record.exchange):
                finish_exchange(self.storage, record)

    def _show_staged(self) -> None:
        there = {path for path in self.storage.paths() if is_data(path)}
        staged = set(self.storage.paths(STAGED))
        missing: list[str] = []
        for file in self.manifest.data():
            if file.place.path in there:
                continue
            if file.staged in staged:
                self.storage.show(file.staged, file.place.path)
            else:
                missing.append(file.place.path)
        if missing:
            log.error("files of the archive are missing", extra={"count": len(missing), "first": missing[0]})
        self.missing = tuple(missing)

    def _remove_strays(self) -> None:
        """Files beyond the manifest go; one within its ranges would show rows twice, and a person has to look at it."""
        known = {file.place.path for file in self.manifest.data()}
        replaced = {
            file.place.path
            for name in self.manifest.replaced & self.manifest.records.keys()
            for file in self.manifest.records[name].files
        }
        unknown: list[str] = []
        for path in self.storage.paths():
            if not is_data(path) or path in known:
                continue
            place = place_of(path)
            if path in replaced:
                self.storage.remove(path)
            elif place is None or place.range.begin < self._ends.get(place.range.queue, 0):
                unknown.append(path)
            elif isinstance(self.storage, Folder):  # it cannot have come by our hand: nobody's data is deleted
                self.storage.show(path, f"{ASIDE}/{place.folder}/{place.name}.aside")
                log.warning("a file beyond the manifest was set aside", extra={"path": path})
            else:
                self.storage.remove(path)
                log.info("a file beyond the manifest was removed", extra={"path": path})
        if unknown:
            shown = ", ".join(unknown[:PATHS_NAMED_MAX])
            raise UnknownFile(
                f"in {self.storage} {len(unknown)} files are not in the manifest, and readers see them: {shown}"
            )


def finish_exchange(folder: Folder, record: Record) -> None:
    """Make readers see a merged day, if they do not yet, and delete what it was merged from."""
    day = record.files[0].place.folder
    seen = set(folder.paths(day))
    if not all(file.place.path in seen for file in record.files):
        folder.exchange(record.exchange, day)
    points.reached(points.AFTER_EXCHANGE)
    folder.remove_folder(record.exchange)
