"""Which pods a drain may evict, computed as Kubernetes' disruption controller does, for any roles.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from objects_scene import facts, group, is_selected, of_kind, pods_of, rendered

from gantry_operator.objects import ShardFacts, names
from gantry_operator.objects.base import Object

Pods = list[tuple[str, dict[str, str], str]]
ROLES = st.sampled_from(["master", "slave", ""])


def budgets_of(objects: tuple[Object, ...]) -> dict[str, Object]:
    """Return all disruption budgets of a group."""
    return of_kind(objects, "PodDisruptionBudget")


def allowed(budget: Object, objects: tuple[Object, ...], pods: Pods, healthy: set[str]) -> int:
    """Return ``disruptionsAllowed`` as the controller computes it: see getExpectedPodCount in its source."""
    spec = budget["spec"]
    mine = [(pod, home) for pod, labels, home in pods if is_selected(labels, spec["selector"])]
    if not mine:
        return 0
    if "minAvailable" in spec:
        desired: int = spec["minAvailable"]
    else:
        sizes = {name: one["spec"]["replicas"] for name, one in of_kind(objects, "StatefulSet").items()}
        desired = sum(sizes[home] for home in {home for _, home in mine}) - spec["maxUnavailable"]
    count = sum(pod in healthy for pod, _ in mine) - desired
    return max(0, count)


def with_roles(objects: tuple[Object, ...], masters: dict[int, int]) -> Pods:
    """Return every pod with its role label; ``masters`` has the master of each shard, by default member 1."""
    found = []
    for pod, labels, home in pods_of(objects):
        place = names.member_of("orders", pod)
        if place is not None:
            role = "master" if masters.get(place.shard, 1) == place.member else "slave"
            labels = labels | {names.ROLE_LABEL: role}
        found.append((pod, labels, home))
    return found


@given(data=st.data(), shards=st.integers(1, 3), slaves=st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_no_pod_is_in_two_budgets(data: st.DataObject, shards: int, slaves: int) -> None:
    """This holds for any role: the eviction of a pod in two budgets always fails."""
    objects = rendered(group(shards=shards, slaves=slaves, replication={"mode": "Async"}))
    for pod, labels, _ in pods_of(objects):
        role = data.draw(ROLES, label=pod)
        labels = labels | ({names.ROLE_LABEL: role} if role else {})
        chosen = [name for name, one in budgets_of(objects).items() if is_selected(labels, one["spec"]["selector"])]
        assert len(chosen) <= 1, (pod, role, chosen)


@given(shards=st.integers(1, 3), slaves=st.integers(1, 3), master=st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_masters_are_never_evicted_and_slaves_one_at_a_time(shards: int, slaves: int, master: int) -> None:
    """This also holds after a switchover to the other StatefulSet, where a budget by maxUnavailable would be stuck."""
    objects = rendered(group(shards=shards, slaves=slaves, replication={"mode": "Async"}))
    pods = with_roles(objects, {0: min(master, slaves + 1)})
    everybody = {pod for pod, _, _ in pods}
    found = budgets_of(objects)

    selector = found["orders-masters"]["spec"]["selector"]
    assert sum(is_selected(labels, selector) for _, labels, _ in pods) == shards
    assert allowed(found["orders-masters"], objects, pods, everybody) == 0
    for shard in range(shards):
        budget = found[f"orders-{shard}-slaves"]
        assert allowed(budget, objects, pods, everybody) == 1
        slave = next(pod for pod, labels, _ in pods if is_selected(labels, budget["spec"]["selector"]))
        assert allowed(budget, objects, pods, everybody - {slave}) == 0


def test_max_unavailable_would_be_stuck_after_a_switchover() -> None:
    """The twin of the rule above: with maxUnavailable no pod may be evicted once slaves are in both StatefulSets."""
    objects = rendered(group(slaves=2, replication={"mode": "Async"}))
    pods = with_roles(objects, {0: 2})
    budget = budgets_of(objects)["orders-0-slaves"]
    usual: dict[str, Any] = {"spec": {"selector": budget["spec"]["selector"], "maxUnavailable": 1}}

    assert allowed(usual, objects, with_roles(objects, {0: 1}), {pod for pod, _, _ in pods}) == 1
    assert allowed(usual, objects, pods, {pod for pod, _, _ in pods}) == 0


@pytest.mark.parametrize(
    ("slaves", "replicas", "in_sync", "free"),
    [(1, 2, None, 0), (2, 2, None, 1), (2, 3, None, 0), (3, 3, None, 1), (2, 2, 2, 1), (2, 2, 1, 0)],
    ids=["1 of 1", "2 of 1", "2 of 2", "3 of 2", "2 in sync", "1 in sync"],
)
def test_slave_that_is_needed_for_acks_is_not_evicted(
    slaves: int, replicas: int, in_sync: int | None, free: int
) -> None:
    """In a sync shard a slave may be evicted only while enough others could acknowledge."""
    replication = {"mode": "Sync", "inSyncReplicas": replicas}
    known = facts(shards=(ShardFacts(number=0, slaves_acknowledging=in_sync),))
    objects = rendered(group(slaves=slaves, replication=replication), known)
    pods = with_roles(objects, {})

    assert allowed(budgets_of(objects)["orders-0-slaves"], objects, pods, {pod for pod, _, _ in pods}) == free


def test_unhealthy_pods_do_not_block_a_drain() -> None:
    """Unhealthy pods may always be evicted."""
    for budget in budgets_of(rendered(group(slaves=2))).values():
        assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
