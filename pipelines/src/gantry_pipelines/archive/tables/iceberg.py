"""The Iceberg table of a topic (format version 2): its data files are those of the archive, where they are.

    <root>/day=2026-11-22/*.parquet     data files, which the table refers to by absolute addresses
    <root>/_iceberg/metadata/           the table's metadata; `folder_catalog` describes it for tables without a server

The files have neither field ids nor the column `day`. A name mapping assigns ids to their columns, and readers take
`day` from the partition of each file. A snapshot gets the rows, sizes, and bounds of offsets and store times that the
archive's manifest has, so no data file is opened.

Limits: snapshots that only compact files have the operation `overwrite`, because pyiceberg cannot write `replace`. With
an SQL or REST catalog, a kill during a commit or an expiry can leave unused metadata files. pyiceberg copies the list
of snapshots several times in each commit: with a thousand snapshots a commit takes about a second.
"""

import datetime
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, final

import pyarrow as pa
import requests
from pyiceberg import exceptions as iceberg_errors
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestFile
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import Identifier, Record
from pyiceberg.types import LongType

from gantry_pipelines.archive.layout import DATA, place_of
from gantry_pipelines.archive.settings import CatalogParameters
from gantry_pipelines.archive.tables.folder_catalog import HINT, DurableFileIO, FolderCatalog, MetadataFolder
from gantry_pipelines.archive.tables.iceberg_schema import adapt_columns, ensure_name_mapping, partitions_of, schema_of
from gantry_pipelines.archive.tables.model import (
    DAY_COLUMN,
    ForeignFiles,
    TableChange,
    TableFile,
    TableRoot,
    TableUnavailable,
)
from gantry_spec.pipelines.parts import CatalogKind

FOLDER: Final = "_iceberg"
"""The folder of the table in the root. Readers of the data files skip it, since its name begins with `_`."""

MANIFESTS_MAX: Final = 100
"""The number of manifests at which small ones are merged, which bounds how many a reader opens."""

MANIFEST_FILES_MAX: Final = 2500
"""The most files that a commit writes to one manifest, about half a megabyte: readers skip manifests of other days, and
a commit that removes files rewrites only those that have them."""

SNAPSHOTS_MAX: Final = 300
"""The most snapshots that an expiry leaves, of five hours with one commit each minute: each commit of pyiceberg copies
the list of snapshots several times."""

_PROPERTIES: Final = {
    TableProperties.FORMAT_VERSION: "2",
    TableProperties.MANIFEST_MERGE_ENABLED: "true",
    TableProperties.MANIFEST_MIN_MERGE_COUNT: str(MANIFESTS_MAX),
    TableProperties.MANIFEST_TARGET_SIZE_BYTES: str(1 << 19),
    TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED: "true",
    TableProperties.METADATA_PREVIOUS_VERSIONS_MAX: "100",
}
"""Properties of a new table."""

_S3_OPTIONS: Final = {
    "region": "s3.region",
    "force_virtual_addressing": "s3.force-virtual-addressing",
    "connect_timeout": "s3.connect-timeout",
    "request_timeout": "s3.request-timeout",
}
"""pyiceberg's names of the options in an archive's destination, except of the endpoint."""

_EPOCH: Final = datetime.date(1970, 1, 1)


@final
class IcebergTable:
    """A topic's Iceberg table. It belongs to the writer of the archive: one process and one thread."""

    def __init__(self, root: TableRoot, columns: tuple[str, ...], catalog: Catalog, table: Table) -> None:
        self._root: Final = root
        self._columns: Final = columns
        self._catalog: Final = catalog
        self._table = table
        self._is_adapted = False

    @property
    def metadata_location(self) -> str:
        """The address of the newest version's metadata."""
        return self._table.metadata_location

    def paths(self) -> frozenset[str]:
        """Return the paths of the newest state's files, relative to the root. Raises ForeignFiles, OtherTable."""
        with _mapped_errors(self._root):
            self._table.refresh()
            self._adapt()
            return frozenset(self._relative(file) for file in self._files(self._manifests()))

    def properties(self) -> Mapping[str, str]:
        """Return the properties of the newest state's snapshot that begin with `gantry.`; none before the first."""
        with _mapped_errors(self._root):
            self._table.refresh()
            snapshot = self._table.current_snapshot()
        summary = snapshot.summary if snapshot else None
        found = summary.additional_properties if summary else {}
        return {name: value for name, value in found.items() if name.startswith("gantry.")}

    def commit(self, change: TableChange) -> None:
        """Add and remove files in one atomic step: readers see the table before it or after it.

        It is one snapshot, unless it adds more files than a manifest should have: then the first snapshot removes
        files, each adds some, and all of them become visible together.
        """
        with _mapped_errors(self._root):
            self._adapt()
            removed = self._present(change.remove) if change.remove else []
            added = [self._data_file(file) for file in sorted(change.add, key=lambda file: file.place.day)]
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

    def expire(self, before_ms: int) -> None:
        """Forget snapshots that were replaced before this time, and delete their metadata; data files stay.

        Of newer ones the newest `SNAPSHOTS_MAX` are kept.
        """
        with _mapped_errors(self._root):
            self._table.refresh()
            expired = _replaced_before(self._table, before_ms)
            is_folder = isinstance(self._catalog, FolderCatalog)
            unused = set() if is_folder else _metadata_of(self._table, expired)
            if expired:
                last = max(one.timestamp_ms for one in expired)
                after = datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(milliseconds=last + 1)
                self._table.maintenance.expire_snapshots().older_than(after).commit()
            self._delete_metadata(unused, before_ms if is_folder else 0)

    def drop(self) -> None:
        """Delete the table's metadata, and no data file."""
        with _mapped_errors(self._root):
            self._catalog.drop_table(self._table.name())
            folder = self._folder()
            if folder is not None:
                for info in folder.files():
                    folder.remove(info.base_name)

    def _adapt(self) -> None:
        """Add the columns that the table lacks, once. Not at the start: a table of other columns can be dropped."""
        if not self._is_adapted:
            adapt_columns(self._table, self._root.topic, self._columns)
            ensure_name_mapping(self._table)
            self._is_adapted = True

    def _merge_manifests(self, properties: Mapping[str, str]) -> None:
        """Merge the manifests if there are many, in a snapshot with the same properties."""
        if len(self._manifests()) >= MANIFESTS_MAX:
            with self._table.transaction() as transaction, transaction.update_snapshot(dict(properties)).merge_append():
                pass

    def _manifests(self) -> list[ManifestFile]:
        snapshot = self._table.current_snapshot()
        return snapshot.manifests(self._table.io) if snapshot else []

    def _files(self, manifests: Iterable[ManifestFile]) -> Iterator[DataFile]:
        """Yield the data files of these manifests. Raises ForeignFiles for deleted rows, which no archive has."""
        for manifest in manifests:
            for entry in manifest.fetch_manifest_entry(self._table.io):
                if manifest.content is not ManifestContent.DATA:
                    raise ForeignFiles(
                        f"the Iceberg table of topic {self._root.topic!r} has {entry.data_file.file_path}, which"
                        " deletes rows of archived files: drop the table, and publish it again"
                    )
                yield entry.data_file

    def _present(self, paths: frozenset[str]) -> list[DataFile]:
        """Return the table's files at these paths. Raises ForeignFiles, TableUnavailable."""
        addresses = {f"{_address(self._root)}/{path}" for path in paths}
        days = {_day_number(path.partition("/")[0].removeprefix(f"{DAY_COLUMN}=")) for path in paths}
        near = [manifest for manifest in self._manifests() if _may_have(manifest, min(days), max(days))]
        found = [file for file in self._files(near) if file.file_path in addresses]
        if len(found) < len(addresses):
            missing = min(addresses - {file.file_path for file in found})
            raise TableUnavailable(f"the Iceberg table of topic {self._root.topic!r} has no file {missing} to remove")
        return found

    def _relative(self, file: DataFile) -> str:
        root = f"{_address(self._root)}/"
        path = file.file_path.removeprefix(root)
        if place_of(f"{DATA}/topic=-/{path}") is None or not file.file_path.startswith(root):
            raise ForeignFiles(
                f"the Iceberg table of topic {self._root.topic!r} has {file.file_path}, which is not a file of the"
                f" archive in {root}: remove it from the table, or drop the table and publish it again"
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
            file_path=f"{_address(self._root)}/{file.path}",
            file_format=FileFormat.PARQUET,
            partition=Record(_day_number(file.place.day)),
            record_count=file.rows,
            file_size_in_bytes=file.size_bytes,
            value_counts={offset: file.rows, time: file.rows},
            null_value_counts={offset: 0, time: 0},
            lower_bounds={column: to_bytes(LongType(), value) for column, value in first.items()},
            upper_bounds={column: to_bytes(LongType(), value) for column, value in last.items()},
        )
        added.spec_id = metadata.default_spec_id
        return added

    def _folder(self) -> MetadataFolder | None:
        """Return the folder of the metadata; None if the catalog has put the table elsewhere."""
        location, files = self._table.location(), self._table.io
        if location != f"{_address(self._root)}/{FOLDER}" or not isinstance(files, PyArrowFileIO):
            return None
        return MetadataFolder(files, location)

    def _delete_metadata(self, unused: set[str], left_ms: int) -> None:
        """Delete these files, and all files older than a time (leftovers of kills), unless the table uses them.

        Names are compared, which are unique, because engines write the same address in different ways.
        """
        folder = self._folder()
        if folder is None:
            return
        metadata = self._table.metadata
        used = {HINT, _name_of(self._table.metadata_location), *_metadata_of(self._table, metadata.snapshots)}
        used.update(_name_of(entry.metadata_file) for entry in metadata.metadata_log)
        used.update(_name_of(one.statistics_path) for one in (*metadata.statistics, *metadata.partition_statistics))
        for info in folder.files():
            is_left = info.mtime_ns is not None and info.mtime_ns < left_ms * 1_000_000
            if info.base_name not in used and (info.base_name in unused or is_left):
                folder.remove(info.base_name)


def open_iceberg(root: TableRoot, columns: tuple[str, ...], catalog: CatalogParameters) -> IcebergTable:
    """Open the table of a topic; create it if it does not exist.

    Its first use adds the columns that it lacks, and raises OtherTable if it has columns that the archive lacks, other
    types, or other partitions.
    """
    location = f"{_address(root)}/{FOLDER}"
    with _mapped_errors(root):
        server = _open_catalog(catalog, location, _file_properties(root))
        identifier: Identifier = (*Catalog.identifier_to_tuple(catalog.namespace), table_name_of(root.topic))
        try:
            table = server.load_table(identifier)
        except iceberg_errors.NoSuchTableError:
            if catalog.kind is not CatalogKind.FOLDER:
                server.create_namespace_if_not_exists(identifier[:-1])
            schema = schema_of(columns)
            table = server.create_table(identifier, schema, location, partitions_of(schema), properties=_PROPERTIES)
        return IcebergTable(root, columns, server, table)


def table_name_of(topic: str) -> str:
    """Return the name of a topic's table: `orders`, and `_x0025_RETRY_x0025_readers` for `%RETRY%readers`.

    Characters other than ASCII letters, digits, `-` and `_` become `_xHHHH_`, as in SQL/XML, which engines accept
    between quotation marks; so does a `_` that could be mistaken for such an escape.
    """
    return re.sub(r"_(?=x[0-9a-f]{4})|[^A-Za-z0-9_-]", lambda found: f"_x{ord(found[0]):04x}_", topic)


def topic_of(table_name: str) -> str:
    """Return the topic of a table's name."""
    return re.sub(r"_x([0-9a-f]{4,6})_", lambda found: chr(int(found[1], 16)), table_name)


def _address(root: TableRoot) -> str:
    """Return the root as an address with a scheme: Spark resolves a plain path in its default file system."""
    return root.address if "://" in root.address else f"file://{root.address}"


def _file_properties(root: TableRoot) -> dict[str, str]:
    """Return the properties of pyiceberg's files; keys of an object store come from the environment."""
    properties = {"py-io-impl": f"{DurableFileIO.__module__}.{DurableFileIO.__qualname__}"}
    properties |= {_S3_OPTIONS[name]: value for name, value in root.options.items() if name in _S3_OPTIONS}
    if endpoint := root.options.get("endpoint_override"):
        scheme = root.options.get("scheme", "https")
        properties["s3.endpoint"] = endpoint if "://" in endpoint else f"{scheme}://{endpoint}"
    return properties


def _open_catalog(catalog: CatalogParameters, location: str, files: Mapping[str, str]) -> Catalog:
    if catalog.kind is CatalogKind.FOLDER:
        return FolderCatalog(location, DurableFileIO(dict(files)))
    return load_catalog("gantry", **{**files, "type": catalog.kind.value, **catalog.properties})


def _day_number(day: str) -> int:
    """Return an ISO date in days since 1970, as Iceberg stores it."""
    return (datetime.date.fromisoformat(day) - _EPOCH).days


def _may_have(manifest: ManifestFile, first_day: int, last_day: int) -> bool:
    """Return whether a manifest can have files of these days, by the summary of its partitions."""
    if not manifest.partitions:
        return True
    lower, upper = manifest.partitions[0].lower_bound, manifest.partitions[0].upper_bound
    if lower is None or upper is None:
        return True
    first, last = (int.from_bytes(bound, "little", signed=True) for bound in (lower, upper))
    return first <= last_day and first_day <= last


def _replaced_before(table: Table, before_ms: int) -> list[Snapshot]:
    """Return the snapshots without a name that were replaced by others before a time, or are too many."""
    kept = {ref.snapshot_id for ref in table.metadata.refs.values()}
    snapshots = table.metadata.snapshots
    replaced_ms = {one.snapshot_id: one.timestamp_ms for one in snapshots}
    replaced_ms |= {one.parent_snapshot_id: one.timestamp_ms for one in snapshots if one.parent_snapshot_id}
    newest = {one.snapshot_id for one in sorted(snapshots, key=lambda one: one.timestamp_ms)[-SNAPSHOTS_MAX:]}
    found = (one for one in snapshots if one.snapshot_id not in kept)
    return [one for one in found if replaced_ms[one.snapshot_id] < before_ms or one.snapshot_id not in newest]


def _metadata_of(table: Table, snapshots: Iterable[Snapshot]) -> set[str]:
    """Return the names of the manifest lists and manifests of these snapshots."""
    names: set[str] = set()
    for snapshot in snapshots:
        names.add(_name_of(snapshot.manifest_list))
        names.update(_name_of(manifest.manifest_path) for manifest in snapshot.manifests(table.io))
    return names


def _name_of(address: str) -> str:
    return address.rpartition("/")[2]


def _foreign_errors() -> tuple[type[Exception], ...]:
    """Return the errors of the libraries below; those of wrong settings are ValueError and ImportError."""
    own = [one for one in vars(iceberg_errors).values() if isinstance(one, type) and issubclass(one, Exception)]
    common = (*own, pa.ArrowException, requests.RequestException, OSError, ValueError, ImportError)
    try:
        from sqlalchemy.exc import SQLAlchemyError
    except ImportError:
        return common
    return (*common, SQLAlchemyError)


_FOREIGN_ERRORS: Final = _foreign_errors()


@contextmanager
def _mapped_errors(root: TableRoot) -> Iterator[None]:
    """Raise TableUnavailable for errors of catalogs, storage and their libraries."""
    try:
        yield
    except _FOREIGN_ERRORS as error:
        name = type(error).__name__
        raise TableUnavailable(f"Iceberg table of topic {root.topic!r} in {root.address}: {name}: {error}") from error
