"""A simulation of an operator: its real loop and a model cluster, round by round; also of later operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from operator_world.cluster import GROUP, NAMESPACE, ModelCluster

from gantry_operator.api import PIPELINES, TCP_ROUTES, Object, labels_of
from gantry_operator.cache import Cache
from gantry_operator.group_archive import Archives
from gantry_operator.group_reconciler import GroupContext, GroupReconciler
from gantry_operator.metrics import Metrics
from gantry_operator.objects import Facts, render
from gantry_operator.observe.unschedulable import ClusterPods
from gantry_operator.pipelines.facts import EngineFacts
from gantry_operator.pipelines.naming import PIPELINE_LABEL
from gantry_operator.pipelines.reconciler import pipeline_cache
from gantry_operator.resource_loop import ResourceLoop

PIPELINE_NAMES: Final = frozenset(kind.name for kind in PIPELINES)

SYNC: Final = {"shards": 1, "slaves": 1, "nameServers": {"addresses": ["ns.example:9876"]}}
"""The smallest synchronous group: a master and a slave, whose ack is needed."""

ASYNC: Final = SYNC | {"replication": {"mode": "Async"}, "failover": {"maxDataLossBytes": "1Gi"}}
"""An asynchronous group whose automatic failover may lose up to 1 GiB."""


BASE: Final = Facts(image="gantry:test", route_api=TCP_ROUTES.api_version)
"""What an operator knows about a cluster whose API server is the fake one, which has the Gateway API."""


def operator_of(
    cluster: ModelCluster, base: Facts = BASE, *, has_pipelines: bool = True
) -> ResourceLoop[GroupReconciler]:
    """Return the loop of a new operator process, which knows the listed objects and what watches report."""
    cache, pipelines = Cache(), pipeline_cache()

    def apply_event(event_type: str | None, document: Object) -> None:
        is_pipeline = document["kind"] in PIPELINE_NAMES or PIPELINE_LABEL in labels_of(document)
        (pipelines if is_pipeline else cache).apply_event(event_type, document)

    for document in list(cluster.api.objects.values()):
        apply_event(None, document)
    cluster.api.watchers.append(apply_event)
    archives = Archives(cache=pipelines, engine=EngineFacts(image="pipelines:test"), pages=cluster)
    context = GroupContext(
        cache=cache, api=cluster.api, sidecars=cluster, clock=cluster.clock, metrics=Metrics(),
        base=base, render=render, key=b"k" * 32,
        cluster_pods=ClusterPods(cluster.api, cluster.clock), archives=archives if has_pipelines else None,
    )  # fmt: skip
    return ResourceLoop((NAMESPACE, GROUP), context)


class Simulation:
    """A model cluster and the loop of one operator. A round reconciles the group once, then advances the time."""

    def __init__(self, spec: dict[str, Any], *, nodes: int = 3) -> None:
        self.cluster = ModelCluster(spec, nodes)
        self.loop = operator_of(self.cluster)

    @classmethod
    def of(cls, cluster: ModelCluster, loop: ResourceLoop[GroupReconciler]) -> Simulation:
        """Create a simulation of an existing cluster and loop."""
        simulation = cls.__new__(cls)
        simulation.cluster, simulation.loop = cluster, loop
        return simulation

    async def step(self, by_ms: int = 250) -> None:
        """Reconcile once, then advance the cluster."""
        await self.loop.reconcile_once()
        await self.loop.reconciler.settle()
        self.cluster.advance(by_ms)

    async def run_until(self, predicate: Callable[[], bool], what: str, seconds: float = 120.0) -> float:
        """Run until the condition holds; return the seconds of the model that it took."""
        began_ms = self.cluster.clock.ms
        while not predicate():
            assert self.cluster.clock.ms - began_ms < seconds * 1000, f"it did not happen: {what}; {self.describe()}"
            await self.step()
        return (self.cluster.clock.ms - began_ms) / 1000

    def describe(self) -> object:
        """Return the last decision's explanation and the group's status, for messages of failures."""
        return self.loop.reconciler.decision.explanation, self.cluster.group.get("status")

    def condition(self, kind: str) -> tuple[str, str, str]:
        """Return status, reason and message of a condition."""
        found = (self.cluster.group.get("status") or {}).get("conditions", [])
        one: dict[str, str] = next((one for one in found if one["type"] == kind), {})
        return one.get("status", ""), one.get("reason", ""), one.get("message", "")

    def is_healthy(self) -> bool:
        """Return whether the group is ready by its status, and each shard has a master."""
        status = self.cluster.group.get("status") or {}
        ready = {one["type"]: one["status"] for one in status.get("conditions", [])}.get("Ready")
        is_current = status.get("observedGeneration") == self.cluster.group["metadata"]["generation"]
        shards = self.cluster.group["spec"]["shards"]
        return ready == "True" and is_current and all(self.cluster.master(one) for one in range(shards))

    async def run_until_healthy(self) -> Simulation:
        """Run until the group is ready; return this simulation."""
        await self.run_until(self.is_healthy, "the group begins")
        return self
