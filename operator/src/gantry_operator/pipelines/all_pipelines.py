"""All pipelines: a task for each that there is, begun when it appears and ended when it is gone, as with groups."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, final

from gantry_operator.api import CRON_JOBS, JOBS, PIPELINES, PODS, STATEFUL_SETS, Kind, Object, labels_of
from gantry_operator.cache import Cache, GroupKey
from gantry_operator.pipelines.naming import PIPELINE_LABEL, base_of
from gantry_operator.pipelines.pipeline_loop import PipelineLoop, PipelineParts

log = logging.getLogger(__name__)

LISTED: Final[dict[Kind, str]] = {JOBS: PIPELINE_LABEL, CRON_JOBS: PIPELINE_LABEL} | dict.fromkeys(PIPELINES, "")
"""What is watched and listed beside what groups have; pipelines come last, so that theirs are here before."""
SHARED: Final = (PODS, STATEFUL_SETS)
"""What is watched for groups and for pipelines, and told to whom its label names."""


def pipeline_cache() -> Cache:
    """One whose owners are pipelines."""
    return Cache(PIPELINE_LABEL, dict.fromkeys(PIPELINES, base_of))


@final
class Pipelines:
    """Owned by the event loop. Beside `Groups`, which lists and watches for it."""

    def __init__(self, parts: PipelineParts, namespaces: Sequence[str] = ()) -> None:
        """Of these namespaces, or of all."""
        self.loops: Final[dict[GroupKey, PipelineLoop]] = {}
        self.cache: Final = parts.cache
        self._parts: Final = parts
        self._namespaces: Final = tuple(namespaces) or ("",)
        self._tasks: Final[dict[GroupKey, asyncio.Task[None]]] = {}
        self._is_closed = False
        parts.cache.on_change = self._changed

    def __repr__(self) -> str:
        return f"<Pipelines {len(self.loops)}>"

    def is_ours(self, document: Object) -> bool:
        """Whether a watch that is shared has told of something of a pipeline's."""
        return document["kind"] in _OWN_KINDS or PIPELINE_LABEL in labels_of(document)

    def keep(self) -> None:
        """A task for each that is there."""
        for key in self.cache.groups():
            self._begin(key)

    def stale(self, after_s: float) -> str:
        """Which one has not come round for so long; empty if none."""
        now_ms = self._parts.clock.now_ms()
        late = ["/".join(key) for key, loop in self.loops.items() if now_ms - loop.looked_ms > after_s * 1000]
        return f"these pipelines have not come round for {after_s:g} s: {', '.join(late)}" if late else ""

    async def close(self) -> None:
        """End every task, and wait for them."""
        self._is_closed = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _changed(self, key: GroupKey) -> None:
        loop = self.loops.get(key)
        if loop is not None:
            loop.wake()
        else:
            self._begin(key)

    def _begin(self, key: GroupKey) -> None:
        document = self.cache.owner(key)
        is_ours = key[0] in self._namespaces or self._namespaces == ("",)
        if self._is_closed or key in self._tasks or document is None or not is_ours:
            return
        if document["metadata"].get("deletionTimestamp"):
            return
        loop = PipelineLoop(key, self._parts)
        task = asyncio.get_running_loop().create_task(loop.run(), name=f"gantry-pipeline-{'/'.join(key)}")
        self.loops[key], self._tasks[key] = loop, task
        task.add_done_callback(self._ended(key))
        log.info("a pipeline is looked after", extra={"pipeline": "/".join(key)})

    def _ended(self, key: GroupKey) -> Callable[[asyncio.Task[None]], None]:
        def ended(task: asyncio.Task[None]) -> None:
            del self.loops[key], self._tasks[key]
            if not task.cancelled() and task.exception() is not None:
                facts = {"pipeline": "/".join(key)}
                log.critical("a pipeline's task has ended", extra=facts, exc_info=task.exception())

        return ended


_OWN_KINDS: Final = frozenset(kind.name for kind in LISTED)
