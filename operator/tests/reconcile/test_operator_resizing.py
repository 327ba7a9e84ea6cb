"""An edit of CPU and memory: running brokers get them without a restart, or are rolled where that is not possible.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

from typing import Any

import pytest
from operator_world.cluster import GROUP, NAMESPACE, ResizeAnswer
from operator_world.simulation import SYNC, Simulation, operator_of

from gantry_operator.api import CLAIMS, EVENTS, PODS, ObjectRef, uid_of
from gantry_operator.errors import ApiError, Conflict, Forbidden, InvalidObject, NotFound, Unavailable
from gantry_operator.execute import resizer
from gantry_operator.execute.resizer import Resizer
from gantry_spec.observed import Role


@pytest.fixture(autouse=True)
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of minutes take seconds of the model."""
    monkeypatch.setattr(resizer, "EFFECT_MS", EFFECT_MS)
    monkeypatch.setattr(resizer, "FILE_SYSTEM_MS", FILE_SYSTEM_MS)
    monkeypatch.setattr(resizer, "HELD_RETRY_MS", 15_000)


EFFECT_MS = 30_000
FILE_SYSTEM_MS = 60_000
THREE = SYNC | {"slaves": 2}
LARGER: dict[str, Any] = {"limits": {"memory": "2Gi", "cpu": "2"}, "requests": {"memory": "1Gi", "cpu": "1"}}
LIMIT = "2064Mi"
"""The memory limit of a pod with these resources: 16 MiB are for the volume of the status page."""


def uids(simulation: Simulation) -> dict[int, str]:
    """Return the uids of the pods by member."""
    return {simulation.cluster.place(pod).member: uid_of(pod) for pod in simulation.cluster.pods()}


def limits(simulation: Simulation) -> dict[int, str]:
    """Return the memory limits that the brokers have now, by member."""
    return {
        simulation.cluster.place(pod).member: container["resources"]["limits"]["memory"]
        for pod in simulation.cluster.pods()
        for container in pod["status"].get("containerStatuses", [])
    }


def is_resized(simulation: Simulation) -> bool:
    return list(limits(simulation).values()) == [LIMIT] * 3


def resized_members(simulation: Simulation) -> list[int]:
    """Return the members whose pods were resized, in the order of the calls."""
    calls = [ref.name for verb, ref in simulation.cluster.api.calls if verb == "resize"]
    members = {pod["metadata"]["name"]: simulation.cluster.place(pod).member for pod in simulation.cluster.pods()}
    return [members[name] for name in calls]


def event_reasons(simulation: Simulation) -> list[str]:
    return [one["reason"] for one in simulation.cluster.api.of_kind(EVENTS)]


async def edited(resources: Any = LARGER, **fields: Any) -> Simulation:
    """Return a healthy group whose resources were just edited."""
    simulation = await Simulation(THREE).run_until_healthy()
    simulation.cluster.edit(resources=resources, **fields)
    return simulation


async def test_running_brokers_get_more_memory_one_after_another() -> None:
    """No pod is recreated, the master's is the last one, and the status has nothing left to say."""
    simulation = await edited()
    before, most = uids(simulation), 0

    def is_done() -> bool:
        nonlocal most
        pods = [
            simulation.cluster.api.found(PODS, NAMESPACE, one["metadata"]["name"]) for one in simulation.cluster.pods()
        ]
        open_ones = [
            pod
            for pod in pods
            if pod and pod["spec"]["containers"][0]["resources"] != pod["status"]["containerStatuses"][0]["resources"]
        ]
        most = max(most, len(open_ones))
        return is_resized(simulation)

    await simulation.run_until(is_done, "all brokers are resized")
    await simulation.run_until(lambda: simulation.condition("Resized") == ("", "", ""), "the status is current")

    assert uids(simulation) == before
    assert resized_members(simulation) == [2, 3, 1]
    assert most <= 1
    assert simulation.cluster.shards[0].brokers[1].role is Role.MASTER
    assert event_reasons(simulation).count("BrokerResized") == 3
    assert limits(simulation) == {1: LIMIT, 2: LIMIT, 3: LIMIT}


@pytest.mark.parametrize(
    "error",
    [InvalidObject("resize", "the memory limit may not be decreased", 422), NotFound("resize", "no such path", 404),
     Forbidden("resize", 'pods "g" is forbidden: User "u" cannot patch resource "pods/resize"', 403)],
    ids=["refused", "old API server", "no right"],
)  # fmt: skip
async def test_refused_resize_becomes_a_roll(error: ApiError) -> None:
    """Each pod is tried once, then the group is rolled as for any other edit, with a switchover before the master."""
    simulation = await edited()
    before = uids(simulation)
    simulation.cluster.api.fault_of = lambda verb, ref: error if verb == "resize" else None

    await simulation.run_until(lambda: is_resized(simulation), "all brokers have the resources", 400)
    await simulation.run_until(simulation.is_healthy, "the group is ready")

    assert not set(uids(simulation).values()) & set(before.values())


async def test_without_the_fallback_a_refused_resize_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: the edit would be ignored for ever."""
    monkeypatch.setattr(Resizer, "must_restart", lambda self, shard, pod: False)
    simulation = await edited()
    before = uids(simulation)
    simulation.cluster.api.fault_of = lambda verb, ref: InvalidObject("resize", "no", 422) if verb == "resize" else None
    for _ in range(600):
        await simulation.step()

    assert uids(simulation) == before
    assert LIMIT not in limits(simulation).values()


@pytest.mark.parametrize("answer", [ResizeAnswer.INFEASIBLE, ResizeAnswer.NOTHING], ids=["no room ever", "no effect"])
async def test_resize_that_cannot_take_effect_becomes_a_roll(answer: ResizeAnswer) -> None:
    """The machine is too small, or kubelet does not resize: the pods are made anew, each once."""
    simulation = await edited()
    before = uids(simulation)
    simulation.cluster.resize_answer = answer

    def is_rolled() -> bool:
        return is_resized(simulation) and not set(uids(simulation).values()) & set(before.values())

    await simulation.run_until(is_rolled, "all pods are new", 6 * EFFECT_MS / 1_000)
    await simulation.run_until(simulation.is_healthy, "the group is ready")
    after = uids(simulation)
    for _ in range(200):
        await simulation.step()

    assert uids(simulation) == after


async def test_machine_without_room_is_waited_for() -> None:
    """A restart would leave the pod without a machine, so it runs with its old resources, and the status says why."""
    simulation = await edited()
    before = uids(simulation)
    simulation.cluster.resize_answer = ResizeAnswer.DEFERRED
    await simulation.run_until(lambda: simulation.condition("Resized")[0] == "False", "the status says it")
    for _ in range(400):
        await simulation.step()

    assert uids(simulation) == before
    assert resized_members(simulation) == [2, 3, 1], "one that waits does not hold up the others"
    status, reason, message = simulation.condition("Resized")
    assert (status, reason) == ("False", "Waiting")
    assert "g-0-slave-0" in message
    assert "there is no room now" in message

    simulation.cluster.resize_answer = ResizeAnswer.DONE
    await simulation.run_until(lambda: is_resized(simulation), "the machines have room")
    await simulation.run_until(lambda: simulation.condition("Resized") == ("", "", ""), "the status is current")

    assert uids(simulation) == before


async def test_edit_of_more_than_resources_is_one_roll() -> None:
    """Nothing is resized that is restarted a moment later."""
    simulation = await edited(template={"labels": {"team": "payments"}})
    before = uids(simulation)

    await simulation.run_until(
        lambda: is_resized(simulation) and not set(uids(simulation).values()) & set(before.values()),
        "it is rolled",
        400,
    )

    assert resized_members(simulation) == []


async def test_next_operator_continues_where_the_last_one_ended() -> None:
    """It has died after the first resize."""
    simulation = await edited()
    before = uids(simulation)
    await simulation.run_until(lambda: resized_members(simulation) != [], "the first pod is resized")
    await simulation.loop.reconciler.close()

    simulation.loop = operator_of(simulation.cluster)
    await simulation.run_until(lambda: is_resized(simulation), "all brokers are resized")

    assert uids(simulation) == before


@pytest.mark.parametrize("error", [Unavailable("resize", "busy", 503), Conflict("resize", "changed", 409)], ids=str)
async def test_error_that_passes_is_tried_again(error: ApiError) -> None:
    """No pod is restarted because the API server was busy, or because the pod had changed."""
    simulation = await edited()
    before, failures = uids(simulation), 0

    def fault_of(verb: str, ref: ObjectRef) -> ApiError | None:
        nonlocal failures
        failures += verb == "resize"
        return error if verb == "resize" and failures <= 3 else None

    simulation.cluster.api.fault_of = fault_of
    await simulation.run_until(lambda: is_resized(simulation), "all brokers are resized")

    assert uids(simulation) == before
    assert failures >= 6


async def test_paused_group_is_not_resized() -> None:
    """A pause stops this change, too."""
    simulation = await Simulation(THREE).run_until_healthy()
    simulation.cluster.annotate(paused="true")
    await simulation.step()
    simulation.cluster.edit(resources=LARGER)
    for _ in range(40):
        await simulation.step()

    assert resized_members(simulation) == []
    assert GROUP in simulation.cluster.group["metadata"]["name"]


async def test_volume_whose_file_system_grows_only_when_mounted_is_a_roll() -> None:
    """Each pod is restarted once, also if that does not help: then the driver has another fault."""
    simulation = await Simulation(THREE).run_until_healthy()
    cluster, before = simulation.cluster, uids(simulation)
    for pod in cluster.pods():
        pod["metadata"]["creationTimestamp"] = cluster.clock.wall().isoformat()
        cluster.api.put(pod)
    cluster.clock.ms += 1_000
    condition = {"type": "FileSystemResizePending", "status": "True"}
    for claim in cluster.api.of_kind(CLAIMS):
        claim["status"]["conditions"] = [condition | {"lastTransitionTime": cluster.clock.wall().isoformat()}]
        cluster.api.put(claim)

    for _ in range(FILE_SYSTEM_MS // 250 - 40):
        await simulation.step()
    assert uids(simulation) == before, "kubelet may still do it"
    await simulation.run_until(
        lambda: len(uids(simulation)) == 3 and not set(uids(simulation).values()) & set(before.values()),
        "it is rolled",
        400,
    )
    await simulation.run_until(simulation.is_healthy, "the group is ready")
    after = uids(simulation)
    for _ in range(200):
        await simulation.step()

    assert uids(simulation) == after


# ------- what others do to pods


async def with_cpu_default() -> Simulation:
    """Return a group in a namespace that gives pods a CPU limit, which its template does not have."""
    simulation = Simulation(THREE)
    simulation.cluster.cpu_default = "4"
    await simulation.run_until_healthy()
    assert {pod["spec"]["containers"][0]["resources"]["limits"]["cpu"] for pod in simulation.cluster.pods()} == {"4"}
    for _ in range(200):
        await simulation.step()
    return simulation


@pytest.mark.parametrize("error", [NotFound("resize", "no such path", 404), None], ids=["old API server", "new one"])
async def test_resources_that_others_have_added_are_left_alone(error: ApiError | None) -> None:
    """The pods were made for the resources of their template, so nothing is resized and nothing restarted."""
    simulation = Simulation(THREE)
    simulation.cluster.api.fault_of = lambda verb, ref: error if verb == "resize" else None
    simulation.cluster.cpu_default = "4"
    await simulation.run_until_healthy()
    before = uids(simulation)
    for _ in range(300):
        await simulation.step()

    assert uids(simulation) == before
    assert resized_members(simulation) == []


@pytest.mark.parametrize("is_added_again", [False, True], ids=["once", "at each resize"])
async def test_resources_that_others_have_added_stay_in_a_resize(is_added_again: bool) -> None:
    """All brokers get the memory of the edit, once each, and keep the CPU limit of the namespace."""
    simulation = await with_cpu_default()
    cluster, before = simulation.cluster, uids(simulation)
    if is_added_again:
        cluster.api.on_resize = lambda pod: cluster.add_default(pod["spec"])
    cluster.edit(resources={"limits": {"memory": "2Gi"}})

    await simulation.run_until(lambda: is_resized(simulation), "all brokers are resized")
    for _ in range(300):
        await simulation.step()

    assert uids(simulation) == before
    assert resized_members(simulation) == [2, 3, 1]
    assert {pod["spec"]["containers"][0]["resources"]["limits"]["cpu"] for pod in cluster.pods()} == {"4"}


async def test_resize_that_others_undo_becomes_one_roll() -> None:
    """Something in the cluster decides on the memory of pods: it is asked three times, then the pods are made anew."""
    simulation = await edited()
    before = uids(simulation)

    def undo(pod: Any) -> None:
        pod["spec"]["containers"][0]["resources"] = {"limits": {"memory": "1Gi"}}

    simulation.cluster.api.on_resize = undo
    await simulation.run_until(
        lambda: len(uids(simulation)) == 3 and not set(uids(simulation).values()) & set(before.values()), "a roll", 600
    )
    await simulation.run_until(simulation.is_healthy, "the group is ready")
    after = uids(simulation)
    for _ in range(300):
        await simulation.step()

    assert uids(simulation) == after


async def test_pod_that_waits_for_a_machine_is_not_made_anew_again_and_again() -> None:
    """It has the resources of the edit already."""
    simulation = await with_cpu_default()
    cluster = simulation.cluster
    cluster.edit(template={"labels": {"team": "payments"}}, resources={"limits": {"memory": "2Gi"}})
    cluster.is_scheduling = False
    seen = set[str]()
    for _ in range(400):
        await simulation.step()
        seen |= {uid_of(pod) for pod in cluster.pods() if "nodeName" not in pod["spec"]}

    assert len(seen) == 1


@pytest.mark.parametrize("memory", ["1536Mi", "1Gi"], ids=["another edit", "back"])
async def test_edit_of_a_resize_that_waits_is_sent(memory: str) -> None:
    """A person corrects what no machine has room for, also to what it was before."""
    simulation = await edited({"limits": {"memory": "64Gi"}})
    before = uids(simulation)
    simulation.cluster.resize_answer = ResizeAnswer.DEFERRED
    await simulation.run_until(lambda: len(resized_members(simulation)) == 3, "the resizes are sent")

    simulation.cluster.edit(resources={"limits": {"memory": memory}})
    await simulation.step()
    await simulation.step()
    simulation.cluster.resize_answer = ResizeAnswer.DONE
    wanted = {"1536Mi": "1552Mi", "1Gi": "1040Mi"}[memory]
    await simulation.run_until(lambda: list(limits(simulation).values()) == [wanted] * 3, "the correction", 60)
    await simulation.run_until(lambda: simulation.condition("Resized") == ("", "", ""), "the status is current")

    assert uids(simulation) == before
    assert {pod["spec"]["containers"][0]["resources"]["limits"]["memory"] for pod in simulation.cluster.pods()} == {
        wanted
    }


async def test_deferral_that_ends_is_no_restart() -> None:
    """The machine gets room after minutes, and kubelet needs a few seconds then."""
    simulation = await edited()
    before = uids(simulation)
    simulation.cluster.resize_answer = ResizeAnswer.DEFERRED
    for _ in range(2 * EFFECT_MS // 250):
        await simulation.step()
    simulation.cluster.resize_answer = ResizeAnswer.SLOW
    await simulation.run_until(lambda: is_resized(simulation), "all brokers are resized")

    assert uids(simulation) == before


async def test_corrected_infeasible_resize_is_no_restart() -> None:
    """Kubelet's judgement about the first edit is still there when the second one is sent."""
    simulation = await edited({"limits": {"memory": "512Gi"}})
    before = uids(simulation)
    simulation.cluster.resize_answer = ResizeAnswer.INFEASIBLE
    await simulation.run_until(lambda: resized_members(simulation) == [2], "the first resize is sent")
    await simulation.step()
    simulation.cluster.edit(resources=LARGER)
    await simulation.step()
    simulation.cluster.resize_answer = ResizeAnswer.SLOW
    await simulation.run_until(lambda: is_resized(simulation), "all brokers are resized")

    assert uids(simulation) == before


async def test_resize_without_effect_is_a_roll_also_if_the_operator_is_replaced() -> None:
    """The pod says that it is being resized, so that the next operator waits for it, too."""
    simulation = await edited()
    before = uids(simulation)
    simulation.cluster.resize_answer = ResizeAnswer.NOTHING
    await simulation.run_until(lambda: resized_members(simulation) == [2], "the first resize is sent")
    await simulation.loop.reconciler.close()
    simulation.loop = operator_of(simulation.cluster)

    await simulation.run_until(
        lambda: is_resized(simulation) and not set(uids(simulation).values()) & set(before.values()), "a roll", 900
    )


@pytest.mark.parametrize(
    "denial",
    [Forbidden("resize", "exceeded quota: memory, requested: limits.memory=1Gi", 403),
     InvalidObject("resize", "exceeded: ValidatingAdmissionPolicy 'memory' denied request", 422)],
    ids=["quota", "policy"],
)  # fmt: skip
async def test_quota_is_waited_for(denial: ApiError) -> None:
    """A restart would delete a pod that cannot be made again. The status has the API server's reason."""
    simulation = await edited()
    before = uids(simulation)
    simulation.cluster.api.fault_of = lambda verb, ref: denial if verb == "resize" else None
    await simulation.run_until(lambda: "exceeded" in simulation.condition("Resized")[2], "the status says it")
    for _ in range(400):
        await simulation.step()
    assert uids(simulation) == before

    simulation.cluster.api.fault_of = lambda verb, ref: None
    await simulation.run_until(lambda: is_resized(simulation), "the quota is larger", 300)
    assert uids(simulation) == before


async def test_less_memory_waits_until_the_others_run() -> None:
    """A broker that ends for lack of memory must not be one of two."""
    simulation = await Simulation(THREE | {"resources": LARGER}).run_until_healthy()
    cluster = simulation.cluster
    cluster.is_scheduling = False
    third = cluster.pod(0, 3)
    assert third is not None
    cluster.terminate(third)
    await simulation.step()
    cluster.edit(resources={"limits": {"memory": "1Gi", "cpu": "2"}})
    await simulation.run_until(lambda: "does not run" in simulation.condition("Resized")[2], "the status says it")
    assert resized_members(simulation) == []

    cluster.is_scheduling = True
    await simulation.run_until(lambda: list(limits(simulation).values()) == ["1040Mi"] * 3, "all are resized", 400)


@pytest.mark.parametrize("answer", [ResizeAnswer.INFEASIBLE, ResizeAnswer.DEFERRED])
async def test_edit_of_cpu_alone_waits_for_kubelet(answer: ResizeAnswer) -> None:
    """The memory is right at once, but kubelet judges the CPU a few seconds later."""
    simulation = await edited({"limits": {"cpu": "500"}})
    before = uids(simulation)
    simulation.cluster.resize_answer = ResizeAnswer.NOTHING
    await simulation.run_until(lambda: resized_members(simulation) == [2], "the first resize is sent")
    for _ in range(8):
        await simulation.step()
    simulation.cluster.resize_answer = answer

    if answer is ResizeAnswer.DEFERRED:
        await simulation.run_until(lambda: "no room" in simulation.condition("Resized")[2], "the status says it")
        assert uids(simulation) == before
    else:
        await simulation.run_until(
            lambda: len(uids(simulation)) == 3 and not set(uids(simulation).values()) & set(before.values()),
            "a roll",
            400,
        )
