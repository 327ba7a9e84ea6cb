"""One manifest runs it: groups that the operator makes, on real nodes, with clients in pods and outside.

Everything is as a user has it: the chart is installed, a manifest applied, and what clients see is what counts.
"""

from __future__ import annotations

import pytest
from gantry_cluster.capabilities import Capability
from gantry_cluster.clients import external_address, outside_gantry
from gantry_cluster.commands import wait_until
from gantry_cluster.errors import CommandFailed
from gantry_cluster.groups import Group
from gantry_cluster.spaces import Spaces
from gantry_cluster.specs import SMALL, TOPIC, WITH_PAGES

pytestmark = [pytest.mark.slow, pytest.mark.cluster_can(Capability.RUN_GROUPS)]

MESSAGES = [f"order {number}" for number in range(40)]
OUTSIDE_SECONDS_MAX = 180.0


def produce_and_consume(group: Group) -> None:
    """From a pod: everything that was acknowledged is there."""
    group.gantry("produce", TOPIC, *MESSAGES)
    assert sorted(group.gantry("consume", TOPIC).splitlines()) == sorted(MESSAGES)


def test_the_smallest_group_serves_a_pod(spaces: Spaces) -> None:
    """One shard, one slave that is waited for."""
    group = spaces.group("small", SMALL)

    assert group.masters() == ["orders-0-master-0"]
    produce_and_consume(group)


@pytest.mark.cluster_can(Capability.HUGE_PAGES, Capability.REACH_NODES)
def test_a_sync_group_of_two_shards_with_hugepages_serves_pods_and_outsiders(spaces: Spaces) -> None:
    """One manifest: ready, and used from a pod through the Services, and from outside through the external listener."""
    group = spaces.group("wide", WITH_PAGES)

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
