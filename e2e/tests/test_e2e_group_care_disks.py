"""A volume that is lost with its machine is replaced without an order: `storage.replaceAfter`."""

from __future__ import annotations

import shutil
import time

import pytest
from gantry_cluster import lifecycle
from gantry_cluster.api import Object
from gantry_cluster.capabilities import Capability
from gantry_cluster.cluster import Cluster
from gantry_cluster.commands import wait_until
from gantry_cluster.group_faults import NOTICED_SECONDS_MAX, crash_node, revive_crashed_nodes
from gantry_cluster.group_life import claim_ids
from gantry_cluster.groups import CLIENT
from gantry_cluster.namespaces import NamespaceFactory
from gantry_cluster.specs import TWO_SLAVES
from gantry_cluster.trial import run_fault_under_load

pytestmark = [pytest.mark.slow, pytest.mark.cluster_can(Capability.RUN_GROUPS)]

WATCHED_S = 15.0
"""How long the volume must not be replaced without `storage.replaceAfter`."""

REPLACE_AFTER_S = 5
"""The value of `storage.replaceAfter`, which an edit adds."""

REPLACED_SECONDS_MAX = 30.0
"""The limit from the edit until the claim was replaced, the requested wait included."""
CLIENTS_SECONDS_MAX = 10.0
"""The limit of the interruption: a slave of two is lost, and the other one acknowledges."""
REPLACING: Object = TWO_SLAVES | {"storage": {**TWO_SLAVES["storage"], "replaceAfter": f"{REPLACE_AFTER_S}s"}}


@pytest.mark.cluster_can(Capability.CRASH_NODES)
def test_volume_of_a_lost_machine_is_replaced_after_the_delay(
    namespaces: NamespaceFactory, operator_cluster: Cluster
) -> None:
    """Its Node is deleted, as by a cloud. Without `replaceAfter` the group waits for the volume; with it, only so
    long."""
    group = namespaces.create_group("replacing", TWO_SLAVES)
    taken = {group.node_of(CLIENT), *(group.node_of(master) for master in group.masters())}
    slave = next(pod for pod in group.brokers() if group.node_of(pod) not in taken)
    claim = f"data-{slave}"
    before = claim_ids(group)

    def lose() -> None:
        node = crash_node(group, slave)
        shutil.rmtree(operator_cluster.folder.disk(node), ignore_errors=True)
        operator_cluster.kubectl("delete", "node", node)
        time.sleep(WATCHED_S)
        assert claim_ids(group) == before, "a claim was replaced without `replaceAfter`"
        group.apply(REPLACING)
        started = time.monotonic()
        wait_until(
            "another claim", lambda: claim_ids(group).get(claim) not in (None, before[claim]), NOTICED_SECONDS_MAX
        )
        took = time.monotonic() - started
        print(f"RESULT another claim {took:.1f} s after the edit, at most {REPLACED_SECONDS_MAX:.0f}")
        assert took <= REPLACED_SECONDS_MAX
        lifecycle.revive(operator_cluster, node)

    with revive_crashed_nodes(operator_cluster):
        run_fault_under_load(group, "volume replaced", lose).check_limits(CLIENTS_SECONDS_MAX)
    assert {name for name, uid in claim_ids(group).items() if before[name] != uid} == {claim}
