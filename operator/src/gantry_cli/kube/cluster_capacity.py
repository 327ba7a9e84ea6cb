"""Reads from a cluster what an estimate of its capacity needs: nodes, pods, volumes, storage and runtime classes.

All of it is read once, with the rights of the user. What the user may not read is named, and the estimate is then
unknown where it depends on it. Pods of all namespaces count, since they share the nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, final

from gantry_cli.kube.api_errors import ApiError, cli_error_of
from gantry_cli.kube.capacity_documents import StorageCapacity, StorageClassCapacity
from gantry_cli.kube.cluster import Cluster
from gantry_cli.kube.naming import (
    CLAIMS,
    NODES,
    PODS,
    RUNTIME_CLASSES,
    STORAGE_CAPACITIES,
    STORAGE_CLASSES,
    VOLUMES,
)
from gantry_spec.capacity.needs import Workload
from gantry_spec.capacity.nodes import WAIT_FOR_POD
from gantry_spec.capacity.plan import Volumes
from gantry_spec.capacity.resources import STORAGE, amounts_of, short_text
from gantry_spec.cluster_objects import Kind

Object = dict[str, Any]

DEFAULT_ANNOTATION: Final = "storageclass.kubernetes.io/is-default-class"


@final
class ClusterObjects(NamedTuple):
    """The objects of a cluster that decide about room; None for a kind that could not be read."""

    nodes: list[Object] | None
    pods: list[Object] | None
    """The pods of all namespaces."""

    own_pods: list[Object]
    """The pods of the group's namespace."""

    claims: list[Object]
    """The claims of the group's namespace."""

    volumes: list[Object]
    """The persistent volumes, if a claim has one."""

    storage_classes: list[Object] | None
    storage_capacities: list[Object]
    runtime_classes: list[Object] | None
    """The runtime classes, if the group uses one."""

    left_out: list[str]
    """What could not be read, and why."""

    @property
    def default_class(self) -> str:
        """The name of the default storage class, the newest if there are several; empty without one."""
        marked = [one for one in self.storage_classes or [] if _annotations(one).get(DEFAULT_ANNOTATION) == "true"]
        newest = max(marked, key=lambda one: str(one["metadata"].get("creationTimestamp", "")), default=None)
        return "" if newest is None else str(newest["metadata"]["name"])


def read_cluster(cluster: Cluster, namespace: str, *, has_runtime_class: bool = False) -> ClusterObjects:
    """Read the objects; runtime classes only for a group that uses one. Raises CliError without an answer."""
    left_out: list[str] = []

    def read(kind: Kind, place: str) -> list[Object] | None:
        try:
            return cluster.list(kind, place)
        except ApiError as error:
            if error.is_unserved:
                return []
            if not error.is_forbidden:
                raise cli_error_of(error) from error
            left_out.append(error.short)
            return None

    pods = read(PODS, "")
    own_pods = [one for one in pods or [] if one["metadata"].get("namespace") == namespace]
    if pods is None:
        own_pods = read(PODS, namespace) or []
    claims = read(CLAIMS, namespace) or []
    is_bound = any((one.get("spec") or {}).get("volumeName") for one in claims)
    return ClusterObjects(
        nodes=read(NODES, ""),
        pods=pods,
        own_pods=own_pods,
        claims=claims,
        volumes=(read(VOLUMES, "") or []) if is_bound else [],
        storage_classes=read(STORAGE_CLASSES, ""),
        storage_capacities=read(STORAGE_CAPACITIES, "") or [],
        runtime_classes=read(RUNTIME_CLASSES, "") if has_runtime_class else [],
        left_out=left_out,
    )


def known_runtime_classes(objects: ClusterObjects) -> dict[str, Object]:
    """Return the runtime classes by name; where they cannot be read, with the overhead of pods that have one."""
    if objects.runtime_classes is not None:
        return {str(one["metadata"]["name"]): one for one in objects.runtime_classes}
    specs = (one.get("spec") or {} for one in objects.pods or objects.own_pods)
    return {
        str(spec["runtimeClassName"]): {"overhead": {"podFixed": spec.get("overhead") or {}}}
        for spec in specs
        if spec.get("runtimeClassName")
    }


def volumes_of(objects: ClusterObjects) -> Volumes:
    """Return what is known about the volumes of the group."""
    affinities = {str(one["metadata"]["name"]): _affinity_of(one) for one in objects.volumes}
    bound = {
        str(claim["metadata"]["name"]): affinities.get(str(claim["spec"]["volumeName"]), [])
        for claim in objects.claims
        if (claim.get("spec") or {}).get("volumeName")
    }
    late = (one for one in objects.storage_classes or [] if one.get("volumeBindingMode") == WAIT_FOR_POD)
    return Volumes(bound, objects.default_class, frozenset(str(one["metadata"]["name"]) for one in late))


def storage_of(workloads: Sequence[Workload], objects: ClusterObjects) -> list[StorageClassCapacity]:
    """Return the storage classes that the volumes of the group use, by their names; none if they cannot be read."""
    if objects.storage_classes is None:
        return []
    known = {str(one["metadata"]["name"]): one for one in objects.storage_classes}
    used = {claim.storage_class or objects.default_class for one in workloads for claim in one.claims} - {""}
    return [_storage_class(name, known.get(name), objects) for name in sorted(used)]


def storage_reasons(workloads: Sequence[Workload], objects: ClusterObjects) -> list[str]:
    """Return why volumes of the group cannot be created, or cannot grow to the size of the manifest."""
    if objects.storage_classes is None:
        return []
    known = {str(one["metadata"]["name"]): one for one in objects.storage_classes}
    claims = {str(one["metadata"]["name"]): one for one in objects.claims}
    found: dict[str, None] = {}
    for workload in workloads:
        for claim in (claim for pod in workload.pods for claim in _claims_of(workload, pod)):
            present = claims.get(claim.name)
            if present is None and not (claim.storage_class or objects.default_class):
                found["the cluster has no default storage class, and the manifest names none"] = None
            elif present is None and claim.storage_class and claim.storage_class not in known:
                found[f"storage class {claim.storage_class} not found: its volumes must be created by hand"] = None
            elif present is not None:
                found |= dict.fromkeys(_growth_reasons(claim.size_bytes, present, known))
    return list(found)


class _NamedClaim(NamedTuple):
    name: str
    storage_class: str
    size_bytes: int


def _claims_of(workload: Workload, pod: str) -> Iterable[_NamedClaim]:
    return (_NamedClaim(one.name(pod), one.storage_class, one.size_bytes) for one in workload.claims)


def _growth_reasons(size_bytes: int, claim: Object, classes: Mapping[str, Object]) -> Iterable[str]:
    spec = claim.get("spec") or {}
    name, size = str(spec.get("storageClassName") or ""), _storage(spec)
    if size_bytes > size and not (classes.get(name) or {}).get("allowVolumeExpansion"):
        yield (
            f"volumes of {short_text(STORAGE, size)} cannot grow to {short_text(STORAGE, size_bytes)}:"
            f" storage class {name or '(none)'} does not allow expansion"
        )


def _storage(spec: Object) -> int:
    return amounts_of((spec.get("resources") or {}).get("requests")).get(STORAGE, 0)


def _storage_class(name: str, document: Object | None, objects: ClusterObjects) -> StorageClassCapacity:
    found = document or {}
    capacities = [one for one in objects.storage_capacities if one.get("storageClassName") == name]
    return StorageClassCapacity(
        storage_class=name,
        exists=document is not None,
        is_default=name == objects.default_class,
        provisioner=str(found.get("provisioner", "")),
        binding_mode=str(found.get("volumeBindingMode") or ("Immediate" if document is not None else "")),
        allows_expansion=bool(found.get("allowVolumeExpansion")),
        capacities=[
            StorageCapacity(
                topology=dict((one.get("nodeTopology") or {}).get("matchLabels") or {}),
                capacity=str(one.get("capacity", "")),
                maximum_volume_size=str(one.get("maximumVolumeSize", "")),
            )
            for one in capacities
        ],
    )


def _affinity_of(volume: Object) -> list[Object]:
    required = ((volume.get("spec") or {}).get("nodeAffinity") or {}).get("required")
    return [required] if required else []


def _annotations(document: Object) -> Mapping[str, str]:
    found: Mapping[str, str] = document["metadata"].get("annotations") or {}
    return found
