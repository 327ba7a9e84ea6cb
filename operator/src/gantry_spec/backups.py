"""Backups of a group as VolumeSnapshots of its volumes, and what to do next about them. Pure.

    backup 20261129-0300          its name is the time for which it was scheduled, in UTC, or the one of a request
      shard 0: VolumeSnapshot orders-0-20261129-0300       annotations: the point that the broker marked before,
      shard 1: VolumeSnapshot orders-1-20261129-0300       the number of shards, and on shard 0 the group's manifest

A backup is complete when the snapshots of all its shards are ready. The snapshots are the only record of backups: they
outlive the group and its operator. A later group of the same name has another uid, and never touches them.

``next_steps`` returns what is missing for a backup, and which snapshots are to be deleted: those of scheduled backups
before the newest ``keep`` complete ones, those of scheduled ones that will never be completed, and those of the present
one that were not cut before their point was lost, or that were made for another number of shards. Backups that a person
has requested are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, final

import msgspec

from gantry_spec.cluster_objects import GROUP_LABEL
from gantry_spec.manifest.group import API_GROUP

SNAPSHOT_API: Final = "snapshot.storage.k8s.io/v1"
BACKUP_LABEL: Final = f"{API_GROUP}/backup"
"""The label of a snapshot with the name of its backup."""

GROUP_UID_LABEL: Final = f"{API_GROUP}/group-uid"
"""The label of a snapshot with the uid of its group: another group may get the same name."""

SCHEDULED_LABEL: Final = f"{API_GROUP}/backup-scheduled"
"""The label of a snapshot whose backup the schedule has made: ``true``, or ``false`` for a request."""

SHARD_LABEL: Final = f"{API_GROUP}/shard"
POINT_ANNOTATION: Final = f"{API_GROUP}/backup-point"
"""The annotation of a snapshot with the point that its broker marked, as JSON."""

SHARDS_ANNOTATION: Final = f"{API_GROUP}/backup-shards"
"""The annotation of a snapshot with the number of shards of the backup."""

MANIFEST_ANNOTATION: Final = f"{API_GROUP}/backup-manifest"
"""The annotation of the snapshot of shard 0 with the spec of the group, as JSON."""

CLAIM_UID_ANNOTATION: Final = f"{API_GROUP}/backup-claim"
"""The annotation of a snapshot with the uid of the claim whose broker marked the point."""

RESTORED_END: Final = f"{API_GROUP}/restored-end"
"""The annotation of a claim with the end of the log that was found in it before the group took messages."""

RESTORED_FROM: Final = f"{API_GROUP}/restored-from"
"""The annotation of a group and of its claims with the backup from which they were made: GROUP/BACKUP."""


@final
class Point(msgspec.Struct, frozen=True, kw_only=True):
    """What a snapshot has for certain: the log of one member up to an offset, and the tables of that time."""

    member: int
    last_epoch: int
    """The epoch of the last record before the point."""

    flushed: int
    """The end of the log on the disk, when it was marked."""

    marked_at: str
    """When it was marked, as a time of Kubernetes."""

    term: int = 0
    """The epoch of the shard's master when it was marked. A later master may cut the log of the member."""


@final
class Snapshot(NamedTuple):
    """The snapshot of one shard's volume."""

    name: str
    uid: str
    backup: str
    shard: int
    shards: int
    """How many shards the backup has."""

    point: Point | None
    """None for a snapshot whose annotation cannot be read."""

    is_ready: bool
    is_cut: bool
    """Whether the driver has copied the volume, or will copy it as it was at that moment."""

    error: str
    """Why the driver has not made it yet; empty without an error. It tries again by itself."""

    created_at: str
    claim: str
    """The name of the copied claim."""

    claim_uid: str
    group_uid: str
    is_scheduled: bool


@final
class Backup(NamedTuple):
    """The snapshots of one backup, by shard."""

    name: str
    snapshots: Mapping[int, Snapshot]

    @property
    def shards(self) -> int:
        return max(one.shards for one in self.snapshots.values())

    @property
    def created_at(self) -> str:
        """The time of its first snapshot, by which backups are ordered."""
        return min(one.created_at for one in self.snapshots.values())

    @property
    def group_uid(self) -> str:
        return next(iter(self.snapshots.values())).group_uid

    @property
    def is_scheduled(self) -> bool:
        return all(one.is_scheduled for one in self.snapshots.values())

    @property
    def points(self) -> list[tuple[int, str, Point]]:
        """The shards with the name and the point of each snapshot."""
        found = sorted(self.snapshots.items())
        return [(shard, one.name, one.point) for shard, one in found if one.point is not None]

    @property
    def is_cut(self) -> bool:
        """Whether it becomes complete without the operator, when its driver has stored everything."""
        found = self.snapshots
        return all(shard in found and found[shard].is_cut and found[shard].point for shard in range(self.shards))

    @property
    def is_complete(self) -> bool:
        """Whether a group can be restored from it."""
        return self.is_cut and all(one.is_ready for one in self.snapshots.values())


@final
class Steps(NamedTuple):
    """What to do next about the backups of a group."""

    missing: tuple[int, ...] = ()
    """The shards of the present backup that have no snapshot."""

    waiting: tuple[int, ...] = ()
    """The shards of the present backup whose snapshot is not ready yet."""

    removed: tuple[Snapshot, ...] = ()
    """Snapshots to delete."""


def snapshot_name(group: str, shard: int, backup: str) -> str:
    """Return the name of a snapshot. One of another group may have it, too: shard 0 of `a` and shard 1 of `a-0`."""
    return f"{group}-{shard}-{backup}"


@final
class Source(NamedTuple):
    """The group of a backup, and the claim that is copied."""

    namespace: str
    group: str
    group_uid: str
    claim: str
    claim_uid: str


def snapshot_document(
    source: Source, backup: str, shard: int, *, snapshot_class: str, point: Point, shards: int, is_scheduled: bool,
    manifest: str = "",
) -> dict[str, Any]:  # fmt: skip
    """Return the VolumeSnapshot of a member's claim."""
    annotations = {
        POINT_ANNOTATION: msgspec.json.encode(point).decode(),
        SHARDS_ANNOTATION: str(shards),
        CLAIM_UID_ANNOTATION: source.claim_uid,
    }
    if manifest:
        annotations[MANIFEST_ANNOTATION] = manifest
    spec: dict[str, Any] = {"source": {"persistentVolumeClaimName": source.claim}}
    if snapshot_class:
        spec["volumeSnapshotClassName"] = snapshot_class
    return {
        "apiVersion": SNAPSHOT_API,
        "kind": "VolumeSnapshot",
        "metadata": {
            "name": snapshot_name(source.group, shard, backup),
            "namespace": source.namespace,
            "labels": {
                "app.kubernetes.io/part-of": "gantry",
                GROUP_LABEL: source.group,
                GROUP_UID_LABEL: source.group_uid,
                SCHEDULED_LABEL: str(is_scheduled).lower(),
                BACKUP_LABEL: backup,
                SHARD_LABEL: str(shard),
            },
            "annotations": annotations,
        },
        "spec": spec,
    }


def backups_of(documents: Iterable[Mapping[str, Any]]) -> list[Backup]:
    """Return the backups of a group from its snapshots, the oldest first. Others' snapshots are ignored."""
    found: dict[tuple[str, str], dict[int, Snapshot]] = {}
    for document in documents:
        snapshot = _snapshot_of(document)
        if snapshot is not None:
            found.setdefault((snapshot.group_uid, snapshot.backup), {})[snapshot.shard] = snapshot
    made = [Backup(name, some) for (_, name), some in found.items()]
    return sorted(made, key=lambda one: (one.created_at, one.name))


def next_steps(
    backups: Sequence[Backup], present: str, shards: int, keep: int, is_stale: Callable[[Snapshot], bool]
) -> Steps:
    """Return what is missing for the backup ``present``, which is empty if none is due, and what is to be deleted.

    ``is_stale`` returns whether a snapshot that is not cut has lost its point.
    """
    scheduled = [one for one in backups if one.is_scheduled and one.name != present]
    complete = [one for one in backups if one.is_scheduled and one.is_complete]
    removed: list[Snapshot] = []
    for one in scheduled:
        is_old = len(complete) >= keep and one.created_at < complete[-keep].created_at
        is_later = any(other.created_at > one.created_at for other in complete)
        is_superseded = not one.is_complete and (is_later or (bool(present) and not one.is_cut))
        removed += one.snapshots.values() if is_old or is_superseded else ()
    own = next((one.snapshots for one in backups if one.name == present), {})
    removed += [one for one in own.values() if one.shards != shards or (not one.is_cut and is_stale(one))]
    return Steps(
        missing=tuple(shard for shard in range(shards) if present and shard not in own),
        waiting=tuple(shard for shard, one in sorted(own.items()) if not one.is_ready),
        removed=tuple(removed),
    )


def point_of(text: str) -> Point | None:
    """Return the point in an annotation; None for a text that is none."""
    try:
        return msgspec.json.decode(text, type=Point)
    except msgspec.MsgspecError:
        return None


def _snapshot_of(document: Mapping[str, Any]) -> Snapshot | None:
    """Return a snapshot of ours; None for one of others."""
    metadata, status = document["metadata"], document.get("status") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    shard, shards = labels.get(SHARD_LABEL, ""), annotations.get(SHARDS_ANNOTATION, "")
    if BACKUP_LABEL not in labels or not shard.isdigit() or not shards.isdigit() or metadata.get("deletionTimestamp"):
        return None
    return Snapshot(
        name=metadata["name"], uid=str(metadata.get("uid", "")), backup=labels[BACKUP_LABEL],
        shard=int(shard), shards=int(shards), point=point_of(annotations.get(POINT_ANNOTATION, "")),
        is_ready=status.get("readyToUse") is True,
        is_cut=status.get("readyToUse") is True or bool(status.get("creationTime")),
        error=str((status.get("error") or {}).get("message") or ""),
        created_at=str(metadata.get("creationTimestamp", "")),
        claim=str(((document.get("spec") or {}).get("source") or {}).get("persistentVolumeClaimName", "")),
        claim_uid=annotations.get(CLAIM_UID_ANNOTATION, ""), group_uid=labels.get(GROUP_UID_LABEL, ""),
        is_scheduled=labels.get(SCHEDULED_LABEL) == "true",
    )  # fmt: skip
