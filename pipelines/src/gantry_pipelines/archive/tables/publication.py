"""The publication of an archive's manifest to tables.

    manifest -- the live files of a topic -------------+
                                                       +-- difference -- one snapshot, or none if nothing differs
    table    -- the files of its newest snapshot ------+

A publication states what the table should be, not what has happened since the last one. So after a kill at any step the
next publication completes it, and a table that was dropped is made again from the manifest alone.

In a folder the tables name hard links (`links`), so compaction may exchange the folder of a day while readers of an
older snapshot use the files that it replaces. An object store has no links: there the tables name the archive's own
objects, which are not compacted.
"""

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final
from urllib.parse import parse_qsl, urlsplit

from gantry_pipelines.archive import crash_points
from gantry_pipelines.archive.layout import DATA, quote_name
from gantry_pipelines.archive.manifest import ArchivedFile, Manifest
from gantry_pipelines.archive.settings import CatalogParameters, TableParameters
from gantry_pipelines.archive.storage import Folder, Storage
from gantry_pipelines.archive.tables.links import TableLinks, table_folder
from gantry_pipelines.archive.tables.model import (
    ARCHIVE_PROPERTY,
    REBUILD,
    OtherTable,
    TableChange,
    TableError,
    TableFile,
    TableRoot,
    TableShape,
    TopicTable,
    path_in_table,
)
from gantry_pipelines.archive.writer import ArchiveWriter
from gantry_spec.pipelines.parts import TableFormat

RANGES_PROPERTY: Final = "gantry.ranges"
"""The property of a snapshot that has the ranges which it adds: a JSON list of `[broker, queue, begin, end]`."""

ENDS_PROPERTY: Final = "gantry.ends"
"""The property that has the end of the archived offsets of each queue: JSON, by broker and queue."""


@final
@dataclass(frozen=True, slots=True)
class Published:
    """One snapshot that a publication has made."""

    topic: str
    format: TableFormat
    added: int
    removed: int

    def __str__(self) -> str:
        name = self.format.value.capitalize()
        return f"{self.topic}: added {self.added} files to the {name} table, removed {self.removed}"


TableKey = tuple[str, TableFormat]
"""Topic and format of a table."""

OpenTable = Callable[[TableFormat, TableRoot, TableShape], TopicTable]


@final
class TablePublisher:
    """Publishes the archive of one writer. One thread at a time uses it, which need not be the writer's."""

    def __init__(self, writer: ArchiveWriter, parameters: TableParameters, open_table: OpenTable | None = None) -> None:
        self._writer: Final = writer
        self._parameters: Final = parameters
        self._open_table: Final = open_table or TableOpener(parameters.catalog)
        self._links: Final = TableLinks(writer.storage) if isinstance(writer.storage, Folder) else None
        self._tables: Final[dict[TableKey, TopicTable]] = {}
        self._published: Final[dict[TableKey, frozenset[str]]] = {}
        """The files of the newest snapshot, as read or written by this process, the only writer."""
        self._turn: list[TableKey] = []
        """The tables in the order of their turns: those that a deadline left out come first."""
        self.is_complete = False
        """Whether the last publication has reached all tables."""

    def publish(self, deadline_s: float = math.inf) -> Iterator[Published]:
        """Publish the manifest, table by table; yields each snapshot. Raises a TableError after the other tables.

        After the deadline, by the monotonic clock, no other table is begun; the next publication begins with it.
        """
        state = ManifestState.of(self._writer.manifest)
        keys = [(topic, one) for topic in sorted(state.ends) for one in self._parameters.formats]
        known = set(self._turn)
        self._turn += [key for key in keys if key not in known]
        self.is_complete = False
        failure: TableError | None = None
        done = 0
        for topic, table_format in self._turn:
            if time.monotonic() > deadline_s:
                break
            done += 1
            try:
                published = self._publish_table(topic, table_format, state)
            except TableError as error:
                self._forget(topic, table_format)
                failure = failure or error
                continue
            if published is not None:
                yield published
        self.is_complete = done == len(self._turn)
        self._turn = self._turn[done:] + self._turn[:done]
        if failure is not None:
            raise failure

    def may_name(self, file: ArchivedFile) -> bool:
        """Return whether the newest snapshot of a table may name a file in `data`, which then must not be deleted.

        Tables of a folder name links. A table of an object store may name any file before it was published.
        """
        if self._links is not None:
            return False
        topic, path = file.range.queue.topic, path_in_table(file.place)
        return any(path in self._published.get((topic, one), {path}) for one in self._parameters.formats)

    def sweep(self, now_ms: int) -> None:
        """Expire old snapshots, and delete the links that only they had. Raises a TableError after the other topics.

        A table that was not published is left alone, since it may be that of another archive. The links of its topic
        stay: its newest snapshot may have them.
        """
        before_ms = now_ms - self._parameters.snapshot_age_ms
        state = ManifestState.of(self._writer.manifest)
        failure: TableError | None = None
        for topic in sorted(state.ends):
            live = state.paths(topic)
            try:
                for table_format in self._parameters.formats:
                    if (topic, table_format) in self._published:
                        self._table(topic, table_format).expire(before_ms)
                is_published = all(self._published.get((topic, one)) == live for one in self._parameters.formats)
                if self._links is not None and is_published:
                    self._links.remove_old(topic, live, now_ms, before_ms)
            except TableError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def rebuild(self) -> Iterator[Published]:
        """Delete the metadata of all tables, and make it again, topic by topic. Raises TableError."""
        state = ManifestState.of(self._writer.manifest)
        for topic in sorted(state.ends):
            for table_format in self._parameters.formats:
                self._table(topic, table_format).drop()
                self._forget(topic, table_format)
                published = self._publish_table(topic, table_format, state)
                if published is not None:
                    yield published

    # -- one table -----------------------------------------------------------------------------------------------------

    def _publish_table(self, topic: str, table_format: TableFormat, state: "ManifestState") -> Published | None:
        key = (topic, table_format)
        wanted = state.files.get(topic, {})
        known = self._published.get(key)
        if known is not None and known == wanted.keys():
            return None
        table = self._table(topic, table_format)
        if known is None:
            known = table.paths()
            crash_points.hit(crash_points.AFTER_TABLE_COLUMNS)
            self._check_identity(topic, table_format, table)
        change = difference(known, wanted, self._properties(state.ends[topic]))
        if self._links is not None and (change is not None or not self._links.are_known(topic)):
            self._links.make(topic, wanted, change.add if change is not None else ())
        if change is not None:
            self._writer.check_lock()
            crash_points.hit(crash_points.BEFORE_TABLE)
            table.commit(change)
            crash_points.hit(crash_points.AFTER_TABLE)
        self._published[key] = frozenset(wanted)
        if change is None:
            return None
        return Published(topic, table_format, len(change.add), len(change.remove))

    def _check_identity(self, topic: str, table_format: TableFormat, table: TopicTable) -> None:
        """Raise OtherTable if the table was published from another archive, whose files may have the same names."""
        owner = table.properties().get(ARCHIVE_PROPERTY, "")
        if owner and owner != self._writer.format.identity:
            raise OtherTable(
                f"{topic}: the {table_format} table is that of the archive {owner}, and this one is"
                f" {self._writer.format.identity}: set another tables.catalog.namespace, or make the tables of this"
                f" folder again with {REBUILD}"
            )

    def _table(self, topic: str, table_format: TableFormat) -> TopicTable:
        key = (topic, table_format)
        if key not in self._tables:
            root = root_of(self._writer.storage, topic, self._writer.format.identity)
            archive_format = self._writer.format
            declared = self._writer.schemas.get(topic, ())
            shape = TableShape(archive_format.columns, declared, archive_format.partition_by)
            self._tables[key] = self._open_table(table_format, root, shape)
        return self._tables[key]

    def _forget(self, topic: str, table_format: TableFormat) -> None:
        """Forget what is known of a table and its links, since another state may be stored now."""
        self._tables.pop((topic, table_format), None)
        self._published.pop((topic, table_format), None)
        if self._links is not None:
            self._links.forget(topic)

    def _properties(self, ends: Mapping[str, Any]) -> dict[str, str]:
        return {ARCHIVE_PROPERTY: self._writer.format.identity, ENDS_PROPERTY: _compact_json(ends)}


@final
class TableOpener:
    """Opens the tables of an archive. The packages of a format are imported when its first table is opened."""

    def __init__(self, catalog: CatalogParameters) -> None:
        self._catalog: Final = catalog

    def __call__(self, table_format: TableFormat, root: TableRoot, shape: TableShape) -> TopicTable:
        """Return the table, which is created if it does not exist. Raises TableError."""
        if table_format is TableFormat.DELTA:
            from gantry_pipelines.archive.tables.delta import open_delta

            return open_delta(root, shape)
        from gantry_pipelines.archive.tables.iceberg import open_iceberg

        return open_iceberg(root, shape, self._catalog)


# -- the difference ----------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True, slots=True)
class ManifestState:
    """What the tables should have, by topic, at one moment of the manifest."""

    files: Mapping[str, Mapping[str, TableFile]]
    """The live files by their paths in the table. A topic may have none."""

    ends: Mapping[str, Mapping[str, Mapping[str, int]]]
    """The ends of the archived offsets, by broker and queue number."""

    @classmethod
    def of(cls, manifest: Manifest) -> "ManifestState":
        """Return the state of a manifest."""
        files: dict[str, dict[str, TableFile]] = {}
        for file in manifest.data():
            one = TableFile(file.place, file.rows, file.size_bytes, file.first_time_us, file.last_time_us)
            files.setdefault(file.range.queue.topic, {})[one.path] = one
        ends: dict[str, dict[str, dict[str, int]]] = {}
        for queue, end in sorted(manifest.ends().items()):
            ends.setdefault(queue.topic, {}).setdefault(queue.broker, {})[str(queue.number)] = end
        return cls(files, ends)

    def paths(self, topic: str) -> frozenset[str]:
        """Return the paths of a topic's live files."""
        return frozenset(self.files.get(topic, {}))


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


def root_of(storage: Storage, topic: str, archive: str = "") -> TableRoot:
    """Return the root of a topic's tables. `archive` is the identity of the archive."""
    if isinstance(storage, Folder):
        return TableRoot(topic, os.path.join(os.path.abspath(storage.root), table_folder(topic)), archive=archive)
    address = urlsplit(str(storage))
    root = f"{address.scheme}://{address.netloc}{address.path.rstrip('/')}/{DATA}/topic={quote_name(topic)}"
    return TableRoot(topic, root, dict(parse_qsl(address.query)), archive)


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
