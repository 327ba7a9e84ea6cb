"""Processes and pods of a group crash under load: no acknowledged message beyond the announced loss is lost."""

from __future__ import annotations

import re
import time

import pytest
from gantry_cluster.capabilities import Capability
from gantry_cluster.group_faults import BROKER, SIDECAR, kill_and_wait, kill_broker
from gantry_cluster.groups import Group
from gantry_cluster.namespaces import NamespaceFactory
from gantry_cluster.specs import SMALL, UNCOMMITTED
from gantry_cluster.trial import run_fault_under_load

pytestmark = [pytest.mark.slow, pytest.mark.cluster_can(Capability.RUN_GROUPS)]

POD_SECONDS_MAX = 30.0
"""The limit of the interruption of clients if the master's pod is deleted."""

FORCED_SECONDS_MAX = 45.0
"""The limit of the interruption: a pod that was deleted by force gives no proof that its process has ended."""
CRASH_SECONDS_MAX = 20.0
"""The limit of the interruption if the master's process or container is killed."""

CRASHES_APART_S = 15.0
"""The interval between kills."""

SIDECAR_SECONDS_MAX = 20.0
"""The limit of the interruption if the master's sidecar is killed."""


def replayed(group: Group, pod: str) -> int:
    """Return how many records its broker replayed from buffers at its last start."""
    log = group.namespace.cluster.kubectl("logs", pod, f"--container={BROKER}", f"--namespace={group.namespace.name}")
    found = [int(number) for number in re.findall(r"replayed_records=(\d+)", log)]
    print(f"RESULT records replayed from buffers: {found}")
    return found[-1] if found else 0


def test_deleted_master_pod_loses_nothing(namespaces: NamespaceFactory) -> None:
    """Synchronous with one slave: the slave takes over, and acknowledges when the pod is back and in sync."""
    group = namespaces.create_group("deleted", SMALL)
    [master] = group.masters()

    outcome = run_fault_under_load(group, "pod deleted", lambda: print(f"back in {group.replace_pod(master):.1f} s"))

    outcome.check_limits(POD_SECONDS_MAX)


@pytest.mark.release
def test_master_pod_deleted_by_force_loses_nothing(namespaces: NamespaceFactory) -> None:
    """Kubernetes does not wait for the end of its process, and another pod may get its volume while it still runs."""
    group = namespaces.create_group("forced", SMALL)
    [master] = group.masters()

    outcome = run_fault_under_load(
        group,
        "pod deleted by force",
        lambda: print(f"back in {group.replace_pod(master, '--force', '--grace-period=0'):.1f} s"),
    )

    outcome.check_limits(FORCED_SECONDS_MAX)


def test_broker_killed_three_times_within_a_minute_loses_nothing(namespaces: NamespaceFactory) -> None:
    """The process gets SIGKILL: its supervisor restarts it at once, each time."""
    group = namespaces.create_group("killed", SMALL)

    def thrice() -> None:
        started = time.monotonic()
        for number in range(3):
            time.sleep(max(0.0, started + number * CRASHES_APART_S - time.monotonic()))
            kill_broker(group, group.masters()[0])
            group.wait_healthy()
        assert time.monotonic() - started < 60

    run_fault_under_load(group, "process killed", thrice).check_limits(CRASH_SECONDS_MAX)


@pytest.mark.cluster_can(Capability.ENTER_CONTAINERS, Capability.HUGE_PAGES)
def test_killed_container_replays_its_buffer(namespaces: NamespaceFactory) -> None:
    """Asynchronous with buffers in huge pages: data that was in no file and on no slave is replayed from the pod's
    pages.
    """
    group = namespaces.create_group("buffered", UNCOMMITTED)
    [master] = group.masters()

    outcome = run_fault_under_load(
        group, "container killed", lambda: kill_and_wait(group, master, BROKER), is_async=True
    )

    outcome.check_limits(CRASH_SECONDS_MAX)
    assert outcome.lost == 0
    assert group.masters() == [master], "expected the same master, because it has its whole log"
    assert replayed(group, master) > 0


@pytest.mark.cluster_can(Capability.ENTER_CONTAINERS)
def test_killed_sidecar_loses_nothing(namespaces: NamespaceFactory) -> None:
    """The broker works on, and its role stays or moves without loss."""
    group = namespaces.create_group("watched", SMALL)
    [master] = group.masters()

    outcome = run_fault_under_load(group, "sidecar killed", lambda: kill_and_wait(group, master, SIDECAR))

    outcome.check_limits(SIDECAR_SECONDS_MAX)
