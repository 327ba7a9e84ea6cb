"""The resources that the operator watches: watch events update the caches, and every resource has a loop.

All resources are listed anew every ``RELIST_S``: a watch that was interrupted never reports the objects that were
deleted meanwhile, and a watch may hang.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final, final

from gantry_operator.api import (
    CLAIMS,
    CRON_JOBS,
    DEPLOYMENTS,
    GATEWAYS,
    GROUPS,
    JOBS,
    LEASES,
    NODES,
    PIPELINES,
    PODS,
    ROUTE_KINDS,
    SERVICES,
    STATEFUL_SETS,
    Kind,
    Object,
    labels_of,
)
from gantry_operator.cache import Cache
from gantry_operator.errors import ApiError, is_kind_missing
from gantry_operator.group_reconciler import GroupReconciler
from gantry_operator.objects.names import GROUP_LABEL
from gantry_operator.pipelines.naming import PIPELINE_LABEL
from gantry_operator.pipelines.reconciler import PipelineReconciler
from gantry_operator.resource_loop import LoopManager

log = logging.getLogger(__name__)

PART_OF_GANTRY: Final = "app.kubernetes.io/part-of=gantry"
"""The label selector of pods and StatefulSets. Groups and pipelines share it, so that each kind is watched once."""

WATCHED_KINDS: Final[dict[Kind, str]] = {
    NODES: "",
    STATEFUL_SETS: PART_OF_GANTRY,
    PODS: PART_OF_GANTRY,
    CLAIMS: GROUP_LABEL,
    SERVICES: GROUP_LABEL,
    DEPLOYMENTS: GROUP_LABEL,
    LEASES: GROUP_LABEL,
    GROUPS: "",
}
"""The watched kinds with their label selectors. Groups come last, so that their objects are in the cache before."""

WATCHED_PIPELINE_KINDS: Final[dict[Kind, str]] = {
    JOBS: PIPELINE_LABEL,
    CRON_JOBS: PIPELINE_LABEL,
    **dict.fromkeys(PIPELINES, ""),
}
"""The kinds that are watched in addition for pipelines. Pods and StatefulSets are shared with groups."""

OPTIONAL_KINDS: Final[dict[Kind, str]] = {GATEWAYS: "", **dict.fromkeys(ROUTE_KINDS, GROUP_LABEL)}
"""The kinds that are watched where the cluster has them. Of TCPRoutes, only one version is."""

RELIST_S: Final = 300.0
"""The time between two full lists, in seconds."""

START_MISSING_S: Final = 1.0
"""The time between two checks for resources without a loop, in seconds."""


@final
class WatchedResources:
    """Dispatches watch events to the caches, and keeps the loops of all resources. Owned by the event loop."""

    def __init__(
        self,
        groups: LoopManager[GroupReconciler],
        pipelines: LoopManager[PipelineReconciler] | None = None,
        optional_kinds: Iterable[Kind] = (),
    ) -> None:
        """``optional_kinds`` are those of ``OPTIONAL_KINDS`` that the cluster has."""
        self.groups: Final = groups
        self.pipelines: Final = pipelines
        self._managers: Final = (groups,) if pipelines is None else (groups, pipelines)
        self._optional: Final = {kind: OPTIONAL_KINDS[kind] for kind in optional_kinds}
        self._is_listed = False

    @property
    def watched(self) -> dict[Kind, str]:
        """The watched kinds with their label selectors; without Nodes if the operator may not read them."""
        can_read_nodes = self.groups.context.cache.can_read_nodes
        common = {kind: label for kind, label in WATCHED_KINDS.items() if kind != NODES or can_read_nodes}
        found = self._optional | common
        return found if self.pipelines is None else found | WATCHED_PIPELINE_KINDS

    def apply_event(self, event_type: str | None, document: Object) -> None:
        """Update the cache with a watch event."""
        self._cache_of(document).apply_event(event_type, document)

    async def list_all(self) -> None:
        """List all watched resources once. Raises leaves of ``ApiError``."""
        caches = [manager.context.cache for manager in self._managers]
        for kind, label in self.watched.items():
            for namespace in self.groups.namespaces if kind.is_namespaced else ("",):
                before = [cache.revisions(kind, namespace) for cache in caches]
                listed = await self._list(kind, namespace, label)
                for cache, revisions in zip(caches, before, strict=True):
                    cache.replace([one for one in listed if self._cache_of(one) is cache], revisions)
        self._is_listed = True

    async def _list(self, kind: Kind, namespace: str, label: str) -> list[Object]:
        """List the objects of a kind; none of an optional kind whose CRD has been deleted meanwhile."""
        try:
            return await self.groups.context.api.list(kind, namespace, label)
        except ApiError as error:
            if kind not in self._optional or not is_kind_missing(error):
                raise
            return []

    async def run(self) -> None:
        """Keep a loop for each resource, and list all resources every ``RELIST_S``, until cancelled."""
        clock = self.groups.context.clock
        listed_ms = clock.now_ms()
        while True:
            self.start_missing()
            if clock.now_ms() - listed_ms >= RELIST_S * 1000:
                listed_ms = clock.now_ms()
                try:
                    await self.list_all()
                except ApiError as error:
                    log.warning("failed to list resources; retrying", extra={"reason": str(error)})
            await asyncio.sleep(START_MISSING_S)

    def start_missing(self) -> None:
        """Start a loop for each resource that has none, and update the metrics of groups.

        Before the first full list this does nothing: a decision could miss resources that are not listed yet.
        """
        if not self._is_listed:
            return
        for manager in self._managers:
            manager.start_missing()
        metrics = self.groups.context.metrics
        metrics.groups.set(len(self.groups.loops))
        metrics.stalest.set(self.groups.age_ms_max() / 1000)

    def describe_stale(self, after_s: float) -> str:
        """Return a text that names the groups, or else the pipelines, that were not reconciled for this time."""
        return next((text for manager in self._managers if (text := manager.describe_stale(after_s))), "")

    async def close(self) -> None:
        """Stop all loops, and wait until they have ended."""
        for manager in self._managers:
            await manager.close()

    def _cache_of(self, document: Object) -> Cache:
        if self.pipelines is not None and (
            document["kind"] in _PIPELINE_KINDS or PIPELINE_LABEL in labels_of(document)
        ):
            return self.pipelines.context.cache
        return self.groups.context.cache


_PIPELINE_KINDS: Final = frozenset(kind.name for kind in WATCHED_PIPELINE_KINDS)
