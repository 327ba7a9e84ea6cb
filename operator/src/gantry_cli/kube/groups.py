"""Finding the group that was meant: by its name, or the only one that there is; and what else there is if it is not."""

from __future__ import annotations

from gantry_cli.errors import Absent, CliError, Mistyped
from gantry_cli.kube.cluster import Cluster, Object, Target, connect
from gantry_cli.kube.faults import Refusal, line_of, near, unserved
from gantry_cli.kube.kinds import GROUPS


def open_group(target: Target, name: str | None) -> tuple[Cluster, Object]:
    """The cluster, and the group as it is now. Raises CliError."""
    cluster = connect(target)
    return cluster, find_group(cluster, name)


def find_group(cluster: Cluster, name: str | None) -> Object:
    """Raises Absent with what is there, and CliError for anything else."""
    try:
        return _the_only(cluster) if name is None else cluster.get(GROUPS, name)
    except Refusal as refusal:
        if refusal.is_absent and name is not None:
            raise _absent(cluster, name) from refusal
        raise line_of(refusal) from refusal


def group_again(cluster: Cluster, name: str) -> Object:
    """The same, some time later. Raises ``Refusal``, and Absent when it has been deleted meanwhile."""
    try:
        return cluster.get(GROUPS, name)
    except Refusal as refusal:
        if refusal.is_absent:
            raise Absent(f"group {cluster.namespace}/{name} has been deleted") from refusal
        raise


def _the_only(cluster: Cluster) -> Object:
    found = cluster.list(GROUPS)
    if len(found) == 1:
        return found[0]
    names = ", ".join(sorted(one["metadata"]["name"] for one in found))
    if found:
        raise Mistyped(f"which group? in namespace {cluster.namespace} there are {names}")
    raise Absent(f"there is no group in namespace {cluster.namespace}", _elsewhere(cluster, None) or None)


def _absent(cluster: Cluster, name: str) -> CliError:
    """What might have been meant: a name that is written like it, or the same one in another namespace."""
    problem = f"there is no group {name} in namespace {cluster.namespace}"
    try:
        hint = near(name, (one["metadata"]["name"] for one in cluster.list(GROUPS)))
    except Refusal as refusal:
        return unserved() if refusal.is_unserved else Absent(problem)
    elsewhere = _elsewhere(cluster, name)
    return Absent(problem, elsewhere or hint or None)


def _elsewhere(cluster: Cluster, name: str | None) -> str:
    """Where there is one of this name, or any, if one may look."""
    try:
        found = cluster.list(GROUPS, "")
    except Refusal:
        return ""
    places = sorted({one["metadata"]["namespace"] for one in found if name in (None, one["metadata"]["name"])})
    if not places:
        return ""
    what = "groups are" if name is None else "it is"
    return f"{what} in namespace {', '.join(places[:10])}: name it with --namespace"
