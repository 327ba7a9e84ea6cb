"""What happens to groups that people look after: orders that stand, and groups that go and come back by their names."""

from __future__ import annotations

import time
from typing import Final

from gantry_cluster.api import Object
from gantry_cluster.commands import wait_until
from gantry_cluster.errors import ApiRefused
from gantry_cluster.group_faults import NOTICED_SECONDS_MAX
from gantry_cluster.groups import Group

NOT_FOUND: Final = 404
OWNED: Final = (
    ("statefulsets", "apis/apps/v1"),
    ("services", "api/v1"),
    ("configmaps", "api/v1"),
    ("secrets", "api/v1"),
    ("serviceaccounts", "api/v1"),
    ("poddisruptionbudgets", "apis/policy/v1"),
    ("roles", "apis/rbac.authorization.k8s.io/v1"),
    ("leases", "apis/coordination.k8s.io/v1"),
)
"""Kinds of what the operator makes for a group."""


def said(group: Group, kind: str) -> tuple[str, str]:
    """What a condition of a group says, and why."""
    conditions = group.read().get("status", {}).get("conditions", [])
    return next(((one["status"], one["reason"]) for one in conditions if one["type"] == kind), ("", ""))


def wait_said(group: Group, kind: str, status: str, reason: str, seconds_max: float = NOTICED_SECONDS_MAX) -> float:
    """Wait until a condition says this; how long that took."""
    started = time.monotonic()
    wait_until(f"{kind}={status} for {reason}", lambda: said(group, kind) == (status, reason), seconds_max)
    return time.monotonic() - started


def runs(group: Group) -> dict[str, tuple[str, int]]:
    """Which pods these are, and how often containers in them were started again."""
    found = {}
    for name in (*group.brokers(), *group.name_servers()):
        pod = group.space.read_pod(name)
        assert pod is not None, f"{name} is on its way out"
        states = (*pod["status"].get("containerStatuses", ()), *pod["status"].get("initContainerStatuses", ()))
        found[name] = (str(pod["metadata"]["uid"]), sum(state["restartCount"] for state in states))
    return found


def claim_ids(group: Group) -> dict[str, str]:
    """Which claims these are."""
    return {name: str(claim["metadata"]["uid"]) for name, claim in group.claims().items()}


def has_lease(group: Group, shard: int = 0) -> bool:
    """Whether a shard has one."""
    try:
        group.record(shard)
    except ApiRefused as refusal:
        if refusal.status != NOT_FOUND:
            raise
        return False
    return True


def delete(group: Group) -> None:
    """As `kubectl delete` does; what the group owned goes in Kubernetes' own time."""
    group.space.cluster.kubectl("delete", "brokergroup", group.name, f"--namespace={group.space.name}")


def delete_to_the_end(group: Group) -> None:
    """The same, until nothing of it runs and nobody remembers its epoch but its volumes."""
    started = time.monotonic()
    delete(group)
    wait_until("the end of its pods", lambda: not group.brokers() and not group.name_servers(), NOTICED_SECONDS_MAX)
    wait_until("the end of its Lease", lambda: not has_lease(group), NOTICED_SECONDS_MAX)
    print(f"{group.space.name}: deleted with all but its volumes in {time.monotonic() - started:.1f} s")


def owners(group: Group) -> dict[str, set[str]]:
    """By the uid of a group, the things of this group's name that it owns."""
    found: dict[str, set[str]] = {}
    label = f"gantry.dev%2Fgroup%3D{group.name}"
    for kind, version in OWNED:
        things: list[Object] = group.space.cluster.api.items(f"{group.space.path(kind, version)}?labelSelector={label}")
        for thing in things:
            for owner in thing["metadata"].get("ownerReferences", ()):
                found.setdefault(str(owner["uid"]), set()).add(f"{kind}/{thing['metadata']['name']}")
    return found
