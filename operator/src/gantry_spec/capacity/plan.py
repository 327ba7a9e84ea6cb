"""The pods of a group, placed on the nodes of a cluster one after another: whether all fit, and what binds.

A pod that runs stays where it is, if it has the resources of the manifest. Any other pod of the group is placed anew,
as its StatefulSet would create it. Among the nodes where a pod may run, it gets the one that keeps the largest share of
CPU and memory free, which is what the scheduler prefers by default. It is not moved afterwards, and a pod that finds no
node takes none from the others. So the result may differ from what the scheduler does, but only where room is scarce.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, final

from gantry_spec.capacity.needs import Workload
from gantry_spec.capacity.nodes import (
    Candidate,
    Nodes,
    VolumeNeed,
    best_node,
    copies,
    is_reserving,
    shortage_text,
)
from gantry_spec.capacity.resources import need_text, requests_of
from gantry_spec.cluster_objects import BROKER, COMPONENT_LABEL, GROUP_LABEL, member_of

Object = Mapping[str, Any]

NAMED_MAX: Final = 6
"""The most pods that a reason names."""

ANTI_AFFINITY: Final = "one broker of a shard"
"""What limits a node that has room for more brokers than there are shards."""


@final
class Volumes(NamedTuple):
    """What is known about the volumes of a group."""

    affinities: Mapping[str, Sequence[Object]] = {}
    """The required node affinities of the volumes that exist, by the names of their claims."""

    default_class: str = ""
    """The default storage class; empty if there is none, or it is unknown."""

    late_classes: frozenset[str] = frozenset()
    """The storage classes whose volumes are created on the node of their pod."""


@final
class PlannedPod(NamedTuple):
    """A pod of the group and its node."""

    pod: str
    component: str
    node: str = ""
    """The node; empty if the pod fits on none."""

    is_running: bool = False
    """Whether the pod has this node already."""

    problem: str = ""
    """Why the pod fits on no node."""


@final
class NodeRoom(NamedTuple):
    """The brokers of a group that a node has, and could take in addition."""

    node: str
    running: int = 0
    more: int = 0
    limit: str = ""
    """What limits ``more``: a resource, a rule that excludes the node, or that brokers of a shard never share one."""


@final
class Plan(NamedTuple):
    """The result: where each pod would run, and why not all pods fit."""

    pods: Sequence[PlannedPod]
    rooms: Sequence[NodeRoom]
    reasons: Sequence[str]
    """Why not all pods fit; empty if they do."""

    @property
    def fits(self) -> bool:
        return not self.reasons


def make_plan(
    group: str, workloads: Sequence[Workload], nodes: Nodes, pods: Iterable[Object], volumes: Volumes | None = None
) -> Plan:
    """Place the pods of a group. ``pods`` are those of its namespace or more; ``nodes`` is changed."""
    known = Volumes() if volumes is None else volumes
    present = [one for one in pods if is_reserving(one) and _labels(one).get(GROUP_LABEL) == group]
    planned, waiting = list[PlannedPod](), list[tuple[Workload, Candidate]]()
    for workload in workloads:
        own = _present_pods(workload, present)
        for name, pod in zip(workload.pods, own, strict=True):
            if pod is not None and requests_of(pod) == workload.requests:
                node = str(pod["spec"]["nodeName"])
                planned.append(PlannedPod(pod["metadata"]["name"], workload.component, node, is_running=True))
                continue
            if pod is not None:
                nodes.remove((workload.namespace, str(pod["metadata"]["name"])))
            waiting.append((workload, candidate_of(workload, name, known)))
    rooms = _rooms(group, workloads, nodes, planned, known)
    reasons = _too_few_nodes(group, workloads, nodes, rooms, known)
    problems: dict[str, list[str]] = {}
    for workload, candidate in waiting:
        verdicts = nodes.verdicts(candidate)
        chosen = best_node(verdicts, nodes, candidate.requests)
        problem = "" if chosen is not None else shortage_text(nodes, candidate, verdicts)
        if chosen is None:
            text = f"needs {need_text(candidate.requests)}; {problem}"
            problems.setdefault(text, []).append(candidate.name)
        else:
            nodes.place(candidate, chosen)
        planned.append(PlannedPod(candidate.name, workload.component, chosen or "", problem=problem))
    reasons += [f"{pods_text(names)} {text}" for text, names in problems.items()]
    return Plan(planned, rooms, reasons)


def candidate_of(workload: Workload, pod: str, volumes: Volumes) -> Candidate:
    """Return a pod of a workload that is to be placed."""
    affinities, new = list[Object](), list[VolumeNeed]()
    for claim in workload.claims:
        bound = volumes.affinities.get(claim.name(pod))
        storage_class = claim.storage_class or volumes.default_class
        if bound is not None:
            affinities += bound
        elif storage_class in volumes.late_classes:
            new.append(VolumeNeed(storage_class, claim.size_bytes))
    labels = workload.labels_of(pod)
    return Candidate(pod, workload.namespace, labels, workload.spec, workload.requests, affinities, new)


def pods_text(names: Sequence[str]) -> str:
    """Return pods as the subject of a sentence in the singular: `pod a`, `each of the pods a, b`."""
    if len(names) == 1:
        return f"pod {names[0]}"
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return f"each of the pods {', '.join(names[:NAMED_MAX])}{more}"


# -- brokers -----------------------------------------------------------------------------------------------------------


def _rooms(
    group: str, workloads: Sequence[Workload], nodes: Nodes, running: Sequence[PlannedPod], volumes: Volumes
) -> list[NodeRoom]:
    """Return for every node how many brokers it has, and could take before any pod is placed."""
    brokers = [one for one in workloads if one.component == BROKER]
    if not brokers:
        return [NodeRoom(name) for name in sorted(nodes.documents)]
    shards = {place.shard for one in brokers for pod in one.pods if (place := member_of(group, pod)) is not None}
    sample = candidate_of(brokers[0], brokers[0].pods[0], volumes._replace(affinities={}))
    found = []
    for name in sorted(nodes.documents):
        own = [one.pod for one in running if one.component == BROKER and one.node == name]
        taken = {place.shard for pod in own if (place := member_of(group, pod)) is not None}
        obstacle = nodes.static_obstacle(sample, name)
        count, limit = copies(sample.requests, nodes.free(name))
        if obstacle:
            count, limit = 0, obstacle
        elif count > len(shards) - len(taken):
            count, limit = len(shards) - len(taken), ANTI_AFFINITY
        found.append(NodeRoom(name, len(own), count, limit))
    return found


def _too_few_nodes(
    group: str, workloads: Sequence[Workload], nodes: Nodes, rooms: Sequence[NodeRoom], volumes: Volumes
) -> list[str]:
    """Return that a shard has more brokers than there are nodes for them, if so."""
    members: dict[int, list[str]] = {}
    for workload in workloads:
        for pod in workload.pods if workload.component == BROKER else ():
            if (place := member_of(group, pod)) is not None:
                members.setdefault(place.shard, []).append(pod)
    most = max((len(pods) for pods in members.values()), default=0)
    able = [one.node for one in rooms if one.running or one.more or one.limit == ANTI_AFFINITY]
    if most <= max(1, len(able)):
        return []
    brokers = next(one for one in workloads if one.component == BROKER)
    have = f"{len(able)} of {len(nodes.documents)} nodes" + (f" ({', '.join(able[:NAMED_MAX])})" if able else "")
    return [
        f"the {most} brokers of a shard need {most} nodes, each with {need_text(brokers.requests)}: {have} can take one"
    ]


def _present_pods(workload: Workload, present: Sequence[Object]) -> list[Object | None]:
    """Return the present pod for each pod of a workload; those of a Deployment in any order."""
    if workload.is_stateful:
        by_name = {str(one["metadata"]["name"]): one for one in present if _is_near(workload, one)}
        return [by_name.get(name) for name in workload.pods]
    own = [one for one in present if _is_near(workload, one) and _is_like(workload, one)]
    found: list[Object | None] = [None] * len(workload.pods)
    return [*own, *found][: len(workload.pods)]


def _is_near(workload: Workload, pod: Object) -> bool:
    return bool(pod["metadata"].get("namespace", "") == workload.namespace)


def _is_like(workload: Workload, pod: Object) -> bool:
    return _labels(pod).get(COMPONENT_LABEL) == workload.component and not pod["metadata"].get("deletionTimestamp")


def _labels(pod: Object) -> Mapping[str, str]:
    found: Mapping[str, str] = pod["metadata"].get("labels") or {}
    return found
