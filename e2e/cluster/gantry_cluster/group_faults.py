"""What goes wrong in groups, done on purpose; each returns when it has been noticed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from gantry_cluster import making
from gantry_cluster.cluster import Cluster, ready_nodes
from gantry_cluster.commands import wait_until
from gantry_cluster.errors import CommandFailed
from gantry_cluster.faults import container_id, crash, kill_container, stopped_container
from gantry_cluster.groups import OPERATOR, SYSTEM, Group
from gantry_cluster.pods import Namespace

NOTICED_SECONDS_MAX: Final = 120.0
OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"
BROKER: Final = "broker"
SIDECAR: Final = "sidecar"
OPERATOR_CONTAINER: Final = "operator"
KILL_BROKER: Final = """
import os, signal
for name in filter(str.isdigit, os.listdir("/proc")):
    fields = open(f"/proc/{name}/stat").read().rpartition(")")[2].split()
    if fields[1] == "1" and fields[0] not in "ZX":
        os.kill(int(name), signal.SIGKILL)
        print(name)
"""
"""Whatever process 1 of the container has started; who comes by `exec` has another parent."""


def kill_broker(group: Group, pod: str) -> None:
    """Kill -9 the broker itself; process 1 of its container starts another at once."""
    killed = group.space.run(pod, KILL_BROKER, BROKER).split()
    assert len(killed) == 1, f"{pod} has brokers {killed}"


def kill_and_wait(group: Group, pod: str, container: str) -> None:
    """Kill -9 a whole container, and wait for the next."""
    _, before = container_id(group.space, pod, container)
    kill_container(group.space, pod, container)

    def is_another() -> bool:
        try:
            return container_id(group.space, pod, container)[1] not in (before, "")
        except (KeyError, ValueError):  # there is none between the two
            return False

    wait_until(f"another {container} in {pod}", is_another, NOTICED_SECONDS_MAX)


def crash_node(group: Group, pod: str) -> str:
    """Pull the plug of the node that a pod is on, and wait until Kubernetes has noticed; the node's name."""
    cluster, node = group.space.cluster, group.node_of(pod)
    crash(cluster, node)
    wait_until(f"{node} not ready", lambda: node not in ready_nodes(cluster.api), NOTICED_SECONDS_MAX)
    return node


@contextmanager
def revived(cluster: Cluster) -> Iterator[None]:
    """Whatever was crashed, or said to be off, is there again in the end."""
    try:
        yield
    finally:
        with suppress(CommandFailed):  # of a node that has no such taint
            cluster.kubectl("taint", "nodes", "--all", f"{OUT_OF_SERVICE}-")
        for node in cluster.nodes:
            if not cluster.machines[node].is_alive():
                making.revive(cluster, node)
        wait_until("all nodes", lambda: ready_nodes(cluster.api) == set(cluster.nodes), NOTICED_SECONDS_MAX)


def wait_epoch(group: Group, beyond: int, shard: int = 0) -> float:
    """Wait for a newer epoch with a master that the status names; how long that took."""
    started = time.monotonic()

    def is_new() -> bool:
        record = group.record(shard)
        is_settled = bool(record["reigns"]) and record["reigns"][-1]["epoch"] == record["epoch"]
        return record["epoch"] > beyond and is_settled and group.masters()[shard] not in ("-", "")

    wait_until(f"an epoch beyond {beyond}", is_new, NOTICED_SECONDS_MAX)
    return time.monotonic() - started


def leader(cluster: Cluster) -> str:
    """The pod of the operator that acts now."""
    found = cluster.api.get(f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/{OPERATOR}")
    return str(found["spec"]["holderIdentity"]).partition("_")[0]


@contextmanager
def leader_stopped(cluster: Cluster) -> Iterator[str]:
    """The operator that acts does nothing, and goes on in the end with all that it believed before."""
    pod = leader(cluster)
    with stopped_container(Namespace(cluster, SYSTEM), pod, OPERATOR_CONTAINER):
        yield pod
