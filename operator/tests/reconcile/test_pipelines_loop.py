"""The loop of pipelines in a fake cluster: creation, changes, and always only one writer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from operator_world.cluster import ModelClock
from operator_world.fake_kubernetes import FakeKubernetes
from operator_world.waiting import until
from pipelines_scene import ROLE, Cluster, driver_report, ended, pod_status, report_text, resource
from test_operator_process import context_of, group_object

from gantry_operator.api import (
    CONFIG_MAPS,
    CRON_JOBS,
    EVENTS,
    GROUPS,
    JOBS,
    PIPELINES,
    PODS,
    ROLE_BINDINGS,
    STATEFUL_SETS,
    Kind,
    Object,
    ObjectRef,
)
from gantry_operator.metrics import Metrics
from gantry_operator.pipelines.facts import EngineFacts
from gantry_operator.pipelines.reconciler import (
    PipelineContext,
    PipelineReconciler,
    pipeline_cache,
)
from gantry_operator.resource_loop import LoopManager, ResourceLoop
from gantry_operator.watched_resources import WatchedResources

KIND = {kind.name: kind for kind in PIPELINES}
CRON = {"schedule": "*/10 * * * *"}
FOLDER = {"pvc": {"claimName": "archive", "path": "orders"}}


class Scene:
    """The pipelines of one operator in a fake cluster; the test runs each round."""

    def __init__(self) -> None:
        self.api = FakeKubernetes()
        self.cluster = Cluster(self.api)
        self.clock = ModelClock()
        groups = context_of(self.api)
        self.context = PipelineContext(
            cache=pipeline_cache(), groups=groups.cache, api=self.api, pages=self.cluster, clock=self.clock,
            metrics=Metrics(), engine=EngineFacts(image="pipelines:1", executors_role=ROLE),
        )  # fmt: skip
        no_loops = ("no-namespace",)
        self.resources = WatchedResources(LoopManager(groups, no_loops), LoopManager(self.context, no_loops))
        self.loops: dict[str, ResourceLoop[PipelineReconciler]] = {}
        self.api.watchers.append(self.resources.apply_event)

    def apply(self, document: Object) -> None:
        """Create or change a pipeline, as a user does."""
        ref = ObjectRef(KIND[document["kind"]], "shop", document["metadata"]["name"])
        known = self.api.objects.get(ref, {})
        self.api.put(document | ({"status": known["status"]} if "status" in known else {}))

    async def reconcile(self, base: str = "orders-archive", times: int = 2) -> float | None:
        """Run rounds, each some time later."""
        loop = self.loops.setdefault(base, ResourceLoop(("shop", base), self.context))
        pause: float | None = None
        for _ in range(times):
            self.clock.ms += 20_000
            pause = await loop.reconcile_once()
        return pause

    def status(self, name: str = "orders", kind: str = "TopicArchive") -> dict[str, Any]:
        """Return the present status of a pipeline."""
        found = self.api.found(KIND[kind], "shop", name)
        assert found is not None
        status: dict[str, Any] = found["status"]
        return status

    def condition(self, kind: str, name: str = "orders", of: str = "TopicArchive") -> tuple[str, str]:
        """Return status and reason of a condition."""
        [found] = [one for one in self.status(name, of)["conditions"] if one["type"] == kind]
        return found["status"], found["reason"]

    def has(self, kind: Kind, name: str = "orders-archive") -> bool:
        """Return whether an object exists."""
        return self.api.found(kind, "shop", name) is not None


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    made.api.put(group_object("prod"))
    yield made
    await made.resources.close()


async def test_archive_is_created_and_reports_its_progress(scene: Scene) -> None:
    """Its objects exist, its driver runs, and the status has the page, and later the last report."""
    scene.apply(resource())
    await scene.reconcile()
    assert scene.condition("Ready") == ("False", "Starting")

    scene.cluster.begin_pod(STATEFUL_SETS, "orders-archive", "orders-archive-0")
    scene.cluster.pages["10.0.0.7"] = driver_report(phase="running", rows=7, lagRows=3)
    await scene.reconcile()
    assert scene.condition("Ready") == ("True", "Running")
    assert (scene.status()["lastRun"]["rows"], scene.status()["lag"]["rows"]) == (7, 3)
    assert scene.status()["phase"] == "Running"

    scene.cluster.end_pod("orders-archive-0")
    await scene.reconcile()
    assert scene.status()["lastRun"]["rows"] == 7


async def test_no_api_calls_between_two_runs(scene: Scene) -> None:
    """A pipeline between two runs makes no calls to the API server."""
    scene.apply(resource(**CRON))
    await scene.reconcile(times=3)
    before = len(scene.api.calls)
    await scene.reconcile(times=5)
    assert scene.api.calls[before:] == []


async def test_scheduled_runs_are_reported(scene: Scene) -> None:
    """After two runs the status has the last one, and each has an event."""
    scene.apply(resource(**CRON))
    await scene.reconcile()
    for number in (1, 2):
        job, pod = f"orders-archive-{number}", f"orders-archive-{number}-x"
        scene.cluster.begin_job("orders-archive", job)
        scene.cluster.begin_pod(JOBS, job, pod)
        await scene.reconcile()
        assert scene.condition("Progressing") == ("True", "RunInProgress")
        at = f"2026-01-01T0{number}:00:00Z"
        text = report_text(driver_report(rows=number * 10, end=at, text=f"run {number}"))
        scene.cluster.set_status(PODS, pod, **pod_status(phase="Succeeded", state=ended(0, at, text)))
        await scene.reconcile()
        assert scene.status()["lastRun"]["rows"] == number * 10
        scene.cluster.end_pod(pod)
    messages = [one["message"] for one in scene.api.of_kind(EVENTS) if one["reason"] == "RunDone"]
    assert sorted(messages) == ["run 1", "run 2"]
    assert scene.has(CRON_JOBS)


@pytest.mark.parametrize(
    ("before", "after", "old", "new"),
    [(CRON, {}, CRON_JOBS, STATEFUL_SETS), ({}, CRON, STATEFUL_SETS, CRON_JOBS)],
    ids=["is continuous now", "has a schedule now"],
)
async def test_new_kind_of_workload_waits_for_the_last_pod_of_the_old_one(
    scene: Scene, before: dict[str, Any], after: dict[str, Any], old: Kind, new: Kind
) -> None:
    """There is one writer, even over an edit: the old workload is deleted, its pod ends, then the new one starts."""
    scene.apply(resource(**before))
    await scene.reconcile()
    of, kind = "orders-archive", old
    if old is CRON_JOBS:
        scene.cluster.begin_job("orders-archive", "orders-archive-1")
        of, kind = "orders-archive-1", JOBS
    scene.cluster.begin_pod(kind, of, "the-old-pod")
    await scene.reconcile()

    scene.apply(resource(**after))
    await scene.reconcile()
    assert not scene.has(old) and not scene.has(new)
    assert scene.condition("Progressing") == ("True", "WaitingForOldRun")

    scene.cluster.end_pod("the-old-pod")
    await scene.reconcile()
    assert scene.has(new)


async def test_second_archive_in_a_folder_is_refused(scene: Scene) -> None:
    """It has no objects, names the owner of the folder, and starts when that one is deleted."""
    first, second = resource(), resource(name="second")
    first["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    second["metadata"]["creationTimestamp"] = "2026-01-02T00:00:00Z"
    scene.apply(first)
    scene.apply(second)
    await scene.reconcile()
    await scene.reconcile("second-archive")
    assert scene.has(STATEFUL_SETS) and not scene.has(STATEFUL_SETS, "second-archive")
    assert scene.condition("Ready", "second") == ("False", "SharedDestination")
    assert "SharedDestination" in [one["reason"] for one in scene.api.of_kind(EVENTS)]

    scene.api.remove(ObjectRef(KIND["TopicArchive"], "shop", "orders"))
    await scene.reconcile("second-archive")
    assert scene.has(STATEFUL_SETS, "second-archive")


@pytest.mark.parametrize("deletion", ["background", "foreground"])
async def test_folder_of_a_deleted_pipeline_is_kept_until_its_pod_has_ended(scene: Scene, deletion: str) -> None:
    """Its driver may finish a batch for three minutes; a pipeline that runs in another folder is not disturbed."""
    other = resource("TopicAnalytics", "figures", destination={"pvc": {"claimName": "archive", "path": "figures"}})
    first, second = resource(destination=FOLDER), resource(name="second", destination=FOLDER)
    for number, one in enumerate((other, first, second)):
        one["metadata"]["creationTimestamp"] = f"2026-01-0{number + 1}T00:00:00Z"
        scene.apply(one)
    bases = ("figures-analytics", "orders-archive", "second-archive")
    for base in bases:
        await scene.reconcile(base)
    for base in bases[:2]:
        scene.cluster.begin_pod(STATEFUL_SETS, base, f"{base}-0")

    ref = ObjectRef(KIND["TopicArchive"], "shop", "orders")
    if deletion == "background":
        scene.api.remove(ref)
        scene.api.remove(ObjectRef(STATEFUL_SETS, "shop", "orders-archive"))
    else:
        known = scene.api.objects[ref]
        scene.api.put(known | {"metadata": known["metadata"] | {"deletionTimestamp": "2026-01-04T00:00:00Z"}})
    await scene.reconcile("second-archive")
    await scene.reconcile("figures-analytics")
    assert not scene.has(STATEFUL_SETS, "second-archive") and scene.has(STATEFUL_SETS, "figures-analytics")
    assert scene.condition("Progressing", "second") == ("True", "WaitingForOldRun")
    assert scene.condition("Progressing", "figures", "TopicAnalytics") == ("True", "RunInProgress")

    scene.cluster.end_pod("orders-archive-0")
    await scene.reconcile("second-archive")
    assert scene.has(STATEFUL_SETS, "second-archive")


async def test_no_pipeline_is_reconciled_before_all_kinds_are_listed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart an archive must not get a workload in a folder of an older pipeline of a kind listed later."""
    older, younger = resource("TopicAnalytics", "figures", **in_archive()), resource()
    older["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    younger["metadata"]["creationTimestamp"] = "2026-01-02T00:00:00Z"
    younger["status"] = {"phase": "Blocked"}
    scene.api.watchers.clear()
    for one in (older, younger):
        scene.api.put(one)
    list_now = scene.api.list

    async def list_slowly(kind: Kind, namespace: str = "", labels: str = "") -> list[Object]:
        for _ in range(50):
            await asyncio.sleep(0)
        return await list_now(kind, namespace, labels)

    groups, pipelines = LoopManager(context_of(scene.api), ["shop"]), LoopManager(scene.context, ["shop"])
    monkeypatch.setattr(scene.api, "list", list_slowly)
    resources = WatchedResources(groups, pipelines)
    resources.start_missing()
    await resources.list_all()
    loops = len(pipelines.loops) + len(groups.loops)
    resources.start_missing()
    await until(lambda: scene.has(STATEFUL_SETS, "figures-analytics"), "the older one is made")
    await until(lambda: bool(scene.status().get("conditions")), "the younger one is refused")
    await resources.close()

    assert ("apply", ObjectRef(STATEFUL_SETS, "shop", "orders-archive")) not in scene.api.calls
    assert scene.condition("Ready") == ("False", "SharedDestination")
    assert loops == 0


async def test_workload_of_a_younger_pipeline_is_deleted(scene: Scene) -> None:
    """The event of an older pipeline may come later. When that one is deleted, all objects are created again."""
    older = resource("TopicAnalytics", "figures", **in_archive())
    younger = resource(engine={"mode": "kubernetes"})
    older["metadata"]["creationTimestamp"] = younger["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    scene.apply(younger)
    await scene.reconcile()
    assert scene.has(STATEFUL_SETS) and scene.has(ROLE_BINDINGS)

    scene.apply(older)
    await scene.reconcile()
    assert scene.condition("Ready") == ("False", "SharedDestination")
    assert not scene.has(STATEFUL_SETS) and not scene.has(ROLE_BINDINGS)
    before = len(scene.api.calls)
    await scene.reconcile()
    assert scene.api.calls[before:] == [], "expected no calls in the next round"

    scene.api.remove(ObjectRef(KIND["TopicAnalytics"], "shop", "figures"))
    await scene.reconcile()
    assert scene.has(STATEFUL_SETS) and scene.has(ROLE_BINDINGS)


def in_archive() -> dict[str, Any]:
    """Return the part of a spec that names the destination of the archive `orders`."""
    return {"destination": {"pvc": {"claimName": "archive"}}}


async def test_pipeline_waits_for_its_group(scene: Scene) -> None:
    """Nothing is created before the group exists; existing objects stay when it is deleted."""
    scene.apply(resource(brokerGroups=["bills"]))
    await scene.reconcile()
    assert scene.condition("Ready") == ("False", "GroupNotFound")
    assert not scene.has(STATEFUL_SETS)

    scene.api.put(group_object("bills"))
    await scene.reconcile()
    assert scene.has(STATEFUL_SETS)
    scene.api.remove(ObjectRef(GROUPS, "shop", "bills"))
    await scene.reconcile()
    assert scene.has(STATEFUL_SETS)
    assert scene.condition("Ready") == ("False", "GroupNotFound")


async def test_unneeded_role_binding_is_deleted(scene: Scene) -> None:
    """A RoleBinding of another owner stays."""
    scene.apply(resource(engine={"mode": "kubernetes"}))
    await scene.reconcile()
    assert scene.has(ROLE_BINDINGS)
    foreign = {"name": "theirs", "namespace": "shop", "labels": {"gantry.dev/pipeline": "orders-archive"}}
    scene.api.put({"apiVersion": ROLE_BINDINGS.api_version, "kind": ROLE_BINDINGS.name, "metadata": foreign})

    scene.apply(resource())
    await scene.reconcile()
    assert not scene.has(ROLE_BINDINGS)
    assert scene.has(ROLE_BINDINGS, "theirs")


async def test_audit_runs_once_for_each_spec(scene: Scene) -> None:
    """Its Job is created, suspended and resumed, never recreated; a new spec has a new Job instead."""
    base = "check-audit"

    def jobs() -> list[Object]:
        return scene.api.of_kind(JOBS)

    scene.apply(resource("LogAudit", "check"))
    await scene.reconcile(base)
    [first] = jobs()
    scene.apply(resource("LogAudit", "check", suspend=True))
    await scene.reconcile(base)
    assert [one["spec"]["suspend"] for one in jobs()] == [True]
    scene.apply(resource("LogAudit", "check"))
    await scene.reconcile(base)
    assert [(one["metadata"]["uid"], one["spec"]["suspend"]) for one in jobs()] == [(first["metadata"]["uid"], False)]

    name = first["metadata"]["name"]
    pod = f"{name}-x"
    text = report_text(driver_report(job="audit", reason="NothingFound", text="12 chunks are equal"))
    scene.cluster.begin_pod(JOBS, name, pod, **pod_status(phase="Succeeded", state=ended(0, text=text)))
    scene.cluster.set_status(JOBS, name, conditions=[{"type": "Complete", "status": "True"}])
    await scene.reconcile(base)
    assert scene.condition("Ready", "check", "LogAudit") == ("True", "Done")

    scene.apply(resource("LogAudit", "check", checks=["index"]))
    await scene.reconcile(base)
    assert [one["metadata"]["name"] for one in jobs()] != [name] and len(jobs()) == 1


async def test_invalid_spec_is_a_condition(scene: Scene) -> None:
    """An older API server may store an invalid spec; nothing is changed, and the reason is reported."""
    scene.apply(resource())
    await scene.reconcile()
    scene.apply(resource(transport="file"))
    await scene.reconcile()
    assert scene.condition("Ready") == ("False", "InvalidSpec")
    assert scene.has(STATEFUL_SETS)


async def test_edit_changes_the_configuration(scene: Scene) -> None:
    """It applies to the next run, and to the pod of a continuous pipeline, whose template gets another hash."""

    def marks() -> tuple[str, str]:
        config, home = (scene.api.found(kind, "shop", "orders-archive") for kind in (CONFIG_MAPS, STATEFUL_SETS))
        assert config is not None and home is not None
        annotations = home["spec"]["template"]["metadata"]["annotations"]
        return config["data"]["pipeline.json"], annotations["gantry.dev/template"]

    scene.apply(resource())
    await scene.reconcile()
    before = marks()
    scene.apply(resource(trigger="10s"))
    await scene.reconcile()
    assert [old == new for old, new in zip(before, marks(), strict=True)] == [False, False]


async def test_pipelines_have_loops_of_their_own(scene: Scene) -> None:
    """A loop starts with a watch event, and ends with its resource; a pipeline's objects never count as a group's."""
    groups, pipelines = LoopManager(context_of(scene.api), ["shop"]), LoopManager(scene.context, ["shop"])
    resources = WatchedResources(groups, pipelines)
    scene.api.watchers[:] = [resources.apply_event]
    await resources.list_all()
    resources.start_missing()
    scene.apply(resource())
    await until(lambda: scene.has(STATEFUL_SETS), "it is made")
    assert set(pipelines.loops) == {("shop", "orders-archive")}
    assert groups.context.cache.get(ObjectRef(STATEFUL_SETS, "shop", "orders-archive")) is None

    scene.api.remove(ObjectRef(KIND["TopicArchive"], "shop", "orders"))
    await until(lambda: not pipelines.loops, "its task has ended")
    await resources.close()
