"""What the operator watches: every change goes into the cache that it belongs to, and every resource has a loop.

Now and then everything is listed anew: a watch that was interrupted never reports what was deleted meanwhile, and a
watch may hang.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, final

from gantry_operator.api import (
    CLAIMS,
    CRON_JOBS,
    GROUPS,
    JOBS,
    LEASES,
    NODES,
    PIPELINES,
    PODS,
    SERVICES,
    STATEFUL_SETS,
    Kind,
    Object,
    labels_of,
)
from gantry_operator.cache import Cache
from gantry_operator.errors import ApiError
from gantry_operator.group_reconciler import GroupReconciler
from gantry_operator.objects.names import GROUP_LABEL
from gantry_operator.pipelines.naming import PIPELINE_LABEL
from gantry_operator.pipelines.reconciler import PipelineReconciler
from gantry_operator.resource_loop import LoopKeeper

log = logging.getLogger(__name__)

OURS: Final = "app.kubernetes.io/part-of=gantry"
"""The label of pods and StatefulSets, of groups and of pipelines: a kind is watched once."""

LISTED: Final[dict[Kind, str]] = {
    NODES: "",
    STATEFUL_SETS: OURS,
    PODS: OURS,
    CLAIMS: GROUP_LABEL,
    SERVICES: GROUP_LABEL,
    LEASES: GROUP_LABEL,
    GROUPS: "",
}
"""What is watched and listed, with the label that it must have. Groups come last, so that their objects are known."""

LISTED_FOR_PIPELINES: Final[dict[Kind, str]] = {
    JOBS: PIPELINE_LABEL,
    CRON_JOBS: PIPELINE_LABEL,
    **dict.fromkeys(PIPELINES, ""),
}
"""What is watched and listed beside that where there are pipelines. Pods and StatefulSets are shared."""

LIST_S: Final = 300.0
KEEP_S: Final = 1.0


@final
class WatchedResources:
    """Owned by the event loop."""

    def __init__(
        self, groups: LoopKeeper[GroupReconciler], pipelines: LoopKeeper[PipelineReconciler] | None = None
    ) -> None:
        self.groups: Final = groups
        self.pipelines: Final = pipelines
        self._keepers: Final = (groups,) if pipelines is None else (groups, pipelines)

    @property
    def watched(self) -> dict[Kind, str]:
        """Kinds, and the label that each must have; without machines, where those may not be watched."""
        knows_machines = self.groups.context.cache.knows_machines
        found = {kind: label for kind, label in LISTED.items() if kind != NODES or knows_machines}
        return found if self.pipelines is None else found | LISTED_FOR_PIPELINES

    def take(self, what: str | None, document: Object) -> None:
        """Put what a watch has reported into the cache."""
        self._cache_of(document).take(what, document)

    async def list_all(self) -> None:
        """List everything once. Raises leaves of ``ApiError``."""
        caches = [keeper.context.cache for keeper in self._keepers]
        for kind, label in self.watched.items():
            for namespace in self.groups.namespaces if kind.is_namespaced else ("",):
                before = [cache.revisions(kind, namespace) for cache in caches]
                listed = await self.groups.context.api.list(kind, namespace, label)
                for cache, revisions in zip(caches, before, strict=True):
                    cache.replace([one for one in listed if self._cache_of(one) is cache], revisions)

    async def run(self) -> None:
        """Keep a loop for each resource, and list everything now and then, until cancelled."""
        clock = self.groups.context.clock
        listed_ms = clock.now_ms()
        while True:
            self.start_missing()
            if clock.now_ms() - listed_ms >= LIST_S * 1000:
                listed_ms = clock.now_ms()
                try:
                    await self.list_all()
                except ApiError as error:
                    log.warning("failed to list resources; retrying", extra={"reason": str(error)})
            await asyncio.sleep(KEEP_S)

    def start_missing(self) -> None:
        """Start a loop for each resource that has none, and update the metrics of groups."""
        for keeper in self._keepers:
            keeper.start_missing()
        metrics = self.groups.context.metrics
        metrics.groups.set(len(self.groups.loops))
        metrics.stalest.set(self.groups.age_ms_max() / 1000)

    def stale(self, after_s: float) -> str:
        """Say which resources were not reconciled for so long; empty if none."""
        return next((text for keeper in self._keepers if (text := keeper.stale(after_s))), "")

    async def close(self) -> None:
        """Stop every loop, and wait for them."""
        for keeper in self._keepers:
            await keeper.close()

    def _cache_of(self, document: Object) -> Cache:
        if self.pipelines is not None and (
            document["kind"] in _PIPELINE_KINDS or PIPELINE_LABEL in labels_of(document)
        ):
            return self.pipelines.context.cache
        return self.groups.context.cache


_PIPELINE_KINDS: Final = frozenset(kind.name for kind in LISTED_FOR_PIPELINES)
