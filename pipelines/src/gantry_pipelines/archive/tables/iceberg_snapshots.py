"""The snapshots of an Iceberg table: what they say about themselves, which expire, and which files they use."""

import re
from collections.abc import Iterable
from typing import Final, final

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from gantry_pipelines.archive.tables.folder_catalog import HINT

SNAPSHOTS_MAX: Final = 300
"""The most snapshots that an expiry leaves, of five hours with one commit each minute: each commit of pyiceberg copies
the list of snapshots several times."""

_COMMIT: Final = re.compile(r"(?:snap-\d+-\d+-)?([0-9a-f-]{36})(?:-m\d+)?\.avro")


def replaced_before(table: Table, before_ms: int) -> list[Snapshot]:
    """Return the snapshots without a name that were replaced by others before a time, or are too many."""
    kept = {ref.snapshot_id for ref in table.metadata.refs.values()}
    snapshots = table.metadata.snapshots
    replaced_ms = {one.snapshot_id: one.timestamp_ms for one in snapshots}
    replaced_ms |= {one.parent_snapshot_id: one.timestamp_ms for one in snapshots if one.parent_snapshot_id}
    newest = {one.snapshot_id for one in sorted(snapshots, key=_sequence_of)[-SNAPSHOTS_MAX:]}
    found = (one for one in snapshots if one.snapshot_id not in kept)
    return [one for one in found if replaced_ms[one.snapshot_id] < before_ms or one.snapshot_id not in newest]


def _sequence_of(snapshot: Snapshot) -> int:
    """Return the position of a snapshot in the history; times may go back."""
    return snapshot.sequence_number or 0


def own_properties(table: Table) -> dict[str, str]:
    """Return the properties that begin with `gantry.` of the newest snapshot that has some.

    Snapshots of others, such as of maintenance jobs, have none.
    """
    for snapshot in sorted(table.metadata.snapshots, key=_sequence_of, reverse=True):
        found = snapshot.summary.additional_properties if snapshot.summary else {}
        ours = {name: value for name, value in found.items() if name.startswith("gantry.")}
        if ours:
            return ours
    return {}


@final
class MetadataFiles:
    """The files that a table's metadata uses, by name: engines write the same address in different ways.

    The metadata names the manifest lists of all snapshots, but only these lists name the manifests, and to read all of
    them takes too many requests. The manifests of a snapshot are those of its parent, and those that its own commit
    wrote, whose names have the UUID of the commit, as the name of its list has. So a manifest in use is in the list of
    a snapshot whose parent is gone, or its name has the UUID of a snapshot's commit.

    Other engines may name manifests in other ways. Of these the lists of the named snapshots are read, such as the
    current one, and no file is a leftover that is newer than the oldest snapshot without a name.
    """

    def __init__(self, table: Table) -> None:
        metadata = table.metadata
        ids = {one.snapshot_id for one in metadata.snapshots}
        named = {ref.snapshot_id for ref in metadata.refs.values()}
        read = [one for one in metadata.snapshots if one.parent_snapshot_id not in ids or one.snapshot_id in named]
        self._names: Final = {HINT, _name_of(table.metadata_location), *metadata_of(table, read)}
        self._names.update(_name_of(one.manifest_list) for one in metadata.snapshots)
        self._names.update(_name_of(entry.metadata_file) for entry in metadata.metadata_log)
        statistics = (*metadata.statistics, *metadata.partition_statistics)
        self._names.update(_name_of(one.statistics_path) for one in statistics)
        self._commits: Final = {_commit_of(_name_of(one.manifest_list)) for one in metadata.snapshots} - {""}
        current = [one.timestamp_ms for one in metadata.snapshots if one.snapshot_id == metadata.current_snapshot_id]
        others = [one.timestamp_ms for one in metadata.snapshots if one.snapshot_id not in named]
        self.oldest_ms: Final = min((*current, *others), default=metadata.last_updated_ms)
        """When the oldest snapshot was made that is the current one or has no name; older tags do not count."""

    def is_used(self, name: str) -> bool:
        """Return whether the table may use a file."""
        return name in self._names or _commit_of(name) in self._commits


def _commit_of(name: str) -> str:
    """Return the UUID of the commit that wrote a manifest or a list of manifests; empty for other names."""
    found = _COMMIT.fullmatch(name)
    return found[1] if found else ""


def metadata_of(table: Table, snapshots: Iterable[Snapshot]) -> set[str]:
    """Return the names of the manifest lists and manifests of these snapshots."""
    names: set[str] = set()
    for snapshot in snapshots:
        names.add(_name_of(snapshot.manifest_list))
        names.update(_name_of(manifest.manifest_path) for manifest in snapshot.manifests(table.io))
    return names


def _name_of(address: str) -> str:
    return address.rpartition("/")[2]
