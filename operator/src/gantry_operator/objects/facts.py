"""What rendering needs to know beside the group itself. Whoever looks at the cluster fills it in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import msgspec


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Root of all facts. Never written itself."""


@final
class NodeFacts(Part, frozen=True):
    """What one machine of the cluster has for pods."""

    name: str
    memory_bytes: int
    hugepages_bytes: int = 0


@final
class ShardFacts(Part, frozen=True):
    """What is known of one shard now."""

    number: int
    slaves: int = 0
    """How many slaves have to stay, though the spec may want fewer: those whose vote is still needed."""

    slaves_in_sync: int | None = None
    """How many slaves could acknowledge now; None if nobody knows."""

    master_pod: str = ""
    """The pod of the master, or of the last one until there is another; empty before there was any."""

    pods: tuple[int, int] = (0, 0)
    """How many pods the master's and the slaves' StatefulSets make now, which rendering leaves so in hibernation."""


class OperatorFacts(Part, frozen=True, kw_only=True):
    """What is the same for groups and pipelines: it is known of the operator itself."""

    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    operator_namespace: str = "gantry-system"
    operator_labels: Mapping[str, str] = msgspec.field(
        default_factory=lambda: {"app.kubernetes.io/name": "gantry-operator"}
    )
    """Of the operator's pods, who may ask sidecars."""

    prometheus_labels: Mapping[str, str] = msgspec.field(
        default_factory=lambda: {"app.kubernetes.io/name": "prometheus"}
    )
    """Of the pods, in any namespace, that may ask for metrics."""


@final
class Facts(OperatorFacts, frozen=True):
    """Everything else."""

    image: str
    """Of brokers, sidecars and name servers, where the group names none."""

    shards: tuple[ShardFacts, ...] = ()
    """Those that exist. One that the spec no longer wants stays until it is no longer here."""

    is_hibernated: bool = False
    """Whether no pod shall run. Volumes, Services and the Lease stay; pods go when nothing can be lost by it."""

    outside: Mapping[str, str] = msgspec.field(default_factory=dict)
    """host:port of Services for clients outside of the cluster, by the Service's name; see ``outside_address``."""

    has_pod_monitor: bool = False
    """Whether the cluster knows PodMonitor."""

    has_prometheus_rule: bool = False
    """Whether the cluster knows PrometheusRule."""

    nodes: tuple[NodeFacts, ...] = ()
    """The machines, if they may be looked at; no machine says nothing."""

    def shard(self, number: int) -> ShardFacts:
        """What is known of a shard; nothing of one that does not exist yet."""
        return next((one for one in self.shards if one.number == number), ShardFacts(number=number))
