"""What goes wrong in a cluster, done on purpose, and put right again.

A cut is made where a cable is, at the bridge. A one-way cut and loss are rules in the `raw` table of the node that does
not hear, before connection tracking and in a table that kube-proxy never touches.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from gantry_cluster.cluster import Cluster
from gantry_cluster.commands import wait_until
from gantry_cluster.node_files import SOCKET
from gantry_cluster.pods import Namespace

CRASH_SECONDS_MAX = 30.0
TABLE = ("iptables", "--wait", "-t", "raw")


@contextmanager
def uplink_cut(cluster: Cluster, node: str) -> Iterator[None]:
    """Nobody reaches the node and it reaches nobody; its pods go on among themselves."""
    cluster.hub.run("ip", "link", "set", node, "down")
    try:
        yield
    finally:
        cluster.hub.run("ip", "link", "set", node, "up")


@contextmanager
def deaf(cluster: Cluster, node: str, source: str, share: float = 1.0) -> Iterator[None]:
    """The node loses packets that come from an address or range; the other way stays open."""
    chance = () if share >= 1 else ("-m", "statistic", "--mode", "random", "--probability", str(share))
    rule = ("PREROUTING", "-i", "eth0", "-s", source, *chance, "-j", "DROP")
    machine = cluster.machines[node]
    machine.run(*TABLE, "-I", *rule)
    try:
        yield
    finally:
        machine.run(*TABLE, "-D", *rule)


@contextmanager
def stopped(cluster: Cluster, machine: str, program: str) -> Iterator[None]:
    """A program of the cluster is there and does nothing, as when its machine has no time for it."""
    process = cluster.machines[machine].programs[program].process
    process.send(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send(signal.SIGCONT)


def crash(cluster: Cluster, node: str) -> None:
    """Pull the plug of a node: everything in it is gone at once, and it stays away until somebody revives it."""
    init = cluster.machines[node].init
    init.send(signal.SIGKILL)
    wait_until(f"the end of {node}", lambda: not init.is_alive(), CRASH_SECONDS_MAX)


def kill(cluster: Cluster, machine: str, program: str) -> None:
    """Kill one program of the cluster; it stays dead until somebody starts it again (`Machine.respawn`)."""
    process = cluster.machines[machine].programs[program].process
    process.send(signal.SIGKILL)
    wait_until(f"the end of {program}", lambda: not process.is_alive(), CRASH_SECONDS_MAX)


def kill_container(space: Namespace, pod: str, container: str = "main") -> None:
    """Kill the first process of a container, as the kernel does when memory is short; the kubelet starts another."""
    found = space.read_pod(pod)
    assert found is not None, f"there is no pod {pod}"
    [identifier] = [
        status["containerID"].rpartition("/")[2]
        for status in (*found["status"]["containerStatuses"], *found["status"].get("initContainerStatuses", ()))
        if status["name"] == container
    ]
    machine = space.cluster.machines[found["spec"]["nodeName"]]
    tasks = ("ctr", "--address", SOCKET, "--namespace", "k8s.io", "tasks")
    machine.run(*tasks, "kill", "--signal", "SIGKILL", identifier)
