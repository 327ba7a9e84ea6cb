"""Groups work on without loss while operators or the API server are down or have old information."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from gantry_cluster import faults
from gantry_cluster.capabilities import Capability
from gantry_cluster.cluster import Cluster
from gantry_cluster.commands import wait_until
from gantry_cluster.group_faults import (
    BROKER,
    NOTICED_SECONDS_MAX,
    find_leader,
    pause_leader,
    wait_for_epoch,
)
from gantry_cluster.groups import OPERATOR, SYSTEM, Group, install_operator
from gantry_cluster.namespaces import NamespaceFactory
from gantry_cluster.pods import is_gone
from gantry_cluster.specs import BUFFERED, SMALL
from gantry_cluster.trial import Outcome, run_fault_under_load

pytestmark = [pytest.mark.slow, pytest.mark.cluster_can(Capability.RUN_GROUPS)]

AWAY_S = 60.0
"""How long the API server is down."""

AWAY_SECONDS_MAX = 5.0
"""The limit of the interruption while only the API server is down."""
KILLED_SECONDS_MAX = 25.0
"""The limit of the interruption if a broker is killed while the API server is down."""
STOPPED_SECONDS_MAX = 60.0
"""The limit of the interruption of clients if the leading operator is paused during a failover."""

STOPPED_S = 40.0
"""The pause is longer than it takes another operator to become leader."""


@pytest.mark.cluster_can(Capability.ENTER_CONTAINERS)
def test_operator_paused_during_a_failover_does_no_harm(
    namespaces: NamespaceFactory, operator_cluster: Cluster
) -> None:
    """Its successor finishes the failover; when the old one continues with old information, it is refused or exits."""
    group = namespaces.create_group("stopped", SMALL)
    [master] = group.masters()
    epoch = group.lease_record()["epoch"]

    def fail_over() -> None:
        group.namespace.cluster.kubectl("delete", "pod", master, f"--namespace={group.namespace.name}", "--wait=false")
        wait_until("the beginning of a failover", lambda: group.lease_record()["epoch"] > epoch, NOTICED_SECONDS_MAX)
        with pause_leader(operator_cluster) as stopped:
            started = time.monotonic()
            wait_until("another leader", lambda: find_leader(operator_cluster) != stopped, NOTICED_SECONDS_MAX)
            print(f"another operator acts after {time.monotonic() - started:.1f} s")
            wait_for_epoch(group, epoch)
            time.sleep(max(0.0, started + STOPPED_S - time.monotonic()))
        time.sleep(10)

    run_fault_under_load(group, "operator stopped", fail_over).check_limits(STOPPED_SECONDS_MAX)


def without_api_server(group: Group, name: str, fault: Callable[[], None], *, is_async: bool) -> Outcome:
    """Stop the API server for a minute, and inject another fault meanwhile."""

    def outage() -> None:
        cluster = group.namespace.cluster
        with faults.kill_temporarily(cluster, "hub", "kube-apiserver"):
            started = time.monotonic()
            fault()
            time.sleep(max(0.0, started + AWAY_S - time.monotonic()))
        wait_until("a ready API server", cluster.api.is_ready, NOTICED_SECONDS_MAX)
        time.sleep(10)

    return run_fault_under_load(group, name, outage, is_async=is_async, is_direct=True)


@pytest.mark.cluster_can(Capability.STOP_API_SERVER, Capability.ENTER_CONTAINERS, Capability.HUGE_PAGES)
@pytest.mark.parametrize("spec", [SMALL, BUFFERED], ids=["sync", "async"])
def test_clients_do_not_notice_an_outage_of_the_api_server(
    namespaces: NamespaceFactory, spec: dict[str, object]
) -> None:
    """For a minute no Lease can be renewed; slaves that receive the master's heartbeats keep it the master."""
    name = "async" if spec is BUFFERED else "sync"
    group = namespaces.create_group(f"alone-{name}", spec)
    [master] = group.masters()

    outcome = without_api_server(group, f"api away {name}", lambda: None, is_async=spec is BUFFERED)

    outcome.check_limits(AWAY_SECONDS_MAX)
    assert group.masters() == [master]


@pytest.mark.cluster_can(Capability.STOP_API_SERVER, Capability.ENTER_CONTAINERS, Capability.HUGE_PAGES)
@pytest.mark.parametrize("spec", [SMALL, BUFFERED], ids=["sync", "async"])
def test_broker_that_is_killed_during_an_api_outage_continues(
    namespaces: NamespaceFactory, spec: dict[str, object]
) -> None:
    """Its container is killed while no election is possible: it has its whole log, and regains its role from its
    sidecar.
    """
    name = "async" if spec is BUFFERED else "sync"
    group = namespaces.create_group(f"orphan-{name}", spec)
    [master] = group.masters()
    machine, identifier = faults.container_id(group.namespace, master, BROKER)

    def kill() -> None:
        time.sleep(10)
        machine.run(*faults.TASKS, "kill", "--signal", "SIGKILL", identifier)

    outcome = without_api_server(group, f"api away broker killed {name}", kill, is_async=spec is BUFFERED)

    outcome.check_limits(KILLED_SECONDS_MAX)


@pytest.mark.release
def test_group_works_without_an_operator(
    namespaces: NamespaceFactory, operator_cluster: Cluster, operator_archive: Path | None
) -> None:
    """The operator is uninstalled: clients work on. Then group and namespace are deleted, and no finalizer blocks
    that."""
    group = namespaces.create_group("left", SMALL)
    group.gantry("produce", "orders", "before")
    try:
        operator_cluster.helm("uninstall", OPERATOR, "--namespace", SYSTEM, "--wait", "--timeout", "110s")
        group.gantry("produce", "orders", "after")
        assert sorted(group.gantry("consume", "orders").split()) == ["after", "before"]
        started = time.monotonic()
        group.namespace.cluster.kubectl("delete", "brokergroup", group.name, f"--namespace={group.namespace.name}")
        wait_until("the end of its pods", lambda: not group.brokers(), NOTICED_SECONDS_MAX)
        group.namespace.cluster.kubectl("delete", "namespace", group.namespace.name, "--wait=false")
        wait_until("the end of its namespace", lambda: is_gone(group.namespace), NOTICED_SECONDS_MAX)
        print(f"RESULT group and namespace gone {time.monotonic() - started:.1f} s after the deletion")
    finally:
        install_operator(operator_cluster, operator_archive)
