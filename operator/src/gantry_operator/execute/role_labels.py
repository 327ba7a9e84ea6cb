"""The role labels of pods, which disruption budgets select, and by which the operator sets the Service of a shard.

The Service selects the pod that has the label of the master; while none has it, that of the last master.

    the Lease names another member          the label of the old master is removed first
    the named member reports as the master  only then it gets the label; until then its label of a slave is removed
    a slave follows the master              it is labelled as a slave

While an election has recorded no master, nothing changes. A master that merely does not answer keeps its label, because
no other member has its role. A new pod has no label until its broker has a role; a slave keeps its label while it does
not answer or has lost its role. Changes are planned by a pure function, and written with the uid of the pod.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gantry_operator.api import Kubernetes, Object, labels_of, ref_of, uid_of
from gantry_operator.cache import Cache
from gantry_operator.errors import ApiError
from gantry_operator.objects.names import MASTER_ROLE, ROLE_LABEL, SLAVE_ROLE
from gantry_operator.observe.group_objects import GroupObjects
from gantry_spec.observed import ObservedShard, Role

log = logging.getLogger(__name__)


class RoleLabelChange(NamedTuple):
    """A change of the role label of one member's pod."""

    member: int
    role: str | None
    """The new role; None removes the label."""


def plan_label_changes(
    shard: ObservedShard, present: Mapping[int, str]
) -> tuple[list[RoleLabelChange], list[RoleLabelChange]]:
    """Return the labels to remove, and those to add afterwards. ``present`` has the labels by member."""
    record = None if shard.lease is None else shard.lease.record
    if record is None or record.newest is None or not record.is_settled:
        return [], []
    term = record.newest
    reports = {member.number: member.report for member in shard.members}
    removed, added = [], []
    for number, label in sorted(present.items()):
        report = reports.get(number)
        wanted = label
        if number == term.master:
            is_master = report is not None and (report.role, report.epoch) == (Role.MASTER, term.epoch)
            wanted = MASTER_ROLE if is_master else label if label == MASTER_ROLE else ""
        elif report is not None and (report.role, report.epoch) == (Role.SLAVE, term.epoch):
            wanted = SLAVE_ROLE
        elif label == MASTER_ROLE:
            wanted = ""
        if wanted == label:
            continue
        if label == MASTER_ROLE or not wanted:
            removed.append(RoleLabelChange(number, wanted or None))
        else:
            added.append(RoleLabelChange(number, wanted))
    return removed, added


async def relabel_shard(api: Kubernetes, cache: Cache, shard: ObservedShard, pods: Mapping[int, Object]) -> bool:
    """Change the labels of a shard's pods. Return whether at least one label has changed.

    If a label could not be removed, the new master gets no label before the next round of the loop.
    """
    present = {number: labels_of(pod).get(ROLE_LABEL, "") for number, pod in pods.items()}
    removed, added = plan_label_changes(shard, present)
    removed_count = await _write_labels(api, cache, removed, pods)
    is_removed = removed_count == len(removed)
    added = [one for one in added if is_removed or one.role != MASTER_ROLE]
    return removed_count + await _write_labels(api, cache, added, pods) > 0


async def relabel_all(api: Kubernetes, objects: GroupObjects, shards: Iterable[ObservedShard]) -> bool:
    """Change the labels of all pods of all shards. Return whether the labels of at least one shard have changed."""
    is_changed = False
    for shard in shards:
        pods = {one.number: objects.pod(shard.number, one.number) for one in shard.members}
        present = {number: pod for number, pod in pods.items() if pod is not None}
        is_changed = await relabel_shard(api, objects.cache, shard, present) or is_changed
    return is_changed


async def _write_labels(
    api: Kubernetes, cache: Cache, changes: Iterable[RoleLabelChange], pods: Mapping[int, Object]
) -> int:
    """Write the changes, and return how many were written."""
    count = 0
    for member, role in changes:
        pod = pods[member]
        try:
            cache.put(await api.patch(ref_of(pod), {"metadata": {"labels": {ROLE_LABEL: role}}}, uid=uid_of(pod)))
            count += 1
        except ApiError as error:
            log.warning(
                "failed to update role label; retrying", extra={"member": member, "role": role, "reason": str(error)}
            )
    return count
