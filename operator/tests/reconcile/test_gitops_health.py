"""The health of groups and pipelines in Argo CD and by kstatus, from the statuses that the operator writes.

Argo CD runs the scripts of `manifests/argocd/health.yaml` with gopher-lua; Flux and Helm 4 use kstatus. Every status is
made by the operator's own code, in a model cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from gitops_scene import Health, judge, scripts
from operator_world.cluster import ModelCluster
from operator_world.simulation import SYNC, Simulation
from pipelines_scene import driver_report, ended, resource
from test_operator_backups import complete, requested, restored_from, snapshots
from test_pipelines_status import CRON, RUNNING, pod, view

from gantry_operator.api import CLAIMS, SERVICES, Object, ObjectRef
from gantry_operator.errors import ApiError, Forbidden, InvalidObject, Unavailable
from gantry_operator.pipelines.facts import Problem
from gantry_operator.pipelines.status import View, status_of
from gantry_operator.status import RECOVERY_S
from gantry_spec.manifest.crd import crd

pytestmark = pytest.mark.needs_gitops_judge

TWO = SYNC | {"shards": 2}
UNOBSERVED = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["default"]
HEALTHY = ("Healthy", "Current")
PROGRESSING = ("Progressing", "InProgress")
DEGRADED = ("Degraded", "InProgress")
REFUSED = ("Degraded", "Failed")
SUSPENDED = ("Suspended", "InProgress")


def health(simulation: Simulation) -> Health:
    """Return the health of the present group."""
    [found] = judge([simulation.cluster.group])
    return found


async def seconds(simulation: Simulation, count: float) -> list[Object]:
    """Run for this time; return the group after each round."""
    end_ms, found = simulation.cluster.clock.ms + count * 1000, []
    while simulation.cluster.clock.ms < end_ms:
        await simulation.step()
        found.append(simulation.cluster.group)
    return found


async def recorded(simulation: Simulation, predicate: Callable[[], bool], what: str) -> list[Object]:
    """Run until the condition holds; return the group after each round until then."""
    found: list[Object] = []

    def is_done() -> bool:
        found.append(simulation.cluster.group)
        return predicate()

    await simulation.run_until(is_done, what)
    return found


def kinds_of(resources: list[Object]) -> set[tuple[str, str]]:
    """Return the different judgements about these resources."""
    return {found[:2] for found in judge(resources)}


def test_every_kind_has_a_check() -> None:
    """The ConfigMap has a script for each of our kinds, and pipelines have the same one."""
    found = scripts()

    assert found.keys() == {"BrokerGroup", "TopicArchive", "LogAudit", "TopicAnalytics"}
    assert found["TopicArchive"] == found["LogAudit"] == found["TopicAnalytics"]


@pytest.mark.parametrize("script", ["return 1", "return {status = 'Good'}", "return {status = 'Healthy'}", "x.y = 1"])
def test_invalid_script_is_an_error(script: str) -> None:
    """The judge accepts only what Argo CD accepts, so a broken check cannot pass."""
    with pytest.raises(AssertionError, match="script"):
        judge([resource()], script)


def test_resource_that_no_operator_has_observed_is_in_progress() -> None:
    """The default of the status in the CRD makes it so; without a status kstatus takes it for ready."""
    group = ModelCluster(SYNC).group
    bare = {name: value for name, value in group.items() if name != "status"}
    pipelines = [resource(kind) for kind in ("TopicArchive", "LogAudit", "TopicAnalytics")]
    for one in pipelines:
        one["metadata"]["generation"] = 1

    assert kinds_of([one | {"status": UNOBSERVED} for one in (bare, *pipelines)]) == {PROGRESSING}
    assert kinds_of([bare]) == {("Progressing", "Current")}


async def test_new_group_is_progressing_until_it_is_healthy() -> None:
    """It is neither degraded nor ready before each shard has a master and its slaves."""
    simulation = Simulation(TWO)
    first = simulation.cluster.group | {"status": UNOBSERVED}
    creating = await recorded(simulation, simulation.is_healthy, "the group begins")
    await seconds(simulation, 5)

    assert kinds_of([first, *(one for one in creating[:-1] if one.get("status"))]) == {PROGRESSING}
    assert health(simulation)[:2] == HEALTHY
    types = {one["type"] for one in simulation.cluster.group["status"]["conditions"]}
    assert not {"Reconciling", "Stalled"} & types


@pytest.mark.parametrize(
    "change", [{"image": "gantry:next"}, {"slaves": 2}, {"shards": 2}], ids=lambda one: next(iter(one))
)
async def test_edited_group_is_progressing_until_the_edit_is_done(change: dict[str, Any]) -> None:
    """From the edit on it is never ready before every pod has the new template, and never degraded."""
    simulation = await Simulation(SYNC).run_until_healthy()
    await seconds(simulation, 5)
    simulation.cluster.edit(**change)

    def is_done() -> bool:
        pods = simulation.cluster.pods()
        images = {one["image"] for pod in pods for one in pod["spec"]["containers"]}
        count = simulation.cluster.group["spec"]["shards"] * (1 + simulation.cluster.group["spec"]["slaves"])
        return len(pods) == count and images == {change.get("image", "gantry:test")} and simulation.is_healthy()

    rolling = await recorded(simulation, is_done, "the edit is done")
    await seconds(simulation, 10)

    assert len(rolling) > 3
    assert kinds_of(rolling[:-1]) == {PROGRESSING}
    assert health(simulation)[:2] == HEALTHY


async def test_roll_without_its_condition_would_count_as_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: without `Reconciling`, kstatus finds the group ready before the roll has ended."""
    monkeypatch.setattr("gantry_operator.status.progress_conditions", lambda *_: [])
    simulation = await Simulation(SYNC).run_until_healthy()
    simulation.cluster.edit(image="gantry:next")

    def is_done() -> bool:
        return {one["image"] for pod in simulation.cluster.pods() for one in pod["spec"]["containers"]} == {
            "gantry:next"
        }

    rolling = await recorded(simulation, is_done, "every pod is new")

    assert "Current" in {kstatus for _, kstatus in kinds_of(rolling[:-1])}


async def test_missing_replica_degrades_after_a_while() -> None:
    """A pod that comes back soon only makes the group progress."""
    simulation = await Simulation(SYNC).run_until_healthy()
    simulation.cluster.is_scheduling = False
    slave = simulation.cluster.pod(0, 2)
    assert slave is not None
    simulation.cluster.terminate(slave)

    early = await seconds(simulation, 60)
    await seconds(simulation, RECOVERY_S)

    assert kinds_of(early) <= {HEALTHY, PROGRESSING}
    assert health(simulation)[:2] == DEGRADED
    simulation.cluster.is_scheduling = True
    await simulation.run_until_healthy()
    await seconds(simulation, 5)
    assert health(simulation)[:2] == HEALTHY


async def test_group_without_a_master_is_degraded() -> None:
    """No member can take over, and clients cannot send."""
    simulation = await Simulation(SYNC).run_until_healthy()
    for node in {simulation.cluster.node_of(0, 1), simulation.cluster.node_of(0, 2)}:
        simulation.cluster.disconnect_node(node)
    await seconds(simulation, 60)

    assert health(simulation)[:2] == DEGRADED


@pytest.mark.parametrize(
    ("order", "condition"),
    [({"paused": "true"}, "Paused"), ({"hibernate": "true"}, "Hibernated"), ({"fence": "0"}, "Fenced")],
    ids=["paused", "hibernated", "fenced"],
)
async def test_ordered_states_are_suspended(order: dict[str, str], condition: str) -> None:
    """Argo CD shows them as suspended; kstatus has no such state, so that it waits for their end."""
    simulation = await Simulation(SYNC).run_until_healthy()
    simulation.cluster.annotate(**order)
    await simulation.run_until(lambda: simulation.condition(condition)[0] == "True", condition)
    await seconds(simulation, 10)

    assert health(simulation)[:2] == SUSPENDED
    simulation.cluster.annotate(**dict.fromkeys(order))
    await simulation.run_until_healthy()
    await simulation.run_until(lambda: health(simulation)[:2] == HEALTHY, "it is healthy again")


async def test_edit_of_a_paused_group_is_not_done() -> None:
    """The operator observes the generation, but applies nothing."""
    simulation = await Simulation(SYNC).run_until_healthy()
    simulation.cluster.annotate(paused="true")
    simulation.cluster.edit(image="gantry:next")
    after = await seconds(simulation, 20)

    assert after[-1]["status"]["observedGeneration"] == after[-1]["metadata"]["generation"]
    assert "Current" not in {kstatus for _, kstatus in kinds_of(after)}


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (InvalidObject("Service", "spec.ports: invalid", 422), REFUSED),
        (Forbidden("Service", "exceeded quota", 403), DEGRADED),
        (Unavailable("Service", "timed out"), DEGRADED),
    ],
    ids=["invalid", "forbidden", "unavailable"],
)
async def test_object_that_is_not_applied_degrades(error: ApiError, expected: tuple[str, str]) -> None:
    """It is a failure only if the API server finds the object invalid: anything else may end without an edit."""
    simulation = await Simulation(SYNC).run_until_healthy()
    simulation.cluster.api.fault_of = lambda verb, ref: error if (verb, ref.kind) == ("apply", SERVICES) else None
    simulation.cluster.edit(slaves=2)
    await simulation.run_until(lambda: simulation.condition("Applied")[0] == "False", "the refusal is reported")
    await seconds(simulation, 30 + RECOVERY_S)

    found = health(simulation)
    assert found[:2] == expected and error.reason in found.message
    simulation.cluster.api.fault_of = lambda verb, ref: None
    await simulation.run_until(lambda: health(simulation)[:2] == HEALTHY, "it is healthy again", 300)


async def test_volume_that_cannot_grow_degrades() -> None:
    """Its message names the volume."""
    simulation = await Simulation(SYNC).run_until_healthy()

    def fault(verb: str, ref: ObjectRef) -> ApiError | None:
        return Forbidden(str(ref), "no expansion", 403) if (verb, ref.kind) == ("patch", CLAIMS) else None

    simulation.cluster.api.fault_of = fault
    simulation.cluster.edit(storage={"size": "40Gi"})
    await seconds(simulation, 30)

    found = health(simulation)
    assert found[:2] == DEGRADED and "cannot grow" in found.message


@pytest.mark.parametrize("what", ["spec", "resources", "order"])
async def test_what_needs_an_edit_is_a_failure(what: str) -> None:
    """An invalid spec, impossible resources and an invalid order do not end by themselves."""
    simulation = await Simulation(SYNC).run_until_healthy()
    if what == "spec":
        simulation.cluster.edit(shards="many")
    elif what == "resources":
        simulation.cluster.edit(resources={"limits": {"memory": "1Mi"}})
    else:
        simulation.cluster.annotate(promote="soon")
    after = await seconds(simulation, 10)

    assert health(simulation)[:2] == REFUSED
    assert kinds_of(after[:-1]) <= {HEALTHY, PROGRESSING, REFUSED}
    if what == "order":
        simulation.cluster.annotate(promote=None)
        await seconds(simulation, 5)
        assert health(simulation)[:2] == HEALTHY


@pytest.mark.parametrize("is_short", [False, True], ids=["complete", "incomplete"])
async def test_restored_group_is_healthy_if_its_data_is_complete(is_short: bool) -> None:
    """A snapshot that lacks data makes it degraded."""
    simulation = await requested()
    await simulation.run_until(lambda: complete(simulation) == ["first"], "the backup is complete")
    made = {one["metadata"]["labels"]["gantry.dev/shard"]: one for one in snapshots(simulation)}
    if is_short:
        store = simulation.cluster.snapshots[made["1"]["metadata"]["uid"]]
        store.flushed = len(store.log) // 2
    await simulation.loop.reconciler.close()
    restored = restored_from(simulation, made)
    await restored.run_until_healthy()
    await seconds(restored, 10)

    assert health(restored)[:2] == (("Degraded", "Current") if is_short else HEALTHY)


# -- pipelines ---------------------------------------------------------------------------------------------------------


def pipeline_resource(seen: View) -> Object:
    """Return the resource of a pipeline with the status that the operator writes for this observation."""
    known = resource(seen.pipeline.kind.name)
    known["metadata"]["generation"] = seen.pipeline.metadata.generation
    return known | {"status": msgspec.to_builtins(status_of(seen))}


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (view(), PROGRESSING),
        (view("TopicArchive", pod(**RUNNING)), PROGRESSING),
        (view("TopicArchive", pod(**RUNNING), page=driver_report(rows=7)), HEALTHY),
        (view("TopicArchive", pod(state=ended(1), restarts=3)), DEGRADED),
        (view(spec={"suspend": True}), SUSPENDED),
        (view(spec=CRON), HEALTHY),
        (view("TopicArchive", pod(phase="Failed", state=ended(1)), spec=CRON), DEGRADED),
        (view("LogAudit"), PROGRESSING),
        (view("LogAudit", is_done=True), HEALTHY),
        (view("LogAudit", pod(phase="Failed", state=ended(1)), has_failed_for_good=True), REFUSED),
        (view(problem=Problem("GroupNotFound", "BrokerGroup prod not found")), PROGRESSING),
        (view(problem=Problem("ImageMissing", "no image")), REFUSED),
        (view(unapplied="quota"), DEGRADED),
        (view(outdated_pods=("orders-archive-0",), spec=CRON), PROGRESSING),
        (view("TopicArchive", pod(phase="Failed", state=ended(5)), spec=CRON), DEGRADED),
    ],
    ids=[
        *(
            "new",
            "silent",
            "running",
            "failing",
            "suspended",
            "scheduled",
            "failed",
            "begun",
            "done",
            "failed for good",
        ),
        *("no group", "no image", "unapplied", "old run", "data loss"),
    ],
)
def test_health_of_pipelines(seen: View, expected: tuple[str, str]) -> None:
    """Every state of a pipeline has one health; a run that is under way does not make kstatus wait."""
    [found] = judge([pipeline_resource(seen)])

    assert found[:2] == expected, found
