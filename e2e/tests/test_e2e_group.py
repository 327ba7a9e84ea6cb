"""Groups that the operator makes from one manifest, on real nodes, with clients in pods and outside.

The tests act as a user: they install the chart, apply a manifest, and check what clients see.
"""

from __future__ import annotations

import pytest
from gantry_cluster.capabilities import Capability
from gantry_cluster.clients import external_address, run_gantry_outside
from gantry_cluster.commands import wait_until
from gantry_cluster.errors import CommandFailed
from gantry_cluster.groups import Group
from gantry_cluster.namespaces import NamespaceFactory
from gantry_cluster.specs import SMALL, TOPIC, WITH_HUGE_PAGES

pytestmark = [pytest.mark.slow, pytest.mark.cluster_can(Capability.RUN_GROUPS)]

MESSAGES = [f"order {number}" for number in range(40)]
OUTSIDE_SECONDS_MAX = 180.0
"""The limit until clients outside get routes: kubelet updates a ConfigMap in a pod within about a minute."""


def produce_and_consume(group: Group) -> None:
    """Send and consume from a pod: every acknowledged message is delivered."""
    group.gantry("produce", TOPIC, *MESSAGES)
    assert sorted(group.gantry("consume", TOPIC).splitlines()) == sorted(MESSAGES)


@pytest.mark.release
def test_smallest_group_serves_a_pod(namespaces: NamespaceFactory) -> None:
    """One shard with one in-sync slave."""
    group = namespaces.create_group("small", SMALL)

    assert group.masters() == ["orders-0-master-0"]
    produce_and_consume(group)


@pytest.mark.cluster_can(Capability.HUGE_PAGES, Capability.REACH_NODES)
def test_sync_group_of_two_shards_with_hugepages_serves_clients_inside_and_outside(
    namespaces: NamespaceFactory,
) -> None:
    """One manifest gives a ready group, which serves a pod through the Services, and outsiders through the external
    listener.
    """
    group = namespaces.create_group("wide", WITH_HUGE_PAGES)

    assert sorted(group.masters()) == ["orders-0-master-0", "orders-1-master-0"]
    produce_and_consume(group)

    address = external_address(group.namespace, "orders-nameserver-external")

    def is_seen() -> bool:
        """Return whether clients outside get the routes; kubelet updates ConfigMaps in pods with a delay."""
        try:
            run_gantry_outside(address, "produce", TOPIC, "from outside")
            return set(run_gantry_outside(address, "consume", TOPIC).splitlines()) == {*MESSAGES, "from outside"}
        except CommandFailed:
            return False

    wait_until("everything seen from outside", is_seen, OUTSIDE_SECONDS_MAX)
