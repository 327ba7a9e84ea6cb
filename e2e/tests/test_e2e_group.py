"""One manifest runs it: groups that the operator makes, on real nodes, with clients in pods and outside.

Everything is as a user has it: the chart is installed, a manifest applied, and what clients see is what counts.
"""

from __future__ import annotations

import pytest
from gantry_cluster.api import Object
from gantry_cluster.cluster import Cluster
from gantry_cluster.commands import wait_until
from gantry_cluster.errors import CommandFailed
from gantry_cluster.groups import Group, external_address, outside_gantry
from gantry_cluster.pods import Namespace

pytestmark = [pytest.mark.slow, pytest.mark.needs_cluster, pytest.mark.needs_buildah]

SMALL: Object = {
    "slaves": 1,
    "storage": {"size": "1Gi"},
    "writeBuffer": {"segmentSize": "8Mi"},
    "resources": {"limits": {"memory": "512Mi"}},
    "topics": [{"name": "orders", "queues": 4}, {"name": "load", "queues": 4}],
}
"""The least that is a group, in files that a test can fill: one shard, one slave that is waited for."""

WITH_PAGES: Object = SMALL | {
    "shards": 2,
    "writeBuffer": {"medium": "HugePages-2Mi", "buffers": 3, "segmentSize": "8Mi"},
    "access": {"external": {"type": "NodePort"}},
}
TOPIC = "orders"
QUEUES = 4
MESSAGES = [f"order {number}" for number in range(40)]
TOPICS_SECONDS_MAX = 60.0
OUTSIDE_SECONDS_MAX = 180.0
PAUSE_SECONDS_MAX = 60.0
"""Of a sync group with one slave whose master's pod is deleted: nothing is acknowledged before the pod is back."""


def made(cluster: Cluster, name: str, spec: Object) -> Group:
    """A group in a namespace of its own, healthy, with a client beside it and the topics of its spec."""
    space = Namespace(cluster, name).make()
    group = Group(space, "orders")
    group.apply(spec)
    print(f"{name}: applied to healthy in {group.wait_healthy():.1f} s")
    group.start_client()
    wait_until("the topics of the spec", lambda: TOPIC in group.gantry("topic", "list"), TOPICS_SECONDS_MAX)
    return group


def produce_and_consume(group: Group) -> None:
    """From a pod: everything that was acknowledged is there."""
    group.gantry("produce", TOPIC, *MESSAGES)
    assert sorted(group.gantry("consume", TOPIC).splitlines()) == sorted(MESSAGES)


def test_a_sync_group_of_two_shards_with_hugepages_serves_pods_and_outsiders(operated: Cluster) -> None:
    """One manifest: ready, and used from a pod through the Services, and from outside through the external listener."""
    group = made(operated, "wide", WITH_PAGES)

    assert sorted(group.masters()) == ["orders-0-master-0", "orders-1-master-0"]
    produce_and_consume(group)

    address = external_address(group.space, "orders-nameserver-external")

    def is_seen() -> bool:
        """ConfigMaps reach pods when kubelet gets to it; until then nobody outside is told of a broker."""
        try:
            outside_gantry(address, "produce", TOPIC, "from outside")
            return set(outside_gantry(address, "consume", TOPIC).splitlines()) == {*MESSAGES, "from outside"}
        except CommandFailed:
            return False

    wait_until("everything seen from outside", is_seen, OUTSIDE_SECONDS_MAX)


def test_a_deleted_master_pod_loses_nothing_that_was_acknowledged(operated: Cluster) -> None:
    """Under load, sync with one slave: no acknowledged message is lost, and sends go on when the pod is back."""
    group = made(operated, "small", SMALL)
    produce_and_consume(group)
    [master] = group.masters()

    with group.load("load", QUEUES) as load:
        load.mark("master pod deleted")
        group.replace_pod(master)
        group.wait_healthy()
        noticed = load.report(100)
        verdict = load.finish()

    print(f"noticed by clients: {noticed}; in the end: {verdict}")
    assert verdict["findings"] == []
    assert noticed["pause"] <= PAUSE_SECONDS_MAX
    assert group.masters() != [master]
