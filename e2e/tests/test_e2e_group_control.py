"""Those who look after groups are away or believe old things: groups go on, and nothing is lost."""

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
    leader,
    leader_stopped,
    wait_epoch,
)
from gantry_cluster.groups import OPERATOR, SYSTEM, Group, install_operator
from gantry_cluster.pods import is_gone
from gantry_cluster.spaces import Spaces
from gantry_cluster.specs import BUFFERED, SMALL
from gantry_cluster.trial import Outcome, under_load

pytestmark = [pytest.mark.slow, pytest.mark.cluster_can(Capability.RUN_GROUPS)]

AWAY_S = 60.0
AWAY_SECONDS_MAX = 5.0
"""Of clients, while nothing but the API server is away."""
KILLED_SECONDS_MAX = 25.0
"""Of a broker that is killed meanwhile."""
STOPPED_SECONDS_MAX = 60.0
STOPPED_S = 40.0
"""Longer than it takes until another operator acts."""


@pytest.mark.cluster_can(Capability.ENTER_CONTAINERS)
def test_an_operator_that_was_stopped_in_mid_failover_does_no_harm(spaces: Spaces, operated: Cluster) -> None:
    """Its successor finishes what it began; when it goes on, with old beliefs, it is refused or ends itself."""
    group = spaces.group("stopped", SMALL)
    [master] = group.masters()
    epoch = group.record()["epoch"]

    def fail_over() -> None:
        group.space.cluster.kubectl("delete", "pod", master, f"--namespace={group.space.name}", "--wait=false")
        wait_until("the beginning of a failover", lambda: group.record()["epoch"] > epoch, NOTICED_SECONDS_MAX)
        with leader_stopped(operated) as stopped:
            started = time.monotonic()
            wait_until("another leader", lambda: leader(operated) != stopped, NOTICED_SECONDS_MAX)
            print(f"another operator acts after {time.monotonic() - started:.1f} s")
            wait_epoch(group, epoch)
            time.sleep(max(0.0, started + STOPPED_S - time.monotonic()))
        time.sleep(10)

    under_load(group, "operator stopped", fail_over).demand(STOPPED_SECONDS_MAX)


def without_api_server(group: Group, name: str, fault: Callable[[], None], *, is_async: bool) -> Outcome:
    """The API server is away for a minute, and something else happens meanwhile."""

    def outage() -> None:
        cluster = group.space.cluster
        with faults.away(cluster, "hub", "kube-apiserver"):
            started = time.monotonic()
            fault()
            time.sleep(max(0.0, started + AWAY_S - time.monotonic()))
        wait_until("a ready API server", cluster.api.is_ready, NOTICED_SECONDS_MAX)
        time.sleep(10)

    return under_load(group, name, outage, is_async=is_async, is_direct=True)


@pytest.mark.cluster_can(Capability.STOP_API_SERVER, Capability.ENTER_CONTAINERS, Capability.HUGE_PAGES)
@pytest.mark.parametrize("spec", [SMALL, BUFFERED], ids=["sync", "async"])
def test_clients_do_not_notice_that_the_api_server_is_away(spaces: Spaces, spec: dict[str, object]) -> None:
    """For a minute nobody can renew a Lease; slaves that hear their master keep it the master."""
    name = "async" if spec is BUFFERED else "sync"
    group = spaces.group(f"alone-{name}", spec)
    [master] = group.masters()

    outcome = without_api_server(group, f"api away {name}", lambda: None, is_async=spec is BUFFERED)

    outcome.demand(AWAY_SECONDS_MAX)
    assert group.masters() == [master]


@pytest.mark.cluster_can(Capability.STOP_API_SERVER, Capability.ENTER_CONTAINERS, Capability.HUGE_PAGES)
@pytest.mark.parametrize("spec", [SMALL, BUFFERED], ids=["sync", "async"])
def test_a_broker_that_dies_while_the_api_server_is_away_goes_on(spaces: Spaces, spec: dict[str, object]) -> None:
    """Its container is killed when nobody can elect: it has all that it had, and from its sidecar its role again."""
    name = "async" if spec is BUFFERED else "sync"
    group = spaces.group(f"orphan-{name}", spec)
    [master] = group.masters()
    machine, identifier = faults.container_id(group.space, master, BROKER)

    def kill() -> None:
        time.sleep(10)
        machine.run(*faults.TASKS, "kill", "--signal", "SIGKILL", identifier)

    outcome = without_api_server(group, f"api away broker killed {name}", kill, is_async=spec is BUFFERED)

    outcome.demand(KILLED_SECONDS_MAX)


def test_a_group_goes_without_an_operator(spaces: Spaces, operated: Cluster, operator_archive: Path | None) -> None:
    """The operator is uninstalled: clients go on. Group and namespace are deleted then: nothing holds them back."""
    group = spaces.group("left", SMALL)
    group.gantry("produce", "orders", "before")
    try:
        operated.helm("uninstall", OPERATOR, "--namespace", SYSTEM, "--wait", "--timeout", "110s")
        group.gantry("produce", "orders", "after")
        assert sorted(group.gantry("consume", "orders").split()) == ["after", "before"]
        started = time.monotonic()
        group.space.cluster.kubectl("delete", "brokergroup", group.name, f"--namespace={group.space.name}")
        wait_until("the end of its pods", lambda: not group.brokers(), NOTICED_SECONDS_MAX)
        group.space.cluster.kubectl("delete", "namespace", group.space.name, "--wait=false")
        wait_until("the end of its namespace", lambda: is_gone(group.space), NOTICED_SECONDS_MAX)
        print(f"RESULT group and namespace gone {time.monotonic() - started:.1f} s after the deletion")
    finally:
        install_operator(operated, operator_archive)
