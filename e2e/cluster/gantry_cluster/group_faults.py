"""Faults of groups, injected on purpose. `kill_and_wait` and `crash_node` return when Kubernetes has noticed the
fault; `kill_broker` and `pause_leader` do not wait."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from gantry_cluster import lifecycle
from gantry_cluster.cluster import Cluster, ready_nodes
from gantry_cluster.commands import wait_until
from gantry_cluster.errors import CommandFailed
from gantry_cluster.faults import container_id, crash, kill_container, pause_container
from gantry_cluster.groups import OPERATOR, SYSTEM, Group
from gantry_cluster.pods import Namespace

NOTICED_SECONDS_MAX: Final = 120.0
"""The limit for Kubernetes or the operator to notice a change."""

OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"
"""The taint that declares that a node is off."""

BROKER: Final = "broker"
SIDECAR: Final = "sidecar"
OPERATOR_CONTAINER: Final = "operator"
"""The names of the containers of brokers and operators."""

KILL_BROKER: Final = """
import os, signal
for name in filter(str.isdigit, os.listdir("/proc")):
    fields = open(f"/proc/{name}/stat").read().rpartition(")")[2].split()
    if fields[1] == "1" and fields[0] not in "ZX":
        os.kill(int(name), signal.SIGKILL)
        print(name)
"""
"""Kills the process that process 1 of the container has started. A process started by `exec` has another parent."""


def evict(group: Group, pod: str) -> None:
    """Evict a pod, as a drain of its node does. Raises ``ApiRefused`` if a disruption budget forbids it."""
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": group.namespace.name}}
    group.namespace.cluster.api.create(f"{group.namespace.path('pods')}/{pod}/eviction", body)


def kill_broker(group: Group, pod: str) -> None:
    """Kill the broker process with SIGKILL; process 1 of its container starts another at once."""
    killed = group.namespace.run_python(pod, KILL_BROKER, BROKER).split()
    assert len(killed) == 1, f"{pod} has brokers {killed}"


def kill_and_wait(group: Group, pod: str, container: str) -> None:
    """Kill a whole container with SIGKILL, and wait for the next one."""
    _, before = container_id(group.namespace, pod, container)
    kill_container(group.namespace, pod, container)

    def is_another() -> bool:
        try:
            return container_id(group.namespace, pod, container)[1] not in (before, "")
        except (KeyError, ValueError):  # between the two containers there is none
            return False

    wait_until(f"another {container} in {pod}", is_another, NOTICED_SECONDS_MAX)


def crash_node(group: Group, pod: str) -> str:
    """Cut the power of the node that a pod is on, and wait until it is not ready; return the node's name."""
    cluster, node = group.namespace.cluster, group.node_of(pod)
    crash(cluster, node)
    wait_until(f"{node} not ready", lambda: node not in ready_nodes(cluster.api), NOTICED_SECONDS_MAX)
    return node


@contextmanager
def revive_crashed_nodes(cluster: Cluster) -> Iterator[None]:
    """Start all crashed nodes again at the end, and remove out-of-service taints."""
    try:
        yield
    finally:
        with suppress(CommandFailed):  # a node may have no such taint
            cluster.kubectl("taint", "nodes", "--all", f"{OUT_OF_SERVICE}-")
        for node in cluster.nodes:
            if not cluster.machines[node].is_alive():
                lifecycle.revive(cluster, node)
        wait_until("all nodes", lambda: ready_nodes(cluster.api) == set(cluster.nodes), NOTICED_SECONDS_MAX)


def wait_for_epoch(group: Group, beyond: int, shard: int = 0) -> float:
    """Wait for a newer epoch whose master the status names; return how long that took, in seconds."""
    started = time.monotonic()

    def is_new() -> bool:
        record = group.lease_record(shard)
        is_settled = bool(record["terms"]) and record["terms"][-1]["epoch"] == record["epoch"]
        return record["epoch"] > beyond and is_settled and group.masters()[shard] not in ("-", "")

    wait_until(f"an epoch beyond {beyond}", is_new, NOTICED_SECONDS_MAX)
    return time.monotonic() - started


def find_leader(cluster: Cluster) -> str:
    """Return the pod of the operator that leads."""
    found = cluster.api.get(f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/{OPERATOR}")
    return str(found["spec"]["holderIdentity"]).partition("_")[0]


@contextmanager
def pause_leader(cluster: Cluster) -> Iterator[str]:
    """Pause the leading operator; at the end it continues with its old state."""
    pod = find_leader(cluster)
    with pause_container(Namespace(cluster, SYSTEM), pod, OPERATOR_CONTAINER):
        yield pod
