"""Guards of groups, each with a twin, which is the same test without the guard.

In a twin the same fault loses messages, or takes the master away from clients.

For the limit of loss, the slave receives nothing from its master for a while, so that later acknowledged messages are
on one machine only, and then that machine crashes. For the budget of masters, the master's pod is evicted.
"""

from __future__ import annotations

import time

import pytest
from gantry_cluster import faults, lifecycle
from gantry_cluster.capabilities import Capability
from gantry_cluster.cluster import Cluster
from gantry_cluster.commands import wait_until
from gantry_cluster.errors import ApiRefused
from gantry_cluster.group_faults import NOTICED_SECONDS_MAX, crash_node, evict, revive_crashed_nodes
from gantry_cluster.groups import Group
from gantry_cluster.namespaces import NamespaceFactory
from gantry_cluster.specs import ASYNC, SMALL, TOPIC
from gantry_cluster.trial import TermObserver

pytestmark = [pytest.mark.slow, pytest.mark.cluster_can(Capability.RUN_GROUPS)]

ALONE_S = 8.0
"""How long the master acknowledges messages that the slave does not receive."""

WATCHED_S = 30.0
"""How long no master must be promoted."""

STATUS_S = 5.0
"""The time from a broker's start until the operator has certainly received its status."""
TOO_MANY_REQUESTS = 429
"""The HTTP status with which an API server refuses an eviction for a disruption budget."""

LOAD = "alone"
"""The topic of the load."""

LOSES_NOTHING = ASYNC | {"failover": {"mode": "Automatic", "maxDataLossBytes": "0"}}
"""An asynchronous group whose automatic failover must not lose a byte."""


def lose_the_only_copy(group: Group, cluster: Cluster) -> None:
    """The slave's machine receives no packets from the master; the master continues for a while, then its machine
    crashes.
    """
    [master] = group.masters()
    [slave] = [pod for pod in group.brokers() if pod != master]
    number = int(group.node_of(master).removeprefix("node"))
    with faults.drop_inbound(cluster, group.node_of(slave), cluster.plan.network.pods_of(number)):
        time.sleep(ALONE_S)
        crash_node(group, master)


@pytest.mark.cluster_can(Capability.CRASH_NODES, Capability.CUT_NODES)
def test_role_does_not_move_if_that_would_lose_too_much(
    namespaces: NamespaceFactory, operator_cluster: Cluster
) -> None:
    """Asynchronous without allowed loss: the slave is not promoted, and the status has the amount of the possible loss.

    When the old master's machine is back, an administrator accepts its log, and it is promoted.
    """
    group = namespaces.create_group("guarded", LOSES_NOTHING, avoids_all_brokers=True)
    group.gantry("topic", "create", LOAD, "--queues", "4")
    epoch, [master] = group.lease_record()["epoch"], group.masters()
    node = group.node_of(master)

    with revive_crashed_nodes(operator_cluster), group.start_load(LOAD, 4) as load:
        lose_the_only_copy(group, operator_cluster)
        time.sleep(WATCHED_S)
        epochs = [term["epoch"] for term in group.lease_record()["terms"]]
        assert max(epochs) <= epoch, "a master was promoted although too much would be lost"
        blocked = group.read()["status"]["eachShard"][0]["decision"]["blockedBy"]
        print(f"RESULT guarded: blocked by {blocked}")
        assert any("lost" in reason for reason in blocked)
        lifecycle.revive(operator_cluster, node)
        wait_until("the old master's broker", lambda: is_running(group, master), NOTICED_SECONDS_MAX)
        time.sleep(STATUS_S)
        group.annotate("gantry.dev/accept-loss", "any")  # its machine crashed, so its log may be incomplete
        group.annotate("gantry.dev/promote", "0")
        group.wait_healthy()
        assert group.masters() == [master], "expected the old master, whose log is the longest"
        verdict = load.finish()

    assert verdict["findings"] == []


@pytest.mark.cluster_can(Capability.CRASH_NODES, Capability.CUT_NODES)
def test_accepted_loss_is_found_by_the_checker(namespaces: NamespaceFactory, operator_cluster: Cluster) -> None:
    """The twin: an administrator accepts the loss, and the checker finds it; the announced loss is only printed."""
    group = namespaces.create_group("unguarded", LOSES_NOTHING, avoids_all_brokers=True)
    group.gantry("topic", "create", LOAD, "--queues", "4")

    with (
        revive_crashed_nodes(operator_cluster),
        group.start_load(LOAD, 4) as load,
        TermObserver(group, 0) as announcements,
    ):
        lose_the_only_copy(group, operator_cluster)
        group.annotate("gantry.dev/accept-loss", "any")
        group.annotate("gantry.dev/promote", "0=2")
        wait_until("the slave's promotion", lambda: group.masters() == ["orders-0-slave-0"], NOTICED_SECONDS_MAX)
        load.report(100)
        verdict = load.finish(*announcements.starts)

    print(f"RESULT unguarded: announced {announcements.loss}, {verdict}")
    assert verdict["lost"] > 0
    assert any(finding.startswith(("LOST", "MOVED", "DISPLACED")) for finding in verdict["findings"])


def is_running(group: Group, pod: str) -> bool:
    """Return whether a pod is not being deleted, and all of its containers run."""
    found = group.namespace.read_pod(pod)
    if found is None or "deletionTimestamp" in found["metadata"]:
        return False
    states = [one for kind in ("containerStatuses", "initContainerStatuses") for one in found["status"].get(kind, ())]
    return bool(states) and all(one.get("started") and "running" in one["state"] for one in states)


def test_master_is_not_evicted(namespaces: NamespaceFactory) -> None:
    """The budget of masters refuses, also if the role is not moved."""
    group = namespaces.create_group("budgeted", SMALL)
    group.annotate("gantry.dev/paused", "true")
    wait_until("ready pods", lambda: all(map(group.namespace.is_ready, group.brokers())), NOTICED_SECONDS_MAX)

    with pytest.raises(ApiRefused) as refusal:
        evict(group, group.masters()[0])

    assert refusal.value.status == TOO_MANY_REQUESTS
    group.gantry("produce", TOPIC, "still there")


def test_master_without_its_budget_is_evicted(namespaces: NamespaceFactory) -> None:
    """The twin: the same eviction takes the master away from its clients."""
    group = namespaces.create_group("unbudgeted", SMALL)
    group.annotate("gantry.dev/paused", "true")
    [master] = group.masters()
    before = group.uid_of(master)
    time.sleep(3)
    group.namespace.cluster.kubectl(
        "delete", "poddisruptionbudget", "orders-masters", f"--namespace={group.namespace.name}"
    )

    evict(group, master)

    wait_until("another pod", lambda: group.uid_of(master) not in ("", before), NOTICED_SECONDS_MAX)
