"""A volume that goes with its machine, and nobody is asked: `storage.replaceAfter`."""

from __future__ import annotations

import shutil
import time

import pytest
from gantry_cluster import making
from gantry_cluster.api import Object
from gantry_cluster.capabilities import Capability
from gantry_cluster.cluster import Cluster
from gantry_cluster.commands import wait_until
from gantry_cluster.group_faults import NOTICED_SECONDS_MAX, crash_node, revived
from gantry_cluster.group_life import claim_ids
from gantry_cluster.groups import CLIENT
from gantry_cluster.spaces import Spaces
from gantry_cluster.specs import TWO_SLAVES
from gantry_cluster.trial import under_load

pytestmark = [pytest.mark.slow, pytest.mark.cluster_can(Capability.RUN_GROUPS)]

WATCHED_S = 15.0
REPLACE_AFTER_S = 5
REPLACED_SECONDS_MAX = 30.0
"""From the edit until the claim is another one, the wait that was asked for included."""
CLIENTS_SECONDS_MAX = 10.0
"""A slave of two goes: the other one acknowledges."""
REPLACING: Object = TWO_SLAVES | {"storage": {**TWO_SLAVES["storage"], "replaceAfter": f"{REPLACE_AFTER_S}s"}}


@pytest.mark.cluster_can(Capability.CRASH_NODES)
def test_a_volume_of_a_machine_that_is_no_more_is_replaced_after_a_while(spaces: Spaces, operated: Cluster) -> None:
    """Its Node is deleted, as clouds do it. Without `replaceAfter` the volume is waited for; with it, for so long."""
    group = spaces.group("replacing", TWO_SLAVES)
    taken = {group.node_of(CLIENT), *(group.node_of(master) for master in group.masters())}
    slave = next(pod for pod in group.brokers() if group.node_of(pod) not in taken)
    claim = f"data-{slave}"
    before = claim_ids(group)

    def lose() -> None:
        node = crash_node(group, slave)
        shutil.rmtree(operated.folder.disk(node), ignore_errors=True)
        operated.kubectl("delete", "node", node)
        time.sleep(WATCHED_S)
        assert claim_ids(group) == before, "it may come back"
        group.apply(REPLACING)
        started = time.monotonic()
        wait_until(
            "another claim", lambda: claim_ids(group).get(claim) not in (None, before[claim]), NOTICED_SECONDS_MAX
        )
        took = time.monotonic() - started
        print(f"RESULT another claim {took:.1f} s after the edit, at most {REPLACED_SECONDS_MAX:.0f}")
        assert took <= REPLACED_SECONDS_MAX
        making.revive(operated, node)

    with revived(operated):
        under_load(group, "volume replaced", lose).demand(CLIENTS_SECONDS_MAX)
    assert {name for name, uid in claim_ids(group).items() if before[name] != uid} == {claim}
