"""The Iceberg table of a topic (format version 2): its data files are those of the archive, where they are.

    <root>/day=2026-11-22/*.parquet     data files, which the table refers to by absolute addresses; or day=D/hour=HH
    <root>/_iceberg/metadata/           the table's metadata; `folder_catalog` describes it for tables without a server
    <root>/_iceberg_sql/metadata/       the metadata of a table in an SQL catalog; `_iceberg_rest` in a REST catalog

The files have neither field ids nor the columns `day` and `hour`. A name mapping assigns ids to their columns, and
readers take these two from the partition of each file. A snapshot gets the rows, sizes, and bounds of offsets and store
times that the archive's manifest has, so no data file is opened.

Limits: snapshots that only compact files have the operation `overwrite`, because pyiceberg cannot write `replace`. With
an SQL or REST catalog, a kill during a commit or an expiry can leave unused metadata files. pyiceberg copies the list
of snapshots several times in each commit: with a thousand snapshots a commit takes about a second.
"""

import datetime
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final, final

from pyiceberg import exceptions as iceberg_errors
from pyiceberg.catalog import Catalog
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestFile
from pyiceberg.table import Table, TableProperties
from pyiceberg.typedef import Identifier, Record
from pyiceberg.types import LongType

from gantry_pipelines.archive.layout import DATA, Partition, place_of
from gantry_pipelines.archive.settings import CatalogParameters
from gantry_pipelines.archive.tables.folder_catalog import DurableFileIO, MetadataFolder
from gantry_pipelines.archive.tables.iceberg_catalog import (
    LOST_OR_DAMAGED,
    address_of,
    file_properties,
    has_usable_address,
    location_of,
    mapped_errors,
    open_catalog,
    table_name_of,
)
from gantry_pipelines.archive.tables.iceberg_schema import (
    adapt_columns,
    ensure_name_mapping,
    partitions_of,
    schema_of,
)
from gantry_pipelines.archive.tables.iceberg_snapshots import (
    MetadataFiles,
    metadata_of,
    own_properties,
    replaced_before,
)
from gantry_pipelines.archive.tables.model import (
    ARCHIVE_PROPERTY,
    DAY_COLUMN,
    REBUILD,
    EscapedAddress,
    ForeignFiles,
    OtherTable,
    TableChange,
    TableFile,
    TableRoot,
    TableShape,
    TableState,
    TableUnavailable,
)
from gantry_spec.pipelines.parts import CatalogKind

MANIFESTS_MAX: Final = 100
"""The number of manifests at which small ones are merged, which bounds how many a reader opens."""

MANIFEST_FILES_MAX: Final = 2500
"""The most files that a commit writes to one manifest, about half a megabyte: readers skip manifests of other days, and
a commit that removes files rewrites only those that have them."""

CLOCK_STEP_MS_MAX: Final = 60_000
"""How far the clock may be behind the last change of a table. Iceberg's Java library refuses to read a table whose
history goes back by more than a minute."""

_NO_SNAPSHOT: Final = -1

_PROPERTIES: Final = {
    TableProperties.FORMAT_VERSION: "2",
    TableProperties.MANIFEST_MERGE_ENABLED: "true",
    TableProperties.MANIFEST_MIN_MERGE_COUNT: str(MANIFESTS_MAX),
    TableProperties.MANIFEST_TARGET_SIZE_BYTES: str(1 << 19),
    TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED: "true",
    TableProperties.METADATA_PREVIOUS_VERSIONS_MAX: "10",
    TableProperties.COMMIT_NUM_RETRIES: "0",
}
"""Properties of a new table. pyiceberg must not repeat a commit on a newer state, which the publisher has not read."""

_EPOCH: Final = datetime.date(1970, 1, 1)


@final
class IcebergTable:
    """A topic's Iceberg table. It belongs to the writer of the archive: one process and one thread."""

    def __init__(self, root: TableRoot, shape: TableShape, parameters: CatalogParameters) -> None:
        self._root: Final = root
        self._shape: Final = shape
        self._parameters: Final = parameters
        self._opened_catalog: Catalog | None = None
        self._loaded: Table | None = None
        self._is_adapted = False
        self._known: int | None = None
        """The snapshot that the last `paths` or `commit` has left to its caller; None before the first."""

    def read(self) -> TableState | None:
        """Return the newest state, without creating or changing the table; None if it does not exist."""
        with mapped_errors(self._root):
            self._check_address()
            try:
                table = open_catalog(self._root, self._parameters, is_read_only=True).load_table(self._identifier())
            except iceberg_errors.NoSuchTableError:
                return None
            self._check_location(table)
            files = self._files(table, _manifests_of(table))
            return TableState({self._relative(one): one.file_size_in_bytes for one in files}, own_properties(table))

    def paths(self) -> frozenset[str]:
        """Return the paths of the newest state's files, relative to the root. Raises ForeignFiles, OtherTable."""
        with mapped_errors(self._root):
            self._refresh()
            self._adapt()
            found = frozenset(self._relative(file) for file in self._files(self._table, _manifests_of(self._table)))
            self._known = self._newest_id()
            return found

    def properties(self) -> Mapping[str, str]:
        """Return our properties of the newest snapshot that has some; none before the first."""
        with mapped_errors(self._root):
            self._refresh()
            return own_properties(self._table)

    def commit(self, change: TableChange) -> None:
        """Add and remove files in one atomic step: readers see the table before it or after it.

        It is one snapshot, unless it adds more files than a manifest should have: then the first snapshot removes
        files, each adds some, and all of them become visible together. Raises TableUnavailable if another writer has
        changed the table since the last `paths` or `commit`, so the caller should read it again.
        """
        with mapped_errors(self._root):
            self._check_clock()
            self._adapt()
            if self._known not in (None, self._newest_id()):
                raise TableUnavailable(self._text("another writer has changed it"))
            removed = self._present(change.remove) if change.remove else []
            added = [self._data_file(file) for file in sorted(change.add, key=lambda file: file.place.partition)]
            parts = [added[at : at + MANIFEST_FILES_MAX] for at in range(0, len(added), MANIFEST_FILES_MAX)]
            with self._table.transaction() as transaction:
                for part in parts or [[]]:
                    update = transaction.update_snapshot(dict(change.properties))
                    with update.overwrite() if removed else update.merge_append() as snapshot:
                        for file in removed:
                            snapshot.delete_data_file(file)
                        for file in part:
                            snapshot.append_data_file(file)
                    removed = []
            if change.remove:
                self._merge_manifests(change.properties)
            self._known = self._newest_id()

    def expire(self, before_ms: int) -> None:
        """Forget snapshots that were replaced before this time, and delete their metadata; data files stay.

        Of newer ones the newest `iceberg_snapshots.SNAPSHOTS_MAX` are kept.
        """
        with mapped_errors(self._root):
            self._refresh()
            expired = replaced_before(self._table, before_ms)
            is_folder = self._parameters.kind is CatalogKind.FOLDER
            unused = set() if is_folder else metadata_of(self._table, expired)
            if expired:
                self._check_clock()
                ids = [one.snapshot_id for one in expired]
                self._table.maintenance.expire_snapshots().by_ids(ids).commit()
            if is_folder or unused:
                self._delete_metadata(unused, before_ms if is_folder else 0)

    def drop(self) -> None:
        """Delete the table's metadata, and no data file. A table that does not exist, or is damaged, is no error.

        Raises OtherTable for a table of another archive in a catalog with a server, and leaves it as it is.
        """
        self._loaded, self._is_adapted, self._known = None, False, None
        if not has_usable_address(self._root):
            return  # such a table cannot exist, and its address would be that of another folder
        with mapped_errors(self._root):
            catalog = self._catalog()
            if self._parameters.kind is not CatalogKind.FOLDER:
                self._check_owner(catalog)
            with suppress(iceberg_errors.NoSuchTableError):
                catalog.drop_table(self._identifier())
            folder = self._folder()
            for info in folder.files():
                folder.remove(info.base_name)

    # -- the table -----------------------------------------------------------------------------------------------------

    @property
    def _table(self) -> Table:
        """The table in its state of the last refresh or commit. The first use loads it, or creates it."""
        if self._loaded is None:
            self._loaded = self._load()
        return self._loaded

    def _refresh(self) -> None:
        """Load the newest state of the table."""
        if self._loaded is None:
            self._loaded = self._load()
        else:
            self._loaded.refresh()

    def _load(self) -> Table:
        """Load the table; create it if it does not exist. Raises EscapedAddress, OtherTable."""
        self._check_address()
        catalog, identifier, location = self._catalog(), self._identifier(), self._location()
        try:
            table = catalog.load_table(identifier)
        except iceberg_errors.NoSuchTableError:
            if self._parameters.kind is not CatalogKind.FOLDER:
                catalog.create_namespace_if_not_exists(identifier[:-1])
            schema = schema_of(self._shape.base_fields)  # `_adapt` adds the declared columns
            spec = partitions_of(schema, self._shape.partitions)
            return catalog.create_table(identifier, schema, location, spec, properties=_PROPERTIES)
        self._check_location(table)
        return table

    def _check_address(self) -> None:
        """Raise EscapedAddress if readers would not find the table at its address."""
        if not has_usable_address(self._root):
            raise EscapedAddress(
                f"topic {self._root.topic!r} cannot be published as an Iceberg table: {self._root.address} has '#' or"
                " '?', which end the path of an address: move the archive to another path, or publish it to Delta only"
            )

    def _check_location(self, table: Table) -> None:
        """Raise OtherTable if a folder with a table was moved."""
        if self._parameters.kind is CatalogKind.FOLDER and table.location() != self._location():
            moved = f"it was made at {table.location()}, and is now at {self._location()}"
            raise OtherTable(self._text(f"{moved}: drop the table, and publish it again: {REBUILD}"))

    def _catalog(self) -> Catalog:
        if self._opened_catalog is None:
            self._opened_catalog = open_catalog(self._root, self._parameters)
        return self._opened_catalog

    def _identifier(self) -> Identifier:
        return (*Catalog.identifier_to_tuple(self._parameters.namespace), table_name_of(self._root.topic))

    def _location(self) -> str:
        return location_of(self._root, self._parameters.kind)

    def _folder(self) -> MetadataFolder:
        """Return the folder where the metadata should be."""
        return MetadataFolder(DurableFileIO(file_properties(self._root)), self._location())

    def _newest_id(self) -> int:
        snapshot = self._table.current_snapshot()
        return snapshot.snapshot_id if snapshot else _NO_SNAPSHOT

    def _text(self, fault: str) -> str:
        return f"Iceberg table of topic {self._root.topic!r} in {self._root.address}: {fault}"

    def _check_owner(self, catalog: Catalog) -> None:
        """Raise OtherTable if another archive publishes the table. A table without readable metadata has no owner."""
        try:
            table = catalog.load_table(self._identifier())
        except LOST_OR_DAMAGED:
            return
        owner = own_properties(table).get(ARCHIVE_PROPERTY, "")
        if owner and self._root.archive and owner != self._root.archive:
            name = ".".join(self._identifier())
            raise OtherTable(
                f"the Iceberg table {name} belongs to the archive {owner}, and this archive is {self._root.archive}:"
                " set tables.catalog.namespace"
            )

    def _check_clock(self) -> None:
        """Raise TableUnavailable if a change now would make the history of the table go back."""
        behind_ms = self._table.metadata.last_updated_ms - int(time.time() * 1000)
        if behind_ms > CLOCK_STEP_MS_MAX:
            text = f"the clock of this host is {behind_ms // 1000} s before the last change of the table"
            raise TableUnavailable(self._text(f"{text}: set the clock"))

    def _adapt(self) -> None:
        """Add the columns that the table lacks, once. Not at the start: a table of other columns can be dropped."""
        if not self._is_adapted:
            adapt_columns(self._table, self._root.topic, self._shape)
            ensure_name_mapping(self._table)
            self._is_adapted = True

    def _merge_manifests(self, properties: Mapping[str, str]) -> None:
        """Merge the manifests if there are many, in a snapshot with the same properties."""
        if len(_manifests_of(self._table)) >= MANIFESTS_MAX:
            with self._table.transaction() as transaction, transaction.update_snapshot(dict(properties)).merge_append():
                pass

    def _files(self, table: Table, manifests: Iterable[ManifestFile]) -> Iterator[DataFile]:
        """Yield the data files of these manifests. Raises ForeignFiles for deleted rows, which no archive has."""
        for manifest in manifests:
            for entry in manifest.fetch_manifest_entry(table.io):
                if manifest.content is not ManifestContent.DATA:
                    raise ForeignFiles(
                        f"the Iceberg table of topic {self._root.topic!r} has {entry.data_file.file_path}, which"
                        f" deletes rows of archived files: drop the table, and publish it again: {REBUILD}"
                    )
                yield entry.data_file

    def _present(self, paths: frozenset[str]) -> list[DataFile]:
        """Return the table's files at these paths. Raises ForeignFiles, TableUnavailable."""
        addresses = {f"{address_of(self._root)}/{path}" for path in paths}
        days = {_day_number(path.partition("/")[0].removeprefix(f"{DAY_COLUMN}=")) for path in paths}
        near = [manifest for manifest in _manifests_of(self._table) if _may_have(manifest, min(days), max(days))]
        found = [file for file in self._files(self._table, near) if file.file_path in addresses]
        if len(found) < len(addresses):
            missing = min(addresses - {file.file_path for file in found})
            raise TableUnavailable(f"the Iceberg table of topic {self._root.topic!r} has no file {missing} to remove")
        return found

    def _relative(self, file: DataFile) -> str:
        root = f"{address_of(self._root)}/"
        path = file.file_path.removeprefix(root)
        if place_of(f"{DATA}/topic=-/{path}") is None or not file.file_path.startswith(root):
            raise ForeignFiles(
                f"the Iceberg table of topic {self._root.topic!r} has {file.file_path}, which is not a file of the"
                f" archive in {root}: remove it from the table, or drop the table and publish it again: {REBUILD}"
            )
        return path

    def _data_file(self, file: TableFile) -> DataFile:
        """Return the entry of a file in a manifest."""
        metadata = self._table.metadata
        ids = {column.name: column.field_id for column in metadata.schema().fields}
        offset, time = ids["offset"], ids["storeTime"]
        queue_range = file.place.range
        first = {offset: queue_range.begin, time: file.first_time_us}
        last = {offset: queue_range.end - 1, time: file.last_time_us}
        added = DataFile.from_args(
            metadata.format_version,
            content=DataFileContent.DATA,
            file_path=f"{address_of(self._root)}/{file.path}",
            file_format=FileFormat.PARQUET,
            partition=Record(*_partition_values(file.place.partition)),
            record_count=file.rows,
            file_size_in_bytes=file.size_bytes,
            value_counts={offset: file.rows, time: file.rows},
            null_value_counts={offset: 0, time: 0},
            lower_bounds={column: to_bytes(LongType(), value) for column, value in first.items()},
            upper_bounds={column: to_bytes(LongType(), value) for column, value in last.items()},
        )
        added.spec_id = metadata.default_spec_id
        return added

    def _delete_metadata(self, unused: set[str], left_ms: int) -> None:
        """Delete these files, and all files older than a time (leftovers of kills), unless the table uses them."""
        if self._table.location() != self._location():
            return  # a REST catalog has put the table elsewhere
        files = MetadataFiles(self._table)
        folder = self._folder()
        for info in folder.files():
            is_left = info.mtime_ns is not None and info.mtime_ns < min(left_ms, files.oldest_ms) * 1_000_000
            if (info.base_name in unused or is_left) and not files.is_used(info.base_name):
                folder.remove(info.base_name)


def open_iceberg(root: TableRoot, shape: TableShape, catalog: CatalogParameters) -> IcebergTable:
    """Return the table of a topic. Its first use opens the catalog, loads the table or creates it, and adds the columns
    that it lacks. It raises OtherTable if the table has columns that the archive lacks, other types, or other
    partitions. So `drop` needs no readable table.
    """
    return IcebergTable(root, shape, catalog)


def _manifests_of(table: Table) -> list[ManifestFile]:
    snapshot = table.current_snapshot()
    return snapshot.manifests(table.io) if snapshot else []


def _day_number(day: str) -> int:
    """Return an ISO date in days since 1970, as Iceberg stores it."""
    return (datetime.date.fromisoformat(day) - _EPOCH).days


def _partition_values(partition: Partition) -> list[int]:
    """Return the values of the columns of partitions: the day, and the hour if there is one."""
    hours = [int(partition.hour)] if partition.hour else []
    return [_day_number(partition.day), *hours]


def _may_have(manifest: ManifestFile, first_day: int, last_day: int) -> bool:
    """Return whether a manifest can have files of these days, by the summary of its partitions."""
    if not manifest.partitions:
        return True
    lower, upper = manifest.partitions[0].lower_bound, manifest.partitions[0].upper_bound
    if lower is None or upper is None:
        return True
    first, last = (int.from_bytes(bound, "little", signed=True) for bound in (lower, upper))
    return first <= last_day and first_day <= last
