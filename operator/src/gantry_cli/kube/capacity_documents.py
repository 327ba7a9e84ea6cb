"""The documents of `gantry explain --capacity`. Amounts are quantities of Kubernetes, as in the spec of a pod."""

from __future__ import annotations

from enum import StrEnum
from typing import final

import msgspec


class CapacityVerdict(StrEnum):
    """Whether the nodes of a cluster have room for all pods of a group."""

    FITS = "fits"
    DOES_NOT_FIT = "does not fit"
    UNKNOWN = "unknown"


@final
class PodNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """Equal pods of the group: what each of them needs."""

    component: str
    """What the pods are: `broker`, `nameserver` or `proxy`."""
    pods: int
    """How many of them there are."""
    requests: dict[str, str]
    """What the scheduler reserves for each pod, by resource."""
    limits: dict[str, str]
    """The most that each pod can use, by resource; a resource that is missing has no limit."""
    volume_size: str
    """The size of the volume of each pod; empty without a volume."""
    storage_class: str
    """The storage class of the volume; empty for the default class of the cluster, or without a volume."""
    surge: int
    """How many pods a roll adds for a time."""


@final
class CapacityTotals(msgspec.Struct, frozen=True, kw_only=True):
    """What all pods of the group need together."""

    pods: int
    requests: dict[str, str]
    """What the scheduler reserves for all pods, by resource."""
    surge: dict[str, str]
    """What a roll needs in addition for a time, by resource."""
    volumes: int
    volume_size: str
    """The size of all volumes together."""
    scheduled_backups: int
    """How many backups by the schedule are kept, each with a snapshot of one volume of each shard."""


@final
class CapacityStep(msgspec.Struct, frozen=True, kw_only=True):
    """What a larger group would need in addition."""

    change: str
    """The change: `one more shard`, or `one more slave in each shard`."""
    pods: int
    requests: dict[str, str]
    volume_size: str
    verdict: CapacityVerdict
    """Whether the larger group would fit."""


@final
class NodeCapacity(msgspec.Struct, frozen=True, kw_only=True):
    """One node: what it has, and how many brokers of the group it can take."""

    node: str
    allocatable: dict[str, str]
    """What pods may request on the node, by resource."""
    requested: dict[str, str] | None
    """What its present pods request; null if they could not be read."""
    free: dict[str, str] | None
    """What is left for other pods; null as above."""
    brokers: int
    """How many brokers of the group run there with the resources of the manifest."""
    more_brokers: int
    """How many more brokers of the group it could take."""
    limit: str
    """What limits `more_brokers`: a resource, a taint or another rule."""


@final
class StorageCapacity(msgspec.Struct, frozen=True, kw_only=True):
    """What a CSI driver publishes about the room for volumes in a part of the cluster."""

    topology: dict[str, str]
    """The labels of the nodes where the volumes can be used."""
    capacity: str
    """The room that is left; empty if the driver does not publish it."""
    maximum_volume_size: str
    """The size of the largest volume that can be created; empty if the driver does not publish it."""


@final
class StorageClassCapacity(msgspec.Struct, frozen=True, kw_only=True):
    """The storage class of the volumes."""

    storage_class: str
    """The name of the class."""
    exists: bool
    is_default: bool
    """Whether the class is the default class of the cluster."""
    provisioner: str
    """The driver that creates the volumes."""
    binding_mode: str
    """When volumes are created: `Immediate`, or `WaitForFirstConsumer`, on the node of the pod."""
    allows_expansion: bool
    """Whether volumes of this class can grow."""
    capacities: list[StorageCapacity]
    """The capacities that the driver publishes; empty if it publishes none."""


@final
class PodPlacement(msgspec.Struct, frozen=True, kw_only=True):
    """One pod of the group, and the node where it runs or would run by this estimate."""

    pod: str
    """The name of the pod. The pods of proxies that do not exist yet are numbered."""
    component: str
    node: str
    """The name of the node; empty if the pod fits on none."""
    is_running: bool
    """Whether the pod is on this node at present."""
    problem: str
    """Why the pod fits on no node; empty if it does."""


@final
class CapacityDocument(msgspec.Struct, frozen=True, kw_only=True):
    """`gantry explain --capacity`: what a group needs, and what the nodes of a cluster can take."""

    at_ms: int
    context: str
    """The context of the kubeconfig; empty if no cluster was read."""
    namespace: str
    """The namespace of the group; empty if no cluster was read."""
    group: str
    needs: list[PodNeeds]
    totals: CapacityTotals
    steps: list[CapacityStep]
    """What the group would need in addition if it were larger."""
    verdict: CapacityVerdict
    """Whether all pods fit by this estimate; `unknown` if no cluster was read, or not enough of it."""
    reasons: list[str]
    """Why not all pods fit."""
    pods: list[PodPlacement]
    nodes: list[NodeCapacity]
    storage: list[StorageClassCapacity]
    left_out: list[str]
    """What could not be read or judged, and why."""
