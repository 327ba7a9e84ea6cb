"""One pipeline, again and again: observe -> decide -> act, in a task of its own, as a group has one.

    woken by      a change of anything of the pipeline's, and a tick, which also asks the driver's page
    the spec      read anew each time; one that cannot be read becomes a condition, and nothing is done
    done          what is no more of it is deleted, what should exist applied, status and events written

What it had in another shape (a CronJob, and now it goes on) is deleted first, and the new one waits until the last pod
of the old one has ended: there is one writer at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import msgspec

from gantry_operator.acting.applying import Applier
from gantry_operator.api import (
    CRON_JOBS,
    GROUPS,
    JOBS,
    PODS,
    ROLE_BINDINGS,
    STATEFUL_SETS,
    Kubernetes,
    Object,
    Place,
    place_of,
    uid_of,
)
from gantry_operator.cache import Cache, GroupKey
from gantry_operator.clock import Clock, moment_text
from gantry_operator.errors import ApiError
from gantry_operator.metrics import Metrics
from gantry_operator.pipelines import deciding
from gantry_operator.pipelines.facts import EngineFacts, PipelineFacts
from gantry_operator.pipelines.looking import facts_or_problem
from gantry_operator.pipelines.naming import PIPELINE_LABEL
from gantry_operator.pipelines.pages import Pages
from gantry_operator.pipelines.rendering import job_name, render
from gantry_operator.pipelines.seen import Seen, job_ended, pods_of
from gantry_operator.status import broken_status
from gantry_operator.telling import Teller
from gantry_operator.troubles import LEAVING_S, Troubles
from gantry_spec.manifest.errors import ManifestError
from gantry_spec.pipelines import Pipeline, pipeline_of

log = logging.getLogger(__name__)

TICK_S: Final = 5.0
QUIET_S: Final = 0.1
BUG_S: Final = 10.0
SHAPES: Final = (STATEFUL_SETS, CRON_JOBS, JOBS)
"""What a pipeline may run as."""


@dataclass(frozen=True, kw_only=True)
class PipelineParts:
    """What all pipelines use, and none changes."""

    cache: Cache
    """Of pipelines and what they own."""

    groups: Cache
    """Of groups."""

    api: Kubernetes
    pages: Pages
    clock: Clock
    metrics: Metrics
    engine: EngineFacts


@final
class PipelineLoop:
    """Owned by its own task."""

    def __init__(self, key: GroupKey, parts: PipelineParts) -> None:
        self.key: Final = key
        self.looked_ms: int = parts.clock.now_ms()
        """When it came round last: how alive it is."""

        self._parts: Final = parts
        self._awake: Final = asyncio.Event()
        self._applier: Final = Applier(key, parts.cache, parts.api, parts.clock, frozenset(SHAPES))
        self._teller: Final = Teller(parts.api, parts.clock)
        self._troubles: Final = Troubles(key, parts.clock)
        self._uid = ""
        self._rendered: tuple[Pipeline, PipelineFacts, Sequence[Object]] | None = None
        self._cleared: frozenset[Place] | None = None
        self._written: Mapping[str, Any] | None = None
        self._written_ms = 0

    def __repr__(self) -> str:
        return f"<PipelineLoop {'/'.join(self.key)}>"

    def wake(self) -> None:
        """Something has changed."""
        self._awake.set()

    async def run(self) -> None:
        """Until the pipeline is gone, or cancelled."""
        pause_s = await self._guarded_step()
        while pause_s is not None:
            try:
                async with asyncio.timeout(pause_s):
                    await self._awake.wait()
                    await asyncio.sleep(QUIET_S)
            except TimeoutError:
                pass
            self._awake.clear()
            pause_s = await self._guarded_step()

    async def _guarded_step(self) -> float | None:
        try:
            with self._parts.metrics.reconcile():
                return await self.step()
        except ApiError as error:
            return self._troubles.failed(error, TICK_S)
        except Exception:
            log.exception("a look at a pipeline has a bug", extra={"pipeline": "/".join(self.key)})
            self._parts.metrics.bug()
            return BUG_S
        finally:
            self.looked_ms = self._parts.clock.now_ms()

    # -- one round -----------------------------------------------------------------------------------------------------

    async def step(self) -> float | None:
        """Come round once. In how many seconds again; None when the pipeline is gone."""
        document = self._parts.cache.owner(self.key)
        if document is None or document["metadata"].get("deletionTimestamp"):
            return None
        self._uid = self._uid or uid_of(document)
        if self._uid != uid_of(document):
            return None
        if self._troubles.is_leaving:
            return LEAVING_S
        try:
            pipeline = pipeline_of({key: value for key, value in document.items() if key != "status"})
        except ManifestError as error:
            await self._broken(document, str(error))
            return TICK_S
        found = facts_or_problem(pipeline, self._parts.engine, self._group(pipeline), self._others())
        strangers: tuple[str, ...] = ()
        if isinstance(found, PipelineFacts):
            strangers = await self._apply(pipeline, found)
        seen = await self._look(pipeline, strangers)
        view = deciding.View(
            pipeline=pipeline,
            seen=seen,
            problem=None if isinstance(found, PipelineFacts) else found,
            unapplied="; ".join(sorted(self._applier.problems.values())),
            before=document.get("status") or {},
            now=moment_text(self._parts.clock.wall()),
        )
        await self._publish(document, view)
        return TICK_S

    def _group(self, pipeline: Pipeline) -> Object | None:
        names = pipeline.spec.broker_groups
        return self._parts.groups.get(Place(GROUPS, self.key[0], names[0])) if names else None

    def _others(self) -> list[Pipeline]:
        """All pipelines of this namespace that can be read."""
        found = []
        for key in self._parts.cache.groups():
            document = self._parts.cache.owner(key) if key[0] == self.key[0] else None
            if document is not None and not document["metadata"].get("deletionTimestamp"):
                try:
                    found.append(pipeline_of({name: value for name, value in document.items() if name != "status"}))
                except ManifestError:
                    continue
        return found

    async def _look(self, pipeline: Pipeline, strangers: tuple[str, ...]) -> Seen:
        pods = pods_of(self._parts.cache.of_group(PODS, self.key))
        job = self._parts.cache.get(Place(JOBS, self.key[0], job_name(pipeline)))
        seen = Seen(
            pods=pods,
            strangers=strangers,
            is_done=job is not None and job_ended(job, "Complete"),
            has_failed_for_good=job is not None and job_ended(job, "Failed"),
        )
        running = seen.running
        if running is None or not running.address:
            return seen
        return msgspec.structs.replace(seen, page=await self._parts.pages.ask(running.address))

    # -- what should exist ---------------------------------------------------------------------------------------------

    async def _apply(self, pipeline: Pipeline, facts: PipelineFacts) -> tuple[str, ...]:
        """Workloads of another shape that still have a pod: until they have ended the new one is not begun."""
        if self._rendered is None or self._rendered[:2] != (pipeline, facts):
            self._rendered = pipeline, facts, render(pipeline, facts)
        rendered = self._rendered[2]
        workload = place_of(rendered[-1])
        await self._clear(rendered, pipeline.metadata.uid)
        strangers = self._strangers(workload)
        known = self._parts.cache.get(workload)
        if strangers or (workload.kind == JOBS and known is not None):
            rendered = rendered[:-1]
        await self._applier.apply(rendered)
        if workload.kind == JOBS and known is not None and not strangers:
            await self._suspend(known, is_suspended=pipeline.spec.suspend)
        return strangers

    async def _clear(self, rendered: Sequence[Object], owner: str) -> None:
        """Delete what is this pipeline's and not rendered: another shape, and a right that is not needed any more."""
        wanted = frozenset(place_of(one) for one in rendered)
        cached = [one for kind in SHAPES for one in self._parts.cache.of_group(kind, self.key)]
        listed: list[Object] = []
        if self._cleared != wanted:
            listed = await self._parts.api.list(ROLE_BINDINGS, self.key[0], f"{PIPELINE_LABEL}={self.key[1]}")
        for document in [*cached, *listed]:
            is_going = document["metadata"].get("deletionTimestamp")
            if place_of(document) in wanted or is_going or owner not in _owners(document):
                continue
            await self._parts.api.delete(place_of(document), uid=uid_of(document))
            log.info("deleted, since the pipeline has it no more", extra={"place": str(place_of(document))})
        self._cleared = wanted

    def _strangers(self, workload: Place) -> tuple[str, ...]:
        """Pods that have not ended, and that the workload of now has not made."""
        cache, found = self._parts.cache, []
        documents = {uid_of(one): one for kind in SHAPES for one in cache.of_group(kind, self.key)}
        for document in cache.of_group(PODS, self.key):
            pod = next(iter(pods_of([document])), None)
            if pod is None or pod.is_over:
                continue
            maker = _maker(document)
            while (above := documents.get(maker[2])) is not None and maker[0] == JOBS.name:
                if _maker(above)[0] != CRON_JOBS.name:
                    break
                maker = _maker(above)
            if maker[:2] != (workload.kind.name, workload.name):
                found.append(pod.name)
        return tuple(sorted(found))

    async def _suspend(self, job: Object, *, is_suspended: bool) -> None:
        """A Job is made once; of one that is there only this may change."""
        if bool((job.get("spec") or {}).get("suspend")) == is_suspended or job_ended(job, "Complete"):
            return
        change = {"spec": {"suspend": is_suspended}}
        self._parts.cache.put(await self._parts.api.patch(place_of(job), change, uid=uid_of(job)))

    # -- what is said --------------------------------------------------------------------------------------------------

    async def _publish(self, document: Object, view: deciding.View) -> None:
        decided = deciding.status_of(view)
        status: dict[str, Any] = msgspec.to_builtins(decided)
        now_ms = self._parts.clock.now_ms()
        written = view.before if self._written is None else self._written
        told = deciding.told_of(written, decided)
        if deciding.is_worth_a_write(status, written, now_ms - self._written_ms):
            self._parts.cache.put(await self._parts.api.apply_status(place_of(document), status))
            self._written, self._written_ms = status, now_ms
        for one in told:
            await self._teller.tell(document, one.reason, one.text, is_warning=one.is_warning)

    async def _broken(self, document: Object, message: str) -> None:
        before, now = document.get("status") or {}, moment_text(self._parts.clock.wall())
        generation = document["metadata"].get("generation", 0)
        status = broken_status(generation, "InvalidSpec", message, before, now)
        if self._written != status:
            self._parts.cache.put(await self._parts.api.apply_status(place_of(document), status))
            self._written = status
        await self._teller.tell(document, "InvalidSpec", message, is_warning=True)


def _owners(document: Object) -> set[str]:
    return {str(one.get("uid")) for one in document["metadata"].get("ownerReferences") or []}


def _maker(document: Object) -> tuple[str, str, str]:
    """Kind, name and uid of whoever made it; empty words for nobody."""
    owners = document["metadata"].get("ownerReferences") or []
    one: Mapping[str, Any] = next((one for one in owners if one.get("controller")), {})
    return str(one.get("kind", "")), str(one.get("name", "")), str(one.get("uid", ""))
