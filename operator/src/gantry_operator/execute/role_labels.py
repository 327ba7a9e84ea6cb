"""The label of a pod's role: whom the disruption budgets select, and by whom the shard's Service is led.

    the Lease names somebody else        the old master's label goes first
    the one it names is the master       only then it gets the label
    a slave that follows                 is labelled a slave

A master that is merely silent keeps its label: nobody else has its role. A pod without a role has no label. Changes
are planned pure, and written by uid.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gantry_operator.api import Kubernetes, Object, labels_of, place_of, uid_of
from gantry_operator.cache import Cache
from gantry_operator.errors import ApiError
from gantry_operator.objects.names import MASTER_ROLE, ROLE_LABEL, SLAVE_ROLE
from gantry_operator.observe.group_objects import GroupObjects
from gantry_spec.observed import ObservedShard, Role

log = logging.getLogger(__name__)


class Relabel(NamedTuple):
    """One change."""

    member: int
    role: str | None
    """None for no label."""


def relabels(shard: ObservedShard, now: Mapping[int, str]) -> tuple[list[Relabel], list[Relabel]]:
    """What is to be taken away, and what is to be given after all of that. ``now``: labels by member; '' for none."""
    record = None if shard.lease is None else shard.lease.record
    if record is None or record.newest is None or not record.is_settled:
        return [], []
    term = record.newest
    reports = {member.number: member.report for member in shard.members}
    taken, given = [], []
    for number, label in sorted(now.items()):
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
            taken.append(Relabel(number, wanted or None))
        else:
            given.append(Relabel(number, wanted))
    return taken, given


async def relabel(api: Kubernetes, cache: Cache, shard: ObservedShard, pods: Mapping[int, Object]) -> bool:
    """Do it; whether anything was, and all that there was. What could not be taken away leaves the new master without
    its label until the next time.
    """
    now = {number: labels_of(pod).get(ROLE_LABEL, "") for number, pod in pods.items()}
    taken, given = relabels(shard, now)
    is_taken = await _write(api, cache, taken, pods)
    is_given = await _write(api, cache, [one for one in given if is_taken or one.role != MASTER_ROLE], pods)
    return bool(taken or given) and is_taken and is_given


async def relabel_all(api: Kubernetes, objects: GroupObjects, shards: Iterable[ObservedShard]) -> bool:
    """The same for every shard, and for the pods that are there."""
    is_changed = False
    for shard in shards:
        pods = {one.number: objects.pod(shard.number, one.number) for one in shard.members}
        there = {number: pod for number, pod in pods.items() if pod is not None}
        is_changed = await relabel(api, objects.cache, shard, there) or is_changed
    return is_changed


async def _write(api: Kubernetes, cache: Cache, changes: Iterable[Relabel], pods: Mapping[int, Object]) -> bool:
    is_done = True
    for member, role in changes:
        pod = pods[member]
        try:
            cache.put(await api.patch(place_of(pod), {"metadata": {"labels": {ROLE_LABEL: role}}}, uid=uid_of(pod)))
        except ApiError as error:
            is_done = False
            log.warning("failed to update role label", extra={"member": member, "role": role, "reason": str(error)})
    return is_done
