"""One round of one pipeline: delete objects that it no longer needs, apply the desired ones, and make its status.

An earlier workload (of another kind, since the pipeline had a schedule and now is continuous, or an audit's Job for an
earlier spec) is deleted first, and the new one waits until the last pod of the old one has ended: there is one writer
at a time. A pipeline whose folder an older pipeline keeps has no workload. If that one is deleted, the first workload
waits for the end of its pods, too. Each round also fetches the driver's page.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, final

import msgspec

from gantry_operator.api import (
    CRON_JOBS,
    GROUPS,
    JOBS,
    PIPELINES,
    PODS,
    ROLE_BINDINGS,
    STATEFUL_SETS,
    Object,
    ObjectRef,
    labels_of,
    manifest_of,
    owner_uids,
    ref_of,
    uid_of,
)
from gantry_operator.cache import Cache, ResourceKey
from gantry_operator.clock import format_time
from gantry_operator.execute.applier import Applier
from gantry_operator.pipelines import status as pipeline_status
from gantry_operator.pipelines.facts import (
    SHARED_DESTINATION,
    EngineFacts,
    PipelineFacts,
    facts_or_problem,
    folders_of,
)
from gantry_operator.pipelines.naming import PIPELINE_LABEL, base_of
from gantry_operator.pipelines.observed import ObservedPipeline, has_job_condition, pods_of, writable_claims
from gantry_operator.pipelines.pages import DriverPages
from gantry_operator.pipelines.rendering import job_name, render
from gantry_operator.pipelines.serving import archive_named_by
from gantry_operator.resource_loop import LoopContext, Outcome, WrittenStatus
from gantry_spec.manifest.errors import ManifestError
from gantry_spec.pipelines import ARCHIVE, Pipeline, pipeline_of

log = logging.getLogger(__name__)

TICK_S: Final = 5.0
"""The time between two rounds of a pipeline without a change (a tick), in seconds."""

WORKLOAD_KINDS: Final = (STATEFUL_SETS, CRON_JOBS, JOBS)
"""The kinds of workloads as which a pipeline can run."""


def pipeline_cache() -> Cache:
    """Return an empty cache whose owners are pipelines."""
    return Cache(PIPELINE_LABEL, dict.fromkeys(PIPELINES, base_of))


@dataclass(frozen=True, kw_only=True)
class PipelineContext(LoopContext["PipelineReconciler"]):
    """The collaborators that the loops of all pipelines share. The cache has pipelines and their objects."""

    noun: ClassVar[str] = "pipeline"
    groups: Cache
    """The cache of groups, which pipelines refer to."""

    pages: DriverPages
    engine: EngineFacts

    def make_reconciler(self, key: ResourceKey, wake_now: Callable[[], None]) -> PipelineReconciler:
        return PipelineReconciler(key, self)


@final
class PipelineReconciler:
    """Reconciles one pipeline. Owned by the task of its loop."""

    def __init__(self, key: ResourceKey, context: PipelineContext) -> None:
        self.key: Final = key
        self._context: Final = context
        self._applier: Final = Applier(key, context.cache, context.api, context.clock, frozenset(WORKLOAD_KINDS))
        self._rendered: tuple[Pipeline, PipelineFacts, Sequence[Object]] | None = None
        self._pruned: frozenset[ObjectRef] | None = None

    def __repr__(self) -> str:
        return f"<PipelineReconciler {'/'.join(self.key)}>"

    async def reconcile(self, document: Object, written: WrittenStatus) -> Outcome:
        pipeline = pipeline_of(manifest_of(document))
        found = facts_or_problem(
            pipeline, self._context.engine, self._group(pipeline), self._pipelines_of_namespace(),
            self._served_group(pipeline),
        )  # fmt: skip
        outdated_pods: tuple[str, ...] = ()
        if isinstance(found, PipelineFacts):
            outdated_pods = await self._apply(pipeline, found)
        elif found.reason == SHARED_DESTINATION:
            await self._prune((), pipeline.metadata.uid)
            await self._applier.apply(())  # it forgets the deleted objects, so that it would create them again
        observed = await self._observe(pipeline, outdated_pods)
        view = pipeline_status.View(
            pipeline=pipeline,
            observed=observed,
            problem=None if isinstance(found, PipelineFacts) else found,
            unapplied="; ".join(sorted(self._applier.problems.values())),
            before=document.get("status") or {},
            now=format_time(self._context.clock.wall()),
        )
        decided = pipeline_status.status_of(view)
        status: dict[str, Any] = msgspec.to_builtins(decided)
        is_due = pipeline_status.is_worth_a_write(status, written.status, written.age_ms)
        return Outcome(TICK_S, status if is_due else None, pipeline_status.events_of(written.status, decided))

    async def close(self) -> None:
        """Do nothing: no action continues between two rounds."""

    def _group(self, pipeline: Pipeline) -> Object | None:
        names = pipeline.spec.broker_groups
        return self._context.groups.get(ObjectRef(GROUPS, self.key[0], names[0])) if names else None

    def _served_group(self, pipeline: Pipeline) -> str:
        """Return the first group that names this archive; empty if none does."""
        if pipeline.kind is not ARCHIVE:
            return ""
        groups = (one for one in self._context.groups.of_kind(GROUPS) if one["metadata"]["namespace"] == self.key[0])
        readers = (one for one in groups if archive_named_by(one) == pipeline.metadata.name)
        return min((str(one["metadata"]["name"]) for one in readers), default="")

    def _pipelines_of_namespace(self) -> list[Pipeline]:
        """Return the pipelines of this namespace, with this one, that have a valid spec and are not being deleted."""
        found = []
        for key in self._context.cache.owner_keys():
            document = self._context.cache.owner(key) if key[0] == self.key[0] else None
            if document is not None and not document["metadata"].get("deletionTimestamp"):
                try:
                    found.append(pipeline_of(manifest_of(document)))
                except ManifestError:
                    continue
        return found

    async def _observe(self, pipeline: Pipeline, outdated_pods: tuple[str, ...]) -> ObservedPipeline:
        pods = pods_of(self._context.cache.of_group(PODS, self.key))
        job = self._context.cache.get(ObjectRef(JOBS, self.key[0], job_name(pipeline)))
        observed = ObservedPipeline(
            pods=pods,
            outdated_pods=outdated_pods,
            is_done=job is not None and has_job_condition(job, "Complete"),
            has_failed_for_good=job is not None and has_job_condition(job, "Failed"),
        )
        running = observed.running_pod
        if running is None or not running.address:
            return observed
        return msgspec.structs.replace(observed, page=await self._context.pages.fetch(running.address))

    # -- desired objects -----------------------------------------------------------------------------------------------

    async def _apply(self, pipeline: Pipeline, facts: PipelineFacts) -> tuple[str, ...]:
        """Apply the objects. Return the pods for whose end the new workload waits.

        They are of an earlier workload, or of deleted pipelines.
        """
        if self._rendered is None or self._rendered[:2] != (pipeline, facts):
            self._rendered = pipeline, facts, render(pipeline, facts)
        rendered = self._rendered[2]
        workload = ref_of(rendered[-1])
        await self._prune(rendered, pipeline.metadata.uid)
        outdated_pods = self._outdated_pods(workload)
        known = self._context.cache.get(workload)
        if known is None:
            outdated_pods += self._pods_of_deleted_pipelines(pipeline)
        if outdated_pods or (workload.kind == JOBS and known is not None):
            rendered = rendered[:-1]
        await self._applier.apply(rendered)
        if workload.kind == JOBS and known is not None and not outdated_pods:
            await self._suspend(known, is_suspended=pipeline.spec.suspend)
        return outdated_pods

    async def _prune(self, rendered: Sequence[Object], owner: str) -> None:
        """Delete objects of this pipeline that are not rendered: an earlier workload, and a RoleBinding."""
        wanted = frozenset(ref_of(one) for one in rendered)
        cached = [one for kind in WORKLOAD_KINDS for one in self._context.cache.of_group(kind, self.key)]
        listed: list[Object] = []
        if self._pruned != wanted:
            listed = await self._context.api.list(ROLE_BINDINGS, self.key[0], f"{PIPELINE_LABEL}={self.key[1]}")
        for document in [*cached, *listed]:
            is_terminating = document["metadata"].get("deletionTimestamp")
            if ref_of(document) in wanted or is_terminating or owner not in owner_uids(document):
                continue
            await self._context.api.delete(ref_of(document), uid=uid_of(document))
            log.info("deleted object that is no longer part of the pipeline", extra={"object": str(ref_of(document))})
        self._pruned = wanted

    def _outdated_pods(self, workload: ObjectRef) -> tuple[str, ...]:
        """Return the names of driver pods that have not ended, and that the present workload has not created."""
        cache, found = self._context.cache, []
        documents = {uid_of(one): one for kind in WORKLOAD_KINDS for one in cache.of_group(kind, self.key)}
        for document in cache.of_group(PODS, self.key):
            pod = next(iter(pods_of([document])), None)
            if pod is None or pod.is_over:
                continue
            kind, name, uid = _controller_of(document)
            if kind == JOBS.name and uid in documents:
                controller_of_job = _controller_of(documents[uid])
                if controller_of_job[0] == CRON_JOBS.name:
                    kind, name, _ = controller_of_job
            if (kind, name) != (workload.kind.name, workload.name):
                found.append(pod.name)
        return tuple(sorted(found))

    def _pods_of_deleted_pipelines(self, pipeline: Pipeline) -> tuple[str, ...]:
        """Return the names of driver pods that outlive their pipeline, and may write to a claim of this one.

        By default Kubernetes deletes a pipeline before its pods, which do not show their folders. So all folders of
        their claims count.
        """
        cache, found = self._context.cache, []
        claims = {folder.claim for folder in folders_of(pipeline)}
        for document in cache.of_kind(PODS):
            key = document["metadata"]["namespace"], labels_of(document).get(PIPELINE_LABEL, "")
            owner = cache.owner(key)
            is_deleted = owner is None or owner["metadata"].get("deletionTimestamp")
            if key[0] == self.key[0] and is_deleted and claims & writable_claims(document):
                found += [pod.name for pod in pods_of([document]) if not pod.is_over]
        return tuple(sorted(found))

    async def _suspend(self, job: Object, *, is_suspended: bool) -> None:
        """Suspend or resume a Job. This is the only field that may change after its creation."""
        if bool((job.get("spec") or {}).get("suspend")) == is_suspended or has_job_condition(job, "Complete"):
            return
        change = {"spec": {"suspend": is_suspended}}
        self._context.cache.put(await self._context.api.patch(ref_of(job), change, uid=uid_of(job)))


def _controller_of(document: Object) -> tuple[str, str, str]:
    """Return kind, name and uid of the controller of an object; empty texts if it has none."""
    owners = document["metadata"].get("ownerReferences") or []
    one: Mapping[str, Any] = next((one for one in owners if one.get("controller")), {})
    return str(one.get("kind", "")), str(one.get("name", "")), str(one.get("uid", ""))
