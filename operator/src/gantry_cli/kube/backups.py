"""Backups of a group in a cluster: order one, and restore one into a new group.

    gantry backup    annotation gantry.dev/backup ---> the operator makes the snapshots, and removes the annotation
    gantry restore --from
                     snapshots ---> one claim for each shard, from its snapshot ---> the group, with gantry.dev/restore

A restored shard begins with member 1, whose claim is made from the snapshot; its slaves copy its log. What the old
group acknowledged after the point of the backup is not in the new one, which the annotation accepts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeVar, final

import click
import msgspec

from gantry_cli.errors import CliError, InvalidInput, NotFoundError
from gantry_cli.kube.api_errors import ApiError, cli_error_of, suggestion
from gantry_cli.kube.cluster import Cluster, Object, connect, open_group
from gantry_cli.kube.cluster_orders import OrderOptions, apply_order, shard_of
from gantry_cli.kube.group_observer import annotations_of
from gantry_cli.kube.naming import CLAIMS, GROUPS, SNAPSHOTS, status_command
from gantry_cli.output import show
from gantry_spec.backups import (
    MANIFEST_ANNOTATION,
    POINT_ANNOTATION,
    RESTORED_FROM,
    Backup,
    backups_of,
)
from gantry_spec.cluster_objects import GROUP_LABEL, member_of, member_pod
from gantry_spec.manifest.annotations import BACKUP, BACKUP_NAME, RESTORE
from gantry_spec.manifest.group import API_VERSION, KIND
from gantry_spec.manifest.parts import Storage
from gantry_spec.manifest.quantities import quantity_bytes, size_text

T = TypeVar("T")

POLL_S: Final = 1.0
EXISTS: Final = 409


@final
class ShardPointDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup has of one shard."""

    shard: int
    snapshot: str
    """The name of the VolumeSnapshot."""
    member: int
    """The member whose volume was copied."""
    epoch: int
    """The epoch of the last record."""
    flushed: int
    """The offset in the log up to which it has everything."""
    marked_at: str


@final
class BackupDocument(msgspec.Struct, frozen=True, kw_only=True):
    """`gantry backup` and `gantry restore --from`: a backup, and what it has of each shard."""

    context: str
    namespace: str
    group: str
    """The group whose backup it is, or into which it was restored."""
    backup: str
    is_done: bool
    """Whether the backup is complete, or the group restored; false with `--timeout 0`, which does not wait."""
    points: list[ShardPointDocument]
    message: str
    """The result as a sentence for people."""


# -- making a backup ---------------------------------------------------------------------------------------------------


def make_backup(options: OrderOptions, name: str) -> None:
    """Order a backup, and wait until it is complete. Raises CliError."""
    name = name or datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    if BACKUP_NAME.fullmatch(name) is None:
        raise InvalidInput(f"{name!r} is not a name", "write up to 40 lowercase letters, digits and hyphens")
    cluster, document = open_group(options.target, options.group)
    group = str(document["metadata"]["name"])
    uid = str(document["metadata"]["uid"])
    is_ordered = annotations_of(document).get(BACKUP) == name  # by an earlier command, which has not seen its end
    if not is_ordered and any(one.name == name for one in list_backups(cluster, group)):
        raise CliError(f"backup {name} exists already", "choose another name")
    apply_order(cluster, document, lambda annotations: _with_backup(annotations, name))
    if not options.timeout_s:
        message = f"order given; see {status_command(cluster.namespace, group)}"
        _show(options, cluster, group, Backup(name, {}), message, is_done=False)
        return
    backup = _wait_for_backup(cluster, group, uid, name, options.timeout_s)
    _show(options, cluster, group, backup, f"backup {name} of group {group} is complete")


def _with_backup(annotations: Mapping[str, str], name: str) -> dict[str, str | None]:
    other = annotations.get(BACKUP, "")
    if other and other != name:
        raise CliError(f"backup {other} is requested already", "wait until it is complete")
    return {BACKUP: name}


def _wait_for_backup(cluster: Cluster, group: str, uid: str, name: str, timeout_s: float) -> Backup:
    def poll() -> tuple[Backup | None, str]:
        made = backups_of(_snapshots(cluster, group))
        found = next((one for one in made if (one.group_uid, one.name) == (uid, name)), None)
        if found is not None and found.is_complete:
            return found, ""
        if found is None:
            return None, _condition_of(cluster.get(GROUPS, group), "BackedUp") or "the operator has not begun it"
        waiting = [one for one in found.snapshots.values() if not one.is_ready]
        missing = found.shards - len(found.snapshots)
        texts = [f"snapshot {one.name}: {one.error or 'not ready yet'}" for one in waiting]
        return None, "; ".join([*texts, *([f"{missing} shards have no snapshot yet"] if missing else [])])

    withdrawal = f"kubectl annotate bg/{group} -n {cluster.namespace} {BACKUP}-"
    return _wait(poll, timeout_s, f"backup {name}", f"the order stays pending; withdraw it with: {withdrawal}")


# -- restoring one -----------------------------------------------------------------------------------------------------


def restore_backup(options: OrderOptions, source: str) -> None:
    """Create the group of ``options`` from ``GROUP`` or ``GROUP/BACKUP``, and wait for its masters. Raises CliError."""
    if options.group is None:
        raise InvalidInput("name the group to create: bg/NAME")
    group = options.group
    cluster = connect(options.target)
    try:
        snapshots = _snapshots_or_error(cluster, source.partition("/")[0])
        source = _continued_source(cluster, group, source)
        backup = _find_backup(cluster, backups_of(snapshots), source)
        origin = f"{source.partition('/')[0]}/{backup.name}"
        if not _is_created(cluster, group, origin):
            by_name = {one["metadata"]["name"]: one for one in snapshots}
            spec = _spec_of(by_name[backup.snapshots[0].name])
            if spec.get("shards", 1) != backup.shards:
                text = f"backup {backup.name} has {backup.shards} shards, and its manifest {spec.get('shards', 1)}"
                raise CliError(text, "choose a backup that was made when the number of shards did not change")
            claims = [
                claim_document(group, shard, by_name[backup.snapshots[shard].name], spec, origin)
                for shard in range(backup.shards)
            ]
            _refuse_other_claims(cluster, group, claims)
            for claim in claims:
                _create_claim(cluster, claim)
            cluster.create(GROUPS, group_document(cluster.namespace, group, spec, backup, origin))
    except ApiError as error:
        raise cli_error_of(error) from error
    if not options.timeout_s:
        message = f"group created; see {status_command(cluster.namespace, group)}"
        _show(options, cluster, group, backup, message, is_done=False)
        return
    _wait_for_masters(cluster, group, backup, options.timeout_s)
    _show(options, cluster, group, backup, f"group {group} is restored from backup {origin}")


def _continued_source(cluster: Cluster, group: str, source: str) -> str:
    """Return the backup of an interrupted restore of ``group``, if ``source`` names none; else ``source``.

    A newer backup may have been made since the interruption, and the claims are from the older one. A group that has
    the condition Restored is complete, and so are claims that a group uses.
    """
    if "/" in source:
        return source
    claims = [one for one in _claims_of(cluster, group) if GROUP_LABEL not in (one["metadata"].get("labels") or {})]
    groups = [one for one in cluster.list(GROUPS) if one["metadata"]["name"] == group]
    unfinished = [one for one in groups if not _has_condition(one, "Restored")]
    begun = {annotations_of(one).get(RESTORED_FROM, "") for one in (*claims, *unfinished)}
    origins = sorted(origin for origin in begun if origin.startswith(f"{source}/"))
    if len(origins) != 1:
        return source
    click.echo(f"continuing the restore from backup {origins[0]}", err=True)
    return origins[0]


def _claims_of(cluster: Cluster, group: str) -> list[Object]:
    """Return the claims of the brokers of a group, whether it exists or not."""
    found = []
    for claim in cluster.list(CLAIMS):
        name = str(claim["metadata"]["name"])
        if name.startswith("data-") and member_of(group, name.removeprefix("data-")) is not None:
            found.append(claim)
    return found


def _find_backup(cluster: Cluster, found: Sequence[Backup], source: str) -> Backup:
    """Return the backup that is named, or the last complete one of the group. Raises NotFoundError, CliError."""
    group, _, name = source.partition("/")
    complete = [one for one in found if one.is_complete]
    if not found:
        raise NotFoundError(f"group {group} has no backup in namespace {cluster.namespace}", "see `kubectl get vs`")
    if not name:
        if not complete:
            raise CliError(f"no backup of group {group} is complete", "wait until its snapshots are ready")
        if len({one.group_uid for one in complete}) > 1:
            names = ", ".join(one.name for one in complete)
            raise CliError(
                f"there are backups of several groups that were named {group} one after the other: {names}",
                f"name one: --from {group}/BACKUP",
            )
        return complete[-1]
    chosen = next((one for one in found if one.name == name), None)
    if chosen is None:
        raise NotFoundError(f"backup {name} not found", suggestion(name, (one.name for one in found)) or None)
    if not chosen.is_complete:
        raise CliError(f"backup {name} is not complete", "wait until its snapshots are ready, or choose another")
    return chosen


def _is_created(cluster: Cluster, group: str, origin: str) -> bool:
    """Return whether an interrupted restore of the same backup has created the group. Raises CliError for another."""
    try:
        known = annotations_of(cluster.get(GROUPS, group)).get(RESTORED_FROM)
    except ApiError as error:
        if error.is_not_found:
            return False
        raise
    if known != origin:
        raise CliError(f"group {group} exists already, and was not made from backup {origin}", "name a new group")
    return True


def _refuse_other_claims(cluster: Cluster, group: str, claims: Sequence[Object]) -> None:
    """Raise CliError if brokers of the new group would use a volume that is not from the backup.

    A claim of an interrupted restore has the same origin, and no group has used it: its operator would have labelled
    it.
    """
    ours = {claim["metadata"]["name"]: annotations_of(claim)[RESTORED_FROM] for claim in claims}
    others = []
    for claim in _claims_of(cluster, group):
        name, metadata = str(claim["metadata"]["name"]), claim["metadata"]
        is_unused = not metadata.get("deletionTimestamp") and GROUP_LABEL not in (metadata.get("labels") or {})
        if not (is_unused and name in ours and ours[name] == annotations_of(claim).get(RESTORED_FROM)):
            others.append(name)
    if others:
        remedy = f"name another group, or delete them, which deletes their data: {', '.join(sorted(others))}"
        raise CliError(f"there are volumes of an earlier group {group}", remedy)


def _spec_of(snapshot: Object) -> dict[str, Any]:
    text = annotations_of(snapshot).get(MANIFEST_ANNOTATION, "")
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        name = snapshot["metadata"]["name"]
        raise CliError(f"snapshot {name} has no readable manifest of its group: {error}") from error


def claim_document(group: str, shard: int, snapshot: Object, spec: Mapping[str, Any], origin: str) -> Object:
    """Return the claim of member 1 of a shard, which is filled from a snapshot."""
    storage = spec.get("storage") or {}
    wanted = quantity_bytes(str(storage.get("size", ""))) or int(Storage().size)
    size = max(wanted, quantity_bytes(str((snapshot.get("status") or {}).get("restoreSize", ""))) or 0)
    body: dict[str, Any] = {
        "accessModes": ["ReadWriteOnce"],
        "volumeMode": "Filesystem",
        "resources": {"requests": {"storage": size_text(size)}},
        "dataSource": {
            "apiGroup": SNAPSHOTS.api_version.partition("/")[0],
            "kind": SNAPSHOTS.name,
            "name": snapshot["metadata"]["name"],
        },
    }
    if storage.get("storageClassName"):
        body["storageClassName"] = storage["storageClassName"]
    annotations = {RESTORED_FROM: origin, POINT_ANNOTATION: annotations_of(snapshot)[POINT_ANNOTATION]}
    metadata = {"name": f"data-{member_pod(group, shard, 1)}", "annotations": annotations}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": body}


def group_document(namespace: str, group: str, spec: Mapping[str, Any], backup: Backup, origin: str) -> Object:
    """Return the group that starts with the claims of a backup."""
    annotations = {RESTORE: ",".join(map(str, range(backup.shards))), RESTORED_FROM: origin}
    metadata = {"name": group, "namespace": namespace, "annotations": annotations}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": dict(spec)}


def _create_claim(cluster: Cluster, claim: Object) -> None:
    """Create a claim, unless an interrupted restore has; others were refused before. Raises ApiError."""
    try:
        cluster.create(CLAIMS, claim)
    except ApiError as error:
        if error.status != EXISTS:
            raise


def _wait_for_masters(cluster: Cluster, group: str, backup: Backup, timeout_s: float) -> None:
    def poll() -> tuple[bool | None, str]:
        document = cluster.get(GROUPS, group)
        waiting = []
        for shard in range(backup.shards):
            now = shard_of(document, shard)
            if not now.master:
                waiting.append(f"shard {shard}: {'; '.join(now.blocked_by) or 'it has no master yet'}")
        return (None if waiting else True), "; ".join(waiting)

    remedy = f"the restore continues; see {status_command(cluster.namespace, group)}"
    _wait(poll, timeout_s, f"the restore of group {group}", remedy)


# -- common ------------------------------------------------------------------------------------------------------------


def list_backups(cluster: Cluster, group: str) -> list[Backup]:
    """Return the backups of all groups that had this name, the oldest first. Raises CliError."""
    return backups_of(_snapshots_or_error(cluster, group))


def _snapshots(cluster: Cluster, group: str) -> list[Object]:
    return cluster.list(SNAPSHOTS, labels=f"{GROUP_LABEL}={group}")


def _snapshots_or_error(cluster: Cluster, group: str) -> list[Object]:
    try:
        return _snapshots(cluster, group)
    except ApiError as error:
        if error.is_not_found or error.is_unserved:
            text = "the cluster has no VolumeSnapshots"
            raise CliError(text, "install their CRDs and a snapshot controller") from error
        raise cli_error_of(error) from error


def _wait(poll: Callable[[], tuple[T | None, str]], timeout_s: float, what: str, remedy: str) -> T:
    """Return the first result of ``poll`` that is not None; its text is shown when it changes. Raises CliError."""
    ends_s, shown = time.monotonic() + timeout_s, ""
    while True:
        try:
            found, text = poll()
        except ApiError as error:
            found, text = None, error.message
        if found is not None:
            return found
        if time.monotonic() >= ends_s:
            raise CliError(f"{what} timed out after {timeout_s:g} s: {text}", remedy)
        if text != shown:
            click.echo(f"waiting: {text}", err=True)
            shown = text
        time.sleep(POLL_S)


def _has_condition(document: Object, kind: str) -> bool:
    return any(one.get("type") == kind for one in (document.get("status") or {}).get("conditions") or [])


def _condition_of(document: Object, kind: str) -> str:
    conditions = (document.get("status") or {}).get("conditions") or []
    return next((str(one.get("message", "")) for one in conditions if one.get("type") == kind), "")


def _points(backup: Backup) -> list[ShardPointDocument]:
    return [
        ShardPointDocument(
            shard=shard, snapshot=name, member=point.member, epoch=point.last_epoch, flushed=point.flushed,
            marked_at=point.marked_at,
        )
        for shard, name, point in backup.points
    ]  # fmt: skip


def _show(
    options: OrderOptions, cluster: Cluster, group: str, backup: Backup, message: str, *, is_done: bool = True
) -> None:
    document = BackupDocument(
        context=cluster.context, namespace=cluster.namespace, group=group, backup=backup.name, is_done=is_done,
        points=_points(backup), message=message,
    )  # fmt: skip
    show(options.form, document, lambda: [message, *_lines(document.points)])


def _lines(points: Sequence[ShardPointDocument]) -> list[str]:
    return [
        f"  shard {one.shard}: everything up to offset {one.flushed} of epoch {one.epoch}, at {one.marked_at}"
        for one in points
    ]
