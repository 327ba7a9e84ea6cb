"""Pipelines looked after: made, watched, changed, and never two writers, in a cluster that is played."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from operator_world.cluster import ModelClock
from operator_world.fake_kubernetes import FakeKubernetes
from operator_world.waiting import until
from pipelines_scene import ROLE, Cluster, ended, pod_status, resource, text_of, words
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
    Place,
)
from gantry_operator.metrics import Metrics
from gantry_operator.pipelines.facts import EngineFacts
from gantry_operator.pipelines.reconciler import (
    PipelineContext,
    PipelineReconciler,
    pipeline_cache,
)
from gantry_operator.resource_loop import LoopKeeper, ResourceLoop
from gantry_operator.watched_resources import WatchedResources

KIND = {kind.name: kind for kind in PIPELINES}
CRON = {"schedule": "*/10 * * * *"}


class Scene:
    """One operator's pipelines over a cluster in memory; each look is asked for."""

    def __init__(self) -> None:
        self.api = FakeKubernetes()
        self.cluster = Cluster(self.api)
        self.clock = ModelClock()
        groups = context_of(self.api)
        self.context = PipelineContext(
            cache=pipeline_cache(), groups=groups.cache, api=self.api, pages=self.cluster, clock=self.clock,
            metrics=Metrics(), engine=EngineFacts(image="pipelines:1", executors_role=ROLE),
        )  # fmt: skip
        no_loops = ("only-when-told",)
        self.resources = WatchedResources(LoopKeeper(groups, no_loops), LoopKeeper(self.context, no_loops))
        self.loops: dict[str, ResourceLoop[PipelineReconciler]] = {}
        self.api.watchers.append(self.resources.take)

    def apply(self, document: Object) -> None:
        """As a person does."""
        place = Place(KIND[document["kind"]], "shop", document["metadata"]["name"])
        known = self.api.objects.get(place, {})
        self.api.put(document | ({"status": known["status"]} if "status" in known else {}))

    async def look(self, base: str = "orders-archive", times: int = 2) -> float | None:
        """Come round, some time later."""
        loop = self.loops.setdefault(base, ResourceLoop(("shop", base), self.context))
        pause: float | None = None
        for _ in range(times):
            self.clock.ms += 20_000
            pause = await loop.step()
        return pause

    def status(self, name: str = "orders", kind: str = "TopicArchive") -> dict[str, Any]:
        """What stands there."""
        found = self.api.found(KIND[kind], "shop", name)
        assert found is not None
        status: dict[str, Any] = found["status"]
        return status

    def condition(self, kind: str, name: str = "orders", of: str = "TopicArchive") -> tuple[str, str]:
        """Status and reason of one."""
        [found] = [one for one in self.status(name, of)["conditions"] if one["type"] == kind]
        return found["status"], found["reason"]

    def has(self, kind: Kind, name: str = "orders-archive") -> bool:
        """Whether it is there."""
        return self.api.found(kind, "shop", name) is not None


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    made.api.put(group_object("prod"))
    yield made
    await made.resources.close()


async def test_an_archive_is_made_and_says_how_far_it_is(scene: Scene) -> None:
    """Its objects, a driver that runs, what its page says, and what it said last."""
    scene.apply(resource())
    await scene.look()
    assert scene.condition("Ready") == ("False", "Starting")

    scene.cluster.begin_pod(STATEFUL_SETS, "orders-archive", "orders-archive-0")
    scene.cluster.pages["10.0.0.7"] = words(phase="running", rows=7, lagRows=3)
    await scene.look()
    assert scene.condition("Ready") == ("True", "Running")
    assert (scene.status()["lastRun"]["rows"], scene.status()["lag"]["rows"]) == (7, 3)
    assert scene.status()["phase"] == "Running"

    scene.cluster.end_pod("orders-archive-0")
    await scene.look()
    assert scene.status()["lastRun"]["rows"] == 7


async def test_nobody_is_asked_anything_at_rest(scene: Scene) -> None:
    """A pipeline between two runs costs the API server no call."""
    scene.apply(resource(**CRON))
    await scene.look(times=3)
    before = len(scene.api.calls)
    await scene.look(times=5)
    assert scene.api.calls[before:] == []


async def test_runs_of_a_schedule_leave_what_they_did(scene: Scene) -> None:
    """Two runs, one after the other: the status has the last, and each is told."""
    scene.apply(resource(**CRON))
    await scene.look()
    for number in (1, 2):
        job, pod = f"orders-archive-{number}", f"orders-archive-{number}-x"
        scene.cluster.begin_job("orders-archive", job)
        scene.cluster.begin_pod(JOBS, job, pod)
        await scene.look()
        assert scene.condition("Progressing") == ("True", "RunUnderWay")
        at = f"2026-01-01T0{number}:00:00Z"
        text = text_of(words(rows=number * 10, end=at, text=f"run {number}"))
        scene.cluster.set_status(PODS, pod, **pod_status(phase="Succeeded", state=ended(0, at, text)))
        await scene.look()
        assert scene.status()["lastRun"]["rows"] == number * 10
        scene.cluster.end_pod(pod)
    told = [one["message"] for one in scene.api.of_kind(EVENTS) if one["reason"] == "RunDone"]
    assert sorted(told) == ["run 1", "run 2"]
    assert scene.has(CRON_JOBS)


@pytest.mark.parametrize(
    ("before", "after", "old", "new"),
    [(CRON, {}, CRON_JOBS, STATEFUL_SETS), ({}, CRON, STATEFUL_SETS, CRON_JOBS)],
    ids=["goes on now", "has a schedule now"],
)
async def test_another_shape_waits_for_the_last_pod_of_the_old_one(
    scene: Scene, before: dict[str, Any], after: dict[str, Any], old: Kind, new: Kind
) -> None:
    """One writer at a time, also over an edit: the old workload goes, its pod ends, and only then the new one comes."""
    scene.apply(resource(**before))
    await scene.look()
    of, kind = "orders-archive", old
    if old is CRON_JOBS:
        scene.cluster.begin_job("orders-archive", "orders-archive-1")
        of, kind = "orders-archive-1", JOBS
    scene.cluster.begin_pod(kind, of, "the-old-pod")
    await scene.look()

    scene.apply(resource(**after))
    await scene.look()
    assert not scene.has(old) and not scene.has(new)
    assert scene.condition("Progressing") == ("True", "WaitingForOldRun")

    scene.cluster.end_pod("the-old-pod")
    await scene.look()
    assert scene.has(new)


async def test_two_archives_in_one_folder_are_one_and_a_refusal(scene: Scene) -> None:
    """The second has no objects at all, says who has the folder, and comes when that one is gone."""
    first, second = resource(), resource(name="second")
    first["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    second["metadata"]["creationTimestamp"] = "2026-01-02T00:00:00Z"
    scene.apply(first)
    scene.apply(second)
    await scene.look()
    await scene.look("second-archive")
    assert scene.has(STATEFUL_SETS) and not scene.has(STATEFUL_SETS, "second-archive")
    assert scene.condition("Ready", "second") == ("False", "SharedDestination")
    assert "SharedDestination" in [one["reason"] for one in scene.api.of_kind(EVENTS)]

    scene.api.remove(Place(KIND["TopicArchive"], "shop", "orders"))
    await scene.look("second-archive")
    assert scene.has(STATEFUL_SETS, "second-archive")


async def test_a_pipeline_waits_for_its_group(scene: Scene) -> None:
    """Nothing is made before there is one to read; what was made stays when it goes."""
    scene.apply(resource(brokerGroups=["bills"]))
    await scene.look()
    assert scene.condition("Ready") == ("False", "GroupNotFound")
    assert not scene.has(STATEFUL_SETS)

    scene.api.put(group_object("bills"))
    await scene.look()
    assert scene.has(STATEFUL_SETS)
    scene.api.remove(Place(GROUPS, "shop", "bills"))
    await scene.look()
    assert scene.has(STATEFUL_SETS)
    assert scene.condition("Ready") == ("False", "GroupNotFound")


async def test_a_driver_gives_its_right_back_with_its_executors(scene: Scene) -> None:
    """A binding that is not needed any more is deleted, and one of somebody else's is not."""
    scene.apply(resource(engine={"mode": "kubernetes"}))
    await scene.look()
    assert scene.has(ROLE_BINDINGS)
    foreign = {"name": "theirs", "namespace": "shop", "labels": {"gantry.dev/pipeline": "orders-archive"}}
    scene.api.put({"apiVersion": ROLE_BINDINGS.api_version, "kind": ROLE_BINDINGS.name, "metadata": foreign})

    scene.apply(resource())
    await scene.look()
    assert not scene.has(ROLE_BINDINGS)
    assert scene.has(ROLE_BINDINGS, "theirs")


async def test_an_audit_is_done_once_for_each_spec(scene: Scene) -> None:
    """Its Job is made, suspended and resumed, and never made again; another spec is another Job, the old one goes."""
    base = "check-audit"

    def jobs() -> list[Object]:
        return scene.api.of_kind(JOBS)

    scene.apply(resource("LogAudit", "check"))
    await scene.look(base)
    [first] = jobs()
    scene.apply(resource("LogAudit", "check", suspend=True))
    await scene.look(base)
    assert [one["spec"]["suspend"] for one in jobs()] == [True]
    scene.apply(resource("LogAudit", "check"))
    await scene.look(base)
    assert [(one["metadata"]["uid"], one["spec"]["suspend"]) for one in jobs()] == [(first["metadata"]["uid"], False)]

    name = first["metadata"]["name"]
    pod = f"{name}-x"
    text = text_of(words(job="audit", reason="NothingFound", text="12 chunks are equal"))
    scene.cluster.begin_pod(JOBS, name, pod, **pod_status(phase="Succeeded", state=ended(0, text=text)))
    scene.cluster.set_status(JOBS, name, conditions=[{"type": "Complete", "status": "True"}])
    await scene.look(base)
    assert scene.condition("Ready", "check", "LogAudit") == ("True", "Done")

    scene.apply(resource("LogAudit", "check", checks=["index"]))
    await scene.look(base)
    assert [one["metadata"]["name"] for one in jobs()] != [name] and len(jobs()) == 1


async def test_a_spec_that_cannot_be_read_is_a_condition(scene: Scene) -> None:
    """An older API server may hold what this operator refuses; nothing is touched, and it is said."""
    scene.apply(resource())
    await scene.look()
    scene.apply(resource(transport="file"))
    await scene.look()
    assert scene.condition("Ready") == ("False", "InvalidSpec")
    assert scene.has(STATEFUL_SETS)


async def test_an_edit_reaches_the_configuration(scene: Scene) -> None:
    """Of what runs next, and of the pod that goes on, whose template has another hash."""

    def marks() -> tuple[str, str]:
        config, home = (scene.api.found(kind, "shop", "orders-archive") for kind in (CONFIG_MAPS, STATEFUL_SETS))
        assert config is not None and home is not None
        annotations = home["spec"]["template"]["metadata"]["annotations"]
        return config["data"]["pipeline.json"], annotations["gantry.dev/template"]

    scene.apply(resource())
    await scene.look()
    before = marks()
    scene.apply(resource(trigger="10s"))
    await scene.look()
    assert [old == new for old, new in zip(before, marks(), strict=True)] == [False, False]


async def test_pipelines_have_tasks_of_their_own_beside_groups(scene: Scene) -> None:
    """Begun by a watch, ended with the resource; and what is a pipeline's is never taken for a group's."""
    groups, pipelines = LoopKeeper(context_of(scene.api), ["shop"]), LoopKeeper(scene.context, ["shop"])
    resources = WatchedResources(groups, pipelines)
    scene.api.watchers[:] = [resources.take]
    await resources.list_all()
    scene.apply(resource())
    await until(lambda: scene.has(STATEFUL_SETS), "it is made")
    assert set(pipelines.loops) == {("shop", "orders-archive")}
    assert groups.context.cache.get(Place(STATEFUL_SETS, "shop", "orders-archive")) is None

    scene.api.remove(Place(KIND["TopicArchive"], "shop", "orders"))
    await until(lambda: not pipelines.loops, "its task has ended")
    await resources.close()
