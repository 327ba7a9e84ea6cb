"""The input of rendering besides the group itself, which comes from observing the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import msgspec

from gantry_spec.pipelines.parts import PodTemplate


class FactsPart(msgspec.Struct, frozen=True, kw_only=True):
    """Base class of all facts. It is never instantiated itself."""


@final
class NodeFacts(FactsPart, frozen=True):
    """The memory of one Node that is allocatable to pods."""

    name: str
    memory_bytes: int
    hugepages_bytes: int = 0
    """The size of all huge pages of 2 MiB."""


@final
class ShardFacts(FactsPart, frozen=True):
    """The known present state of one shard."""

    number: int
    slaves: int = 0
    """How many slaves its StatefulSet has. They stay, even if the spec has fewer, until an action removes them."""

    slaves_acknowledging: int | None = None
    """How many slaves could acknowledge now; None if unknown."""

    master_pod: str = ""
    """The pod of the present or else the last master; empty before the first one."""

    replicas: tuple[int, int] = (0, 0)
    """In hibernation, the present replicas of the master's and the slaves' StatefulSets, which rendering keeps; (0, 0)
    otherwise, which is not used."""


@final
class ArchiveFacts(FactsPart, frozen=True):
    """The archive that a group names, as far as its server depends on it."""

    name: str
    """The name of the TopicArchive."""

    pipeline: str
    """The label of the pods of its job (``names.PIPELINE_LABEL``)."""

    image: str
    pull_policy: str
    spec: Mapping[str, Any]
    """The spec of the TopicArchive as plain values."""

    claim: str
    """The claim of its destination."""

    path: str
    """The folder on the claim."""

    is_on_one_node: bool
    """Whether only pods on one Node can mount the claim at a time."""

    template: PodTemplate
    """The placement of the job's pods."""


class OperatorFacts(FactsPart, frozen=True, kw_only=True):
    """The facts about the operator itself, which are the same for groups and pipelines."""

    pull_policy: str = "IfNotPresent"
    """When images are pulled, as in a container's ``imagePullPolicy``."""

    pull_secrets: tuple[str, ...] = ()
    """The names of the Secrets with which images are pulled."""

    operator_namespace: str = "gantry-system"
    """The namespace in which the operator runs."""

    operator_labels: Mapping[str, str] = msgspec.field(
        default_factory=lambda: {"app.kubernetes.io/name": "gantry-operator"}
    )
    """The labels of the operator's pods, which may send requests to sidecars."""

    prometheus_labels: Mapping[str, str] = msgspec.field(
        default_factory=lambda: {"app.kubernetes.io/name": "prometheus"}
    )
    """The labels of the pods, in any namespace, that may scrape metrics."""


@final
class Facts(OperatorFacts, frozen=True):
    """All facts for rendering the objects of a group."""

    image: str
    """The image of brokers, sidecars and name servers, if the group sets no image."""

    shards: tuple[ShardFacts, ...] = ()
    """The shards that exist, including removed shards that must still be rendered."""

    is_hibernated: bool = False
    """Whether no pod should run. Volumes, Services and Leases stay; pods are removed when no data can be lost."""

    external_addresses: Mapping[str, str] = msgspec.field(default_factory=dict)
    """host:port of Services for clients outside of the cluster, by Service name; see ``external_address``."""

    authority: str = ""
    """The certificate of the group's own authority, PEM; empty for a group without one."""

    archive: ArchiveFacts | None = None
    """The archive that the group names; None if it names none, or one that has no server for now."""

    has_pod_monitor: bool = False
    """Whether the cluster has the kind PodMonitor."""

    has_prometheus_rule: bool = False
    """Whether the cluster has the kind PrometheusRule."""

    route_api: str = ""
    """The apiVersion with which the cluster serves TCPRoutes; empty if it has no Gateway API."""

    gateway_listeners: Mapping[int, str] = msgspec.field(default_factory=dict)
    """The names of the Gateway's listeners that routes of the group may use, by port."""

    nodes: tuple[NodeFacts, ...] = ()
    """The Nodes, if the operator may read them; an empty tuple proves nothing."""

    def shard(self, number: int) -> ShardFacts:
        """Return the facts of a shard; empty ones for a shard that does not exist yet."""
        return next((one for one in self.shards if one.number == number), ShardFacts(number=number))
