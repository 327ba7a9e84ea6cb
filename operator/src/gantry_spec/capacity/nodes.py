"""The nodes of a cluster with their present pods: why a pod does not fit on a node, and which node is nearest.

A pod that has a node reserves its requests there until it has ended; one that is being deleted still does. A node has
room if, for every resource that the pod requests, the request is at most what is allocatable less what is reserved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, final

from gantry_spec.capacity.constraints import PlacedPod, PodRules, node_obstacle, selects
from gantry_spec.capacity.resources import (
    CPU,
    MEMORY,
    Amounts,
    added,
    amounts_of,
    need_text,
    requests_of,
    short_text,
    sorted_names,
)

Object = Mapping[str, Any]
PodKey = tuple[str, str]
"""The namespace and the name of a pod."""

ENDED: Final = ("Succeeded", "Failed")
"""The phases of a pod that reserves nothing any more."""

WAIT_FOR_POD: Final = "WaitForFirstConsumer"
"""The binding mode of a storage class whose volumes are created where the pod runs."""


@final
class VolumeNeed(NamedTuple):
    """A volume that is still to be created for a pod."""

    storage_class: str
    size_bytes: int


@final
class Reservation(NamedTuple):
    """What a pod reserves on its node, and what the rules among pods need to know about it."""

    pod: PlacedPod
    requests: Amounts


@final
class Candidate(NamedTuple):
    """A pod that is to be placed."""

    name: str
    namespace: str
    labels: Mapping[str, str]
    spec: Object
    requests: Amounts
    volume_affinities: Sequence[Object] = ()
    """The required node affinities of its volumes that exist."""

    new_volumes: Sequence[VolumeNeed] = ()

    @property
    def key(self) -> PodKey:
        return self.namespace, self.name


@final
class NodeVerdict(NamedTuple):
    """Whether a pod could run on a node, by this estimate."""

    node: str
    obstacle: str = ""
    """The rule that excludes the node; empty if none does."""

    missing: Mapping[str, int] = MappingProxyType({})
    """How much of each resource is missing."""

    @property
    def is_possible(self) -> bool:
        return not self.obstacle and not self.missing


@final
class Nodes:
    """The nodes and their pods. ``place`` and ``remove`` change it; it is owned by one calculation."""

    def __init__(
        self, nodes: Iterable[Object], reserved: Iterable[Reservation], *, storage_capacities: Iterable[Object] = ()
    ) -> None:
        """``nodes`` and ``storage_capacities`` are objects of the API."""
        self.documents: Final = {str(one["metadata"]["name"]): one for one in nodes}
        self.allocatable: Final = {name: _allocatable(one) for name, one in self.documents.items()}
        self.placed: Final[dict[PodKey, PlacedPod]] = {}
        self._reserved: Final[dict[str, Amounts]] = {name: {} for name in self.documents}
        self._requests: Final[dict[PodKey, Amounts]] = {}
        self._storage: Final = list(storage_capacities)
        for one in reserved:
            self._add(one.pod, one.requests)

    def __repr__(self) -> str:
        return f"<Nodes nodes={len(self.documents)} pods={len(self.placed)}>"

    # -- changes -------------------------------------------------------------------------------------------------------

    def place(self, candidate: Candidate, node: str) -> None:
        """Place a pod on a node."""
        self._add(PlacedPod(candidate.name, candidate.namespace, candidate.labels, node, candidate.spec),
                  candidate.requests)  # fmt: skip

    def remove(self, key: PodKey) -> None:
        """Remove a pod, and free what it reserves; one that has no node changes nothing."""
        pod = self.placed.pop(key, None)
        if pod is not None and pod.node in self._reserved:
            before, freed = self._reserved[pod.node], self._requests.pop(key)
            self._reserved[pod.node] = {name: amount - freed.get(name, 0) for name, amount in before.items()}

    def _add(self, pod: PlacedPod, requests: Amounts) -> None:
        self.placed[pod.namespace, pod.name] = pod
        if pod.node in self._reserved:
            self._requests[pod.namespace, pod.name] = requests
            self._reserved[pod.node] = added(self._reserved[pod.node], requests)

    # -- reads ---------------------------------------------------------------------------------------------------------

    def reserved(self, node: str) -> Amounts:
        """Return what the pods of a node request together."""
        return dict(self._reserved[node])

    def free(self, node: str) -> Amounts:
        """Return what is allocatable on a node and not reserved; at least 0."""
        reserved = self._reserved[node]
        return {name: max(0, amount - reserved.get(name, 0)) for name, amount in self.allocatable[node].items()}

    def verdicts(self, candidate: Candidate) -> list[NodeVerdict]:
        """Return for every node whether the pod could run there, in the order of their names."""
        rules = PodRules(
            PlacedPod(candidate.name, candidate.namespace, candidate.labels, "", candidate.spec),
            self.placed.values(),
            list(self.documents.values()),
        )
        return [self._verdict(candidate, rules, name) for name in sorted(self.documents)]

    def static_obstacle(self, candidate: Candidate, node: str) -> str:
        """Return why a node excludes the pod regardless of other pods."""
        document = self.documents[node]
        found = node_obstacle(candidate.spec, document, candidate.volume_affinities)
        return found or self._storage_obstacle(candidate, document)

    def _verdict(self, candidate: Candidate, rules: PodRules, node: str) -> NodeVerdict:
        obstacle = self.static_obstacle(candidate, node) or rules.obstacle(self.documents[node])
        return NodeVerdict(node, obstacle, missing_amounts(candidate.requests, self.free(node)))

    def _storage_obstacle(self, candidate: Candidate, node: Object) -> str:
        """Return why no driver could create the pod's volumes on a node, by the capacities that drivers publish."""
        for need in candidate.new_volumes:
            published = [one for one in self._storage if one.get("storageClassName") == need.storage_class]
            near = [one for one in published if selects(one.get("nodeTopology"), node["metadata"].get("labels") or {})]
            if published and not any(_storage_bytes(one) >= need.size_bytes for one in near):
                most = max((_storage_bytes(one) for one in near), default=0)
                size, has = short_text("storage", need.size_bytes), short_text("storage", most)
                return f"storage class {need.storage_class} has {has} there for a volume, {size} are needed"
        return ""


def is_reserving(pod: Object) -> bool:
    """Return whether a pod reserves its requests on a node."""
    has_node = bool((pod.get("spec") or {}).get("nodeName"))
    return has_node and (pod.get("status") or {}).get("phase") not in ENDED


def reservation_of(pod: Object) -> Reservation | None:
    """Return what a pod reserves; None for one that has no node or has ended. It keeps little of the object."""
    if not is_reserving(pod):
        return None
    metadata, spec = pod["metadata"], pod["spec"]
    affinity = (spec.get("affinity") or {}).get("podAntiAffinity")
    placed = PlacedPod(
        name=str(metadata["name"]),
        namespace=str(metadata.get("namespace", "")),
        labels=metadata.get("labels") or {},
        node=str(spec["nodeName"]),
        spec={"affinity": {"podAntiAffinity": affinity}} if affinity else {},
        is_leaving=bool(metadata.get("deletionTimestamp")),
    )
    return Reservation(placed, requests_of(pod))


def reservations(pods: Iterable[Object]) -> list[Reservation]:
    """Return what these pods reserve."""
    found = map(reservation_of, pods)
    return [one for one in found if one is not None]


def missing_amounts(requests: Mapping[str, int], free: Mapping[str, int]) -> Amounts:
    """Return how much of each requested resource is missing."""
    return {name: short for name, amount in requests.items() if amount and (short := amount - free.get(name, 0)) > 0}


def best_node(verdicts: Iterable[NodeVerdict], nodes: Nodes, requests: Mapping[str, int]) -> str | None:
    """Return the possible node that would keep the largest share of CPU and memory free, as the scheduler prefers."""
    possible = [one.node for one in verdicts if one.is_possible]
    return min(possible, key=lambda name: (-_free_share(nodes, name, requests), name), default=None)


def _free_share(nodes: Nodes, node: str, requests: Mapping[str, int]) -> float:
    free, room = nodes.free(node), nodes.allocatable[node]
    shares = [(free.get(name, 0) - requests.get(name, 0)) / room[name] for name in (CPU, MEMORY) if room.get(name)]
    return sum(shares) / len(shares) if shares else 0.0


def copies(requests: Mapping[str, int], free: Mapping[str, int]) -> tuple[int, str]:
    """Return how many pods with these requests there is room for, and the resource that limits them."""
    counts = {name: free.get(name, 0) // amount for name, amount in requests.items() if amount}
    name = min(sorted_names(counts), key=lambda one: counts[one], default="")
    return (counts[name], name) if name else (0, "")


# -- texts -------------------------------------------------------------------------------------------------------------


def nearest(verdicts: Sequence[NodeVerdict], requests: Mapping[str, int]) -> NodeVerdict | None:
    """Return the node that is nearest to taking the pod.

    A node that no rule excludes is nearer than any other; among equals, the one that lacks the smallest share of the
    request.
    """

    def distance(one: NodeVerdict) -> tuple[bool, float, str]:
        share = max((amount / requests[name] for name, amount in one.missing.items()), default=0.0)
        return bool(one.obstacle), share, one.node

    return min(verdicts, key=distance, default=None)


def shortage_text(nodes: Nodes, candidate: Candidate, verdicts: Sequence[NodeVerdict]) -> str:
    """Return which node is nearest to taking a pod, and by how much it is too small, as a part of a sentence."""
    best = nearest(verdicts, candidate.requests)
    if best is None:
        return "the cluster has no nodes"
    if best.is_possible:
        return f"node {best.node} has room for it by this estimate"
    if best.obstacle:
        few = "the only node" if len(verdicts) == 1 else f"none of {len(verdicts)} nodes may take it; the nearest"
        lacks = f", and it lacks {need_text(best.missing)}" if best.missing else ""
        return f"{few}, {best.node}: {best.obstacle}{lacks}"
    free, room = nodes.free(best.node), nodes.allocatable[best.node]
    return f"the nearest node, {best.node}, lacks {missing_text(best.missing, free, room)}"


def missing_text(missing: Mapping[str, int], free: Mapping[str, int], room: Mapping[str, int]) -> str:
    """Return what is missing, each with what is free of what is allocatable: `memory 1Gi (3Gi of 16Gi are free)`."""
    return ", ".join(
        f"{name} {short_text(name, missing[name])}"
        f" ({short_text(name, free.get(name, 0))} of {short_text(name, room.get(name, 0))} are free)"
        for name in sorted_names(missing)
    )


def _allocatable(node: Object) -> Amounts:
    return amounts_of((node.get("status") or {}).get("allocatable"))


def _storage_bytes(capacity: Object) -> int:
    """Return the size of the largest volume that a driver could create, by what it publishes."""
    sizes = amounts_of({name: capacity[name] for name in ("maximumVolumeSize", "capacity") if capacity.get(name)})
    return sizes.get("maximumVolumeSize", sizes.get("capacity", 0))
