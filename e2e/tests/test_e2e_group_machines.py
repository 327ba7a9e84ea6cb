"""Machines crash, are cut off, are drained, lose their disks: the group works on, or reports why it does not."""

from __future__ import annotations

import shutil
import time

import pytest
from gantry_cluster import faults, lifecycle
from gantry_cluster.capabilities import Capability
from gantry_cluster.cluster import Cluster, ready_nodes
from gantry_cluster.commands import wait_until
from gantry_cluster.errors import CommandFailed
from gantry_cluster.group_faults import NOTICED_SECONDS_MAX, crash_node, revive_crashed_nodes, wait_for_epoch
from gantry_cluster.groups import Group
from gantry_cluster.namespaces import NamespaceFactory
from gantry_cluster.specs import SMALL, TWO_SLAVES
from gantry_cluster.trial import run_fault_under_load

pytestmark = [pytest.mark.slow, pytest.mark.cluster_can(Capability.RUN_GROUPS)]

LOST_SECONDS_MAX = 45.0
"""The limit of the interruption of clients if the master's machine crashes."""

CUT_SECONDS_MAX = 45.0
"""The limit of the interruption if the network of the master's machine is cut."""

CUT_S = 30.0
"""How long the network stays cut after another master was elected."""

DRAIN_SECONDS_MAX = 5.0
"""The limit of the interruption while the master's machine is drained."""

MOVE_SECONDS_MAX = 5.0
"""The limit of the interruption if the role moves, but the drain then waits."""

DISK_SECONDS_MAX = 45.0
"""The limit of the interruption if the master's machine is lost with its disk."""


@pytest.mark.cluster_can(Capability.CRASH_NODES)
def test_crashed_machine_loses_nothing(namespaces: NamespaceFactory, operator_cluster: Cluster) -> None:
    """Synchronous with two slaves: one of them takes over while the machine is down, and the old master follows
    later."""
    group = namespaces.create_group("crashed", TWO_SLAVES)
    [master] = group.masters()
    epoch = group.lease_record()["epoch"]

    def crash() -> None:
        node = crash_node(group, master)
        print(f"a new master {wait_for_epoch(group, epoch):.1f} s after {node} was not ready")
        lifecycle.revive(operator_cluster, node)

    with revive_crashed_nodes(operator_cluster):
        run_fault_under_load(group, "node crashed", crash).check_limits(LOST_SECONDS_MAX)


@pytest.mark.cluster_can(Capability.CUT_NODES)
def test_machine_that_is_cut_off_acknowledges_nothing(namespaces: NamespaceFactory, operator_cluster: Cluster) -> None:
    """Both directions are cut: the others elect a master, and the old one acknowledges nothing that they lack."""
    group = namespaces.create_group("cut", TWO_SLAVES)
    [master] = group.masters()
    epoch = group.lease_record()["epoch"]

    def cut() -> None:
        with faults.cut_uplink(operator_cluster, group.node_of(master)):
            print(f"a new master after {wait_for_epoch(group, epoch):.1f} s")
            time.sleep(CUT_S)
        wait_until(
            "all nodes", lambda: ready_nodes(operator_cluster.api) == set(operator_cluster.nodes), NOTICED_SECONDS_MAX
        )

    run_fault_under_load(group, "node cut off", cut).check_limits(CUT_SECONDS_MAX)


@pytest.mark.cluster_can(Capability.CUT_NODES)
def test_machine_with_inbound_loss_loses_nothing(namespaces: NamespaceFactory, operator_cluster: Cluster) -> None:
    """One direction is cut: packets of the master's machine arrive, but it receives nothing from other machines'
    pods."""
    group = namespaces.create_group("inbound", TWO_SLAVES)
    [master] = group.masters()
    epoch = group.lease_record()["epoch"]

    def drop_packets() -> None:
        with faults.drop_inbound(operator_cluster, group.node_of(master), operator_cluster.plan.network.pods):
            print(f"a new master after {wait_for_epoch(group, epoch):.1f} s")
            time.sleep(CUT_S)

    run_fault_under_load(group, "inbound packets dropped", drop_packets).check_limits(CUT_SECONDS_MAX)


def drain(group: Group, node: str, seconds: int) -> None:
    """Drain a node of the brokers of a group, as an administrator does, but not of other pods."""
    ours = f"--pod-selector=gantry.dev/group={group.name},app.kubernetes.io/component=broker"
    words = ("--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={seconds}s")
    group.namespace.cluster.kubectl("drain", node, ours, *words)


def test_machine_is_drained_without_loss(namespaces: NamespaceFactory, operator_cluster: Cluster) -> None:
    """`kubectl drain` waits until the role has moved, because the budget of masters forbids their eviction."""
    group = namespaces.create_group("drained", TWO_SLAVES)
    [master] = group.masters()
    node = group.node_of(master)

    def drain_master() -> None:
        started = time.monotonic()
        try:
            drain(group, node, 100)
            print(f"{node} was emptied in {time.monotonic() - started:.1f} s, masters {group.masters()}")
            assert group.masters() != [master]
        finally:
            operator_cluster.kubectl("uncordon", node)

    run_fault_under_load(group, "node drained", drain_master).check_limits(DRAIN_SECONDS_MAX)


def test_drain_waits_rather_than_evict_the_last_in_sync_slave(
    namespaces: NamespaceFactory, operator_cluster: Cluster
) -> None:
    """Synchronous with one slave: the role moves, and then the old master's pod is the slave that must not be
    evicted."""
    group = namespaces.create_group("undrained", SMALL, avoids_all_brokers=True)
    [master] = group.masters()
    node = group.node_of(master)
    uid = group.uid_of(master)

    def try_to_drain() -> None:
        try:
            with pytest.raises(CommandFailed, match="timeout"):
                drain(group, node, 20)
        finally:
            operator_cluster.kubectl("uncordon", node)
        assert group.masters() != [master]
        assert group.uid_of(master) == uid, "the last in-sync slave was evicted"

    run_fault_under_load(group, "drain refused", try_to_drain).check_limits(MOVE_SECONDS_MAX)


@pytest.mark.cluster_can(Capability.CRASH_NODES)
def test_lost_disk_is_replaced_after_an_order(namespaces: NamespaceFactory, operator_cluster: Cluster) -> None:
    """A machine is lost with its volume, and tainted as out of service, which is the order: its broker starts with an
    empty volume elsewhere, and copies the whole log.
    """
    group = namespaces.create_group("diskless", TWO_SLAVES)
    [master] = group.masters()
    epoch, node = group.lease_record()["epoch"], group.node_of(master)

    def lose() -> None:
        crash_node(group, master)
        wait_for_epoch(group, epoch)
        operator_cluster.kubectl("taint", "node", node, "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute")
        claim = f"data-{master}"
        before = group.claims()[claim]["metadata"]["uid"]
        shutil.rmtree(operator_cluster.folder.disk(node), ignore_errors=True)

        def is_another() -> bool:
            after = group.claims().get(claim)
            return after is not None and after["metadata"]["uid"] != before

        wait_until("another claim", is_another, NOTICED_SECONDS_MAX)
        operator_cluster.kubectl("taint", "node", node, "node.kubernetes.io/out-of-service-")
        lifecycle.revive(operator_cluster, node)

    with revive_crashed_nodes(operator_cluster):
        run_fault_under_load(group, "disk lost", lose).check_limits(DISK_SECONDS_MAX)
