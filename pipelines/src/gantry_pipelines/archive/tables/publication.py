"""The publication of an archive's manifest to tables.

    manifest -- the live files of a topic -------------+
                                                       +-- difference -- one snapshot, or none if nothing differs
    table    -- the files of its newest snapshot ------+

A publication states what the table should be, not what has happened since the last one. So after a kill at any step the
next publication completes it, and a table that was dropped is made again from the manifest alone.

In a folder the tables have links to the archive's files in a tree of their own:

    tables/T/day=D/NAME.parquet     hard links, made before the snapshot that names them
    tables/T/removed.json           when each link was found to be in no newest snapshot
    tables/T/_delta_log, _iceberg   the metadata

So compaction may exchange the folder of a day while readers of an older snapshot use the files that it replaces. These
links stay for `snapshot_age_ms`, as the snapshots do. An object store has no links: there the tables name the archive's
own objects, which are not compacted.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final
from urllib.parse import parse_qsl, urlsplit

from gantry_pipelines.archive import crash_points
from gantry_pipelines.archive.layout import DATA, TABLES, quote_name
from gantry_pipelines.archive.manifest import ArchivedFile, Manifest
from gantry_pipelines.archive.settings import CatalogParameters, TableParameters
from gantry_pipelines.archive.storage import Folder, Storage
from gantry_pipelines.archive.tables.model import TableChange, TableError, TableFile, TableRoot, TopicTable
from gantry_pipelines.archive.writer import ArchiveWriter
from gantry_spec.pipelines.parts import TableFormat

log = logging.getLogger(__name__)

ARCHIVE_PROPERTY: Final = "gantry.archive"
"""The property of a snapshot that has the identity of the archive."""

RANGES_PROPERTY: Final = "gantry.ranges"
"""The property that has the ranges which the snapshot adds: a JSON list of `[broker, queue, begin, end]`."""

ENDS_PROPERTY: Final = "gantry.ends"
"""The property that has the end of the archived offsets of each queue: JSON, by broker and queue."""

REMOVED: Final = "removed.json"
"""The file that has, by path, when a link was found to be in no newest snapshot."""


@final
@dataclass(frozen=True, slots=True)
class Published:
    """One snapshot that a publication has made."""

    topic: str
    format: TableFormat
    added: int
    removed: int

    def __str__(self) -> str:
        return f"{self.topic}: {self.format} table has {self.added} more files, and {self.removed} fewer"


OpenTable = Callable[[TableFormat, TableRoot, tuple[str, ...]], TopicTable]


@final
class TablePublisher:
    """Publishes the archive of one writer; used by the thread that uses the writer."""

    def __init__(self, writer: ArchiveWriter, parameters: TableParameters, open_table: OpenTable | None = None) -> None:
        self._writer: Final = writer
        self._parameters: Final = parameters
        self._open_table: Final = open_table or TableOpener(parameters.catalog)
        self._tables: Final[dict[tuple[str, TableFormat], TopicTable]] = {}
        self._published: Final[dict[tuple[str, TableFormat], frozenset[str]]] = {}
        """The files of the newest snapshot, as read or written by this process, the only writer."""
        self._linked: Final[dict[str, set[str]]] = {}

    def publish(self) -> Iterator[Published]:
        """Publish the manifest, topic by topic; yields each snapshot. Raises TableError after the other tables."""
        manifest = self._writer.manifest
        ends = ends_by_topic(manifest)
        failure: TableError | None = None
        files = files_by_topic(manifest)
        for topic in sorted(ends):
            wanted = {file.path: file for file in files.get(topic, ())}
            for table_format in self._parameters.formats:
                try:
                    published = self._publish_table(topic, table_format, wanted, ends[topic])
                except TableError as error:
                    self._forget(topic, table_format)
                    failure = failure or error
                    continue
                if published is not None:
                    yield published
        if failure is not None:
            raise failure

    def sweep(self, now_ms: int) -> None:
        """Expire old snapshots, and delete the links that only they had. Raises TableError after the other topics.

        Links stay while a snapshot that may have them could not be expired.
        """
        before_ms = now_ms - self._parameters.snapshot_age_ms
        files = files_by_topic(self._writer.manifest)
        failure: TableError | None = None
        for topic in sorted(ends_by_topic(self._writer.manifest)):
            try:
                for table_format in self._parameters.formats:
                    self._table(topic, table_format).expire(before_ms)
            except TableError as error:
                failure = failure or error
                continue
            if isinstance(self._writer.storage, Folder):
                live = frozenset(file.path for file in files.get(topic, ()))
                self._remove_old_links(self._writer.storage, topic, live, now_ms, before_ms)
        if failure is not None:
            raise failure

    def drop(self) -> None:
        """Delete the metadata of all tables, so that the next publication makes them again. Raises TableError."""
        for topic in sorted(ends_by_topic(self._writer.manifest)):
            for table_format in self._parameters.formats:
                self._table(topic, table_format).drop()
                self._forget(topic, table_format)

    # -- one table -----------------------------------------------------------------------------------------------------

    def _publish_table(
        self, topic: str, table_format: TableFormat, wanted: Mapping[str, TableFile], ends: Mapping[str, Any]
    ) -> Published | None:
        key = (topic, table_format)
        known = self._published.get(key)
        if known is not None and known == wanted.keys():
            return None
        table = self._table(topic, table_format)
        known = table.paths() if known is None else known
        change = difference(known, wanted, self._properties(ends))
        if change is not None:
            self._link(topic, wanted, change.add)
            crash_points.hit(crash_points.BEFORE_TABLE)
            table.commit(change)
            crash_points.hit(crash_points.AFTER_TABLE)
        self._published[key] = frozenset(wanted)
        if change is None:
            return None
        return Published(topic, table_format, len(change.add), len(change.remove))

    def _table(self, topic: str, table_format: TableFormat) -> TopicTable:
        key = (topic, table_format)
        if key not in self._tables:
            root = root_of(self._writer.storage, topic)
            self._tables[key] = self._open_table(table_format, root, self._writer.format.columns)
        return self._tables[key]

    def _forget(self, topic: str, table_format: TableFormat) -> None:
        """Forget what is known of a table, since another state may be stored now."""
        self._tables.pop((topic, table_format), None)
        self._published.pop((topic, table_format), None)

    def _properties(self, ends: Mapping[str, Any]) -> dict[str, str]:
        return {ARCHIVE_PROPERTY: self._writer.format.identity, ENDS_PROPERTY: _compact_json(ends)}

    # -- the links of a folder -----------------------------------------------------------------------------------------

    def _link(self, topic: str, wanted: Mapping[str, TableFile], added: Iterable[TableFile]) -> None:
        """Make the links that are missing, and all new ones durable. Raises TableError if a file is missing."""
        storage = self._writer.storage
        if not isinstance(storage, Folder):
            return
        top = table_folder(topic)
        if topic not in self._linked:
            self._linked[topic] = {path.removeprefix(f"{top}/") for path in storage.paths(top)}
        for path in sorted(wanted.keys() - self._linked[topic]):
            try:
                storage.link(wanted[path].place.path, f"{top}/{path}")
            except FileNotFoundError as error:
                text = f"{wanted[path].place.path} is missing: run gantry pipeline verify, and restore the file"
                raise TableError(text) from error
            self._linked[topic].add(path)
        for folder in sorted({os.path.dirname(file.path) for file in added}):
            storage.sync(f"{top}/{folder}")  # a killed process may have made the link
        storage.sync(top)

    def _remove_old_links(self, storage: Folder, topic: str, live: frozenset[str], now_ms: int, before_ms: int) -> None:
        """Delete the links that were removed from the tables before this time."""
        top = table_folder(topic)
        links = {path.removeprefix(f"{top}/") for path in storage.paths(top)}
        dead = {path for path in links if path.startswith("day=")} - live
        state = f"{top}/{REMOVED}"
        removed: dict[str, int] = json.loads(storage.read(state)) if storage.size(state) is not None else {}
        since = {path: removed.get(path, now_ms) for path in dead}
        due = sorted(path for path, at_ms in since.items() if at_ms <= before_ms)
        for path in due:
            storage.remove(f"{top}/{path}")
        self._linked[topic] = links - set(due)
        kept = {path: at_ms for path, at_ms in sorted(since.items()) if path not in due}
        if kept != removed:
            storage.write(state, json.dumps(kept).encode() + b"\n")


@final
class TableOpener:
    """Opens the tables of an archive. The packages of a format are imported when its first table is opened."""

    def __init__(self, catalog: CatalogParameters) -> None:
        self._catalog: Final = catalog

    def __call__(self, table_format: TableFormat, root: TableRoot, columns: tuple[str, ...]) -> TopicTable:
        """Return the table, which is created if it does not exist. Raises TableError."""
        if table_format is TableFormat.DELTA:
            from gantry_pipelines.archive.tables.delta import open_delta

            return open_delta(root, columns)
        from gantry_pipelines.archive.tables.iceberg import open_iceberg

        return open_iceberg(root, columns, self._catalog)


# -- the difference ----------------------------------------------------------------------------------------------------


def files_by_topic(manifest: Manifest) -> dict[str, list[TableFile]]:
    """Return the files that the tables of each topic should have."""
    found: dict[str, list[TableFile]] = {}
    for file in manifest.data():
        found.setdefault(file.range.queue.topic, []).append(_table_file(file))
    return found


def ends_by_topic(manifest: Manifest) -> dict[str, dict[str, dict[str, int]]]:
    """Return the ends of the archived offsets, by topic, broker and queue."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for queue, end in sorted(manifest.ends().items()):
        found.setdefault(queue.topic, {}).setdefault(queue.broker, {})[str(queue.number)] = end
    return found


def difference(
    known: frozenset[str], wanted: Mapping[str, TableFile], properties: Mapping[str, str]
) -> TableChange | None:
    """Return the change that makes a table of these files have the wanted ones; None if it has them."""
    add = tuple(wanted[path] for path in sorted(wanted.keys() - known))
    remove = known - wanted.keys()
    if not add and not remove:
        return None
    ranges = _compact_json([list(one) for one in _merged_ranges(add)])
    return TableChange(add, frozenset(remove), {**properties, RANGES_PROPERTY: ranges})


def root_of(storage: Storage, topic: str) -> TableRoot:
    """Return the root of a topic's tables."""
    if isinstance(storage, Folder):
        return TableRoot(topic, os.path.join(os.path.abspath(storage.root), table_folder(topic)))
    address = urlsplit(str(storage))
    root = f"{address.scheme}://{address.netloc}{address.path.rstrip('/')}/{DATA}/topic={quote_name(topic)}"
    return TableRoot(topic, root, dict(parse_qsl(address.query)))


def table_folder(topic: str) -> str:
    """Return the folder of a topic's tables in an archive that is a folder.

    It is as in `data`, with `~` instead of `%`: readers of Delta decode percent signs in the address of a table.
    """
    return f"{TABLES}/{quote_name(topic).replace('~', '%7E').replace('%', '~')}"


def _table_file(file: ArchivedFile) -> TableFile:
    return TableFile(file.place, file.rows, file.size_bytes, file.first_time_us, file.last_time_us)


def _merged_ranges(files: Sequence[TableFile]) -> Iterable[tuple[str, int, int, int]]:
    """Merge the adjacent ranges of files, by queue."""
    merged: list[tuple[str, int, int, int]] = []
    for one in sorted(file.place.range for file in files):
        last = merged[-1] if merged else None
        if last is not None and last[:2] == (one.queue.broker, one.queue.number) and last[3] == one.begin:
            merged[-1] = (*last[:3], one.end)
        else:
            merged.append((one.queue.broker, one.queue.number, one.begin, one.end))
    return merged


def _compact_json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def now_ms() -> int:
    """Return the time in milliseconds since 1970."""
    return int(time.time() * 1000)
