"""Pods that are not scheduled: the status names what they need and the nearest node, with few calls and one event.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
from capacity_scene import HOST, node, pod
from operator_world.cluster import GROUP, NAMESPACE
from operator_world.simulation import SYNC, Simulation, operator_of

from gantry_operator.api import CLAIMS, EVENTS, GROUPS, NODES, PODS, VOLUMES, Object, ObjectRef
from gantry_operator.errors import Forbidden
from gantry_operator.observe import unschedulable
from gantry_operator.status import is_worth_a_write

SPEC: dict[str, Any] = SYNC | {"writeBuffer": {"medium": "HugePages-2Mi", "buffers": 2, "segmentSize": "254Mi"}}
"""Each broker needs 512 MiB of huge pages."""

ALL_PODS = ("list", ObjectRef(PODS, "", ""))


def set_pages(simulation: Simulation, name: str, pages: str) -> None:
    """Set the huge pages of a machine; one with too few takes no new broker."""
    found = simulation.cluster.api.found(NODES, "", name)
    assert found is not None
    found["status"]["allocatable"]["hugepages-2Mi"] = pages
    simulation.cluster.api.put(found)
    simulation.cluster.full_nodes.add(name)


def events(simulation: Simulation) -> list[tuple[str, str]]:
    """Return the events about scheduling: their types and reasons."""
    found = simulation.cluster.api.of_kind(EVENTS)
    return [(one["type"], one["reason"]) for one in found if one["reason"].startswith("Pods")]


def lists_of_pods(simulation: Simulation) -> int:
    return simulation.cluster.api.calls.count(ALL_PODS)


def message(simulation: Simulation) -> str:
    return simulation.condition("PodsScheduled")[2]


def is_reported(simulation: Simulation) -> bool:
    return bool(message(simulation))


async def with_a_full_node() -> Simulation:
    """Return a group of two brokers on two machines; a third slave is ordered, for which no machine has pages."""
    simulation = await Simulation(SPEC).run_until_healthy()
    used = {str(one["spec"]["nodeName"]) for one in simulation.cluster.pods()}
    [free] = {"node-0", "node-1", "node-2"} - used
    set_pages(simulation, free, "256Mi")
    simulation.cluster.edit(slaves=2)
    return simulation


def full_node(simulation: Simulation) -> str:
    [name] = simulation.cluster.full_nodes
    return name


async def test_status_names_need_and_nearest_node() -> None:
    """The text has the pod, what it needs, the nearest node and how much it lacks, and the scheduler's message."""
    simulation = await with_a_full_node()

    await simulation.run_until(lambda: is_reported(simulation), "the status says it")

    status, reason, text = simulation.condition("PodsScheduled")
    assert (status, reason) == ("False", "Unschedulable")
    assert text == (
        "pod g-0-slave-1 needs cpu 300m, memory 1.27Gi, hugepages-2Mi 512Mi;"
        f" the nearest node, {full_node(simulation)}, lacks hugepages-2Mi 256Mi (256Mi of 256Mi are free);"
        " scheduler: 0/3 nodes are available: 3 Insufficient hugepages-2Mi."
    )
    assert events(simulation) == [("Warning", "PodsUnschedulable")]


async def test_overhead_of_a_runtime_class_counts_as_needed() -> None:
    """The API server has added it to the pod, and the scheduler reserves it beside the requests of the containers."""
    simulation = await with_a_full_node()
    await simulation.run_until(lambda: simulation.cluster.pod(0, 3) is not None, "the pod waits")
    waiting = copy.deepcopy(simulation.cluster.pod(0, 3))
    assert waiting is not None
    waiting["spec"]["overhead"] = {"cpu": "250m", "memory": "128Mi"}
    simulation.cluster.api.put(waiting)

    await simulation.run_until(lambda: is_reported(simulation), "the status says it")

    assert "needs cpu 550m, memory 1.39Gi, hugepages-2Mi 512Mi" in message(simulation)


async def test_condition_ends_with_one_event_when_the_pod_is_scheduled() -> None:
    """The condition disappears, as it exists only while pods wait."""
    simulation = await with_a_full_node()
    await simulation.run_until(lambda: is_reported(simulation), "the status says it")
    await simulation.step()

    simulation.cluster.full_nodes.clear()
    await simulation.run_until(lambda: simulation.condition("PodsScheduled") == ("", "", ""), "the condition ends")

    assert events(simulation) == [("Warning", "PodsUnschedulable"), ("Normal", "PodsScheduled")]
    await simulation.run_until(simulation.is_healthy, "the group is ready")


async def test_healthy_group_reads_no_pods_of_others() -> None:
    """At rest the operator makes no call for this."""
    simulation = await Simulation(SPEC).run_until_healthy()
    before = len(simulation.cluster.api.calls)
    for _ in range(40):
        await simulation.step()

    assert lists_of_pods(simulation) == 0
    assert [verb for verb, _ in simulation.cluster.api.calls[before:] if verb in ("list", "get")] == []


async def test_all_pods_are_read_at_most_once_a_minute() -> None:
    """However many rounds there are; the event is not repeated either, and the status is not written each time."""
    simulation = await with_a_full_node()
    await simulation.run_until(lambda: is_reported(simulation), "the status says it")
    began_ms, before = simulation.cluster.clock.ms, lists_of_pods(simulation)
    set_pages(simulation, full_node(simulation), "384Mi")

    await simulation.run_until(lambda: "lacks hugepages-2Mi 128Mi" in message(simulation), "it is explained again")
    for _ in range(240):
        await simulation.step()

    minutes = (simulation.cluster.clock.ms - began_ms) / unschedulable.EXPLAIN_MS
    assert minutes > 1.5
    assert 1 <= lists_of_pods(simulation) - before <= minutes + 1
    assert events(simulation) == [("Warning", "PodsUnschedulable")]


async def test_without_the_interval_every_round_reads_all_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    """A twin of the test above."""
    monkeypatch.setattr(unschedulable, "EXPLAIN_MS", 0)
    simulation = await with_a_full_node()
    await simulation.run_until(lambda: is_reported(simulation), "the status says it")
    before = lists_of_pods(simulation)

    for _ in range(20):
        await simulation.step()

    assert lists_of_pods(simulation) - before > 3


async def test_short_wait_is_not_reported() -> None:
    """A pod that is scheduled within seconds changes no status and causes no event."""
    simulation = await with_a_full_node()
    waiting_since_ms: list[int] = []

    def is_waiting() -> bool:
        found = simulation.cluster.pod(0, 3)
        return found is not None and "conditions" in found["status"]

    await simulation.run_until(is_waiting, "the pod waits")
    waiting_since_ms.append(simulation.cluster.clock.ms)
    while simulation.cluster.clock.ms - waiting_since_ms[0] < unschedulable.GRACE_MS - 1_000:
        await simulation.step()
        assert not is_reported(simulation)
    simulation.cluster.full_nodes.clear()
    await simulation.run_until(simulation.is_healthy, "the group is ready")

    assert events(simulation) == [] and lists_of_pods(simulation) == 0


async def test_without_the_grace_a_short_wait_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A twin of the test above."""
    monkeypatch.setattr(unschedulable, "GRACE_MS", 0)
    simulation = await with_a_full_node()

    seconds = await simulation.run_until(lambda: is_reported(simulation), "the status says it")

    assert seconds < 4


async def test_next_operator_keeps_condition_and_repeats_no_event() -> None:
    """The condition does not disappear for a moment, which would be two changes of the status."""
    simulation = await with_a_full_node()
    await simulation.run_until(lambda: is_reported(simulation), "the status says it")
    await simulation.step()
    seen: set[str] = set()

    def watch(what: str, document: Object) -> None:
        if document["kind"] == GROUPS.name:
            conditions = (document.get("status") or {}).get("conditions", [])
            seen.add(next((one["reason"] for one in conditions if one["type"] == "PodsScheduled"), "none"))

    simulation.cluster.api.watchers.append(watch)
    after = Simulation.of(simulation.cluster, operator_of(simulation.cluster))
    simulation.cluster.edit(durability={"maxAtRisk": "2s"})
    for _ in range(40):
        await after.step()

    assert seen == {"Unschedulable"}
    assert events(after) == [("Warning", "PodsUnschedulable")]
    simulation.cluster.full_nodes.clear()
    await after.run_until(lambda: not is_reported(after), "the condition ends")
    assert events(after) == [("Warning", "PodsUnschedulable"), ("Normal", "PodsScheduled")]


async def test_pods_of_other_namespaces_take_room() -> None:
    """The nearest node is too small because of them."""
    simulation = await with_a_full_node()
    set_pages(simulation, full_node(simulation), "1Gi")
    other = pod("spark", full_node(simulation), namespace="bank", requests={"hugepages-2Mi": "768Mi"})
    simulation.cluster.api.put(other)

    await simulation.run_until(lambda: is_reported(simulation), "the status says it")

    assert "lacks hugepages-2Mi 256Mi (256Mi of 1Gi are free)" in message(simulation)


async def test_operator_that_may_not_list_all_pods_explains_without_them() -> None:
    """The text names the limit, and the call is not repeated in each round."""
    simulation = await with_a_full_node()
    refused: list[str] = []

    def fault_of(verb: str, ref: ObjectRef) -> Forbidden | None:
        if (verb, ref) == ALL_PODS:
            refused.append(verb)
            return Forbidden("list /api/v1/pods", "forbidden (403)", 403)
        return None

    simulation.cluster.api.fault_of = fault_of
    await simulation.run_until(lambda: is_reported(simulation), "the status says it")
    for _ in range(40):
        await simulation.step()

    assert "; not counting pods of others, the nearest node" in message(simulation)
    assert len(refused) == 1


async def test_rules_that_exclude_nodes_are_named() -> None:
    """The node with the right labels is not that of the pod's volume; the others do not have them."""
    simulation = await with_a_full_node()
    simulation.cluster.full_nodes.add("node-3")
    await simulation.run_until(lambda: is_reported(simulation), "the status says it")
    waiting = simulation.cluster.pod(0, 3)
    assert waiting is not None
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data-g-0-slave-1"}}
    waiting["spec"] |= {"nodeSelector": {"disk": "fast"}, "volumes": [volume]}
    simulation.cluster.api.put(waiting)
    fast = node("node-3", pages="4Gi")
    fast["metadata"] |= {"namespace": ""}
    fast["metadata"]["labels"] |= {"disk": "fast"}
    simulation.cluster.api.put(fast)
    claim = simulation.cluster.api.found(CLAIMS, NAMESPACE, "data-g-0-slave-1")
    assert claim is not None
    term = {"matchExpressions": [{"key": HOST, "operator": "In", "values": ["node-1"]}]}
    head = {"name": "pv-far", "namespace": ""}
    affinity = {"required": {"nodeSelectorTerms": [term]}}
    simulation.cluster.api.put({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": head,
                                "spec": {"node": "node-1", "nodeAffinity": affinity}})  # fmt: skip
    claim["spec"]["volumeName"] = "pv-far"
    simulation.cluster.api.put(claim)

    await simulation.run_until(lambda: "node selector" in message(simulation), "it is explained again")

    text = "none of 4 nodes may take it; the nearest, node-0: node selector or node affinity does not match"
    assert text in message(simulation)
    calls = [ref.name for verb, ref in simulation.cluster.api.calls if verb == "get" and ref.kind == VOLUMES]
    assert calls.count("pv-far") >= 1


async def test_amounts_in_the_text_cause_no_write_at_once() -> None:
    """The condition is urgent, and its text is not: it may change as often as other pods come and go."""
    simulation = await with_a_full_node()
    await simulation.run_until(lambda: is_reported(simulation), "the status says it")
    status = simulation.cluster.group["status"]
    changed = status | {"conditions": [one | {"message": "another text"} for one in status["conditions"]]}
    without = status | {"conditions": [one for one in status["conditions"] if one["type"] != "PodsScheduled"]}

    assert not is_worth_a_write(changed, status, 1_000)
    assert is_worth_a_write(without, status, 1_000)


async def test_failed_explanation_does_not_affect_the_group(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A defect costs the text, and is logged; the group is reconciled as before."""

    def fail(*given: Any) -> str:
        raise RuntimeError("a defect")

    monkeypatch.setattr(unschedulable, "shortage_text", fail)
    simulation = await with_a_full_node()

    await simulation.run_until(lambda: is_reported(simulation), "the status says it")

    assert message(simulation) == "not scheduled: g-0-slave-1"
    assert "unexpected error while explaining unscheduled pods" in caplog.text
    assert simulation.cluster.master(0) is not None


async def test_ended_loop_leaves_no_explanation_behind() -> None:
    """An operator that ends waits for what it has begun."""
    simulation = await with_a_full_node()
    await simulation.run_until(lambda: is_reported(simulation), "the status says it")

    await simulation.loop.reconciler.close()

    assert GROUP in repr(simulation.loop.reconciler.observer)
