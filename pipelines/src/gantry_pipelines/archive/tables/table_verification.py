"""Verify the tables of an archive against its manifest. Read-only, takes no lock, and may run beside a writer.

    files        the newest snapshot names the live files of the manifest with their sizes, no other file, and each can
                 be opened under the name that the table uses
    properties   `gantry.archive` is the identity of the archive; `gantry.ends` is not before a live file, nor after the
                 end of the archive

A table is behind the manifest until a writer has published its last change. So while there is a writer, a table with
faults is read again, and only those count that stay.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final, final

from gantry_pipelines.archive.format import read_format
from gantry_pipelines.archive.layout import DATA, WRITER, quote_name
from gantry_pipelines.archive.manifest_reader import ManifestReader
from gantry_pipelines.archive.settings import TABLE_PACKAGES, TableParameters
from gantry_pipelines.archive.storage import Storage
from gantry_pipelines.archive.tables.links import table_folder
from gantry_pipelines.archive.tables.model import ARCHIVE_PROPERTY, REBUILD, TableError, TableShape, TableState
from gantry_pipelines.archive.tables.publication import (
    ENDS_PROPERTY,
    ManifestState,
    OpenTable,
    TableKey,
    TableOpener,
    root_of,
)
from gantry_pipelines.archive.verification import Finding
from gantry_spec.pipelines.parts import CatalogKind, TableFormat

WRITER_WAIT_S: Final = 60.0
"""How long tables with faults are read again while there is a writer, which publishes at most a minute at a time."""

RETRY_INTERVAL_S: Final = 2.0
"""The time between two readings of a table with faults."""

METADATA: Final = {TableFormat.DELTA: "_delta_log", TableFormat.ICEBERG: "_iceberg/metadata"}
"""The folder in the root of a topic in which a table without a server has its metadata."""


@final
@dataclass(frozen=True, slots=True)
class TablesResult:
    """The extent and the findings of a verification of tables."""

    tables: int
    findings: tuple[Finding, ...]
    skipped: tuple[TableFormat, ...] = ()
    """Formats of tables that were found, and whose package is not installed."""


def verify_tables(
    storage: Storage,
    parameters: TableParameters,
    open_table: OpenTable | None = None,
    wait: Callable[[float], None] = time.sleep,
) -> TablesResult:
    """Verify the tables of the formats that are set or, if none is, those that exist. Raises NoArchive, ManifestBroken.

    Tables in an SQL or REST catalog are only verified if their format is set.
    """
    verifier = _Verifier(storage, parameters, open_table or TableOpener(parameters.catalog))
    keys = verifier.keys()
    skipped = {one for _, one in keys if not parameters.formats and find_spec(TABLE_PACKAGES[one]) is None}
    keys = [key for key in keys if key[1] not in skipped]
    findings = verifier.findings(keys)
    waited_s = 0.0
    while findings and waited_s < WRITER_WAIT_S and storage.size(WRITER) is not None:
        wait(RETRY_INTERVAL_S)
        waited_s += RETRY_INTERVAL_S
        findings = verifier.findings(sorted(findings))
    found = tuple(one for key in sorted(findings) for one in findings[key])
    return TablesResult(len(keys), found, tuple(sorted(skipped)))


@final
class _Verifier:
    """Reads tables and the manifest, and compares them."""

    def __init__(self, storage: Storage, parameters: TableParameters, open_table: OpenTable) -> None:
        self._storage: Final = storage
        self._parameters: Final = parameters
        self._open_table: Final = open_table
        self._format: Final = read_format(storage)
        self._reader: Final = ManifestReader(storage)

    def keys(self) -> list[TableKey]:
        """Return the tables to verify."""
        topics = sorted(ManifestState.of(self._reader.read()).ends)
        if self._parameters.formats:
            return [(topic, one) for topic in topics for one in self._parameters.formats]
        return [(topic, one) for topic in topics for one in TableFormat if self._exists(topic, one)]

    def findings(self, keys: Sequence[TableKey]) -> dict[TableKey, list[Finding]]:
        """Return the findings of the tables that have some. Each table is compared with a manifest read after it."""
        found: dict[TableKey, list[Finding]] = {}
        for topic, table_format in keys:
            root = root_of(self._storage, topic, self._format.identity)
            name = f"{table_format.capitalize()} table of topic {topic!r}"
            shape = TableShape(self._format.columns, partition_by=self._format.partition_by)
            try:
                state = self._open_table(table_format, root, shape).read()
            except TableError as error:
                found[topic, table_format] = [Finding(name, f"cannot be read: {error}")]
                continue
            manifest = ManifestState.of(self._reader.read())
            faults = list(self._faults(topic, state, manifest))
            if faults:
                found[topic, table_format] = [Finding(name, fault) for fault in faults]
        return found

    def _faults(self, topic: str, state: TableState | None, manifest: ManifestState) -> Iterator[str]:
        """Describe the differences between a table and the manifest."""
        if state is None:
            yield "does not exist: publish it with gantry pipeline tables"
            return
        owner = state.properties.get(ARCHIVE_PROPERTY, "")
        if owner != self._format.identity and (owner or state.sizes):
            yield f"is that of {owner or 'no'} archive, and this one is {self._format.identity}: {REBUILD}"
            return
        wanted = manifest.files.get(topic, {})
        lacking, others = sorted(wanted.keys() - state.sizes.keys()), sorted(state.sizes.keys() - wanted.keys())
        if lacking:
            yield f"lacks {len(lacking)} files of the manifest, such as {lacking[0]}"
        if others:
            yield f"has {len(others)} files that are not in the manifest, such as {others[0]}"
        # On an object store the live files are those of the archive, which are verified without the tables.
        yield from self._file_faults(topic, state, sorted(state.sizes) if self._storage.is_folder else others)
        for path in sorted(state.sizes.keys() & wanted.keys()):
            if state.sizes[path] != wanted[path].size_bytes:
                yield f"has {state.sizes[path]} bytes of {path}, the manifest has {wanted[path].size_bytes}"
        yield from self._end_faults(state, topic, manifest)

    def _file_faults(self, topic: str, state: TableState, paths: Sequence[str]) -> Iterator[str]:
        """Describe the files that readers of the table cannot open."""
        for path in paths:
            size = state.sizes[path]
            found = self._storage.size(f"{_folder_of(self._storage, topic)}/{path}")
            if found is None:
                yield f"names {path}, which is missing"
            elif found != size:
                yield f"names {path} with {size} bytes, which has {found}"

    def _end_faults(self, state: TableState, topic: str, manifest: ManifestState) -> Iterator[str]:
        """Describe ends before a live file, or after the archive's: a change without files makes no snapshot."""
        files = manifest.files.get(topic, {})
        if not state.sizes:
            return
        ends = _ends_of(state)
        least: dict[tuple[str, str], int] = {}
        for path in files.keys() & state.sizes.keys():
            one = files[path].place.range
            key = (one.queue.broker, str(one.queue.number))
            least[key] = max(one.end, least.get(key, 0))
        most = {(broker, queue): end for broker, by in manifest.ends[topic].items() for queue, end in by.items()}
        for key in sorted(least.keys() | ends.keys()):
            end, first, last = ends.get(key, 0), least.get(key, 0), most.get(key, 0)
            if not first <= end <= last:
                yield f"has {ENDS_PROPERTY} {end} for queue {key[1]} of {key[0]}, expected {first} to {last}"

    def _exists(self, topic: str, table_format: TableFormat) -> bool:
        """Return whether there is metadata of a table that has no server."""
        if table_format is TableFormat.ICEBERG and self._parameters.catalog.kind is not CatalogKind.FOLDER:
            return False
        return bool(self._storage.paths(f"{_folder_of(self._storage, topic)}/{METADATA[table_format]}"))


def _folder_of(storage: Storage, topic: str) -> str:
    """Return the root of a topic's tables, relative to that of the archive."""
    return table_folder(topic) if storage.is_folder else f"{DATA}/topic={quote_name(topic)}"


def _ends_of(state: TableState) -> dict[tuple[str, str], int]:
    """Return `gantry.ends` by broker and queue; none if it is not a document of ours."""
    try:
        document: Any = json.loads(state.properties.get(ENDS_PROPERTY, "{}"))
        return {(broker, queue): int(end) for broker, by in document.items() for queue, end in by.items()}
    except (ValueError, AttributeError, TypeError):
        return {}
