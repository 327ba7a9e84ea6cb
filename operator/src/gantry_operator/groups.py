"""All groups: a task for each that there is, begun when it appears and ended when it is gone.

Told by watches who has changed. A task that ends though its group is there is begun again. Now and then everything is
listed anew, since a watch that was interrupted never says what went meanwhile, and a watch may stand still.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, final

from gantry_operator.api import CLAIMS, GROUPS, LEASES, NODES, PODS, SERVICES, STATEFUL_SETS, Kind, Object, Place
from gantry_operator.cache import Cache, GroupKey
from gantry_operator.errors import ApiError
from gantry_operator.group_loop import GroupLoop, Parts
from gantry_operator.objects.names import GROUP_LABEL
from gantry_operator.pipelines.all_pipelines import LISTED as LISTED_FOR_PIPELINES
from gantry_operator.pipelines.all_pipelines import Pipelines

log = logging.getLogger(__name__)

OURS: Final = "app.kubernetes.io/part-of=gantry"
"""What pods and StatefulSets have, of groups and of pipelines: a kind is watched once."""

LISTED: Final[dict[Kind, str]] = {
    NODES: "",
    STATEFUL_SETS: OURS,
    PODS: OURS,
    CLAIMS: GROUP_LABEL,
    SERVICES: GROUP_LABEL,
    LEASES: GROUP_LABEL,
    GROUPS: "",
}
"""What is watched and listed, with the label that it must have; groups come last, so that theirs are here before."""

LIST_S: Final = 300.0
KEEP_S: Final = 1.0


@final
class Groups:
    """Owned by the event loop."""

    def __init__(self, parts: Parts, namespaces: Sequence[str] = (), pipelines: Pipelines | None = None) -> None:
        """Of these namespaces, or of all; with pipelines, which are listed, watched, kept and ended with them."""
        self.pipelines: Final = pipelines
        self.loops: Final[dict[GroupKey, GroupLoop]] = {}
        self._parts: Final = parts
        self._namespaces: Final = tuple(namespaces) or ("",)
        self._tasks: Final[dict[GroupKey, asyncio.Task[None]]] = {}
        self._is_closed = False
        parts.cache.on_change = self._changed

    def __repr__(self) -> str:
        return f"<Groups {len(self.loops)}>"

    @property
    def watched(self) -> dict[Kind, str]:
        """Kinds, and the label that each must have; without machines, where those may not be looked at."""
        knows_machines = self._parts.cache.knows_machines
        found = {kind: label for kind, label in LISTED.items() if kind != NODES or knows_machines}
        return found if self.pipelines is None else found | LISTED_FOR_PIPELINES

    # -- told ----------------------------------------------------------------------------------------------------------

    def seen(self, what: str | None, document: Object) -> None:
        """A watch has told."""
        self._cache_of(document).take(what, document)

    async def list_all(self) -> None:
        """Everything, once. Raises leaves of ``ApiError``."""
        for kind, label in self.watched.items():
            for namespace in self._namespaces if kind.is_namespaced else ("",):
                caches = [self._parts.cache] if self.pipelines is None else [self._parts.cache, self.pipelines.cache]
                before = [cache.revisions(kind, namespace) for cache in caches]
                listed = await self._parts.api.list(kind, namespace, label)
                for cache, revisions in zip(caches, before, strict=True):
                    cache.replace([one for one in listed if self._cache_of(one) is cache], revisions)

    async def run(self) -> None:
        """Until cancelled: keep a task for each group, and list everything now and then."""
        listed_ms = self._parts.clock.now_ms()
        while True:
            self.keep()
            if self._parts.clock.now_ms() - listed_ms >= LIST_S * 1000:
                listed_ms = self._parts.clock.now_ms()
                try:
                    await self.list_all()
                except ApiError as error:
                    log.warning("nothing was listed", extra={"reason": str(error)})
            await asyncio.sleep(KEEP_S)

    def keep(self) -> None:
        """A task for each group that is there, none for any other."""
        for key in self._parts.cache.groups():
            self._begin(key)
        if self.pipelines is not None:
            self.pipelines.keep()
        metrics, now_ms = self._parts.metrics, self._parts.clock.now_ms()
        metrics.groups.set(len(self.loops))
        ages_ms = (now_ms - loop.looked_ms for loop in self.loops.values() if not loop.is_waiting)
        metrics.stalest.set(max(ages_ms, default=0) / 1000)

    def stale(self, after_s: float) -> str:
        """Which group has not come round for so long; empty if none."""
        now_ms = self._parts.clock.now_ms()
        begun = [(key, loop) for key, loop in self.loops.items() if not loop.is_waiting]
        late = ["/".join(key) for key, loop in begun if now_ms - loop.looked_ms > after_s * 1000]
        if late:
            return f"these groups have not come round for {after_s:g} s: {', '.join(late)}"
        return "" if self.pipelines is None else self.pipelines.stale(after_s)

    async def close(self) -> None:
        """End every task, and wait for them."""
        self._is_closed = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.pipelines is not None:
            await self.pipelines.close()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _cache_of(self, document: Object) -> Cache:
        is_pipelines = self.pipelines is not None and self.pipelines.is_ours(document)
        return self.pipelines.cache if self.pipelines is not None and is_pipelines else self._parts.cache

    def _changed(self, key: GroupKey) -> None:
        loop = self.loops.get(key)
        if loop is not None:
            loop.wake()
        elif self._parts.cache.get(Place(GROUPS, *key)) is not None:
            self._begin(key)

    def _begin(self, key: GroupKey) -> None:
        document = self._parts.cache.get(Place(GROUPS, *key))
        is_ours = key[0] in self._namespaces or self._namespaces == ("",)
        if self._is_closed or key in self._tasks or document is None or not is_ours:
            return
        if document["metadata"].get("deletionTimestamp"):
            return
        loop = GroupLoop(key, self._parts)
        task = asyncio.get_running_loop().create_task(loop.run(), name=f"gantry-group-{'/'.join(key)}")
        self.loops[key], self._tasks[key] = loop, task
        task.add_done_callback(self._ended(key))
        log.info("a group is looked after", extra={"group": "/".join(key)})

    def _ended(self, key: GroupKey) -> Callable[[asyncio.Task[None]], None]:
        def ended(task: asyncio.Task[None]) -> None:
            del self.loops[key], self._tasks[key]
            if not task.cancelled() and task.exception() is not None:
                log.critical("a group's task has ended", extra={"group": "/".join(key)}, exc_info=task.exception())
            elif not task.cancelled():
                log.info("a group is looked after no more", extra={"group": "/".join(key)})

        return ended
