"""Guards that keep a group from losing something, each with a twin: without the guard the loss is there.

The slave hears nothing of its master for a while, so what that acknowledges alone is on one machine only. Then that
machine is gone.
"""

from __future__ import annotations

import time

import pytest
from gantry_cluster import faults, making, network
from gantry_cluster.capabilities import Capability
from gantry_cluster.cluster import Cluster
from gantry_cluster.commands import wait_until
from gantry_cluster.errors import ApiRefused
from gantry_cluster.group_faults import NOTICED_SECONDS_MAX, crash_node, revived
from gantry_cluster.groups import Group
from gantry_cluster.spaces import Spaces
from gantry_cluster.specs import ASYNC, SMALL, TOPIC
from gantry_cluster.trial import Announcements

pytestmark = [pytest.mark.slow, pytest.mark.cluster_can(Capability.RUN_GROUPS)]

ALONE_S = 8.0
WATCHED_S = 30.0
HEARD_S = 5.0
"""From a broker's start until whoever decides has certainly heard of its log."""
TOO_MANY = 429
LOAD = "alone"
LOSES_NOTHING = ASYNC | {"failover": {"mode": "Automatic", "maxDataLossBytes": "0"}}


def lose_the_only_copy(group: Group, cluster: Cluster) -> None:
    """The slave's machine hears no master's pods; the master goes on for a while, and then its machine crashes."""
    [master] = group.masters()
    [slave] = [pod for pod in group.brokers() if pod != master]
    number = int(group.node_of(master).removeprefix("node"))
    with faults.deaf(cluster, group.node_of(slave), network.pods_of(number)):
        time.sleep(ALONE_S)
        crash_node(group, master)


@pytest.mark.cluster_can(Capability.CRASH_NODES, Capability.CUT_NODES)
def test_a_role_does_not_move_where_that_would_lose_too_much(spaces: Spaces, operated: Cluster) -> None:
    """Async, and nothing may be lost: the slave is not promoted, and the status says how much it would be.

    When the old master's machine is back, a person says that what that has is all, and it is.
    """
    group = spaces.group("guarded", LOSES_NOTHING, apart_from_all=True)
    group.gantry("topic", "create", LOAD, "--queues", "4")
    epoch, [master] = group.record()["epoch"], group.masters()
    node = group.node_of(master)

    with revived(operated), group.load(LOAD, 4) as load:
        lose_the_only_copy(group, operated)
        time.sleep(WATCHED_S)
        reigns = [reign["epoch"] for reign in group.record()["reigns"]]
        assert max(reigns) <= epoch, "nobody was named"
        blocked = group.read()["status"]["eachShard"][0]["decision"]["blockedBy"]
        print(f"RESULT guarded: blocked by {blocked}")
        assert any("lost" in reason for reason in blocked)
        making.revive(operated, node)
        wait_until("the old master's broker", lambda: has_begun(group, master), NOTICED_SECONDS_MAX)
        time.sleep(HEARD_S)
        group.annotate("gantry.dev/accept-loss", "any")  # its machine went down: what it has may not be all
        group.annotate("gantry.dev/promote", "0")
        group.wait_healthy()
        assert group.masters() == [master], "it has the most"
        verdict = load.finish()

    assert verdict["findings"] == []


@pytest.mark.cluster_can(Capability.CRASH_NODES, Capability.CUT_NODES)
def test_without_that_guard_the_same_loses_what_was_acknowledged(spaces: Spaces, operated: Cluster) -> None:
    """The twin: a person accepts whatever is lost, and the judge finds it; no more than was announced, if it was."""
    group = spaces.group("unguarded", LOSES_NOTHING, apart_from_all=True)
    group.gantry("topic", "create", LOAD, "--queues", "4")

    with revived(operated), group.load(LOAD, 4) as load, Announcements(group, 0) as announcements:
        lose_the_only_copy(group, operated)
        group.annotate("gantry.dev/accept-loss", "any")
        group.annotate("gantry.dev/promote", "0=2")
        wait_until("the slave's promotion", lambda: group.masters() == ["orders-0-slave-0"], NOTICED_SECONDS_MAX)
        load.report(100)
        verdict = load.finish(*announcements.starts)

    print(f"RESULT unguarded: announced {announcements.loss}, {verdict}")
    assert verdict["lost"] > 0
    assert any(finding.startswith(("LOST", "MOVED", "DISPLACED")) for finding in verdict["findings"])


def has_begun(group: Group, pod: str) -> bool:
    """Whether a pod is there to stay, and all of its containers run."""
    found = group.space.read_pod(pod)
    if found is None or "deletionTimestamp" in found["metadata"]:
        return False
    states = [one for kind in ("containerStatuses", "initContainerStatuses") for one in found["status"].get(kind, ())]
    return bool(states) and all(one.get("started") and "running" in one["state"] for one in states)


def evict(group: Group, pod: str) -> None:
    """As a drain does."""
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": group.space.name}}
    group.space.cluster.api.create(f"{group.space.path('pods')}/{pod}/eviction", body)


def test_a_master_is_not_evicted(spaces: Spaces) -> None:
    """Also when nobody moves its role: the budget of masters refuses."""
    group = spaces.group("budgeted", SMALL)
    group.annotate("gantry.dev/paused", "true")
    wait_until("ready pods", lambda: all(map(group.space.is_ready, group.brokers())), NOTICED_SECONDS_MAX)

    with pytest.raises(ApiRefused) as refusal:
        evict(group, group.masters()[0])

    assert refusal.value.status == TOO_MANY
    group.gantry("produce", TOPIC, "still there")


def test_without_its_budget_a_master_is_evicted(spaces: Spaces) -> None:
    """The twin: the same eviction takes the master away from its clients."""
    group = spaces.group("unbudgeted", SMALL)
    group.annotate("gantry.dev/paused", "true")
    [master] = group.masters()
    before = group.uid_of(master)
    time.sleep(3)
    group.space.cluster.kubectl("delete", "poddisruptionbudget", "orders-masters", f"--namespace={group.space.name}")

    evict(group, master)

    wait_until("another pod", lambda: group.uid_of(master) not in ("", before), NOTICED_SECONDS_MAX)
