"""A Delta table over the files of one topic.

    ROOT/day=DATE/NAME.parquet                       the archive's files, which are neither copied nor changed; or
    ROOT/day=DATE/hour=HH/NAME.parquet               the same in an archive that is partitioned by hour
    ROOT/_delta_log/00000000000000000007.json        what version 7 adds and removes, one file for each version
    ROOT/_delta_log/00000000000000000007.checkpoint.parquet, _last_checkpoint

A version is one file that is created in one step, so a kill leaves the table before the version or after it. The first
version creates an empty table. In a folder a version is synced before `commit` returns.

The table needs only the oldest protocol (reader 1, writer 2) and no table feature, so that every reader can read it.
Log paths are relative and URL-encoded: the file `a%25b.parquet` is `a%2525b.parquet` there, which the library encodes.

The writer of the archive holds a lock, so there is one writer. On an object store the library creates a version by a
conditional PUT, which needs no table of locks.
"""

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, final
from urllib.parse import unquote, urlencode

import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.exceptions import (
    CommitFailedError,
    DeltaError,
    DeltaProtocolError,
    SchemaMismatchError,
    TableNotFoundError,
)
from deltalake.transaction import AddAction, CommitProperties, PostCommitHookProperties, RemoveAction

from gantry_pipelines.archive.errors import BadDestination
from gantry_pipelines.archive.layout import DATA, Partition, Place, place_of, quote_name
from gantry_pipelines.archive.object_storage import storage_of
from gantry_pipelines.archive.storage import Folder, Storage
from gantry_pipelines.archive.tables.model import (
    DAY_COLUMN,
    HOUR_COLUMN,
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
    one_line,
)
from gantry_remoting.durable_files import sync_file, sync_folder

LOG: Final = "_delta_log"
"""The folder of the table's metadata."""

PROPERTY_PREFIX: Final = "gantry."
"""The properties of a version that are ours; the others are those of the library."""

CHECKPOINT_INTERVAL: Final = 25
"""The versions between two checkpoints. A reader opens the newest checkpoint and the versions after it, each a request;
a checkpoint lists all files (8 MB for 100,000 files)."""

HISTORY_MAX: Final = 100
"""The newest versions in which to look for our properties: a maintenance job of others may have added some."""

CONFIGURATION: Final = {
    "delta.checkpointInterval": str(CHECKPOINT_INTERVAL),
    "delta.dataSkippingStatsColumns": "offset,storeTime",
    "delta.enableExpiredLogCleanup": "false",
}
"""The table's properties: `expire` alone deletes metadata, since it knows how long old versions must be readable."""

_STORE_LIMITS: Final = {"timeout": "60s", "max_retries": "4", "retry_timeout": "60s"}
"""The limits of requests to an object store; the next publication tries again anyway."""

_VERSION_FILE: Final = re.compile(rf"{LOG}/(?P<version>\d{{20}})\.(?P<kind>.+)")
_CHECKPOINT: Final = "checkpoint.parquet"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def open_delta(root: TableRoot, shape: TableShape) -> "DeltaTopicTable":
    """Return the Delta table of a topic. Its first use creates it, or adds missing columns, and may raise OtherTable.

    So `drop` needs no readable table.
    """
    return DeltaTopicTable(root, shape)


@final
class DeltaTopicTable:
    """A table of one topic in the format of Delta. One thread uses it; all errors are TableErrors."""

    def __init__(self, root: TableRoot, shape: TableShape) -> None:
        self._root: Final = root
        self._shape: Final = shape
        self._options: Final = storage_options(root)
        with _mapped_errors(root):
            self._storage: Final = _storage_of(root)
        self._opened: DeltaTable | None = None
        self._known: int | None = None
        """The version that the last `paths` or `commit` has left to its caller; None before the first."""

    def __repr__(self) -> str:
        version = self._opened.version() if self._opened is not None else None
        return f"DeltaTopicTable({self._root.address}, version={version})"

    def read(self) -> TableState | None:
        """Return the newest version, without creating or changing the table; None if it does not exist."""
        with _mapped_errors(self._root):
            self._check_address()
            try:
                table = DeltaTable(self._root.address, storage_options=self._options)
            except TableNotFoundError:
                return None
            return TableState(self._sizes(table), _own_properties(table))

    def paths(self) -> frozenset[str]:
        """Return the paths of the newest version's files, relative to the root. Raises ForeignFiles."""
        with _mapped_errors(self._root):
            table = self._current()
            found = frozenset(self._sizes(table))
            self._known = table.version()
            return found

    def properties(self) -> Mapping[str, str]:
        """Return our properties of the newest version that has some; none before the first."""
        with _mapped_errors(self._root):
            return _own_properties(self._current())

    def commit(self, change: TableChange) -> None:
        """Add and remove files in one version. Raises TableUnavailable if a file to remove is not in the table, or if
        another writer has changed it since the last `paths` or `commit`, so the caller should read it again."""
        with _mapped_errors(self._root):
            table = self._current()
            before = table.version()
            if self._known not in (None, before):
                text = f"it has the version {before}, expected {self._known}"
                raise TableUnavailable(f"{self._root.address}: another writer has changed it: {text}")
            sizes = self._sizes(table) if change.remove else {}
            unknown = sorted(change.remove - sizes.keys())
            if unknown:
                raise TableUnavailable(f"{unknown[0]} is not in {self._root.address}: another writer has changed it")
            self._write(table, _actions_of(self._root.topic, change, sizes, _now_ms()), change.properties)
            self._known = before + 1

    def expire(self, before_ms: int) -> None:
        """Delete the metadata of versions that were replaced before this time, and no data file.

        Versions are read from the checkpoint before them, so up to CHECKPOINT_INTERVAL more versions stay.
        """
        with _mapped_errors(self._root):
            newest = self._current()
            files = self._version_files()
            checkpoints = {version for _, version, kind in files if kind == _CHECKPOINT}
            base = 0
            for version in sorted({*checkpoints, newest.version()}):
                if self._made_ms(version) >= before_ms:
                    break
                base = version
            old = [path for path, version, _ in files if version < base]
            if old and base not in checkpoints:
                newest.create_checkpoint()
            if old:
                self._sync(from_version=base)
            for path in old:  # the oldest first, so that a kill leaves no gap
                self._storage.remove(path)

    def drop(self) -> None:
        """Delete the table's metadata, and no data file. A table that does not exist, or is damaged, is no error."""
        self._opened = self._known = None
        with _mapped_errors(self._root):
            for path in reversed(self._storage.paths(LOG)):  # the newest first: a kill leaves an older version
                self._storage.remove(path)
            if isinstance(self._storage, Folder):
                self._storage.remove_folder(LOG)

    # -- the table -----------------------------------------------------------------------------------------------------

    def _current(self) -> DeltaTable:
        """Return the newest version, with all columns; the first call opens the table or creates it."""
        if self._opened is not None:
            self._opened.update_incremental()
            return self._opened
        self._check_address()
        try:
            table = DeltaTable(self._root.address, storage_options=self._options)
        except TableNotFoundError:
            table = self._create()
        self._sync(from_version=table.version())  # a killed writer may not have synced it
        self._add_columns(table)
        self._opened = table
        return table

    def _check_address(self) -> None:
        """Raise EscapedAddress if readers would not find the table at its address."""
        if unquote(self._root.address) != self._root.address:
            text = f"{self._root.address} has percent-encoded characters, which readers of Delta do not find"
            raise EscapedAddress(f"topic {self._root.topic} cannot be published as a Delta table: {text}")

    def _create(self) -> DeltaTable:
        return DeltaTable.create(
            self._root.address,
            schema=_schema_of(self._shape),
            mode="error",
            partition_by=list(self._shape.partitions),
            configuration=CONFIGURATION,
            storage_options=self._options,
        )

    def _add_columns(self, table: DeltaTable) -> None:
        """Add the columns that the table lacks. Raises OtherTable for any other difference."""
        wanted = {field.name: field for field in _schema_of(self._shape).fields}
        found = {field.name: field for field in table.schema().fields}
        partitions = list(self._shape.partitions)
        if table.metadata().partition_columns != partitions:
            raise self._other_table(f"has the partitions {table.metadata().partition_columns}, expected {partitions}")
        for name, field in found.items():
            if name not in wanted:
                raise self._other_table(f"has the column {name}, which the archive does not have")
            if field.type != wanted[name].type or not field.nullable:
                raise self._other_table(f"has the column {field.to_json()}, expected {wanted[name].to_json()}")
        missing = [field for name, field in wanted.items() if name not in found]
        if missing:
            before = table.version()
            table.alter.add_columns(missing)
            table.update_incremental()
            self._sync(from_version=before + 1)

    def _other_table(self, difference: str) -> OtherTable:
        return OtherTable(f"{self._root.address} {difference}: drop the table, and publish it again: {REBUILD}")

    def _sizes(self, table: DeltaTable) -> dict[str, int]:
        """Return the size of each file of a version by its path. Raises ForeignFiles."""
        actions: Any = pa.table(table.get_add_actions(flatten=True))
        paths = [unquote(path) for path in actions.column("path").to_pylist()]
        for path in paths:
            if _place_of(self._root.topic, path) is None:
                text = f"{self._root.address} has the file {path}, which this archive did not write"
                raise ForeignFiles(
                    f"{text}: remove it from the table, or drop the table and publish it again: {REBUILD}"
                )
        return dict(zip(paths, actions.column("size_bytes").to_pylist(), strict=True))

    def _write(self, table: DeltaTable, actions: list[AddAction | RemoveAction], properties: Mapping[str, str]) -> None:
        """Create the next version, and none after a version of another writer.

        Mode "append" removes exactly the files that RemoveActions name.
        """
        table.create_write_transaction(
            actions,
            "append",
            table.schema(),
            list(self._shape.partitions),
            commit_properties=CommitProperties(custom_metadata=dict(properties), max_commit_retries=0),
            post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=False),
        )
        self._sync(from_version=table.version() + 1)

    # -- the files of the log ------------------------------------------------------------------------------------------

    def _version_files(self) -> list[tuple[str, int, str]]:
        """Return path, version and kind of the log's files, by version; files of interrupted writes included."""
        found = ((path, _VERSION_FILE.fullmatch(path)) for path in self._storage.paths(LOG))
        return [(path, int(match["version"]), match["kind"]) for path, match in found if match is not None]

    def _made_ms(self, version: int) -> int:
        """Return when a version was made, and so replaced the one before; 0 if another program has deleted its file."""
        try:
            lines = self._storage.read(f"{LOG}/{version:020d}.json").splitlines()
        except FileNotFoundError:
            return 0
        infos = [info for line in lines if (info := json.loads(line).get("commitInfo")) is not None]
        return max((int(info["timestamp"]) for info in infos), default=_now_ms())

    def _sync(self, from_version: int) -> None:
        """Make versions and their checkpoints durable in a folder; an object store has no buffers."""
        if not isinstance(self._storage, Folder):
            return
        top = Path(self._storage.root)
        for path, version, _ in self._version_files():
            if version >= from_version:
                sync_file(top / path)
        if (top / LOG / "_last_checkpoint").exists():
            sync_file(top / LOG / "_last_checkpoint")
        sync_folder(top / LOG)
        sync_folder(top)


def storage_options(root: TableRoot) -> dict[str, str]:
    """Return the library's options for an object store; none for a folder. Keys come from the environment."""
    if "://" not in root.address:
        return {}
    options = dict(_STORE_LIMITS)
    scheme = root.options.get("scheme", "https")
    endpoint = root.options.get("endpoint_override", "")
    if endpoint:
        options["AWS_ENDPOINT_URL"] = endpoint if "://" in endpoint else f"{scheme}://{endpoint}"
    if options.get("AWS_ENDPOINT_URL", "").startswith("http://"):
        options["AWS_ALLOW_HTTP"] = "true"
    if "region" in root.options:
        options["AWS_REGION"] = root.options["region"]
    if root.options.get("force_virtual_addressing") == "true":
        options["AWS_VIRTUAL_HOSTED_STYLE_REQUEST"] = "true"
    return options


def _storage_of(root: TableRoot) -> Storage:
    return storage_of(f"{root.address}?{urlencode(root.options)}" if root.options else root.address)


def _own_properties(table: DeltaTable) -> dict[str, str]:
    """Return our properties of the newest version that has some."""
    for version in table.history(HISTORY_MAX):
        ours = {key: str(value) for key, value in version.items() if key.startswith(PROPERTY_PREFIX)}
        if ours:
            return ours
    return {}


# -- schema ------------------------------------------------------------------------------------------------------------


def _schema_of(shape: TableShape) -> Schema:
    """Return the table's columns: those of the files, and the partitions; each may be null."""
    return Schema.from_arrow(pa.schema(list(shape.fields)))


# -- actions -----------------------------------------------------------------------------------------------------------


def _actions_of(
    topic: str, change: TableChange, sizes: Mapping[str, int], now_ms: int
) -> list[AddAction | RemoveAction]:
    """Return the actions of a change.

    Where the added and the removed files of a queue and partition have the same offsets they have the same messages,
    since offsets of an archive never change. Such actions are marked as no change of data, so that streams skip them.
    """
    places = {path: _place_of(topic, path) for path in change.remove}
    removed = {path: place for path, place in places.items() if place is not None}
    assert len(removed) == len(change.remove), "the paths of a table were checked"
    old, new = _offsets_of(removed.values()), _offsets_of(file.place for file in change.add)

    def is_change(place: Place) -> bool:
        key = _key_of(place)
        return old.get(key) != new.get(key)

    adds = [_add_action(file, now_ms, is_change(file.place)) for file in change.add]
    removes = [
        RemoveAction(path, is_change(place), now_ms, size=sizes[path], partition_values=_partition_values(place))
        for path, place in sorted(removed.items())
    ]
    return [*adds, *removes]


def _add_action(file: TableFile, now_ms: int, is_change: bool) -> AddAction:
    stats = {
        "numRecords": file.rows,
        "minValues": {"offset": file.place.range.begin, "storeTime": _iso_time(file.first_time_us)},
        "maxValues": {"offset": file.place.range.end - 1, "storeTime": _iso_time(file.last_time_us)},
        "nullCount": {"offset": 0, "storeTime": 0},
    }
    values = _partition_values(file.place)
    return AddAction(file.path, file.size_bytes, values, now_ms, is_change, json.dumps(stats, separators=(",", ":")))


def _partition_values(place: Place) -> dict[str, str | None]:
    """Return the values of the columns of partitions as the log has them."""
    hours = {HOUR_COLUMN: str(int(place.hour))} if place.hour else {}
    return {DAY_COLUMN: place.day, **hours}


def _offsets_of(places: Iterable[Place]) -> dict[tuple[str, int, Partition], list[tuple[int, int]]]:
    """Return the merged ranges of offsets of files, by broker, queue and partition."""
    merged: dict[tuple[str, int, Partition], list[tuple[int, int]]] = {}
    for place in sorted(places):
        ranges = merged.setdefault(_key_of(place), [])
        begin = place.range.begin
        if ranges and ranges[-1][1] == begin:
            begin, _ = ranges.pop()
        ranges.append((begin, place.range.end))
    return merged


def _key_of(place: Place) -> tuple[str, int, Partition]:
    return place.range.queue.broker, place.range.queue.number, place.partition


def _place_of(topic: str, path: str) -> Place | None:
    """Parse a path relative to the root; None if it is not a file of the archive."""
    return place_of(f"{DATA}/topic={quote_name(topic)}/{path}")


def _iso_time(time_us: int) -> str:
    return (_EPOCH + timedelta(microseconds=time_us)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _now_ms() -> int:
    return int(time.time() * 1000)


# -- errors ------------------------------------------------------------------------------------------------------------


@contextmanager
def _mapped_errors(root: TableRoot) -> Iterator[None]:
    """Raise the errors of the libraries as TableErrors."""
    try:
        yield
    except (SchemaMismatchError, DeltaProtocolError) as error:
        raise OtherTable(
            f"{root.address}: {one_line(str(error))}: drop the table, and publish it again: {REBUILD}"
        ) from error
    except CommitFailedError as error:
        raise TableUnavailable(f"{root.address}: another writer has changed it: {one_line(str(error))}") from error
    except DeltaError as error:
        remedy = f"if the next publication fails too, drop the table, and publish it again: {REBUILD}"
        raise TableUnavailable(f"cannot read or change {root.address}: {one_line(str(error))}; {remedy}") from error
    except (OSError, ValueError, pa.ArrowException, BadDestination) as error:
        raise TableUnavailable(f"cannot read or change {root.address}: {one_line(str(error))}") from error
