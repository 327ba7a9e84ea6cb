"""The life cycle of groups: conditions, restarts, deletion and creation under an old name."""

from __future__ import annotations

import time
from typing import Final

from gantry_cluster.api import Object
from gantry_cluster.commands import wait_until
from gantry_cluster.errors import ApiRefused
from gantry_cluster.group_faults import NOTICED_SECONDS_MAX
from gantry_cluster.groups import Group

NOT_FOUND: Final = 404
OWNED_KINDS: Final = (
    ("statefulsets", "apis/apps/v1"),
    ("deployments", "apis/apps/v1"),
    ("services", "api/v1"),
    ("configmaps", "api/v1"),
    ("secrets", "api/v1"),
    ("serviceaccounts", "api/v1"),
    ("poddisruptionbudgets", "apis/policy/v1"),
    ("roles", "apis/rbac.authorization.k8s.io/v1"),
    ("leases", "apis/coordination.k8s.io/v1"),
)
"""The kinds of objects of a group that `objects_by_owner` lists, without RoleBindings and optional objects."""


def condition_of(group: Group, kind: str) -> tuple[str, str]:
    """Return the status and the reason of a group's condition."""
    conditions = group.read().get("status", {}).get("conditions", [])
    return next(((one["status"], one["reason"]) for one in conditions if one["type"] == kind), ("", ""))


def wait_for_condition(
    group: Group, kind: str, status: str, reason: str, seconds_max: float = NOTICED_SECONDS_MAX
) -> float:
    """Wait until a condition has this status and reason; return how long that took, in seconds."""
    started = time.monotonic()
    wait_until(f"{kind}={status} for {reason}", lambda: condition_of(group, kind) == (status, reason), seconds_max)
    return time.monotonic() - started


def pod_runs(group: Group) -> dict[str, tuple[str, int]]:
    """Return the uid of every pod, and how often its containers were restarted."""
    found = {}
    for name in (*group.brokers(), *group.name_servers()):
        pod = group.namespace.read_pod(name)
        assert pod is not None, f"{name} was deleted meanwhile"
        states = (*pod["status"].get("containerStatuses", ()), *pod["status"].get("initContainerStatuses", ()))
        found[name] = (str(pod["metadata"]["uid"]), sum(state["restartCount"] for state in states))
    return found


def claim_ids(group: Group) -> dict[str, str]:
    """Return the uid of every claim."""
    return {name: str(claim["metadata"]["uid"]) for name, claim in group.claims().items()}


def has_lease(group: Group, shard: int = 0) -> bool:
    """Return whether the Lease of a shard exists."""
    try:
        group.lease_record(shard)
    except ApiRefused as refusal:
        if refusal.status != NOT_FOUND:
            raise
        return False
    return True


ALLOW_DELETION: Final = "gantry.dev/allow-deletion"
"""The annotation without which the API server refuses to delete what a group's messages are in."""


def delete(group: Group) -> None:
    """Delete a group as `kubectl delete` does; the garbage collector deletes its objects later.

    If its volumes are deleted, too, the annotation that allows it is set first.
    """
    if group.read()["spec"]["storage"].get("retain") == "Never":
        group.annotate(ALLOW_DELETION, "true")
    group.namespace.cluster.kubectl("delete", "brokergroup", group.name, f"--namespace={group.namespace.name}")


def delete_completely(group: Group) -> None:
    """Delete a group of one shard, and wait until its pods and its Lease are gone; its volumes still hold its epoch."""
    started = time.monotonic()
    delete(group)
    wait_until("the end of its pods", lambda: not group.brokers() and not group.name_servers(), NOTICED_SECONDS_MAX)
    wait_until("the end of its Lease", lambda: not has_lease(group), NOTICED_SECONDS_MAX)
    print(f"{group.namespace.name}: pods and Lease gone after {time.monotonic() - started:.1f} s")


def objects_by_owner(group: Group) -> dict[str, set[str]]:
    """Return the objects of the kinds `OWNED_KINDS` with this group's label, by the uid of the group that owns them."""
    found: dict[str, set[str]] = {}
    label = f"gantry.dev%2Fgroup%3D{group.name}"
    for kind, version in OWNED_KINDS:
        things: list[Object] = group.namespace.cluster.api.items(
            f"{group.namespace.path(kind, version)}?labelSelector={label}"
        )
        for thing in things:
            for owner in thing["metadata"].get("ownerReferences", ()):
                found.setdefault(str(owner["uid"]), set()).add(f"{kind}/{thing['metadata']['name']}")
    return found
