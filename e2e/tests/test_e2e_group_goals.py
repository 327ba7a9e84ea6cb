"""Goals for the interruption of clients, measured for synchronous and asynchronous groups."""

from __future__ import annotations

import json
import time

import pytest
from gantry_cluster import lifecycle
from gantry_cluster.capabilities import Capability
from gantry_cluster.cluster import Cluster
from gantry_cluster.commands import wait_until
from gantry_cluster.group_faults import NOTICED_SECONDS_MAX, crash_node, revive_crashed_nodes, wait_for_epoch
from gantry_cluster.groups import Group
from gantry_cluster.namespaces import NamespaceFactory
from gantry_cluster.specs import ASYNC, SMALL, TOPIC, TWO_SLAVES
from gantry_cluster.trial import run_fault_under_load

pytestmark = [pytest.mark.slow, pytest.mark.cluster_can(Capability.RUN_GROUPS)]

POD_GOAL_S = 15.0
NODE_GOAL_S = 30.0
SWITCHOVER_GOAL_S = 1.0
"""The goals for the interruption of clients: the master's pod is deleted, its machine is lost, its role is moved."""

BACK_GOAL_S = 20.0
"""The goal for a deleted pod to be in sync again."""

SPECS = {"async-1-slave": ASYNC, "sync-2-slaves": TWO_SLAVES}


@pytest.mark.parametrize("kind", SPECS)
def test_deleted_pod_interrupts_for_less_than_15_seconds(namespaces: NamespaceFactory, kind: str) -> None:
    """From the deletion of the master's pod to the next acknowledgement."""
    group = namespaces.create_group(f"pod-{kind}", SPECS[kind])
    [master] = group.masters()

    outcome = run_fault_under_load(
        group, f"goal pod {kind}", lambda: print(f"{group.replace_pod(master):.1f} s"), is_async=SPECS[kind] is ASYNC
    )

    outcome.check_limits(POD_GOAL_S)


@pytest.mark.cluster_can(Capability.CRASH_NODES)
@pytest.mark.parametrize("kind", SPECS)
def test_lost_machine_interrupts_for_less_than_30_seconds(
    namespaces: NamespaceFactory, operator_cluster: Cluster, kind: str
) -> None:
    """From the crash of the master's machine to the next acknowledgement, with this cluster's settings."""
    group = namespaces.create_group(f"node-{kind}", SPECS[kind])
    [master] = group.masters()
    epoch = group.lease_record()["epoch"]

    def crash() -> None:
        crash_node(group, master)
        wait_for_epoch(group, epoch)
        time.sleep(10)
        lifecycle.revive(operator_cluster, group.node_of(master))

    with revive_crashed_nodes(operator_cluster):
        outcome = run_fault_under_load(group, f"goal node {kind}", crash, is_async=SPECS[kind] is ASYNC)
    outcome.check_limits(NODE_GOAL_S)


@pytest.mark.parametrize("kind", SPECS)
def test_planned_switchover_pauses_writes_for_less_than_a_second(namespaces: NamespaceFactory, kind: str) -> None:
    """After an order; the Service routes clients to the new master at once."""
    group = namespaces.create_group(f"switch-{kind}", SPECS[kind])
    [master] = group.masters()

    def switch() -> None:
        group.annotate("gantry.dev/promote", "0")
        wait_until("another master", lambda: group.masters() not in ([master], ["-"]), NOTICED_SECONDS_MAX)
        time.sleep(3)

    outcome = run_fault_under_load(group, f"goal switchover {kind}", switch, is_async=SPECS[kind] is ASYNC)

    outcome.check_limits(SWITCHOVER_GOAL_S)
    assert outcome.lost == 0


def test_old_master_is_back_in_sync_within_20_seconds(namespaces: NamespaceFactory) -> None:
    """Synchronous with one slave, pod deleted: until the group is healthy again."""
    group = namespaces.create_group("back", SMALL)
    [master] = group.masters()
    took: list[float] = []

    def delete() -> None:
        started = time.monotonic()
        group.replace_pod(master)
        group.wait_healthy()
        took.append(time.monotonic() - started)

    run_fault_under_load(group, "goal back in sync", delete).check_limits(BACK_GOAL_S)
    print(f"RESULT old pod back in sync after {took[0]:.1f} s, at most {BACK_GOAL_S:.0f}")
    assert took[0] <= BACK_GOAL_S


@pytest.mark.cluster_can(Capability.CRASH_NODES)
def test_sync_group_without_its_slave_acknowledges_nothing_and_reports_it(
    namespaces: NamespaceFactory, operator_cluster: Cluster
) -> None:
    """Synchronous with one slave, machine lost: no code 0, Available is False for NoInSyncSlave, and reads continue."""
    group = namespaces.create_group("alone", SMALL, avoids_all_brokers=True)
    group.gantry("produce", TOPIC, "before")
    [master] = group.masters()

    with revive_crashed_nodes(operator_cluster):
        crash_node(group, master)
        wait_until("NoInSyncSlave", lambda: available(group) == ("False", "NoInSyncSlave"), NOTICED_SECONDS_MAX)
        with group.start_application(TOPIC, first=0) as application:
            time.sleep(10)
            report = application.finish()
        print(f"RESULT without its slave: {json.dumps(report)}")
        assert report["sent"] > 100 and report["acknowledged"] == 0
        assert "before" in group.gantry("consume", TOPIC).splitlines()
    group.wait_healthy()


def available(group: Group) -> tuple[str, str]:
    """Return the status and the reason of the condition Available."""
    conditions = group.read().get("status", {}).get("conditions", [])
    return next(((one["status"], one["reason"]) for one in conditions if one["type"] == "Available"), ("", ""))


def test_rolling_restart_of_two_shards_fails_no_client_call(namespaces: NamespaceFactory) -> None:
    """An ordinary client with its own retries: no call fails, and none gets code 10, 11 or 12."""
    spec = SMALL | {"shards": 2, "slaves": 2}
    group = namespaces.create_group("two-by-two", spec)
    before = {pod: group.uid_of(pod) for pod in group.brokers()}

    with group.start_application(TOPIC) as application:
        started = time.monotonic()
        group.apply(spec | {"template": {"annotations": {"example.com/roll": "1"}}})
        wait_until(
            "other pods everywhere",
            lambda: all(group.uid_of(pod) not in ("", uid) for pod, uid in before.items()),
            600,
        )
        group.wait_healthy(300)
        rolled = time.monotonic() - started
        report = application.finish()

    print(f"RESULT 2x2 rolled in {rolled:.1f} s: {json.dumps(report)}")
    assert report["failures"] == 0
