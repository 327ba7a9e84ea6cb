"""The proxies of a group: created, reported and removed by the operator's real loop, apart from the brokers.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
import yaml
from charts_scene import ROOT
from objects_scene import group
from operator_world.cluster import NAMESPACE
from operator_world.simulation import SYNC, Simulation, operator_of

from gantry_operator.api import (
    ACCOUNTS,
    BUDGETS,
    CONFIG_MAPS,
    DEPLOYMENTS,
    EVENTS,
    POLICIES,
    SERVICES,
    Object,
    ObjectRef,
    labels_of,
)
from gantry_operator.errors import InvalidObject
from gantry_operator.execute import pruner
from gantry_operator.proxy_report import proxy_condition, proxy_event, proxy_status
from gantry_operator.status import urgent_part
from gantry_operator.watched_resources import WATCHED_KINDS
from gantry_spec.decide.decision import Condition
from gantry_spec.manifest.status import ProxyStatus

NAME = "g-proxy"
KINDS = (DEPLOYMENTS, SERVICES, CONFIG_MAPS, ACCOUNTS, BUDGETS, POLICIES)
TWO: dict[str, Any] = {"proxy": {"replicas": 2}}


def kinds_of_proxies(simulation: Simulation) -> set[str]:
    """Return the kinds of the existing objects of proxies."""
    return {kind.name for kind in KINDS if simulation.cluster.api.found(kind, NAMESPACE, NAME) is not None}


def run_pods(simulation: Simulation, ready: int, updated: int | None = None, **status: Any) -> None:
    """Write the status of the Deployment, as its controller does."""
    document = simulation.cluster.api.found(DEPLOYMENTS, NAMESPACE, NAME)
    assert document is not None
    counts = {"readyReplicas": ready, "updatedReplicas": ready if updated is None else updated}
    document["status"] = counts | {"observedGeneration": document["metadata"]["generation"]} | status
    simulation.cluster.api.put(document)


async def run_rounds(simulation: Simulation, count: int = 60) -> None:
    """Run enough rounds for everything that happens without a change."""
    for _ in range(count):
        await simulation.step()


def reported(simulation: Simulation) -> tuple[Any, ...]:
    """Return desired, ready and updated of the group's status, and the status and reason of the condition."""
    status = simulation.cluster.group["status"]["proxy"]
    counts = tuple(status[name] for name in ("desired", "ready", "updated"))
    return (*counts, *simulation.condition("ProxiesReady")[:2])


def events(simulation: Simulation) -> list[tuple[str, str]]:
    """Return type and reason of the events about proxies."""
    found = simulation.cluster.api.of_kind(EVENTS)
    return [(one["type"], one["reason"]) for one in found if one["reason"].startswith("Prox")]


async def test_proxies_are_created_and_reported() -> None:
    """The status has their numbers and their address, and the condition is true when all of them are ready."""
    simulation = await Simulation(SYNC | TWO).run_until_healthy()
    await run_rounds(simulation, 4)

    assert kinds_of_proxies(simulation) == {kind.name for kind in KINDS}
    assert reported(simulation) == (2, 0, 0, "False", "NoneReady")
    assert simulation.cluster.group["status"]["proxy"]["endpoint"] == "g-proxy.shop.svc:8081"
    run_pods(simulation, 1)
    await run_rounds(simulation, 2)
    assert reported(simulation) == (2, 1, 1, "False", "TooFewReady")
    run_pods(simulation, 2)
    await run_rounds(simulation, 2)
    assert reported(simulation) == (2, 2, 2, "True", "AllReplicasReady")
    assert simulation.is_healthy(), "proxies count for the readiness of the brokers"
    assert events(simulation) == [("Normal", "ProxiesReady")]


async def test_outage_of_all_proxies_is_an_event_and_no_outage_of_brokers() -> None:
    """The group stays ready, since clients of the remoting protocol need no proxy."""
    simulation = await Simulation(SYNC | TWO).run_until_healthy()
    run_pods(simulation, 2)
    await run_rounds(simulation, 4)
    run_pods(simulation, 0, updated=2)
    await run_rounds(simulation, 4)

    assert reported(simulation)[3:] == ("False", "NoneReady")
    assert simulation.is_healthy()
    assert events(simulation) == [("Normal", "ProxiesReady"), ("Warning", "ProxiesUnavailable")]


async def test_removed_proxies_leave_no_object() -> None:
    """All of their objects are deleted, pods first; a new operator finds nothing to delete, and the rest stays."""
    simulation = await Simulation(SYNC).run_until_healthy()
    before = {ref for ref in simulation.cluster.api.objects if ref.kind != EVENTS}
    simulation.cluster.edit(**TWO)
    await run_rounds(simulation)
    assert kinds_of_proxies(simulation) == {kind.name for kind in KINDS}

    simulation.cluster.api.calls.clear()
    simulation.cluster.edit(proxy={"replicas": 0})
    await run_rounds(simulation)
    deleted = [ref.kind for verb, ref in simulation.cluster.api.calls if verb == "delete"]

    assert kinds_of_proxies(simulation) == set()
    assert sorted(kind.name for kind in deleted) == sorted(kind.name for kind in (*KINDS, SERVICES)), "two Services"
    assert deleted[0] is DEPLOYMENTS, "the policy and the settings of running pods are deleted before them"
    assert {ref for ref in simulation.cluster.api.objects if ref.kind != EVENTS} == before
    assert simulation.condition("ProxiesReady") == ("", "", "")
    assert simulation.cluster.group["status"]["proxy"]["endpoint"] == ""
    simulation.loop = operator_of(simulation.cluster)
    await run_rounds(simulation)
    assert {ref for ref in simulation.cluster.api.objects if ref.kind != EVENTS} == before


async def test_without_pruning_of_deployments_proxies_would_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: without this kind the pods run on, although the spec has none."""
    monkeypatch.setattr(pruner, "PRUNED_KINDS", tuple(kind for kind in pruner.PRUNED_KINDS if kind is not DEPLOYMENTS))
    simulation = await Simulation(SYNC | TWO).run_until_healthy()
    simulation.cluster.edit(proxy={"replicas": 0})
    await run_rounds(simulation)

    assert kinds_of_proxies(simulation) == {"Deployment"}


async def test_config_maps_and_accounts_of_others_are_kept() -> None:
    """Only those of proxies are deleted: not those of shards, and none with another component or owner."""
    simulation = await Simulation(SYNC | TWO).run_until_healthy()
    config_map = simulation.cluster.api.found(CONFIG_MAPS, NAMESPACE, NAME)
    assert config_map is not None
    head = config_map["metadata"]
    own = {"labels": labels_of(config_map), "namespace": NAMESPACE}
    others: dict[str, Object] = {
        "of-a-user": own,
        "of-brokers": own | {
            "ownerReferences": head["ownerReferences"],
            "labels": labels_of(config_map) | {"app.kubernetes.io/component": "broker"},
        },
    }  # fmt: skip
    for name, metadata in others.items():
        simulation.cluster.api.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata | {"name": name}})
    simulation.cluster.edit(proxy={})
    await run_rounds(simulation)

    left = {one["metadata"]["name"] for one in simulation.cluster.api.of_kind(CONFIG_MAPS)}
    assert left == {"g-0", *others}
    assert {one["metadata"]["name"] for one in simulation.cluster.api.of_kind(ACCOUNTS)} == {"g-0"}


async def test_deleted_deployment_is_created_again() -> None:
    """It is watched, so this happens at once, and not with the next full application of all objects."""
    simulation = await Simulation(SYNC | TWO).run_until_healthy()
    simulation.cluster.api.remove(ObjectRef(DEPLOYMENTS, NAMESPACE, NAME))
    await simulation.step()

    assert "Deployment" in kinds_of_proxies(simulation)


async def test_refused_deployment_does_not_stop_the_brokers() -> None:
    """The other objects are applied, and the condition `Applied` has the message of the API server."""
    simulation = Simulation(SYNC | {"proxy": {"replicas": 1, "resources": {"limits": "much"}}})

    def refuse(verb: str, ref: ObjectRef) -> InvalidObject | None:
        is_refused = verb == "apply" and ref.kind is DEPLOYMENTS
        return InvalidObject(str(ref), "limits: expected a map", 422) if is_refused else None

    simulation.cluster.api.fault_of = refuse
    await simulation.run_until_healthy()

    assert simulation.condition("Applied")[:2] == ("False", "Refused")
    assert "limits: expected a map" in simulation.condition("Applied")[2]
    assert reported(simulation) == (1, 0, 0, "False", "NoneReady")


async def test_scaling_proxies_restarts_no_broker() -> None:
    """An edit of proxies decides nothing about brokers, and moves no role."""
    simulation = await Simulation(SYNC).run_until_healthy()
    before = [pod["metadata"]["uid"] for pod in simulation.cluster.pods()]
    for replicas in (1, 3, 0):
        simulation.cluster.edit(proxy={"replicas": replicas})
        await run_rounds(simulation, 20)

    assert [pod["metadata"]["uid"] for pod in simulation.cluster.pods()] == before
    assert simulation.is_healthy()


VERBS = {"apply": {"create", "patch"}, "delete": {"delete"}, "list": {"list"}, "get": {"get"}, "patch": {"patch"}}
"""The verbs of Kubernetes that a call of the operator needs."""


async def test_role_of_the_operator_has_exactly_the_verbs_that_it_uses() -> None:
    """It lists, watches, applies and deletes Deployments; it reads none by its name, and scales none."""
    simulation = await Simulation(SYNC | TWO).run_until_healthy()
    simulation.cluster.edit(proxy={})
    await run_rounds(simulation)
    calls = {verb for verb, ref in simulation.cluster.api.calls if ref.kind is DEPLOYMENTS}
    manifests = yaml.safe_load_all((ROOT / "manifests/operator.yaml").read_text())
    rules = [rule for one in manifests if one and "rules" in one for rule in one["rules"]]

    [rule] = [rule for rule in rules if any(name.startswith("deployments") for name in rule["resources"])]
    used = {verb for call in calls for verb in VERBS[call]} | (
        {"list", "watch"} if DEPLOYMENTS in WATCHED_KINDS else set()
    )
    assert (rule["apiGroups"], rule["resources"]) == (["apps"], ["deployments"])
    assert set(rule["verbs"]) == used


# -- pure --------------------------------------------------------------------------------------------------------------


def deployment(generation: int = 2, observed: int = 2, replicas: int = 2, **status: Any) -> Object:
    """Return a Deployment as the API server has it."""
    known = {"observedGeneration": observed} | status
    return {"metadata": {"generation": generation}, "spec": {"replicas": replicas}, "status": known}


def condition_of(document: Object | None, **proxy: Any) -> Condition | None:
    """Return the condition for a Deployment of two proxies."""
    status = proxy_status(group(proxy={"replicas": 2} | proxy), document, "")
    return proxy_condition(status, document)


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (None, "NoneReady"),
        (deployment(), "NoneReady"),
        (deployment(readyReplicas=1, updatedReplicas=2), "TooFewReady"),
        (deployment(readyReplicas=2, updatedReplicas=1), "Updating"),
        (deployment(generation=3, readyReplicas=2, updatedReplicas=2), "Updating"),
        (deployment(readyReplicas=2, updatedReplicas=2), "AllReplicasReady"),
        (deployment(readyReplicas=3, updatedReplicas=2), "AllReplicasReady"),
        (deployment(replicas=0), "Hibernated"),
    ],
    ids=["missing", "new", "one", "updating", "edit not observed", "all", "surge", "hibernated"],
)
def test_condition_is_true_only_for_all_present_proxies(document: Object | None, reason: str) -> None:
    """Counts of a Deployment before an edit say nothing about the pods after it."""
    condition = condition_of(document)

    assert condition is not None and condition.reason == reason
    assert condition.is_true is (reason == "AllReplicasReady")


def test_group_without_proxies_has_no_condition() -> None:
    """Neither has it a status, also while the Deployment still exists."""
    assert condition_of(deployment(readyReplicas=2), replicas=0) is None
    assert proxy_status(group(), deployment(readyReplicas=2), "10.0.0.1:8081") == ProxyStatus()


@pytest.mark.parametrize(
    ("conditions", "text"),
    [
        ([{"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}], ": exceeded quota"),
        ([{"type": "Progressing", "status": "False", "message": "timed out"}], ": timed out"),
        ([{"type": "Progressing", "status": "True", "message": "is progressing"}], "present settings"),
    ],
    ids=["quota", "no progress", "progress"],
)
def test_condition_has_the_reason_of_kubernetes(conditions: list[Mapping[str, str]], text: str) -> None:
    """A quota, or a pod that never starts, is visible in the group itself."""
    condition = condition_of(deployment(conditions=conditions))

    assert condition is not None and condition.message.endswith(text)
    assert condition.message.startswith("0 of 2 proxies are ready")


def test_events_are_those_of_changes() -> None:
    """A start is no outage, and an unchanged condition is no event; neither are updates, which Kubernetes reports."""

    def event(before: str, after: str) -> str:
        known = {"conditions": [{"type": "ProxiesReady", "reason": before}] if before else []}
        found = proxy_event(Condition(type="ProxiesReady", is_true=after == "AllReplicasReady", reason=after), known)
        return "" if found is None else found.reason

    assert event("", "NoneReady") == event("Hibernated", "NoneReady") == ""
    assert event("NoneReady", "NoneReady") == event("AllReplicasReady", "AllReplicasReady") == ""
    assert event("AllReplicasReady", "Updating") == event("AllReplicasReady", "Hibernated") == ""
    assert event("TooFewReady", "AllReplicasReady") == "ProxiesReady"
    assert event("Updating", "NoneReady") == "ProxiesUnavailable"
    assert proxy_event(None, {}) is None


def test_change_of_proxies_is_written_at_once() -> None:
    """Users and scripts wait for it; a status of an earlier operator has none."""
    one, other = ({"proxy": msgspec.to_builtins(ProxyStatus(desired=2, ready=ready))} for ready in (1, 2))

    assert urgent_part(one) != urgent_part(other)
    assert urgent_part({}) != urgent_part(one)
